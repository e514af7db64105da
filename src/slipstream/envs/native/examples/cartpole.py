"""Gymnasium's CartPole-v1: push a cart left or right so that its pole stays upright."""

from __future__ import annotations

import math

from slipstream.envs import native

GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH, SECONDS = 9.8, 0.1, 1.1, 0.5, 0.02
MAX_X, MAX_ANGLE = 2.4, 12 * 2 * math.pi / 360

game = native.Game("cartpole", "keep a pole upright on a cart", decisions_per_second=50, max_decisions=500)


class State(native.State):
    x: float
    speed: float
    angle: float
    spin: float


class Action(native.Action):
    push: float = native.choice(left=-10.0, right=10.0)


class Seen(native.Observation):
    x: float
    speed: float
    angle: float
    spin: float


@game.reset
def reset(s: State, rng: native.Random) -> None:
    s.x, s.speed = rng.uniform(-0.05, 0.05), rng.uniform(-0.05, 0.05)
    s.angle, s.spin = rng.uniform(-0.05, 0.05), rng.uniform(-0.05, 0.05)


@game.step
def step(s: State, action: Action) -> None:
    cos, sin = native.cos(s.angle), native.sin(s.angle)
    pull = (action.push + POLE_MASS * HALF_LENGTH * s.spin**2 * sin) / TOTAL_MASS
    turn = (GRAVITY * sin - cos * pull) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos**2 / TOTAL_MASS))
    push = pull - POLE_MASS * HALF_LENGTH * turn * cos / TOTAL_MASS
    s.x, s.speed = s.x + SECONDS * s.speed, s.speed + SECONDS * push
    s.angle, s.spin = s.angle + SECONDS * s.spin, s.spin + SECONDS * turn


@game.observe
def observe(s: State, seen: Seen) -> None:
    seen.x, seen.speed, seen.angle, seen.spin = s.x, s.speed, s.angle, s.spin


@game.reward
def upright() -> float:
    return 1.0


@game.done
def done(s: State) -> bool:
    return abs(s.x) > MAX_X or abs(s.angle) > MAX_ANGLE


@game.draw
def draw(s: State, canvas: native.Canvas) -> None:
    canvas.window(-3.0, -0.6, 3.0, 2.6)
    canvas.line([(-3, 0), (3, 0)], "grey", 0.03)
    canvas.rectangle(s.x - 0.3, -0.15, s.x + 0.3, 0.15, "blue")
    tip = s.x + 2 * math.sin(s.angle), 2 * math.cos(s.angle)
    canvas.line([(s.x, 0), tip], "orange", 0.1)
