"""Frozen vision trunks: pretrained networks that read a policy's images and are never trained.

A trunk stands in front of a policy like a lens. Behind it the policy is a *head*: the same network with the same names
for its weights, on observations in which every image is a vector of the trunk's features. So a head that was trained on
features alone (which may have been computed once, and kept) is the policy, and nothing of the trunk is in its weights.
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
from slipstream.policies.convert_weights import KIND, VptImages, read_trunk
from slipstream.policies.design import Design
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir

TOGETHER = 64
"""Images that are read at once."""
LARGEST = float(torch.finfo(torch.float16).max)
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
CLIP_FACTS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_channels", "image_size",
    "patch_size", "hidden_act", "layer_norm_eps",
)  # fmt: skip
"""What of a CLIP model's settings changes what it gives."""


class Trunk:
    """A network that turns images into features, and how images are made ready for it."""

    def __init__(
        self, name: str, net: nn.Module, size: tuple[int, int], channels: int, facts: Mapping[str, Any],
        mean: tuple[float, ...] = (0.0,), deviation: tuple[float, ...] = (1.0,),
    ) -> None:  # fmt: skip
        self.name = name
        self.net = net.float().eval().requires_grad_(False)
        self.size = size
        """Height and width of the images that it reads; others are resized."""
        self.channels = channels
        self._mean, self._deviation = (torch.tensor(side).view(1, -1, 1, 1) for side in (mean, deviation))
        told = {"size": size, "channels": channels, "mean": mean, "deviation": deviation, **facts}
        self.hash = digest(told, net.state_dict())
        """What tells it from any other: a hash of its weights, its settings and how images are made ready."""
        self._there: dict[torch.device, nn.Module] = {torch.device("cpu"): self.net}
        self.features = 0
        """Numbers that it makes of an image."""
        self.features = self.read(torch.zeros(1, *size, channels, dtype=torch.uint8)).shape[1]

    def check(self, field: ObsField) -> None:
        """Refuse images with channels that it does not know."""
        if field.planes[0] not in (self.channels, 1):
            raise ConfigError(
                f"The trunk `{self.name}` reads images of {self.channels} channels, but `{field.name or 'obs'}` has "
                f"{field.planes[0]}.",
                "use another trunk, or policy.image=impala",
            )

    @torch.no_grad()
    def read(self, pixels: Tensor) -> Tensor:
        """From uint8 [images, height, width, channels] to [images, features], on the device of the pixels.

        Features are rounded to half precision here, so that a cache of them holds just what the policy sees.
        """
        net = self._on(pixels.device)
        parts = [net(self.prepare(part)) for part in torch.split(pixels, TOGETHER) if len(part)]
        if not parts:
            return torch.zeros(0, self.features, device=pixels.device)
        features = torch.cat(parts)
        if not torch.isfinite(features).all():
            raise ConfigError(f"The trunk `{self.name}` gives features that are not finite.", "its weights are damaged")
        return features.clamp(-LARGEST, LARGEST).half().float()

    def encode(self, images: Array, device: str = "cpu") -> Array:
        """The features [images, features] of uint8 images [images, height, width, channels]."""
        parts = (images[first : first + TOGETHER] for first in range(0, len(images), TOGETHER))
        read = [self.read(torch.tensor(part, device=device)).cpu().numpy() for part in parts]
        return np.concatenate(read) if read else np.zeros((0, self.features), np.float32)

    def prepare(self, pixels: Tensor) -> Tensor:
        """Pixels as the network wants them: [images, channels, height, width], of its own size and scale."""
        image = pixels.permute(0, 3, 1, 2).to(torch.float32)
        if image.shape[1] != self.channels:
            image = image.expand(-1, self.channels, -1, -1)
        if tuple(image.shape[2:]) != self.size:
            resized = functional.interpolate(image, self.size, mode="bicubic", antialias=True, align_corners=False)
            image = resized.round().clamp(0, 255)
        mean, deviation = self._mean.to(image.device), self._deviation.to(image.device)
        return ((image / 255 - mean) / deviation).contiguous(memory_format=torch.channels_last)

    def _on(self, device: torch.device) -> nn.Module:
        """The network on a device; there is one copy for each."""
        if device not in self._there:
            self._there[device] = copy.deepcopy(self.net).to(device)
        return self._there[device]


