"""Kart's tracks: random closed loops, with corners no tighter than their difficulty allows.

A loop starts as a random polygon that is star-shaped around its middle and therefore does not cross itself. Each corner
is rounded to a circular arc of random radius, as large as its sides allow, and the loop is smoothed, so that curvature
is continuous. The polygon is shrunk towards a regular one, which always fits, until no corner is too tight and no two
stretches come so close that their walls would touch. Sines come from a table computed by + - * / alone, so every
machine draws the same tracks to the bit.
"""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.envs import native
from slipstream.envs.kart.columns import POINTS, VERGE, Point, Track
from slipstream.envs.soccer.kick_off import spread

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


class Vertex(native.Record):
    """A position, or a direction."""

    x: float
    y: float


class Corner(Vertex):
    """A corner of the polygon, and the direction and the length of the side after it."""

    ux: float
    uy: float
    span: float
    farther: float
    aside: float
    roundness: float
    """Random numbers for its distance from the middle, its direction and its radius."""


class LoopPoint(Vertex):
    """A point of the loop, the step to the next point, and the distance along the loop."""

    dx: float
    dy: float
    way: float


class Workspace(native.Scratch):
    """The polygon, the line through the segments of its rounded corners, and the loop along that line."""

    corners: list[Corner] = native.records(MOST)
    line: list[Vertex] = native.records(MOST * (FACETS + 1))
    loop: list[LoopPoint] = native.records(RAW)


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


@native.function(precision="double")
def sine(angle: int) -> float:
    """The sine of an angle in 1/TURN turns; add TURN // 4 for the cosine."""
    return SINES[angle & (TURN - 1)]  # type: ignore[no-any-return]


