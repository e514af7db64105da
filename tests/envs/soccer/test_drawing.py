"""Drawing soccer between two steps: interpolation, and extrapolation before kick-offs and at the end."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.envs.soccer.columns import DIAGONAL, LENGTH, PADS
from slipstream.envs.soccer.drawing import MatchScene, outline, pad_place
from slipstream.envs.soccer.game import game as soccer
from soccer_matches import begun, coasting, columns

SIZE = (430, 265)
AT = {name: column for column, name in enumerate(soccer.classes("1v1").state.names())}
"""The column of the state of each name."""


@pytest.fixture
def arrays() -> dict[str, Array]:
    """Three steps of a match, all alike."""
    snapshot = begun(1)[0].snapshot()
    return {name: np.repeat(array, 3, axis=0) for name, array in snapshot.items()}


def test_halfway(arrays: dict[str, Array]) -> None:
    """Positions are interpolated linearly, and headings keep length 1."""
    x, hx, hy = (AT[f"cars.0.{name}"] for name in ("x", "hx", "hy"))
    arrays["state"][1, [AT["ball.x"], x]] = 4.0, -20.0
    arrays["state"][0, [x, hx, hy]] = -22.0, 1.0, 0.0
    arrays["state"][1, [hx, hy]] = 0.0, 1.0
    now = MatchScene(SIZE, arrays, 1 / 15).between(0.5)
    assert now[AT["ball.x"]] == 2.0 and now[x] == -21.0
    assert now[hx] == now[hy] == pytest.approx(0.5**0.5)


def test_a_goal_stays_a_goal(arrays: dict[str, Array]) -> None:
    """Before a kick-off the ball rolls into the net and stays there, however far is extrapolated."""
    x, y, vx, vy = (AT[f"ball.{name}"] for name in ("x", "y", "vx", "vy"))
    arrays["state"][0, [x, y, vx, vy]] = 35.0, 8.0, 40.0, 20.0
    arrays["state"][1:, AT["score.0"]] = 1
    scene = MatchScene(SIZE, arrays, 1 / 15)
    xs = [scene.between(0.999, beyond)[x] for beyond in (0.0, 1.0, 4.0, 50.0)]
    assert xs == sorted(xs) and xs[0] > 36 and xs[-1] == pytest.approx(36 + 6 - 2.3)
    assert abs(scene.between(0.999, 50.0)[y]) <= 9 - 2.3 + 1e-6
    assert scene.between(1.0)[x] == 0.0


def test_score_and_clock(arrays: dict[str, Array]) -> None:
    """Score and time come from the state, with overtime marked."""
    arrays["state"][2, [AT[name] for name in ("score.0", "score.1", "ticks_left", "overtime")]] = 2, 3, 75 * 60, 1
    scene = MatchScene(SIZE, arrays, 1 / 15)
    assert (scene.score(0.9), scene.clock(0.9)) == ((0, 0), "1:00")
    assert (scene.score(2.5), scene.clock(99)) == ((2, 3), "1:15  overtime")


def test_pads_fade(arrays: dict[str, Array]) -> None:
    """An available pad is bright in the middle; a pad that was taken is not."""
    for left, bright in ((0.0, True), (300.0, False)):
        arrays["state"][:, AT["pads.0"]] = left
        scene = MatchScene(SIZE, arrays, 1 / 15)
        x, y = scene.camera.at(*pad_place(0))
        pixel = np.asarray(scene.paint(0.0))[round(y), round(x)].astype(int)
        assert (pixel[:2].min() > 200) == bright


def test_places() -> None:
    """Pads are drawn where the physics places them, in pairs of opposite points, and the wall is symmetric."""
    game, out = begun(PADS)
    game.column("cars.0.x")[:], game.column("cars.0.y")[:] = np.transpose([pad_place(pad) for pad in range(PADS)])
    game.step(coasting(game), out)
    taken = columns(game, *(f"pads.{pad}" for pad in range(PADS))) > 0
    assert np.array_equal(taken, np.eye(PADS, dtype=bool)), "the car of each env takes the pad on which it is"
    assert pad_place(5) == (-pad_place(4)[0], -pad_place(4)[1])
    wall = outline()
    assert {(-x, -y) for x, y in wall} == set(wall)
    assert all(abs(x) + abs(y) <= DIAGONAL or abs(x) > LENGTH for x, y in wall)


def test_any_number_of_cars() -> None:
    """Six cars are drawn, and no boost gauges where there is no space beside the pitch."""
    snapshot = begun(1, "3v3")[0].snapshot()
    scene = MatchScene((300, 300), snapshot, 1 / 15)
    assert scene.cars == 6 and [scene.team(car) for car in range(6)] == [0, 0, 0, 1, 1, 1]
    assert scene.paint(0.0).size == (300, 300)
