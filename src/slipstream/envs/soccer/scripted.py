"""Soccer's scripted players chaser, keeper and rule.

They use the same observation as a policy. Each player chooses a point to drive to, and `steer_to` drives there.
Positions are those of the observation: the player attacks +x in either team. A row without a car has no heading, and
its player does nothing.
"""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.soccer.columns import (
    BALL_RADIUS,
    BOOST_SPEED,
    DRIVE_SPEED,
    LENGTH,
    SLOTS,
    WIDTH,
    Action,
    Seen,
    SeenCar,
)
from slipstream.envs.soccer.physics import BALL_BOUNCE, TINY

FAR = 45.0
"""Units per unit of a distance in the observation: 1 / NEAR."""
WALL = 3.0  # least distance of a target point from the walls
GAIN, DAMPING, INSIDE = 4.0, 0.156, 0.625  # of steering

LEAN, STROLL = 0.8, 22.0  # chaser: offset to the own side of the ball in units, speed in units/s

# rule, in units and seconds
STEPS, STRIDE = 14, 0.15  # number and length of the predicted steps, in seconds
SLOW, IDLE = 22.0, 8.0  # least speeds in its plans, for itself and for others, in units/s
TURNING, SLACK = 0.35, 0.1  # seconds for a half turn, seconds that it may be late
AIM, KICK = 1.5, 27.0  # half the width of its target in the goal mouth, speed of its shots
PATIENCE, HASTE, GOOD, RISKY = 0.6, 1.5, 0.35, 0.7
MARGIN, RETREAT, WARY = 0.3, 0.45, 0.5
BACK, WIDE, ROUND = 10.0, 6.9, 0.1


@native.function
def steer_to(seen: Seen, ahead: float, left: float, top: float, action: Action) -> None:
    """Drive to a point given in the own frame at up to `top` units/s; beyond DRIVE_SPEED that takes boost."""
    away = max(native.sqrt(ahead * ahead + left * left), TINY)
    sine, cosine = left / away, ahead / away
    speed = seen.velocity.ahead * BOOST_SPEED
    steer = min(max((sine - seen.spin * DAMPING) * GAIN, -1.0), 1.0)
    if cosine < 0.0:
        steer = 1.0 if left >= 0.0 else -1.0
    # A point beside a fast car may lie inside its turning circle: lift the throttle.
    inside = cosine < 0.8 and away < abs(sine) * speed * INSIDE
    action.throttle = 0.0 if inside or speed > top else 1.0
    action.steer = steer
    action.boost = 1.0 if top > DRIVE_SPEED and cosine > 0.95 else 0.0
    action.drift = 1.0 if cosine < -0.3 and speed > 12.0 else 0.0


@native.function
def go_to(seen: Seen, x: float, y: float, top: float, action: Action) -> None:
    """Drive to a point of the arena."""
    x = min(max(x, WALL - LENGTH), LENGTH - WALL)
    y = min(max(y, WALL - WIDTH), WIDTH - WALL)
    dx, dy = x - seen.position.x * LENGTH, y - seen.position.y * WIDTH
    hx, hy = seen.heading.x, seen.heading.y
    steer_to(seen, dx * hx + dy * hy, dy * hx - dx * hy, top, action)


@native.function
def is_absent(seen: Seen) -> bool:
    """Whether the row has no car."""
    return seen.heading.x == 0.0 and seen.heading.y == 0.0


def chaser(seen: Seen, action: Action) -> None:
    """Always drive at the ball, slightly on the own side of it."""
    if is_absent(seen):
        return
    ahead = seen.ball.ahead * FAR - seen.shot_direction.ahead * LEAN
    left = seen.ball.left * FAR - seen.shot_direction.left * LEAN
    steer_to(seen, ahead, left, STROLL, action)


def keeper(seen: Seen, action: Action) -> None:
    """Stay between the ball and the own goal, and clear a ball that comes near."""
    if is_absent(seen):
        return
    bx, by = seen.ball.position.x * LENGTH, seen.ball.position.y * WIDTH
    away = seen.ball.distance * FAR
    x, y = seen.position.x * LENGTH, seen.position.y * WIDTH
    if bx - x > abs(by - y) and away < 20.0:
        go_to(seen, bx, by, BOOST_SPEED, action)
        return
    # A third of the way from the goal to the ball; wait there, facing the ball.
    px, py = (bx + LENGTH) * 0.3 - LENGTH + 3.0, by * 0.3
    dx, dy = px - x, py - y
    if dx * dx + dy * dy > 25.0:
        go_to(seen, px, py, BOOST_SPEED if dx * dx + dy * dy > 400.0 else DRIVE_SPEED, action)
    elif not (seen.ball.ahead > 0.0 and abs(seen.ball.left) < seen.ball.ahead * 0.3):
        action.steer = 1.0 if seen.ball.left > 0.0 else -1.0
        action.throttle = 1.0 if seen.velocity.ahead * BOOST_SPEED < 4.0 else 0.0


@native.function
def seconds_to_ball(seen: Seen, other: SeenCar) -> float:
    """The seconds until another car can reach the ball."""
    vx, vy = other.velocity.ahead + seen.velocity.ahead, other.velocity.left + seen.velocity.left
    return other.ball_distance * FAR / max(native.sqrt(vx * vx + vy * vy) * BOOST_SPEED, IDLE)


@native.function
def first_teammate(seen: Seen) -> float:
    """The seconds until the first teammate that plays can reach the ball."""
    best = 9.0
    for k in range(SLOTS - 1):
        if len(seen.present) == 0 or seen.present[k] != 0.0:
            best = min(best, seconds_to_ball(seen, seen.teammate[k]))
    return best


