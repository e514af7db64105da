"""Soccer's dimensions and the meaning of every column of its state, clock and observation.

One environment is a float32 row `state` (bodies and controls) and an int64 row `clock` (time, score, RNG). Both
together are the whole state: copy them and the match continues bit for bit. The arena is centred on (0, 0), team 0
attacks +x and team 1 attacks -x. Lengths are in units, of which a car is about four long.
"""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array

F = np.float32

# The arena
TICK_HZ = 60
LENGTH = F(36.0)
"""Half the length: the goal lines are at x = -LENGTH and x = LENGTH."""
WIDTH = F(25.0)
"""Half the width."""
DIAGONAL = F(52.0)
"""The angled corners: |x| + |y| <= DIAGONAL."""
GOAL_WIDTH = F(9.0)
"""Half the width of a goal mouth."""
GOAL_DEPTH = F(6.0)
BALL_RADIUS = F(2.3)
CAR_RADIUS = F(1.9)
"""For walls and other cars a car is a circle of this radius; for the ball it is a box."""
CAR_LONG = F(2.1)
CAR_WIDE = F(1.4)
"""Half the length and half the width of that box."""
PAIRS = 4
"""Pads come in pairs (x, y), (-x, -y): pad 2k and pad 2k + 1. Pair 0 is the big one."""
PADS = 2 * PAIRS
BALL_SPEED = F(60.0)
"""Maximum speed of the ball, in units/s."""
DRIVE_SPEED = F(26.0)
BOOST_SPEED = F(40.0)
"""Speed of a car at full throttle, without and with boost, in units/s."""

# Columns of the state, float32
BALL = 0
X, Y, VX, VY = 0, 1, 2, 3
"""Offsets of position (units) and velocity (units/s), for the ball and for a car."""
GOAL = 4
"""+1 if team 0 scored in this decision, -1 if team 1 did, else 0."""
PAD = 5
"""Ticks until each pad returns; 0: it is available."""
CARS = PAD + PADS
HX, HY, SPIN, BOOST = 4, 5, 6, 7
"""Heading (a unit vector), angular velocity in rad/s (counter-clockwise), boost in [0, 1]."""
THROTTLE, STEER, BOOSTING, DRIFTING = 8, 9, 10, 11
"""The controls held during this decision; steer +1 is to the left (counter-clockwise)."""
TOUCH = 12
"""Change of the ball's speed by this car in this decision, in units/s."""
CAR_SIZE = 13

# Columns of the clock, int64
TICKS_LEFT = 0
SCORE = 1
"""Goals of team 0; the goals of team 1 are in the next column."""
OVERTIME = 3
KICKOFF = 4
"""1 if a kick-off is due: after a goal, and when overtime begins."""
OVER = 5
"""1 in the decision that ended the match."""
KEY, COUNTER = 6, 7
"""The RNG of this match: its key, and how many numbers were drawn from it."""
GAME = 8
"""The seed of this match, from which its key follows; the env's next match has the next seed."""
DECISIONS = 9
CLOCK_SIZE = 10

# Columns of an observation, float32
# "own frame": x ahead of the car, y to its left. "arena": the arena rotated so that the car attacks +x.
O_POSITION = 0  # arena, / (LENGTH, WIDTH)
O_HEADING = 2  # arena
O_VELOCITY = 4  # own frame, / BOOST_SPEED
O_SPIN = 6
O_BOOST = 7
O_CLOCK = 8  # remaining share of the match
O_OVERTIME = 9
O_SCORE = 10  # goals ahead, / 3, clipped
O_BALL = 11  # own frame, from the car, * NEAR
O_BALL_DISTANCE = 13  # * NEAR
O_BALL_VELOCITY = 14  # own frame, minus the car's own, / BOOST_SPEED
O_BALL_POSITION = 16  # arena, / (LENGTH, WIDTH)
O_BALL_MOTION = 18  # arena, / BOOST_SPEED
O_TARGET = 20  # opponent goal, own frame, from the car, * NEAR
O_HOME = 22  # own goal, the same
O_SHOT = 24  # unit vector from the ball to the opponent goal, own frame
O_NEAREST_PAD = 26  # nearest available pad, own frame, from the car, * NEAR
O_PADS = 28  # 1 for an available pad, else rising from 0 until it returns
O_OTHERS = O_PADS + PADS
OTHER_SIZE = 8  # own frame: position * NEAR, velocity minus own / BOOST_SPEED, heading; boost; distance to ball * NEAR
SLOTS = 3
"""Most cars per team in the mixed variant."""
O_PRESENT = O_OTHERS + (2 * SLOTS - 1) * OTHER_SIZE  # mixed only: 1 for each other car that is present
MIXED_OBS = O_PRESENT + 2 * SLOTS - 1

NEAR = F(1.0 / 45.0)
INV_LENGTH = F(1.0 / 36.0)
INV_WIDTH = F(1.0 / 25.0)
INV_SPEED = F(1.0 / 40.0)
INV_SPIN = F(1.0 / 5.0)


def state_size(team_size: int) -> int:
    """Columns of `state` for two teams of `team_size` cars."""
    return CARS + 2 * team_size * CAR_SIZE


def cars_in(state: Array) -> int:
    """Number of cars that play in an env with this state row; in the mixed variant absent cars come last."""
    headings = state[CARS:].reshape(-1, CAR_SIZE)[:, HX : HY + 1]
    return int(headings.any(axis=1).sum())


def obs_size(team_size: int) -> int:
    """Length of one observation: 44 at 1v1, 60 at 2v2, 76 at 3v3."""
    return O_OTHERS + (2 * team_size - 1) * OTHER_SIZE
