"""What happened in a step: touches, shots and saves as they are counted, goals by the score, finished laps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.rocket import layout as rocket
from slipstream.envs.soccer import layout as soccer

COUNTED = {"touches": "touch", "saves": "save", "shots": "shot"}
"""Behaviours that are counts of something that happens, and what that is called."""
LAYOUTS: Mapping[str, Any] = {"soccer": soccer, "rocket": rocket}
"""Games with goals, and what says where their states and clocks have what."""
Told = list[tuple[str, int]]
"""Kinds of events and the agents they belong to."""


def find_events(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], rows: Rows, last_touch: int
) -> Told:
    """The events of a step of one env, from its snapshots before and after; `last_touch` is who touched the ball last.

    Where the game ended, `after` is already the next one: `rows` tell how this one did.
    """
    over = bool((rows.terminated | rows.truncated).any())
    if spec.name.partition(":")[0] == "kart":
        return [("lap", 0)] if over and rows.outcome[0] > 0 else []
    told = _counted(spec, before, after, rows.behaviour if over else None)
    touched = [agent for kind, agent in told if kind == "touch"]
    if spec.name.partition(":")[0] in LAYOUTS:
        told += _goals(spec, before, after, rows.behaviour if over else None, [*touched, last_touch])
    return told


def _counted(spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], ended: Array | None) -> Told:
    """What was counted once more in this step, agent by agent."""
    told: Told = []
    for place, agent in enumerate(present(spec, before)):
        for name, kind in COUNTED.items():
            if name in spec.behaviours and "behaviour" in before:
                column = spec.behaviours.index(name)
                count = ended[agent, column] if ended is not None else after["behaviour"][0, place, column]
                if count > before["behaviour"][0, place, column]:
                    told.append((kind, agent))
    return told


def present(spec: EnvSpec, snapshot: Mapping[str, Array]) -> list[int]:
    """The agents that play, in the order in which the state holds them: in a mixed match some places are empty."""
    layout = LAYOUTS.get(spec.name.partition(":")[0])
    if layout is None:
        return list(range(spec.agents))
    size, room = layout.cars_in(snapshot["state"][0]) // 2, spec.agents // 2
    return [*range(size), *range(room, room + size)]


def _goals(
    spec: EnvSpec, before: Mapping[str, Array], after: Mapping[str, Array], ended: Array | None, touched: list[int]
) -> Told:
    """Goals belong to the car of the side that touched the ball last, or to its first one if none did."""
    told: Told = []
    column = LAYOUTS[spec.name.partition(":")[0]].SCORE
    for side in (0, 1):
        mates = [agent for agent in present(spec, before) if spec.teams[agent] == side]
        score = int(before["clock"][0, column + side])
        if ended is not None:
            now = float(ended[mates[0], spec.behaviours.index("goals")])
        else:
            now = float(after["clock"][0, column + side])
        if now > score:
            told.append(("goal", next((agent for agent in touched if agent in mates), mates[0])))
    return told
