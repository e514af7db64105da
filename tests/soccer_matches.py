"""Matches of soccer for tests: begun, arranged by the names of columns, and as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.contracts import Array, Rows, empty_rows
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.soccer.game import game

COAST, BOOST = 7, 9
"""Discrete actions."""
BODY = ("x", "y", "vx", "vy")
CAR = (*BODY, "hx", "hy", "spin", "boost")


def begun(envs: int, variant: str = "1v1", **options: Any) -> tuple[NativeVector, Rows]:
    """Matches at their first kick-off, and their rows."""
    vector = game.vector(envs, variant, **options)
    rows = empty_rows(vector.spec, envs)
    vector.reset(rows)
    return vector, rows


def columns(vector: NativeVector, *names: str) -> Array:
    """A copy of columns of the state, [envs, names]."""
    return np.stack([vector.column(name) for name in names], axis=1)


def ball(vector: NativeVector) -> Array:
    """Position and velocity of the ball in every env."""
    return columns(vector, *(f"ball.{name}" for name in BODY))


def car(vector: NativeVector, number: int, *names: str) -> Array:
    """Columns of a car in every env."""
    return columns(vector, *(f"cars.{number}.{name}" for name in names))


def place_ball(vector: NativeVector, *values: float) -> None:
    """Set the first of x, y, vx and vy of the ball in every env."""
    for name, value in zip(BODY, values, strict=False):
        vector.column(f"ball.{name}")[:] = value


def place_car(vector: NativeVector, number: int, *values: float) -> None:
    """Set the first of x, y, vx, vy, hx, hy, spin and boost of a car in every env."""
    for name, value in zip(CAR, values, strict=False):
        vector.column(f"cars.{number}.{name}")[:] = value


def cornered(**options: Any) -> tuple[NativeVector, Rows]:
    """A match with both cars at rest near their corners, and its rows."""
    vector, rows = begun(1, **options)
    for number, sign in enumerate((-1, 1)):
        place_car(vector, number, sign * 25, sign * 18, 0, 0, -sign, 0, 0, 0)
    return vector, rows


def set_score(vector: NativeVector, score: Sequence[float]) -> None:
    """Set the goals of both teams in every env."""
    vector.column("score.0")[:], vector.column("score.1")[:] = score


def score(vector: NativeVector) -> Array:
    """The goals of both teams in every env."""
    return columns(vector, "score.0", "score.1")


def coasting(vector: NativeVector) -> Array:
    """Discrete actions of cars that coast."""
    return np.full((vector.envs * vector.spec.agents, 1), COAST, np.int32)


def places(variant: str = "1v1") -> dict[str, int]:
    """The column of the observation of each name."""
    return {name: column for column, name in enumerate(game.classes(variant).observation.names())}
