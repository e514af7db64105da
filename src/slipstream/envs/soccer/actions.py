"""Soccer's three kinds of actions, each decoded to throttle, steer, boost and drift; and its keyboard controls."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slipstream.contracts import ActionSpec, Array
from slipstream.envs.controls import driving_action
from slipstream.envs.soccer.layout import BOOSTING, DRIFTING, STEER, THROTTLE, F
from slipstream.envs.soccer.physics import ONE, ZERO
from slipstream.system.numba_compile import Number, inlined

CONTROLS = ("throttle", "steer", "boost", "drift")
"""The columns of `TABLE`, and the parts of the other two kinds of actions; steer 1 is to the left."""
# throttle, boost, drift: reverse, coast, forward, boost, and the last two drifting
_PEDALS = ((-1, 0, 0), (0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1))
PEDALS = len(_PEDALS)
TABLE = np.array([(t, s, b, d) for s in (-1, 0, 1) for t, b, d in _PEDALS], np.float32)  # [18, 4]

SPECS = {
    "discrete": ActionSpec("discrete", sizes=(len(TABLE),)),
    "multi_discrete": ActionSpec("multi_discrete", sizes=(3, 3, 2, 2)),
    "continuous": ActionSpec("continuous", low=(-1.0,) * 4, high=(1.0,) * 4),
}
KINDS = tuple(SPECS)
"""The index of a kind is its number in the kernels."""
DISCRETE, MULTI_DISCRETE, CONTINUOUS = range(3)


@inlined
def clip(x: Number) -> Number:
    """Return x in [-1, 1], and 0 for NaN."""
    return min(max(x, -ONE), ONE) if x == x else ZERO


@inlined
def decode(action: Array, row: int, kind: int, table: Array, s: Array, c: int) -> None:
    """Write the controls of the car at column `c` from its row of actions."""
    if kind == DISCRETE:
        index = min(max(int(action[row, 0]), 0), table.shape[0] - 1)
        for k in range(4):
            s[c + THROTTLE + k] = table[index, k]
    elif kind == MULTI_DISCRETE:
        s[c + THROTTLE] = clip(F(action[row, 0] - 1))
        s[c + STEER] = clip(F(action[row, 1] - 1))
        s[c + BOOSTING] = clip(F(action[row, 2]))
        s[c + DRIFTING] = clip(F(action[row, 3]))
    else:
        s[c + THROTTLE] = clip(F(action[row, 0]))
        s[c + STEER] = clip(F(action[row, 1]))
        s[c + BOOSTING] = ONE if action[row, 2] > 0 else ZERO
        s[c + DRIFTING] = ONE if action[row, 3] > 0 else ZERO


@inlined
def encode(throttle: Number, steer: Number, boost: Number, drift: Number, kind: int, action: Array, row: int) -> None:
    """Write the action nearest to the given controls."""
    t = 1 if throttle > F(0.33) else (-1 if throttle < F(-0.33) else 0)
    w = 1 if steer > F(0.33) else (-1 if steer < F(-0.33) else 0)
    b, d = (1 if boost > ZERO else 0), (1 if drift > ZERO else 0)
    if kind == DISCRETE:
        pedal = t + 1
        if t == 1:
            pedal += b + 2 * d
        action[row, 0] = (w + 1) * PEDALS + pedal
    elif kind == MULTI_DISCRETE:
        action[row, 0], action[row, 1], action[row, 2], action[row, 3] = t + 1, w + 1, b, d
    else:
        action[row, 0], action[row, 1] = throttle, steer
        action[row, 2], action[row, 3] = (ONE if b else -ONE), (ONE if d else -ONE)


def keyboard_action(keys: Iterable[str], last: Array, action: ActionSpec) -> Array:
    """The action for the keys that are held: arrows drive, space boosts, x drifts."""
    return driving_action(keys, CONTROLS, TABLE, action)
