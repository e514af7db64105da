"""Random rollouts: measure how fast environments step with random actions."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, Vector, empty_rows

BEST_RATE_S, INTERVALS = 0.02, 8
"""Duration of `best_rate` and the number of its intervals."""


def draw_actions(spec: EnvSpec, mask: Array, rng: np.random.Generator) -> Array:
    """Return random actions [rows, parts] that the mask allows."""
    rows, action = len(mask), spec.action
    drawn, start = np.zeros((rows, action.parts), action.dtype), 0
    for part, size in enumerate(action.sizes):
        probabilities = rng.random((rows, size))
        if action.masked:
            probabilities *= mask[:, start : start + size]
        drawn[:, part], start = probabilities.argmax(axis=1), start + size
    if action.continuous_parts:
        low, high = (np.array(side, np.float64) for side in (action.low, action.high))
        low, high = np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)
        drawn[:, action.discrete_parts :] = rng.uniform(low, high, (rows, action.continuous_parts))
    return drawn


class RandomRollout:
    """Steps a vector with random actions."""

    def __init__(self, vector: Vector, seed: int = 0) -> None:
        self.vector, self.rows = vector, vector.envs * vector.spec.agents
        self._rng = np.random.default_rng(seed)
        self._out: Rows = empty_rows(vector.spec, vector.envs)
        vector.reset(self._out)
        self._actions = [self._draw() for _ in range(16)]

    def _draw(self) -> Array:
        return draw_actions(self.vector.spec, self._out.mask, self._rng)

    def step(self) -> None:
        """Step once, with pre-drawn actions unless actions are masked."""
        masked = self.vector.spec.action.masked
        action = self._draw() if masked else self._actions[self._rng.integers(len(self._actions))]
        self.vector.step(action, self._out)

    def steps(self, times: int) -> None:
        """Step `times` times."""
        for _ in range(times):
            self.step()

    def rate(self, seconds: float) -> float:
        """Return row steps per second, measured for `seconds`."""
        self.step()
        began, count = perf_counter(), 0
        while not count or perf_counter() - began < seconds:
            self.step()
            count += 1
        return count * self.rows / (perf_counter() - began)

    def best_rate(self) -> float:
        """Return the best rate of several short intervals, which ignores short disturbances by other processes."""
        best, began = self.rate(BEST_RATE_S / INTERVALS), perf_counter()
        for _ in range(1, INTERVALS):
            if perf_counter() - began < BEST_RATE_S:  # fewer intervals for slow envs
                best = max(best, self.rate(BEST_RATE_S / INTERVALS))
        return best
