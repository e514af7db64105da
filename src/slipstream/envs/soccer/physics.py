"""Soccer's physics: one tick of one environment, as scalar functions on its state row.

`batch` compiles these functions for many environments; tests compare them with the same functions uncompiled. Only
+ - * / and sqrt are used, in float32 and without reordering, so every machine gives the same bits. Acceleration and
rolling drag are linear in speed, so a tick of free driving needs neither a square root nor a division; only contacts
do.
"""

from __future__ import annotations

import math

from slipstream.contracts import Array
from slipstream.envs.soccer.layout import (
    BALL,
    BALL_RADIUS,
    BALL_SPEED,
    BOOST,
    BOOSTING,
    CAR_LONG,
    CAR_RADIUS,
    CAR_SIZE,
    CAR_WIDE,
    CARS,
    DIAGONAL,
    DRIFTING,
    GOAL,
    GOAL_DEPTH,
    GOAL_WIDTH,
    HX,
    HY,
    LENGTH,
    PAD,
    PAIRS,
    SPIN,
    STEER,
    THROTTLE,
    TOUCH,
    VX,
    VY,
    WIDTH,
    F,
    X,
    Y,
)
from slipstream.system.numba_compile import Number, inlined

ZERO, HALF, ONE, TWO = F(0.0), F(0.5), F(1.0), F(2.0)
DT = F(1.0 / 60.0)
TINY = F(1e-6)

# Driving, per tick: push / ROLL is the speed a car approaches (26 units/s driving, 40 boosting).
ROLL = F(1.8 / 60.0)
PUSH = F(26.0 * 1.8 / 60.0)
BOOST_PUSH = F(14.0 * 1.8 / 60.0)
BRAKING = F(2.2)
REVERSE = F(0.6)
BURN = F(1.0 / 180.0)  # a full tank lasts 3 s
GRIP, SLIDE = F(0.82), F(0.97)  # share of the sideways speed that remains after a tick
TURN, DRIFT_TURN = F(5.5), F(6.5)  # rad/s
TURN_LOSS = F(1.5 / 40.0)  # loss of turn rate per speed, rad/s per unit/s
TURN_SPEED = F(1.0 / 10.0)  # full turn rate from 10 units/s on
CRAWL = F(0.6)  # share of the turn rate of a car that pushes against something
YAW_RESPONSE = F(0.25)
SIXTH, QUARTIC = F(1.0 / 6.0), F(1.0 / 24.0)

# Contacts.
BALL_DRAG = F(0.995)
BALL_BOUNCE, CAR_BOUNCE, BUMP_BOUNCE = F(0.78), F(0.35), F(0.5)
SQRT_HALF, SQRT_TWO = F(0.70710678), F(1.41421356)
HIT_REACH = F((2.3 + 2.53) ** 2)
BALL_SHARE = F(1.1 * 6.0 / 7.0)  # (1 + restitution) * share of the heavier car, 6 : 1
CAR_SHARE = F(1.1 * 1.0 / 7.0)
HIT_BONUS = F(0.5)
SMALL_PAD, BIG_PAD = F(0.15), F(1.0)
SMALL_WAIT, BIG_WAIT = F(240.0), F(600.0)
PAD_REACH = F(3.2 * 3.2)
VISIT = F(4.0)  # each pair of pads is updated every fourth tick


@inlined
def car_at(car: int) -> int:
    """Return the first column of a car."""
    return CARS + car * CAR_SIZE


@inlined
def root(x: Number) -> Number:
    """Return the float32 square root of a number >= 0, also when uncompiled."""
    return F(math.sqrt(x))


@inlined
def pad_x(pair: int) -> Number:
    """Return x of the first pad of a pair; the second is at the opposite point."""
    if pair == 0:
        return ZERO
    return F(14.0) if pair == 1 else F(24.0)


@inlined
def pad_y(pair: int) -> Number:
    """Return y of the first pad of a pair."""
    if pair == 0:
        return F(20.0)
    if pair == 1:
        return ZERO
    return F(12.5) if pair == 2 else F(-12.5)


@inlined
def turn_heading(hx: Number, hy: Number, angle: Number) -> tuple[Number, Number]:
    """Rotate a unit vector by a small angle: series for sine and cosine, then one Newton step back to length 1."""
    square = angle * angle
    sine = angle - angle * square * SIXTH
    cosine = ONE - square * HALF + square * square * QUARTIC
    nx = hx * cosine - hy * sine
    ny = hy * cosine + hx * sine
    scale = (F(3.0) - (nx * nx + ny * ny)) * HALF
    return nx * scale, ny * scale


