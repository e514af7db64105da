"""Video files, frame by frame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.demos.importers import video
from slipstream.errors import DemoError


def film(count: int, height: int = 16, width: int = 24) -> Array:
    """Frames of three colours that grow brighter."""
    frames = np.zeros((count, height, width, 3), np.uint8)
    frames[..., 0] = 20 + 5 * np.arange(count)[:, None, None]
    frames[..., 2] = 200
    return frames


def test_frames_come_back_in_order_and_in_colour(tmp_path: Path) -> None:
    """Frames are decoded in the order and, nearly, in the colours in which they were written."""
    frames = film(30)
    assert video.encode(tmp_path / "a.mp4", frames) == 30
    found = np.stack(list(video.decode(tmp_path / "a.mp4")))
    assert found.shape == frames.shape and found.dtype == np.uint8
    assert np.abs(found.astype(int) - frames).max() <= 6
    assert video.count_frames(tmp_path / "a.mp4") == 30
    assert video.frame_shape([tmp_path / "none.mp4", tmp_path / "a.mp4"]) == (16, 24, 3)


def test_stack_frames_fills_one_array(tmp_path: Path) -> None:
    """As many frames as there are, in an array that is made once."""
    assert video.stack_frames(iter(film(5)), 9).shape == (5, 16, 24, 3)
    assert len(video.stack_frames(iter(()), 9)) == 0


def test_unreadable_and_unwritable_videos_raise(tmp_path: Path) -> None:
    """Files that are not videos, and odd frame sides, raise errors."""
    (tmp_path / "a.mp4").write_bytes(b"x" * 100)
    for attempt in (lambda: list(video.decode(tmp_path / "a.mp4")), lambda: video.count_frames(tmp_path / "a.mp4")):
        with pytest.raises(DemoError, match=r"a\.mp4 cannot be decoded"):
            attempt()
    with pytest.raises(DemoError, match=r"None of 1 videos can be opened; the first is .*a\.mp4"):
        video.frame_shape([tmp_path / "a.mp4"])
    with pytest.raises(DemoError, match="Frames of 15x24 cannot be written as video: sides must be even"):
        video.encode(tmp_path / "b.mp4", film(2, 15))
