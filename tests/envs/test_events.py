"""Events of a step: what is counted once more, goals for the side that scored, a lap when it is done."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.contracts import Array, EnvSpec, Rows, empty_rows
from slipstream.envs.events import find_events, present
from slipstream.envs.registry import EnvChoice
from slipstream.envs.soccer import layout as at
from slipstream.vector.make import make_vector

Snapshot = dict[str, Array]


@pytest.fixture
def match() -> tuple[EnvSpec, Snapshot, Snapshot, Rows]:
    """Two snapshots of a match of two against two, alike, and the rows of a step."""
    vector = make_vector(EnvChoice("soccer:2v2"), 1)
    return vector.spec, vector.snapshot(), vector.snapshot(), empty_rows(vector.spec, 1)


def test_counts_and_goals(match: tuple[EnvSpec, Snapshot, Snapshot, Rows]) -> None:
    """A touch that is a shot are two events of that car; its goal is its own."""
    spec, before, after, rows = match
    assert find_events(spec, before, after, rows, -1) == []
    for name in ("touches", "shots"):
        after["behaviour"][0, 1, spec.behaviours.index(name)] += 1
    assert find_events(spec, before, after, rows, 3) == [("touch", 1), ("shot", 1)]
    after["clock"][0, at.SCORE] += 1
    assert find_events(spec, before, after, rows, 3)[-1] == ("goal", 1)


def test_whose_goal(match: tuple[EnvSpec, Snapshot, Snapshot, Rows]) -> None:
    """Without a touch now it is of who touched last, and if that was the other side, of the scorers' first car."""
    spec, before, after, rows = match
    after["clock"][0, at.SCORE + 1] += 1
    assert find_events(spec, before, after, rows, 3) == [("goal", 3)]
    assert find_events(spec, before, after, rows, 0) == [("goal", 2)]


def test_the_last_step(match: tuple[EnvSpec, Snapshot, Snapshot, Rows]) -> None:
    """Where the match ended, the snapshot is of the next one: what was counted in all tells."""
    spec, before, after, rows = match
    before["clock"][0, at.SCORE] = 2
    before["behaviour"][0, 0, spec.behaviours.index("touches")] = 5
    rows.terminated[:] = 1
    rows.behaviour[:2, spec.behaviours.index("goals")] = 3
    rows.behaviour[0, spec.behaviours.index("touches")] = 5
    rows.behaviour[1, spec.behaviours.index("touches")] = 1
    assert find_events(spec, before, after, rows, 0) == [("touch", 1), ("goal", 1)]


def test_places_without_a_car() -> None:
    """In a mixed match of one against one the two cars are agents 0 and 3."""
    vector = make_vector(EnvChoice("soccer:mixed"), 1)
    rows = empty_rows(vector.spec, 1)
    vector.assign(np.array([vector.spec.tasks.index("1v1")]))
    vector.reset_envs([0], rows)
    assert present(vector.spec, vector.snapshot()) == [0, 3]


def test_a_lap() -> None:
    """It is told when it is done, not when its time is over."""
    vector = make_vector(EnvChoice("kart"), 1)
    rows, snapshot = empty_rows(vector.spec, 1), vector.snapshot()
    rows.terminated[0], rows.outcome[0] = 1, 1
    assert find_events(vector.spec, snapshot, snapshot, rows, -1) == [("lap", 0)]
    rows.terminated[0], rows.truncated[0], rows.outcome[0] = 0, 1, -1
    assert find_events(vector.spec, snapshot, snapshot, rows, -1) == []
