"""Snapshots of vectors: of games whose state is held in arrays, and of games that cannot give their state."""

from __future__ import annotations

from slipstream.contracts import Array, EnvSpec, check_tasks
from slipstream.envs.rewards import CombinedReward


class ArraySnapshot:
    """A vector whose whole state is in arrays, so that a resumed run continues bit for bit."""

    KEPT: tuple[str, ...]
    """Names of the attributes that hold the state."""
    payout: CombinedReward

    def snapshot(self) -> dict[str, Array]:
        """Copy the state, and the running mean squares of reward terms if they are normalised."""
        return {name: getattr(self, name).copy() for name in self.KEPT} | self.payout.snapshot()

    def restore(self, state: dict[str, Array]) -> None:
        """Restore a snapshot."""
        for name in self.KEPT:
            getattr(self, name)[:] = state[name]
        self.payout.restore(state)

    def close(self) -> None:
        """Nothing to free."""


class NoSnapshot:
    """A vector of games without tasks whose state cannot be saved; a resumed run begins new episodes."""

    spec: EnvSpec

    def assign(self, tasks: Array) -> None:
        """Check the tasks: there are none to assign."""
        check_tasks(self.spec, tasks)

    def snapshot(self) -> dict[str, Array]:
        """Empty: the games cannot give their states."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Nothing to restore."""
