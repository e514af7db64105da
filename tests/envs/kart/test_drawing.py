"""Drawing a lap: interpolation between steps, the clock, and colours of speed."""

from __future__ import annotations

import numpy as np
import pytest

from kart_laps import begun
from slipstream.contracts import Array
from slipstream.envs.kart.drawing import AT, RAMP, LapScene, ramp


@pytest.fixture
def arrays() -> dict[str, Array]:
    """Two steps of a lap."""
    game, _ = begun(1)
    found = {name: np.repeat(array, 2, axis=0) for name, array in game.snapshot().items()}
    found["state"][1, AT["x"]] += 2.0
    found["state"][1, AT["ticks_left"]] -= 4
    found["state"][1, AT["vx"]] = 30.0
    return found


def test_between_and_beyond(arrays: dict[str, Array]) -> None:
    """Positions are interpolated; after the last step the kart is extrapolated for at most 0.6 s."""
    scene = LapScene((320, 180), arrays, 1 / 15)
    start = float(arrays["state"][0, AT["x"]])
    assert scene.between(0.5)[AT["x"]] == pytest.approx(start + 1)
    assert scene.between(1.0)[AT["x"]] == pytest.approx(start + 2)
    assert scene.between(1.5)[AT["x"]] == pytest.approx(start + 2 + 30 * 0.5 / 15)
    assert scene.between(1.0, 99.0)[AT["x"]] == pytest.approx(start + 2 + 30 * 0.6)


def test_the_clock(arrays: dict[str, Array]) -> None:
    """The clock shows the lap time in seconds; a lap has no score."""
    scene = LapScene((320, 180), arrays, 0.2)
    assert (scene.clock(0.5), scene.clock(1.0), scene.score(0)) == ("0.1 s", "0.1 s", None)


def test_colours_of_speed() -> None:
    """Colours run from the first at rest to the last at top speed and above."""
    assert ramp(0.0) == RAMP[0] and ramp(33.0) == ramp(99.0) == RAMP[-1]
    assert ramp(33.0 / 4) == RAMP[1]


def test_the_camera_looks_ahead(arrays: dict[str, Array]) -> None:
    """A kart at rest is in the middle of the image, a fast one behind it."""
    scene = LapScene((640, 360), arrays, 1 / 15)
    middles = []
    for step in (0.0, 1.0):
        frame = np.asarray(scene.paint(step)).astype(int)[:, :480]
        blue = (frame[..., 2] > 230) & (frame[..., 0] < 90)
        middles.append(np.nonzero(blue)[1].mean())
    assert middles[0] == pytest.approx(320, abs=12) and middles[1] < 320 - 40
