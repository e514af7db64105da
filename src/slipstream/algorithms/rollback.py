"""Rollback: restore good weights when evaluations stay below the first one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from slipstream.contracts import Array


class Restorable(Protocol):
    """Holds weights and optimiser state."""

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore what `snapshot` returned."""


class Rollback:
    """Counts evaluations below a floor, and restores the weights of the last good one."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.floor: float | None = None
        """The lower bound of the first evaluation's score."""
        self.strikes = 0
        self.returns = 0
        self.good: dict[str, Array] = {}
        self.restored = False
        """Whether the last evaluation led to a rollback, so that its score is not that of the current weights."""

    def judge(self, score: float, result: Mapping[str, Any], engine: Restorable) -> str:
        """Add an evaluation; return a notice if it was below the floor, else nothing."""
        self.restored = False
        if self.floor is None:
            low = result.get("evaluate/score_low")
            self.floor = float(result["evaluate/mean_return_low"] if low is None else low)
        if score >= self.floor:
            self.strikes, self.good = 0, engine.snapshot()
            return ""
        self.strikes += 1
        if self.strikes < self.limit:
            return f"Evaluation {score:.3f} is below {self.floor:.3f}, the floor of the run ({self.strikes} in a row)."
        engine.restore(self.good)
        self.strikes, self.returns, self.restored = 0, self.returns + 1, True
        return (
            f"{self.limit} evaluations in a row were below {self.floor:.3f}, the floor of the run: "
            "the weights of the last good evaluation are restored."
        )

    def describe(self) -> dict[str, Any]:
        """The state as JSON; the good weights are saved separately."""
        return {"floor": self.floor, "strikes": self.strikes, "returns": self.returns}

    def restore(self, state: Mapping[str, Any], good: dict[str, Array]) -> None:
        """Restore what `describe` returned."""
        self.floor, self.strikes, self.returns = state["floor"], state["strikes"], state["returns"]
        self.good = good
