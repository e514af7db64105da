"""Frame preprocessing: resized, grayscale, stacked frames joined with scalars."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.errors import ConfigError
from slipstream.minecraft.frames import FrameAdapter, follow, grey, resize, stack

RANDOM = np.random.default_rng(0)
FRAMES = RANDOM.integers(0, 256, (5, 12, 16, 3)).astype(np.uint8)


def two_taps(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear interpolation at the centre of every new pixel, as a plain loop."""
    out = np.zeros((height, width, frame.shape[2]))
    for y in range(height):
        for x in range(width):
            v = np.clip((y + 0.5) * frame.shape[0] / height - 0.5, 0, frame.shape[0] - 1)
            u = np.clip((x + 0.5) * frame.shape[1] / width - 0.5, 0, frame.shape[1] - 1)
            top, left = int(v), int(u)
            bottom, right = min(top + 1, frame.shape[0] - 1), min(left + 1, frame.shape[1] - 1)
            above = frame[top, left] * (1 - (u - left)) + frame[top, right] * (u - left)
            below = frame[bottom, left] * (1 - (u - left)) + frame[bottom, right] * (u - left)
            out[y, x] = above * (1 - (v - top)) + below * (v - top)
    return out


def test_area_is_the_mean_of_what_a_pixel_covers() -> None:
    """Half the size is the mean of two by two pixels, within one level."""
    means = FRAMES.reshape(5, 6, 2, 8, 2, 3).mean(axis=(2, 4))
    assert np.abs(resize(FRAMES, (6, 8)) - means).max() <= 1.0


@pytest.mark.parametrize("size", [(5, 7), (6, 8), (30, 40)])
def test_bilinear_takes_four_pixels(size: tuple[int, int]) -> None:
    """Bilinear interpolates the four pixels around a centre, for smaller and larger sizes, rounded."""
    for frame, small in zip(FRAMES, resize(FRAMES, size, "bilinear"), strict=True):
        assert np.abs(small - two_taps(frame, *size)).max() < 0.502


def test_the_same_size_returns_the_same_frames() -> None:
    """Frames of the requested size are not copied."""
    assert resize(FRAMES, (12, 16)) is FRAMES


def test_resize_keeps_leading_axes_and_checks_channels() -> None:
    """Batches of sequences of grayscale frames can be resized; four channels are an error."""
    light = grey(FRAMES)[None]
    assert resize(light, (6, 8)).shape == (1, 5, 6, 8, 1)
    with pytest.raises(ConfigError, match="A frame of 4 channels cannot be resized"):
        resize(np.zeros((2, 2, 4), np.uint8), (1, 1))


def test_grey_by_hand() -> None:
    """Red, green, blue and white have the weights 0.299, 0.587, 0.114 and 1."""
    colours = np.array([[[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0]]]], np.uint8)
    assert grey(colours)[0, 0, :, 0].tolist() == [76, 150, 29, 255, 0]
    assert grey(colours).dtype == np.uint8
    assert grey(grey(colours)).shape == (1, 1, 5, 1)


def test_a_stack_repeats_the_first_frame_before_the_start() -> None:
    """Frame t is last, earlier ones come first, and the first frame is repeated before the start."""
    found = stack(FRAMES, 3)
    assert found.shape == (5, 12, 16, 9)
    for t in range(5):
        for place, back in enumerate((2, 1, 0)):
            np.testing.assert_array_equal(found[t, ..., 3 * place : 3 * place + 3], FRAMES[max(0, t - back)])
    assert stack(FRAMES, 1) is FRAMES


def test_stacking_step_by_step_equals_stacking_at_once() -> None:
    """Adding one frame at a time gives the same stacks."""
    whole = stack(FRAMES, 4)
    now = np.tile(FRAMES[0], 4)
    for t in range(5):
        now = follow(now, FRAMES[t]) if t else now
        np.testing.assert_array_equal(now, whole[t])


def test_an_adapter_makes_rows_that_can_be_split() -> None:
    """Frames and scalars are fields of one row; pixels stay uint8, scalars stay exact."""
    adapter = FrameAdapter((6, 8), grey=True, stack=2, scalars=(("inventory/log", 1), ("compass", 2)))
    numbers = {"inventory/log": np.arange(5), "compass": RANDOM.normal(size=(5, 2)).astype(np.float32)}
    spec = adapter.obs_spec((12, 16, 3))
    assert [(f.name, f.kind, f.shape) for f in spec.fields] == [
        ("inventory/log", "vector", (1,)), ("compass", "vector", (2,)), ("pov", "image", (6, 8, 2)),
    ]  # fmt: skip
    rows = adapter.encode(FRAMES, numbers)
    assert rows.shape == (5, spec.width) and rows.dtype == np.uint8
    found = spec.split(rows)
    np.testing.assert_array_equal(found["inventory/log"][:, 0], np.arange(5))
    np.testing.assert_array_equal(found["compass"], numbers["compass"])
    np.testing.assert_array_equal(found["pov"], stack(grey(resize(FRAMES, (6, 8))), 2))
    np.testing.assert_array_equal(adapter.rows(adapter.shrink(FRAMES), numbers), rows)


def test_a_plain_adapter_changes_nothing() -> None:
    """Without options frames are unchanged."""
    adapter = FrameAdapter()
    np.testing.assert_array_equal(adapter.obs_spec((12, 16, 3)).split(adapter.encode(FRAMES))["pov"], FRAMES)


def test_invalid_adapters_are_errors() -> None:
    """An empty stack and a size of zero are errors."""
    with pytest.raises(ConfigError, match="stack 0 must be positive"):
        FrameAdapter(stack=0)
    with pytest.raises(ConfigError, match=r"size \(0, 8\)"):
        FrameAdapter((0, 8))
