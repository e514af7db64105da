"""The interface of collectors, from which the training loop gets rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from slipstream.contracts import Array
from slipstream.play.assignments import FinishedGame


class Collector(Protocol):
    """Makes rollouts. Rollout number k is made with the weights of version k - `lag`.

    One iteration of training with lag 0:

        rollout = collector.collect(version)          # made with the weights of `version`
        learner.update(rollout)
        collector.publish(version + 1, weights, assignments)
        collector.prefetch(version + 1)               # optional: the next rollout begins while metrics are written
    """

    lag: int
    """0: every rollout is made with the newest weights. 1: the next rollout is made during the update."""

    @property
    def failed(self) -> dict[int, str]:
        """Opponents that failed, by player number, with the reason."""

    def publish(self, version: int, params_and_stats: Array, assignments: Array, players: Sequence[str] = ()) -> None:
        """Set the weights and normaliser of a version and the assignments [envs, 3] of games that begin with it.

        `players` are the specs of new opponents; they are numbered in the order in which they are added.
        """

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Start with rollout number `version`, from a snapshot, or from freshly reset environments without one."""

    def prefetch(self, version: int) -> None:
        """Start to make rollout number `version` in the background, if possible; its weights are published."""

    def collect(self, version: int) -> Any:
        """Return rollout number `version`, a `Rollout` or `DeviceRollout`, valid until the next prefetch."""

    def finished_games(self, version: int) -> list[FinishedGame]:
        """Return the games that ended in rollout number `version`, ordered by time."""

    def snapshot(self, version: int) -> Mapping[str, Array]:
        """Return the state from which rollout number `version`, the next one to be trained on, starts."""

    def drain_faults(self) -> list[str]:
        """Return reports of what was kept out of the batch since the last call."""

    def seconds(self) -> tuple[float, float]:
        """Return the seconds spent in environments and in inference so far."""

    def close(self) -> None:
        """End all workers and free the memory."""
