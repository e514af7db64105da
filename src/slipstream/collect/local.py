"""The local collector: one actor in this process. Parity tests compare every other collector with it."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.collect.actor import Actor
from slipstream.collect.rollout import Rollout, empty_rollout
from slipstream.contracts import Array
from slipstream.play.assignments import FinishedGame


class LocalCollector:
    """One actor with all environments."""

    def __init__(self, actor: Actor, steps: int, lag: int) -> None:
        self.actor = actor
        self.lag = lag
        self._rollout = empty_rollout(actor.vector.spec, actor.design, steps, actor.vector.envs)
        self._published: dict[int, tuple[Array, Array]] = {}
        """Weights and assignments by version."""

    @property
    def failed(self) -> dict[int, str]:
        """Opponents that failed, by player number, with the reason."""
        return self.actor.roster.faults

    def publish(self, version: int, params_and_stats: Array, assignments: Array, players: Sequence[str] = ()) -> None:
        """Set the weights of a version and the assignments of games that begin with it; add new opponents."""
        self._published[version] = params_and_stats.copy(), assignments.copy()
        self._published.pop(version - 2, None)
        self.actor.roster.add(players)

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Start with rollout number `version`, from a snapshot if there is one."""
        _, assignments = self._published[max(version - self.lag, 0)]
        if state is None:
            self.actor.reset(assignments)
        else:
            self.actor.restore(state, assignments)

    def prefetch(self, version: int) -> None:
        """Do nothing: a rollout is made when `collect` is called."""

    def collect(self, version: int) -> Rollout:
        """Make rollout number `version`, with the weights of that version, or of the previous one at lag 1."""
        params_and_stats, assignments = self._published[max(version - self.lag, 0)]
        self.actor.policy.load(params_and_stats)
        self.actor.fill(self._rollout, assignments)
        self._rollout.fault = self.actor.guard.first_fault
        return self._rollout

    def finished_games(self, version: int) -> list[FinishedGame]:
        """Return the games that ended in rollout number `version`, the last one, ordered by time."""
        return [game for _, game in self.actor.drain_finished()]

    def snapshot(self, version: int) -> dict[str, Array]:
        """Return the state from which rollout number `version`, the next one, starts."""
        return self.actor.snapshot()

    def drain_faults(self) -> list[str]:
        """Return reports of what was kept out of the batch since the last call."""
        return self.actor.guard.drain()

    def seconds(self) -> tuple[float, float]:
        """Return the seconds spent in environments and in inference so far."""
        return float(self.actor.seconds[0]), float(self.actor.seconds[1])

    def close(self) -> None:
        """Close the environments."""
        self.actor.vector.close()
