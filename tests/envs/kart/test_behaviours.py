"""Behaviour statistics of a lap, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kart_laps import HEADING, VELOCITY, act, begun, columns, fact, hold, place_cars, points, set_columns
from kart_laps import speed as speed_of
from slipstream.contracts import Rows
from slipstream.envs.kart.columns import TOP_SPEED

BEHAVIOURS = ("seconds", "progress", "speed", "top_speed", "off_track", "slip")


def statistics(out: Rows) -> dict[str, float]:
    """The statistics of the first env's lap that ended."""
    assert out.terminated[0] or out.truncated[0]
    return dict(zip(BEHAVIOURS, map(float, out.behaviour[0]), strict=True))


def test_a_lap_that_runs_out_of_time() -> None:
    """A car on a straight is set to speeds 3, 6 and 9: mean and top speed are those after each decision."""
    game, out = begun(1, match_seconds=12 / 60, seed=1)
    assert game.spec.behaviours == BEHAVIOURS
    speeds, done = [], 0.0
    for speed in (3.0, 6.0, 9.0):
        set_columns(game, vx=game.column("hx") * speed, vy=game.column("hy") * speed)
        hold(game, out, 0, 0)
        if speed < 9:
            speeds.append(float(speed_of(game)[0]))
            done = float(game.column("done")[0])
    lap = statistics(out)
    speeds.append(9 * speeds[0] / 3)  # rolling drag is linear
    assert lap["seconds"] == pytest.approx(0.2) and lap["off_track"] == 0 and lap["slip"] == pytest.approx(0, abs=1e-3)
    assert lap["speed"] == pytest.approx(np.mean(speeds), rel=1e-3)
    assert lap["top_speed"] == pytest.approx(speeds[2], rel=1e-3)
    assert done < lap["progress"] < 0.01


def test_time_on_grass_and_sideways() -> None:
    """A car on grass in one of three decisions is off the track for a third of the time."""
    game, out = begun(1, match_seconds=12 / 60, seed=1)
    for decision in range(3):
        place_cars(game, offset=float(points(game, "half_width")[0, 0]) + 2 if decision == 1 else 0.0)
        hold(game, out, 0, 0)
    assert statistics(out)["off_track"] == pytest.approx(1 / 3)
    hx, hy = columns(game, *HEADING).T
    set_columns(game, vx=-hy * 6, vy=hx * 6)
    hold(game, out, 0, 0, steps=3)
    assert 0.1 < statistics(out)["slip"] <= 6


def test_a_lap_that_is_finished() -> None:
    """A finished lap has progress 1, the seconds of all ticks, and a mean speed of about length over time."""
    game, out = begun(8, seed=2)
    length, ended = fact(game, "length").copy(), np.zeros(8, bool)
    for step in range(900):
        game.step(act("expert", game, out), out)
        for env in np.flatnonzero((out.terminated == 1) & ~ended):
            lap = dict(zip(BEHAVIOURS, map(float, out.behaviour[env]), strict=True))
            assert lap["progress"] == 1 and 4 * step + 0.9 < lap["seconds"] * 60 < 4 * step + 4.1
            assert lap["speed"] * lap["seconds"] == pytest.approx(length[env], rel=0.06)
            assert lap["speed"] < lap["top_speed"] < TOP_SPEED
            assert not game.behaviour[env].any(), "the next lap starts at zero"
            ended[env] = True
    assert ended.all()


def test_statistics_are_those_of_every_decision() -> None:
    """Time, speeds, slip and the time on grass equal sums over the states after each decision of a lap."""
    envs = 8
    game, out = begun(envs, seed=5, match_seconds=20.0, random_starts=0.5)
    rng = np.random.default_rng(0)
    ticks, speeds, slips, grass, tops = np.zeros((5, envs))
    for decision in range(300):
        if decision % 10 == 0:
            action = rng.uniform((-0.6, -0.2), (0.6, 1), (envs, 2)).astype(np.float32)
        game.step(action, out)
        if decision == 299:
            break
        (vx, vy), (hx, hy) = columns(game, *VELOCITY).T.astype(float), columns(game, *HEADING).T.astype(float)
        ticks += 4
        speeds += 4 * np.hypot(vx, vy)
        slips += 4 * np.abs(vy * hx - vx * hy)
        grass += game.column("grass")
        tops = np.maximum(tops, np.hypot(vx, vy))
        assert not out.terminated.any() and not out.truncated.any()
        for name, sums in (("speed", speeds), ("slip", slips), ("off_track", grass)):
            assert game.behaviour[:, 0, BEHAVIOURS.index(name)] == pytest.approx(sums / 60, rel=1e-4, abs=1e-5)
        assert game.behaviour[:, 0, BEHAVIOURS.index("top_speed")] == pytest.approx(tops, rel=1e-5)
    assert out.truncated.all() and grass.max() > 0
    assert out.behaviour[:, BEHAVIOURS.index("seconds")] == pytest.approx((ticks + 4) / 60, rel=1e-5)
    assert out.behaviour[:, BEHAVIOURS.index("speed")] == pytest.approx(speeds / ticks, rel=0.01)
