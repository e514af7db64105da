"""Returns, lengths and outcomes of the learner's episodes, for every collector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from slipstream.collect.rollout import Rollout
from slipstream.confidence import mean_interval, wilson
from slipstream.contracts import Array
from slipstream.system.numba_compile import compiled

WINDOW = 100
"""Finished episodes that the means are taken over."""


class EpisodeTracker(Protocol):
    """Follows episodes where the rollouts are made, so that rollouts need not be read here."""

    def finished_episodes(self) -> tuple[Array, int]:
        """Return, length and outcome of some episodes that ended in the last rollout, and the number of all of them."""

    def unfinished_episodes(self) -> tuple[Array, Array]:
        """Return and length so far of the episode of every row."""

    def restore_episodes(self, returns: Array, lengths: Array) -> None:
        """Restore what `unfinished_episodes` returned."""


@compiled
def track_episodes(
    reward: Array,
    terminated: Array,
    truncated: Array,
    outcome: Array,
    active: Array,
    returns: Array,
    lengths: Array,
    window: Array,
    count: int,
) -> int:
    """Advance every row's episode; write finished ones into the ring `window`; return the new `count`.

    An episode in which the learning policy never acted is not counted.
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
    """The last finished episodes of the learning policy.

    With a `tracker` it reads finished episodes from there instead of following them in the rollouts.
    """

    def __init__(self, rows: int, versus: bool, tracker: EpisodeTracker | None = None) -> None:
        self.count = np.zeros(1, np.int64)
        """Episodes that ended."""
        self.shown = self.count if tracker is None else np.zeros(1, np.int64)
        """Episodes that were written into the window; a tracker reports only some of them."""
        self._versus = versus
        """Whether there is an opponent, so that games are won and lost."""
        self._tracker = tracker
        self._returns = np.zeros(rows, np.float64)
        self._lengths = np.zeros(rows, np.int64)
        self._window = np.zeros((WINDOW, 3), np.float64)

    def add(self, rollout: Rollout) -> None:
        """Add the episodes that ended in a rollout."""
        if self._tracker is not None:
            listed, ended = self._tracker.finished_episodes()
            for episode in listed:
                self._window[int(self.shown[0]) % WINDOW] = episode
                self.shown += 1
            self.count += ended
            return
        self.count[0] = track_episodes(
            rollout.reward,
            rollout.terminated,
            rollout.truncated,
            rollout.outcome,
            rollout.active[: rollout.steps],
            self._returns,
            self._lengths,
            self._window,
            int(self.count[0]),
        )

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
        """The state by name (not copied)."""
        if self._tracker is not None:
            self._returns[:], self._lengths[:] = self._tracker.unfinished_episodes()
        return {
            "episodes.count": self.count,
            "episodes.returns": self._returns,
            "episodes.lengths": self._lengths,
            "episodes.window": self._window,
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore what `arrays` returned."""
        for name, array in self.arrays().items():
            array[:] = arrays[name]
        if self._tracker is not None:
            self.shown[:] = np.minimum(self.count, WINDOW)
            self._tracker.restore_episodes(self._returns, self._lengths)
