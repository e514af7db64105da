"""Soccer's physics: one tick of a match.

Only + - * / and square roots are used, so every machine gives the same bits. Acceleration and rolling drag are linear
in speed, so a tick of free driving needs neither a square root nor a division; only contacts do.
"""

from __future__ import annotations

import numpy as np

from slipstream.envs import native
from slipstream.envs.soccer.columns import (
    BALL_RADIUS,
    BALL_SPEED,
    BIG_WAIT,
    CAR_LONG,
    CAR_RADIUS,
    CAR_WIDE,
    DIAGONAL,
    GOAL_DEPTH,
    GOAL_WIDTH,
    LENGTH,
    PAD_X,
    PAD_Y,
    PADS,
    SMALL_WAIT,
    WIDTH,
    Body,
    Car,
    State,
    team_size,
)

DT = 1.0 / 60.0
TINY = 1e-6

# Driving, per tick: push / ROLL is the speed a car approaches (26 units/s driving, 40 boosting).
ROLL = 1.8 / 60.0
PUSH = 26.0 * 1.8 / 60.0
BOOST_PUSH = 14.0 * 1.8 / 60.0
BRAKING = 2.2
REVERSE = 0.6
BURN = 1.0 / 180.0  # a full tank lasts 3 s
GRIP, SLIDE = 0.82, 0.97  # share of the sideways speed that remains after a tick
TURN, DRIFT_TURN = 5.5, 6.5  # rad/s
TURN_LOSS = 1.5 / 40.0  # loss of turn rate per speed, rad/s per unit/s
TURN_SPEED = 1.0 / 10.0  # full turn rate from 10 units/s on
CRAWL = 0.6  # share of the turn rate of a car that pushes against something
YAW_RESPONSE = 0.25
SIXTH, QUARTIC = 1.0 / 6.0, 1.0 / 24.0

# Contacts.
BALL_DRAG = 0.995
BALL_BOUNCE, CAR_BOUNCE, BUMP_BOUNCE = 0.78, 0.35, 0.5
SQRT_HALF, SQRT_TWO = 0.70710678, 1.41421356
HIT_REACH = (2.3 + 2.53) ** 2
BALL_SHARE = 1.1 * 6.0 / 7.0  # (1 + restitution) * share of the heavier car, 6 : 1
CAR_SHARE = 1.1 * 1.0 / 7.0
HIT_BONUS = 0.5
SMALL_PAD, BIG_PAD = 0.15, 1.0
PAD_REACH = 3.2 * 3.2
VISIT = 4.0  # each pair of pads is updated every fourth tick
ROLL_OUT = float(np.float32(1.0 / 60.0) / (np.float32(1.0) - np.float32(0.995)))
"""Distance that a ball rolls until it rests, per unit/s of speed, in seconds: DT / (1 - BALL_DRAG) in float32."""


@native.function
def turn(hx: float, hy: float, angle: float) -> tuple[float, float]:
    """Rotate a unit vector by a small angle: series for sine and cosine, then one Newton step back to length 1."""
    square = angle * angle
    sine = angle - angle * square * SIXTH
    cosine = 1.0 - square * 0.5 + square * square * QUARTIC
    nx = hx * cosine - hy * sine
    ny = hy * cosine + hx * sine
    scale = (3.0 - (nx * nx + ny * ny)) * 0.5
    return nx * scale, ny * scale


@native.function
def drive(car: Car) -> None:
    """Turn, accelerate and move a car."""
    hx, hy, vx, vy = car.hx, car.hy, car.vx, car.vy
    throttle, drifting = car.throttle, car.drifting > 0.0
    forward = vx * hx + vy * hy
    side = vy * hx - vx * hy
    push = throttle * PUSH
    if throttle * forward < 0.0:
        push *= BRAKING
    elif throttle < 0.0:
        push *= REVERSE
    if car.boosting > 0.0 and car.boost > 0.0:
        push += BOOST_PUSH
        car.boost = max(car.boost - BURN, 0.0)
    forward += push - forward * ROLL
    side *= SLIDE if drifting else GRIP
    vx = forward * hx - side * hy
    vy = forward * hy + side * hx
    car.vx, car.vy = vx, vy
    car.x += vx * DT
    car.y += vy * DT

    rate = (DRIFT_TURN if drifting else TURN) - abs(forward) * TURN_LOSS
    hold = min(max(forward * TURN_SPEED, -1.0), 1.0)
    if throttle > 0.0 and forward > -1.0:
        hold = max(hold, CRAWL)
    spin = car.spin
    spin += (car.steer * max(rate, 1.0) * hold - spin) * YAW_RESPONSE
    car.spin = spin
    car.hx, car.hy = turn(hx, hy, spin * DT)


