"""Random walks: how fast environments step by themselves."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, Vector, empty_rows

GLANCE_S, GLANCES = 0.02, 8
"""How long a step is looked at before it is decided how to step, and in how many stretches."""


def draw_actions(spec: EnvSpec, mask: Array, random: np.random.Generator) -> Array:
    """Random actions [rows, parts] that the mask allows."""
    rows, action = len(mask), spec.action
    if action.kind == "continuous":
        low, high = (np.array(side, np.float64) for side in (action.low, action.high))
        low, high = np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)
        return random.uniform(low, high, (rows, action.parts)).astype(np.float32)
    drawn, start = np.zeros((rows, action.parts), np.int32), 0
    for part, size in enumerate(action.sizes):
        probabilities = random.random((rows, size))
        if action.masked:
            probabilities *= mask[:, start : start + size]
        drawn[:, part], start = probabilities.argmax(axis=1), start + size
    return drawn


class RandomRollout:
    """A vector that is stepped with random actions."""

    def __init__(self, vector: Vector, seed: int = 0) -> None:
        self.vector, self.rows = vector, vector.envs * vector.spec.agents
        self._random = np.random.default_rng(seed)
        self._out: Rows = empty_rows(vector.spec, vector.envs)
        vector.reset(self._out)
        self._drawn = [self._draw() for _ in range(16)]

    def _draw(self) -> Array:
        return draw_actions(self.vector.spec, self._out.mask, self._random)

    def step(self) -> None:
        """Step once; actions are drawn anew only where masks forbid some."""
        masked = self.vector.spec.action.masked
        action = self._draw() if masked else self._drawn[self._random.integers(len(self._drawn))]
        self.vector.step(action, self._out)

    def steps(self, times: int) -> None:
        """Step so many times."""
        for _ in range(times):
            self.step()

    def rate(self, seconds: float) -> float:
        """Steps of rows per second."""
        self.step()
        began, count = perf_counter(), 0
        while not count or perf_counter() - began < seconds:
            self.step()
            count += 1
        return count * self.rows / (perf_counter() - began)

    def glance(self) -> float:
        """The best rate of some short stretches: what else runs here for a moment is passed over."""
        best, began = self.rate(GLANCE_S / GLANCES), perf_counter()
        for _ in range(1, GLANCES):
            if perf_counter() - began < GLANCE_S:  # a step that takes longer is not looked at so often
                best = max(best, self.rate(GLANCE_S / GLANCES))
        return best
