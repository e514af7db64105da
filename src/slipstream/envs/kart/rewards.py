"""Kart's reward terms: scalar functions of one env's state before and after a decision, and their weights.

A term is `term(before, after, clock) -> float`: `before` and `after` are state rows (see `layout`), `clock` is that of
after the decision, and no new lap has begun yet. A user's own term has the same form. Progress is a difference, so that
it sums to one for a lap however it is driven, and driving back takes off what driving on gave; what then decides is the
time that a lap takes.
"""

from __future__ import annotations

from slipstream.core.compile import Number, inlined
from slipstream.core.contracts import Array
from slipstream.envs.kart.layout import DONE, GRASS, LAPPED, OVER, STEER, THROTTLE, TICKS, F
from slipstream.envs.soccer.physics import DT, ONE, ZERO

TERMS = ("progress", "time", "off_track", "finish", "smooth")
T_PROGRESS, T_TIME, T_OFF_TRACK, T_FINISH, T_SMOOTH = range(5)

WEIGHTS: dict[str, dict[str, float]] = {
    "sparse": {"time": 0.1, "finish": 10.0},
    "dense": {"progress": 10.0, "time": 0.1, "off_track": 0.5, "finish": 1.0},
}
"""Default weights of each `rewards.mode`; a term that is not named has weight 0."""


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
    """1 for a lap that is done."""
    return ONE if clock[OVER] == LAPPED else ZERO


@inlined
def smooth(before: Array, after: Array, clock: Array) -> Number:
    """Minus the square of how far the controls were moved."""
    steer, throttle = after[STEER] - before[STEER], after[THROTTLE] - before[THROTTLE]
    return -(steer * steer + throttle * throttle)


@inlined
def value_terms(before: Array, after: Array, clock: Array, weights: Array, values: Array) -> None:
    """Write the weighted built-in terms of one car."""
    values[T_PROGRESS] = weights[T_PROGRESS] * progress(before, after, clock)
    values[T_TIME] = weights[T_TIME] * time(before, after, clock)
    values[T_OFF_TRACK] = weights[T_OFF_TRACK] * off_track(before, after, clock)
    values[T_FINISH] = weights[T_FINISH] * finish(before, after, clock)
    values[T_SMOOTH] = weights[T_SMOOTH] * smooth(before, after, clock)
