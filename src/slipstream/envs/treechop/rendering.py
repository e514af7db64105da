"""Render the view of treechop's player by ray casting.

Bark, leaves, grass, rock and sky differ in hue, which neither light nor distance changes. The aimed block within reach
is highlighted, and cracks appear on it while it is attacked. One pixel in four is ray cast. The others are inferred
from the four rays around them: the common face, or the nearest of their faces.
"""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.envs import native
from slipstream.envs.treechop.columns import (
    EYE,
    LEVELS,
    LOG_TICKS,
    PIXELS,
    RANGE,
    SIDE,
    WRAP,
    Seen,
    State,
    Workspace,
    World,
    is_rock,
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
    block_at,
    cast,
    cosine,
    is_ground,
    is_log,
    sine,
)

UNKNOWN = -3
"""The block of a pixel that cannot be inferred from its neighbours."""
SHIFT = 64.0
OPENING = 0.7002075
"""The tangent of half of the field of view of 70 degrees."""
T_SKY, T_GRASS, T_BARK, T_LEAVES, T_LIT_BARK, T_LIT_LEAVES, T_BANK, T_ROCK = range(8)
COLOURS = (
    (132, 170, 238),
    (104, 158, 66),
    (118, 80, 44),
    (40, 92, 30),
    (206, 168, 122),
    (92, 150, 80),
    (92, 118, 50),
    (122, 122, 130),
)
"""The colours of these tones: highlighted ones are `LIT` further, a bank is the side of a hill."""
PALETTE = np.array(
    [[sum(int(c) * light // 255 << 8 * k for k, c in enumerate(colour)) for light in range(256)] for colour in COLOURS],
    np.int32,
)
"""Packed RGB of every tone at every light level."""
LIT = 2
LIGHT = (205, 168, 128, 255)
"""The light of each face, in 1/256."""
GRAIN = 16
"""Texels per side of a block."""


def _noise() -> Array:
    """Fixed textures as light factors in 1/256, for each tone; bark has stripes, the others spots."""
    rng = np.random.Generator(np.random.PCG64(20))
    spots = rng.integers(196, 256, (GRAIN, GRAIN))
    stripes = np.repeat(rng.integers(176, 256, (1, GRAIN)), GRAIN, axis=0) + rng.integers(-12, 1, (GRAIN, GRAIN))
    leaves = rng.integers(120, 256, (GRAIN, GRAIN))
    bare = np.full((GRAIN, GRAIN), 256)
    return np.stack([bare, spots, stripes, leaves, bare, bare, spots, spots.T]).astype(np.int32)


NOISE = _noise()  # [tones, across, along]
CRACKS = np.random.Generator(np.random.PCG64(21)).integers(0, LOG_TICKS + 2, (GRAIN, GRAIN)).astype(np.int32)


@native.function
def tone_of(w: World, block: int, face: int) -> int:
    """The tone of the face of a block."""
    if block < 0:
        return T_GRASS
    if not is_ground(w, block):
        return T_BARK if is_log(w, block) else T_LEAVES
    if is_rock(block_at(w, block)):
        return T_ROCK
    return T_GRASS if face == ABOVE else T_BANK


@native.function
def shade(
    s: State, w: World, dx: float, dy: float, dz: float, t: float, block: int, face: int, aimed: int, worn: int
) -> int:
    """The packed colour of a pixel whose ray hits a block, grass or the sky."""
    if block == SKY:
        return int(PALETTE[T_SKY, 255])
    across, along = s.x + dx * t, s.y + dy * t
    if face < BELOW:
        across, along = along if face == SIDE_X else across, s.z + EYE + dz * t
    # Shifted to be positive, because int() rounds negative numbers up.
    u, v = int((across + SHIFT) * GRAIN) & (GRAIN - 1), int((along + SHIFT) * GRAIN) & (GRAIN - 1)
    tone = tone_of(w, block, face)
    light = LIGHT[face] * NOISE[tone, v, u] >> 8
    light -= int(t * 3.5) * light >> 8
    if block >= 0 and block == aimed:
        tone += LIT
        if CRACKS[v, u] < worn:
            light = light * 5 >> 3
    return int(PALETTE[tone, light & 255])


@native.function
def along_axis(here: float, d: float, cell: int) -> float:
    """The distance along a ray to the near side of a cell, in the nearest copy of the wrapped world."""
    gap = cell + (0.0 if d > 0.0 else 1.0) - here
    if gap * d < 0.0:
        gap += SIDE if d > 0.0 else -SIDE
    return gap / d


@native.function
def extend(s: State, dx: float, dy: float, dz: float, block: int, face: int) -> float:
    """The distance along a ray to the plane of a face that a neighbouring ray hits."""
    if block == GRASS:
        return -(s.z + EYE) / dz if dz < 0.0 else FAR
    if face == SIDE_X:
        return along_axis(s.x, dx, block // LEVELS // SIDE)
    if face == SIDE_Y:
        return along_axis(s.y, dy, block // LEVELS & WRAP)
    level = block % LEVELS
    return ((level if face == BELOW else level + 1) - s.z - EYE) / dz


@native.function
def hits_face(s: State, dx: float, dy: float, dz: float, t: float, block: int, face: int) -> bool:
    """Whether a ray hits a face, given its distance to the plane of the face."""
    column = block // LEVELS
    north = (int(s.x + dx * t + SHIFT) & WRAP) == column // SIDE or face == SIDE_X
    east = (int(s.y + dy * t + SHIFT) & WRAP) == (column & WRAP) or face == SIDE_Y
    return t > 0.0 and north and east and (face >= BELOW or int(s.z + EYE + dz * t) == block % LEVELS)


@native.function
def infer_hit(
    s: State, work: Workspace, above: int, left: int, dx: float, dy: float, dz: float
) -> tuple[float, int, int]:
    """The first hit of a pixel's ray among the faces that the four rays around it hit; UNKNOWN if there is none."""
    nearest, best, side, back = FAR, UNKNOWN, ABOVE, UNKNOWN
    for k in range(4):
        block, face = work.block[above + (k >> 1), left + (k & 1)], work.face[above + (k >> 1), left + (k & 1)]
        if block < 0:
            back = max(back, block)
        else:
            t = extend(s, dx, dy, dz, block, face)
            if t < nearest and hits_face(s, dx, dy, dz, t, block, face):
                nearest, best, side = t, block, face
    if best != UNKNOWN or back == UNKNOWN:
        return nearest, best, side
    t = extend(s, dx, dy, dz, GRASS, ABOVE)
    if t < RANGE:
        return t, GRASS, ABOVE
    return RANGE, SKY, ABOVE


@native.function(inline=False)
def render(s: State, w: World, work: Workspace, seen: Seen) -> None:
    """Write the image."""
    cos_yaw, sin_yaw, cos_pitch, sin_pitch = cosine(s.yaw), sine(s.yaw), cosine(s.pitch), sine(s.pitch)
    half, pixel = PIXELS // 2, 2.0 * OPENING / PIXELS
    for row in range(half + 1):
        up = OPENING - (2 * row + 0.5) * pixel
        ahead, dz = cos_pitch + up * sin_pitch, up * cos_pitch - sin_pitch
        for column in range(half + 1):
            right = (2 * column + 0.5) * pixel - OPENING
            dx, dy = ahead * cos_yaw - right * sin_yaw, ahead * sin_yaw + right * cos_yaw
            t, block, face = cast(w, s.x, s.y, s.z + EYE, dx, dy, dz, RANGE)
            work.block[row, column], work.face[row, column], work.distance[row, column] = block, face, t
    aimed = aim(s, w)
    worn = s.worn if s.aim == aimed else 0
    for above in range(half):
        for left in range(half):
            block, face = work.block[above, left], work.face[above, left]
            alike = True
            for k in range(1, 4):
                i, j = above + (k >> 1), left + (k & 1)
                alike = alike and work.block[i, j] == block and work.face[i, j] == face
            for k in range(4):
                row, column = 2 * above + (k >> 1), 2 * left + (k & 1)
                up, right = OPENING - (row + 0.5) * pixel, (column + 0.5) * pixel - OPENING
                ahead, dz = cos_pitch + up * sin_pitch, up * cos_pitch - sin_pitch
                dx, dy = ahead * cos_yaw - right * sin_yaw, ahead * sin_yaw + right * cos_yaw
                t = work.distance[above, left]
                if k > 0 and alike and block != SKY:
                    t = extend(s, dx, dy, dz, block, face)
                elif k > 0 and not alike:
                    t, block, face = infer_hit(s, work, above, left, dx, dy, dz)
                    if block == UNKNOWN:
                        t, block, face = cast(w, s.x, s.y, s.z + EYE, dx, dy, dz, RANGE)
                colour = shade(s, w, dx, dy, dz, t, block, face, aimed, worn)
                seen.pov[row, column, 0] = colour & 255
                seen.pov[row, column, 1] = (colour >> 8) & 255
                seen.pov[row, column, 2] = colour >> 16