def digest(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A hash of facts and of tensors by name."""
    told = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        told.update(f"{name} {tuple(tensor.shape)}".encode())
        told.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return told.hexdigest()


class TrunkEncoder:
    """Turns rows of observations into those that the head reads.

    It is no torch module on purpose: what holds it must not take the trunk's weights for its own.
    """

    def __init__(self, obs: ObsSpec, trunk: Trunk) -> None:
        self.obs = obs
        self.trunk = trunk
        self.head = head_obs(obs, trunk)

    def __call__(self, rows: Tensor) -> Tensor:
        """From [rows, obs.width] to [rows, head.width]."""
        numbers = [rows[:, : 4 * self.obs.floats].contiguous().view(torch.float32)]
        others = []
        for field, start in self.obs.places.values():
            part = rows[:, start : start + field.bytes]
            if field.kind == "image":
                numbers.append(self.trunk.read(part.reshape(-1, *field.shape)))
            elif field.kind == "tokens":
                others.append(part)
        joined = torch.cat(numbers, -1)
        if self.head.plain:
            return joined
        bytes_ = torch.cat([joined.view(torch.uint8), *others], -1)
        return functional.pad(bytes_, (0, self.head.width - bytes_.shape[1]))


def head_obs(obs: ObsSpec, trunk: Trunk) -> ObsSpec:
    """What the head sees: every image is a vector of its features, behind the other vectors."""
    kinds: dict[str, list[ObsField]] = {"vector": [], "image": [], "tokens": []}
    for field in obs.fields:
        kinds[field.kind].append(field)
    for field in kinds["image"]:
        trunk.check(field)
    seen = [ObsField(field.name, "vector", (trunk.features,)) for field in kinds["image"]]
    return ObsSpec((*kinds["vector"], *seen, *kinds["tokens"]))


def head_design(design: Design) -> Design:
    """The policy behind a frozen trunk, on features instead of images; a design without a trunk as it is."""
    if not design.frozen:
        return design
    policy = design.policy.model_copy(update={"image": "nature", "trunk": None})
    return replace(design, obs=head_obs(design.obs, _trunk_of(design)), policy=policy)


def with_head(design: Design, head_pack: Array) -> Array:
    """The pack of a policy with a frozen trunk whose head was trained by itself."""
    return _carry(head_design(design), head_pack, design)


def head_of(design: Design, params_and_stats: Array) -> Array:
    """The head's pack of a policy with a frozen trunk: the inverse of `with_head`."""
    return _carry(design, params_and_stats, head_design(design))


def _carry(design: Design, params_and_stats: Array, other: Design) -> Array:
    """A pack in the layout of another design with the same names."""
    moved = np.zeros(other.params_and_stats_size, np.float32)
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    other.weights.flatten(design.weights.named(params), other.split_params_and_stats(moved)[0])
    other.write_normaliser(moved, mean, scale)
    return moved


def make_trunk_encoder(design: Design) -> TrunkEncoder | None:
    """What stands between a design's observations and its head; None: nothing."""
    return TrunkEncoder(design.obs, _trunk_of(design)) if design.frozen else None


def _trunk_of(design: Design) -> Trunk:
    assert design.policy.trunk is not None
    return load_trunk(design.policy.trunk)


def describe_trunk(design: Design) -> dict[str, Any]:
    """What a checkpoint must say of its trunk, which it does not hold."""
    trunk = _trunk_of(design)
    return {"name": trunk.name, "hash": trunk.hash, "features": trunk.features}


def check_trunk(told: Mapping[str, Any]) -> None:
    """Refuse a trunk that is missing, or not the one that a checkpoint describes."""
    name = told["name"]
    try:
        found = load_trunk(name).hash
    except SlipstreamError as error:
        hint = f"put it, or a link to it, back at {name.removeprefix('run:')}"
        if HUB_NAME.fullmatch(name):
            hint += f"; a model of the Hugging Face Hub also comes, where there is a network, by: hf download {name}"
        words = f"This policy's images are read by the frozen trunk `{name}`, which cannot be had: {error.message}"
        raise CheckpointError(words, hint) from error
    if found != told["hash"]:
        raise CheckpointError(
            f"The frozen trunk `{name}` is not the one that this policy was trained with: its hash was "
            f"{told['hash'][:16]} and is {found[:16]}.",
            f"put the former one back as `{name}`, or train the policy again",
        )


def load_trunk(name: str) -> Trunk:
    """The trunk that `policy.trunk` names; read once per process for as long as its files stay as they are."""
    kind, folder, pixels = _find(name)
    stamp = tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir()))
    return _load(name, kind, folder.resolve(), pixels, stamp)


@lru_cache(maxsize=4)
def _load(name: str, kind: str, folder: Path, pixels: int | None, stamp: tuple[Any, ...]) -> Trunk:
    with torch.random.fork_rng(devices=[]):  # making a network draws chance, which is not ours to take
        if kind == "run":
            return _of_run(name, folder)
        return _of_folder(name, folder) if kind == "ours" else _of_clip(name, folder, pixels)


def _find(name: str) -> tuple[str, Path, int | None]:
    """The kind of trunk that a name stands for, its folder, and the size that its images are to have."""
    if name.startswith("run:"):
        whole = name.removeprefix("run:")
        path, at, which = whole.rpartition("@")
        if not at or Path(whole).exists():
            path, which = whole, "latest"
        return "run", find(RunDir.open(Path(path)), which), None
    base, at, pixels = name.rpartition("@")
    sized = bool(at) and pixels.isdigit() and not Path(name).exists()
    folder = Path(base if sized else name)
    if not folder.is_dir():
        folder = _in_hub_cache(base if sized else name)
    if (folder / "trunk.json").is_file():
        if sized:
            hint = "leave @PIXELS out; images are resized to its own size"
            raise ConfigError(f"The trunk `{base}` reads images of one size only.", hint)
        return "ours", folder, None
    if (folder / "config.json").is_file():
        return "clip", folder, int(pixels) if sized else None
    raise ConfigError(
        f"The trunk `{name}` is a folder with neither config.json (a CLIP model) nor trunk.json in it.",
        "name a folder that `save_pretrained` or `slipstream convert` has written",
    )


