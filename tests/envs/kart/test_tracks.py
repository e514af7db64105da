"""Tracks: closed, evenly spaced, wide enough, within their limits of curvature and distance, and random."""

from __future__ import annotations

import numpy as np
import pytest

from kart_laps import begun, fact, hold, points, tracks
from slipstream.envs.kart.columns import POINTS, VERGE
from slipstream.envs.kart.tracks import BREADTH, NARROWER, RADIUS, SWELL, TIGHTER
from slipstream.envs.native.vector import NativeVector


def laps_on(difficulty: float, envs: int = 150) -> NativeVector:
    """Return laps on tracks of one difficulty."""
    return begun(envs, options={"difficulty": difficulty}, seed=11)[0]


@pytest.mark.parametrize("difficulty", [0.0, 0.3, 0.7, 1.0])
def test_loops_are_closed_and_even(difficulty: float) -> None:
    """Neighbouring points are equally far apart all around, and directions point along the line."""
    game = laps_on(difficulty)
    x, y, tx, ty = (points(game, name) for name in ("x", "y", "tx", "ty"))
    per_metre, length = fact(game, "per_metre")[:, None], fact(game, "length")
    on_x, on_y = np.roll(x, -1, axis=1) - x, np.roll(y, -1, axis=1) - y
    spans = np.hypot(on_x, on_y) * per_metre
    assert spans.min() > 0.995 and spans.max() < 1.001
    assert length == pytest.approx(POINTS / per_metre[:, 0], rel=1e-5)
    assert (length > 300).all() and (length < 680).all()
    assert np.abs(np.hypot(tx, ty) - 1).max() < 1e-5
    assert ((tx * on_x + ty * on_y) * per_metre).min() > 0.98
    assert (fact(game, "difficulty") == np.float32(difficulty)).all()


@pytest.mark.parametrize("difficulty", [0.0, 0.3, 0.7, 1.0])
def test_no_corner_is_tighter_than_promised(difficulty: float) -> None:
    """Curvature is that of the circle through three neighbours, is within the limit, and sums to one turn."""
    game = laps_on(difficulty)
    bend = points(game, "bend")
    assert 1 / np.abs(bend).max() >= RADIUS + TIGHTER * difficulty
    whole = bend.sum(1) / fact(game, "per_metre")
    assert np.abs(np.abs(whole) - 2 * np.pi).max() < 0.1
    assert np.abs(np.diff(bend, axis=1)).max() < 0.6 / (RADIUS + TIGHTER * difficulty)


@pytest.mark.parametrize("difficulty", [0.0, 0.3, 0.7, 1.0])
def test_walls_never_touch_each_other(difficulty: float) -> None:
    """Stretches that are not neighbours leave space for both walls, so no loop crosses itself."""
    game = laps_on(difficulty)
    apart = np.arange(POINTS)
    apart = np.minimum(np.abs(apart[:, None] - apart), POINTS - np.abs(apart[:, None] - apart))
    numbers = (points(game, name) for name in ("x", "y", "half_width"))
    for x, y, wide, per_metre in zip(*numbers, fact(game, "per_metre"), strict=True):
        away = np.hypot(x[:, None] - x, y[:, None] - y)
        walls = wide + np.float32(VERGE)
        space = away - walls[:, None] - walls
        radius = RADIUS + TIGHTER * difficulty
        assert space[apart / per_metre > np.pi * radius].min() > 0
        assert walls.max() < radius


@pytest.mark.parametrize("difficulty", [0.0, 1.0])
def test_widths_are_as_promised(difficulty: float) -> None:
    """The width varies at random around a mean that decreases with difficulty."""
    wide = points(laps_on(difficulty), "half_width")
    middle = BREADTH + NARROWER * difficulty
    assert wide.min() >= middle * (1 - SWELL) - 1e-4 and wide.max() <= middle * (1 + SWELL) + 1e-4
    assert wide.mean() == pytest.approx(middle, rel=0.01)


def test_tracks_are_all_different_and_go_both_ways_round() -> None:
    """All envs and episodes have different tracks; half of them turn left."""
    game, out = begun(300, seed=1)
    places, bends = [points(game, "x")[:, 7].copy()], [points(game, "bend").copy()]
    game.reset_envs(range(300), out)
    places.append(points(game, "x")[:, 7])
    bends.append(points(game, "bend"))
    assert len(np.unique(places)) == 600
    left = (np.concatenate(bends).sum(1) > 0).mean()
    assert 0.42 < left < 0.58


def test_harder_tracks_turn_more_and_tighter() -> None:
    """With difficulty come more corners, tighter ones, and narrower asphalt."""
    turning, tightest, width = [], [], []
    for difficulty in (0.0, 0.5, 1.0):
        game = laps_on(difficulty)
        bend = np.abs(points(game, "bend"))
        turning.append((bend.sum(1) / fact(game, "per_metre")).mean())
        tightest.append(bend.max(1).mean())
        width.append(points(game, "half_width").mean())
    assert turning[0] < turning[1] - 0.5 < turning[2] - 1.5
    assert tightest[0] < tightest[1] * 0.8 < tightest[2] * 0.6 and width[0] > width[1] > width[2]


def test_a_track_depends_on_seed_env_and_episode_alone() -> None:
    """The next track does not depend on earlier laps, their starts or other envs."""
    (one, out), (rolling, more), (alone, few) = (
        begun(4, seed=6),
        begun(4, seed=6, random_starts=1.0),
        begun(1, seed=6, first=2),
    )
    hold(one, out, 1, 1, 5)
    one.reset_envs(range(4), out)
    rolling.reset_envs(range(4), more)
    alone.reset_envs([0], few)
    assert np.array_equal(tracks(one), tracks(rolling))
    assert np.array_equal(tracks(one)[2], tracks(alone)[0])
