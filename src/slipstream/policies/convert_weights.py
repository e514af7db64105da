"""Weights of other projects made ours: read without running anything, matched key by key, written as a trunk.

One layout is known: VPT's policies (`.weights` files). What is taken over is how they read images; the transformer
behind and the heads for Minecraft's own actions are not.

    DIR/trunk.json          what network it is, its sizes, and where it comes from; written last
    DIR/trunk.safetensors   its weights
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

from slipstream.errors import CheckpointError, ConfigError
from slipstream.runs.layout import write_bytes, write_json

KIND = "vpt-impala"
VERSION = 1
PREFIX = "net.img_process."
"""Where the reader of images stands in the weights of a VPT policy."""
MOST = 8
"""Stacks, and blocks in a stack, that are looked for."""
SHOWN = 8
"""Keys that a message names; `--json` names all."""


@dataclass(frozen=True)
class VptShape:
    """The sizes of VPT's reader of images; at first those of its smallest published model."""

    widths: tuple[int, ...] = (64, 128, 128)
    """Channels of each stack."""
    blocks: int = 2
    """Residual blocks in each stack."""
    channels: int = 3
    side: int = 128
    """Pixels on each side of an image."""
    dense: int = 256
    features: int = 1024


class Unit(nn.Module):
    """A norm of what comes in, a layer, and a rectifier; without the norm, the layer has a bias."""

    def __init__(self, norm: nn.Module | None, layer: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Of the layer's shape."""
        return functional.relu(self.layer(x if self.norm is None else self.norm(x)))


def _conv(inputs: int, outputs: int, normed: bool = True) -> Unit:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=not normed)
    return Unit(nn.GroupNorm(1, inputs) if normed else None, layer)


def _linear(inputs: int, outputs: int) -> Unit:
    return Unit(nn.LayerNorm(inputs), nn.Linear(inputs, outputs, bias=False))


class Block(nn.Module):
    """x + two convolutions of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = _conv(channels, channels)
        self.conv1 = _conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        result: Tensor = x + self.conv1(self.conv0(x))
        return result


class Stack(nn.Module):
    """A convolution, halving, a norm and residual blocks."""

    def __init__(self, inputs: int, outputs: int, blocks: int, first: bool) -> None:
        super().__init__()
        self.firstconv = _conv(inputs, outputs, normed=not first)
        self.n = nn.GroupNorm(1, outputs)
        self.blocks = nn.ModuleList(Block(outputs) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Half as high and wide."""
        x = self.n(functional.max_pool2d(self.firstconv(x), 3, 2, 1))
        for block in self.blocks:
            x = block(x)
        return x


class Convolutions(nn.Module):
    """The stacks, and a dense layer behind them."""

    def __init__(self, shape: VptShape) -> None:
        super().__init__()
        inputs = (shape.channels, *shape.widths)
        pairs = enumerate(zip(inputs, shape.widths, strict=False))
        self.stacks = nn.ModuleList(Stack(*pair, shape.blocks, number == 0) for number, pair in pairs)
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


class VptImages(nn.Module):
    """VPT's reader of images, with its own names for the weights."""

    def __init__(self, shape: VptShape) -> None:
        super().__init__()
        self.cnn = Convolutions(shape)
        self.linear = _linear(shape.dense, shape.features)

    def forward(self, image: Tensor) -> Tensor:
        """From [images, channels, side, side] in [0, 1] to [images, features]."""
        result: Tensor = self.linear(self.cnn(image))
        return result


