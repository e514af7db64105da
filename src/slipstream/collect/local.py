"""The local collector: everything in this process; the reference for every parity test."""

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
        self._packs: dict[int, tuple[Array, Array]] = {}

    @property
    def failed(self) -> dict[int, str]:
        """Frozen players that failed, and how."""
        return self.actor.roster.faults

    def publish(self, version: int, params_and_stats: Array, seats: Array, players: Sequence[str] = ()) -> None:
        """Give the weights and normaliser of a version and the seats of games begun with them; let more players in."""
        self._packs[version] = params_and_stats.copy(), seats.copy()
        self._packs.pop(version - 2, None)
        self.actor.roster.add(players)

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Begin with rollout number `version`, from a snapshot if there is one."""
        _, seats = self._packs[max(version - self.lag, 0)]
        if state is None:
            self.actor.reset(seats)
        else:
            self.actor.restore(state, seats)

    def ahead(self, version: int) -> None:
        """Nothing: whoever asks for a rollout makes it."""

    def collect(self, version: int) -> Rollout:
        """Make rollout number `version`, with the weights of that version, or of the one before at lag 1."""
        params_and_stats, seats = self._packs[max(version - self.lag, 0)]
        self.actor.acting.load(params_and_stats)
        self.actor.fill(self._rollout, seats)
        return self._rollout

    def matches(self, version: int) -> list[FinishedGame]:
        """The games that ended in rollout number `version`, the last one, in the order of time."""
        return [match for _, match in self.actor.drain()]

    def snapshot(self, version: int) -> dict[str, Array]:
        """What rollout number `version`, the next one, starts from."""
        return self.actor.snapshot()

    def drain_faults(self) -> list[str]:
        """What was kept out of the batch since the last call."""
        return self.actor.guard.drain()

    def seconds(self) -> tuple[float, float]:
        """Time spent in environments and in inference so far."""
        return float(self.actor.seconds[0]), float(self.actor.seconds[1])

    def close(self) -> None:
        """Close the environments."""
        self.actor.vector.close()
