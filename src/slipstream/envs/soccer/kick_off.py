"""Starting positions of soccer: symmetric kick-offs, and random states."""

from __future__ import annotations

from slipstream.envs import native
from slipstream.envs.soccer.columns import DIAGONAL, LENGTH, PADS, WIDTH, Body, Car, State, team_size

START_BOOST = 0.34
JITTER = 1.5
BALL_START, CAR_START = 12.0, 20.0
MARGIN = 5.0


@native.function
def spread(rng: native.Random, size: float) -> float:
    """Draw a number from -size to size."""
    return (rng.uniform(0.0, 1.0) * 2.0 - 1.0) * size


@native.function
def place(car: Car, x: float, y: float, dx: float, dy: float) -> None:
    """Place a car at rest at (x, y), facing along (dx, dy)."""
    car.x, car.y, car.vx, car.vy = x, y, 0.0, 0.0
    length = native.sqrt(dx * dx + dy * dy)
    if length > 0.01:
        car.hx, car.hy = dx / length, dy / length
    else:
        car.hx, car.hy = 1.0, 0.0
    car.spin, car.boost, car.touch = 0.0, START_BOOST, 0.0
    car.throttle, car.steer, car.boosting, car.drifting = 0.0, 0.0, 0.0, 0.0


@native.function
def line_up(s: State, rng: native.Random) -> None:
    """Set a symmetric kick-off: a random one of five positions for each pair of cars, with the same jitter."""
    first = int(rng.uniform(0.0, 1.0) * 5.0)
    for k in range(team_size(s)):
        spot = (first + 2 * k) % 5
        if spot == 0:
            x, y = -24.0, 0.0
        elif spot < 3:
            x, y = -19.0, 12.0
        else:
            x, y = -29.0, 5.0
        if spot == 2 or spot == 4:
            y = -y
        x += spread(rng, JITTER)
        y += spread(rng, JITTER)
        place(s.cars[k], x, y, -x, -y)
        place(s.cars[k + team_size(s)], -x, -y, x, y)


@native.function
def put_anywhere(body: Body, rng: native.Random, speed: float) -> None:
    """Give a body a random position in the arena and a random velocity."""
    x = spread(rng, LENGTH - MARGIN)
    y = spread(rng, WIDTH - MARGIN)
    if abs(x) + abs(y) > DIAGONAL - MARGIN * 2.0:
        x, y = x * 0.75, y * 0.75
    body.x, body.y = x, y
    body.vx = spread(rng, speed)
    body.vy = spread(rng, speed)


@native.function
def scatter(s: State, rng: native.Random) -> None:
    """Set a random state: ball and cars anywhere, moving, with any amount of boost."""
    put_anywhere(s.ball, rng, BALL_START)
    s.ball.x *= 0.85  # not in a goal mouth from the start
    for k in range(2 * team_size(s)):
        car = s.cars[k]
        dx = spread(rng, 1.0)
        dy = spread(rng, 1.0)
        place(car, 0.0, 0.0, dx, dy)
        put_anywhere(car, rng, 1.0)
        speed = spread(rng, 0.5) + 0.5
        car.vx = car.hx * speed * CAR_START
        car.vy = car.hy * speed * CAR_START
        car.boost = rng.uniform(0.0, 1.0)


@native.function
def kick_off(s: State, rng: native.Random, random_starts: float) -> None:
    """Set a kick-off from the middle or, with probability `random_starts`, from a random state; all pads return."""
    s.ball.x, s.ball.y, s.ball.vx, s.ball.vy = 0.0, 0.0, 0.0, 0.0
    s.goal, s.kick_off_due, s.possession = 0.0, False, 0
    for pad in range(PADS):
        s.pads[pad] = 0.0
    if rng.uniform(0.0, 1.0) < random_starts:
        scatter(s, rng)
    else:
        line_up(s, rng)
