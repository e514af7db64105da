"""The time-optimal speed along a driven path under the kart's limits: a lower bound on the lap time of that path."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.envs.kart.physics import BRAKE, GRIP, PUSH, ROLL

STEP = 0.25
"""Distance between the points of the speed profile, in m."""
BLUR = 2.0
"""Distance over which the path is smoothed, in m: two moving averages of this much on each side."""


def fastest_lap_seconds(path: Array) -> float:
    """The least time for a path [n, 2] on asphalt from a standing start, whatever the speed at its end.

    The total force of the tyres is limited by GRIP, of which turning needs v**2 * curvature. Engine and brakes have
    limits of their own, and drag adds to the brakes.
    """
    points, step = _even(np.asarray(path, float))
    bend = _curvature(points, step)
    square = np.minimum(float(GRIP) / np.maximum(bend, 1e-9), (float(PUSH) / float(ROLL)) ** 2)  # v**2 at each point
    square[0] = 0.0
    for k in range(len(square) - 1):
        gain = min(float(PUSH), _left(square[k], bend[k])) - float(ROLL) * square[k] ** 0.5
        square[k + 1] = min(square[k + 1], square[k] + 2.0 * step * gain)
    for k in range(len(square) - 1, 0, -1):
        loss = min(float(BRAKE), _left(square[k], bend[k])) + float(ROLL) * square[k] ** 0.5
        square[k - 1] = min(square[k - 1], square[k] + 2.0 * step * loss)
    speed = np.sqrt(square)
    return float((2.0 * step / (speed[1:] + speed[:-1])).sum())


def _left(square: float, bend: float) -> float:
    """The grip that remains besides turning."""
    return float(np.sqrt(max(float(GRIP) ** 2 - (square * bend) ** 2, 0.0)))


def _even(path: Array) -> tuple[Array, float]:
    """The path smoothed, at equal distances."""
    points = _spaced(path)[0]
    for _ in range(2):
        points = _blurred(points, round(BLUR / STEP))
    return _spaced(points)


def _spaced(path: Array) -> tuple[Array, float]:
    way = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(path, axis=0).T))])
    count = max(round(way[-1] / STEP), 2)
    distances = np.linspace(0.0, way[-1], count + 1)
    return np.stack([np.interp(distances, way, path[:, k]) for k in range(2)], axis=1), float(way[-1] / count)


def _blurred(points: Array, reach: int) -> Array:
    """Means over `reach` points on each side, fewer towards the ends, which stay fixed."""
    sums = np.concatenate([np.zeros((1, 2)), np.cumsum(points, axis=0)])
    at = np.arange(len(points))
    side = np.minimum(np.minimum(at, at[::-1]), reach)
    means: Array = (sums[at + side + 1] - sums[at - side]) / (2 * side + 1)[:, None]
    return means


def _curvature(points: Array, step: float) -> Array:
    """The curvature of the path at each point, in 1/m."""
    a, b = points[1:-1] - points[:-2], points[2:] - points[1:-1]
    turn = np.abs(np.arctan2(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0], (a * b).sum(axis=1)))
    bend: Array = np.concatenate([turn[:1], turn, turn[-1:]]) / step
    return bend
