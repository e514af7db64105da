"""Frozen vision trunks: pretrained networks that encode a policy's images and are never trained.

Behind a trunk the policy is a *head*: the same network with the same parameter names, on observations in which every
image is a vector of the trunk's features. A head that was trained on features alone (which may be cached) is therefore
the policy, and its weights contain nothing of the trunk.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.errors import CheckpointError, ConfigError, MachineError, SlipstreamError
from slipstream.policies.convert_weights import KIND, VptImageEncoder, read_trunk
from slipstream.policies.design import Design
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir

READ_BATCH = 64
"""Images per forward pass."""
LARGEST_HALF = float(torch.finfo(torch.float16).max)
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
CLIP_CONFIG_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_channels",
    "image_size",
    "patch_size",
    "hidden_act",
    "layer_norm_eps",
)
"""The settings of a CLIP model that change its output."""


class Trunk:
    """A network that encodes images as features, with its preprocessing."""

    def __init__(
        self,
        name: str,
        net: nn.Module,
        size: tuple[int, int],
        channels: int,
        facts: Mapping[str, Any],
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
    ) -> None:
        self.name = name
        self.net = net.float().eval().requires_grad_(False)
        self.size = size
        """Height and width of the network's images; other images are resized."""
        self.channels = channels
        self._mean, self._std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))
        description = {"size": size, "channels": channels, "mean": mean, "deviation": std, **facts}
        self.hash = digest(description, net.state_dict())
        """A hash of its weights, settings and preprocessing."""
        self._copies: dict[torch.device, nn.Module] = {torch.device("cpu"): self.net}
        self.features = 0
        """Features per image."""
        self.features = self.read(torch.zeros(1, *size, channels, dtype=torch.uint8)).shape[1]

    def check(self, field: ObsField) -> None:
        """Raise if images have another number of channels (1 is allowed)."""
        if field.planes[0] not in (self.channels, 1):
            raise ConfigError(
                f"The trunk `{self.name}` reads images of {self.channels} channels, but `{field.name or 'obs'}` has "
                f"{field.planes[0]}.",
                "use another trunk, or policy.image=impala",
            )

    @torch.no_grad()
    def read(self, pixels: Tensor) -> Tensor:
        """From uint8 [images, height, width, channels] to [images, features], on the device of the pixels.

        Features are rounded to half precision, so that cached features equal computed ones.
        """
        net = self._on(pixels.device)
        parts = [net(self.prepare(part)) for part in torch.split(pixels, READ_BATCH) if len(part)]
        if not parts:
            return torch.zeros(0, self.features, device=pixels.device)
        features = torch.cat(parts)
        if not torch.isfinite(features).all():
            raise ConfigError(
                f"The trunk `{self.name}` outputs features that are not finite.", "its weights are damaged"
            )
        return features.clamp(-LARGEST_HALF, LARGEST_HALF).half().float()

    def encode(self, images: Array, device: str = "cpu") -> Array:
        """The features [images, features] of uint8 images [images, height, width, channels]."""
        parts = (images[first : first + READ_BATCH] for first in range(0, len(images), READ_BATCH))
        read = [self.read(torch.tensor(part, device=device)).cpu().numpy() for part in parts]
        return np.concatenate(read) if read else np.zeros((0, self.features), np.float32)

    def prepare(self, pixels: Tensor) -> Tensor:
        """Preprocess uint8 pixels: [images, channels, height, width] in the network's size and scale."""
        image = pixels.permute(0, 3, 1, 2).to(torch.float32)
        if image.shape[1] != self.channels:
            image = image.expand(-1, self.channels, -1, -1)
        if tuple(image.shape[2:]) != self.size:
            resized = functional.interpolate(image, self.size, mode="bicubic", antialias=True, align_corners=False)
            image = resized.round().clamp(0, 255)
        mean, std = self._mean.to(image.device), self._std.to(image.device)
        return ((image / 255 - mean) / std).contiguous(memory_format=torch.channels_last)

    def _on(self, device: torch.device) -> nn.Module:
        """The network on a device; there is one copy per device."""
        if device not in self._copies:
            self._copies[device] = copy.deepcopy(self.net).to(device)
        return self._copies[device]


