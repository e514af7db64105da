"""Running mean and variance of observations and returns, and the explained variance of a value function."""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.system.numba_compile import Number, compiled_fused

MIN_DEVIATION = 1e-4
NEARLY_ONE = float(np.nextafter(np.float32(1), np.float32(0)))


@compiled_fused
def sum_obs(obs: Array, active: Array, shift: Array, total: Array, squares: Array) -> int:
    """Add up (obs - shift) and its square over all active steps, in row order; return their number."""
    count = 0
    for t in range(active.shape[0]):
        for row in range(active.shape[1]):
            if active[t, row]:
                count += 1
                for k in range(obs.shape[2]):
                    x = np.float64(obs[t, row, k]) - shift[k]
                    total[k] += x
                    squares[k] += x * x
    return count


@compiled_fused
def sum_row(
    row: int,
    reward: Array,
    terminated: Array,
    truncated: Array,
    active: Array,
    gamma: Number,
    running: Array,
    sums: Array,
) -> None:
    """Advance the discounted return of one row and write its count, sum and sum of squares into `sums`."""
    carried, number, total, squares = running[row], 0.0, 0.0, 0.0
    for t in range(reward.shape[0]):
        carried = carried * gamma + reward[t, row]
        if active[t, row]:
            number += 1.0
            total += carried
            squares += carried * carried
        if terminated[t, row] or truncated[t, row]:
            carried = 0.0
    running[row] = carried
    sums[row, 0], sums[row, 1], sums[row, 2] = number, total, squares


@compiled_fused
def sum_returns(
    reward: Array, terminated: Array, truncated: Array, active: Array, gamma: Number, running: Array, sums: Array
) -> None:
    """Advance each row's discounted return and write its count, sum and sum of squares into `sums` [rows, 3]."""
    for row in range(reward.shape[1]):
        sum_row(row, reward, terminated, truncated, active, gamma, running, sums)


@compiled_fused
def explained_variance(value_target: Array, value: Array, active: Array) -> float:
    """1 - Var(target - value) / Var(target) over active samples; NaN where the targets do not vary."""
    count, mean_target, mean_error = 0, 0.0, 0.0
    for i in range(value_target.size):
        if active[i]:
            count += 1
            mean_target += value_target[i]
            mean_error += value_target[i] - value[i]
    mean_target, mean_error = mean_target / max(1, count), mean_error / max(1, count)
    total, residual = 0.0, 0.0
    for i in range(value_target.size):
        if active[i]:
            total += (value_target[i] - mean_target) ** 2
            residual += (value_target[i] - value[i] - mean_error) ** 2
    return 1.0 - residual / total if total > 1e-12 * count else math.nan


def observation_statistics(obs: Array, active: Array, shift: Array) -> tuple[float, Array, Array]:
    """Count, mean and variance of the observations [T + 1, rows, size] of active steps, summed around `shift`."""
    total, squares = np.zeros_like(shift), np.zeros_like(shift)
    count = sum_obs(obs, active, shift, total, squares)
    mean = total / max(1, count)
    return count, shift + mean, np.maximum(squares / max(1, count) - mean * mean, 0.0)


class RunningMeanStd:
    """Running mean and variance of a vector, merged batch by batch."""

    def __init__(self, size: int) -> None:
        self.count = np.zeros(1, np.float64)
        self.mean = np.zeros(size, np.float64)
        self.variance = np.ones(size, np.float64)

    def merge(self, count: float, mean: Array, variance: Array) -> None:
        """Merge the statistics of a batch (parallel form of Welford's update)."""
        if count <= 0:
            return
        total = self.count[0] + count
        delta = mean - self.mean
        old, new = self.count[0] / total, count / total
        self.variance[:] = self.variance * old + variance * new + delta * delta * old * new
        self.mean += delta * new
        self.count[0] = total

    def update(self, obs: Array, active: Array) -> None:
        """Merge the observations [T + 1, rows, size] of active steps."""
        self.merge(*observation_statistics(obs, active, self.mean.copy()))

    @property
    def scale(self) -> Array:
        """One over the standard deviation; features that do not vary keep their scale.

        It is never exactly 1, which marks a feature that is neither normalised nor clipped.
        """
        deviation = np.sqrt(self.variance)
        scale = np.where(deviation > MIN_DEVIATION, 1.0 / np.maximum(deviation, MIN_DEVIATION), 1.0)
        return np.where(scale.astype(np.float32) == 1, NEARLY_ONE, scale)

    def arrays(self, name: str) -> dict[str, Array]:
        """The state by name (not copied)."""
        return {f"{name}.count": self.count, f"{name}.mean": self.mean, f"{name}.variance": self.variance}
