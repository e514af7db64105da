"""Ray casting in treechop's world: the first block that a ray hits, and where.

A ray goes from column to column and skips empty space: every column stores the distance to the nearest column with
blocks.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.envs.soccer.physics import ONE, ZERO
from slipstream.envs.treechop.layout import (
    BITS,
    EYE,
    GAP,
    GAP_WOOD,
    GREEN,
    LEVELS,
    PITCH,
    REACH,
    UNDER,
    WOOD,
    WRAP,
    YAW,
    F,
    X,
    Y,
    Z,
)
from slipstream.system.numba_compile import Number, compiled, inlined

SKY, GRASS = -2, -1
"""The result of a ray that hits no block."""
SIDE_X, SIDE_Y, BELOW, ABOVE = 0, 1, 2, 3
"""The face that a ray hits: across x, across y, from below, from above."""
FAR, TINY = F(1e9), F(1e-9)
HALF_TURN = 3.141592653589793 / 180.0


@inlined
def bits_of(cells: Array, cell: int) -> int:
    """Return a cell as a signed integer, because differences of unsigned integers would wrap around."""
    return int(np.int64(cells[cell]))


@inlined
def sine(degrees: Number) -> Number:
    """Return the sine of an angle by its Taylor series, which gives the same bits on every machine."""
    turned = degrees - 360.0 * math.floor((degrees + 180.0) / 360.0)
    if turned > 90.0:
        turned = 180.0 - turned
    elif turned < -90.0:
        turned = -180.0 - turned
    x = turned * HALF_TURN
    q = x * x
    series = 1.0 + q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0 + q * (1.0 / 362880.0 - q / 39916800.0))))
    return F(x * series)


@inlined
def cosine(degrees: Number) -> Number:
    """Return the cosine of an angle."""
    return sine(degrees + 90.0)


@inlined
def onward(old: int, new: int, up: bool) -> int:
    """Return the new cell, but never one behind the old: rounding at a corner could make a ray loop forever."""
    return max(old, new) if up else min(old, new)


@inlined
def first_block(blocks: int, z: Number, dz: Number, t: Number, out: Number, face: int) -> tuple[int, Number, int]:
    """Return the first block of a column between t and `out` on a ray, its distance and face; block -1 if none."""
    level, last = int(z + dz * t), int(z + dz * out)
    level, last = min(max(level, 0), LEVELS - 1), min(max(last, 0), LEVELS - 1)
    if (blocks >> level) & 1:
        return level, t, face
    if last > level:
        for up in range(level + 1, last + 1):
            if (blocks >> up) & 1:
                return up, (F(up) - z) / dz, BELOW
    else:
        for down in range(level - 1, last - 1, -1):
            if (blocks >> down) & 1:
                return down, (F(down + 1) - z) / dz, ABOVE
    return -1, t, face


@inlined
def march(
    cells: Array,
    x: Number,
    y: Number,
    z: Number,
    dx: Number,
    dy: Number,
    dz: Number,
    begin: Number,
    end: Number,
    gap: int,
    kept: int,
) -> tuple[Number, int, int]:
    """Return the distance, block and face of the first hit on a segment of a ray; `end` and block -1 if there is none.

    `gap` selects the distance field of a cell, and `kept` masks its block bits.
    """
    north, east = dx > ZERO, dy > ZERO
    inv_x = ONE / dx if abs(dx) > TINY else FAR
    inv_y = ONE / dy if abs(dy) > TINY else FAR
    ix, iy = math.floor(x + dx * begin), math.floor(y + dy * begin)
    t, face = begin, SIDE_X if begin == ZERO else BELOW  # a later segment starts below the leaves
    while True:
        index = ((ix & WRAP) << BITS) | (iy & WRAP)
        cell = bits_of(cells, index)
        far = (cell >> gap) & 255
        leap = far if far > 0 else 1
        tx = (F(ix + leap if north else ix - leap + 1) - x) * inv_x
        ty = (F(iy + leap if east else iy - leap + 1) - y) * inv_y
        tx = FAR if abs(dx) <= TINY else tx
        ty = FAR if abs(dy) <= TINY else ty
        out = min(tx, ty)
        if far == 0:
            blocks = ((cell >> WOOD) | (cell >> GREEN)) & kept
            if blocks:
                level, at, side = first_block(blocks, z, dz, t, min(out, end), face)
                if level >= 0:
                    return at, index * LEVELS + level, side
        t = out
        if t >= end:
            return end, -1, ABOVE
        if tx < ty:
            ix += leap if north else -leap
            iy = onward(iy, math.floor(y + dy * t), east)
            face = SIDE_X
        else:
            iy += leap if east else -leap
            ix = onward(ix, math.floor(x + dx * t), north)
            face = SIDE_Y


@compiled
def cast(
    cells: Array, x: Number, y: Number, z: Number, dx: Number, dy: Number, dz: Number, limit: Number
) -> tuple[Number, int, int]:
    """Return the distance along (dx, dy, dz) at which a ray hits, the block, and the face.

    The block may be SKY or GRASS. Below the leaves there are only trunks, which are sparse, so rays use the distances
    between trunks there.
    """
    end, behind = limit, SKY
    if dz < ZERO:
        if -z / dz < end:
            end, behind = -z / dz, GRASS
    elif dz > ZERO:
        end = min(end, (F(LEVELS) - z) / dz)
    begin = ZERO
    if z < F(UNDER):
        bare = min(end, (F(UNDER) - z) / dz) if dz > ZERO else end
        t, block, face = march(cells, x, y, z, dx, dy, dz, ZERO, bare, GAP_WOOD, (1 << UNDER) - 1)
        if block >= 0:
            return t, block, face
        if bare >= end:
            return end, behind, ABOVE
        begin = bare
    t, block, face = march(cells, x, y, z, dx, dy, dz, begin, end, GAP, 255)
    return t, block if block >= 0 else behind, face


@inlined
def is_log(cells: Array, block: int) -> bool:
    """Return whether a block is a log (otherwise leaves)."""
    return (bits_of(cells, block // LEVELS) >> (WOOD + block % LEVELS)) & 1 == 1


@compiled
def aim(s: Array, cells: Array) -> int:
    """Return the block that the player aims at within reach; negative if there is none."""
    flat = cosine(s[PITCH])
    dx, dy, dz = flat * cosine(s[YAW]), flat * sine(s[YAW]), -sine(s[PITCH])
    return cast(cells, s[X], s[Y], s[Z] + EYE, dx, dy, dz, REACH)[1]
