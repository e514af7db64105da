"""Treechop's physics: one tick of a player who turns, walks, jumps and swings an axe.

Speeds are Minecraft's: pressed buttons accelerate the player in every tick, and friction slows it down. Logs, hills and
rocks are solid. Leaves are not, but they block the view and the axe. A broken log is gathered at once.
"""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.treechop.columns import (
    HALF,
    LEAF_TICKS,
    LEVELS,
    LOG_TICKS,
    SIDE,
    TALL,
    TOP,
    WRAP,
    Action,
    State,
    World,
    solid_of,
)
from slipstream.envs.treechop.raycast import aim, block_at, cosine, is_log, sine

PUSH, GLIDE = 0.098, 0.02
"""Acceleration per tick on the ground and in the air."""
KEEP, DRIFT = 0.546, 0.91
"""The factor of the speed that remains after a tick, on the ground and in the air."""
SPRINTING, SNEAKING = 1.3, 0.3
LEAP, FALL, DRAG = 0.42, 0.08, 0.98
CLEAR = 1e-4
"""The gap between a player and a block that stopped it."""
STEEP = 90.0


@native.function
def turn(s: State, pitch: float, yaw: float) -> None:
    """Turn the view; pitch is limited to straight up and straight down."""
    s.pitch = min(max(s.pitch + pitch, -STEEP), STEEP)
    turned = s.yaw + yaw
    if turned >= 180.0:
        turned -= 360.0
    elif turned < -180.0:
        turned += 360.0
    s.yaw = turned


@native.function
def bits_between(low: float, high: float) -> int:
    """The bits of the blocks between two heights."""
    first = max(native.floor(low), 0)
    last = min(-native.floor(-high), TOP)
    return ((1 << last) - 1) & ~((1 << first) - 1) if last > first else 0


@native.function
def solid_around(w: World, x: float, y: float) -> int:
    """The solid blocks of all columns that a player at this position would touch."""
    found = 0
    for ix in range(native.floor(x - HALF), native.floor(x + HALF) + 1):
        for iy in range(native.floor(y - HALF), native.floor(y + HALF) + 1):
            found |= solid_of(w.blocks[ix & WRAP, iy & WRAP])
    return found


@native.function
def slide(here: float, speed: float) -> float:
    """The position at the edge of the block that stopped a movement."""
    if speed > 0.0:
        return native.floor(here + HALF + speed) - HALF - CLEAR
    return native.floor(here - HALF + speed) + 1.0 + HALF + CLEAR


@native.function
def wrapped(place: float) -> float:
    """A coordinate wrapped into the world."""
    if place >= SIDE:
        return place - SIDE
    return max(place + SIDE, 0.0) if place < 0.0 else place


@native.function
def walk(s: State, w: World) -> None:
    """Move horizontally, along each axis as far as blocks allow."""
    body = bits_between(s.z + CLEAR, s.z + TALL)
    old_x, old_y = s.x, s.y
    x = s.x + s.vx
    if solid_around(w, x, s.y) & body:
        x = slide(s.x, s.vx)
        if solid_around(w, x, s.y) & body:
            x = s.x
        s.vx = 0.0
    s.x = x
    y = s.y + s.vy
    if solid_around(w, s.x, y) & body:
        y = slide(s.y, s.vy)
        if solid_around(w, s.x, y) & body:
            y = s.y
        s.vy = 0.0
    s.y = y
    s.walked += native.sqrt((s.x - old_x) * (s.x - old_x) + (s.y - old_y) * (s.y - old_y))
    s.x = wrapped(s.x)
    s.y = wrapped(s.y)


@native.function
def floor_under(s: State, w: World) -> int:
    """The height of the floor under the player: the ground, or a log."""
    solid = solid_around(w, s.x, s.y)
    level = min(native.floor(s.z + CLEAR), TOP)
    while level > 0 and not (solid >> (level - 1)) & 1:
        level -= 1
    return level


@native.function
def rise_or_fall(s: State, w: World) -> None:
    """Move vertically."""
    floor = floor_under(s, w)
    z = s.z + s.vz
    if s.vz > 0.0 and solid_around(w, s.x, s.y) & bits_between(s.z + CLEAR, z + TALL):
        z = s.z
        s.vz = 0.0
    if z <= floor:
        s.z, s.vz = floor, 0.0
    else:
        s.z = z
        s.vz = (s.vz - FALL) * DRAG


@native.function
def move(s: State, w: World, action: Action) -> None:
    """Move according to the buttons."""
    grounded = s.vz == 0.0 and s.z <= floor_under(s, w)
    ahead = action.forward - action.back
    aside = action.right - action.left
    push = PUSH if grounded else GLIDE
    if ahead != 0 and aside != 0:
        push *= 0.70710678
    if action.sneak:
        push *= SNEAKING
    elif action.sprint and ahead > 0:
        push *= SPRINTING
    if grounded and action.jump:
        s.vz = LEAP
    north, east = cosine(s.yaw), sine(s.yaw)
    s.vx += push * (ahead * north - aside * east)
    s.vy += push * (ahead * east + aside * north)
    walk(s, w)
    rise_or_fall(s, w)
    keep = KEEP if grounded else DRIFT
    s.vx *= keep
    s.vy *= keep


@native.function
def swing(s: State, w: World, attacks: bool) -> None:
    """Attack the aimed block and break it after enough ticks; another block, or a pause, restarts the count."""
    block = aim(s, w) if attacks else -1
    if block < 0:
        s.aim, s.worn = -1, 0
        return
    if s.aim != block:
        s.aim, s.worn = block, 0
    s.worn += 1
    s.hit += 1
    log = is_log(w, block)
    if s.worn < (LOG_TICKS if log else LEAF_TICKS):
        return
    column = block // LEVELS
    bit = block % LEVELS + (0 if log else TOP)
    w.blocks[column // SIDE, column & WRAP] = block_at(w, block) & ~(1 << bit)
    if log:
        s.gathered += 1
        s.logs += 1
    else:
        s.cut += 1
    s.aim, s.worn = -1, 0


@native.function(inline=False)
def tick(s: State, w: World, action: Action) -> None:
    """Advance the player by one tick."""
    move(s, w, action)
    swing(s, w, action.attack != 0)
