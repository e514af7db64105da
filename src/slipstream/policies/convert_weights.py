"""Converts pretrained weights of other projects to trunks: read without executing code, matched key by key.

VPT's policies (`.weights` files) are converted to a trunk, which is the image encoder alone, or to a whole agent
(`policies.vpt_network`).

    DIR/trunk.json          kind of network, sizes and origin; written last
    DIR/trunk.safetensors   weights
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.errors import CheckpointError, ConfigError, first_line
from slipstream.runs.layout import write_bytes, write_json

KIND = "vpt-impala"
VERSION = 1
PREFIX = "net.img_process."
"""The prefix of the image encoder's keys in the weights of a VPT policy."""
MAX_STACKS = 8
"""The largest number of stacks, and of blocks in a stack."""
SHOWN_KEYS = 8
"""Keys listed in a message; `--json` lists all."""


@dataclass(frozen=True)
class VptShape:
    """The sizes of VPT's image encoder; the defaults are those of the smallest published model."""

    widths: tuple[int, ...] = (64, 128, 128)
    """Channels of each stack."""
    blocks: int = 2
    """Residual blocks in each stack."""
    channels: int = 3
    side: int = 128
    """Pixels on each side of an image."""
    dense: int = 256
    features: int = 1024


class VptUnit(nn.Module):
    """A norm, a layer and a ReLU; without the norm the layer has a bias."""

    def __init__(self, norm: nn.Module | None, layer: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output shape."""
        return functional.relu(self.layer(x if self.norm is None else self.norm(x)))


def _conv(inputs: int, outputs: int, normed: bool = True) -> VptUnit:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=not normed)
    return VptUnit(nn.GroupNorm(1, inputs) if normed else None, layer)


def _linear(inputs: int, outputs: int) -> VptUnit:
    return VptUnit(nn.LayerNorm(inputs), nn.Linear(inputs, outputs, bias=False))


class VptBlock(nn.Module):
    """A residual block: x + two convolutions of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = _conv(channels, channels)
        self.conv1 = _conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the same shape."""
        result: Tensor = x + self.conv1(self.conv0(x))
        return result


class VptStack(nn.Module):
    """A convolution, max pooling by 2, a norm and residual blocks."""

    def __init__(self, inputs: int, outputs: int, blocks: int, first: bool) -> None:
        super().__init__()
        self.firstconv = _conv(inputs, outputs, normed=not first)
        self.n = nn.GroupNorm(1, outputs)
        self.blocks = nn.ModuleList(VptBlock(outputs) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of half the height and width."""
        x = self.n(functional.max_pool2d(self.firstconv(x), 3, 2, 1))
        for block in self.blocks:
            x = block(x)
        return x


class VptCnn(nn.Module):
    """The stacks and a dense layer."""

    def __init__(self, shape: VptShape) -> None:
        super().__init__()
        inputs = (shape.channels, *shape.widths)
        pairs = enumerate(zip(inputs, shape.widths, strict=False))
        self.stacks = nn.ModuleList(VptStack(*pair, shape.blocks, number == 0) for number, pair in pairs)
        side = shape.side
        for _ in shape.widths:
            side = (side + 1) // 2
        self.dense = _linear(inputs[-1] * side * side, shape.dense)

    def forward(self, x: Tensor) -> Tensor:
        """From [images, channels, side, side] to [images, dense]."""
        for stack in self.stacks:
            x = stack(x)
        result: Tensor = self.dense(x.flatten(1))
        return result


class VptImageEncoder(nn.Module):
    """VPT's image encoder, with VPT's parameter names."""

    def __init__(self, shape: VptShape) -> None:
        super().__init__()
        self.cnn = VptCnn(shape)
        self.linear = _linear(shape.dense, shape.features)

    def forward(self, image: Tensor) -> Tensor:
        """From [images, channels, side, side] in [0, 1] to [images, features]."""
        result: Tensor = self.linear(self.cnn(image))
        return result


@dataclass(frozen=True)
class ConversionReport:
    """How the keys of a file compare with those that a layout expects."""

    matched: list[str]
    missing: list[str]
    mismatched: list[str]
    """Keys of another shape, with both shapes."""
    unused: list[str]
    """Keys of the file that the layout does not have."""

    @property
    def share(self) -> float:
        """The share of expected keys that matched."""
        return len(self.matched) / max(1, len(self.matched) + len(self.missing) + len(self.mismatched))

    def facts(self) -> dict[str, Any]:
        """All keys and their counts."""
        named = asdict(self)
        return {**named, "counts": {name: len(keys) for name, keys in named.items()}, "share": self.share}

    def words(self) -> str:
        """A summary: the counts, and the first missing and mismatched keys."""
        text = f"{len(self.matched)} keys matched"
        for what, keys in (("missing", self.missing), ("mismatched", self.mismatched)):
            named = ", ".join(keys[:SHOWN_KEYS]) + (", ..." if len(keys) > SHOWN_KEYS else "")
            text += f", {len(keys)} {what}" + (f" ({named})" if keys else "")
        return f"{text}, {len(self.unused)} not used"


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read the named tensors of a safetensors or torch file; raise if it holds anything else. No code is executed."""
    if not file.is_file():
        problem = "it is a folder" if file.is_dir() else "no such file"
        raise CheckpointError(f"{file} cannot be converted: {problem}.", "give the file of weights")
    if file.suffix == ".model":
        raise CheckpointError(
            f"{file} is a pickle of settings, which can execute code: it is never opened.",
            "give the .weights file that comes with it; sizes are inferred from the tensors",
        )
    with file.open("rb") as opened:
        start = opened.read(9)
    if start[:2] == b"\x1f\x8b" or tarfile.is_tarfile(file):
        raise CheckpointError(f"{file} is an archive.", "unpack it, and give the file of weights in it")
    try:
        if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < file.stat().st_size:
            found: Any = safetensors.torch.load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file can raise anything
        raise CheckpointError(
            f"{file} is not a file of tensors: {first_line(error)}",
            "it is damaged or holds Python objects, which are never loaded; save it again as a plain state dict",
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(
            f"{file} holds something other than named tensors.",
            "save the state dict alone: torch.save(m.state_dict())",
        )
    return {str(name): tensor.detach() for name, tensor in found.items()}


def vpt_shape(tensors: Mapping[str, Tensor]) -> VptShape:
    """Infer the sizes from a file's tensors; unknown sizes are those of the smallest published model."""
    default = VptShape()

    def size(key: str, axis: int, fallback: int) -> int:
        tensor = tensors.get(PREFIX + key)
        return int(tensor.shape[axis]) if tensor is not None and tensor.ndim > axis else fallback

    def count(pattern: str, fallback: int) -> int:
        numbers = [int(found[1]) for key in tensors if (found := re.match(re.escape(PREFIX) + pattern, key))]
        return min(max(numbers, default=fallback - 1), MAX_STACKS - 1) + 1

    stacks = count(r"cnn\.stacks\.(\d+)\.", len(default.widths))
    widths = tuple(
        size(
            f"cnn.stacks.{n}.firstconv.layer.weight", 0, size(f"cnn.stacks.{n}.n.weight", 0, default.widths[min(n, 2)])
        )
        for n in range(stacks)
    )
    inputs = size("cnn.dense.layer.weight", 1, size("cnn.dense.norm.weight", 0, 0))
    side = math.isqrt(inputs // max(1, widths[-1])) * 2**stacks or default.side
    return VptShape(
        widths=widths,
        blocks=count(r"cnn\.stacks\.\d+\.blocks\.(\d+)\.", default.blocks),
        channels=size("cnn.stacks.0.firstconv.layer.weight", 1, default.channels),
        side=side,
        dense=size("cnn.dense.layer.weight", 0, default.dense),
        features=size("linear.layer.weight", 0, default.features),
    )


def compare_keys(shape: VptShape, tensors: Mapping[str, Tensor]) -> ConversionReport:
    """Compare the keys and shapes of a VPT image encoder of these sizes with those of the file."""
    with torch.device("meta"):
        expected = {PREFIX + key: tuple(tensor.shape) for key, tensor in VptImageEncoder(shape).state_dict().items()}
    return compare_shapes(expected, tensors)


def compare_shapes(expected: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]) -> ConversionReport:
    """Compare the expected shapes by key with those of the file."""
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    wrong = [key for key, size in expected.items() if key in found and found[key] != size]
    return ConversionReport(
        matched=[key for key, size in expected.items() if found.get(key) == size],
        missing=[key for key in expected if key not in found],
        mismatched=[f"{key}: expected {expected[key]}, found {found[key]}" for key in wrong],
        unused=[key for key in found if key not in expected],
    )


def copy_matching(shape: VptShape, tensors: Mapping[str, Tensor], report: ConversionReport) -> dict[str, Tensor]:
    """The weights of the image encoder: matched keys are copied, the others are initialised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state: dict[str, Tensor] = VptImageEncoder(shape).state_dict()
    for key in report.matched:
        state[key.removeprefix(PREFIX)] = tensors[key].float().contiguous()
    return state


def write_trunk(folder: Path, shape: VptShape, state: Mapping[str, Tensor], origin: Mapping[str, Any]) -> None:
    """Write a folder for `policy.trunk`; it is complete once trunk.json exists."""
    folder.mkdir(parents=True, exist_ok=True)
    data = safetensors.torch.save(dict(state))
    write_bytes(folder / "trunk.safetensors", data)
    description = {"version": VERSION, "kind": KIND, "shape": asdict(shape), "sha256": hashlib.sha256(data).hexdigest()}
    write_json(folder / "trunk.json", description | {"origin": dict(origin)})


def read_trunk(folder: Path) -> tuple[VptShape, dict[str, Tensor]]:
    """The inverse of `write_trunk`."""
    hint = "convert it again: slipstream convert vpt FILE --out DIR"
    try:
        description = json.loads((folder / "trunk.json").read_text(encoding="utf-8"))
        if (description["version"], description["kind"]) != (VERSION, KIND):
            raise ConfigError(
                f"{folder} is a trunk of the kind {description['kind']}, version {description['version']}.", hint
            )
        data = (folder / "trunk.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != description["sha256"]:
            raise ConfigError(f"{folder / 'trunk.safetensors'} is damaged: its sha256 has changed.", hint)
        shape = VptShape(**(description["shape"] | {"widths": tuple(description["shape"]["widths"])}))
        return shape, safetensors.torch.load(data)
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise ConfigError(f"The trunk in {folder} cannot be read: {error}.", hint) from error
