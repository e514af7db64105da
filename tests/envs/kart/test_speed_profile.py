"""The bound on lap times, compared with arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.envs.kart.physics import BRAKE, GRIP, PUSH, ROLL
from slipstream.envs.kart.speed_profile import fastest_lap_seconds

TOP = PUSH / ROLL


def test_a_straight_takes_what_the_engine_takes() -> None:
    """With linear drag x(t) = TOP (t - (1 - exp(-ROLL t)) / ROLL): the distance after 12 s takes 12 s."""
    rate, seconds = ROLL, 12.0
    way = TOP * (seconds - (1 - np.exp(-rate * seconds)) / rate)
    line = np.stack([np.linspace(0, way, 700), np.zeros(700)], axis=1)
    assert fastest_lap_seconds(line) == pytest.approx(seconds, rel=0.005)


@pytest.mark.parametrize("radius", [12.0, 25.0])
def test_a_circle_is_driven_at_the_limit_of_grip(radius: float) -> None:
    """A circle takes 2 pi r / v, where turning and drag use up the grip."""
    rounds = []
    for turns in (3, 4):
        angle = np.linspace(0, 2 * np.pi * turns, 1200 * turns)
        rounds.append(fastest_lap_seconds(radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)))
    # (v**2 / r)**2 + (ROLL v)**2 = GRIP**2, solved for v**2
    half = (ROLL * radius) ** 2 / 2
    speed = np.sqrt(np.sqrt(half**2 + (GRIP * radius) ** 2) - half)
    assert rounds[1] - rounds[0] == pytest.approx(2 * np.pi * radius / speed, rel=0.015)
    assert speed == pytest.approx(np.sqrt(GRIP * radius), rel=0.05)


def test_a_hairpin_is_braked_for() -> None:
    """On two straights joined by a half circle the speed before the corner is limited by brakes and drag."""
    radius, way = 10.0, 120.0
    angle = np.linspace(-np.pi / 2, np.pi / 2, 200)
    turn = np.stack([way + radius * np.cos(angle), radius + radius * np.sin(angle)], axis=1)
    into = np.stack([np.linspace(0, way, 600), np.zeros(600)], axis=1)
    seconds = fastest_lap_seconds(np.concatenate([into, turn[1:]]))
    # by hand, with v dv = a dx in small steps: up from 0, down to the corner's speed, the lesser of both, the corner
    corner = np.sqrt(GRIP * radius)
    x = np.linspace(0, way, 20_001)
    up, down = np.zeros_like(x), np.full_like(x, corner)
    for k in range(len(x) - 1):
        dx = x[1] - x[0]
        up[k + 1] = np.sqrt(up[k] ** 2 + 2 * dx * (PUSH - ROLL * up[k]))
        back = len(x) - 1 - k
        down[back - 1] = np.sqrt(down[back] ** 2 + 2 * dx * (BRAKE + ROLL * down[back]))
    speed = np.minimum(up, down)
    straight = (2 * (x[1] - x[0]) / (speed[1:] + speed[:-1])).sum()
    assert seconds == pytest.approx(straight + np.pi * radius / corner, rel=0.03)


def test_the_sampling_of_a_path_hardly_matters() -> None:
    """A path sampled every tick or every fourth tick gives nearly the same bound."""
    angle = np.linspace(0, 2 * np.pi, 1601)
    away = 60 + 12 * np.cos(3 * angle)
    path = away[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert fastest_lap_seconds(path) == pytest.approx(fastest_lap_seconds(path[::4]), rel=0.005)
