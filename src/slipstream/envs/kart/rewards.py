"""Kart's reward terms; `game` registers them with their weights and groups.

Progress is a difference: it sums to one over a lap however it is driven, and driving backwards subtracts it again. The
lap time decides between finished laps. With `rewards.potential` progress is the difference of the potential `to_go`,
which is 0 after a finished lap; a lap that ran out of time is truncated and keeps its own.
"""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.kart.columns import POINTS, State
from slipstream.envs.soccer.physics import DT


@native.function
def lap_over(s: State) -> bool:
    """Whether the lap is finished."""
    return s.passed >= POINTS


def progress(before: State, after: State) -> float:
    """The share of the lap that was driven; telescoping."""
    return after.done - before.done


def to_go(s: State) -> float:
    """Minus the remaining share of the lap."""
    return s.done - 1.0


def time(before: State, after: State) -> float:
    """Minus the seconds that passed."""
    return (after.ticks_left - before.ticks_left) * DT


def off_track(after: State) -> float:
    """Minus the seconds on grass."""
    return -after.grass * DT


def finish(after: State) -> float:
    """1 for a finished lap."""
    return lap_over(after)


def smooth(before: State, after: State) -> float:
    """Minus the squared change of the controls."""
    steer, throttle = after.steer - before.steer, after.throttle - before.throttle
    return -(steer * steer + throttle * throttle)
