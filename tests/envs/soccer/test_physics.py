"""Physics: compiled equals uncompiled, bodies stay in the arena, cars and ball move as specified."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.soccer import layout as at
from slipstream.envs.soccer.game import Soccer

ORACLE = """
import sys, numpy as np
from slipstream.contracts import empty_rows
from slipstream.envs.soccer import batch
from slipstream.envs.soccer.game import Soccer
given = np.load(sys.argv[1])
envs = len(given["state"])
game = Soccer(envs, team_size=int(given["team_size"]), random_starts=0.5)
assert not hasattr(batch.advance, "py_func")
game.restore(given)
out = empty_rows(game.spec, envs)
game.step(given["action"], out)
np.savez(sys.argv[2], obs=out.obs, reward=out.reward, terms=out.terms, statistics=out.behaviour, **game.snapshot())
"""


def varied_states(envs: int, team_size: int) -> Soccer:
    """Play from random starts, then place many balls next to a car, a wall, a post or in a goal mouth."""
    game = Soccer(envs, team_size=team_size, random_starts=0.5, seed=3)
    out = empty_rows(game.spec, envs)
    rng = np.random.default_rng(0)
    game.reset(out)
    for _ in range(8):
        game.step(rng.integers(0, 18, (envs * 2 * team_size, 1)).astype(np.int32), out)
    state, clock = game.state, game.clock
    car = at.CARS + at.CAR_SIZE * rng.integers(0, 2 * team_size, envs)
    near = np.arange(envs) % 4 == 0
    rows = np.flatnonzero(near)
    for axis in (at.X, at.Y):
        state[rows, axis] = state[rows, car[rows] + axis] + rng.uniform(-4, 4, len(rows))
    walls = np.flatnonzero(np.arange(envs) % 4 == 1)
    state[walls, at.X] = rng.choice([-1, 1], len(walls)) * rng.uniform(32, 39, len(walls))
    state[walls, at.Y] = rng.uniform(-12, 12, len(walls))
    state[walls, at.VX : at.VY + 1] = rng.uniform(-50, 50, (len(walls), 2))
    clock[:, at.TICKS_LEFT] = rng.integers(1, 3600, envs)
    clock[::50, at.TICKS_LEFT] = 3
    clock[::100, at.OVERTIME] = 1
    return game


def compare(tmp_path: Path, envs: int, team_size: int) -> dict[str, float]:
    """Return the greatest difference between compiled and uncompiled, by name."""
    game = varied_states(envs, team_size)
    action = np.random.default_rng(1).integers(0, 18, (envs * 2 * team_size, 1)).astype(np.int32)
    np.savez(tmp_path / "in.npz", action=action, team_size=team_size, **game.snapshot())
    subprocess.run(
        [sys.executable, "-c", ORACLE, str(tmp_path / "in.npz"), str(tmp_path / "out.npz")],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        check=True,
    )
    compiled = Soccer(envs, team_size=team_size, random_starts=0.5)
    compiled.restore(game.snapshot())
    out = empty_rows(compiled.spec, envs)
    compiled.step(action, out)
    mine = {"obs": out.obs, "reward": out.reward, "terms": out.terms, "statistics": out.behaviour} | compiled.snapshot()
    theirs = np.load(tmp_path / "out.npz")
    return {name: float(np.abs(values - theirs[name]).max()) for name, values in mine.items()}


@pytest.mark.slow
def test_compiled_equals_uncompiled(tmp_path: Path) -> None:
    """One step from 10,000 varied states gives the same numbers compiled and as plain Python."""
    for name, difference in compare(tmp_path, 10_000, 1).items():
        assert difference <= 1e-5, name


def test_compiled_equals_uncompiled_in_teams(tmp_path: Path) -> None:
    """The same holds with two cars a side."""
    for name, difference in compare(tmp_path, 1_000, 2).items():
        assert difference <= 1e-5, name


def test_nothing_escapes() -> None:
    """In long random play all bodies stay in the arena, speeds stay bounded, and every number is finite."""
    envs = 64
    for team_size in (1, 3):
        game = Soccer(envs, team_size=team_size, random_starts=0.5, actions="continuous")
        out = empty_rows(game.spec, envs)
        game.reset(out)
        rng = np.random.default_rng(2)
        for step in range(1500):
            if step % 10 == 0:  # hold for a while, so that cars reach walls and each other at full speed
                action = rng.uniform(-0.6, 1.4, (envs * 2 * team_size, 4)).astype(np.float32)
            game.step(action, out)
            s = game.state
            assert np.isfinite(s).all() and np.isfinite(out.obs).all() and np.isfinite(out.reward).all()
            assert np.abs(out.obs).max() < 3.5
            for body, radius, top in [(at.BALL, at.BALL_RADIUS, 60.5)] + [
                (at.CARS + k * at.CAR_SIZE, at.CAR_RADIUS, 90.0) for k in range(2 * team_size)
            ]:
                x, y = np.abs(s[:, body + at.X]), np.abs(s[:, body + at.Y])
                assert (x <= at.LENGTH + at.GOAL_DEPTH).all() and (y <= at.WIDTH).all()
                assert ((x <= at.LENGTH - radius + 0.01) | (y <= at.GOAL_WIDTH + 0.01)).all()
                assert ((x + y <= at.DIAGONAL) | (y <= at.GOAL_WIDTH)).all()
                assert (np.hypot(s[:, body + at.VX], s[:, body + at.VY]) < top).all()
            for k in range(2 * team_size):
                c = at.CARS + k * at.CAR_SIZE
                assert np.abs(np.hypot(s[:, c + at.HX], s[:, c + at.HY]) - 1).max() < 1e-3
                assert (s[:, c + at.BOOST] >= 0).all() and (s[:, c + at.BOOST] <= 1).all()


def lone_car(**columns: float) -> tuple[Soccer, Array]:
    """Return a game with car 0 in the middle facing +x, and the ball and the other car out of its way."""
    game = Soccer(1, actions="continuous", match_seconds=600)
    s = game.state[0]
    s[at.BALL : at.BALL + 4] = (-20, 20, 0, 0)
    other = at.CARS + at.CAR_SIZE
    s[other : other + 8] = (-20, -20, 0, 0, 1, 0, 0, 0)
    s[at.CARS : at.CARS + 8] = (-30, 0, 0, 0, 1, 0, 0, 1)
    for name, value in columns.items():
        s[at.CARS + getattr(at, name)] = value
    return game, s


def drive(game: Soccer, control: tuple[float, float, float, float], steps: int) -> None:
    """Hold car 0's controls for some decisions."""
    out = empty_rows(game.spec, 1)
    action = np.array([control, (0, 0, -1, -1)], np.float32)
    for _ in range(steps):
        game.step(action, out)


