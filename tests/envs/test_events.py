"""Events of a step: statistics that grow, goals of the team that scored, finished laps."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream import native
from slipstream.contracts import Array, EnvSpec, Rows, empty_rows
from slipstream.envs.events import counts_goals, find_events, playing_agents
from slipstream.envs.registry import EnvChoice, register_games
from slipstream.envs.render.scenes import state_labels
from slipstream.envs.soccer.game import game as soccer
from slipstream.vector.make import make_vector

Snapshot = dict[str, Array]


@pytest.fixture
def match() -> tuple[EnvSpec, Snapshot, Snapshot, Rows]:
    """Two equal snapshots of a 2v2 match and the rows of a step."""
    vector = make_vector(EnvChoice("soccer:2v2"), 1)
    rows = empty_rows(vector.spec, 1)
    vector.reset(rows)
    return vector.spec, vector.snapshot(), vector.snapshot(), rows


def column(env: str, snapshot: Snapshot, name: str) -> Array:
    """A column of the state by its name."""
    found: Array = snapshot["state"][:, state_labels(env, snapshot)["state"].index(name)]
    return found


def test_counts_and_goals(match: tuple[EnvSpec, Snapshot, Snapshot, Rows]) -> None:
    """A touch that is also a shot gives two events of that car, and the goal belongs to it."""
    spec, before, after, rows = match
    assert find_events(spec, before, after, rows, -1) == []
    for name in ("touches", "shots"):
        after["behaviour"][0, 1, spec.behaviours.index(name)] += 1
    assert find_events(spec, before, after, rows, 3) == [("touch", 1), ("shot", 1)]
    column("soccer:2v2", after, "score.0")[0] += 1
    assert find_events(spec, before, after, rows, 3)[-1] == ("goal", 1)


def test_whose_goal(match: tuple[EnvSpec, Snapshot, Snapshot, Rows]) -> None:
    """A goal belongs to the last toucher, or to the scoring team's first car if the other team touched last."""
    spec, before, after, rows = match
    column("soccer:2v2", after, "score.1")[0] += 1
    assert find_events(spec, before, after, rows, 3) == [("goal", 3)]
    assert find_events(spec, before, after, rows, 0) == [("goal", 2)]


def test_the_last_step(match: tuple[EnvSpec, Snapshot, Snapshot, Rows]) -> None:
    """In the last step of a match the events follow from the totals of the match."""
    spec, before, after, rows = match
    column("soccer:2v2", before, "score.0")[0] = 2
    before["behaviour"][0, 0, spec.behaviours.index("touches")] = 5
    rows.terminated[:] = 1
    rows.behaviour[:2, spec.behaviours.index("goals")] = 3
    rows.behaviour[0, spec.behaviours.index("touches")] = 5
    rows.behaviour[1, spec.behaviours.index("touches")] = 1
    assert find_events(spec, before, after, rows, 0) == [("touch", 1), ("goal", 1)]


def test_agents_without_a_car() -> None:
    """In a 1v1 match of the mixed variant the agents that play are 0 and 3, and events are theirs."""
    vector = make_vector(EnvChoice("soccer:mixed"), 1)
    rows = empty_rows(vector.spec, 1)
    vector.assign(np.array([vector.spec.tasks.index("1v1")]))
    vector.reset_envs([0], rows)
    before, after = vector.snapshot(), vector.snapshot()
    cars = 2 * int(column("soccer:mixed", before, "team_size")[0])
    assert cars == 2 and playing_agents(vector.spec, cars) == [0, 3]
    after["behaviour"][0, 3, vector.spec.behaviours.index("touches")] += 1
    column("soccer:mixed", after, "score.1")[0] += 1
    assert find_events(vector.spec, before, after, rows, 0) == [("touch", 3), ("goal", 3)]
    rows.terminated[:] = 1
    rows.behaviour[3, [vector.spec.behaviours.index(name) for name in ("touches", "goals")]] = 1
    assert find_events(vector.spec, before, after, rows, 0) == [("touch", 3), ("goal", 3)], "in the last step too"


def test_a_lap() -> None:
    """A finished lap is an event; a lap that ran out of time is not."""
    vector = make_vector(EnvChoice("kart"), 1)
    rows = empty_rows(vector.spec, 1)
    vector.reset(rows)
    snapshot = vector.snapshot()
    rows.terminated[0], rows.outcome[0] = 1, 1
    assert find_events(vector.spec, snapshot, snapshot, rows, -1) == [("lap", 0)]
    rows.terminated[0], rows.truncated[0], rows.outcome[0] = 0, 1, -1
    assert find_events(vector.spec, snapshot, snapshot, rows, -1) == []


def test_only_games_with_goals_have_a_score() -> None:
    """A game counts goals if it has such a statistic, or one whose events are goals."""

    def points(after: Sides, me: int) -> float:
        return after.points

    for event, expected in (("goal", True), ("point", False)):
        game = native.Game(f"counts_{event}", agents=2, max_decisions=3)
        for kind, one in (("reset", begin_sides), ("step", play_sides), ("observe", see_sides)):
            getattr(game, kind)(one)
        game.statistic(event=event)(points)
        register_games({game.name: game})
        assert counts_goals(game.spec()) == expected
    assert counts_goals(soccer.spec())


class Sides(native.State):
    """Points."""

    points: int


class Wait(native.Action):
    """Nothing to do."""

    nothing: int = native.choice("wait")


class Seen(native.Observation):
    """Points."""

    points: int


def begin_sides(s: Sides) -> None:
    """Begin without points."""
    s.points = 0


def play_sides(s: Sides, actions: list[Wait]) -> None:
    """Give a point."""
    s.points += 1


def see_sides(s: Sides, seen: Seen) -> None:
    """See the points."""
    seen.points = s.points
