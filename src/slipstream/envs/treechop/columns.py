"""Treechop's columns and measures.

Lengths are metres (blocks), x to the north, y to the east, z up. The world wraps around: its north edge joins its south
edge. Angles are degrees, yaw from north to east and pitch from straight ahead downwards.
"""

from __future__ import annotations

from slipstream.envs import native

TICK_HZ = 20
SIDE = 64
"""The side of the world; a power of two."""
WRAP = SIDE - 1
LEVELS = 16
"""Blocks are numbered (x * SIDE + y) * LEVELS + z."""
TOP = 12
"""The height that no block reaches."""
EYE, TALL, HALF = 1.62, 1.8, 0.3
"""The player: eye height, height, and half the width."""
REACH = 4.5
RANGE = 22.0
"""The view distance."""
LOG_TICKS, LEAF_TICKS = 10, 6
"""Ticks of attack that break a block with an iron axe."""
ENOUGH, ENOUGH_TICKS = 64, 8000
"""The logs that end a game, and MineRL's time limit in ticks."""

PIXELS: int = native.size("size")
"""The side of the image, `env.options.size`."""
SCALARS: int = native.size("scalars")
"""Whether there are observations beside the image, `env.options.scalars`: 1 or 0."""
SCALAR_NAMES = ("compass/angle", "inventory/log")
"""These observations, with the names and order of MineRL's data."""


class State(native.State):
    """The player, and what happened in this step."""

    x: float
    y: float
    z: float
    """The position of the player's feet."""
    vx: float
    vy: float
    vz: float
    """Velocity in metres per tick."""
    yaw: float
    pitch: float
    ticks_left: int
    logs: int
    """Logs gathered in this game."""
    aim: int
    """The block under attack; -1: none."""
    worn: int
    """Ticks of attack on that block."""
    walked: float
    """Metres walked in this step."""
    ticks: int
    gathered: int
    cut: int
    hit: int
    """Ticks, logs gathered, leaves cut, and ticks of attack on a block in this step."""


class World(native.World):
    """The blocks of every column and, for rays, its distance from others when the game began."""

    blocks: native.Array[int] = native.array(SIDE, SIDE)
    """Bits: the logs (12), the leaves (12), the height of the ground (4), and whether that is rock (1)."""
    gaps: native.Array[int] = native.array(SIDE, SIDE)
    """The Chebyshev distance to the nearest column with blocks (8 bits), and to one with logs or ground (8 bits)."""


class Workspace(native.Scratch):
    """What the rays of an image hit: one for every second pixel of every second row, and just outside."""

    block: native.Array[int] = native.array(PIXELS // 2 + 1, PIXELS // 2 + 1)
    face: native.Array[int] = native.array(PIXELS // 2 + 1, PIXELS // 2 + 1)
    distance: native.Array[float] = native.array(PIXELS // 2 + 1, PIXELS // 2 + 1)


class Action(native.Action):
    """MineRL's actions; `minerl_spaces` makes them from the options of an action map."""

    attack: int = native.choice("off", "on")
    back: int = native.choice("off", "on")
    forward: int = native.choice("off", "on")
    jump: int = native.choice("off", "on")
    left: int = native.choice("off", "on")
    right: int = native.choice("off", "on")
    sneak: int = native.choice("off", "on")
    sprint: int = native.choice("off", "on")
    pitch: float = native.box(-180.0, 180.0)
    yaw: float = native.box(-180.0, 180.0)
    """Degrees by which the camera turns, down and to the right."""


class Seen(native.Observation):
    """What the player sees."""

    scalars: native.Array[float] = native.array(2 * SCALARS)
    pov: native.Array[int] = native.image(PIXELS, PIXELS)


class Forest(native.Task):
    """What tasks differ in."""

    trees: int
    hills: int = 0
    rocks: int = 0


TASKS = {
    "dense": Forest(trees=128),
    "medium": Forest(trees=48),
    "sparse": Forest(trees=16),
    "hills": Forest(trees=48, hills=24),
    "rocks": Forest(trees=48, rocks=60),
    "rough": Forest(trees=16, hills=24, rocks=60),
}

FULL = (1 << TOP) - 1


@native.function
def logs_of(blocks: int) -> int:
    """The logs of a column: bit z says whether there is one at height z."""
    return blocks & FULL


@native.function
def leaves_of(blocks: int) -> int:
    """The leaves of a column."""
    return (blocks >> TOP) & FULL


@native.function
def ground_of(blocks: int) -> int:
    """The height of the ground of a column."""
    return (blocks >> (2 * TOP)) & 15


@native.function
def is_rock(blocks: int) -> bool:
    """Whether the ground of a column is rock."""
    return (blocks >> (2 * TOP + 4)) != 0


@native.function
def solid_of(blocks: int) -> int:
    """The logs and the ground of a column, which stop a player."""
    return (blocks & FULL) | ((1 << ground_of(blocks)) - 1)
