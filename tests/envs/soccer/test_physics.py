"""Physics: compiled equals uncompiled, bodies stay in the arena, cars and ball move as specified."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.soccer import columns as pitch
from slipstream.envs.soccer.game import game as soccer
from soccer_matches import begun, car, place_ball, place_car


def varied_states(envs: int, team_size: int) -> NativeVector:
    """Play from random starts, then place many balls next to a car, a wall, a post or in a goal mouth."""
    game, out = begun(envs, f"{team_size}v{team_size}", random_starts=0.5, seed=3)
    rng = np.random.default_rng(0)
    for _ in range(8):
        game.step(rng.integers(0, 18, (envs * 2 * team_size, 1)).astype(np.int32), out)
    some = rng.integers(0, 2 * team_size, envs)
    rows = np.flatnonzero(np.arange(envs) % 4 == 0)
    for axis in ("x", "y"):
        cars = np.stack([game.column(f"cars.{number}.{axis}") for number in range(2 * team_size)])
        game.column(f"ball.{axis}")[rows] = cars[some[rows], rows] + rng.uniform(-4, 4, len(rows))
    walls = np.flatnonzero(np.arange(envs) % 4 == 1)
    game.column("ball.x")[walls] = rng.choice([-1, 1], len(walls)) * rng.uniform(32, 39, len(walls))
    game.column("ball.y")[walls] = rng.uniform(-12, 12, len(walls))
    for axis in ("vx", "vy"):
        game.column(f"ball.{axis}")[walls] = rng.uniform(-50, 50, len(walls))
    game.column("ticks_left")[:] = rng.integers(1, 3600, envs)
    game.column("ticks_left")[::50] = 3
    game.column("overtime")[::100] = 1
    return game


def compare(envs: int, team_size: int) -> dict[str, bool]:
    """Whether compiled and uncompiled give the same bits, by name."""
    variant = f"{team_size}v{team_size}"
    saved = varied_states(envs, team_size).snapshot()
    action = np.random.default_rng(1).integers(0, 18, (envs * 2 * team_size, 1)).astype(np.int32)
    found: list[dict[str, Any]] = []
    for compiled in (True, False):
        game = soccer.vector(envs, variant, random_starts=0.5, compiled=compiled)
        game.restore(saved)
        out = empty_rows(game.spec, envs)
        with np.errstate(all="ignore"):
            game.step(action, out)
        written = {"obs": out.obs, "reward": out.reward, "terms": out.terms, "statistics": out.behaviour}
        found.append(written | game.snapshot())
    return {name: np.array_equal(array, found[1][name], equal_nan=True) for name, array in found[0].items()}


@pytest.mark.slow
def test_compiled_equals_uncompiled() -> None:
    """One step from 10,000 varied states gives the same bits compiled and as plain Python."""
    same = compare(10_000, 1)
    assert all(same.values()), same


def test_compiled_equals_uncompiled_in_teams() -> None:
    """The same holds with two cars a side."""
    same = compare(1_000, 2)
    assert all(same.values()), same


def test_nothing_escapes() -> None:
    """In long random play all bodies stay in the arena, speeds stay bounded, and every number is finite."""
    envs = 64
    for team_size in (1, 3):
        game, out = begun(envs, f"{team_size}v{team_size}", random_starts=0.5, actions="continuous")
        rng = np.random.default_rng(2)
        cars = [f"cars.{number}" for number in range(2 * team_size)]
        bodies = [("ball", pitch.BALL_RADIUS, 60.5), *((one, pitch.CAR_RADIUS, 90.0) for one in cars)]
        for step in range(1500):
            if step % 10 == 0:  # hold for a while, so that cars reach walls and each other at full speed
                action = rng.uniform(-0.6, 1.4, (envs * 2 * team_size, 4)).astype(np.float32)
            game.step(action, out)
            assert np.isfinite(game.state).all() and np.isfinite(out.obs).all() and np.isfinite(out.reward).all()
            assert np.abs(out.obs).max() < 3.5
            for body, radius, top in bodies:
                x, y = np.abs(game.column(f"{body}.x")), np.abs(game.column(f"{body}.y"))
                assert (x <= pitch.LENGTH + pitch.GOAL_DEPTH).all() and (y <= pitch.WIDTH).all()
                assert ((x <= pitch.LENGTH - radius + 0.01) | (y <= pitch.GOAL_WIDTH + 0.01)).all()
                assert ((x + y <= pitch.DIAGONAL) | (y <= pitch.GOAL_WIDTH)).all()
                assert (np.hypot(game.column(f"{body}.vx"), game.column(f"{body}.vy")) < top).all()
            for one in cars:
                heading, boost = (
                    np.hypot(game.column(f"{one}.hx"), game.column(f"{one}.hy")),
                    game.column(f"{one}.boost"),
                )
                assert np.abs(heading - 1).max() < 1e-3
                assert (boost >= 0).all() and (boost <= 1).all()


def lone_car(**columns: float) -> NativeVector:
    """A match with car 0 in the middle facing +x, and the ball and the other car out of its way."""
    game, _ = begun(1, actions="continuous", match_seconds=600)
    place_ball(game, -20, 20, 0, 0)
    place_car(game, 1, -20, -20, 0, 0, 1, 0, 0, 0)
    place_car(game, 0, -30, 0, 0, 0, 1, 0, 0, 1)
    for name, value in columns.items():
        game.column(f"cars.0.{name}")[:] = value
    return game


def drive(game: NativeVector, control: tuple[float, float, float, float], steps: int) -> None:
    """Hold car 0's controls for some decisions."""
    out = empty_rows(game.spec, 1)
    action = np.array([control, (0, 0, -1, -1)], np.float32)
    for _ in range(steps):
        game.step(action, out)


