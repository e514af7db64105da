"""Physics: compiled equals uncompiled, grip limits forces, grass slows, walls stop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kart_laps import HEADING, POINT, VELOCITY, begun, columns, fact, hold, points, set_columns, speed, tracks
from slipstream.contracts import Array, Rows
from slipstream.envs.kart.columns import POINTS, VERGE
from slipstream.envs.kart.game import game as kart
from slipstream.envs.kart.physics import BRAKE, GRIP, PUSH, ROLL
from slipstream.envs.native.kernels import DECISIONS
from slipstream.envs.native.vector import NativeVector


def varied_states(envs: int) -> NativeVector:
    """Drive from random starts, then place some cars on grass, at the wall, before the line and out of time."""
    game, out = begun(envs, random_starts=1.0, seed=3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        game.step(rng.uniform(-1, 1, (envs, 2)).astype(np.float32), out)
    pushed = np.flatnonzero(np.arange(envs) % 3 == 0)
    segment = game.column("segment")[pushed].astype(int)
    aside = rng.uniform(-9, 9, len(pushed))
    game.column("x")[pushed] -= aside * points(game, "ty")[pushed, segment]
    game.column("y")[pushed] += aside * points(game, "tx")[pushed, segment]
    for name in VELOCITY:
        game.column(name)[pushed] = rng.uniform(-25, 25, len(pushed))
    game.column("passed")[1::4] = POINTS - 1
    game.column("ticks_left")[2::20] = 3
    game.numbers[2::20, DECISIONS] = game.limit_steps - 1
    return game


@pytest.mark.slow
def test_compiled_equals_uncompiled() -> None:
    """One step from 300 varied states, over ends and new tracks, gives the same bits compiled and as plain Python."""
    envs = 300
    saved = varied_states(envs).snapshot()
    action = np.random.default_rng(1).uniform(-1, 1, (envs, 2)).astype(np.float32)
    found: list[dict[str, Any]] = []
    for compiled in (True, False):
        assert hasattr(kart.kernels(compiled).step_all, "py_func") == compiled
        game, out = begun(envs, random_starts=0.5, compiled=compiled)
        fresh = {f"first {name}": array for name, array in game.snapshot().items()} | {"first obs": out.obs.copy()}
        game.restore(saved)
        game.step(action, out)
        assert out.terminated.sum() >= 5 and out.truncated.sum() >= 5
        written = {f"rows {name}": array for name, array in vars(out).items()}
        found.append(fresh | written | game.snapshot())
    for name, array in found[0].items():
        assert np.array_equal(array, found[1][name]), name


def open_field(**values: float) -> tuple[NativeVector, Rows]:
    """Return a game of one car at rest on the start line, facing +x, with asphalt as far as it drives."""
    game, out = begun(1, match_seconds=600)
    track = tracks(game)
    track[:] = 0
    points(game, "x")[:] = np.arange(POINTS) * 3.0
    points(game, "tx")[:], points(game, "half_width")[:] = 1.0, 1e6
    fact(game, "per_metre")[:] = 1 / 3
    set_columns(game, **dict.fromkeys(("x", "y", "vx", "vy", "hy", "spin", "segment"), 0.0))
    set_columns(game, hx=1.0, edge=1e6, **values)
    return game, out


def own(game: NativeVector, name: str) -> float:
    """A column of the only car."""
    return float(game.column(name)[0])


def test_throttle_follows_the_law_of_linear_drag() -> None:
    """After 3 s of full throttle the speed is 33 (1 - exp(-3 ROLL)), and it never passes 33 m/s."""
    game, out = open_field()
    hold(game, out, 0, 1, 45)
    assert own(game, "vx") == pytest.approx(33 * (1 - np.exp(-3 * ROLL)), rel=0.01) and own(game, "vy") == 0
    hold(game, out, 0, 1, 210)
    assert 31 < own(game, "vx") < 33


def test_brakes_stop_and_then_reverse_slowly() -> None:
    """Braking decelerates by BRAKE and drag; held on, the car reverses slowly."""
    game, out = open_field(vx=20.0)
    hold(game, out, 0, -1, 15)
    mean = 20 - (BRAKE + ROLL * 15) / 2
    assert own(game, "vx") == pytest.approx(20 - (BRAKE + ROLL * mean), abs=0.3)
    hold(game, out, 0, -1, 150)
    assert -7 < own(game, "vx") < -3


def test_steer_left_is_counter_clockwise() -> None:
    """Steer +1 turns the heading from +x towards +y, and backwards the other way."""
    for vx in (10.0, -3.0):
        game, out = open_field(vx=vx)
        hold(game, out, 1, 0, 4)
        assert own(game, "hy") * vx > 0.1


def test_tyres_hold_no_more_than_their_grip() -> None:
    """However the controls are held, the velocity changes by at most GRIP and drag, and hard cornering reaches it."""
    envs, most = 200, 0.0
    game, out = begun(envs, random_starts=1.0, action_repeat=1)
    rng = np.random.default_rng(0)
    for step in range(120):
        if step % 20 == 0:
            action = rng.uniform(-1.2, 1.2, (envs, 2)).astype(np.float32)
        before, inside = columns(game, *VELOCITY), np.abs(game.column("offset")) <= game.column("edge")
        game.step(action, out)
        inside &= np.abs(game.column("offset")) < game.column("edge")
        change = (columns(game, *VELOCITY) - before) * 60 + np.float32(ROLL) * before
        pushed = np.hypot(*change[inside].T)
        most = max(most, pushed.max())
        assert pushed.max() < GRIP * 1.001
    assert most > GRIP * 0.99


def test_who_pushes_cannot_turn_as_well() -> None:
    """At full steer a car gets the share GRIP / sqrt(push**2 + turn**2) of the requested turning."""
    rate = 1.2 * GRIP / 22
    for throttle, push in ((0, 0.0), (1, PUSH), (-1, BRAKE)):
        game, out = open_field(vx=22.0, spin=rate)
        hold(game, out, 1, throttle)
        asked = 22 * rate
        expected = asked * GRIP / np.hypot(asked, push) * 4 / 60
        assert own(game, "vy") == pytest.approx(expected, rel=0.03)


def test_grass_slows() -> None:
    """Off the asphalt the same throttle ends at less than half the speed, and a fast car loses most of it."""
    game, out = open_field()
    set_columns(game, edge=-1.0)
    points(game, "half_width")[:] = -1.0
    hold(game, out, 0, 1, 200)
    assert 3 < own(game, "vx") < 12 and own(game, "grass") == 4
    set_columns(game, vx=25.0)
    hold(game, out, 0, 1, 30)
    assert own(game, "vx") < 15


def test_the_wall_holds_and_costs_speed() -> None:
    """A car that drives into the wall slides along it more slowly and cannot pass it."""
    game, out = begun(50, seed=1)
    for step in range(200):
        hold(game, out, 1 if step > 20 else 0, 1)
        assert (np.abs(game.column("offset")) <= game.column("edge") + VERGE + 1e-3).all()
    assert speed(game).max() < 15


def test_nothing_escapes() -> None:
    """In long random driving every number is finite, headings are unit vectors, and observations stay small."""
    envs = 64
    game, out = begun(envs, random_starts=0.5)
    rng = np.random.default_rng(2)
    for step in range(1500):
        if step % 10 == 0:
            action = rng.uniform(-1, 1.5, (envs, 2)).astype(np.float32)
        game.step(action, out)
        assert np.isfinite(game.state).all() and np.isfinite(out.obs).all() and np.isfinite(out.reward).all()
        assert np.abs(out.obs).max() < 3.5 and speed(game).max() < 33.1
        assert np.abs(np.hypot(*columns(game, *HEADING).T) - 1).max() < 1e-3


def nearest_place(track: Array, x: float, y: float) -> tuple[float, float]:
    """Return the nearest place on the finely sampled centre line, in points, and its distance."""
    fine = np.arange(0, POINTS, 0.02)
    here, there, part = fine.astype(int), (fine.astype(int) + 1) % POINTS, (fine % 1)[:, None]
    places, directions = (track[:, [POINT.index(name) for name in names]] for names in (("x", "y"), ("tx", "ty")))
    a, b = places[here], places[there]
    scale = np.hypot(*(b - a).T)[:, None]
    line = (
        a * (1 - part) ** 2 * (1 + 2 * part)
        + b * part**2 * (3 - 2 * part)
        + scale * (directions[here] * part * (1 - part) ** 2 - directions[there] * part**2 * (1 - part))
    )
    away = np.hypot(line[:, 0] - x, line[:, 1] - y)
    return float(fine[away.argmin()]), float(away.min())


def test_the_place_on_the_track_is_the_nearest_one() -> None:
    """In random driving on grass and at walls the place in the state equals a search of the whole track."""
    envs = 24
    game, out = begun(envs, random_starts=1.0, seed=8)
    rng = np.random.default_rng(3)
    for step in range(160):
        if step % 8 == 0:
            action = rng.uniform((-1, -0.5), (1, 1.5), (envs, 2)).astype(np.float32)
        game.step(action, out)
        if step % 10:
            continue
        cars = columns(game, "x", "y", "segment", "along", "offset").astype(float)
        for track, per_metre, car in zip(tracks(game), fact(game, "per_metre"), cars, strict=True):
            x, y, segment, along, offset = car.tolist()
            place, away = nearest_place(track, x, y)
            apart = (segment + along - place + POINTS / 2) % POINTS - POINTS / 2
            assert abs(apart) / float(per_metre) < 0.35
            assert abs(offset) == pytest.approx(away, abs=0.15)
