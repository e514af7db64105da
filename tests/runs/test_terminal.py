"""The terminal: parsing of keys, and frames as text."""

from __future__ import annotations

import numpy as np

from slipstream.runs.terminal import half_blocks, read_keys


def test_keys_of_a_terminal() -> None:
    """Arrow keys in both encodings, letters, space and digits are parsed; unknown sequences are dropped."""
    assert read_keys("\x1b[A\x1bOD w1Q") == ["up", "left", "space", "up", "1", "q"]
    assert read_keys("\x1b[Zx") == ["x"]


def test_frames_as_text() -> None:
    """Each character shows two pixels; the frame keeps its aspect ratio and fits."""
    frame = np.zeros((4, 4, 3), np.uint8)
    frame[0] = (255, 0, 0)
    frame[3] = (0, 0, 255)
    lines = half_blocks(frame, 80, 2)
    assert lines == [
        "\x1b[38;2;255;0;0;48;2;0;0;0m▀▀▀▀\x1b[0m",
        "\x1b[38;2;0;0;0;48;2;0;0;255m▀▀▀▀\x1b[0m",
    ]
    wide = half_blocks(np.zeros((100, 400, 3), np.uint8), 40, 30)
    assert [line.count("▀") for line in wide] == [40] * 5
