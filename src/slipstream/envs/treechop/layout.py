"""Treechop's measures and the meaning of every column of its state, clock and cells.

One environment is a float32 row `state` (the player), an int64 row `clock` (counters) and a uint32 row `cells` (one
column of blocks each, x * SIDE + y). Together they are the whole state: a copy of all three continues bit for bit.
Lengths are metres (blocks), x to the north, y to the east, z up. The world wraps around: its north edge joins its
south edge. Angles are degrees, yaw from north to east and pitch from straight ahead downwards.
"""

from __future__ import annotations

from slipstream.envs.soccer import layout as soccer

F = soccer.F

TICK_HZ = 20
SIDE = 64
"""The side of the world; a power of two."""
BITS = 6
WRAP = SIDE - 1
LEVELS = 8
"""Blocks of a column, one bit each; above is sky."""
UNDER = 3
"""Levels below all leaves."""
PIXELS = 64
"""The side of the image."""
EYE, TALL, HALF = F(1.62), F(1.8), F(0.3)
"""The player: eye height, height, and half the width."""
REACH = F(4.5)
RANGE = F(22.0)
"""The view distance."""
LOG_TICKS, LEAF_TICKS = 10, 6
"""Ticks of attack that break a block with an iron axe."""
ENOUGH, ENOUGH_TICKS = 64, 8000
"""The logs that end a game, and MineRL's time limit in ticks."""
TASKS = ("dense", "medium", "sparse")
TREES = (128, 48, 16)
"""Trees in the world of each task."""
SHORTEST, TALLER = 4, 3
"""Logs of a tree: the minimum, and the number of possible heights."""

# Columns of the state, float32
X, Y, Z = 0, 1, 2
"""The position of the player's feet."""
VX, VY, VZ = 3, 4, 5
"""Velocity in metres per tick."""
YAW, PITCH = 6, 7
WALKED = 8
"""Metres walked in this step."""
STATE_SIZE = 9

# Columns of the clock, int64
TICKS_LEFT = 0
LOGS = 1
"""Logs gathered in this game."""
AIM = 2
"""The block under attack, as (x * SIDE + y) * LEVELS + z; -1: none."""
WORN = 3
"""Ticks of attack on that block."""
TICKS = 4
"""Ticks of this step."""
OVER = 5
"""RUNNING, or DONE or TIMED_OUT in the step that ended the game."""
KEY, COUNTER, GAME = soccer.KEY, soccer.COUNTER, soccer.GAME
"""The RNG of this game, in the columns that soccer's RNG uses: the key, the counter, and the seed."""
DECISIONS = 9
GOT, CUT, HIT = 10, 11, 12
"""In this step: logs gathered, leaves cut, and ticks of attack on a block."""
CLOCK_SIZE = 13
RUNNING, DONE, TIMED_OUT = 0, 1, 2

# Bytes of a cell, uint32, by the bit at which they start
GAP = 0
"""The Chebyshev distance to the nearest cell that had blocks when the game started."""
GAP_WOOD = 8
"""The Chebyshev distance to the nearest trunk."""
WOOD, GREEN = 16, 24
"""Logs and leaves: bit z says whether there is a block at height z."""

# Controls of the kernels: the buttons in the order of `minecraft.action_maps.BUTTONS`
ATTACK, BACK, FORWARD, JUMP, LEFT, RIGHT, SNEAK, SPRINT = range(8)
BUTTON_COUNT = 8
