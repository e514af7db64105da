"""Soccer's random numbers and starting positions: a counter-based RNG, kick-offs and random starts.

A random number is a hash of the match's key and of how many were drawn, both in the clock. The key follows from the
seed of the match alone, so that a match can be repeated in any env.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.soccer.layout import (
    BALL,
    BOOST,
    CAR_SIZE,
    COUNTER,
    DECISIONS,
    DIAGONAL,
    GAME,
    GOAL,
    HX,
    HY,
    KEY,
    KICKOFF,
    LENGTH,
    OVER,
    OVERTIME,
    PAD,
    PADS,
    SCORE,
    TICKS_LEFT,
    VX,
    VY,
    WIDTH,
    F,
    X,
    Y,
)
from slipstream.envs.soccer.physics import HALF, ONE, TWO, ZERO, car_at, root
from slipstream.system.numba_compile import Number, inlined
from slipstream.system.rng import game_key, mix, next_game

START_BOOST = F(0.34)
JITTER = F(1.5)
BALL_START, CAR_START = F(12.0), F(20.0)
MARGIN = F(5.0)
UNIT = F(2.0**-24)


@inlined
def draw(clock: Array) -> Number:
    """Return the next number in [0, 1) of a match."""
    counter = clock[COUNTER]
    clock[COUNTER] = counter + 1
    return F(mix(mix(counter) ^ clock[KEY]) >> 8) * UNIT


@inlined
def spread(clock: Array, size: Number) -> Number:
    """Return the next number in [-size, size)."""
    return (draw(clock) * TWO - ONE) * size


@inlined
def place(s: Array, c: int, x: Number, y: Number, dx: Number, dy: Number) -> None:
    """Place a car at rest at (x, y), facing along (dx, dy)."""
    for k in range(CAR_SIZE):
        s[c + k] = ZERO
    s[c + X], s[c + Y] = x, y
    length = root(dx * dx + dy * dy)
    if length > F(0.01):
        s[c + HX], s[c + HY] = dx / length, dy / length
    else:
        s[c + HX] = ONE
    s[c + BOOST] = START_BOOST


@inlined
def line_up(s: Array, clock: Array, team_size: int) -> None:
    """Set a symmetric kick-off: a random one of five positions for each pair of cars, with the same jitter."""
    first = int(draw(clock) * F(5.0))
    for k in range(team_size):
        spot = (first + 2 * k) % 5
        if spot == 0:
            x, y = F(-24.0), ZERO
        elif spot < 3:
            x, y = F(-19.0), F(12.0)
        else:
            x, y = F(-29.0), F(5.0)
        if spot == 2 or spot == 4:
            y = -y
        x += spread(clock, JITTER)
        y += spread(clock, JITTER)
        place(s, car_at(k), x, y, -x, -y)
        place(s, car_at(k + team_size), -x, -y, x, y)


@inlined
def put_anywhere(s: Array, clock: Array, at: int, speed: Number) -> None:
    """Give a body a random position in the arena and a random velocity."""
    x, y = spread(clock, LENGTH - MARGIN), spread(clock, WIDTH - MARGIN)
    if abs(x) + abs(y) > DIAGONAL - MARGIN * TWO:
        x, y = x * F(0.75), y * F(0.75)
    s[at + X], s[at + Y] = x, y
    s[at + VX], s[at + VY] = spread(clock, speed), spread(clock, speed)


@inlined
def scatter(s: Array, clock: Array, team_size: int) -> None:
    """Set a random state: ball and cars anywhere, moving, with any amount of boost."""
    put_anywhere(s, clock, BALL, BALL_START)
    s[BALL + X] *= F(0.85)  # not in a goal mouth from the start
    for car in range(2 * team_size):
        c = car_at(car)
        place(s, c, ZERO, ZERO, spread(clock, ONE), spread(clock, ONE))
        put_anywhere(s, clock, c, ONE)
        speed = spread(clock, HALF) + HALF
        s[c + VX] = s[c + HX] * speed * CAR_START
        s[c + VY] = s[c + HY] * speed * CAR_START
        s[c + BOOST] = draw(clock)


@inlined
def kick_off(s: Array, clock: Array, team_size: int, random_starts: Number) -> None:
    """Set a kick-off from the middle or, with probability `random_starts`, from a random state; all pads return."""
    for k in range(4):
        s[BALL + k] = ZERO
    s[GOAL] = ZERO
    for pad in range(PAD, PAD + PADS):
        s[pad] = ZERO
    clock[KICKOFF] = 0
    if draw(clock) < random_starts:
        scatter(s, clock, team_size)
    else:
        line_up(s, clock, team_size)


@inlined
def new_match(s: Array, clock: Array, game: int, team_size: int, match_ticks: int, random_starts: Number) -> None:
    """Begin the match of the seed `game` or, if that is negative, the env's next match."""
    clock[GAME] = game if game >= 0 else next_game(clock[GAME])
    clock[KEY] = game_key(clock[GAME])
    clock[COUNTER] = 0
    clock[TICKS_LEFT] = match_ticks
    clock[SCORE] = 0
    clock[SCORE + 1] = 0
    clock[OVERTIME] = 0
    clock[OVER] = 0
    clock[DECISIONS] = 0
    kick_off(s, clock, team_size, random_starts)
