"""Where a kart's lap begins: at rest on the start line, or at a random place and speed on the asphalt."""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.kart.columns import POINTS, State, Track
from slipstream.envs.kart.physics import locate
from slipstream.envs.soccer.kick_off import spread

ROLLING, ASKEW, INSIDE = 20.0, 0.5, 0.9
"""Random starts: largest speed in m/s, largest slope of the heading to the track, and share of the width in use."""


@native.function
def place(s: State, track: Track, point: int, offset: float, slope: float, speed: float) -> None:
    """Place a car `offset` metres left of a point of the track, with `slope` as tangent of its angle to the track."""
    spot = track.points[point]
    s.x, s.y = spot.x - spot.ty * offset, spot.y + spot.tx * offset
    scale = 1.0 / native.sqrt(1.0 + slope * slope)
    s.hx, s.hy = (spot.tx - spot.ty * slope) * scale, (spot.ty + spot.tx * slope) * scale
    s.vx, s.vy = s.hx * speed, s.hy * speed
    s.segment, s.passed = point, 0
    locate(s, track)


@native.function
def set_off(s: State, track: Track, rng: native.Random, random_starts: float) -> None:
    """Place the car on the start line or, with probability `random_starts`, anywhere."""
    if rng.uniform(0.0, 1.0) < random_starts:
        point = int(rng.uniform(0.0, 1.0) * POINTS)
        offset = spread(rng, track.points[point].half_width * INSIDE)
        slope = spread(rng, ASKEW)
        place(s, track, point, offset, slope, rng.uniform(0.0, 1.0) * ROLLING)
    else:
        place(s, track, 0, 0.0, 0.0, 0.0)
