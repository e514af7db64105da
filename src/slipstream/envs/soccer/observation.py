"""Soccer's observations, in the car's own frame and in the arena rotated so that the car always attacks +x.

Rotating by 180 degrees is a change of sign, so both teams get exactly the same numbers for mirrored states.
"""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.soccer.columns import (
    BIG_WAIT,
    LENGTH,
    NEAR,
    PAD_X,
    PAD_Y,
    PADS,
    SLOTS,
    SMALL_WAIT,
    Car,
    OwnFrame,
    Seen,
    SeenCar,
    State,
    car_of,
    side_of,
    team_size,
)
from slipstream.envs.soccer.physics import TINY

INV_LENGTH, INV_WIDTH = 1.0 / 36.0, 1.0 / 25.0
INV_SPEED, INV_SPIN = 1.0 / 40.0, 1.0 / 5.0
THIRD = 1.0 / 3.0
INV_BIG, INV_SMALL = 1.0 / BIG_WAIT, 1.0 / SMALL_WAIT
FAR = 1e9


@native.function
def write_rotated(out: OwnFrame, hx: float, hy: float, dx: float, dy: float, scale: float) -> None:
    """Write a vector of the arena in the frame of a car that faces along (hx, hy)."""
    out.ahead = (dx * hx + dy * hy) * scale
    out.left = (dy * hx - dx * hy) * scale


@native.function
def observe_other(s: State, car: Car, other: Car, seen: SeenCar) -> None:
    """Write the observation that a car has of another one."""
    hx, hy = car.hx, car.hy
    rx, ry = s.ball.x - other.x, s.ball.y - other.y
    write_rotated(seen.position, hx, hy, other.x - car.x, other.y - car.y, NEAR)
    write_rotated(seen.velocity, hx, hy, other.vx - car.vx, other.vy - car.vy, INV_SPEED)
    write_rotated(seen.heading, hx, hy, other.hx, other.hy, 1.0)
    seen.boost = other.boost
    seen.ball_distance = native.sqrt(rx * rx + ry * ry) * NEAR


@native.function
def observe_pads(s: State, car: Car, flip: int, seen: Seen) -> None:
    """Write which pads are available, and the position of the nearest one."""
    cx, cy = car.x, car.y
    nearest, ax, ay = FAR, 0.0, 0.0
    for pair in range(PADS // 2):
        x, y = PAD_X[pair], PAD_Y[pair]
        back = INV_BIG if pair == 0 else INV_SMALL
        for k in range(2):
            seen.pad[2 * pair + k] = 1.0 - s.pads[2 * pair + (k ^ flip)] * back
            dx, dy = x - cx, y - cy
            square = dx * dx + dy * dy
            if s.pads[2 * pair + k] <= 0.0 and square < nearest:
                nearest, ax, ay = square, dx, dy
            x, y = -x, -y
    write_rotated(seen.nearest_pad, car.hx, car.hy, ax, ay, NEAR)


@native.function
def observe_others(s: State, me: int, seen: Seen) -> None:
    """Write the observations of all other cars, those of the own team first; columns of absent cars stay 0."""
    own = car_of(s, me)
    first, slot = (0 if me < SLOTS else team_size(s)), 0
    for k in range(first, first + team_size(s)):
        if k != own:
            observe_other(s, s.cars[own], s.cars[k], seen.teammate[slot])
            slot += 1
    first = team_size(s) - first
    for k in range(team_size(s)):
        observe_other(s, s.cars[own], s.cars[first + k], seen.opponent[k])
    for k in range(len(seen.present)):
        mate, opponent = k < team_size(s) - 1, SLOTS - 1 <= k < SLOTS - 1 + team_size(s)
        seen.present[k] = 1.0 if mate or opponent else 0.0


@native.function
def observe_car(s: State, me: int, match_ticks: int, seen: Seen) -> None:
    """Write the observation of one car."""
    car = s.cars[car_of(s, me)]
    sign = side_of(me)
    x, y, vx, vy, hx, hy = car.x, car.y, car.vx, car.vy, car.hx, car.hy
    bx, by, bvx, bvy = s.ball.x, s.ball.y, s.ball.vx, s.ball.vy
    seen.position.x, seen.position.y = sign * x * INV_LENGTH, sign * y * INV_WIDTH
    seen.heading.x, seen.heading.y = sign * hx, sign * hy
    write_rotated(seen.velocity, hx, hy, vx, vy, INV_SPEED)
    seen.spin = car.spin * INV_SPIN
    seen.boost = car.boost
    seen.time_left = s.ticks_left * (1.0 / match_ticks)
    seen.overtime = s.overtime
    seen.goal_lead = min(max(sign * (s.score[0] - s.score[1]) * THIRD, -1.0), 1.0)

    dx, dy = bx - x, by - y
    seen.ball.ahead = (dx * hx + dy * hy) * NEAR
    seen.ball.left = (dy * hx - dx * hy) * NEAR
    seen.ball.distance = native.sqrt(dx * dx + dy * dy) * NEAR
    write_rotated(seen.ball.relative_velocity, hx, hy, bvx - vx, bvy - vy, INV_SPEED)
    seen.ball.position.x, seen.ball.position.y = sign * bx * INV_LENGTH, sign * by * INV_WIDTH
    seen.ball.velocity.x, seen.ball.velocity.y = sign * bvx * INV_SPEED, sign * bvy * INV_SPEED

    goal = sign * LENGTH
    write_rotated(seen.opponent_goal, hx, hy, goal - x, -y, NEAR)
    write_rotated(seen.own_goal, hx, hy, -goal - x, -y, NEAR)
    sx, sy = goal - bx, -by
    write_rotated(seen.shot_direction, hx, hy, sx, sy, 1.0 / max(native.sqrt(sx * sx + sy * sy), TINY))
    observe_pads(s, car, 0 if me < SLOTS else 1, seen)
    observe_others(s, me, seen)
