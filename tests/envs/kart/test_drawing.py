"""Drawing a lap: interpolation between steps, the clock, and colours of speed."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.envs.kart import layout as at
from slipstream.envs.kart.drawing import RAMP, LapScene, ramp
from slipstream.envs.registry import EnvChoice
from slipstream.vector.make import make_vector


@pytest.fixture
def arrays() -> dict[str, Array]:
    """Two steps of a lap."""
    snapshot = make_vector(EnvChoice("kart"), 1).snapshot()
    found = {name: np.repeat(array, 2, axis=0) for name, array in snapshot.items()}
    found["state"][1, at.X] += 2.0
    found["clock"][1, at.TICKS_LEFT] -= 4
    found["state"][1, at.VX] = 30.0
    return found


def test_between_and_beyond(arrays: dict[str, Array]) -> None:
    """Positions are interpolated; after the last step the kart is extrapolated for at most 0.6 s."""
    scene = LapScene((320, 180), arrays, 1 / 15)
    start = float(arrays["state"][0, at.X])
    assert scene.between(0.5)[at.X] == pytest.approx(start + 1)
    assert scene.between(1.0)[at.X] == pytest.approx(start + 2)
    assert scene.between(1.5)[at.X] == pytest.approx(start + 2 + 30 * 0.5 / 15)
    assert scene.between(1.0, 99.0)[at.X] == pytest.approx(start + 2 + 30 * 0.6)


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
