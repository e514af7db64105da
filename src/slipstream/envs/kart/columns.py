"""Kart's columns and dimensions.

Lengths are in metres. A lap goes from point 0 of the track to point 1 and so on.
"""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.envs import native
from slipstream.envs.options import check_range
from slipstream.errors import ConfigError

TICK_HZ = 60
POINTS = 192
"""Points of the centre line, at equal distances."""
LEVELS = 5
"""Number of tasks: equal parts of an env's range of difficulties."""
VERGE = 4.0
"""Width of the grass on each side, up to the wall of tyres."""
TOP_SPEED = 33.0
"""Speed at full throttle, in m/s."""
DISTANCES = (4.0, 8.0, 13.0, 18.0, 24.0, 31.0, 38.0, 46.0, 55.0, 65.0, 76.0, 88.0)
"""Distances of the points ahead that a car sees; the last is beyond every braking distance."""


class State(native.State):
    """A car and its lap; the controls are those of the last decision."""

    x: float
    y: float
    vx: float
    vy: float
    hx: float
    hy: float
    """Heading, a unit vector."""
    spin: float
    """Angular velocity in rad/s, counter-clockwise."""
    steer: float
    throttle: float
    along: float
    """Position between the point behind the car (0) and the next one (1)."""
    offset: float
    """Distance to the left of the centre line."""
    edge: float
    """Half the width of the asphalt there."""
    done: float
    """Share of the lap since the start; negative behind it."""
    grass: float
    """Ticks of this decision off the asphalt."""
    segment: int
    """The point of the track behind the car."""
    passed: int
    """Points passed since the start, minus points passed backwards."""
    ticks_left: int
    """Ticks until the time limit."""


class Point(native.Record):
    """A point of the centre line, and the direction of the line there, a unit vector."""

    x: float
    y: float
    tx: float
    ty: float
    bend: float
    """Curvature in 1/m, positive to the left."""
    half_width: float
    """Half the width of the asphalt."""


class Track(native.World):
    """The track of a lap."""

    points: list[Point] = native.records(POINTS)
    length: float
    """Length of the centre line."""
    per_metre: float
    """Points per metre."""
    difficulty: float
    """From 0 to 1."""


class Action(native.Action):
    """What a car does; a throttle below 0 brakes and then reverses."""

    steer: float = native.control(right=-1, straight=0, left=1)
    throttle: float = native.control(brake=-1, coast=0, accelerate=1)


class OwnFrame(native.Record):
    """A vector in the frame of the car."""

    ahead: float
    left: float


class Heading(native.Record):
    """The angle from the centre line to the heading."""

    sine: float
    cosine: float


class SeenPoint(OwnFrame):
    """A point of the centre line, from the car."""

    curvature: float
    half_width: float


class Seen(native.Observation):
    """What a car sees, in units that keep the numbers close to [-1, 1]; `observation` has the scales."""

    speed: OwnFrame
    spin: float
    offset: float
    """From the centre line, relative to half the width of the asphalt."""
    heading: Heading
    on_asphalt: float
    lap_left: float
    """The remaining share of the lap."""
    half_width: float
    steer: float
    throttle: float
    ahead: list[SeenPoint] = native.records(len(DISTANCES), names=[f"{distance:g}m" for distance in DISTANCES])


class Level(native.Task):
    """A part of the env's range of difficulties; without a task the whole of it."""

    number: int = 0
    share: float = 1.0


class Settings(native.Settings):
    """`env.options`: the range of difficulties, or one difficulty instead."""

    difficulty: float = -1.0
    difficulty_low: float = 0.0
    difficulty_high: float = 1.0

    def check(self, given: Mapping[str, float]) -> None:
        """Raise a ConfigError for a difficulty out of range, and for options that exclude each other."""
        for name, value in given.items():
            check_range(f"env.options.{name}", value, 0, 1)
        if "difficulty" in given and len(given) > 1:
            raise ConfigError(
                "`env.options.difficulty` excludes the other options.", "give it, or a low and a high one"
            )
        if self.difficulty_low > self.difficulty_high:
            span = f"from {self.difficulty_low:.3g} to {self.difficulty_high:.3g}"
            raise ConfigError(f"A difficulty {span} is out of range.", "give 0 <= low <= high <= 1.")
