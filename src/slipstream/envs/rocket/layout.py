"""What a picture of a match holds: columns of `state` and `clock`, in hundreds of unreal units.

As in soccer x goes along the arena, the blue team attacks +x, and y is to its left. Cars that play come first.
"""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.envs.rocket import batch

TICK_HZ = 120
SCALE = 0.01
X, Y, Z, VX, VY = range(5)
"""Columns of the ball, which comes first; a car begins with the same."""
PAD = 5
"""1 for each pad that is there."""
CARS = PAD + batch.PADS
HX, HY, UP, BOOST, GONE, THERE = range(5, 11)
"""Further columns of a car: heading, how upright it is (1 to -1), its boost (0 to 1), demolished, playing at all."""
CAR_SIZE = 11
TICKS_LEFT, SCORE, OVERTIME, GAME = 0, 1, 3, 4
"""Columns of a clock; the goals of the second side are behind those of the first."""
CLOCK_SIZE = 5


def cars_in(state: Array) -> int:
    """Cars that play, by a row of `state`."""
    return int(state[CARS:].reshape(-1, CAR_SIZE)[:, THERE].sum())


def fill(balls: Array, pads: Array, bodies: Array, places: list[list[int]]) -> Array:
    """The states [envs, columns] of matches, from what the simulator tells of ball, pads and cars, blue side up."""
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
    """Place and velocity [rows, 5] of bodies, from +y ahead to +x ahead."""
    x, y, z = (rows[:, start + batch.POS + k] for k in range(3))
    vx, vy = rows[:, start + batch.VEL], rows[:, start + batch.VEL + 1]
    moved: Array = np.stack([y, -x, z, vy, -vx], axis=1) * np.float32(SCALE)
    return moved
