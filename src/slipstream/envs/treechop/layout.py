"""Treechop's measures and the meaning of every column of its state, clock and cells.

One environment is a float32 row `state` (where the player is), an int64 row `clock` (what counts) and a uint32 row
`cells` (a column of blocks each, x * SIDE + y). Together they are everything: copy all three and the game goes on bit
for bit. Lengths are metres, which are blocks, x to the north, y to the east, z up; the world has no edge: who leaves it
in the north comes in again from the south. Angles are degrees, yaw from north to east and pitch from ahead to below.
"""

from __future__ import annotations

from slipstream.envs.soccer import layout as soccer

F = soccer.F

TICK_HZ = 20
SIDE = 64
"""Of the world; a power of two."""
BITS = 6
WRAP = SIDE - 1
LEVELS = 8
"""Blocks of a column, one bit each; above them is sky."""
UNDER = 3
"""Blocks below all leaves."""
PIXELS = 64
"""Of the picture, on each side."""
EYE, TALL, HALF = F(1.62), F(1.8), F(0.3)
"""The player: eyes, height, and half the width."""
REACH = F(4.5)
RANGE = F(22.0)
"""How far one sees."""
LOG_TICKS, LEAF_TICKS = 10, 6
"""Ticks of attack that break a block, by an iron axe."""
ENOUGH, ENOUGH_TICKS = 64, 8000
"""The logs that end a game, and the ticks that MineRL gives for them."""
TASKS = ("dense", "medium", "sparse")
TREES = (128, 48, 16)
"""Trees in the world of each task."""
SHORTEST, TALLER = 4, 3
"""Logs of a tree: the fewest, and so many heights from there on."""

# Columns of the state, float32
X, Y, Z = 0, 1, 2
"""Where the player's feet are."""
VX, VY, VZ = 3, 4, 5
"""Metres per tick."""
YAW, PITCH = 6, 7
WALKED = 8
"""Metres in this decision."""
STATE_SIZE = 9

# Columns of the clock, int64
TICKS_LEFT = 0
LOGS = 1
"""Gathered in this game."""
AIM = 2
"""The block that is being broken, as (x * SIDE + y) * LEVELS + z; -1: none."""
WORN = 3
"""Ticks that it has been attacked."""
TICKS = 4
"""Ticks that this decision lasted."""
OVER = 5
"""RUNNING, or in the decision that ended the game DONE or TIMED_OUT."""
KEY, COUNTER, GAME = soccer.KEY, soccer.COUNTER, soccer.GAME
"""The chance of this game, where soccer's draws look for it: a key, how many numbers were drawn, and its seed."""
DECISIONS = 9
GOT, CUT, HIT = 10, 11, 12
"""In this decision: logs gathered, leaves cut, and ticks of attack on a block."""
CLOCK_SIZE = 13
RUNNING, DONE, TIMED_OUT = 0, 1, 2

# Bytes of a cell, uint32, by the bit at which they start
GAP = 0
"""How many steps of a king on a chess board it is to the next cell that had blocks when the game began."""
GAP_WOOD = 8
"""The same to the next trunk."""
WOOD, GREEN = 16, 24
"""Logs and leaves: bit z says whether there is a block at height z."""

# Controls, as a kernel takes them: the buttons in the order of `core.actions.BUTTONS`
ATTACK, BACK, FORWARD, JUMP, LEFT, RIGHT, SNEAK, SPRINT = range(8)
BUTTON_COUNT = 8
