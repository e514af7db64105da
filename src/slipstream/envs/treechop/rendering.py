"""What treechop's player sees: a picture by one ray per pixel, written straight into the row of an observation.

Bark, leaves, grass and sky are told apart by their hue, which neither light nor distance changes. The block that is
aimed at within reach is lit, as a hint that the axe would hit it, and cracks as it wears.
"""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.envs.soccer.physics import ONE, ZERO
from slipstream.envs.treechop.layout import (
    AIM,
    BITS,
    EYE,
    LEVELS,
    LOG_TICKS,
    PITCH,
    PIXELS,
    RANGE,
    SIDE,
    WORN,
    WRAP,
    YAW,
    F,
    X,
    Y,
    Z,
)
from slipstream.envs.treechop.raycast import (
    ABOVE,
    BELOW,
    FAR,
    GRASS,
    SIDE_X,
    SIDE_Y,
    SKY,
    aim,
    cast,
    cosine,
    is_log,
    sine,
)
from slipstream.system.numba_compile import Number, compiled, inlined

HALF_SIDE = PIXELS // 2
ROOM = HALF_SIDE + 1, HALF_SIDE + 1
"""Rows and columns of the pixels that have a ray of their own, with those just outside."""
UNKNOWN = -3
"""What a pixel shows if its neighbours do not tell."""
SHIFT = F(64.0)
OPENING = F(0.7002075)
"""The tangent of half of the angle of view, 70 degrees."""
COLOURS = np.array(
    [[132, 170, 238], [104, 158, 66], [118, 80, 44], [40, 92, 30], [206, 168, 122], [92, 150, 80]], np.int32
)
"""Sky, grass, bark, leaves, and the last two when they are lit."""
PALETTE = np.array(
    [[sum(int(c) * light // 255 << 8 * k for k, c in enumerate(colour)) for light in range(256)] for colour in COLOURS],
    np.int32,
)
"""Red, green and blue in the bytes of a number, of every tone in every light."""
LIT = 2
"""From a kind to its lit one."""
LIGHT = np.array([205, 168, 128, 255], np.int32)
"""Of each face, in 256 parts."""
GRAIN = 16
"""Texels of a block's side."""


def _noise() -> Array:
    """Texels: shares of light in 256 parts, the same for ever; bark has stripes, the others spots."""
    rng = np.random.Generator(np.random.PCG64(20))
    spots = rng.integers(196, 256, (GRAIN, GRAIN))
    stripes = np.repeat(rng.integers(176, 256, (1, GRAIN)), GRAIN, axis=0) + rng.integers(-12, 1, (GRAIN, GRAIN))
    leaves = rng.integers(120, 256, (GRAIN, GRAIN))
    return np.stack([np.full((GRAIN, GRAIN), 256), spots, stripes, leaves]).astype(np.int32)


NOISE = _noise()  # [kinds, across, along]
CRACKS = np.random.Generator(np.random.PCG64(21)).integers(0, LOG_TICKS + 2, (GRAIN, GRAIN)).astype(np.int32)


@inlined
def light_up(
    cells: Array, s: Array, dx: Number, dy: Number, dz: Number, t: Number, block: int, face: int, aimed: int, worn: int,
    picture: Array, at: int,
) -> None:  # fmt: skip
    """Write a pixel whose ray meets a block, grass or the sky."""
    tone, light = 0, 255
    if block != SKY:
        across, along = s[X] + dx * t, s[Y] + dy * t
        if face < BELOW:
            across, along = (along if face == SIDE_X else across), s[Z] + EYE + dz * t
        # Shifted so that a fraction below 0, which int would round up, does not occur
        u, v = int((across + SHIFT) * F(GRAIN)) & (GRAIN - 1), int((along + SHIFT) * F(GRAIN)) & (GRAIN - 1)
        tone = 1 if block == GRASS else 2 if is_log(cells, block) else 3
        light = LIGHT[face] * NOISE[tone, v, u] >> 8
        light -= int(t * F(3.5)) * light >> 8
        if block >= 0 and block == aimed:
            tone += LIT
            if CRACKS[v, u] < worn:
                light = light * 5 >> 3
    colour = PALETTE[tone, light & 255]
    picture[at] = colour & 255
    picture[at + 1] = (colour >> 8) & 255
    picture[at + 2] = colour >> 16


@inlined
def extend(s: Array, dx: Number, dy: Number, dz: Number, block: int, face: int) -> Number:
    """Return how far a ray goes until the plane of a face that its neighbours meet."""
    if block == GRASS:
        return -(s[Z] + EYE) / dz if dz < ZERO else FAR
    if face == SIDE_X:
        return along_axis(s[X], dx, (block // LEVELS) >> BITS)
    if face == SIDE_Y:
        return along_axis(s[Y], dy, (block // LEVELS) & WRAP)
    level = block % LEVELS
    return ((F(level) if face == BELOW else F(level + 1)) - s[Z] - EYE) / dz


@inlined
def along_axis(here: Number, d: Number, cell: int) -> Number:
    """Return how far a ray goes until the near side of a cell, in whichever copy of the world it is nearest."""
    gap = F(cell) + (ZERO if d > ZERO else ONE) - here
    if gap * d < ZERO:
        gap += F(SIDE) if d > ZERO else -F(SIDE)
    return gap / d


@inlined
def meets(s: Array, dx: Number, dy: Number, dz: Number, t: Number, block: int, face: int) -> bool:
    """Return whether a ray that comes to the plane of a face comes to the face."""
    cell = block // LEVELS
    north = (int(s[X] + dx * t + SHIFT) & WRAP) == cell >> BITS or face == SIDE_X
    east = (int(s[Y] + dy * t + SHIFT) & WRAP) == (cell & WRAP) or face == SIDE_Y
    return t > ZERO and north and east and (face >= BELOW or int(s[Z] + EYE + dz * t) == block % LEVELS)


@inlined
def guess(
    s: Array, samples: Array, above: int, left: int, dx: Number, dy: Number, dz: Number
) -> tuple[Number, int, int]:
    """Return which of the faces that the four rays around a pixel meet its own would meet first; UNKNOWN if none."""
    nearest, best, side, back = FAR, UNKNOWN, ABOVE, UNKNOWN
    for k in range(4):
        block, face = samples[above + (k >> 1), left + (k & 1), 0], samples[above + (k >> 1), left + (k & 1), 1]
        if block < 0:
            back = max(back, block)
            continue
        t = extend(s, dx, dy, dz, block, face)
        if t < nearest and meets(s, dx, dy, dz, t, block, face):
            nearest, best, side = t, block, face
    if best != UNKNOWN or back == UNKNOWN:
        return nearest, best, side
    t = extend(s, dx, dy, dz, GRASS, ABOVE)
    return (t, GRASS, ABOVE) if t < RANGE else (RANGE, SKY, ABOVE)


@compiled
def sample(s: Array, cells: Array, look: Array, samples: Array, ways: Array) -> None:
    """Send a ray through every second pixel of every second row."""
    step = F(2.0) * OPENING / F(PIXELS)
    for row in range(HALF_SIDE + 1):
        up = OPENING - (F(2 * row) + F(0.5)) * step
        ahead, dz = look[2] + up * look[3], up * look[2] - look[3]
        for column in range(HALF_SIDE + 1):
            right = (F(2 * column) + F(0.5)) * step - OPENING
            dx, dy = ahead * look[0] - right * look[1], ahead * look[1] + right * look[0]
            t, block, face = cast(cells, s[X], s[Y], s[Z] + EYE, dx, dy, dz, RANGE)
            samples[row, column, 0], samples[row, column, 1], ways[row, column] = block, face, t


@compiled
def paint(s: Array, clock: Array, cells: Array, look: Array, samples: Array, ways: Array, picture: Array) -> None:
    """Write the picture, [PIXELS * PIXELS * 3] bytes from the top left on.

    One pixel in four has a ray of its own, and the others go by what the four around them meet: the same face, or the
    nearest that they meet themselves. `look` [4] is room for the direction, `samples` and `ways` for what rays meet.
    """
    look[0], look[1], look[2], look[3] = cosine(s[YAW]), sine(s[YAW]), cosine(s[PITCH]), sine(s[PITCH])
    aimed = aim(s, cells)
    worn = clock[WORN] if clock[AIM] == aimed else 0
    step = F(2.0) * OPENING / F(PIXELS)
    sample(s, cells, look, samples, ways)
    for above in range(HALF_SIDE):
        for left in range(HALF_SIDE):
            block, face = samples[above, left, 0], samples[above, left, 1]
            alike = True
            for k in range(1, 4):
                i, j = above + (k >> 1), left + (k & 1)
                alike = alike and samples[i, j, 0] == block and samples[i, j, 1] == face
            for k in range(4):
                row, column = 2 * above + (k >> 1), 2 * left + (k & 1)
                up, right = OPENING - (F(row) + F(0.5)) * step, (F(column) + F(0.5)) * step - OPENING
                ahead, dz = look[2] + up * look[3], up * look[2] - look[3]
                dx, dy = ahead * look[0] - right * look[1], ahead * look[1] + right * look[0]
                t = ways[above, left]
                if k > 0 and alike and block != SKY:
                    t = extend(s, dx, dy, dz, block, face)
                elif k > 0 and not alike:
                    t, block, face = guess(s, samples, above, left, dx, dy, dz)
                    if block == UNKNOWN:
                        t, block, face = cast(cells, s[X], s[Y], s[Z] + EYE, dx, dy, dz, RANGE)
                light_up(cells, s, dx, dy, dz, t, block, face, aimed, worn, picture, 3 * (row * PIXELS + column))