@native.function
def first_opponent(seen: Seen) -> float:
    """The seconds until the first opponent that plays can reach the ball."""
    best = 9.0
    for k in range(SLOTS):
        if len(seen.present) == 0 or seen.present[SLOTS - 1 + k] != 0.0:
            best = min(best, seconds_to_ball(seen, seen.opponent[k]))
    return best


@native.function
def folded(place: float, limit: float) -> float:
    """The position of a ball that would roll to `place`, after bouncing off the wall at `limit`."""
    if abs(place) <= limit:
        return place
    back = limit - (abs(place) - limit) * BALL_BOUNCE
    return back if place > 0.0 else -back


@native.function
def cosine_of(ax: float, ay: float, bx: float, by: float) -> float:
    """The cosine of the angle between two vectors."""
    return (ax * bx + ay * by) / max(native.sqrt((ax * ax + ay * ay) * (bx * bx + by * by)), TINY)


def rule(seen: Seen, action: Action) -> None:
    """Meet the ball where a hit sends it to the goal, else get behind it; fall back when beaten, refuel when free."""
    if is_absent(seen):
        return
    x, y = seen.position.x * LENGTH, seen.position.y * WIDTH
    ball_x, ball_y = seen.ball.position.x * LENGTH, seen.ball.position.y * WIDTH
    ball_vx, ball_vy = seen.ball.velocity.x * BOOST_SPEED, seen.ball.velocity.y * BOOST_SPEED
    pace = max(seen.velocity.ahead * BOOST_SPEED + 2.0, SLOW)
    mine = seen.ball.distance * FAR / pace
    contested = first_opponent(seen) < mine + MARGIN

    # Predict where the ball will be, whether the car can be there, and where a hit would send the ball.
    best, time, mx, my, kx, ky = -9.0, 1.0, ball_x, ball_y, 1.0, 0.0
    for step in range(1, STEPS + 1):
        t = step * STRIDE
        bx, by = ball_x + ball_vx * t * (1.0 - t * 0.13), ball_y + ball_vy * t * (1.0 - t * 0.13)
        ux, uy = ball_vx * (1.0 - t * 0.22), ball_vy * (1.0 - t * 0.22)
        ux = ux if abs(bx) <= LENGTH - BALL_RADIUS else -ux * BALL_BOUNCE
        uy = uy if abs(by) <= WIDTH - BALL_RADIUS else -uy * BALL_BOUNCE
        bx, by = folded(bx, LENGTH - BALL_RADIUS), folded(by, WIDTH - BALL_RADIUS)
        dx, dy = bx - x, by - y
        gap = max(native.sqrt(dx * dx + dy * dy), TINY)
        dx, dy = dx / gap, dy / gap
        turn = (1.0 - dx * seen.heading.x - dy * seen.heading.y) * TURNING
        if (gap - 3.5) / pace + turn <= t + SLACK or step == STEPS:
            kick = (pace - ux * dx - uy * dy) * 1.4
            wx, wy = ux + kick * dx, uy + kick * dy
            sx, sy = LENGTH + 2.0 - bx, min(max(by, -AIM), AIM) - by
            good = cosine_of(wx, wy, sx, sy) - t * PATIENCE
            if contested and cosine_of(wx, wy, -LENGTH - bx, -by) < RISKY:  # the first that is no own goal
                good += 3.0 - t * HASTE
            if good > best:
                length = native.sqrt(sx * sx + sy * sy)
                best, time, mx, my = good, t, bx, by
                kx, ky = sx / length * KICK - ux, sy / length * KICK - uy
    length = max(native.sqrt(kx * kx + ky * ky), TINY)
    kx, ky = kx / length, ky / length  # the direction of the kick that makes the shot
    dx, dy = mx - x, my - y
    gap = native.sqrt(dx * dx + dy * dy)

    shoot = best + time * PATIENCE > GOOD
    pad_x, pad_y = seen.nearest_pad.ahead * FAR, seen.nearest_pad.left * FAR
    if seen.boost < 0.2 and mine > 1.0 and not contested and abs(pad_y) * 3.0 < pad_x < 7.0:
        steer_to(seen, pad_x, pad_y, DRIVE_SPEED, action)
    elif first_teammate(seen) < mine or (contested and dx < 2.0 and not shoot):  # a teammate has it, or beaten
        bx, by = ball_x + ball_vx * WARY, ball_y + ball_vy * WARY
        go_to(seen, max((bx + LENGTH) * RETREAT, 3.0) - LENGTH, by * RETREAT, BOOST_SPEED, action)
    elif shoot:  # onto the line of the kick, then through the ball
        back = gap * 0.5 if gap > 5.0 else 0.0
        go_to(seen, mx - kx * back, my - ky * back, BOOST_SPEED if contested else DRIVE_SPEED, action)
    else:  # get behind the ball, driving around it if it is in the way
        turn = 1.0 if dy * kx - dx * ky > 0.0 else -1.0
        if abs(my) > WIDTH - 9.0:  # there is no space between ball and wall
            turn = 1.0 if my * kx > 0.0 else -1.0
        wide = WIDE * turn if dx * kx + dy * ky < gap * ROUND else 0.0
        top = BOOST_SPEED if gap > 12.0 else DRIVE_SPEED
        go_to(seen, mx - kx * BACK + ky * wide, my - ky * BACK - kx * wide, top, action)
