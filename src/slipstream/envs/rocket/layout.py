"""The columns of `state` and `clock` for rendering a match, in hundreds of unreal units.

As in soccer, x goes along the arena, the blue team attacks +x, and y is to its left. Cars that play come first.
"""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.envs.rocket import batch

TICK_HZ = 120
SCALE = 0.01
X, Y, Z, VX, VY = range(5)
"""Columns of the ball, which comes first; a car begins with the same columns."""
PAD = 5
"""First column of the pads; 1 if the pad is available."""
CARS = PAD + batch.PADS
HX, HY, UP, BOOST, GONE, THERE = range(5, 11)
"""Other columns of a car: heading, up (1 upright to -1 upside down), boost (0 to 1), demolished, present."""
CAR_SIZE = 11
TICKS_LEFT, SCORE, OVERTIME, GAME = 0, 1, 3, 4
"""Columns of a clock; `SCORE` is followed by the goals of the second team."""
CLOCK_SIZE = 5


def cars_in(state: Array) -> int:
    """The number of cars in a row of `state`."""
    return int(state[CARS:].reshape(-1, CAR_SIZE)[:, THERE].sum())


def fill(balls: Array, pads: Array, bodies: Array, places: list[list[int]]) -> Array:
    """The states [envs, columns] of matches, from the simulator's ball, pads and cars in the view of the blue team."""
    envs, slots = bodies.shape[:2]
    state = np.zeros((envs, CARS + slots * CAR_SIZE), np.float32)
    state[:, :CARS] = np.concatenate([_body(balls[:, 0], 0), pads[:, 0]], axis=1)
    for env, playing in enumerate(places):
        own = bodies[env, playing, 0]
        cars = state[env, CARS:].reshape(-1, CAR_SIZE)[: len(playing)]
        forward = batch.BODY + batch.FORWARD
        cars[:, :HX] = _body(own, batch.BODY)
        cars[:, HX], cars[:, HY] = own[:, forward + 1], -own[:, forward]
        cars[:, UP], cars[:, BOOST] = own[:, batch.BODY + batch.UP + 2], own[:, batch.BOOST] / 100
        cars[:, GONE], cars[:, THERE] = own[:, batch.DEMOED], 1
    return state


def _body(rows: Array, start: int) -> Array:
    """Position and velocity [rows, 5] of bodies, rotated so that the blue team attacks +x instead of +y."""
    x, y, z = (rows[:, start + batch.POS + k] for k in range(3))
    vx, vy = rows[:, start + batch.VEL], rows[:, start + batch.VEL + 1]
    moved: Array = np.stack([y, -x, z, vy, -vx], axis=1) * np.float32(SCALE)
    return moved
