"""A scripted player: walks to the nearest useful altar or mine, otherwise straight on."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import ActionSpec, Array
from slipstream.envs.metta.worlds import WORLDS, stage
from slipstream.system.numba_compile import compiled

ABSENT = 255
NORTH, SOUTH, WEST, EAST = 1, 2, 3, 4
DOWN, RIGHT = (0, -1, 1, 0, 0), (0, 0, 0, -1, 1)
"""The row and column offset of each action."""
SIDE = 16
"""The side of the grid that an agent's window is written into."""


@compiled
def walk(tokens: Array, features: Array, tags: Array, seen: Array, stock: Array, middle: int, out: Array) -> None:
    """Write the action of each row of tokens [rows, tokens, 3].

    `features` are the ids of tag, hearts, ore and last action; `tags` those of altar and mine. `seen` and `stock`
    [side * side] are buffers: 1 + the tag of the object in each cell, and its hearts.
    """
    for row in range(tokens.shape[0]):
        seen[:] = 0
        stock[:] = 0
        ore, last = 0, 0
        for k in range(tokens.shape[1]):
            place, feature, value = int(tokens[row, k, 0]), int(tokens[row, k, 1]), int(tokens[row, k, 2])
            if place == ABSENT:
                break
            if feature == features[3]:
                last = value
            elif feature == features[2] and place == middle:
                ore = value
            elif feature == features[0]:
                seen[place] = 1 + value
            elif feature == features[1]:
                stock[place] = value
        best, target = 1000, -1
        for place in range(seen.shape[0]):
            far = abs(place // SIDE - middle // SIDE) + abs(place % SIDE - middle % SIDE)
            altar, mine = seen[place] == 1 + tags[0], seen[place] == 1 + tags[1]
            if far < best and ((altar and (stock[place] > 0 or ore > 0)) or (mine and ore == 0)):
                best, target = far, place
        out[row, 0] = _head(seen, middle, target, last, row)


@compiled
def _head(seen: Array, middle: int, target: int, last: int, row: int) -> int:
    """The direction to a cell, around obstacles next to the agent; without a target, straight on, turning at walls."""
    if target >= 0:
        down, right = target // SIDE - middle // SIDE, target % SIDE - middle % SIDE
        along = SOUTH if down > 0 else NORTH
        across = EAST if right > 0 else WEST
        first, second = (along, across) if abs(down) >= abs(right) else (across, along)
        if abs(down) + abs(right) == 1 or _free(seen, middle, first):
            return first
        if down != 0 and right != 0 and _free(seen, middle, second):
            return second
        last = second if last == first else last
    if last > 0 and _free(seen, middle, last):
        return last
    for turn in range(4):
        way = 1 + (last + row + turn) % 4
        if _free(seen, middle, way):
            return way
    return 0


@compiled
def _free(seen: Array, middle: int, way: int) -> bool:
    return bool(seen[middle + SIDE * DOWN[way] + RIGHT[way]] == 0)


def act(name: str, obs: Array, action: ActionSpec, out: Array) -> None:
    """Write the player's actions for observations."""
    made = stage(WORLDS["arena"])
    features = np.array([made.features[word] for word in ("tag", "inv:heart", "inv:ore", "last_action")])
    tags = np.array([made.tags["type:altar"], made.tags["type:mine"]])
    tokens = obs[:, : obs.shape[1] // 3 * 3].reshape(len(obs), -1, 3)
    buffers = np.zeros((2, SIDE * SIDE), np.int64)
    walk(tokens, features, tags, buffers[0], buffers[1], _middle(tokens, made.features["agent_id"]), out)


def _middle(tokens: Array, agent: int) -> int:
    """The cell of the agent itself: the first cell with an agent id, since tokens are sorted by distance."""
    for place, feature, _ in tokens[0].tolist():
        if feature == agent and place != ABSENT:
            return int(place)
    return 0
