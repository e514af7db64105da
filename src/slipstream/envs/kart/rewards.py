"""Kart's reward terms: scalar functions of one env's state before and after a decision, their weights and groups.

A term is `term(before, after, clock) -> float`: `before` and `after` are state rows (see `layout`), `clock` is the
clock after the decision, and no new lap has begun yet. A user's own term has the same form. Progress is a difference:
it sums to one over a lap however it is driven, and driving backwards subtracts it again. The lap time decides between
finished laps.

With `rewards.potential` progress is gamma * potential(after) - potential(before), with minus the remaining share of the
lap as potential. The potential after a finished lap is 0; a lap that ran out of time is truncated and keeps its own.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.kart.layout import DONE, GRASS, LAPPED, OVER, STEER, THROTTLE, TICKS, F
from slipstream.envs.rewards import RewardScheme
from slipstream.envs.soccer.physics import DT, ONE, ZERO
from slipstream.system.numba_compile import Number, inlined

TERMS = ("progress", "time", "off_track", "finish", "smooth")
T_PROGRESS, T_TIME, T_OFF_TRACK, T_FINISH, T_SMOOTH = range(5)

WEIGHTS: dict[str, dict[str, float]] = {
    "sparse": {"time": 0.1, "finish": 10.0},
    "dense": {"progress": 10.0, "time": 0.1, "off_track": 0.5, "finish": 1.0},
}
"""Default weights for each `rewards.mode`; terms that are not listed have weight 0."""
SCHEME = RewardScheme(
    TERMS,
    WEIGHTS,
    groups={"sparse": ("time", "finish"), "progress": ("progress",), "penalties": ("off_track", "smooth")},
    potentials=("progress",),
)


@inlined
def progress(before: Array, after: Array, clock: Array) -> Number:
    """The share of the lap that was driven; telescoping."""
    return after[DONE] - before[DONE]


@inlined
def time(before: Array, after: Array, clock: Array) -> Number:
    """Minus the seconds that passed."""
    return -F(clock[TICKS]) * DT


@inlined
def off_track(before: Array, after: Array, clock: Array) -> Number:
    """Minus the seconds on grass."""
    return -after[GRASS] * DT


@inlined
def finish(before: Array, after: Array, clock: Array) -> Number:
    """1 for a finished lap."""
    return ONE if clock[OVER] == LAPPED else ZERO


@inlined
def smooth(before: Array, after: Array, clock: Array) -> Number:
    """Minus the squared change of the controls."""
    steer, throttle = after[STEER] - before[STEER], after[THROTTLE] - before[THROTTLE]
    return -(steer * steer + throttle * throttle)


@inlined
def value_terms(before: Array, after: Array, clock: Array, values: Array) -> None:
    """Write the built-in terms of one car."""
    values[T_PROGRESS] = progress(before, after, clock)
    values[T_TIME] = time(before, after, clock)
    values[T_OFF_TRACK] = off_track(before, after, clock)
    values[T_FINISH] = finish(before, after, clock)
    values[T_SMOOTH] = smooth(before, after, clock)


@inlined
def shape_terms(before: Array, after: Array, discount: Number, values: Array) -> None:
    """Write the potential-based term; `discount` is gamma, or 0 after the end."""
    values[T_PROGRESS] = discount * (after[DONE] - ONE) - (before[DONE] - ONE)
