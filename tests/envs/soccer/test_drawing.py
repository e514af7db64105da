"""Soccer between two decisions: halfway where play goes on, further on where it is broken off."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.envs.registry import EnvChoice
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer.drawing import Pitch, outline, pad_place
from slipstream.envs.soccer.physics import pad_x, pad_y
from slipstream.vector.make import make_vector

SIZE = (430, 265)


@pytest.fixture
def arrays() -> dict[str, Array]:
    """Three steps of a match, all alike."""
    snapshot = make_vector(EnvChoice("soccer"), 1).snapshot()
    return {name: np.repeat(array, 3, axis=0) for name, array in snapshot.items()}


def test_halfway(arrays: dict[str, Array]) -> None:
    """Places are on the straight line, headings are turned and stay of length 1."""
    arrays["state"][1, [at.X, at.CARS + at.X]] = 4.0, -20.0
    arrays["state"][0, [at.CARS + at.X, at.CARS + at.HX, at.CARS + at.HY]] = -22.0, 1.0, 0.0
    arrays["state"][1, [at.CARS + at.HX, at.CARS + at.HY]] = 0.0, 1.0
    now = Pitch(SIZE, arrays, 1 / 15).between(0.5)
    assert now[at.X] == 2.0 and now[at.CARS + at.X] == -21.0
    assert now[at.CARS + at.HX] == now[at.CARS + at.HY] == pytest.approx(0.5**0.5)


def test_a_goal_stays_a_goal(arrays: dict[str, Array]) -> None:
    """Before a kick-off the ball rolls on into the net, where it stays, however long that is looked at."""
    arrays["state"][0, [at.X, at.Y, at.VX, at.VY]] = 35.0, 8.0, 40.0, 20.0
    arrays["clock"][1:, at.SCORE] = 1
    pitch = Pitch(SIZE, arrays, 1 / 15)
    xs = [pitch.between(0.999, beyond)[at.X] for beyond in (0.0, 1.0, 4.0, 50.0)]
    assert xs == sorted(xs) and xs[0] > 36 and xs[-1] == pytest.approx(36 + 6 - 2.3)
    assert abs(pitch.between(0.999, 50.0)[at.Y]) <= 9 - 2.3 + 1e-6
    assert pitch.between(1.0)[at.X] == 0.0


def test_score_and_clock(arrays: dict[str, Array]) -> None:
    """As the clock has them, with overtime."""
    arrays["clock"][2, [at.SCORE, at.SCORE + 1, at.TICKS_LEFT, at.OVERTIME]] = 2, 3, 75 * 60, 1
    pitch = Pitch(SIZE, arrays, 1 / 15)
    assert (pitch.score(0.9), pitch.clock(0.9)) == ((0, 0), "1:00")
    assert (pitch.score(2.5), pitch.clock(99)) == ((2, 3), "1:15  overtime")


def test_pads_fade(arrays: dict[str, Array]) -> None:
    """A pad that is there is bright in the middle; one that was taken is not."""
    for left, bright in ((0.0, True), (300.0, False)):
        arrays["state"][:, at.PAD] = left
        pitch = Pitch(SIZE, arrays, 1 / 15)
        x, y = pitch.camera.at(*pad_place(0))
        pixel = np.asarray(pitch.paint(0.0))[round(y), round(x)].astype(int)
        assert (pixel[:2].min() > 200) == bright


def test_places() -> None:
    """Pads lie where the physics has them, in pairs of opposite points, and the wall is symmetric."""
    assert pad_place(4) == (float(pad_x(2)), float(pad_y(2)))
    assert pad_place(5) == (-pad_place(4)[0], -pad_place(4)[1])
    wall = outline()
    assert {(-x, -y) for x, y in wall} == set(wall)
    assert all(abs(x) + abs(y) <= at.DIAGONAL or abs(x) > at.LENGTH for x, y in wall)


def test_any_number_of_cars() -> None:
    """Six cars are drawn as six, and no tank is drawn where there is no room beside the pitch."""
    snapshot = make_vector(EnvChoice("soccer:3v3"), 1).snapshot()
    pitch = Pitch((300, 300), snapshot, 1 / 15)
    assert pitch.cars == 6 and [pitch.team(car) for car in range(6)] == [0, 0, 0, 1, 1, 1]
    assert pitch.paint(0.0).size == (300, 300)
