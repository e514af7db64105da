"""Two players keep a ball in play; who misses it loses a point, and three points win."""

from __future__ import annotations

from slipstream.envs import native

HEIGHT, PADDLE, PADDLE_SPEED, BALL_SPEED, POINTS = 1.0, 0.2, 0.03, 0.03, 3

game = native.Game(
    "pong", "two paddles and a ball", agents=2, decisions_per_second=30, max_decisions=3000, reference="follow"
)


class Paddle(native.Record):
    y: float
    points: int


class State(native.State):
    x: float
    y: float
    vx: float
    vy: float
    paddles: list[Paddle] = native.records(2)


class Action(native.Action):
    move: float = native.choice(down=-1.0, stay=0.0, up=1.0)


class Seen(native.Observation):
    own_y: float
    other_y: float
    ball_x: float
    ball_y: float
    ball_vx: float
    ball_vy: float


@native.function
def serve(s: State, rng: native.Random) -> None:
    s.x, s.y = 0.0, rng.uniform(-0.5, 0.5)
    s.vx = BALL_SPEED if rng.uniform(0.0, 1.0) < 0.5 else -BALL_SPEED
    s.vy = rng.uniform(-BALL_SPEED, BALL_SPEED)


@game.reset
def reset(s: State, rng: native.Random) -> None:
    serve(s, rng)


@game.step
def step(s: State, actions: list[Action], rng: native.Random) -> None:
    for i in range(len(s.paddles)):
        paddle = s.paddles[i]
        paddle.y = min(max(paddle.y + PADDLE_SPEED * actions[i].move, PADDLE - HEIGHT), HEIGHT - PADDLE)
    s.x, s.y = s.x + s.vx, s.y + s.vy
    if abs(s.y) > HEIGHT:
        s.vy = -s.vy
        s.y = (HEIGHT if s.y > 0 else -HEIGHT) + s.vy
    if abs(s.x) >= 1.0:
        side = 0 if s.x < 0.0 else 1
        away = s.y - s.paddles[side].y
        if abs(away) <= PADDLE:
            s.vx, s.vy = -s.vx * 1.03, s.vy + 0.1 * away
            s.x = (-1.0 if side == 0 else 1.0) + s.vx
        else:
            s.paddles[1 - side].points += 1
            serve(s, rng)


@game.observe
def observe(s: State, me: int, seen: Seen) -> None:
    side = 1.0 if me == 0 else -1.0
    seen.own_y, seen.other_y = s.paddles[me].y, s.paddles[1 - me].y
    seen.ball_x, seen.ball_y, seen.ball_vx, seen.ball_vy = side * s.x, s.y, 20 * side * s.vx, 20 * s.vy


@game.reward(decides=True)
def point(before: State, after: State, me: int) -> float:
    won = after.paddles[me].points - before.paddles[me].points
    return won - (after.paddles[1 - me].points - before.paddles[1 - me].points)


@game.done
def done(s: State) -> bool:
    return s.paddles[0].points >= POINTS or s.paddles[1].points >= POINTS


@game.outcome
def outcome(s: State, me: int) -> int:
    lead = s.paddles[me].points - s.paddles[1 - me].points
    return 1 if lead > 0 else -1 if lead < 0 else 0


@game.player
def follow(seen: Seen, action: Action) -> None:
    action.move = 1.0 if seen.ball_y > seen.own_y + 0.03 else -1.0 if seen.ball_y < seen.own_y - 0.03 else 0.0