def own(game: NativeVector, *names: str) -> Array:
    """Columns of car 0."""
    found: Array = car(game, 0, *names)[0]
    return found


def test_throttle_and_boost_reach_their_speeds() -> None:
    """Full throttle nears 26 units/s, and boost goes well beyond it while the tank empties."""
    game = lone_car(boost=0.0)
    drive(game, (1, 0, -1, -1), 25)
    plain, y = own(game, "vx", "y")
    assert 22 < plain < 26.1 and abs(y) < 1e-3
    game = lone_car(y=7.0)  # past the pads
    drive(game, (1, 0, 1, -1), 25)
    vx, boost = own(game, "vx", "boost")
    assert vx > plain + 8
    assert 0.35 < boost < 0.5


def test_drift_slides() -> None:
    """With the handbrake a turning car keeps more of its sideways speed."""
    slides = []
    for drift in (-1, 1):
        game = lone_car(vx=24.0)
        drive(game, (1, 1, -1, drift), 6)
        vx, vy, hx, hy = own(game, "vx", "vy", "hx", "hy")
        slides.append(abs(vy * hx - vx * hy))
    assert slides[1] > 2 * slides[0]


def test_steer_left_is_counter_clockwise() -> None:
    """Steer +1 turns the heading from +x towards +y."""
    game = lone_car(vx=15.0)
    drive(game, (1, 1, -1, -1), 4)
    assert own(game, "hy")[0] > 0.2


def test_a_hit_sends_the_ball_off_faster_than_the_car() -> None:
    """A car that drives into a resting ball kicks it forward and loses speed itself."""
    game = lone_car(vx=25.0)
    place_ball(game, -24.5, 0)
    drive(game, (0, 0, -1, -1), 1)
    assert game.column("ball.vx")[0] > 25 * 1.2 and abs(game.column("ball.vy")[0]) < 1e-3
    vx, touch = own(game, "vx", "touch")
    assert 0 < vx < 24
    assert touch > 25


def test_pads_fill_the_tank_and_come_back() -> None:
    """Driving over the big pad fills the tank; the pad returns after 10 s."""
    game = lone_car(x=0.0, y=20.0, boost=0.0)
    drive(game, (0, 0, -1, -1), 2)
    assert own(game, "boost")[0] == 1
    assert 590 <= game.column("pads.0")[0] <= 600
    place_car(game, 0, -10)
    drive(game, (0, 0, -1, -1), 151)
    assert game.column("pads.0")[0] == 0
