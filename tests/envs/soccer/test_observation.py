"""Observations: equal for both teams in mirrored states, and in the documented columns."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.envs.native.vector import NativeVector
from slipstream.envs.soccer.columns import NEAR, PADS
from slipstream.envs.soccer.game import game as soccer
from soccer_matches import begun, place_ball, place_car, places, set_score

TURNED = ("x", "y", "vx", "vy", "hx", "hy")
"""Columns that change their sign when the arena is rotated."""


def mirror(game: NativeVector, team_size: int) -> None:
    """Rotate the arena by 180 degrees and swap the teams."""
    before = game.state.copy()
    names = game._columns.names()

    def take(here: str, there: str, sign: int = 1) -> None:
        game.column(here)[:] = sign * before[:, names.index(there)]

    for name in TURNED[:4]:
        take(f"ball.{name}", f"ball.{name}", -1)
    for pad in range(PADS):
        take(f"pads.{pad}", f"pads.{pad ^ 1}")
    for car in range(2 * team_size):
        other = (car + team_size) % (2 * team_size)
        for name in (one.removeprefix("cars.0.") for one in names if one.startswith("cars.0.")):
            take(f"cars.{car}.{name}", f"cars.{other}.{name}", -1 if name in TURNED else 1)
    take("score.0", "score.1")
    take("score.1", "score.0")


@pytest.mark.parametrize("team_size", [1, 2, 3])
def test_mirrored_state_gives_the_other_side(team_size: int) -> None:
    """In a mirrored state each car has exactly its counterpart's observation."""
    envs = 200
    game, out = begun(envs, f"{team_size}v{team_size}", random_starts=1.0)
    rng = np.random.default_rng(0)
    for _ in range(40):
        game.step(rng.integers(0, 18, (len(out.obs), 1)).astype(np.int32), out)
    set_score(game, rng.integers(0, 5, (2, envs)))
    game.observe(out.obs)
    seen = out.obs.reshape(envs, 2, team_size, -1).copy()
    mirror(game, team_size)
    game.observe(out.obs)
    assert np.array_equal(out.obs.reshape(envs, 2, team_size, -1), seen[:, ::-1])


def test_sizes() -> None:
    """An observation has 44 numbers at 1v1, 60 at 2v2, 76 at 3v3, and 81 in the mixed variant."""
    assert [soccer.spec(variant).obs.width for variant in soccer.variants] == [44, 60, 76, 81]


def test_named_places() -> None:
    """Ball, goals, pads and the other car are in the named columns, in the own frame."""
    game, out = begun(1)
    place_ball(game, 10, 5, 4, -8)
    place_car(game, 0, 10, -5, 0, 20, 0, 1, 2.5, 0.5)  # faces +y: left is -x
    place_car(game, 1, 0, 0, 0, 0, -1, 0, 0, 0.25)
    set_score(game, (2, 1))
    game.observe(out.obs)
    columns = places()

    def seen(name: str, *more: str) -> list[float]:
        return [float(out.obs[0, columns[f"{name}.{one}" if one else name]]) for one in more or ("",)]

    assert np.allclose(seen("position", "x", "y"), (10 / 36, -5 / 25))
    assert np.allclose(seen("velocity", "ahead", "left"), (0.5, 0))
    assert np.allclose(seen("ball", "ahead", "left", "distance"), (10 * NEAR, 0, 10 * NEAR))
    assert np.allclose(seen("ball.relative_velocity", "ahead", "left"), (-28 / 40, -4 / 40))
    assert np.allclose(seen("opponent_goal", "ahead", "left"), (5 * NEAR, -26 * NEAR))
    assert np.allclose(seen("own_goal", "ahead", "left"), (5 * NEAR, 46 * NEAR))
    assert np.allclose(seen("opponent.0.position", "ahead", "left"), (5 * NEAR, 10 * NEAR))
    assert np.allclose(seen("opponent.0.heading", "ahead", "left"), (0, 1))
    assert np.allclose(seen("opponent.0", "boost", "ball_distance"), (0.25, np.hypot(10, 5) * NEAR))
    assert np.allclose(seen("goal_lead"), 1 / 3) and np.allclose(out.obs[1, columns["goal_lead"]], -1 / 3)
    assert np.allclose(seen("nearest_pad", "ahead", "left"), (5 * NEAR, -4 * NEAR))
    assert np.allclose(seen("pad", *map(str, range(PADS))), 1)
    assert [*seen("boost"), *seen("spin"), *seen("time_left"), *seen("overtime")] == [0.5, 0.5, 1, 0]
