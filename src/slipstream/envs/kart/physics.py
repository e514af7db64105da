"""Kart's physics: one tick of one car.

Only + - * / and square roots are used, so every machine gives the same bits. The total force of the tyres in all
directions is limited by GRIP, so a kart that brakes turns less. Drag is linear and not limited.
"""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.kart.columns import POINTS, VERGE, Point, State, Track
from slipstream.envs.soccer.physics import DT, TINY, turn

# Driving, in m, s and rad: PUSH / ROLL is the top speed.
PUSH, BRAKE, REVERSE = 7.0, 11.0, 1.4
ROLL = 7.0 / 33.0
GRIP = 12.0
GRASS_GRIP, GRASS_ROLL = 5.0, 0.6  # on grass: the grip of the tyres, and the additional drag
GRAB = 10.0  # rate at which sideways speed is removed, 1/s, within the grip
LOCK = 1.0 / 5.0  # the largest curvature, at low speed, in 1/m
EAGER = 1.2  # full steer requests this multiple of the grip
EAGER_SPEED = (1.2 * 12.0 * 5.0) ** 0.5  # speed above which that is less than LOCK
YAW_RESPONSE = 0.2  # per tick

# The wall of tyres: share of the speed against it that is reflected, and the loss of speed along it.
BOUNCE, SCRAPE = 0.2, 0.7
MOVES = 4
"""Most points that a car can pass in one tick; at top speed it passes one."""
PER_LAP = 1.0 / POINTS


@native.function
def drive(s: State) -> None:
    """Push, turn and move the car."""
    hx, hy, vx, vy = s.hx, s.hy, s.vx, s.vy
    throttle, spin = s.throttle, s.spin
    ahead = vx * hx + vy * hy
    side = vy * hx - vx * hy
    grip, drag = GRIP, ROLL
    if abs(s.offset) > s.edge:
        grip, drag = GRASS_GRIP, ROLL + GRASS_ROLL
    push = throttle * PUSH
    if throttle * ahead < 0.0:
        push = throttle * BRAKE
    elif throttle < 0.0:
        push = throttle * REVERSE
    pull = ahead * spin - side * GRAB
    square = push * push + pull * pull
    if square > grip * grip:
        hold = grip / native.sqrt(square)
        push *= hold
        pull *= hold
    keep = 1.0 - drag * DT
    vx = vx * keep + (push * hx - pull * hy) * DT
    vy = vy * keep + (push * hy + pull * hx) * DT
    s.vx, s.vy = vx, vy
    s.x += vx * DT
    s.y += vy * DT

    rate = ahead * LOCK
    if abs(ahead) > EAGER_SPEED:
        rate = EAGER * GRIP / ahead
    spin += (s.steer * rate - spin) * YAW_RESPONSE
    s.spin = spin
    s.hx, s.hy = turn(hx, hy, spin * DT)


@native.function
def lerp(a: float, b: float, share: float) -> float:
    """The number at a share of the way from `a` to `b`."""
    return a + (b - a) * share


@native.function
def next_point(point: int) -> int:
    """The point after this one."""
    return point + 1 if point + 1 < POINTS else 0


@native.function
def beyond(point: Point, x: float, y: float) -> float:
    """How far a position lies beyond the line across the track at a point."""
    return (x - point.x) * point.tx + (y - point.y) * point.ty


@native.function
def locate(s: State, track: Track) -> None:
    """Update the car's place on the centre line after a move.

    Each point has a line across the track. The car is between the lines of two neighbouring points, and its distances
    from both give its place between them. Between the walls these lines never meet, so the place is unique and
    continuous.
    """
    x, y = s.x, s.y
    here, moved = s.segment, 0
    there = next_point(here)
    back, front = beyond(track.points[here], x, y), beyond(track.points[there], x, y)
    for _ in range(MOVES):
        if front >= 0.0:
            here, back, moved = there, front, moved + 1
            there = next_point(here)
            front = beyond(track.points[there], x, y)
        elif back < 0.0:
            there, front, moved = here, back, moved - 1
            here = there - 1 if there > 0 else POINTS - 1
            back = beyond(track.points[here], x, y)
        else:
            break
    along = min(max(back / max(back - front, TINY), 0.0), 1.0)
    passed = s.passed + moved
    s.segment, s.passed, s.along = here, passed, along
    s.done = (passed + along) * PER_LAP
    a = track.points[here]
    b = track.points[there]
    tx, ty = lerp(a.tx, b.tx, along), lerp(a.ty, b.ty, along)
    s.offset = (y - lerp(a.y, b.y, along)) * tx - (x - lerp(a.x, b.x, along)) * ty
    s.edge = lerp(a.half_width, b.half_width, along)
    if abs(s.offset) > s.edge + VERGE:
        rebound(s, tx, ty)


@native.function
def rebound(s: State, tx: float, ty: float) -> None:
    """Move a car back inside the wall, which runs along (tx, ty), and reflect its velocity."""
    sign = 1.0 if s.offset > 0.0 else -1.0
    nx, ny = -ty * sign, tx * sign
    edge = s.edge + VERGE
    deep = abs(s.offset) - edge
    s.x -= nx * deep
    s.y -= ny * deep
    s.offset = edge * sign
    out = s.vx * nx + s.vy * ny
    if out > 0.0:
        along = s.vx * tx + s.vy * ty
        rub = min(out * SCRAPE, abs(along))
        rub = rub if along > 0.0 else -rub
        out *= 1.0 + BOUNCE
        s.vx -= nx * out + tx * rub
        s.vy -= ny * out + ty * rub


@native.function
def tick(s: State, track: Track) -> None:
    """Advance a lap by 1/60 s."""
    drive(s)
    locate(s, track)
    if abs(s.offset) > s.edge:
        s.grass += 1.0
