"""Tracks drawn ahead of time equal those drawn in the step, and stale ones are not taken."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from slipstream.contracts import Array, empty_rows
from slipstream.envs.kart.game import Kart
from slipstream.envs.kart.layout import (
    CLOCK_SIZE,
    COUNTER,
    DIFFICULTY,
    GAME,
    HARDEST,
    LENGTH,
    PER_METRE,
    POINTS,
    STATE_SIZE,
    TRACK_SIZE,
)
from slipstream.envs.kart.next_tracks import TAKEN, draw_ahead, move_point, take
from slipstream.envs.kart.tracks import SCRATCH
from slipstream.system.rng import next_game

TARGETS = np.full(1, -1)


@dataclass
class Ahead:
    """The next track of one env."""

    roads: Array = field(default_factory=lambda: np.zeros((1, POINTS, TRACK_SIZE), np.float32))
    facts: Array = field(default_factory=lambda: np.zeros((1, STATE_SIZE), np.float32))
    drawn: Array = field(default_factory=lambda: np.zeros((1, CLOCK_SIZE), np.int64))

    def draw(self, kart: Kart) -> None:
        """Draw the next track."""
        scratch = np.zeros((1, *SCRATCH))
        draw_ahead(0, kart.state, kart.clock, kart.tasks, TARGETS, scratch, self.roads, self.facts, self.drawn)

    def take(self, kart: Kart, level: int = -1) -> bool:
        """Begin the next lap on it, if it is the track of that lap."""
        s, clock = kart.state[0], kart.clock[0]
        clock[GAME] = next_game(clock[GAME])
        return bool(take(s, clock, level, self.facts[0], self.drawn[0]))


def test_the_track_is_that_of_the_next_lap() -> None:
    """Points, facts and RNG counter equal those of the lap that the env begins by itself."""
    kart, other, ahead = Kart(1, seed=3), Kart(1, seed=3), Ahead()
    ahead.draw(kart)
    assert ahead.take(kart)
    for index in range(POINTS):
        move_point(index, kart.tracks, ahead.roads, ahead.drawn)
    other.reset_envs([0], empty_rows(other.spec, 1))
    assert np.array_equal(kart.tracks, other.tracks)
    facts = [DIFFICULTY, LENGTH, PER_METRE]
    assert np.array_equal(kart.state[0, facts], other.state[0, facts])
    assert kart.clock[0, GAME] == other.clock[0, GAME]
    assert kart.clock[0, COUNTER] == other.clock[0, COUNTER] - 1  # the env has also drawn the start


def test_without_being_taken_nothing_moves() -> None:
    """A track drawn for the next lap does not change the present one."""
    kart, ahead = Kart(1), Ahead()
    before = kart.tracks.copy()
    ahead.draw(kart)
    move_point(0, kart.tracks, ahead.roads, ahead.drawn)
    assert ahead.drawn[0, TAKEN] == 0 and np.array_equal(kart.tracks, before)


@pytest.mark.parametrize("change", ["nothing drawn", "another game", "another level", "another difficulty"])
def test_a_track_of_something_else_is_not_taken(change: str) -> None:
    """After a restored snapshot, a new task or a new difficulty the old track is not taken."""
    kart, ahead = Kart(1), Ahead()
    if change != "nothing drawn":
        ahead.draw(kart)
    if change == "another game":
        kart.clock[0, GAME] = next_game(kart.clock[0, GAME])
    if change == "another difficulty":
        kart.state[0, HARDEST] = 0.5
    assert not ahead.take(kart, level=2 if change == "another level" else -1)
    assert ahead.drawn[0, TAKEN] == 0


def test_a_ready_track_is_not_drawn_again() -> None:
    """A ready track is kept; when the task has changed, it is drawn again."""
    kart, ahead = Kart(1), Ahead()
    ahead.draw(kart)
    ahead.roads[:] = 7
    ahead.draw(kart)
    assert (ahead.roads == 7).all()
    kart.tasks[:] = 1
    ahead.draw(kart)
    assert not (ahead.roads == 7).any()
    assert ahead.take(kart, level=1)
