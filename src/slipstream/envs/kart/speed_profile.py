"""How fast a driven line could have been driven: the time-optimal speed along a path, under the car's own limits."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.envs.kart.physics import BRAKE, GRIP, PUSH, ROLL

STEP = 0.25
"""Metres between the points at which the speed is planned."""
BLUR = 2.0
"""Metres over which the path is smoothed: twice, each time by a mean of so much on each side."""


def fastest_lap_seconds(path: Array) -> float:
    """The least time for a path [n, 2] on asphalt from a standing start, whatever the speed at its end.

    The tyres push with GRIP at most in all directions together, of which turning takes v**2 * curvature; engine and
    brakes have their own limits, and drag works for the brakes.
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
    """What the tyres have left beside turning."""
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
    wanted = np.linspace(0.0, way[-1], count + 1)
    return np.stack([np.interp(wanted, way, path[:, k]) for k in range(2)], axis=1), float(way[-1] / count)


def _blurred(points: Array, reach: int) -> Array:
    """Means over so many points on each side, fewer towards the ends, which stay."""
    sums = np.concatenate([np.zeros((1, 2)), np.cumsum(points, axis=0)])
    at = np.arange(len(points))
    side = np.minimum(np.minimum(at, at[::-1]), reach)
    means: Array = (sums[at + side + 1] - sums[at - side]) / (2 * side + 1)[:, None]
    return means


def _curvature(points: Array, step: float) -> Array:
    """How much the path bends at each point, in 1/m."""
    a, b = points[1:-1] - points[:-2], points[2:] - points[1:-1]
    turn = np.abs(np.arctan2(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0], (a * b).sum(axis=1)))
    bend: Array = np.concatenate([turn[:1], turn, turn[-1:]]) / step
    return bend
