"""Kart's dimensions and the meaning of every column of its state, clock, track and observation.

One environment is a float32 row `state` (the car), an int64 row `clock` (time, place on the track, RNG) and a float32
table `track` [POINTS, TRACK_SIZE]. Together they are the whole state: copy all three and the lap continues bit for bit.
Lengths are in metres, and a lap goes from point 0 to point 1 and so on.
"""

from __future__ import annotations

from slipstream.envs.soccer import layout as soccer

F = soccer.F

# The track and the car
TICK_HZ = soccer.TICK_HZ
POINTS = 192
"""Points of the centre line, at equal distances."""
LEVELS = 5
"""Number of tasks: equal parts of an env's range of difficulties."""
VERGE = F(4.0)
"""Width of the grass on each side, up to the wall of tyres, in m."""
TOP_SPEED = F(33.0)
"""Speed at full throttle, in m/s."""

# Columns of the state, float32
X, Y, VX, VY, HX, HY = 0, 1, 2, 3, 4, 5
"""Position in m, velocity in m/s and heading (a unit vector)."""
SPIN = 6
"""Angular velocity in rad/s (counter-clockwise)."""
STEER, THROTTLE = 7, 8
"""The controls held during this decision; steer +1 is to the left, throttle below 0 brakes and then reverses."""
ALONG = 9
"""Position between the point behind the car (0) and the next one (1)."""
OFFSET, EDGE = 10, 11
"""Metres to the left of the centre line, and half the width of the asphalt there."""
DONE = 12
"""Share of the lap since the start; negative behind it."""
GRASS = 13
"""Ticks of this decision off the asphalt."""
LENGTH, PER_METRE = 14, 15
"""Length of the centre line in m, and its points per metre."""
DIFFICULTY = 16
"""Difficulty of this track, 0 to 1."""
EASIEST, HARDEST = 17, 18
"""Range from which the next track's difficulty is drawn."""
STATE_SIZE = 19

# Columns of the clock, int64
TICKS_LEFT = 0
SEGMENT = 1
"""The point of the track behind the car."""
PASSED = 2
"""Points passed since the start, minus points passed backwards."""
TICKS = 3
"""Ticks of this decision; the one that ends the lap may have fewer than usual."""
START = 4
"""The point at which this lap began."""
OVER = 5
"""RUNNING, or in the decision that ended the lap LAPPED or TIMED_OUT."""
KEY, COUNTER, GAME = soccer.KEY, soccer.COUNTER, soccer.GAME
"""The RNG of this lap, in the columns that soccer's RNG uses: its key, how many numbers were drawn, and its seed."""
DECISIONS = 9
CLOCK_SIZE = 10
RUNNING, LAPPED, TIMED_OUT = 0, 1, 2

# Columns of a track, float32
TX, TY = 2, 3
"""The direction of the centre line, a unit vector, after its X and Y."""
BEND, WIDE = 4, 5
"""Curvature in 1/m, positive to the left, and half the width of the asphalt."""
TRACK_SIZE = 6

# Columns of an observation, float32; "own frame": x ahead of the car, y to its left
O_SPEED = 0  # own frame, ahead / TOP_SPEED and to the left * INV_SLIP
O_SPIN = 2  # * INV_SPIN
O_OFFSET = 3  # / half the width of the asphalt
O_HEADING = 4  # sine and cosine of the angle from the centre line to the heading
O_ASPHALT = 6  # 1 on it, 0 on grass
O_LEFT = 7  # remaining share of the lap
O_EDGE = 8  # half the width of the asphalt here, * INV_WIDE
O_CONTROLS = 9  # steer and throttle of the last decision
O_AHEAD = 11  # LOOKS points ahead on the centre line, AHEAD_SIZE numbers each:
AHEAD_SIZE = 4  # own frame from the car * near(distance), curvature * INV_BEND, half the width * INV_WIDE
DISTANCES = (4.0, 8.0, 13.0, 18.0, 24.0, 31.0, 38.0, 46.0, 55.0, 65.0, 76.0, 88.0)
"""Distances of the points ahead, in m; the last is beyond every braking distance."""
LOOKS = len(DISTANCES)
OBS_SIZE = O_AHEAD + LOOKS * AHEAD_SIZE

INV_TOP = F(1.0 / 33.0)
INV_SLIP = F(1.0 / 8.0)
INV_SPIN = F(1.0 / 3.0)
INV_WIDE = F(1.0 / 8.0)
INV_BEND = F(12.0)