@inlined
def drive(s: Array, c: int) -> None:
    """Turn, accelerate and move the car whose columns begin at `c`."""
    hx, hy = s[c + HX], s[c + HY]
    vx, vy = s[c + VX], s[c + VY]
    throttle, drifting = s[c + THROTTLE], s[c + DRIFTING] > ZERO
    forward = vx * hx + vy * hy
    side = vy * hx - vx * hy
    push = throttle * PUSH
    if throttle * forward < ZERO:
        push *= BRAKING
    elif throttle < ZERO:
        push *= REVERSE
    fuel = s[c + BOOST]
    if s[c + BOOSTING] > ZERO and fuel > ZERO:
        push += BOOST_PUSH
        s[c + BOOST] = max(fuel - BURN, ZERO)
    forward += push - forward * ROLL
    side *= SLIDE if drifting else GRIP
    vx = forward * hx - side * hy
    vy = forward * hy + side * hx
    s[c + VX], s[c + VY] = vx, vy
    s[c + X] += vx * DT
    s[c + Y] += vy * DT

    rate = (DRIFT_TURN if drifting else TURN) - abs(forward) * TURN_LOSS
    hold = min(max(forward * TURN_SPEED, -ONE), ONE)
    if throttle > ZERO and forward > -ONE:
        hold = max(hold, CRAWL)
    spin = s[c + SPIN]
    spin += (s[c + STEER] * max(rate, ONE) * hold - spin) * YAW_RESPONSE
    s[c + SPIN] = spin
    s[c + HX], s[c + HY] = turn_heading(hx, hy, spin * DT)


@inlined
def reflect(s: Array, at: int, nx: Number, ny: Number, bounce: Number) -> None:
    """Reflect a body's velocity along the inward normal if it moves outward."""
    out = s[at + VX] * nx + s[at + VY] * ny
    if out < ZERO:
        out *= ONE + bounce
        s[at + VX] -= out * nx
        s[at + VY] -= out * ny


@inlined
def contain(s: Array, at: int, radius: Number, bounce: Number) -> None:
    """Keep a body inside walls, angled corners, goal posts and goal boxes."""
    ax, ay = abs(s[at + X]), abs(s[at + Y])
    if ax < LENGTH - radius and ay < WIDTH - radius and ax + ay < DIAGONAL - radius * SQRT_TWO:
        return
    sx = ONE if s[at + X] >= ZERO else -ONE
    sy = ONE if s[at + Y] >= ZERO else -ONE
    if ay > WIDTH - radius:
        ay = WIDTH - radius
        reflect(s, at, ZERO, -sy, bounce)
    if ax > LENGTH - radius:
        if ay >= GOAL_WIDTH:
            if ax < LENGTH + radius or ay >= GOAL_WIDTH + radius:
                ax = LENGTH - radius
                reflect(s, at, -sx, ZERO, bounce)
            else:
                ay = GOAL_WIDTH - radius
                reflect(s, at, ZERO, -sy, bounce)
        elif ax >= LENGTH:
            if ay > GOAL_WIDTH - radius:
                ay = GOAL_WIDTH - radius
                reflect(s, at, ZERO, -sy, bounce)
            if ax > LENGTH + GOAL_DEPTH - radius:
                ax = LENGTH + GOAL_DEPTH - radius
                reflect(s, at, -sx, ZERO, bounce)
        else:
            px, py = ax - LENGTH, ay - GOAL_WIDTH
            square = px * px + py * py
            if square < radius * radius:
                gap = max(root(square), TINY)
                nx, ny = px / gap, py / gap
                ax = LENGTH + nx * radius
                ay = GOAL_WIDTH + ny * radius
                reflect(s, at, nx * sx, ny * sy, bounce)
    over = ax + ay - (DIAGONAL - radius * SQRT_TWO)
    if over > ZERO and ay > GOAL_WIDTH:
        ax -= over * HALF
        ay -= over * HALF
        reflect(s, at, -sx * SQRT_HALF, -sy * SQRT_HALF, bounce)
    s[at + X], s[at + Y] = ax * sx, ay * sy


@inlined
def bump(s: Array, a: int, b: int) -> None:
    """Collide two cars as circles of equal mass."""
    dx, dy = s[b + X] - s[a + X], s[b + Y] - s[a + Y]
    square = dx * dx + dy * dy
    reach = CAR_RADIUS * TWO
    if square >= reach * reach:
        return
    gap = root(square)
    nx, ny = ONE, ZERO
    if gap > TINY:
        nx, ny = dx / gap, dy / gap
    push = (reach - gap) * HALF
    s[a + X] -= nx * push
    s[a + Y] -= ny * push
    s[b + X] += nx * push
    s[b + Y] += ny * push
    closing = (s[a + VX] - s[b + VX]) * nx + (s[a + VY] - s[b + VY]) * ny
    if closing > ZERO:
        impulse = closing * (ONE + BUMP_BOUNCE) * HALF
        s[a + VX] -= nx * impulse
        s[a + VY] -= ny * impulse
        s[b + VX] += nx * impulse
        s[b + VY] += ny * impulse


