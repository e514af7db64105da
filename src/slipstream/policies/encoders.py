"""Observation encoders in torch: vectors are normalised, images convolved, tokens pooled; features are concatenated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.contracts import ObsField, ObsSpec
from slipstream.policies.linear_algebra import OBS_LIMIT
from slipstream.policies.token_encoder import ABSENT, FEATURE_SIZE, PLACE_SIZE, TOKEN_SIZE
from slipstream.settings import PolicySettings

LIMIT = float(OBS_LIMIT)
"""A Python float: a NumPy scalar would cause a graph break in every compiled forward pass."""
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Output channels, kernel size and stride of each convolution of the Nature CNN."""
NATURE_SMALL = ((32, 4, 2), (64, 3, 1), (64, 3, 1))
"""The same for images below SMALL pixels, which NATURE would reduce to nothing."""
SMALL = 36
IMPALA = (16, 32, 32)


class Encoder(nn.Module):
    """Encodes observations [rows, obs.width] as features [rows, width]."""

    def __init__(self, obs: ObsSpec, policy: PolicySettings) -> None:
        super().__init__()
        self.obs = obs
        self.fields = [field for field in obs.fields if field.kind != "vector"]
        self.readers = nn.ModuleList(make_field_encoder(field, policy) for field in self.fields)
        self.width = obs.floats + len(self.fields) * policy.features

    def forward(self, rows: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Normalise the vectors by `mean` and `scale`, encode the other fields, and concatenate."""
        parts = [normalise(self.obs, rows, mean, scale)]
        for field, reader in zip(self.fields, self.readers, strict=True):
            parts.append(reader(bytes_of(self.obs, field, rows)))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def hidden_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The modules whose outputs are those of the layers, by name."""
        for field, reader in zip(self.fields, self.readers, strict=True):
            for number, module in enumerate(reader.stages):  # type: ignore[arg-type]
                yield f"{field.name or field.kind}.{number}", module


def normalise(obs: ObsSpec, rows: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """The vectors [rows, floats] of observations, normalised and clipped; a scale of 1 leaves a number as it is."""
    vectors = rows if obs.plain else rows[:, : 4 * obs.floats].contiguous().view(torch.float32)
    numbers = (vectors - mean) * scale
    return torch.where(scale == 1, numbers, numbers.clamp(-LIMIT, LIMIT))


def bytes_of(obs: ObsSpec, field: ObsField, rows: Tensor) -> Tensor:
    """An image or set of tokens [rows, *shape] of observations."""
    start = obs.places[field.name][1]
    return rows[:, start : start + field.bytes].reshape(-1, *field.shape)


def split_fields(obs: ObsSpec, rows: Tensor, mean: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """The fields of observations by name (`obs` for a single array): normalised vectors, images and tokens as bytes."""
    vectors = [field for field in obs.fields if field.kind == "vector"]
    numbers = torch.split(normalise(obs, rows, mean, scale), [field.shape[0] for field in vectors], -1)
    found = {field.name: part for field, part in zip(vectors, numbers, strict=True)}
    return {
        field.name or "obs": found[field.name] if field.kind == "vector" else bytes_of(obs, field, rows)
        for field in obs.fields
    }


def make_field_encoder(field: ObsField, policy: PolicySettings) -> ImageEncoder | TokenEncoder:
    """An encoder of an image or a set of tokens with `policy.features` outputs."""
    if field.kind == "tokens":
        return TokenEncoder(policy.features)
    assert policy.image != "frozen"
    return ImageEncoder(field.planes, policy.image, policy.features)


class ImageEncoder(nn.Module):
    """Convolutions and a dense layer, on uint8 pixels."""

    def __init__(self, shape: tuple[int, int, int], kind: Literal["nature", "impala"], features: int) -> None:
        super().__init__()
        stages = impala(shape[0]) if kind == "impala" else nature(shape)
        with torch.no_grad():
            width = nn.Sequential(*stages)(torch.zeros(1, *shape)).numel()
        self.stages = nn.Sequential(*stages, nn.Sequential(nn.Flatten(), nn.Linear(width, features), nn.ReLU()))

    def forward(self, pixels: Tensor) -> Tensor:
        """From [rows, height, width, channels], or [rows, frames, height, ...], to [rows, features]."""
        device = pixels.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
        planes = pixels.movedim(-1, -3).flatten(1, -3)
        if device != "cpu":
            image = planes.to(kind, memory_format=torch.channels_last) / 255
        else:  # channels last is faster in the backward pass only; bytes are transposed faster than floats
            back = torch.is_grad_enabled()
            turned = planes.contiguous(memory_format=torch.channels_last) if back else planes
            image = turned.to(kind).div_(255)
        result: Tensor = self.stages(image)
        return result


def nature(shape: tuple[int, int, int]) -> list[nn.Module]:
    """The three convolutions of the Nature CNN, with kernels no larger than their input."""
    channels, *sides = shape
    stages: list[nn.Module] = []
    for outputs, kernel, stride in NATURE if min(sides) >= SMALL else NATURE_SMALL:
        height, width = (min(kernel, side) for side in sides)
        stages.append(nn.Sequential(nn.Conv2d(channels, outputs, (height, width), stride), nn.ReLU()))
        sides = [(sides[0] - height) // stride + 1, (sides[1] - width) // stride + 1]
        channels = outputs
    return stages


def impala(channels: int) -> list[nn.Module]:
    """The three blocks of the IMPALA CNN, each of which halves the image and has two residual blocks."""
    stages: list[nn.Module] = []
    for inputs, outputs in pairwise((channels, *IMPALA)):
        halve = nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(3, 2, 1)
        stages.append(nn.Sequential(*halve, Residual(outputs), Residual(outputs)))
    return [*stages[:-1], nn.Sequential(stages[-1], nn.ReLU())]


class Residual(nn.Module):
    """A residual block: x + two convolutions of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the same shape."""
        result: Tensor = x + self.second(functional.relu(self.first(functional.relu(x))))
        return result


class TokenEncoder(nn.Module):
    """Encodes every token with the same small network and pools over the present ones; their order has no effect.

    The location byte of a token holds row and column, 4 bits each. `token_encoder.py` computes the same in kernels.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.row, self.column = nn.Embedding(16, PLACE_SIZE), nn.Embedding(16, PLACE_SIZE)
        self.feature = nn.Embedding(256, FEATURE_SIZE)
        self.each = nn.Sequential(
            nn.Linear(2 * PLACE_SIZE + FEATURE_SIZE + 2, TOKEN_SIZE),
            nn.ReLU(),
            nn.Linear(TOKEN_SIZE, TOKEN_SIZE),
            nn.ReLU(),
        )
        self.stages = nn.ModuleList([Pool(), nn.Sequential(nn.Linear(2 * TOKEN_SIZE, features), nn.ReLU())])

    def forward(self, tokens: Tensor) -> Tensor:
        """From [rows, tokens, 3] to [rows, features]."""
        place, feature, value = tokens.int().unbind(-1)
        size = value.float().unsqueeze(-1)
        embedded = [self.row(place >> 4), self.column(place & 15), self.feature(feature)]
        each = self.each(torch.cat([*embedded, size / 255, torch.log1p(size) / math.log(256)], -1))
        pool, join = self.stages
        result: Tensor = join(pool(each, (place != ABSENT).float().unsqueeze(-1)))
        return result


class Pool(nn.Module):
    """Maximum and mean over the present tokens; zeros if there are none.

    Inputs are never negative, so the zeros of absent tokens do not change the maximum.
    """

    def forward(self, each: Tensor, present: Tensor) -> Tensor:
        """From [rows, tokens, units] to [rows, 2 * units]."""
        each = each * present
        mean = each.sum(1) / present.sum(1).clamp(min=1)
        return torch.cat([each.amax(1), mean], -1)
