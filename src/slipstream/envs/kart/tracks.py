"""Kart's tracks: random closed loops, with corners no tighter than their difficulty allows.

A loop starts as a random polygon that is star-shaped around its middle and therefore does not cross itself. Each corner
is rounded to a circular arc of random radius, as large as its sides allow, and the loop is smoothed, so that curvature
is continuous. The polygon is shrunk towards a regular one, which always fits, until no corner is too tight and no two
stretches come so close that their walls would touch. Sines come from a table computed by + - * / alone, so every
machine draws the same tracks to the bit.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.envs.kart.layout import (
    BEND,
    DIFFICULTY,
    EASIEST,
    HARDEST,
    LENGTH,
    LEVELS,
    PER_METRE,
    POINTS,
    TX,
    TY,
    VERGE,
    WIDE,
    F,
    X,
    Y,
)
from slipstream.envs.soccer.physics import ONE
from slipstream.envs.soccer.rng import draw, spread
from slipstream.system.numba_compile import Number, compiled, inlined

D = np.float64
# In m: the value at difficulty 0, and the change to difficulty 1
SHORTEST, LONGER, SPREAD = 380.0, 170.0, 120.0
RADIUS, TIGHTER = 30.0, -18.0
BREADTH, NARROWER, SWELL = 6.0, -1.8, 0.15
BETWEEN = 3.0
"""Safety distance between the walls of two stretches, in m."""
FEWEST, MORE = 4, 7
"""Corners at difficulty 0, and the change to difficulty 1; up to RANDOM_MORE are added at random."""
RANDOM_MORE = 2
MOST = FEWEST + MORE + RANDOM_MORE
WAVINESS, TWIST, STRETCH = 0.75, 0.35, 0.5
"""Random variation of the corners' distance from the middle and of their angle (as a share of the angle between them),
and of the loop's length to width; all are shrunk together."""
SHRINK = 0.88
TRIES = 40
SAFE = 1.05
"""Margin on the radius, since smoothing makes a wide corner slightly tighter."""

TURN = 1024
"""Angles in the table."""
RAW = 256
"""Points of a loop during construction."""
FACETS = 16
"""Line segments of a rounded corner before smoothing."""
PASSES = 4
"""Smoothing passes."""
STRIDE = 6
"""Every STRIDE-th of those points is checked for distance from the others."""

FARTHER, ASIDE, ROUND, SPOT_X, SPOT_Y, UNIT_X, UNIT_Y, SPAN, LINE_X, LINE_Y, AT_X, AT_Y, GO_X, GO_Y, WAY = range(15)
"""Columns of the workspace. Of each corner: random numbers for distance, direction and roundness, its position, and the
direction and length of the side after it. Then the line through all segments, and the loop's points: position, step
to the next point, and distance along the loop."""
SCRATCH = max(RAW, MOST * (FACETS + 1)), 15
"""Shape of the workspace."""


def _circle(points: int) -> Array:
    """Sines of a full turn by Taylor series."""
    table = np.zeros(points)
    for k in range(points):
        angle = 2.0 * 3.141592653589793 * (k if 2 * k <= points else k - points) / points
        term = total = angle
        for n in range(1, 20):
            term *= -angle * angle / ((2 * n) * (2 * n + 1))
            total += term
        table[k] = total
    return table


SINES = _circle(TURN)


@inlined
def sine(angle: int) -> Number:
    """Return the sine of an angle in 1/TURN turns; add TURN // 4 for the cosine."""
    return SINES[angle & (TURN - 1)]


@inlined
def length_of(x: Number, y: Number) -> Number:
    """Return the length of a vector, in double precision."""
    return math.sqrt(x * x + y * y)


