"""Render the view of treechop's player by ray casting, directly into the row of an observation.

Bark, leaves, grass and sky differ in hue, which neither light nor distance changes. The aimed block within reach is
highlighted, and cracks appear on it while it is attacked.
"""

from __future__ import annotations

from typing import NamedTuple

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
SAMPLES = HALF_SIDE + 1, HALF_SIDE + 1
"""Rows and columns of the pixels that are ray cast, including those just outside the image."""
UNKNOWN = -3
"""The block of a pixel that cannot be inferred from its neighbours."""
SHIFT = F(64.0)
OPENING = F(0.7002075)
"""The tangent of half of the field of view of 70 degrees."""
COLOURS = np.array(
    [[132, 170, 238], [104, 158, 66], [118, 80, 44], [40, 92, 30], [206, 168, 122], [92, 150, 80]], np.int32
)
"""Sky, grass, bark, leaves, and highlighted bark and leaves."""
PALETTE = np.array(
    [[sum(int(c) * light // 255 << 8 * k for k, c in enumerate(colour)) for light in range(256)] for colour in COLOURS],
    np.int32,
)
"""Packed RGB of every colour at every light level."""
LIT = 2
"""The index offset from a colour to its highlighted version."""
LIGHT = np.array([205, 168, 128, 255], np.int32)
"""The light of each face, in 1/256."""
GRAIN = 16
"""Texels per side of a block."""


class RenderBuffers(NamedTuple):
    """Buffers of `render`, shared by all games."""

    look: Array
    """The view direction: cosine and sine of yaw and pitch [4]."""
    samples: Array
    """The block and the face that each ray hits [rows, columns, 2]."""
    distances: Array
    """The distance of each hit [rows, columns]."""


def make_render_buffers() -> RenderBuffers:
    """Allocate the buffers of `render`."""
    return RenderBuffers(np.zeros(4, F), np.zeros((*SAMPLES, 2), np.int64), np.zeros(SAMPLES, F))


def _noise() -> Array:
    """Fixed textures as light factors in 1/256; bark has stripes, the others spots."""
    rng = np.random.Generator(np.random.PCG64(20))
    spots = rng.integers(196, 256, (GRAIN, GRAIN))
    stripes = np.repeat(rng.integers(176, 256, (1, GRAIN)), GRAIN, axis=0) + rng.integers(-12, 1, (GRAIN, GRAIN))
    leaves = rng.integers(120, 256, (GRAIN, GRAIN))
    return np.stack([np.full((GRAIN, GRAIN), 256), spots, stripes, leaves]).astype(np.int32)


NOISE = _noise()  # [kinds, across, along]
CRACKS = np.random.Generator(np.random.PCG64(21)).integers(0, LOG_TICKS + 2, (GRAIN, GRAIN)).astype(np.int32)


@inlined
def shade_pixel(
    cells: Array,
    s: Array,
    dx: Number,
    dy: Number,
    dz: Number,
    t: Number,
    block: int,
    face: int,
    aimed: int,
    worn: int,
    image: Array,
    at: int,
) -> None:
    """Write a pixel whose ray hits a block, grass or the sky."""
    tone, light = 0, 255
    if block != SKY:
        across, along = s[X] + dx * t, s[Y] + dy * t
        if face < BELOW:
            across, along = (along if face == SIDE_X else across), s[Z] + EYE + dz * t
        # Shifted to be positive, because int() rounds negative numbers up.
        u, v = int((across + SHIFT) * F(GRAIN)) & (GRAIN - 1), int((along + SHIFT) * F(GRAIN)) & (GRAIN - 1)
        tone = 1 if block == GRASS else 2 if is_log(cells, block) else 3
        light = LIGHT[face] * NOISE[tone, v, u] >> 8
        light -= int(t * F(3.5)) * light >> 8
        if block >= 0 and block == aimed:
            tone += LIT
            if CRACKS[v, u] < worn:
                light = light * 5 >> 3
    colour = PALETTE[tone, light & 255]
    image[at] = colour & 255
    image[at + 1] = (colour >> 8) & 255
    image[at + 2] = colour >> 16


@inlined
def extend(s: Array, dx: Number, dy: Number, dz: Number, block: int, face: int) -> Number:
    """Return the distance along a ray to the plane of a face that a neighbouring ray hits."""
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
    """Return the distance along a ray to the near side of a cell, in the nearest copy of the wrapped world."""
    gap = F(cell) + (ZERO if d > ZERO else ONE) - here
    if gap * d < ZERO:
        gap += F(SIDE) if d > ZERO else -F(SIDE)
    return gap / d


@inlined
def hits_face(s: Array, dx: Number, dy: Number, dz: Number, t: Number, block: int, face: int) -> bool:
    """Return whether a ray hits a face, given its distance to the plane of the face."""
    cell = block // LEVELS
    north = (int(s[X] + dx * t + SHIFT) & WRAP) == cell >> BITS or face == SIDE_X
    east = (int(s[Y] + dy * t + SHIFT) & WRAP) == (cell & WRAP) or face == SIDE_Y
    return t > ZERO and north and east and (face >= BELOW or int(s[Z] + EYE + dz * t) == block % LEVELS)


@inlined
def infer_hit(
    s: Array, samples: Array, above: int, left: int, dx: Number, dy: Number, dz: Number
) -> tuple[Number, int, int]:
    """Return the first hit of a pixel's ray among the faces that the four rays around it hit; UNKNOWN if none."""
    nearest, best, side, back = FAR, UNKNOWN, ABOVE, UNKNOWN
    for k in range(4):
        block, face = samples[above + (k >> 1), left + (k & 1), 0], samples[above + (k >> 1), left + (k & 1), 1]
        if block < 0:
            back = max(back, block)
            continue
        t = extend(s, dx, dy, dz, block, face)
        if t < nearest and hits_face(s, dx, dy, dz, t, block, face):
            nearest, best, side = t, block, face
    if best != UNKNOWN or back == UNKNOWN:
        return nearest, best, side
    t = extend(s, dx, dy, dz, GRASS, ABOVE)
    return (t, GRASS, ABOVE) if t < RANGE else (RANGE, SKY, ABOVE)


@compiled
def cast_samples(s: Array, cells: Array, buffers: RenderBuffers) -> None:
    """Cast a ray through every second pixel of every second row."""
    look, samples, distances = buffers.look, buffers.samples, buffers.distances
    step = F(2.0) * OPENING / F(PIXELS)
    for row in range(HALF_SIDE + 1):
        up = OPENING - (F(2 * row) + F(0.5)) * step
        ahead, dz = look[2] + up * look[3], up * look[2] - look[3]
        for column in range(HALF_SIDE + 1):
            right = (F(2 * column) + F(0.5)) * step - OPENING
            dx, dy = ahead * look[0] - right * look[1], ahead * look[1] + right * look[0]
            t, block, face = cast(cells, s[X], s[Y], s[Z] + EYE, dx, dy, dz, RANGE)
            samples[row, column, 0], samples[row, column, 1], distances[row, column] = block, face, t


@compiled
def render(s: Array, clock: Array, cells: Array, buffers: RenderBuffers, image: Array) -> None:
    """Write the image [PIXELS * PIXELS * 3], starting at the top left.

    One pixel in four is ray cast. The others are inferred from the four rays around them: the common face, or the
    nearest of their faces.
    """
    look, samples, distances = buffers.look, buffers.samples, buffers.distances
    look[0], look[1], look[2], look[3] = cosine(s[YAW]), sine(s[YAW]), cosine(s[PITCH]), sine(s[PITCH])
    aimed = aim(s, cells)
    worn = clock[WORN] if clock[AIM] == aimed else 0
    step = F(2.0) * OPENING / F(PIXELS)
    cast_samples(s, cells, buffers)
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
                t = distances[above, left]
                if k > 0 and alike and block != SKY:
                    t = extend(s, dx, dy, dz, block, face)
                elif k > 0 and not alike:
                    t, block, face = infer_hit(s, samples, above, left, dx, dy, dz)
                    if block == UNKNOWN:
                        t, block, face = cast(cells, s[X], s[Y], s[Z] + EYE, dx, dy, dz, RANGE)
                shade_pixel(cells, s, dx, dy, dz, t, block, face, aimed, worn, image, 3 * (row * PIXELS + column))
