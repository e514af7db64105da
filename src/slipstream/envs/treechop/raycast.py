"""Ray casting in treechop's world: the first block that a ray hits, and where.

A ray goes from column to column and skips empty space: every column stores the distance to the nearest column with
blocks.
"""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.treechop.columns import (
    EYE,
    LEVELS,
    REACH,
    SIDE,
    TOP,
    WRAP,
    State,
    World,
    leaves_of,
    logs_of,
    solid_of,
)

SKY, GRASS = -2, -1
"""The result of a ray that hits no block."""
SIDE_X, SIDE_Y, BELOW, ABOVE = 0, 1, 2, 3
"""The face that a ray hits: across x, across y, from below, from above."""
FAR, TINY = 1e9, 1e-9
UNDER = 3
"""Levels below all leaves."""
LOW = (1 << UNDER) - 1
HALF_TURN = 3.141592653589793 / 180.0


@native.function(precision="double")
def sine(degrees: float) -> float:
    """The sine of an angle by its Taylor series."""
    turned = degrees - 360.0 * native.floor((degrees + 180.0) / 360.0)
    if turned > 90.0:
        turned = 180.0 - turned
    elif turned < -90.0:
        turned = -180.0 - turned
    x = turned * HALF_TURN
    q = x * x
    series = 1.0 + q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0 + q * (1.0 / 362880.0 - q / 39916800.0))))
    return x * series


@native.function(precision="double")
def cosine(degrees: float) -> float:
    """The cosine of an angle."""
    return sine(degrees + 90.0)


@native.function
def first_block(blocks: int, z: float, dz: float, t: float, out: float, face: int) -> tuple[int, float, int]:
    """The first block of a column between t and `out` on a ray, its distance and face; block -1 if none."""
    level, last = int(z + dz * t), int(z + dz * out)
    level, last = min(max(level, 0), TOP - 1), min(max(last, 0), TOP - 1)
    if (blocks >> level) & 1:
        return level, t, face
    if last > level:
        for up in range(level + 1, last + 1):
            if (blocks >> up) & 1:
                return up, (up - z) / dz, BELOW
    else:
        for down in range(level - 1, last - 1, -1):
            if (blocks >> down) & 1:
                return down, (down + 1 - z) / dz, ABOVE
    return -1, t, face


@native.function
def march(
    w: World,
    x: float,
    y: float,
    z: float,
    dx: float,
    dy: float,
    dz: float,
    begin: float,
    end: float,
    low: bool,
) -> tuple[float, int, int]:
    """The distance, block and face of the first hit on a segment of a ray; `end` and block -1 if there is none.

    A `low` segment is below all leaves.
    """
    north, east = dx > 0.0, dy > 0.0
    inv_x = 1.0 / dx if abs(dx) > TINY else FAR
    inv_y = 1.0 / dy if abs(dy) > TINY else FAR
    ix, iy = native.floor(x + dx * begin), native.floor(y + dy * begin)
    t, face = begin, SIDE_X if begin == 0.0 else BELOW  # a later segment starts below the leaves
    while t < end:
        gaps = w.gaps[ix & WRAP, iy & WRAP]
        gap = gaps >> 8 if low else gaps & 255
        leap = gap if gap > 0 else 1
        tx = ((ix + leap if north else ix - leap + 1) - x) * inv_x
        ty = ((iy + leap if east else iy - leap + 1) - y) * inv_y
        tx = FAR if abs(dx) <= TINY else tx
        ty = FAR if abs(dy) <= TINY else ty
        out = min(tx, ty)
        if gap == 0:
            here = w.blocks[ix & WRAP, iy & WRAP]
            blocks = solid_of(here) & LOW if low else solid_of(here) | leaves_of(here)
            if blocks:
                level, at, side = first_block(blocks, z, dz, t, min(out, end), face)
                if level >= 0:
                    return at, ((ix & WRAP) * SIDE + (iy & WRAP)) * LEVELS + level, side
        t = out
        # A ray never goes back: rounding at a corner could make it loop forever.
        if tx < ty:
            ix += leap if north else -leap
            near = native.floor(y + dy * t)
            iy = max(iy, near) if east else min(iy, near)
            face = SIDE_X
        else:
            iy += leap if east else -leap
            near = native.floor(x + dx * t)
            ix = max(ix, near) if north else min(ix, near)
            face = SIDE_Y
    return end, -1, ABOVE


@native.function(inline=False)
def cast(
    w: World, x: float, y: float, z: float, dx: float, dy: float, dz: float, limit: float
) -> tuple[float, int, int]:
    """The distance along (dx, dy, dz) at which a ray hits, the block, and the face.

    The block may be SKY or GRASS. Below the leaves there are only trunks and ground, and rays use the distances between
    these.
    """
    end, behind = limit, SKY
    if dz < 0.0:
        if -z / dz < end:
            end, behind = -z / dz, GRASS
    elif dz > 0.0:
        end = min(end, (TOP - z) / dz)
    bare = 0.0
    if z < UNDER:
        bare = min(end, (UNDER - z) / dz) if dz > 0.0 else end
    t, begin = 0.0, 0.0
    block, face = -1, ABOVE
    for part in range(2):
        low = part == 0
        upto = bare if low else end
        if begin < upto and block < 0:
            t, block, face = march(w, x, y, z, dx, dy, dz, begin, upto, low)
        begin = upto
    if block < 0:
        return end, behind, ABOVE
    return t, block, face


@native.function
def block_at(w: World, block: int) -> int:
    """The bits of the column of a block."""
    column = block // LEVELS
    return w.blocks[column // SIDE, column & WRAP]


@native.function
def is_log(w: World, block: int) -> bool:
    """Whether a block is a log."""
    return (logs_of(block_at(w, block)) >> (block % LEVELS)) & 1 == 1


@native.function
def is_ground(w: World, block: int) -> bool:
    """Whether a block is ground, which no axe breaks."""
    solid, bit = solid_of(block_at(w, block)), block % LEVELS
    return (solid >> bit) & 1 == 1 and not is_log(w, block)


@native.function(inline=False)
def aim(s: State, w: World) -> int:
    """The log or leaves that the player aims at within reach; negative if there are none."""
    flat = cosine(s.pitch)
    dx, dy, dz = flat * cosine(s.yaw), flat * sine(s.yaw), -sine(s.pitch)
    _distance, block, _face = cast(w, s.x, s.y, s.z + EYE, dx, dy, dz, REACH)
    return -1 if block >= 0 and is_ground(w, block) else block
