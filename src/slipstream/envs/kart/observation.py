"""Kart's observation: its own motion, its place on the track, and the track ahead in its own frame."""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.kart.columns import DISTANCES, POINTS, Seen, SeenPoint, State, Track
from slipstream.envs.kart.physics import lerp, next_point

INV_TOP, INV_SLIP, INV_SPIN = 1.0 / 33.0, 1.0 / 8.0, 1.0 / 3.0
INV_WIDE, INV_BEND = 1.0 / 8.0, 12.0
NEAR = tuple(1.0 / (distance + 6.0) for distance in DISTANCES)
"""The scale of the position of each point ahead."""


@native.function
def observe_point(s: State, track: Track, place: float, scale: float, seen: SeenPoint) -> None:
    """Write the observation of the centre line at `place`, counted in points."""
    here = int(place)
    share = place - here
    here = here - POINTS if here >= POINTS else here
    a = track.points[here]
    b = track.points[next_point(here)]
    dx, dy = lerp(a.x, b.x, share) - s.x, lerp(a.y, b.y, share) - s.y
    seen.ahead = (dx * s.hx + dy * s.hy) * scale
    seen.left = (dy * s.hx - dx * s.hy) * scale
    seen.curvature = lerp(a.bend, b.bend, share) * INV_BEND
    seen.half_width = lerp(a.half_width, b.half_width, share) * INV_WIDE


@native.function
def observe_car(s: State, track: Track, seen: Seen) -> None:
    """Write the observation of a car."""
    hx, hy, vx, vy = s.hx, s.hy, s.vx, s.vy
    a = track.points[s.segment]
    b = track.points[next_point(s.segment)]
    tx, ty = lerp(a.tx, b.tx, s.along), lerp(a.ty, b.ty, s.along)
    seen.speed.ahead = (vx * hx + vy * hy) * INV_TOP
    seen.speed.left = (vy * hx - vx * hy) * INV_SLIP
    seen.spin = s.spin * INV_SPIN
    seen.offset = s.offset / s.edge
    seen.heading.sine = tx * hy - ty * hx
    seen.heading.cosine = tx * hx + ty * hy
    seen.on_asphalt = abs(s.offset) <= s.edge
    seen.lap_left = 1.0 - s.done
    seen.half_width = s.edge * INV_WIDE
    seen.steer, seen.throttle = s.steer, s.throttle
    place = s.segment + s.along
    for k in range(len(seen.ahead)):
        observe_point(s, track, place + DISTANCES[k] * track.per_metre, NEAR[k], seen.ahead[k])
