"""Frame preprocessing: resize, grayscale and stack frames, and join them with scalars to observation rows."""

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
"""Weights of red, green and blue by ITU-R 601, in units of 1/65,536."""


def resize(frames: Array, size: tuple[int, int], how: How = "area") -> Array:
    """Resize uint8 frames [..., H, W, 1 or 3].

    `area` averages the pixels that a new pixel covers. `bilinear` interpolates the four pixels around its centre, like
    OpenCV's INTER_LINEAR, with which VPT's policies were trained.
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
    """Return for each new pixel of an axis the two old ones around its centre, and the weight of the second."""
    middle = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    first = middle.astype(np.intp)
    return first, np.minimum(first + 1, old - 1), (middle - first).astype(np.float32)


def grey(frames: Array) -> Array:
    """Convert frames [..., H, W, 3] to grayscale [..., H, W, 1]; frames with one channel are returned as they are."""
    if frames.shape[-1] == 1:
        return frames
    light: Array = ((frames @ LUMA + 0x8000) >> 16).astype(np.uint8)[..., None]
    return light


def stack(frames: Array, count: int) -> Array:
    """Stack each frame of an episode [T, H, W, C] with the `count` - 1 before it: [T, H, W, count * C], oldest first.

    Before the start of the episode the first frame is repeated.
    """
    if count == 1:
        return frames
    index = np.arange(len(frames))[:, None] + np.arange(1 - count, 1)
    taken = frames[np.maximum(index, 0)]  # [T, count, H, W, C]
    stacked: Array = np.moveaxis(taken, 1, 3).reshape(*frames.shape[:3], -1)
    return stacked


def follow(stacked: Array, frame: Array) -> Array:
    """Return the stack [..., H, W, count * C] one step later, with a new frame at its end."""
    return np.concatenate([stacked[..., frame.shape[-1] :], frame], axis=-1)


@dataclass(frozen=True)
class FrameAdapter:
    """How the frames of an episode are preprocessed, and which scalars are joined with them."""

    size: tuple[int, int] | None = None
    """Height and width; None: unchanged."""
    grey: bool = False
    stack: int = 1
    scalars: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the scalars."""
    how: How = "area"
    name: str = "pov"
    """Name of the observation field of the frames."""

    def __post_init__(self) -> None:
        if self.stack < 1 or (self.size and min(self.size) < 1):
            raise ConfigError(
                f"Frame size {self.size} and stack {self.stack} must be positive.", "use positive numbers"
            )

    def small(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the shape of one frame (H, W, C) after `shrink`."""
        height, width = self.size or shape[:2]
        return height, width, 1 if self.grey else shape[2]

    def obs_spec(self, shape: tuple[int, ...]) -> ObsSpec:
        """Return the observation spec for frames (H, W, C) and the scalars."""
        height, width, channels = self.small(shape)
        vectors = [ObsField(name, "vector", (size,)) for name, size in self.scalars]
        return ObsSpec((*vectors, ObsField(self.name, "image", (height, width, channels * self.stack))))

    def shrink(self, frames: Array) -> Array:
        """Resize frames [..., H, W, C] and convert them to grayscale as configured, without stacking."""
        small = resize(frames, self.size, self.how) if self.size else frames
        return grey(small) if self.grey else small

    def rows(self, shrunk: Array, scalars: Mapping[str, Any] | None = None) -> Array:
        """Return the rows [T, width] of one episode from shrunk frames [T, h, w, c] and scalars [T, size]."""
        fields = {self.name: stack(shrunk, self.stack)}
        for name, size in self.scalars:
            fields[name] = np.asarray((scalars or {})[name], np.float32).reshape(len(shrunk), size)
        return self.obs_spec(shrunk.shape[1:]).join(fields)

    def encode(self, frames: Array, scalars: Mapping[str, Any] | None = None) -> Array:
        """Return the observation rows [T, width] of an episode's frames [T, H, W, C] and scalars."""
        return self.rows(self.shrink(frames), scalars)

    def describe(self) -> dict[str, Any]:
        """Return a JSON object."""
        size = list(self.size) if self.size else None
        return {"size": size, "grey": self.grey, "stack": self.stack, "resize": self.how}


VPT_FRAMES = FrameAdapter((128, 128), how="bilinear")
"""The input of VPT's policies."""
