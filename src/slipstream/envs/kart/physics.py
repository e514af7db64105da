"""Kart's physics: one tick of one car, as scalar functions on its state row.

`batch` compiles these functions for many environments; tests compare them with the same functions uncompiled. Only
+ - * / and sqrt are used, in float32 and without reordering, so every machine gives the same bits. The total force of
the tyres in all directions is limited by GRIP, so a kart that brakes turns less. Drag is linear and not limited.
"""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.envs.kart.layout import (
    ALONG,
    DONE,
    EDGE,
    GRASS,
    HX,
    HY,
    OFFSET,
    PASSED,
    POINTS,
    SEGMENT,
    SPIN,
    STEER,
    THROTTLE,
    TX,
    TY,
    VERGE,
    VX,
    VY,
    WIDE,
    F,
    X,
    Y,
)
from slipstream.envs.soccer.physics import DT, ONE, TINY, ZERO, root, turn_heading
from slipstream.system.numba_compile import Number, inlined

# Driving, in m, s and rad: PUSH / ROLL is the top speed.
PUSH, BRAKE, REVERSE = F(7.0), F(11.0), F(1.4)
ROLL = F(7.0 / 33.0)
GRIP = F(12.0)
GRASS_GRIP, GRASS_ROLL = F(5.0), F(0.6)  # on grass: the grip of the tyres, and the additional drag
GRAB = F(10.0)  # rate at which sideways speed is removed, 1/s, within the grip
LOCK = F(1.0 / 5.0)  # the largest curvature, at low speed, in 1/m
EAGER = F(1.2)  # full steer requests this multiple of the grip
EAGER_SPEED = F((1.2 * 12.0 * 5.0) ** 0.5)  # speed above which that is less than LOCK
YAW_RESPONSE = F(0.2)  # per tick

# The wall of tyres: share of the speed against it that is reflected, and the loss of speed along it.
BOUNCE, SCRAPE = F(0.2), F(0.7)
MOVES = 4
"""Most points that a car can pass in one tick; at top speed it passes one."""
PER_LAP = ONE / F(POINTS)


@inlined
def drive(s: Array) -> None:
    """Push, turn and move the car."""
    hx, hy = s[HX], s[HY]
    vx, vy = s[VX], s[VY]
    throttle, spin = s[THROTTLE], s[SPIN]
    ahead = vx * hx + vy * hy
    side = vy * hx - vx * hy
    grip, drag = GRIP, ROLL
    if abs(s[OFFSET]) > s[EDGE]:
        grip, drag = GRASS_GRIP, ROLL + GRASS_ROLL
    push = throttle * PUSH
    if throttle * ahead < ZERO:
        push = throttle * BRAKE
    elif throttle < ZERO:
        push = throttle * REVERSE
    turn = ahead * spin - side * GRAB
    square = push * push + turn * turn
    if square > grip * grip:
        hold = grip / root(square)
        push *= hold
        turn *= hold
    keep = ONE - drag * DT
    vx = vx * keep + (push * hx - turn * hy) * DT
    vy = vy * keep + (push * hy + turn * hx) * DT
    s[VX], s[VY] = vx, vy
    s[X] += vx * DT
    s[Y] += vy * DT

    rate = ahead * LOCK
    if abs(ahead) > EAGER_SPEED:
        rate = EAGER * GRIP / ahead
    spin += (s[STEER] * rate - spin) * YAW_RESPONSE
    s[SPIN] = spin
    s[HX], s[HY] = turn_heading(hx, hy, spin * DT)


@inlined
def beyond(track: Array, point: int, x: Number, y: Number) -> Number:
    """Return how far a position lies beyond the line across the track at a point."""
    return (x - track[point, X]) * track[point, TX] + (y - track[point, Y]) * track[point, TY]


@inlined
def locate(s: Array, clock: Array, track: Array) -> None:
    """Update the car's place on the centre line after a move.

    Each point has a line across the track. The car is between the lines of two neighbouring points, and its distances
    from both give its place between them. Between the walls these lines never meet, so the place is unique and
    continuous.
    """
    x, y = s[X], s[Y]
    here, moved = clock[SEGMENT], 0
    there = here + 1 if here + 1 < POINTS else 0
    back, front = beyond(track, here, x, y), beyond(track, there, x, y)
    for _ in range(MOVES):
        if front >= ZERO:
            here, back, moved = there, front, moved + 1
            there = here + 1 if here + 1 < POINTS else 0
            front = beyond(track, there, x, y)
        elif back < ZERO:
            there, front, moved = here, back, moved - 1
            here = there - 1 if there > 0 else POINTS - 1
            back = beyond(track, here, x, y)
        else:
            break
    along = min(max(back / max(back - front, TINY), ZERO), ONE)
    clock[SEGMENT] = here
    clock[PASSED] += moved
    s[ALONG] = along
    s[DONE] = (F(clock[PASSED]) + along) * PER_LAP
    cx = track[here, X] + (track[there, X] - track[here, X]) * along
    cy = track[here, Y] + (track[there, Y] - track[here, Y]) * along
    tx = track[here, TX] + (track[there, TX] - track[here, TX]) * along
    ty = track[here, TY] + (track[there, TY] - track[here, TY]) * along
    s[OFFSET] = (y - cy) * tx - (x - cx) * ty
    s[EDGE] = track[here, WIDE] + (track[there, WIDE] - track[here, WIDE]) * along
    if abs(s[OFFSET]) > s[EDGE] + VERGE:
        rebound(s, tx, ty)


@inlined
def rebound(s: Array, tx: Number, ty: Number) -> None:
    """Move a car back inside the wall, which runs along (tx, ty), and reflect its velocity."""
    sign = ONE if s[OFFSET] > ZERO else -ONE
    nx, ny = -ty * sign, tx * sign
    edge = s[EDGE] + VERGE
    deep = abs(s[OFFSET]) - edge
    s[X] -= nx * deep
    s[Y] -= ny * deep
    s[OFFSET] = edge * sign
    out = s[VX] * nx + s[VY] * ny
    if out > ZERO:
        along = s[VX] * tx + s[VY] * ty
        rub = min(out * SCRAPE, abs(along))
        rub = rub if along > ZERO else -rub
        out *= ONE + BOUNCE
        s[VX] -= nx * out + tx * rub
        s[VY] -= ny * out + ty * rub


@inlined
def tick(s: Array, clock: Array, track: Array) -> None:
    """Advance one env by 1/60 s."""
    drive(s)
    locate(s, clock, track)
    if abs(s[OFFSET]) > s[EDGE]:
        s[GRASS] += ONE
