"""Kart's observations: its own motion, its place on the track, and the track ahead in its own frame."""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.kart.layout import (
    AHEAD_SIZE,
    ALONG,
    BEND,
    DISTANCES,
    DONE,
    EDGE,
    HX,
    HY,
    INV_BEND,
    INV_SLIP,
    INV_SPIN,
    INV_TOP,
    INV_WIDE,
    LOOKS,
    O_AHEAD,
    O_ASPHALT,
    O_CONTROLS,
    O_EDGE,
    O_HEADING,
    O_LEFT,
    O_OFFSET,
    O_SPEED,
    O_SPIN,
    OFFSET,
    PER_METRE,
    POINTS,
    SEGMENT,
    SPIN,
    STEER,
    THROTTLE,
    TX,
    TY,
    VX,
    VY,
    WIDE,
    F,
    X,
    Y,
)
from slipstream.envs.soccer.physics import ONE, ZERO
from slipstream.system.numba_compile import Number, inlined

AHEAD = tuple(F(distance) for distance in DISTANCES)
NEAR = tuple(F(1.0 / (distance + 6.0)) for distance in DISTANCES)
"""The scale of each point's position, which keeps values close to [-1, 1]."""


@inlined
def observe_point(s: Array, track: Array, place: Number, scale: Number, out: Array, at: int) -> None:
    """Write the observation of the centre line at `place`, counted in points."""
    here = int(place)
    part = place - F(here)
    here = here - POINTS if here >= POINTS else here
    there = here + 1 if here + 1 < POINTS else 0
    dx = track[here, X] + (track[there, X] - track[here, X]) * part - s[X]
    dy = track[here, Y] + (track[there, Y] - track[here, Y]) * part - s[Y]
    hx, hy = s[HX], s[HY]
    out[at] = (dx * hx + dy * hy) * scale
    out[at + 1] = (dy * hx - dx * hy) * scale
    out[at + 2] = (track[here, BEND] + (track[there, BEND] - track[here, BEND]) * part) * INV_BEND
    out[at + 3] = (track[here, WIDE] + (track[there, WIDE] - track[here, WIDE]) * part) * INV_WIDE


@inlined
def observe(s: Array, clock: Array, track: Array, out: Array) -> None:
    """Write the observation of one car."""
    hx, hy, vx, vy = s[HX], s[HY], s[VX], s[VY]
    here, along = clock[SEGMENT], s[ALONG]
    there = here + 1 if here + 1 < POINTS else 0
    tx = track[here, TX] + (track[there, TX] - track[here, TX]) * along
    ty = track[here, TY] + (track[there, TY] - track[here, TY]) * along
    out[O_SPEED] = (vx * hx + vy * hy) * INV_TOP
    out[O_SPEED + 1] = (vy * hx - vx * hy) * INV_SLIP
    out[O_SPIN] = s[SPIN] * INV_SPIN
    out[O_OFFSET] = s[OFFSET] / s[EDGE]
    out[O_HEADING] = tx * hy - ty * hx
    out[O_HEADING + 1] = tx * hx + ty * hy
    out[O_ASPHALT] = ONE if abs(s[OFFSET]) <= s[EDGE] else ZERO
    out[O_LEFT] = ONE - s[DONE]
    out[O_EDGE] = s[EDGE] * INV_WIDE
    out[O_CONTROLS], out[O_CONTROLS + 1] = s[STEER], s[THROTTLE]
    place = F(here) + along
    for k in range(LOOKS):
        observe_point(s, track, place + AHEAD[k] * s[PER_METRE], NEAR[k], out, O_AHEAD + k * AHEAD_SIZE)
