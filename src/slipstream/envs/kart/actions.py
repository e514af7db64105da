"""Kart's three kinds of actions, each decoded to steer and throttle; and its keyboard controls."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np

from slipstream.contracts import ActionSpec, Array
from slipstream.envs.controls import driving_action
from slipstream.envs.kart.layout import STEER, THROTTLE, F
from slipstream.envs.soccer.actions import clip
from slipstream.system.numba_compile import Number, inlined

CONTROLS = ("steer", "throttle")
"""The columns of `TABLE`, and the parts of the other two kinds of actions; steer 1 is to the left."""
TABLE = np.array(list(product((-1, 0, 1), repeat=2)), np.float32)  # [9, 2]
SPECS = {
    "discrete": ActionSpec("discrete", sizes=(len(TABLE),)),
    "multi_discrete": ActionSpec("multi_discrete", sizes=(3, 3)),
    "continuous": ActionSpec("continuous", low=(-1.0, -1.0), high=(1.0, 1.0)),
}
KINDS = tuple(SPECS)
"""The index of a kind is its number in the kernels."""
DISCRETE, _, CONTINUOUS = range(3)


@inlined
def decode(action: Array, row: int, kind: int, table: Array, s: Array) -> None:
    """Write the controls of a car from its row of actions."""
    if kind == DISCRETE:
        index = min(max(int(action[row, 0]), 0), table.shape[0] - 1)
        s[STEER], s[THROTTLE] = table[index, 0], table[index, 1]
    else:
        shift = F(0.0) if kind == CONTINUOUS else F(1.0)
        s[STEER] = clip(F(action[row, 0]) - shift)
        s[THROTTLE] = clip(F(action[row, 1]) - shift)


@inlined
def nearest(control: Number) -> int:
    """Return which of -1, 0 and 1 is nearest."""
    return 1 if control > F(0.5) else (-1 if control < F(-0.5) else 0)


@inlined
def encode(steer: Number, throttle: Number, kind: int, action: Array, row: int) -> None:
    """Write the action nearest to the given controls."""
    if kind == CONTINUOUS:
        action[row, 0], action[row, 1] = clip(steer), clip(throttle)
    elif kind == DISCRETE:
        action[row, 0] = 3 * (nearest(steer) + 1) + nearest(throttle) + 1
    else:
        action[row, 0], action[row, 1] = nearest(steer) + 1, nearest(throttle) + 1


def keyboard_action(keys: Iterable[str], last: Array, action: ActionSpec) -> Array:
    """The action for the keys that are held: left and right steer, up accelerates, down brakes and reverses."""
    return driving_action(keys, CONTROLS, TABLE, action)
