"""Kart's observations, compared with geometry computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import empty_rows
from slipstream.envs.kart import layout as at
from slipstream.envs.kart.game import Kart
from slipstream.envs.kart.observation import NEAR


def test_the_way_ahead_is_seen_in_the_cars_frame() -> None:
    """Each point ahead, rotated back by the heading, lies on the centre line at its distance."""
    game = Kart(40, random_starts=1.0, seed=2)
    out = empty_rows(game.spec, 40)
    game.reset(out)
    for s, clock, track, o in zip(game.state, game.clock, game.tracks, out.obs, strict=True):
        seen = o[at.O_AHEAD :].reshape(at.LOOKS, at.AHEAD_SIZE)
        place = clock[at.SEGMENT] + s[at.ALONG] + np.array(at.DISTANCES) * s[at.PER_METRE]
        turned = np.arange(at.POINTS + 1)
        closed = np.concatenate([track, track[:1]])
        x, y, bend, wide = (np.interp(place % at.POINTS, turned, closed[:, k]) for k in (0, 1, at.BEND, at.WIDE))
        dx, dy = x - s[at.X], y - s[at.Y]
        assert seen[:, 0] / NEAR == pytest.approx(dx * s[at.HX] + dy * s[at.HY], abs=0.02)
        assert seen[:, 1] / NEAR == pytest.approx(dy * s[at.HX] - dx * s[at.HY], abs=0.02)
        assert seen[:, 2] == pytest.approx(bend * float(at.INV_BEND), abs=1e-3)
        assert seen[:, 3] == pytest.approx(wide * float(at.INV_WIDE), abs=1e-3)


def test_motion_and_place() -> None:
    """Speeds, offset, heading, remaining lap and last controls are in the documented columns."""
    game = Kart(1)
    s, track = game.state[0], game.tracks[0]
    tx, ty = (float(v) for v in track[0, at.TX : at.TY + 1])
    s[at.X : at.Y + 1] += np.array([-ty, tx]) * 2.0
    s[at.HX : at.HY + 1] = (tx * 0.8 - ty * 0.6, ty * 0.8 + tx * 0.6)
    s[at.VX : at.VY + 1] = s[at.HX : at.HY + 1] * 10 + np.array([-s[at.HY], s[at.HX]]) * 2
    out = empty_rows(game.spec, 1)
    seen = []
    for _ in range(2):
        game.observe(out.obs)
        seen.append(out.obs[0].copy())
        game.step(np.array([[0.3, 0.7]], np.float32), out)
    first, second = seen
    assert first[at.O_SPEED] == pytest.approx(10 / 33, abs=1e-4)
    assert first[at.O_SPEED + 1] == pytest.approx(2 / 8, abs=1e-4)
    assert first[at.O_HEADING : at.O_HEADING + 2] == pytest.approx([0.6, 0.8], abs=1e-3)
    assert first[at.O_CONTROLS : at.O_CONTROLS + 2].tolist() == [0, 0]
    assert second[at.O_CONTROLS : at.O_CONTROLS + 2] == pytest.approx([0.3, 0.7])
    assert second[at.O_OFFSET] == pytest.approx(s[at.OFFSET] / s[at.EDGE], abs=0.2) and second[at.O_OFFSET] > 0.2
    assert first[at.O_LEFT] == 1 and 0.99 < second[at.O_LEFT] < 1 and second[at.O_ASPHALT] == 1


def test_everything_is_of_size_one() -> None:
    """Over random starts every column has a moderate size and varies."""
    game = Kart(2000, random_starts=1.0)
    out = empty_rows(game.spec, 2000)
    game.reset(out)
    for _ in range(20):
        game.step(np.random.default_rng(1).uniform(-1, 1, (2000, 2)).astype(np.float32), out)
    assert np.abs(out.obs).max() < 3 and np.quantile(np.abs(out.obs), 0.99) < 1.3
    assert (out.obs.std(0) > 0.01).all()


def test_observations_have_no_jumps() -> None:
    """Observations of a slow car change little from step to step, past every point of the track."""
    game = Kart(8, seed=5)
    out = empty_rows(game.spec, 8)
    game.reset(out)
    last = out.obs.copy()
    for _ in range(300):
        game.step(np.full((8, 2), (0.0, 0.02), np.float32), out)
        motion = np.abs(out.obs - last)
        motion[:, at.O_CONTROLS : at.O_CONTROLS + 2] = 0
        inside = np.abs(game.state[:, at.OFFSET]) < game.state[:, at.EDGE] - 0.1
        assert motion[inside].max() < 0.05
        last = out.obs.copy()