def _in_hub_cache(name: str) -> Path:
    """The folder of a model that was downloaded before; nothing is downloaded here."""
    hint = f"where there is a network: hf download {name} --local-dir DIR; then, here: policy.trunk=DIR"
    if HUB_NAME.fullmatch(name):
        hub = _optional("huggingface_hub")
        try:
            return Path(hub.snapshot_download(name, local_files_only=True))
        except (OSError, ValueError):
            pass
    else:
        hint = "name a folder that is there"
    raise ConfigError(
        f"The trunk `{name}` is neither a folder nor a model in this machine's Hugging Face cache, and nothing is "
        "downloaded.",
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


class Pooled(nn.Module):
    """The pooled output of a CLIP vision model, whose place codes are stretched where images have another size."""

    def __init__(self, model: nn.Module, stretched: bool) -> None:
        super().__init__()
        self.model = getattr(model, "vision_model", model)  # older versions wrap it once more
        self.stretched = stretched

    def forward(self, image: Tensor) -> Tensor:
        """From [images, channels, height, width] to [images, hidden size]."""
        pooled: Tensor = self.model(pixel_values=image, interpolate_pos_encoding=self.stretched).pooler_output
        return pooled


def _of_clip(name: str, folder: Path, pixels: int | None) -> Trunk:
    told = _read_json(folder / "config.json")
    if told.get("model_type") not in ("clip", "clip_vision_model"):
        raise ConfigError(
            f"The trunk `{name}` is a model of the type {told.get('model_type')}, not CLIP.", "name a CLIP model"
        )
    transformers = _optional("transformers")
    with _quiet(transformers):
        try:
            model, report = transformers.CLIPVisionModel.from_pretrained(
                folder, local_files_only=True, weights_only=True, output_loading_info=True
            )
        except Exception as error:  # whatever files that others made can make their reader raise
            raise ConfigError(
                f"The trunk `{name}` cannot be read: {error}", f"download it again, or mend the files in {folder}"
            ) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ConfigError(
            f"The trunk `{name}` lacks {len(missing)} of its weights, {missing[0]} among them.", "download it again"
        )
    config = model.config
    side = pixels or config.image_size
    if side < config.patch_size:
        raise ConfigError(
            f"The trunk `{name}` reads patches of {config.patch_size} pixels: images of {side} are too small.",
            f"write NAME@PIXELS with at least {config.patch_size}",
        )
    facts = {key: getattr(config, key) for key in CLIP_FACTS}
    shown = _read_json(folder / "preprocessor_config.json")
    mean, deviation = shown.get("image_mean", CLIP_MEAN), shown.get("image_std", CLIP_DEVIATION)
    net = Pooled(model, side != config.image_size)
    return Trunk(name, net, (side, side), config.num_channels, {"kind": "clip", **facts}, tuple(mean), tuple(deviation))


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep the library's bars and reports off the terminal meanwhile."""
    logging = transformers.utils.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _of_folder(name: str, folder: Path) -> Trunk:
    shape, tensors = read_trunk(folder)
    net = VptImages(shape)
    net.load_state_dict(tensors)
    return Trunk(name, net, (shape.side, shape.side), shape.channels, {"kind": KIND})


def _of_run(name: str, folder: Path) -> Trunk:
    """The trained reader of a run's images."""
    from slipstream.policies.torch_policy import ActorCritic

    checkpoint = load(folder, groups=("policy",))
    try:
        design = Design.read(checkpoint.state["policy"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder} does not describe its policy.", "this version did not write it") from error
    images = [field for field in design.obs.fields if field.kind == "image"]
    if design.frozen or len(images) != 1:
        what = "reads images by a frozen trunk itself" if design.frozen else f"reads {len(images)} images"
        hint = f"write policy.trunk={design.policy.trunk}" if design.frozen else "name a run that reads one"
        raise ConfigError(f"`{name}` cannot be a trunk: its policy {what}.", hint)
    policy = ActorCritic(design)
    arrays = checkpoint.groups["policy"]
    policy.load_state_dict({key: torch.from_numpy(arrays[key]) for key, _ in policy.named_parameters()})
    encoder = policy.networks()[0].encoder
    stages: Any = encoder.readers[encoder.fields.index(images[0])].stages
    channels, height, width = images[0].planes
    return Trunk(name, stages, (height, width), channels, {"kind": "run", "image": design.policy.image})


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.", "mend it, or download the model again") from error
    if not isinstance(told, dict):
        raise ConfigError(f"{file} does not hold a JSON object.", "mend it, or download the model again")
    return told
