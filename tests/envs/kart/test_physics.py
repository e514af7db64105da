"""Physics: compiled equals uncompiled, grip limits forces, grass slows, walls stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.kart import layout as at
from slipstream.envs.kart.game import Kart
from slipstream.envs.kart.physics import BRAKE, GRIP, PUSH, ROLL

ORACLE = """
import sys, numpy as np
from slipstream.contracts import empty_rows
from slipstream.envs.kart import batch
from slipstream.envs.kart.game import Kart
given = np.load(sys.argv[1])
envs = len(given["state"])
assert not hasattr(batch.advance, "py_func")
game = Kart(envs, random_starts=0.5)
fresh = game.tracks.copy()
game.restore(given)
out = empty_rows(game.spec, envs)
game.step(given["action"], out)
np.savez(sys.argv[2], fresh=fresh, obs=out.obs, reward=out.reward, terms=out.terms, statistics=out.behaviour,
         terminated=out.terminated, truncated=out.truncated, **game.snapshot())
"""


def varied_states(envs: int) -> Kart:
    """Drive from random starts, then place some cars on grass, at the wall, before the line and out of time."""
    game = Kart(envs, random_starts=1.0, seed=3)
    out = empty_rows(game.spec, envs)
    rng = np.random.default_rng(0)
    game.reset(out)
    for _ in range(20):
        game.step(rng.uniform(-1, 1, (envs, 2)).astype(np.float32), out)
    s, clock = game.state, game.clock
    pushed = np.flatnonzero(np.arange(envs) % 3 == 0)
    tangent = game.tracks[pushed, clock[pushed, at.SEGMENT], at.TX : at.TY + 1]
    aside = rng.uniform(-9, 9, (len(pushed), 1)) * tangent[:, ::-1] * [-1, 1]
    s[pushed, at.X : at.Y + 1] += aside.astype(np.float32)
    s[pushed, at.VX : at.VY + 1] = rng.uniform(-25, 25, (len(pushed), 2))
    clock[1::4, at.PASSED] = at.POINTS - 1
    clock[2::20, at.TICKS_LEFT] = 3
    return game


@pytest.mark.slow
def test_compiled_equals_uncompiled(tmp_path: Path) -> None:
    """One step from 300 varied states, over ends and new tracks, gives the same bits compiled and as plain Python."""
    envs = 300
    game = varied_states(envs)
    action = np.random.default_rng(1).uniform(-1, 1, (envs, 2)).astype(np.float32)
    np.savez(tmp_path / "in.npz", action=action, **game.snapshot())
    subprocess.run(
        [sys.executable, "-c", ORACLE, str(tmp_path / "in.npz"), str(tmp_path / "out.npz")],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        check=True,
    )
    compiled = Kart(envs, random_starts=0.5)
    fresh = compiled.tracks.copy()
    compiled.restore(game.snapshot())
    out = empty_rows(compiled.spec, envs)
    compiled.step(action, out)
    assert out.terminated.sum() >= 5 and out.truncated.sum() >= 5
    mine = compiled.snapshot() | {"fresh": fresh, "statistics": out.behaviour}
    theirs = np.load(tmp_path / "out.npz")
    for name in theirs.files:
        values = mine[name] if name in mine else getattr(out, name)
        assert np.array_equal(values, theirs[name]), name


def open_field(**columns: float) -> tuple[Kart, Array]:
    """Return a game of one car at rest on the start line, facing +x, with asphalt as far as it drives."""
    game = Kart(1, match_seconds=600)
    s, track = game.state[0], game.tracks[0]
    s[: at.STEER] = (0, 0, 0, 0, 1, 0, 0)
    track[:] = 0
    track[:, at.X] = np.arange(at.POINTS) * 3.0
    track[:, at.TX], track[:, at.WIDE] = 1.0, 1e6
    s[at.EDGE], s[at.PER_METRE], game.clock[0, at.SEGMENT] = 1e6, 1 / 3, 0
    for name, value in columns.items():
        s[getattr(at, name)] = value
    return game, s


def drive(game: Kart, steer: float, throttle: float, steps: int) -> None:
    """Hold the controls of all cars for some decisions."""
    out = empty_rows(game.spec, game.envs)
    for _ in range(steps):
        game.step(np.full((game.envs, 2), (steer, throttle), np.float32), out)


def test_throttle_follows_the_law_of_linear_drag() -> None:
    """After 3 s of full throttle the speed is 33 (1 - exp(-3 ROLL)), and it never passes 33 m/s."""
    game, s = open_field()
    drive(game, 0, 1, 45)
    assert s[at.VX] == pytest.approx(33 * (1 - np.exp(-3 * float(ROLL))), rel=0.01) and s[at.VY] == 0
    drive(game, 0, 1, 210)
    assert 31 < s[at.VX] < 33


def test_brakes_stop_and_then_reverse_slowly() -> None:
    """Braking decelerates by BRAKE and drag; held on, the car reverses slowly."""
    game, s = open_field(VX=20.0)
    drive(game, 0, -1, 15)
    mean = 20 - (float(BRAKE) + float(ROLL) * 15) / 2
    assert s[at.VX] == pytest.approx(20 - (float(BRAKE) + float(ROLL) * mean), abs=0.3)
    drive(game, 0, -1, 150)
    assert -7 < s[at.VX] < -3


def test_steer_left_is_counter_clockwise() -> None:
    """Steer +1 turns the heading from +x towards +y, and backwards the other way."""
    for speed in (10.0, -3.0):
        game, s = open_field(VX=speed)
        drive(game, 1, 0, 4)
        assert s[at.HY] * speed > 0.1


def test_tyres_hold_no_more_than_their_grip() -> None:
    """However the controls are held, the velocity changes by at most GRIP and drag, and hard cornering reaches it."""
    envs, most = 200, 0.0
    game = Kart(envs, random_starts=1.0, action_repeat=1)
    out = empty_rows(game.spec, envs)
    rng = np.random.default_rng(0)
    for step in range(120):
        if step % 20 == 0:
            action = rng.uniform(-1.2, 1.2, (envs, 2)).astype(np.float32)
        before, inside = game.state.copy(), np.abs(game.state[:, at.OFFSET]) <= game.state[:, at.EDGE]
        game.step(action, out)
        inside &= np.abs(game.state[:, at.OFFSET]) < game.state[:, at.EDGE]
        change = (game.state[:, at.VX : at.VY + 1] - before[:, at.VX : at.VY + 1]) * 60
        change += float(ROLL) * before[:, at.VX : at.VY + 1]
        pushed = np.hypot(*change[inside].T)
        most = max(most, pushed.max())
        assert pushed.max() < float(GRIP) * 1.001
    assert most > float(GRIP) * 0.99


def test_who_pushes_cannot_turn_as_well() -> None:
    """At full steer a car gets the share GRIP / sqrt(push**2 + turn**2) of the requested turning."""
    rate = 1.2 * float(GRIP) / 22
    for throttle, push in ((0, 0.0), (1, float(PUSH)), (-1, float(BRAKE))):
        game, s = open_field(VX=22.0, SPIN=rate)
        drive(game, 1, throttle, 1)
        asked = 22 * rate
        expected = asked * float(GRIP) / np.hypot(asked, push) * 4 / 60
        assert s[at.VY] == pytest.approx(expected, rel=0.03)


def test_grass_slows() -> None:
    """Off the asphalt the same throttle ends at less than half the speed, and a fast car loses most of it."""
    game, s = open_field(EDGE=-1.0)
    game.tracks[0, :, at.WIDE] = -1.0
    drive(game, 0, 1, 200)
    slow = float(s[at.VX])
    assert 3 < slow < 12 and s[at.GRASS] == 4
    s[at.VX] = 25.0
    drive(game, 0, 1, 30)
    assert s[at.VX] < 15


def test_the_wall_holds_and_costs_speed() -> None:
    """A car that drives into the wall slides along it more slowly and cannot pass it."""
    game = Kart(50, seed=1)
    out = empty_rows(game.spec, 50)
    for step in range(200):
        game.step(np.full((50, 2), (1.0 if step > 20 else 0.0, 1.0), np.float32), out)
        s = game.state
        assert (np.abs(s[:, at.OFFSET]) <= s[:, at.EDGE] + at.VERGE + 1e-3).all()
    assert np.hypot(s[:, at.VX], s[:, at.VY]).max() < 15


def test_nothing_escapes() -> None:
    """In long random driving every number is finite, headings are unit vectors, and observations stay small."""
    envs = 64
    game = Kart(envs, random_starts=0.5)
    out = empty_rows(game.spec, envs)
    game.reset(out)
    rng = np.random.default_rng(2)
    for step in range(1500):
        if step % 10 == 0:
            action = rng.uniform(-1, 1.5, (envs, 2)).astype(np.float32)
        game.step(action, out)
        s = game.state
        assert np.isfinite(s).all() and np.isfinite(out.obs).all() and np.isfinite(out.reward).all()
        assert np.abs(out.obs).max() < 3.5 and np.hypot(s[:, at.VX], s[:, at.VY]).max() < 33.1
        assert np.abs(np.hypot(s[:, at.HX], s[:, at.HY]) - 1).max() < 1e-3


def nearest_place(track: Array, x: float, y: float) -> tuple[float, float]:
    """Return the nearest place on the finely sampled centre line, in points, and its distance."""
    fine = np.arange(0, at.POINTS, 0.02)
    here, there, part = fine.astype(int), (fine.astype(int) + 1) % at.POINTS, (fine % 1)[:, None]
    a, b = track[here], track[there]
    scale = np.hypot(*(b[:, :2] - a[:, :2]).T)[:, None]
    line = (
        a[:, :2] * (1 - part) ** 2 * (1 + 2 * part)
        + b[:, :2] * part**2 * (3 - 2 * part)
        + scale * (a[:, 2:4] * part * (1 - part) ** 2 - b[:, 2:4] * part**2 * (1 - part))
    )
    away = np.hypot(line[:, 0] - x, line[:, 1] - y)
    return float(fine[away.argmin()]), float(away.min())


def test_the_place_on_the_track_is_the_nearest_one() -> None:
    """In random driving on grass and at walls the place in the state equals a search of the whole track."""
    envs = 24
    game = Kart(envs, random_starts=1.0, seed=8)
    out = empty_rows(game.spec, envs)
    rng = np.random.default_rng(3)
    for step in range(160):
        if step % 8 == 0:
            action = rng.uniform((-1, -0.5), (1, 1.5), (envs, 2)).astype(np.float32)
        game.step(action, out)
        if step % 10:
            continue
        for env in range(envs):
            s = game.state[env]
            place, away = nearest_place(game.tracks[env], float(s[at.X]), float(s[at.Y]))
            mine = game.clock[env, at.SEGMENT] + float(s[at.ALONG])
            apart = (mine - place + at.POINTS / 2) % at.POINTS - at.POINTS / 2
            assert abs(apart) / float(s[at.PER_METRE]) < 0.35
            assert abs(float(s[at.OFFSET])) == pytest.approx(away, abs=0.15)
