"""Episodes seen by the learner: their returns, lengths and outcomes, whoever collected them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.collect.rollout import Rollout
from slipstream.confidence import mean_interval, wilson
from slipstream.contracts import Array
from slipstream.system.numba_compile import compiled

WINDOW = 100
"""Finished episodes that the means are taken over."""


@compiled
def follow(
    reward: Array, terminated: Array, truncated: Array, outcome: Array, active: Array, returns: Array,
    lengths: Array, window: Array, count: int,
) -> int:  # fmt: skip
    """Carry every row's episode forward; write finished ones into the ring `window`; return how many there were.

    An episode in which the learning policy never acted is somebody else's.
    """
    for t in range(reward.shape[0]):
        for row in range(reward.shape[1]):
            returns[row] += reward[t, row]
            lengths[row] += active[t, row]
            if terminated[t, row] or truncated[t, row]:
                if lengths[row] and (active[t, row] or terminated[t, row]):
                    slot = count % window.shape[0]
                    window[slot, 0] = returns[row]
                    window[slot, 1] = lengths[row]
                    window[slot, 2] = outcome[t, row]
                    count += 1
                returns[row] = 0.0
                lengths[row] = 0
    return count


class EpisodeStats:
    """The last finished episodes of the learning policy."""

    def __init__(self, rows: int, versus: bool) -> None:
        self.count = self.shown = np.zeros(1, np.int64)
        """Episodes that ended, and how many of them went through the window."""
        self._versus = versus
        """Whether there is an opponent, so that games are won and lost."""
        self._returns = np.zeros(rows, np.float64)
        self._lengths = np.zeros(rows, np.int64)
        self._window = np.zeros((WINDOW, 3), np.float64)

    def add(self, rollout: Rollout) -> None:
        """Take in a rollout."""
        steps = rollout.steps
        self.count[0] = follow(
            rollout.reward, rollout.terminated, rollout.truncated, rollout.outcome, rollout.active[:steps],
            self._returns, self._lengths, self._window, int(self.count[0]),
        )  # fmt: skip

    def metrics(self) -> dict[str, Any]:
        """Means over the window; None where no episode has finished yet."""
        count = int(self.count[0])
        seen = self._window[: min(int(self.shown[0]), WINDOW)]
        row: dict[str, Any] = {"episode/count": count}
        if not len(seen):
            names = ("return_mean", "return_low", "return_high", "length_mean")
            return row | dict.fromkeys(f"episode/{name}" for name in names)
        mean, low, high = mean_interval(seen[:, 0].tolist())
        row |= {"episode/return_mean": mean, "episode/return_low": low, "episode/return_high": high}
        row["episode/length_mean"] = float(seen[:, 1].mean())
        if self._versus:
            wins = int((seen[:, 2] > 0).sum())
            row["episode/win_rate"] = wins / len(seen)
            row["episode/win_rate_low"], row["episode/win_rate_high"] = wilson(wins, len(seen))
        return row

    def arrays(self) -> dict[str, Array]:
        """The state by name, as it stands (not copied)."""
        return {
            "episodes.count": self.count,
            "episodes.returns": self._returns,
            "episodes.lengths": self._lengths,
            "episodes.window": self._window,
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Put back what `arrays` told."""
        for name, array in self.arrays().items():
            array[:] = arrays[name]
