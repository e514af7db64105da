"""Gymnasium's Pendulum-v1: swing a pendulum up with a weak motor and keep it there."""

from __future__ import annotations

import math

from slipstream.envs import native

SECONDS, GRAVITY, MAX_SPEED, MAX_TORQUE = 0.05, 10.0, 8.0, 2.0

game = native.Game("pendulum", "swing a pendulum up", decisions_per_second=20, max_decisions=200, precision="double")


class State(native.State):
    angle: float
    speed: float


class Action(native.Action):
    torque: float = native.box(-MAX_TORQUE, MAX_TORQUE)


class Seen(native.Observation):
    cos: float
    sin: float
    speed: float


@game.reset
def reset(s: State, rng: native.Random) -> None:
    s.angle, s.speed = rng.uniform(-math.pi, math.pi), rng.uniform(-1.0, 1.0)


@game.step
def step(s: State, action: Action) -> None:
    pull = 1.5 * GRAVITY * native.sin(s.angle) + 3.0 * action.torque
    s.speed = min(max(s.speed + pull * SECONDS, -MAX_SPEED), MAX_SPEED)
    s.angle += s.speed * SECONDS


@game.observe
def observe(s: State, seen: Seen) -> None:
    seen.cos, seen.sin, seen.speed = native.cos(s.angle), native.sin(s.angle), s.speed


@game.reward
def cost(before: State, after: State, action: Action) -> float:
    angle = (before.angle + math.pi) % math.tau - math.pi
    return -(angle**2 + 0.1 * before.speed**2 + 0.001 * action.torque**2)


@game.draw
def draw(s: State, canvas: native.Canvas) -> None:
    canvas.window(-1.3, -1.3, 1.3, 1.3)
    canvas.line([(0, 0), (-math.sin(s.angle), math.cos(s.angle))], "orange", 0.15)
    canvas.circle(0, 0, 0.05, "grey")
