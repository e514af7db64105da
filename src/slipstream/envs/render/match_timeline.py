"""The states of a match between two teams over time: the score, the clock and the path of the ball."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.contracts import Array


class MatchTimeline:
    """The `state` and `clock` of consecutive steps; the base of scenes of ball games.

    `layout` is the game's module of columns. A change in one of the clock's columns `marks` is a kick-off, across which
    nothing is interpolated.
    """

    def __init__(self, layout: Any, arrays: Mapping[str, Array], step_seconds: float, marks: Sequence[int]) -> None:
        self.states = np.asarray(arrays["state"], np.float64)
        self.clocks = arrays["clock"]
        self.step_seconds = step_seconds
        self.cars: int = layout.cars_in(arrays["state"][0])
        self._layout = layout
        self._breaks = (np.diff(self.clocks[:, list(marks)], axis=0) != 0).any(axis=1)

    def score(self, step: float) -> tuple[int, int]:
        """Goals of both teams."""
        row, column = self._clock_row(step), self._layout.SCORE
        return int(row[column]), int(row[column + 1])

    def clock(self, step: float) -> str:
        """The remaining time."""
        row = self._clock_row(step)
        left = max(0, int(row[self._layout.TICKS_LEFT])) // self._layout.TICK_HZ
        return f"{left // 60}:{left % 60:02d}" + ("  overtime" if row[self._layout.OVERTIME] else "")

    def ball_path(self, step: float, now: Array, seconds: float) -> list[list[float]]:
        """Positions of the ball in the last seconds, back to the last kick-off at most, up to `now`, its state."""
        first, last = int(max(0.0, step - seconds / self.step_seconds)), min(int(step), len(self.states) - 1)
        broken = np.flatnonzero(self._breaks[first:last])
        first += int(broken[-1]) + 1 if len(broken) else 0
        width = self._layout.Y + 1
        return [*self.states[first : last + 1, :width].tolist(), now[:width].tolist()]

    def _clock_row(self, step: float) -> Array:
        row: Array = self.clocks[min(int(step), len(self.clocks) - 1)]
        return row
