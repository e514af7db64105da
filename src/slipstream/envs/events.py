"""Events of a step, such as touches, goals and finished laps, as replays list them.

A game finds its own events by `Game.events`; the functions here are what games have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.game import COUNTED, StepEvent
from slipstream.envs.registry import find_game


def find_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int
) -> list[StepEvent]:
    """The events of a step of one env, from its states before and after it.

    `last_touch` is the agent that touched the ball last before the step, or -1. Where the episode ended, `after` is
    already the next episode, and `rows` has the totals of the one that ended.
    """
    game = find_game(spec.name)
    if game is not None and game.events is not None:
        return game.events(spec, before, after, rows, last_touch)
    return counted_events(spec, before, after, rows, range(spec.agents))


def counts_goals(spec: EnvSpec) -> bool:
    """Whether a game has a score: a statistic `goals`, or one whose events are goals."""
    game = find_game(spec.name)
    counted = COUNTED if game is None else game.counted
    return "goals" in spec.behaviours or any(counted.get(name) == "goal" for name in spec.behaviours)


def counted_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, agents: Sequence[int]
) -> list[StepEvent]:
    """An event for each behaviour statistic that counts events and has grown, agent by agent.

    `agents` are those that play, and the state array `behaviour` has the statistics of all [1, agents, statistics].
    """
    events: list[StepEvent] = []
    if "behaviour" not in before:
        return events
    over = episode_over(rows)
    game = find_game(spec.name)
    counted = COUNTED if game is None else game.counted
    for agent in agents:
        for name, kind in counted.items():
            if name in spec.behaviours:
                column = spec.behaviours.index(name)
                count = rows.behaviour[agent, column] if over else after["behaviour"][0, agent, column]
                if count > before["behaviour"][0, agent, column]:
                    events.append(StepEvent(kind, agent))
    return events


def match_events(
    spec: EnvSpec,
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    rows: Rows,
    last_touch: int,
    *,
    cars: int,
    scores: tuple[Array, Array],
) -> list[StepEvent]:
    """The events of a match of two teams: counted events, and goals.

    `cars` of the agents play; `scores` are those of both teams before and after the step. A goal belongs to the agent
    of the scoring team that touched the ball last, or to the team's first agent if none did.
    """
    playing = playing_agents(spec, cars)
    events = counted_events(spec, before, after, rows, playing)
    touched = [*(event.agent for event in events if event.kind == "touch"), last_touch]
    over = episode_over(rows)
    for team in (0, 1):
        mates = [agent for agent in playing if spec.teams[agent] == team]
        goals = rows.behaviour[mates[0], spec.behaviours.index("goals")] if over else scores[1][team]
        if goals > scores[0][team]:
            events.append(StepEvent("goal", next((agent for agent in touched if agent in mates), mates[0])))
    return events


def playing_agents(spec: EnvSpec, cars: int) -> list[int]:
    """The agents that play in a match of so many cars; variants with mixed team sizes leave some agents out."""
    size, slots = cars // 2, spec.agents // 2
    return [*range(size), *range(slots, slots + size)]


def episode_over(rows: Rows) -> bool:
    """Whether the step ended the episode."""
    return bool((rows.terminated | rows.truncated).any())
