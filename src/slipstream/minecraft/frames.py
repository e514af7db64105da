"""Frame adapters: pictures made smaller, grey and stacked, with numbers beside them, as rows of observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from PIL import Image

from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.errors import ConfigError

How = Literal["area", "bilinear"]
LUMA = np.array([19595, 38470, 7471], np.uint32)
"""Weights of red, green and blue in 65,536 parts, as the ITU-R 601 standard has them."""


def resize(frames: Array, size: tuple[int, int], how: How = "area") -> Array:
    """Frames [..., H, W, 1 or 3] of uint8 in another height and width.

    `area` averages the pixels that a new one covers; `bilinear` mixes the four around its middle and skips those
    between, which is what OpenCV's INTER_LINEAR does, and so what VPT's policies were trained on.
    """
    height, width, channels = frames.shape[-3:]
    if (height, width) == tuple(size):
        return frames
    if channels not in (1, 3):
        raise ConfigError(f"A frame of {channels} channels cannot be resized.", "give frames of 1 or 3 channels")
    flat = frames.reshape(-1, height, width, channels)
    out = np.empty((len(flat), *size, channels), np.uint8)
    for frame, small in zip(flat, out, strict=True):
        if how == "area":
            picture = Image.fromarray(frame[..., 0] if channels == 1 else np.ascontiguousarray(frame))
            small[...] = np.asarray(picture.resize((size[1], size[0]), Image.Resampling.BOX)).reshape(small.shape)
        else:
            small[...] = _bilinear(frame, size)
    return out.reshape(*frames.shape[:-3], *size, channels)


def _bilinear(frame: Array, size: tuple[int, int]) -> Array:
    (top, bottom, down), (left, right, across) = (_taps(*sides) for sides in zip(frame.shape[:2], size, strict=True))
    across, down = across[None, :, None], down[:, None, None]
    upper, lower = (frame[row][:, left] * (1 - across) + frame[row][:, right] * across for row in (top, bottom))
    mixed: Array = upper * (1 - down) + lower * down + np.float32(0.5)
    return mixed.astype(np.uint8)


@lru_cache(maxsize=16)
def _taps(old: int, new: int) -> tuple[Array, Array, Array]:
    """For each new pixel of a side the two old ones around its middle, and how much of the second."""
    middle = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    first = middle.astype(np.intp)
    return first, np.minimum(first + 1, old - 1), (middle - first).astype(np.float32)


def grey(frames: Array) -> Array:
    """Frames [..., H, W, 3] as brightness [..., H, W, 1]; what has one channel already stays."""
    if frames.shape[-1] == 1:
        return frames
    light: Array = ((frames @ LUMA + 0x8000) >> 16).astype(np.uint8)[..., None]
    return light


def stack(frames: Array, count: int) -> Array:
    """Each frame of an episode [T, H, W, C] behind the `count` - 1 before it, oldest first [T, H, W, count * C].

    Before the start there is nothing: the first frame stands there.
    """
    if count == 1:
        return frames
    index = np.arange(len(frames))[:, None] + np.arange(1 - count, 1)
    taken = frames[np.maximum(index, 0)]  # [T, count, H, W, C]
    stacked: Array = np.moveaxis(taken, 1, 3).reshape(*frames.shape[:3], -1)
    return stacked


def follow(stacked: Array, frame: Array) -> Array:
    """The stack [..., H, W, count * C] one step later, for games that give a frame at a time."""
    return np.concatenate([stacked[..., frame.shape[-1] :], frame], axis=-1)


@dataclass(frozen=True)
class FrameAdapter:
    """What becomes of the frames of an episode, and which numbers stand beside them."""

    size: tuple[int, int] | None = None
    """Height and width; None: as they come."""
    grey: bool = False
    stack: int = 1
    scalars: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the numbers beside the frames."""
    how: How = "area"
    name: str = "pov"
    """The field of the frames."""

    def __post_init__(self) -> None:
        if self.stack < 1 or (self.size and min(self.size) < 1):
            raise ConfigError(
                f"Frames of size {self.size} in stacks of {self.stack} cannot be.", "give positive numbers"
            )

    def small(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """The shape of one frame (H, W, C) after `shrink`."""
        height, width = self.size or shape[:2]
        return height, width, 1 if self.grey else shape[2]

    def obs_spec(self, shape: tuple[int, ...]) -> ObsSpec:
        """The observations that frames (H, W, C) and the numbers make together."""
        height, width, channels = self.small(shape)
        vectors = [ObsField(name, "vector", (size,)) for name, size in self.scalars]
        return ObsSpec((*vectors, ObsField(self.name, "image", (height, width, channels * self.stack))))

    def shrink(self, frames: Array) -> Array:
        """Frames [..., H, W, C] resized and grey as wanted, not yet stacked."""
        small = resize(frames, self.size, self.how) if self.size else frames
        return grey(small) if self.grey else small

    def rows(self, shrunk: Array, scalars: Mapping[str, Any] | None = None) -> Array:
        """Rows of the observations of one episode [T, width], from shrunk frames [T, h, w, c] and numbers [T, size]."""
        fields = {self.name: stack(shrunk, self.stack)}
        for name, size in self.scalars:
            fields[name] = np.asarray((scalars or {})[name], np.float32).reshape(len(shrunk), size)
        return self.obs_spec(shrunk.shape[1:]).join(fields)

    def encode(self, frames: Array, scalars: Mapping[str, Any] | None = None) -> Array:
        """Rows [T, width] of an episode's frames [T, H, W, C] and numbers."""
        return self.rows(self.shrink(frames), scalars)

    def describe(self) -> dict[str, Any]:
        """As JSON holds it."""
        size = list(self.size) if self.size else None
        return {"size": size, "grey": self.grey, "stack": self.stack, "resize": self.how}