def digest(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A hash of a description and of named tensors."""
    result = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        result.update(f"{name} {tuple(tensor.shape)}".encode())
        result.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return result.hexdigest()


class TrunkEncoder:
    """Converts observations to those of the head, with features in place of images.

    It is not a torch module, so that the trunk's weights do not become parameters of the policy that holds it.
    """

    def __init__(self, obs: ObsSpec, trunk: Trunk) -> None:
        self.obs = obs
        self.trunk = trunk
        self.head = head_obs(obs, trunk)

    def __call__(self, rows: Tensor) -> Tensor:
        """From [rows, obs.width] to [rows, head.width]."""
        vectors = [rows[:, : 4 * self.obs.floats].contiguous().view(torch.float32)]
        others = []
        for field, start in self.obs.places.values():
            part = rows[:, start : start + field.bytes]
            if field.kind == "image":
                vectors.append(self.trunk.read(part.reshape(-1, *field.shape)))
            elif field.kind == "tokens":
                others.append(part)
        joined = torch.cat(vectors, -1)
        if self.head.plain:
            return joined
        bytes_ = torch.cat([joined.view(torch.uint8), *others], -1)
        return functional.pad(bytes_, (0, self.head.width - bytes_.shape[1]))


def head_obs(obs: ObsSpec, trunk: Trunk) -> ObsSpec:
    """The observation of the head: every image is a feature vector, after the other vectors."""
    kinds: dict[str, list[ObsField]] = {"vector": [], "image": [], "tokens": []}
    for field in obs.fields:
        kinds[field.kind].append(field)
    for field in kinds["image"]:
        trunk.check(field)
    features = [ObsField(field.name, "vector", (trunk.features,)) for field in kinds["image"]]
    return ObsSpec((*kinds["vector"], *features, *kinds["tokens"]))


def head_design(design: Design) -> Design:
    """The design of the head, on features instead of images; a design without a frozen trunk is returned unchanged."""
    if not design.frozen:
        return design
    policy = design.policy.model_copy(update={"image": "nature", "trunk": None})
    return replace(design, obs=head_obs(design.obs, _trunk_of(design)), policy=policy)


def from_head_params(design: Design, head_params: Array) -> Array:
    """Convert the `params_and_stats` of a head to those of the policy with the frozen trunk."""
    return _convert_params(head_design(design), head_params, design)


def to_head_params(design: Design, params_and_stats: Array) -> Array:
    """The inverse of `from_head_params`."""
    return _convert_params(design, params_and_stats, head_design(design))


def _convert_params(design: Design, params_and_stats: Array, other: Design) -> Array:
    """Convert `params_and_stats` to the layout of another design with the same parameter names."""
    converted = np.zeros(other.params_and_stats_size, np.float32)
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    other.weights.flatten(design.weights.named(params), other.split_params_and_stats(converted)[0])
    other.write_normaliser(converted, mean, scale)
    return converted


def make_trunk_encoder(design: Design) -> TrunkEncoder | None:
    """The encoder of a design with a frozen trunk; None without one."""
    return TrunkEncoder(design.obs, _trunk_of(design)) if design.frozen else None


def _trunk_of(design: Design) -> Trunk:
    assert design.policy.trunk is not None
    return load_trunk(design.policy.trunk)


def describe_trunk(design: Design) -> dict[str, Any]:
    """The description of the trunk that a checkpoint stores instead of its weights."""
    trunk = _trunk_of(design)
    return {"name": trunk.name, "hash": trunk.hash, "features": trunk.features}


def check_trunk(description: Mapping[str, Any]) -> None:
    """Raise if the trunk that a checkpoint describes is missing or has another hash."""
    name = description["name"]
    try:
        found = load_trunk(name).hash
    except SlipstreamError as error:
        hint = f"restore it, or a link to it, at {name.removeprefix('run:')}"
        if HUB_NAME.fullmatch(name):
            hint += f"; with network access, a model of the Hugging Face Hub can be downloaded: hf download {name}"
        message = f"This policy needs the frozen trunk `{name}`, which cannot be loaded: {error.message}"
        raise CheckpointError(message, hint) from error
    if found != description["hash"]:
        raise CheckpointError(
            f"The frozen trunk `{name}` is not the one that this policy was trained with: its hash was "
            f"{description['hash'][:16]} and is {found[:16]}.",
            f"restore the original trunk as `{name}`, or train the policy again",
        )


def load_trunk(name: str) -> Trunk:
    """Load the trunk of `policy.trunk`; it is cached in the process until its files change."""
    kind, folder, pixels = _find(name)
    stamp = tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir()))
    return _load(name, kind, folder.resolve(), pixels, stamp)


@lru_cache(maxsize=4)
def _load(name: str, kind: str, folder: Path, pixels: int | None, stamp: tuple[Any, ...]) -> Trunk:
    with torch.random.fork_rng(devices=[]):  # creating a network draws from torch's global RNG
        if kind == "run":
            return _run_trunk(name, folder)
        return _converted_trunk(name, folder) if kind == "ours" else _clip_trunk(name, folder, pixels)


def _find(name: str) -> tuple[str, Path, int | None]:
    """The kind of trunk, its folder, and the requested image size."""
    if name.startswith("run:"):
        run_path = name.removeprefix("run:")
        path, at, which = run_path.rpartition("@")
        if not at or Path(run_path).exists():
            path, which = run_path, "latest"
        return "run", find(RunDir.open(Path(path)), which), None
    base, at, pixels = name.rpartition("@")
    sized = bool(at) and pixels.isdigit() and not Path(name).exists()
    folder = Path(base if sized else name)
    if not folder.is_dir():
        folder = _in_hub_cache(base if sized else name)
    if (folder / "trunk.json").is_file():
        if sized:
            hint = "remove @PIXELS; images are resized to the trunk's size"
            raise ConfigError(f"The trunk `{base}` reads images of one size only.", hint)
        return "ours", folder, None
    if (folder / "config.json").is_file():
        return "clip", folder, int(pixels) if sized else None
    raise ConfigError(
        f"The trunk `{name}` is a folder with neither config.json (a CLIP model) nor trunk.json in it.",
        "use a folder written by `save_pretrained` or `slipstream convert`",
    )


def _in_hub_cache(name: str) -> Path:
    """The folder of a model in the local Hugging Face cache; nothing is downloaded."""
    hint = f"with network access: hf download {name} --local-dir DIR; then set policy.trunk=DIR"
    if HUB_NAME.fullmatch(name):
        hub = _optional("huggingface_hub")
        try:
            return Path(hub.snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):
            pass
    else:
        hint = "use an existing folder"
    raise ConfigError(
        f"The trunk `{name}` is neither a folder nor a model in the local Hugging Face cache. Nothing is downloaded.",
        hint,
    )


def _optional(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise MachineError(
            f"CLIP trunks need the package {package}, which cannot be imported: {error}.",
            'pip install "slipstream[vision]"',
        ) from error


class ClipPooler(nn.Module):
    """The pooled output of a CLIP vision model; `interpolate` adapts position encodings to another image size."""

    def __init__(self, model: nn.Module, interpolate: bool) -> None:
        super().__init__()
        self.model = getattr(model, "vision_model", model)  # older versions wrap it once more
        self.interpolate = interpolate

    def forward(self, image: Tensor) -> Tensor:
        """From [images, channels, height, width] to [images, hidden size]."""
        pooled: Tensor = self.model(pixel_values=image, interpolate_pos_encoding=self.interpolate).pooler_output
        return pooled


def _clip_trunk(name: str, folder: Path, pixels: int | None) -> Trunk:
    config_json = _read_json(folder / "config.json")
    if config_json.get("model_type") not in ("clip", "clip_vision_model"):
        raise ConfigError(
            f"The trunk `{name}` is a model of the type {config_json.get('model_type')}, not CLIP.", "use a CLIP model"
        )
    transformers = _optional("transformers")
    with _quiet(transformers):
        try:
            model, report = transformers.CLIPVisionModel.from_pretrained(
                folder, local_files_only=True, weights_only=True, output_loading_info=True
            )
        except Exception as error:  # a foreign file can raise anything
            raise ConfigError(
                f"The trunk `{name}` cannot be read: {error}", f"download it again, or repair the files in {folder}"
            ) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ConfigError(
            f"The trunk `{name}` lacks {len(missing)} of its weights, such as {missing[0]}.", "download it again"
        )
    config = model.config
    side = pixels or config.image_size
    if side < config.patch_size:
        raise ConfigError(
            f"The trunk `{name}` reads patches of {config.patch_size} pixels: images of {side} are too small.",
            f"write NAME@PIXELS with at least {config.patch_size}",
        )
    facts = {key: getattr(config, key) for key in CLIP_CONFIG_KEYS}
    preprocessing = _read_json(folder / "preprocessor_config.json")
    mean, std = preprocessing.get("image_mean", CLIP_MEAN), preprocessing.get("image_std", CLIP_STD)
    net = ClipPooler(model, side != config.image_size)
    return Trunk(name, net, (side, side), config.num_channels, {"kind": "clip", **facts}, tuple(mean), tuple(std))


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence the library's progress bars and warnings."""
    logging = transformers.utils.logging
    level, progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if progress_bar:
            logging.enable_progress_bar()


def _converted_trunk(name: str, folder: Path) -> Trunk:
    shape, tensors = read_trunk(folder)
    net = VptImageEncoder(shape)
    net.load_state_dict(tensors)
    return Trunk(name, net, (shape.side, shape.side), shape.channels, {"kind": KIND})


def _run_trunk(name: str, folder: Path) -> Trunk:
    """The trained image encoder of a run."""
    from slipstream.policies.torch_policy import ActorCritic

    checkpoint = load(folder, groups=("policy",))
    try:
        design = Design.read(checkpoint.state["policy"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder} does not describe its policy.", "this version did not write it") from error
    images = [field for field in design.obs.fields if field.kind == "image"]
    if design.policy.network is not None:
        raise ConfigError(
            f"`{name}` cannot be a trunk: its policy is the network `{design.policy.network}`.",
            "use a run whose policy has an image encoder (policy.image)",
        )
    if design.frozen or len(images) != 1:
        problem = "uses a frozen trunk itself" if design.frozen else f"reads {len(images)} images"
        hint = (
            f"write policy.trunk={design.policy.trunk}" if design.frozen else "use a run whose policy reads one image"
        )
        raise ConfigError(f"`{name}` cannot be a trunk: its policy {problem}.", hint)
    policy = ActorCritic(design)
    arrays = checkpoint.groups["policy"]
    policy.load_state_dict({key: torch.from_numpy(arrays[key]) for key, _ in policy.named_parameters()})
    encoder: Any = policy.networks()[0].encoder
    stages: Any = encoder.readers[encoder.fields.index(images[0])].stages
    channels, height, width = images[0].planes
    return Trunk(name, stages, (height, width), channels, {"kind": "run", "image": design.policy.image})


def _read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object; empty if the file does not exist."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.", "repair it, or download the model again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} does not hold a JSON object.", "repair it, or download the model again")
    return content
