"""Gymnasium's Acrobot-v1: swing the tip of a double pendulum above a line by a motor between its links."""

from __future__ import annotations

import math

from slipstream.envs import native

SECONDS, GRAVITY, MAX_SPEED_1, MAX_SPEED_2 = 0.2, 9.8, 4 * math.pi, 9 * math.pi

game = native.Game(
    "acrobot", "swing a double pendulum up", decisions_per_second=5, max_decisions=500, precision="double"
)


class State(native.State):
    angle_1: float
    angle_2: float
    speed_1: float
    speed_2: float


class Action(native.Action):
    torque: float = native.choice(left=-1.0, none=0.0, right=1.0)


class Seen(native.Observation):
    cos_1: float
    sin_1: float
    cos_2: float
    sin_2: float
    speed_1: float
    speed_2: float


@native.function
def accelerations(a1: float, a2: float, v1: float, v2: float, torque: float) -> tuple[float, float]:
    d1 = 3.5 + native.cos(a2)
    d2 = 1.25 + 0.5 * native.cos(a2)
    phi2 = 0.5 * GRAVITY * native.cos(a1 + a2 - math.pi / 2)
    phi1 = phi2 - (0.5 * v2**2 + v2 * v1) * native.sin(a2) + 1.5 * GRAVITY * native.cos(a1 - math.pi / 2)
    second = (torque + d2 / d1 * phi1 - 0.5 * v1**2 * native.sin(a2) - phi2) / (1.25 - d2**2 / d1)
    return -(d2 * second + phi1) / d1, second


@native.function
def wrapped(angle: float) -> float:
    while angle > math.pi:
        angle = angle - math.tau
    while angle < -math.pi:
        angle = angle + math.tau
    return angle


@game.reset
def reset(s: State, rng: native.Random) -> None:
    s.angle_1, s.angle_2 = rng.uniform(-0.1, 0.1), rng.uniform(-0.1, 0.1)
    s.speed_1, s.speed_2 = rng.uniform(-0.1, 0.1), rng.uniform(-0.1, 0.1)


@game.step
def step(s: State, action: Action) -> None:
    a1, a2, v1, v2, h = s.angle_1, s.angle_2, s.speed_1, s.speed_2, SECONDS / 2
    f1, g1 = accelerations(a1, a2, v1, v2, action.torque)  # Runge-Kutta of fourth order
    f2, g2 = accelerations(a1 + h * v1, a2 + h * v2, v1 + h * f1, v2 + h * g1, action.torque)
    u1, u2 = v1 + h * f1, v2 + h * g1
    f3, g3 = accelerations(a1 + h * u1, a2 + h * u2, v1 + h * f2, v2 + h * g2, action.torque)
    w1, w2 = v1 + h * f2, v2 + h * g2
    x1, x2 = v1 + SECONDS * f3, v2 + SECONDS * g3
    f4, g4 = accelerations(a1 + SECONDS * w1, a2 + SECONDS * w2, x1, x2, action.torque)
    s.angle_1 = wrapped(a1 + SECONDS / 6 * (v1 + 2 * u1 + 2 * w1 + x1))
    s.angle_2 = wrapped(a2 + SECONDS / 6 * (v2 + 2 * u2 + 2 * w2 + x2))
    s.speed_1 = min(max(v1 + SECONDS / 6 * (f1 + 2 * f2 + 2 * f3 + f4), -MAX_SPEED_1), MAX_SPEED_1)
    s.speed_2 = min(max(v2 + SECONDS / 6 * (g1 + 2 * g2 + 2 * g3 + g4), -MAX_SPEED_2), MAX_SPEED_2)


@game.observe
def observe(s: State, seen: Seen) -> None:
    seen.cos_1, seen.sin_1 = native.cos(s.angle_1), native.sin(s.angle_1)
    seen.cos_2, seen.sin_2 = native.cos(s.angle_2), native.sin(s.angle_2)
    seen.speed_1, seen.speed_2 = s.speed_1, s.speed_2


@game.reward
def time(before: State, after: State) -> float:
    return 0.0 if done_at(after.angle_1, after.angle_2) else -1.0


@native.function
def done_at(a1: float, a2: float) -> bool:
    return -native.cos(a1) - native.cos(a2 + a1) > 1.0


@game.done
def done(s: State) -> bool:
    return done_at(s.angle_1, s.angle_2)
