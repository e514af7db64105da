"""Drawing soccer between two steps: interpolation, and extrapolation before kick-offs and at the end."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.envs.registry import EnvChoice
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer.drawing import MatchScene, outline, pad_place
from slipstream.envs.soccer.physics import pad_x, pad_y
from slipstream.vector.make import make_vector

SIZE = (430, 265)


@pytest.fixture
def arrays() -> dict[str, Array]:
    """Three steps of a match, all alike."""
    snapshot = make_vector(EnvChoice("soccer"), 1).snapshot()
    return {name: np.repeat(array, 3, axis=0) for name, array in snapshot.items()}


def test_halfway(arrays: dict[str, Array]) -> None:
    """Positions are interpolated linearly, and headings keep length 1."""
    arrays["state"][1, [at.X, at.CARS + at.X]] = 4.0, -20.0
    arrays["state"][0, [at.CARS + at.X, at.CARS + at.HX, at.CARS + at.HY]] = -22.0, 1.0, 0.0
    arrays["state"][1, [at.CARS + at.HX, at.CARS + at.HY]] = 0.0, 1.0
    now = MatchScene(SIZE, arrays, 1 / 15).between(0.5)
    assert now[at.X] == 2.0 and now[at.CARS + at.X] == -21.0
    assert now[at.CARS + at.HX] == now[at.CARS + at.HY] == pytest.approx(0.5**0.5)


def test_a_goal_stays_a_goal(arrays: dict[str, Array]) -> None:
    """Before a kick-off the ball rolls into the net and stays there, however far is extrapolated."""
    arrays["state"][0, [at.X, at.Y, at.VX, at.VY]] = 35.0, 8.0, 40.0, 20.0
    arrays["clock"][1:, at.SCORE] = 1
    scene = MatchScene(SIZE, arrays, 1 / 15)
    xs = [scene.between(0.999, beyond)[at.X] for beyond in (0.0, 1.0, 4.0, 50.0)]
    assert xs == sorted(xs) and xs[0] > 36 and xs[-1] == pytest.approx(36 + 6 - 2.3)
    assert abs(scene.between(0.999, 50.0)[at.Y]) <= 9 - 2.3 + 1e-6
    assert scene.between(1.0)[at.X] == 0.0


def test_score_and_clock(arrays: dict[str, Array]) -> None:
    """Score and time come from the clock, with overtime marked."""
    arrays["clock"][2, [at.SCORE, at.SCORE + 1, at.TICKS_LEFT, at.OVERTIME]] = 2, 3, 75 * 60, 1
    scene = MatchScene(SIZE, arrays, 1 / 15)
    assert (scene.score(0.9), scene.clock(0.9)) == ((0, 0), "1:00")
    assert (scene.score(2.5), scene.clock(99)) == ((2, 3), "1:15  overtime")


def test_pads_fade(arrays: dict[str, Array]) -> None:
    """An available pad is bright in the middle; a pad that was taken is not."""
    for left, bright in ((0.0, True), (300.0, False)):
        arrays["state"][:, at.PAD] = left
        scene = MatchScene(SIZE, arrays, 1 / 15)
        x, y = scene.camera.at(*pad_place(0))
        pixel = np.asarray(scene.paint(0.0))[round(y), round(x)].astype(int)
        assert (pixel[:2].min() > 200) == bright


def test_places() -> None:
    """Pads are drawn where the physics places them, in pairs of opposite points, and the wall is symmetric."""
    assert pad_place(4) == (float(pad_x(2)), float(pad_y(2)))
    assert pad_place(5) == (-pad_place(4)[0], -pad_place(4)[1])
    wall = outline()
    assert {(-x, -y) for x, y in wall} == set(wall)
    assert all(abs(x) + abs(y) <= at.DIAGONAL or abs(x) > at.LENGTH for x, y in wall)


def test_any_number_of_cars() -> None:
    """Six cars are drawn, and no boost gauges where there is no space beside the pitch."""
    snapshot = make_vector(EnvChoice("soccer:3v3"), 1).snapshot()
    scene = MatchScene((300, 300), snapshot, 1 / 15)
    assert scene.cars == 6 and [scene.team(car) for car in range(6)] == [0, 0, 0, 1, 1, 1]
    assert scene.paint(0.0).size == (300, 300)
