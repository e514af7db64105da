"""Tracks: closed, evenly spaced, wide enough, within their limits of curvature and distance, and random."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.envs.kart import layout as at
from slipstream.envs.kart.game import Kart
from slipstream.envs.kart.tracks import BREADTH, NARROWER, RADIUS, SWELL, TIGHTER


def centre_lines(difficulty: float, envs: int = 150) -> tuple[Array, Array]:
    """Return states and tracks of one difficulty."""
    game = Kart(envs, difficulty=(difficulty, difficulty), seed=11)
    return game.state, game.tracks


@pytest.mark.parametrize("difficulty", [0.0, 0.3, 0.7, 1.0])
def test_loops_are_closed_and_even(difficulty: float) -> None:
    """Neighbouring points are equally far apart all around, and directions point along the line."""
    state, tracks = centre_lines(difficulty)
    onward = np.roll(tracks[:, :, :2], -1, axis=1) - tracks[:, :, :2]
    spans = np.hypot(onward[:, :, 0], onward[:, :, 1]) * state[:, None, at.PER_METRE]
    assert spans.min() > 0.995 and spans.max() < 1.001
    assert state[:, at.LENGTH] == pytest.approx(at.POINTS / state[:, at.PER_METRE], rel=1e-5)
    assert (state[:, at.LENGTH] > 300).all() and (state[:, at.LENGTH] < 680).all()
    direction = tracks[:, :, at.TX : at.TY + 1]
    assert np.abs(np.hypot(direction[:, :, 0], direction[:, :, 1]) - 1).max() < 1e-5
    assert ((direction * onward).sum(2) * state[:, None, at.PER_METRE]).min() > 0.98


@pytest.mark.parametrize("difficulty", [0.0, 0.3, 0.7, 1.0])
def test_no_corner_is_tighter_than_promised(difficulty: float) -> None:
    """Curvature is that of the circle through three neighbours, is within the limit, and sums to one turn."""
    state, tracks = centre_lines(difficulty)
    bend = tracks[:, :, at.BEND]
    assert 1 / np.abs(bend).max() >= RADIUS + TIGHTER * difficulty
    whole = bend.sum(1) / state[:, at.PER_METRE]
    assert np.abs(np.abs(whole) - 2 * np.pi).max() < 0.1
    assert np.abs(np.diff(bend, axis=1)).max() < 0.6 / (RADIUS + TIGHTER * difficulty)


@pytest.mark.parametrize("difficulty", [0.0, 0.3, 0.7, 1.0])
def test_walls_never_touch_each_other(difficulty: float) -> None:
    """Stretches that are not neighbours leave space for both walls, so no loop crosses itself."""
    state, tracks = centre_lines(difficulty)
    apart = np.arange(at.POINTS)
    apart = np.minimum(np.abs(apart[:, None] - apart), at.POINTS - np.abs(apart[:, None] - apart))
    for s, track in zip(state, tracks, strict=True):
        away = np.hypot(*(track[:, None, :2] - track[None, :, :2]).transpose(2, 0, 1))
        walls = track[:, at.WIDE] + at.VERGE
        space = away - walls[:, None] - walls
        radius = RADIUS + TIGHTER * difficulty
        assert space[apart / s[at.PER_METRE] > np.pi * radius].min() > 0
        assert walls.max() < radius


@pytest.mark.parametrize("difficulty", [0.0, 1.0])
def test_widths_are_as_promised(difficulty: float) -> None:
    """The width varies at random around a mean that decreases with difficulty."""
    wide = centre_lines(difficulty)[1][:, :, at.WIDE]
    middle = BREADTH + NARROWER * difficulty
    assert wide.min() >= middle * (1 - SWELL) - 1e-4 and wide.max() <= middle * (1 + SWELL) + 1e-4
    assert wide.mean() == pytest.approx(middle, rel=0.01)


def test_tracks_are_all_different_and_go_both_ways_round() -> None:
    """All envs and episodes have different tracks; half of them turn left."""
    game = Kart(300, seed=1)
    first = game.tracks.copy()
    game.reset_envs(range(300), _rows(game))
    both = np.concatenate([first, game.tracks])
    assert len(np.unique(both[:, 7, at.X])) == 600
    left = (both[:, :, at.BEND].sum(1) > 0).mean()
    assert 0.42 < left < 0.58


def test_harder_tracks_turn_more_and_tighter() -> None:
    """With difficulty come more corners, tighter ones, and narrower asphalt."""
    turning, tightest, width = [], [], []
    for difficulty in (0.0, 0.5, 1.0):
        state, tracks = centre_lines(difficulty)
        turning.append((np.abs(tracks[:, :, at.BEND]).sum(1) / state[:, at.PER_METRE]).mean())
        tightest.append(np.abs(tracks[:, :, at.BEND]).max(1).mean())
        width.append(tracks[:, :, at.WIDE].mean())
    assert turning[0] < turning[1] - 0.5 < turning[2] - 1.5
    assert tightest[0] < tightest[1] * 0.8 < tightest[2] * 0.6 and width[0] > width[1] > width[2]


def test_a_track_depends_on_seed_env_and_episode_alone() -> None:
    """The next track does not depend on earlier laps, their starts or other envs."""
    games = [Kart(4, seed=6), Kart(4, seed=6, random_starts=1.0), Kart(1, seed=6, first=2)]
    out = _rows(games[0])
    for _ in range(5):
        games[0].step(np.ones((4, 2), np.float32), out)
    for game in games[:2]:
        game.reset_envs(range(4), out)
    games[2].reset_envs([0], _rows(games[2]))
    assert np.array_equal(games[0].tracks, games[1].tracks)
    assert np.array_equal(games[0].tracks[2], games[2].tracks[0])


def _rows(game: Kart):  # type: ignore[no-untyped-def]
    from slipstream.contracts import empty_rows

    return empty_rows(game.spec, game.envs)