@native.function
def reflect(body: Body, nx: float, ny: float, bounce: float) -> None:
    """Reflect a body's velocity along the inward normal if it moves outward."""
    out = body.vx * nx + body.vy * ny
    if out < 0.0:
        out *= 1.0 + bounce
        body.vx -= out * nx
        body.vy -= out * ny


@native.function
def contain(body: Body, radius: float, bounce: float) -> None:
    """Keep a body inside walls, angled corners, goal posts and goal boxes."""
    ax, ay = abs(body.x), abs(body.y)
    if ax < LENGTH - radius and ay < WIDTH - radius and ax + ay < DIAGONAL - radius * SQRT_TWO:
        return
    sx = 1.0 if body.x >= 0.0 else -1.0
    sy = 1.0 if body.y >= 0.0 else -1.0
    if ay > WIDTH - radius:
        ay = WIDTH - radius
        reflect(body, 0.0, -sy, bounce)
    if ax > LENGTH - radius:
        if ay >= GOAL_WIDTH:
            if ax < LENGTH + radius or ay >= GOAL_WIDTH + radius:
                ax = LENGTH - radius
                reflect(body, -sx, 0.0, bounce)
            else:
                ay = GOAL_WIDTH - radius
                reflect(body, 0.0, -sy, bounce)
        elif ax >= LENGTH:
            if ay > GOAL_WIDTH - radius:
                ay = GOAL_WIDTH - radius
                reflect(body, 0.0, -sy, bounce)
            if ax > LENGTH + GOAL_DEPTH - radius:
                ax = LENGTH + GOAL_DEPTH - radius
                reflect(body, -sx, 0.0, bounce)
        else:
            px, py = ax - LENGTH, ay - GOAL_WIDTH
            square = px * px + py * py
            if square < radius * radius:
                gap = max(native.sqrt(square), TINY)
                nx, ny = px / gap, py / gap
                ax = LENGTH + nx * radius
                ay = GOAL_WIDTH + ny * radius
                reflect(body, nx * sx, ny * sy, bounce)
    over = ax + ay - (DIAGONAL - radius * SQRT_TWO)
    if over > 0.0 and ay > GOAL_WIDTH:
        ax -= over * 0.5
        ay -= over * 0.5
        reflect(body, -sx * SQRT_HALF, -sy * SQRT_HALF, bounce)
    body.x, body.y = ax * sx, ay * sy


@native.function
def bump(a: Car, b: Car) -> None:
    """Collide two cars as circles of equal mass."""
    dx, dy = b.x - a.x, b.y - a.y
    square = dx * dx + dy * dy
    reach = CAR_RADIUS * 2.0
    if square >= reach * reach:
        return
    gap = native.sqrt(square)
    nx, ny = 1.0, 0.0
    if gap > TINY:
        nx, ny = dx / gap, dy / gap
    push = (reach - gap) * 0.5
    a.x -= nx * push
    a.y -= ny * push
    b.x += nx * push
    b.y += ny * push
    closing = (a.vx - b.vx) * nx + (a.vy - b.vy) * ny
    if closing > 0.0:
        impulse = closing * (1.0 + BUMP_BOUNCE) * 0.5
        a.vx -= nx * impulse
        a.vy -= ny * impulse
        b.vx += nx * impulse
        b.vy += ny * impulse