@native.function(precision="double")
def set_corners(work: Workspace, corners: int, size: float, stretch: float, length: float) -> float:
    """Place a polygon of this length; return the radius of the tightest corner, all rounded as far as possible."""
    for k in range(corners):
        corner = work.corners[k]
        angle = int(TURN * (k + TWIST * size * corner.aside) / corners)
        away = 1.0 + WAVINESS * size * corner.farther
        corner.x = away * sine(angle + TURN // 4) * (1.0 + size * stretch)
        corner.y = away * sine(angle)
    total = 0.0
    for k in range(corners):
        corner = work.corners[k]
        after = work.corners[(k + 1) % corners]
        dx, dy = after.x - corner.x, after.y - corner.y
        span = native.hypot(dx, dy)
        corner.ux, corner.uy, corner.span = dx / span, dy / span, span
        total += span
    scale = length / total
    least = 1e9
    for k in range(corners):
        work.corners[k].x *= scale
        work.corners[k].y *= scale
        work.corners[k].span *= scale
    for k in range(corners):
        least = min(least, reach(work, corners, k) / half_tangent(work, corners, k))
    return least


@native.function(precision="double")
def reach(work: Workspace, corners: int, k: int) -> float:
    """How far before a corner its arc may begin: half of the shorter side."""
    return 0.5 * min(work.corners[k].span, work.corners[(k - 1) % corners].span)


@native.function(precision="double")
def half_tangent(work: Workspace, corners: int, k: int) -> float:
    """The tangent of half the turning angle at a corner, at least a small positive number."""
    a = work.corners[(k - 1) % corners]
    b = work.corners[k]
    return max(abs(a.ux * b.uy - a.uy * b.ux) / max(1.0 + a.ux * b.ux + a.uy * b.uy, 1e-6), 1e-3)


@native.function(precision="double")
def round_corners(work: Workspace, corners: int, radius: float) -> int:
    """Write a line that follows an arc of segments at each corner; return its number of points."""
    places = 0
    for k in range(corners):
        corner = work.corners[k]
        before = work.corners[(k - 1) % corners]
        ax, ay, bx, by = before.ux, before.uy, corner.ux, corner.uy
        tangent = half_tangent(work, corners, k)
        cut = max(reach(work, corners, k) * corner.roundness, min(radius * tangent, reach(work, corners, k)))
        wide = cut / tangent
        left = 1.0 if ax * by - ay * bx > 0.0 else -1.0
        x, y = corner.x - ax * cut, corner.y - ay * cut
        mx, my = x - ay * wide * left, y + ax * wide * left  # the middle of the circle
        # Directions between the two sides by bisection: sums of neighbours need no angles.
        work.line[places].x, work.line[places].y = ax, ay
        work.line[places + FACETS].x, work.line[places + FACETS].y = bx, by
        gap = FACETS
        while gap > 1:
            for first in range(places, places + FACETS, gap):
                a = work.line[first]
                b = work.line[first + gap]
                middle = work.line[first + gap // 2]
                ux, uy = a.x + b.x, a.y + b.y
                span = native.hypot(ux, uy)
                middle.x, middle.y = ux / span, uy / span
            gap //= 2
        for place in range(places, places + FACETS + 1):
            vertex = work.line[place]
            ux, uy = vertex.x, vertex.y
            vertex.x, vertex.y = mx + uy * wide * left, my - ux * wide * left
        places += FACETS + 1
    return places


@native.function(precision="double")
def follow(work: Workspace, places: int) -> None:
    """Write the points of the loop at equal distances along the line."""
    total = 0.0
    for k in range(places):
        a = work.line[k]
        b = work.line[(k + 1) % places]
        total += native.hypot(b.x - a.x, b.y - a.y)
    place, begin, span = -1, 0.0, 0.0
    dx, dy = 0.0, 0.0
    for k in range(RAW):
        target = total * k / RAW
        while place < 0 or (begin + span < target and place < places - 1):
            place += 1
            begin += span
            a = work.line[place]
            b = work.line[(place + 1) % places]
            dx, dy = b.x - a.x, b.y - a.y
            span = native.hypot(dx, dy)
        share = (target - begin) / max(span, 1e-9)
        work.loop[k].x = work.line[place].x + dx * share
        work.loop[k].y = work.line[place].y + dy * share


@native.function(precision="double")
def smooth(work: Workspace) -> float:
    """Smooth the loop, then write steps and distances along it; return its length."""
    for _ in range(PASSES):
        first_x, first_y = work.loop[0].x, work.loop[0].y
        last_x, last_y = work.loop[RAW - 1].x, work.loop[RAW - 1].y
        for k in range(RAW):
            point = work.loop[k]
            x, y, after_x, after_y = point.x, point.y, first_x, first_y
            if k < RAW - 1:
                after_x, after_y = work.loop[k + 1].x, work.loop[k + 1].y
            point.x = 0.5 * x + 0.25 * (last_x + after_x)
            point.y = 0.5 * y + 0.25 * (last_y + after_y)
            last_x, last_y = x, y
    for k in range(RAW):
        point = work.loop[k]
        before = work.loop[(k - 1) & (RAW - 1)]
        after = work.loop[(k + 1) & (RAW - 1)]
        point.dx, point.dy = 0.5 * (after.x - before.x), 0.5 * (after.y - before.y)
    way = 0.0
    for k in range(RAW):
        point = work.loop[k]
        after = work.loop[(k + 1) & (RAW - 1)]
        point.way = way
        mx = 1.5 * (after.x - point.x) - 0.25 * (point.dx + after.dx)
        my = 1.5 * (after.y - point.y) - 0.25 * (point.dy + after.dy)
        ends = native.hypot(point.dx, point.dy) + native.hypot(after.dx, after.dy)
        way += (ends + 4.0 * native.hypot(mx, my)) / 6.0  # Simpson's rule
    return way


@native.function(precision="double")
def apart(work: Workspace, length: float, gap: float) -> bool:
    """Whether all stretches that are not neighbours keep this distance."""
    for first in range(0, RAW, STRIDE):
        for second in range(first + STRIDE, RAW, STRIDE):
            a = work.loop[first]
            b = work.loop[second]
            dx, dy = b.x - a.x, b.y - a.y
            if dx * dx + dy * dy < gap * gap:
                between = b.way - a.way
                if min(between, length - between) > 1.6 * gap:
                    return False
    return True


@native.function(precision="double")
def straightest(work: Workspace) -> int:
    """The point with the least curvature around it, where the lap begins."""
    best, chosen = 9.0, 0
    for k in range(0, RAW, 4):
        a = work.loop[(k - 4) & (RAW - 1)]
        b = work.loop[(k + 8) & (RAW - 1)]
        turn = abs(a.dx * b.dy - a.dy * b.dx) / (native.hypot(a.dx, a.dy) * native.hypot(b.dx, b.dy))
        if turn < best:
            best, chosen = turn, k
    return chosen


@native.function(precision="double")
def way_after(work: Workspace, k: int, whole: float) -> float:
    """The distance along the loop at the point after `k`, which is the whole length at its end."""
    after = (k + 1) & (RAW - 1)
    return work.loop[after].way if after != 0 else whole


@native.function(precision="double")
def resample(work: Workspace, first: int, whole: float, mirror: float, track: Track) -> None:
    """Write the points of the track at equal distances along the smooth curve through the loop, from `first` on."""
    k, turns = first, 0
    for point in range(POINTS):
        target = work.loop[first].way + whole * point / POINTS
        while way_after(work, k, whole) + turns * whole < target:
            k = (k + 1) & (RAW - 1)
            turns += 1 if k == 0 else 0
        a = work.loop[k]
        b = work.loop[(k + 1) & (RAW - 1)]
        begin, end = a.way + turns * whole, way_after(work, k, whole) + turns * whole
        pace, next_pace = native.hypot(a.dx, a.dy), native.hypot(b.dx, b.dy)
        # The speed along the curve changes linearly from one point to the next: solve for the share of the distance.
        share = (target - begin) / (end - begin)
        distance = share * 0.5 * (pace + next_pace)
        for _ in range(3):
            share = distance / (pace + 0.5 * (next_pace - pace) * share)
        rest = 1.0 - share
        near, far = rest * rest * (1.0 + 2.0 * share), share * share * (3.0 - 2.0 * share)
        out, back = share * rest * rest, share * share * rest
        track.points[point].x = a.x * near + b.x * far + a.dx * out - b.dx * back
        track.points[point].y = (a.y * near + b.y * far + a.dy * out - b.dy * back) * mirror


@native.function
def step_x(a: Point, b: Point) -> float:
    """The step from one point to another, in the precision of the points."""
    return b.x - a.x


@native.function
def step_y(a: Point, b: Point) -> float:
    """The step from one point to another, in the precision of the points."""
    return b.y - a.y


@native.function(precision="double")
def write_directions(track: Track, spacing: float) -> None:
    """Write the direction and the curvature of the centre line at each point."""
    for k in range(POINTS):
        point = track.points[k]
        before = track.points[(k - 1) % POINTS]
        after = track.points[(k + 1) % POINTS]
        px, py = step_x(before, point), step_y(before, point)
        qx, qy = step_x(point, after), step_y(point, after)
        span = native.hypot(px + qx, py + qy)
        point.tx, point.ty = (px + qx) / span, (py + qy) / span
        point.bend = (px * qy - py * qx) / (spacing * spacing * spacing)


@native.function
def pick(rng: native.Random, count: int) -> int:
    """A random whole number below `count`."""
    return int(rng.uniform(0.0, 1.0) * count)


@native.function(precision="double")
def widen(track: Track, middle: float, rng: native.Random) -> None:
    """Draw the width of the track along its length."""
    waves = 1 + pick(rng, 3)
    phase = pick(rng, TURN)
    for k in range(POINTS):
        track.points[k].half_width = middle * (1.0 + SWELL * sine(waves * k * TURN // POINTS + phase))


@native.function(precision="double")
def draw_track(track: Track, work: Workspace, rng: native.Random) -> None:
    """Draw a track of the difficulty that it has."""
    hard = track.difficulty
    radius, middle = RADIUS + TIGHTER * hard, BREADTH + NARROWER * hard
    gap = 2.0 * (middle * (1.0 + SWELL) + VERGE) + BETWEEN
    corners = int(FEWEST + MORE * hard + (RANDOM_MORE + 1) * rng.uniform(0.0, 1.0))
    long = SHORTEST + LONGER * hard + SPREAD * rng.uniform(0.0, 1.0)
    stretch = STRETCH * rng.uniform(0.0, 1.0)
    mirror = 1.0 if rng.uniform(0.0, 1.0) < 0.5 else -1.0
    for k in range(corners):
        corner = work.corners[k]
        corner.farther = spread(rng, 1.0)
        corner.aside = spread(rng, 1.0)
        corner.roundness = rng.uniform(0.0, 1.0)
    widen(track, middle, rng)
    size, length = 1.0, 0.0
    for k in range(TRIES + 1):
        if k == TRIES:
            size = 0.0
        if set_corners(work, corners, size, stretch, long) >= radius * SAFE:
            follow(work, round_corners(work, corners, radius * SAFE))
            length = smooth(work)
            if apart(work, length, gap):
                break
        size *= SHRINK
    resample(work, straightest(work), length, mirror, track)
    spacing = length / POINTS
    write_directions(track, spacing)
    track.length, track.per_metre = length, 1.0 / spacing
