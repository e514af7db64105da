"""Behaviour statistics of a lap, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Rows, empty_rows
from slipstream.envs.kart import layout as at
from slipstream.envs.kart import scripted
from slipstream.envs.kart.behaviours import BEHAVIOURS
from slipstream.envs.kart.game import Kart


def statistics(out: Rows) -> dict[str, float]:
    """The statistics of the first env's lap that ended."""
    assert out.terminated[0] or out.truncated[0]
    return dict(zip(BEHAVIOURS, map(float, out.behaviour[0]), strict=True))


def test_a_lap_that_runs_out_of_time() -> None:
    """A car on a straight is set to speeds 3, 6 and 9: mean and top speed are those after each decision."""
    game = Kart(1, match_seconds=12 / 60, seed=1)
    out, s = empty_rows(game.spec, 1), game.state[0]
    assert game.spec.behaviours == BEHAVIOURS
    speeds, done = [], 0.0
    for speed in (3.0, 6.0, 9.0):
        s[at.VX], s[at.VY] = s[at.HX] * speed, s[at.HY] * speed
        game.step(np.zeros((1, 2), np.float32), out)
        if speed < 9:
            speeds.append(float(np.hypot(s[at.VX], s[at.VY])))
            done = float(s[at.DONE])
    lap = statistics(out)
    speeds.append(9 * speeds[0] / 3)  # rolling drag is linear
    assert lap["seconds"] == pytest.approx(0.2) and lap["off_track"] == 0 and lap["slip"] == pytest.approx(0, abs=1e-3)
    assert lap["speed"] == pytest.approx(np.mean(speeds), rel=1e-3)
    assert lap["top_speed"] == pytest.approx(speeds[2], rel=1e-3)
    assert done < lap["progress"] < 0.01


def test_time_on_grass_and_sideways() -> None:
    """A car on grass in one of three decisions is off the track for a third of the time."""
    game = Kart(1, match_seconds=12 / 60, seed=1)
    out, s, track = empty_rows(game.spec, 1), game.state[0], game.tracks[0]
    start = s.copy()
    aside = np.array([-track[0, at.TY], track[0, at.TX]]) * (track[0, at.WIDE] + 2)
    for decision in range(3):
        s[: at.SPIN + 1] = start[: at.SPIN + 1]
        if decision == 1:
            s[at.X], s[at.Y] = s[at.X] + aside[0], s[at.Y] + aside[1]
        game.step(np.zeros((1, 2), np.float32), out)
    assert statistics(out)["off_track"] == pytest.approx(1 / 3)
    s = game.state[0]
    s[at.VX], s[at.VY] = -s[at.HY] * 6, s[at.HX] * 6
    for _ in range(3):
        game.step(np.zeros((1, 2), np.float32), out)
    assert 0.1 < statistics(out)["slip"] <= 6


def test_a_lap_that_is_finished() -> None:
    """A finished lap has progress 1, the seconds of all ticks, and a mean speed of about length over time."""
    game = Kart(8, seed=2)
    out, action = empty_rows(game.spec, 8), np.zeros((8, 2), np.float32)
    game.reset(out)
    length, ended = game.state[:, at.LENGTH].copy(), np.zeros(8, bool)
    for step in range(900):
        scripted.act("expert", out.obs, "continuous", action)
        game.step(action, out)
        for env in np.flatnonzero((out.terminated == 1) & ~ended):
            lap = dict(zip(BEHAVIOURS, map(float, out.behaviour[env]), strict=True))
            assert lap["progress"] == 1 and 4 * step + 0.9 < lap["seconds"] * 60 < 4 * step + 4.1
            assert lap["speed"] * lap["seconds"] == pytest.approx(length[env], rel=0.06)
            assert lap["speed"] < lap["top_speed"] < at.TOP_SPEED
            assert not game.behaviour[env].any(), "the next lap starts at zero"
            ended[env] = True
    assert ended.all()
