"""Where a kart's lap begins: at rest on the start line, or at a random place and speed on the asphalt."""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.kart.layout import (
    COUNTER,
    DECISIONS,
    EASIEST,
    GAME,
    HX,
    HY,
    KEY,
    OVER,
    PASSED,
    POINTS,
    RUNNING,
    SEGMENT,
    START,
    TICKS,
    TICKS_LEFT,
    TX,
    TY,
    VX,
    VY,
    WIDE,
    F,
    X,
    Y,
)
from slipstream.envs.kart.physics import locate
from slipstream.envs.soccer.physics import ONE, ZERO, root
from slipstream.envs.soccer.rng import draw, spread
from slipstream.system.numba_compile import Number, inlined
from slipstream.system.rng import game_key, next_game

ROLLING, ASKEW, INSIDE = F(20.0), F(0.5), F(0.9)
"""Random starts: largest speed in m/s, largest slope of the heading to the track, and share of the width in use."""


@inlined
def place(s: Array, clock: Array, track: Array, point: int, offset: Number, slope: Number, speed: Number) -> None:
    """Place a car `offset` metres left of a point of the track, with `slope` as tangent of its angle to the track."""
    tx, ty = track[point, TX], track[point, TY]
    s[X], s[Y] = track[point, X] - ty * offset, track[point, Y] + tx * offset
    scale = ONE / root(ONE + slope * slope)
    s[HX], s[HY] = (tx - ty * slope) * scale, (ty + tx * slope) * scale
    s[VX], s[VY] = s[HX] * speed, s[HY] * speed
    clock[SEGMENT] = clock[START] = point
    clock[PASSED] = 0
    locate(s, clock, track)


@inlined
def new_lap(s: Array, clock: Array, game: int, sums: Array, limit_ticks: int) -> None:
    """Reset state and clock for the lap of the seed `game` or, if that is negative, the env's next lap."""
    for k in range(sums.shape[0]):
        sums[k] = ZERO
    for k in range(EASIEST):
        s[k] = ZERO
    clock[TICKS_LEFT] = limit_ticks
    clock[TICKS] = 0
    clock[OVER] = RUNNING
    clock[DECISIONS] = 0
    clock[GAME] = game if game >= 0 else next_game(clock[GAME])
    clock[KEY] = game_key(clock[GAME])
    clock[COUNTER] = 0


@inlined
def set_off(s: Array, clock: Array, track: Array, random_starts: Number) -> None:
    """Place the car at the start of its lap."""
    if draw(clock) < random_starts:
        point = int(draw(clock) * F(POINTS))
        offset = spread(clock, track[point, WIDE] * INSIDE)
        place(s, clock, track, point, offset, spread(clock, ASKEW), draw(clock) * ROLLING)
    else:
        place(s, clock, track, 0, ZERO, ZERO, ZERO)
