"""Kart's statistics of a lap: never rewarded, reported when the lap ends; `game` registers them."""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.kart.columns import State
from slipstream.envs.kart.rewards import lap_over
from slipstream.envs.soccer.physics import DT


@native.function
def velocity(s: State) -> float:
    """The speed of the car in m/s."""
    return native.sqrt(s.vx * s.vx + s.vy * s.vy)


@native.function
def elapsed(before: State, after: State) -> float:
    """The seconds of a decision; the one that ends the lap may have fewer than usual."""
    return (before.ticks_left - after.ticks_left) * DT


def seconds(after: State, settings: native.Settings) -> float:
    """The lap time."""
    return (settings.match_ticks - after.ticks_left) * DT


def progress(after: State) -> float:
    """The share of the lap that was driven, 1 if it was finished."""
    return 1.0 if lap_over(after) else after.done


def speed(before: State, after: State) -> float:
    """Mean speed in m/s."""
    return velocity(after) * elapsed(before, after)


def top_speed(after: State) -> float:
    """The highest speed after any decision in m/s."""
    return velocity(after)


def off_track(after: State) -> float:
    """The share of the time on grass."""
    return after.grass * DT


def slip(before: State, after: State) -> float:
    """Mean sideways speed in m/s."""
    return abs(after.vy * after.hx - after.vx * after.hy) * elapsed(before, after)
