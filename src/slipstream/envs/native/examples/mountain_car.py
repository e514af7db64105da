"""Gymnasium's MountainCar-v0: rock a weak car out of a valley."""

from __future__ import annotations

from slipstream.envs import native

LEFT, RIGHT, GOAL, MAX_SPEED, FORCE, GRAVITY = -1.2, 0.6, 0.5, 0.07, 0.001, 0.0025

game = native.Game("mountain_car", "rock a car out of a valley", decisions_per_second=50, max_decisions=200)


class State(native.State):
    x: float
    speed: float


class Action(native.Action):
    push: float = native.choice(left=-1.0, none=0.0, right=1.0)


class Seen(native.Observation):
    x: float
    speed: float


@game.reset
def reset(s: State, rng: native.Random) -> None:
    s.x = rng.uniform(-0.6, -0.4)


@game.step
def step(s: State, action: Action) -> None:
    speed = s.speed + action.push * FORCE - native.cos(3.0 * s.x) * GRAVITY
    s.speed = min(max(speed, -MAX_SPEED), MAX_SPEED)
    s.x = min(max(s.x + s.speed, LEFT), RIGHT)
    if s.x <= LEFT and s.speed < 0.0:
        s.speed = 0.0


@game.observe
def observe(s: State, seen: Seen) -> None:
    seen.x, seen.speed = s.x, s.speed


@game.reward
def time() -> float:
    return -1.0


@game.done
def done(s: State) -> bool:
    return s.x >= GOAL and s.speed >= 0.0


@game.draw
def draw(s: State, canvas: native.Canvas) -> None:
    canvas.window(LEFT - 0.1, -0.2, RIGHT + 0.1, 1.2)
    hill = [(LEFT + k * 0.02, 0.45 * native.sin(3 * (LEFT + k * 0.02)) + 0.5) for k in range(91)]
    canvas.line(hill, "grey", 0.02)
    canvas.line([(GOAL, 0.95), (GOAL, 1.1)], "green", 0.02)
    canvas.circle(s.x, 0.45 * native.sin(3 * s.x) + 0.55, 0.05, "blue")