@dataclass(frozen=True)
class Report:
    """How the keys of a file compare with those that a layout expects."""

    matched: list[str]
    missing: list[str]
    mismatched: list[str]
    """Those of another shape, with both shapes."""
    unused: list[str]
    """Those that the file has besides."""

    @property
    def share(self) -> float:
        """The share of expected keys that matched."""
        return len(self.matched) / max(1, len(self.matched) + len(self.missing) + len(self.mismatched))

    def facts(self) -> dict[str, Any]:
        """Everything, and how many of each."""
        named = asdict(self)
        return {**named, "counts": {name: len(keys) for name, keys in named.items()}, "share": self.share}

    def words(self) -> str:
        """The counts, and the first keys of those that are not as they should be."""
        told = f"{len(self.matched)} keys matched"
        for what, keys in (("missing", self.missing), ("mismatched", self.mismatched)):
            named = ", ".join(keys[:SHOWN]) + (", ..." if len(keys) > SHOWN else "")
            told += f", {len(keys)} {what}" + (f" ({named})" if keys else "")
        return f"{told}, {len(self.unused)} not used"


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or torch file by name; anything else in it is refused, and nothing is run."""
    if not file.is_file():
        what = "it is a folder" if file.is_dir() else "no such file"
        raise CheckpointError(f"{file} cannot be converted: {what}.", "name the file that holds the weights")
    if file.suffix == ".model":
        raise CheckpointError(
            f"{file} is a pickle of settings, which could run anything: it is never opened.",
            "name the .weights file that comes with it; its sizes are read off the tensors",
        )
    with file.open("rb") as opened:
        start = opened.read(9)
    if start[:2] == b"\x1f\x8b" or tarfile.is_tarfile(file):
        raise CheckpointError(f"{file} is an archive.", "unpack it, and name the file of weights that is in it")
    try:
        if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < file.stat().st_size:
            found: Any = safetensors.torch.load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a file that others made can make the readers raise
        raise CheckpointError(
            f"{file} is not a file of tensors alone: {_first_line(error)}",
            "it may be damaged, or hold Python objects, which are never loaded; save it again as a plain state dict",
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(
            f"{file} holds something else than tensors by name.",
            "save the state dict alone: torch.save(m.state_dict())",
        )
    return {str(name): tensor.detach() for name, tensor in found.items()}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [repr(error)])[0]


def vpt_shape(tensors: Mapping[str, Tensor]) -> VptShape:
    """The sizes that a file's tensors speak of; where they say nothing, those of the smallest published model."""
    plain = VptShape()

    def size(key: str, axis: int, otherwise: int) -> int:
        tensor = tensors.get(PREFIX + key)
        return int(tensor.shape[axis]) if tensor is not None and tensor.ndim > axis else otherwise

    def count(pattern: str, otherwise: int) -> int:
        numbers = [int(found[1]) for key in tensors if (found := re.match(re.escape(PREFIX) + pattern, key))]
        return min(max(numbers, default=otherwise - 1), MOST - 1) + 1

    stacks = count(r"cnn\.stacks\.(\d+)\.", len(plain.widths))
    widths = tuple(
        size(f"cnn.stacks.{n}.firstconv.layer.weight", 0, size(f"cnn.stacks.{n}.n.weight", 0, plain.widths[min(n, 2)]))
        for n in range(stacks)
    )
    inputs = size("cnn.dense.layer.weight", 1, size("cnn.dense.norm.weight", 0, 0))
    side = math.isqrt(inputs // max(1, widths[-1])) * 2**stacks or plain.side
    return VptShape(
        widths=widths,
        blocks=count(r"cnn\.stacks\.\d+\.blocks\.(\d+)\.", plain.blocks),
        channels=size("cnn.stacks.0.firstconv.layer.weight", 1, plain.channels),
        side=side,
        dense=size("cnn.dense.layer.weight", 0, plain.dense),
        features=size("linear.layer.weight", 0, plain.features),
    )


def compare(shape: VptShape, tensors: Mapping[str, Tensor]) -> Report:
    """Say of every key that a VPT policy of these sizes has, and of every key of the file, how it fared."""
    with torch.device("meta"):
        expected = {PREFIX + key: tuple(tensor.shape) for key, tensor in VptImages(shape).state_dict().items()}
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    wrong = [key for key, size in expected.items() if key in found and found[key] != size]
    return Report(
        matched=[key for key, size in expected.items() if found.get(key) == size],
        missing=[key for key in expected if key not in found],
        mismatched=[f"{key}: expected {expected[key]}, found {found[key]}" for key in wrong],
        unused=[key for key in found if key not in expected],
    )


def copy_matching(shape: VptShape, tensors: Mapping[str, Tensor], report: Report) -> dict[str, Tensor]:
    """The weights of our own network: those that matched, and for the rest what a new network starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state: dict[str, Tensor] = VptImages(shape).state_dict()
    for key in report.matched:
        state[key.removeprefix(PREFIX)] = tensors[key].float().contiguous()
    return state


def write_trunk(folder: Path, shape: VptShape, state: Mapping[str, Tensor], origin: Mapping[str, Any]) -> None:
    """Write a folder that `policy.trunk` can name; it is one when its trunk.json is there."""
    folder.mkdir(parents=True, exist_ok=True)
    data = safetensors.torch.save(dict(state))
    write_bytes(folder / "trunk.safetensors", data)
    told = {"version": VERSION, "kind": KIND, "shape": asdict(shape), "sha256": hashlib.sha256(data).hexdigest()}
    write_json(folder / "trunk.json", told | {"origin": dict(origin)})


def read_trunk(folder: Path) -> tuple[VptShape, dict[str, Tensor]]:
    """The inverse of `write_trunk`."""
    hint = "convert it again: slipstream convert vpt FILE --out DIR"
    try:
        told = json.loads((folder / "trunk.json").read_text(encoding="utf-8"))
        if (told["version"], told["kind"]) != (VERSION, KIND):
            raise ConfigError(f"{folder} is a trunk of the kind {told['kind']}, version {told['version']}.", hint)
        data = (folder / "trunk.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != told["sha256"]:
            raise ConfigError(f"{folder / 'trunk.safetensors'} is damaged: its sha256 has changed.", hint)
        shape = VptShape(**(told["shape"] | {"widths": tuple(told["shape"]["widths"])}))
        return shape, safetensors.torch.load(data)
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise ConfigError(f"The trunk in {folder} cannot be read: {error}.", hint) from error