@native.function
def hit(ball: Body, car: Car) -> None:
    """Collide a car, as a rotated box, with the ball; a bonus makes the ball leave faster than an elastic hit."""
    dx, dy = ball.x - car.x, ball.y - car.y
    if dx * dx + dy * dy >= HIT_REACH:
        return
    hx, hy = car.hx, car.hy
    ahead, left = dx * hx + dy * hy, dy * hx - dx * hy
    px = min(max(ahead, -CAR_LONG), CAR_LONG)
    py = min(max(left, -CAR_WIDE), CAR_WIDE)
    ex, ey = ahead - px, left - py
    square = ex * ex + ey * ey
    if square >= BALL_RADIUS * BALL_RADIUS:
        return
    gap = native.sqrt(square)
    if gap > TINY:
        ex, ey = ex / gap, ey / gap
    else:  # the ball's centre is inside the box: push it out by the nearer end
        ex, ey = (1.0 if ahead >= 0.0 else -1.0), 0.0
    nx, ny = ex * hx - ey * hy, ex * hy + ey * hx
    depth = BALL_RADIUS - gap
    ball.x += nx * depth
    ball.y += ny * depth
    # The velocity of the box at the contact point, rotation included.
    rx, ry = px * hx - py * hy, px * hy + py * hx
    closing = (car.vx - car.spin * ry - ball.vx) * nx + (car.vy + car.spin * rx - ball.vy) * ny
    if closing > 0.0:
        # As in Rocket League, a bonus along the line of centres: where the ball is hit decides its direction.
        kick = closing * BALL_SHARE
        bonus = closing * HIT_BONUS / max(native.sqrt(dx * dx + dy * dy), TINY)
        ball.vx += nx * kick + dx * bonus
        ball.vy += ny * kick + dy * bonus
        car.vx -= nx * closing * CAR_SHARE
        car.vy -= ny * closing * CAR_SHARE
        car.touch += closing * (BALL_SHARE + HIT_BONUS)


@native.function
def serve_pads(s: State, pair: int) -> None:
    """Update one pair of pads: count down, or give boost to the nearest car in reach."""
    x, y = PAD_X[pair], PAD_Y[pair]
    for pad in range(2 * pair, 2 * pair + 2):
        if s.pads[pad] > 0.0:
            s.pads[pad] -= VISIT
        else:
            nearest, winner = PAD_REACH, -1
            for k in range(2 * team_size(s)):
                dx, dy = s.cars[k].x - x, s.cars[k].y - y
                square = dx * dx + dy * dy
                if square < nearest and s.cars[k].boost < 1.0:
                    nearest, winner = square, k
            if winner >= 0:
                car = s.cars[winner]
                car.boost = min(car.boost + (BIG_PAD if pair == 0 else SMALL_PAD), 1.0)
                s.pads[pad] = BIG_WAIT if pair == 0 else SMALL_WAIT
        x, y = -x, -y


@native.function
def tick(s: State, phase: int, last_first: int) -> None:
    """Advance a match by 1/60 s; `phase` selects the pads to update, `last_first` the order in which cars hit."""
    cars = 2 * team_size(s)
    for k in range(cars):
        drive(s.cars[k])
    for a in range(cars):
        for b in range(a + 1, cars):
            bump(s.cars[a], s.cars[b])
    ball = s.ball
    vx, vy = ball.vx * BALL_DRAG, ball.vy * BALL_DRAG
    ball.x += vx * DT
    ball.y += vy * DT
    ball.vx, ball.vy = vx, vy
    for k in range(cars):
        car = s.cars[k + last_first * (cars - 1 - 2 * k)]
        hit(ball, car)
        contain(car, CAR_RADIUS, CAR_BOUNCE)
    square = ball.vx * ball.vx + ball.vy * ball.vy
    if square > BALL_SPEED * BALL_SPEED:
        scale = BALL_SPEED / native.sqrt(square)
        ball.vx *= scale
        ball.vy *= scale
    contain(ball, BALL_RADIUS, BALL_BOUNCE)
    serve_pads(s, phase % (PADS // 2))
    if abs(ball.x) > LENGTH + BALL_RADIUS:
        s.goal = 1.0 if ball.x > 0.0 else -1.0
