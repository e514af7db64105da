"""Observations: equal for both teams in mirrored states, and in the documented columns."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer.game import Soccer


def mirror(state: Array, clock: Array, team_size: int) -> tuple[Array, Array]:
    """Rotate the arena by 180 degrees and swap the teams."""
    turned, swapped = state.copy(), clock.copy()
    turned[:, at.BALL : at.BALL + 4] *= -1
    for pad in range(at.PADS):
        turned[:, at.PAD + pad] = state[:, at.PAD + (pad ^ 1)]
    for car in range(2 * team_size):
        here = at.CARS + car * at.CAR_SIZE
        there = at.CARS + (car + team_size) % (2 * team_size) * at.CAR_SIZE
        turned[:, here : here + at.CAR_SIZE] = state[:, there : there + at.CAR_SIZE]
        turned[:, here : here + at.HY + 1] *= -1
    swapped[:, at.SCORE], swapped[:, at.SCORE + 1] = clock[:, at.SCORE + 1], clock[:, at.SCORE]
    return turned, swapped


@pytest.mark.parametrize("team_size", [1, 2, 3])
def test_mirrored_state_gives_the_other_side(team_size: int) -> None:
    """In a mirrored state each car has exactly its counterpart's observation."""
    envs = 200
    game = Soccer(envs, team_size=team_size, random_starts=1.0)
    out = empty_rows(game.spec, envs)
    game.reset(out)
    rng = np.random.default_rng(0)
    for _ in range(40):
        game.step(rng.integers(0, 18, (len(out.obs), 1)).astype(np.int32), out)
    game.clock[:, at.SCORE : at.SCORE + 2] = rng.integers(0, 5, (envs, 2))
    game.observe(out.obs)
    seen = out.obs.reshape(envs, 2, team_size, -1).copy()
    game.state[:], game.clock[:] = mirror(game.state, game.clock, team_size)
    game.observe(out.obs)
    assert np.array_equal(out.obs.reshape(envs, 2, team_size, -1), seen[:, ::-1])


def test_sizes() -> None:
    """An observation has 44 numbers at 1v1, 60 at 2v2 and 76 at 3v3."""
    assert [Soccer(1, team_size=k).spec.obs.width for k in (1, 2, 3)] == [44, 60, 76]


def test_named_places() -> None:
    """Ball, goals, pads and the other car are in the documented columns, in the own frame."""
    game = Soccer(1)
    s = game.state[0]
    s[at.BALL : at.BALL + 4] = (10, 5, 4, -8)
    c, o = at.CARS, at.CARS + at.CAR_SIZE
    s[c : c + 8] = (10, -5, 0, 20, 0, 1, 2.5, 0.5)  # faces +y: left is -x
    s[o : o + 8] = (0, 0, 0, 0, -1, 0, 0, 0.25)
    game.clock[0, at.SCORE : at.SCORE + 2] = (2, 1)
    obs = np.zeros((2, 44), np.float32)
    game.observe(obs)
    mine = obs[0]
    near = float(at.NEAR)
    assert np.allclose(mine[at.O_POSITION : at.O_POSITION + 2], (10 / 36, -5 / 25))
    assert np.allclose(mine[at.O_VELOCITY : at.O_VELOCITY + 2], (0.5, 0))
    assert np.allclose(mine[at.O_BALL : at.O_BALL + 3], (10 * near, 0, 10 * near))
    assert np.allclose(mine[at.O_BALL_VELOCITY : at.O_BALL_VELOCITY + 2], (-28 / 40, -4 / 40))
    assert np.allclose(mine[at.O_TARGET : at.O_TARGET + 2], (5 * near, -26 * near))
    assert np.allclose(mine[at.O_HOME : at.O_HOME + 2], (5 * near, 46 * near))
    assert np.allclose(mine[at.O_OTHERS : at.O_OTHERS + 2], (5 * near, 10 * near))
    assert np.allclose(mine[at.O_OTHERS + 4 : at.O_OTHERS + 8], (0, 1, 0.25, np.hypot(10, 5) * near))
    assert np.allclose(mine[at.O_SCORE], 1 / 3) and np.allclose(obs[1][at.O_SCORE], -1 / 3)
    assert np.allclose(mine[at.O_NEAREST_PAD : at.O_NEAREST_PAD + 2], (5 * near, -4 * near))
    assert np.allclose(mine[at.O_PADS : at.O_PADS + at.PADS], 1)
    assert np.allclose(mine[[at.O_BOOST, at.O_SPIN, at.O_CLOCK, at.O_OVERTIME]], (0.5, 0.5, 1, 0))