@inlined
def set_corners(scratch: Array, corners: int, size: Number, stretch: Number, length: Number) -> Number:
    """Place a polygon of this length; return the radius of the tightest corner, all rounded as far as possible."""
    for k in range(corners):
        angle = int(TURN * (k + TWIST * size * scratch[k, ASIDE]) / corners)
        away = 1.0 + WAVINESS * size * scratch[k, FARTHER]
        scratch[k, SPOT_X] = away * sine(angle + TURN // 4) * (1.0 + size * stretch)
        scratch[k, SPOT_Y] = away * sine(angle)
    total = 0.0
    for k in range(corners):
        after = (k + 1) % corners
        dx, dy = scratch[after, SPOT_X] - scratch[k, SPOT_X], scratch[after, SPOT_Y] - scratch[k, SPOT_Y]
        span = length_of(dx, dy)
        scratch[k, UNIT_X], scratch[k, UNIT_Y], scratch[k, SPAN] = dx / span, dy / span, span
        total += span
    scale = length / total
    least = 1e9
    for k in range(corners):
        scratch[k, SPOT_X] *= scale
        scratch[k, SPOT_Y] *= scale
        scratch[k, SPAN] *= scale
    for k in range(corners):
        least = min(least, reach(scratch, corners, k) / half_tangent(scratch, corners, k))
    return least


@inlined
def reach(scratch: Array, corners: int, k: int) -> Number:
    """Return how far before a corner its arc may begin: half of the shorter side."""
    return 0.5 * min(scratch[k, SPAN], scratch[(k - 1) % corners, SPAN])


@inlined
def half_tangent(scratch: Array, corners: int, k: int) -> Number:
    """Return the tangent of half the turning angle at a corner, at least a small positive number."""
    before = (k - 1) % corners
    ax, ay, bx, by = scratch[before, UNIT_X], scratch[before, UNIT_Y], scratch[k, UNIT_X], scratch[k, UNIT_Y]
    return max(abs(ax * by - ay * bx) / max(1.0 + ax * bx + ay * by, 1e-6), 1e-3)


@inlined
def round_corners(scratch: Array, corners: int, radius: Number) -> int:
    """Write a line that follows an arc of segments at each corner; return its number of points."""
    places = 0
    for k in range(corners):
        before = (k - 1) % corners
        ax, ay, bx, by = scratch[before, UNIT_X], scratch[before, UNIT_Y], scratch[k, UNIT_X], scratch[k, UNIT_Y]
        tangent = half_tangent(scratch, corners, k)
        cut = max(reach(scratch, corners, k) * scratch[k, ROUND], min(radius * tangent, reach(scratch, corners, k)))
        wide = cut / tangent
        left = 1.0 if ax * by - ay * bx > 0.0 else -1.0
        x, y = scratch[k, SPOT_X] - ax * cut, scratch[k, SPOT_Y] - ay * cut
        mx, my = x - ay * wide * left, y + ax * wide * left  # the middle of the circle
        # Directions between the two sides by bisection: sums of neighbours need no angles.
        scratch[places, LINE_X], scratch[places, LINE_Y] = ax, ay
        scratch[places + FACETS, LINE_X], scratch[places + FACETS, LINE_Y] = bx, by
        gap = FACETS
        while gap > 1:
            for first in range(places, places + FACETS, gap):
                ux = scratch[first, LINE_X] + scratch[first + gap, LINE_X]
                uy = scratch[first, LINE_Y] + scratch[first + gap, LINE_Y]
                span = length_of(ux, uy)
                scratch[first + gap // 2, LINE_X], scratch[first + gap // 2, LINE_Y] = ux / span, uy / span
            gap //= 2
        for place in range(places, places + FACETS + 1):
            ux, uy = scratch[place, LINE_X], scratch[place, LINE_Y]
            scratch[place, LINE_X], scratch[place, LINE_Y] = mx + uy * wide * left, my - ux * wide * left
        places += FACETS + 1
    return places


@inlined
def follow(scratch: Array, places: int) -> None:
    """Write the points of the loop at equal distances along the line."""
    total = 0.0
    for k in range(places):
        after = (k + 1) % places
        dx, dy = scratch[after, LINE_X] - scratch[k, LINE_X], scratch[after, LINE_Y] - scratch[k, LINE_Y]
        total += length_of(dx, dy)
    k, begin, span = -1, 0.0, 0.0
    dx, dy = 0.0, 0.0
    for point in range(RAW):
        target = total * point / RAW
        while k < 0 or (begin + span < target and k < places - 1):
            k += 1
            begin += span
            after = (k + 1) % places
            dx, dy = scratch[after, LINE_X] - scratch[k, LINE_X], scratch[after, LINE_Y] - scratch[k, LINE_Y]
            span = length_of(dx, dy)
        part = (target - begin) / max(span, 1e-9)
        scratch[point, AT_X] = scratch[k, LINE_X] + dx * part
        scratch[point, AT_Y] = scratch[k, LINE_Y] + dy * part


@inlined
def smooth(scratch: Array) -> Number:
    """Smooth the loop, then write steps and distances along it; return its length."""
    for _ in range(PASSES):
        for column in range(AT_X, AT_Y + 1):
            first, last = scratch[0, column], scratch[RAW - 1, column]
            for k in range(RAW):
                here = scratch[k, column]
                after = scratch[k + 1, column] if k < RAW - 1 else first
                scratch[k, column] = 0.5 * here + 0.25 * (last + after)
                last = here
    for k in range(RAW):
        before, after = (k - 1) & (RAW - 1), (k + 1) & (RAW - 1)
        scratch[k, GO_X] = 0.5 * (scratch[after, AT_X] - scratch[before, AT_X])
        scratch[k, GO_Y] = 0.5 * (scratch[after, AT_Y] - scratch[before, AT_Y])
    way = 0.0
    for k in range(RAW):
        after = (k + 1) & (RAW - 1)
        scratch[k, WAY] = way
        gx, gy, nx, ny = scratch[k, GO_X], scratch[k, GO_Y], scratch[after, GO_X], scratch[after, GO_Y]
        mx = 1.5 * (scratch[after, AT_X] - scratch[k, AT_X]) - 0.25 * (gx + nx)
        my = 1.5 * (scratch[after, AT_Y] - scratch[k, AT_Y]) - 0.25 * (gy + ny)
        way += (length_of(gx, gy) + length_of(nx, ny) + 4.0 * length_of(mx, my)) / 6.0  # Simpson's rule
    return way


@inlined
def apart(scratch: Array, length: Number, gap: Number) -> bool:
    """Return whether all stretches that are not neighbours keep this distance."""
    for a in range(0, RAW, STRIDE):
        for b in range(a + STRIDE, RAW, STRIDE):
            dx, dy = scratch[b, AT_X] - scratch[a, AT_X], scratch[b, AT_Y] - scratch[a, AT_Y]
            if dx * dx + dy * dy < gap * gap:
                between = scratch[b, WAY] - scratch[a, WAY]
                if min(between, length - between) > 1.6 * gap:
                    return False
    return True


@inlined
def straightest(scratch: Array) -> int:
    """Return the point with the least curvature around it, where the lap begins."""
    best, chosen = 9.0, 0
    for k in range(0, RAW, 4):
        a, b = (k - 4) & (RAW - 1), (k + 8) & (RAW - 1)
        ax, ay, bx, by = scratch[a, GO_X], scratch[a, GO_Y], scratch[b, GO_X], scratch[b, GO_Y]
        turn = abs(ax * by - ay * bx) / (length_of(ax, ay) * length_of(bx, by))
        if turn < best:
            best, chosen = turn, k
    return chosen


@inlined
def resample(scratch: Array, first: int, whole: Number, mirror: Number, track: Array) -> None:
    """Write the points of the track at equal distances along the smooth curve through the loop, from `first` on."""
    k, turns = first, 0
    for point in range(POINTS):
        target = scratch[first, WAY] + whole * point / POINTS
        after = (k + 1) & (RAW - 1)
        end = (scratch[after, WAY] if after else whole) + turns * whole
        while end < target:
            turns += 0 if after else 1
            k = after
            after = (k + 1) & (RAW - 1)
            end = (scratch[after, WAY] if after else whole) + turns * whole
        begin = scratch[k, WAY] + turns * whole
        gx, gy, nx, ny = scratch[k, GO_X], scratch[k, GO_Y], scratch[after, GO_X], scratch[after, GO_Y]
        pace, next_pace = length_of(gx, gy), length_of(nx, ny)
        # The speed along the curve changes linearly from one point to the next: solve for the share of the distance.
        share = (target - begin) / (end - begin)
        distance = share * 0.5 * (pace + next_pace)
        for _ in range(3):
            share = distance / (pace + 0.5 * (next_pace - pace) * share)
        rest = 1.0 - share
        near, far = rest * rest * (1.0 + 2.0 * share), share * share * (3.0 - 2.0 * share)
        out, back = share * rest * rest, share * share * rest
        track[point, X] = scratch[k, AT_X] * near + scratch[after, AT_X] * far + gx * out - nx * back
        track[point, Y] = (scratch[k, AT_Y] * near + scratch[after, AT_Y] * far + gy * out - ny * back) * mirror


@inlined
def write_directions(track: Array, spacing: Number) -> None:
    """Write the direction and the curvature of the centre line at each point."""
    for point in range(POINTS):
        before, after = (point - 1) % POINTS, (point + 1) % POINTS
        px, py = D(track[point, X] - track[before, X]), D(track[point, Y] - track[before, Y])
        qx, qy = D(track[after, X] - track[point, X]), D(track[after, Y] - track[point, Y])
        span = length_of(px + qx, py + qy)
        track[point, TX], track[point, TY] = (px + qx) / span, (py + qy) / span
        track[point, BEND] = (px * qy - py * qx) / (spacing * spacing * spacing)


@inlined
def widen(clock: Array, middle: Number, track: Array) -> None:
    """Draw the width of the track along its length."""
    waves, phase = 1 + int(draw(clock) * F(3.0)), int(draw(clock) * F(TURN))
    for point in range(POINTS):
        track[point, WIDE] = middle * (1.0 + SWELL * sine(waves * point * TURN // POINTS + phase))


@compiled
def draw_track(s: Array, clock: Array, level: int, track: Array, scratch: Array) -> None:
    """Draw the track of a lap, with a random difficulty within the env's range or within one level of it."""
    part = draw(clock)
    if level >= 0:
        part = (F(level) + part) * F(1.0 / LEVELS)
    s[DIFFICULTY] = s[EASIEST] + (s[HARDEST] - s[EASIEST]) * part
    hard = D(s[DIFFICULTY])
    radius, middle = RADIUS + TIGHTER * hard, BREADTH + NARROWER * hard
    gap = 2.0 * (middle * (1.0 + SWELL) + D(VERGE)) + BETWEEN
    corners = int(FEWEST + MORE * hard + (RANDOM_MORE + 1) * D(draw(clock)))
    long = SHORTEST + LONGER * hard + SPREAD * D(draw(clock))
    stretch = STRETCH * D(draw(clock))
    mirror = 1.0 if draw(clock) < F(0.5) else -1.0
    for k in range(corners):
        scratch[k, FARTHER], scratch[k, ASIDE] = spread(clock, ONE), spread(clock, ONE)
        scratch[k, ROUND] = draw(clock)
    widen(clock, middle, track)
    size, length = 1.0, 0.0
    for k in range(TRIES + 1):
        if k == TRIES:
            size = 0.0
        if set_corners(scratch, corners, size, stretch, long) >= radius * SAFE:
            follow(scratch, round_corners(scratch, corners, radius * SAFE))
            length = smooth(scratch)
            if apart(scratch, length, gap):
                break
        size *= SHRINK
    resample(scratch, straightest(scratch), length, mirror, track)
    spacing = length / POINTS
    write_directions(track, spacing)
    s[LENGTH], s[PER_METRE] = length, 1.0 / spacing
