"""Treechop's physics: one tick of a player who turns, walks, jumps and swings an axe.

Speeds are Minecraft's: pressed buttons accelerate the player in every tick, and friction slows it down. Logs are solid.
Leaves are not, but they block the view and the axe. A broken log is gathered at once.
"""

from __future__ import annotations

import math

from slipstream.contracts import Array
from slipstream.envs.soccer.physics import ONE, ZERO, root
from slipstream.envs.treechop.layout import (
    AIM,
    ATTACK,
    BACK,
    BITS,
    CUT,
    FORWARD,
    GOT,
    GREEN,
    HALF,
    HIT,
    JUMP,
    LEAF_TICKS,
    LEFT,
    LEVELS,
    LOG_TICKS,
    LOGS,
    PITCH,
    RIGHT,
    SIDE,
    SNEAK,
    SPRINT,
    TALL,
    VX,
    VY,
    VZ,
    WALKED,
    WOOD,
    WORN,
    WRAP,
    YAW,
    F,
    X,
    Y,
    Z,
)
from slipstream.envs.treechop.raycast import aim, bits_of, cosine, is_log, sine
from slipstream.system.numba_compile import Number, compiled, inlined

PUSH, GLIDE = F(0.098), F(0.02)
"""Acceleration per tick on the ground and in the air."""
KEEP, DRIFT = F(0.546), F(0.91)
"""The factor of the speed that remains after a tick, on the ground and in the air."""
SPRINTING, SNEAKING = F(1.3), F(0.3)
LEAP, FALL, DRAG = F(0.42), F(0.08), F(0.98)
CLEAR = F(1e-4)
"""The gap between a player and a log that stopped it."""
STEEP = F(90.0)


@inlined
def turn(s: Array, pitch: Number, yaw: Number) -> None:
    """Turn the view; pitch is limited to straight up and straight down."""
    s[PITCH] = min(max(s[PITCH] + pitch, -STEEP), STEEP)
    turned = s[YAW] + yaw
    if turned >= F(180.0):
        turned -= F(360.0)
    elif turned < F(-180.0):
        turned += F(360.0)
    s[YAW] = turned


@inlined
def bits_between(low: Number, high: Number) -> int:
    """Return the bits of the blocks between two heights."""
    first = max(math.floor(low), 0)
    last = min(math.ceil(high), LEVELS)
    return ((1 << last) - 1) & ~((1 << first) - 1) if last > first else 0


@inlined
def wood_around(cells: Array, x: Number, y: Number) -> int:
    """Return the logs of all columns that a player at this position would touch."""
    found = 0
    for ix in range(math.floor(x - HALF), math.floor(x + HALF) + 1):
        for iy in range(math.floor(y - HALF), math.floor(y + HALF) + 1):
            found |= bits_of(cells, ((ix & WRAP) << BITS) | (iy & WRAP)) >> WOOD
    return found & 255


@inlined
def slide(here: Number, speed: Number) -> Number:
    """Return the position at the edge of the block that stopped a movement."""
    if speed > ZERO:
        return F(math.floor(here + HALF + speed)) - HALF - CLEAR
    return F(math.floor(here - HALF + speed)) + ONE + HALF + CLEAR


@inlined
def walk(s: Array, cells: Array) -> None:
    """Move horizontally, along each axis as far as logs allow."""
    body = bits_between(s[Z] + CLEAR, s[Z] + TALL)
    old_x, old_y = s[X], s[Y]
    x = s[X] + s[VX]
    if wood_around(cells, x, s[Y]) & body:
        x = slide(s[X], s[VX])
        if wood_around(cells, x, s[Y]) & body:
            x = s[X]
        s[VX] = ZERO
    s[X] = x
    y = s[Y] + s[VY]
    if wood_around(cells, s[X], y) & body:
        y = slide(s[Y], s[VY])
        if wood_around(cells, s[X], y) & body:
            y = s[Y]
        s[VY] = ZERO
    s[Y] = y
    s[WALKED] += root((s[X] - old_x) * (s[X] - old_x) + (s[Y] - old_y) * (s[Y] - old_y))
    s[X] = wrapped(s[X])
    s[Y] = wrapped(s[Y])


@inlined
def wrapped(place: Number) -> Number:
    """Return a coordinate wrapped into the world."""
    if place >= F(SIDE):
        return place - F(SIDE)
    return max(place + F(SIDE), ZERO) if place < ZERO else place


@inlined
def floor_under(s: Array, cells: Array) -> Number:
    """Return the height of the floor under the player: the ground, or a log."""
    wood = wood_around(cells, s[X], s[Y])
    level = min(math.floor(s[Z] + CLEAR), LEVELS)
    while level > 0 and not (wood >> (level - 1)) & 1:
        level -= 1
    return F(level)


@inlined
def rise_or_fall(s: Array, cells: Array) -> None:
    """Move vertically."""
    floor = floor_under(s, cells)
    z = s[Z] + s[VZ]
    if s[VZ] > ZERO and wood_around(cells, s[X], s[Y]) & bits_between(s[Z] + CLEAR, z + TALL):
        z, s[VZ] = s[Z], ZERO
    if z <= floor:
        s[Z], s[VZ] = floor, ZERO
    else:
        s[Z] = z
        s[VZ] = (s[VZ] - FALL) * DRAG


@inlined
def move(s: Array, cells: Array, pressed: Array) -> None:
    """Move according to the buttons."""
    grounded = s[VZ] == ZERO and s[Z] <= floor_under(s, cells)
    ahead = F(pressed[FORWARD]) - F(pressed[BACK])
    aside = F(pressed[RIGHT]) - F(pressed[LEFT])
    push = PUSH if grounded else GLIDE
    if ahead != ZERO and aside != ZERO:
        push *= F(0.70710678)
    if pressed[SNEAK]:
        push *= SNEAKING
    elif pressed[SPRINT] and ahead > ZERO:
        push *= SPRINTING
    if grounded and pressed[JUMP]:
        s[VZ] = LEAP
    north, east = cosine(s[YAW]), sine(s[YAW])
    s[VX] += push * (ahead * north - aside * east)
    s[VY] += push * (ahead * east + aside * north)
    walk(s, cells)
    rise_or_fall(s, cells)
    keep = KEEP if grounded else DRIFT
    s[VX] *= keep
    s[VY] *= keep


@inlined
def swing(s: Array, clock: Array, cells: Array, attacks: bool) -> None:
    """Attack the aimed block and break it after enough ticks; another block, or a pause, restarts the count."""
    block = aim(s, cells) if attacks else -1
    if block < 0:
        clock[AIM], clock[WORN] = -1, 0
        return
    if clock[AIM] != block:
        clock[AIM], clock[WORN] = block, 0
    clock[WORN] += 1
    clock[HIT] += 1
    wood = is_log(cells, block)
    if clock[WORN] < (LOG_TICKS if wood else LEAF_TICKS):
        return
    bit = block % LEVELS + (WOOD if wood else GREEN)
    cells[block // LEVELS] = bits_of(cells, block // LEVELS) & ~(1 << bit)
    clock[GOT if wood else CUT] += 1
    clock[LOGS] += 1 if wood else 0
    clock[AIM], clock[WORN] = -1, 0


@compiled
def tick(s: Array, clock: Array, cells: Array, pressed: Array) -> None:
    """Advance one env by one tick."""
    move(s, cells, pressed)
    swing(s, clock, cells, pressed[ATTACK] != 0)