@inlined
def hit(s: Array, c: int) -> None:
    """Collide a car, as a rotated box, with the ball; a bonus makes the ball leave faster than an elastic hit."""
    dx, dy = s[BALL + X] - s[c + X], s[BALL + Y] - s[c + Y]
    if dx * dx + dy * dy >= HIT_REACH:
        return
    hx, hy = s[c + HX], s[c + HY]
    ahead, left = dx * hx + dy * hy, dy * hx - dx * hy
    px = min(max(ahead, -CAR_LONG), CAR_LONG)
    py = min(max(left, -CAR_WIDE), CAR_WIDE)
    ex, ey = ahead - px, left - py
    square = ex * ex + ey * ey
    if square >= BALL_RADIUS * BALL_RADIUS:
        return
    gap = root(square)
    if gap > TINY:
        ex, ey = ex / gap, ey / gap
    else:  # the ball's centre is inside the box: push it out by the nearer end
        ex, ey = (ONE if ahead >= ZERO else -ONE), ZERO
    nx, ny = ex * hx - ey * hy, ex * hy + ey * hx
    depth = BALL_RADIUS - gap
    s[BALL + X] += nx * depth
    s[BALL + Y] += ny * depth
    # The velocity of the box at the contact point, rotation included.
    spin = s[c + SPIN]
    rx, ry = px * hx - py * hy, px * hy + py * hx
    closing = (s[c + VX] - spin * ry - s[BALL + VX]) * nx + (s[c + VY] + spin * rx - s[BALL + VY]) * ny
    if closing > ZERO:
        # As in Rocket League, a bonus along the line of centres: where the ball is hit decides its direction.
        kick = closing * BALL_SHARE
        bonus = closing * HIT_BONUS / max(root(dx * dx + dy * dy), TINY)
        s[BALL + VX] += nx * kick + dx * bonus
        s[BALL + VY] += ny * kick + dy * bonus
        s[c + VX] -= nx * closing * CAR_SHARE
        s[c + VY] -= ny * closing * CAR_SHARE
        s[c + TOUCH] += closing * (BALL_SHARE + HIT_BONUS)


@inlined
def serve_pads(s: Array, pair: int, cars: int) -> None:
    """Update one pair of pads: count down, or give boost to the nearest car in reach."""
    x, y = pad_x(pair), pad_y(pair)
    for pad in range(PAD + 2 * pair, PAD + 2 * pair + 2):
        if s[pad] > ZERO:
            s[pad] -= VISIT
        else:
            nearest, winner = PAD_REACH, -1
            for car in range(cars):
                c = car_at(car)
                dx, dy = s[c + X] - x, s[c + Y] - y
                square = dx * dx + dy * dy
                if square < nearest and s[c + BOOST] < ONE:
                    nearest, winner = square, c
            if winner >= 0:
                s[winner + BOOST] = min(s[winner + BOOST] + (BIG_PAD if pair == 0 else SMALL_PAD), ONE)
                s[pad] = BIG_WAIT if pair == 0 else SMALL_WAIT
        x, y = -x, -y


@inlined
def tick(s: Array, phase: int, last_first: int, cars: int) -> None:
    """Advance one env by 1/60 s; `phase` selects the pads to update, `last_first` the order in which cars hit."""
    for car in range(cars):
        drive(s, car_at(car))
    for a in range(cars):
        for b in range(a + 1, cars):
            bump(s, car_at(a), car_at(b))
    vx, vy = s[BALL + VX] * BALL_DRAG, s[BALL + VY] * BALL_DRAG
    s[BALL + X] += vx * DT
    s[BALL + Y] += vy * DT
    s[BALL + VX], s[BALL + VY] = vx, vy
    for k in range(cars):
        c = car_at(k + last_first * (cars - 1 - 2 * k))
        hit(s, c)
        contain(s, c, CAR_RADIUS, CAR_BOUNCE)
    square = s[BALL + VX] * s[BALL + VX] + s[BALL + VY] * s[BALL + VY]
    if square > BALL_SPEED * BALL_SPEED:
        scale = BALL_SPEED / root(square)
        s[BALL + VX] *= scale
        s[BALL + VY] *= scale
    contain(s, BALL, BALL_RADIUS, BALL_BOUNCE)
    serve_pads(s, phase % PAIRS, cars)
    if abs(s[BALL + X]) > LENGTH + BALL_RADIUS:
        s[GOAL] = ONE if s[BALL + X] > ZERO else -ONE