def test_throttle_and_boost_reach_their_speeds() -> None:
    """Full throttle nears 26 units/s, and boost goes well beyond it while the tank empties."""
    game, s = lone_car(BOOST=0.0)
    drive(game, (1, 0, -1, -1), 25)
    plain = s[at.CARS + at.VX]
    assert 22 < plain < 26.1 and abs(s[at.CARS + at.Y]) < 1e-3
    game, s = lone_car(Y=7.0)  # past the pads
    drive(game, (1, 0, 1, -1), 25)
    assert s[at.CARS + at.VX] > plain + 8
    assert 0.35 < s[at.CARS + at.BOOST] < 0.5


def test_drift_slides() -> None:
    """With the handbrake a turning car keeps more of its sideways speed."""
    slides = []
    for drift in (-1, 1):
        game, s = lone_car(VX=24.0)
        drive(game, (1, 1, -1, drift), 6)
        c = at.CARS
        slides.append(abs(s[c + at.VY] * s[c + at.HX] - s[c + at.VX] * s[c + at.HY]))
    assert slides[1] > 2 * slides[0]


def test_steer_left_is_counter_clockwise() -> None:
    """Steer +1 turns the heading from +x towards +y."""
    game, s = lone_car(VX=15.0)
    drive(game, (1, 1, -1, -1), 4)
    assert s[at.CARS + at.HY] > 0.2


def test_a_hit_sends_the_ball_off_faster_than_the_car() -> None:
    """A car that drives into a resting ball kicks it forward and loses speed itself."""
    game, s = lone_car(VX=25.0)
    s[at.BALL : at.BALL + 2] = (-24.5, 0)
    drive(game, (0, 0, -1, -1), 1)
    assert s[at.BALL + at.VX] > 25 * 1.2 and abs(s[at.BALL + at.VY]) < 1e-3
    assert 0 < s[at.CARS + at.VX] < 24
    assert s[at.CARS + at.TOUCH] > 25


def test_pads_fill_the_tank_and_come_back() -> None:
    """Driving over the big pad fills the tank; the pad returns after 10 s."""
    game, s = lone_car(X=0.0, Y=20.0, BOOST=0.0)
    drive(game, (0, 0, -1, -1), 2)
    assert s[at.CARS + at.BOOST] == 1
    assert 590 <= s[at.PAD] <= 600
    s[at.CARS + at.X] = -10
    drive(game, (0, 0, -1, -1), 151)
    assert s[at.PAD] == 0
