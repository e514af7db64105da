"""The states of a match between two teams over time: the score, the clock and the path of the ball."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream.contracts import Array


class MatchClock(NamedTuple):
    """The clock of a match at consecutive steps."""

    ticks_left: Array
    """[steps]"""
    score: Array
    """[steps, 2]"""
    overtime: Array
    """[steps]"""
    match: Array
    """[steps]: a number that differs between matches, such as their seeds."""


class MatchTimeline:
    """The states of consecutive steps; the base of scenes of ball games.

    `states` [steps, columns] begin with the position of the ball. A kick-off, across which nothing is interpolated, is
    where the score, the match or, with `overtime_kick_off`, overtime changes.
    """

    def __init__(
        self,
        states: Array,
        clock: MatchClock,
        *,
        cars: int,
        tick_hz: float,
        step_seconds: float,
        overtime_kick_off: bool = False,
    ) -> None:
        self.states = np.asarray(states, np.float64)
        self.clocks = clock
        self.cars, self.step_seconds = cars, step_seconds
        self._tick_hz = tick_hz
        marks = [clock.score, clock.match[:, None], *([clock.overtime[:, None]] if overtime_kick_off else [])]
        self._breaks = (np.diff(np.concatenate(marks, axis=1), axis=0) != 0).any(axis=1)

    def score(self, step: float) -> tuple[int, int]:
        """Goals of both teams."""
        one, other = self.clocks.score[self._row(step)]
        return int(one), int(other)

    def clock(self, step: float) -> str:
        """The remaining time."""
        row = self._row(step)
        left = int(max(0, self.clocks.ticks_left[row]) // self._tick_hz)
        return f"{left // 60}:{left % 60:02d}" + ("  overtime" if self.clocks.overtime[row] else "")

    def ball_path(self, step: float, now: Array, seconds: float) -> list[list[float]]:
        """Positions of the ball in the last seconds, back to the last kick-off at most, up to `now`, its state."""
        first, last = int(max(0.0, step - seconds / self.step_seconds)), min(int(step), len(self.states) - 1)
        broken = np.flatnonzero(self._breaks[first:last])
        first += int(broken[-1]) + 1 if len(broken) else 0
        return [*self.states[first : last + 1, :2].tolist(), now[:2].tolist()]

    def _row(self, step: float) -> int:
        return min(int(step), len(self.states) - 1)
