"""Games that are all there in some arrays, which a snapshot holds and a resumed run goes on from."""

from __future__ import annotations

from typing import ClassVar

from slipstream.core.contracts import Array
from slipstream.envs.rewards import Payout


class Saved:
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
