"""Games that are all there in some arrays, which a resumed run goes on from; and those of others, which tell none."""

from __future__ import annotations

from typing import ClassVar

from slipstream.contracts import Array, EnvSpec, check_tasks
from slipstream.envs.rewards import Payout


class ArraySnapshot:
    """A vector of such games."""

    KEPT: ClassVar[tuple[str, ...]]
    """The attributes that hold them."""
    payout: Payout

    def snapshot(self) -> dict[str, Array]:
        """Copy all there is, and the sizes of reward terms if they are normalised."""
        return {name: getattr(self, name).copy() for name in self.KEPT} | self.payout.snapshot()

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from a snapshot."""
        for name in self.KEPT:
            getattr(self, name)[:] = state[name]
        self.payout.restore(state)

    def close(self) -> None:
        """Nothing is held open."""


class NoSnapshot:
    """A vector of other people's games: all of one kind, and a resumed run begins them anew."""

    spec: EnvSpec

    def assign(self, tasks: Array) -> None:
        """There is one kind of game."""
        check_tasks(self.spec, tasks)

    def snapshot(self) -> dict[str, Array]:
        """Nothing: such games do not tell their states."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Nothing to put back."""
