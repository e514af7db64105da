"""The gate: a run that falls below what it started from goes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from slipstream.contracts import Array


class Restorable(Protocol):
    """What holds weights and their optimiser."""

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""


class Rollback:
    """Counts evaluations below a floor, and puts back the weights of the last one that was not."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.floor: float | None = None
        """The lower bound of the first evaluation's score."""
        self.strikes = 0
        self.returns = 0
        self.good: dict[str, Array] = {}

    def judge(self, score: float, result: Mapping[str, Any], engine: Restorable) -> str:
        """Take in an evaluation; return what is to be said, if anything was done."""
        if self.floor is None:
            low = result.get("evaluate/score_low")
            self.floor = float(result["evaluate/mean_return_low"] if low is None else low)
        if score >= self.floor:
            self.strikes, self.good = 0, engine.snapshot()
            return ""
        self.strikes += 1
        if self.strikes < self.limit:
            return (
                f"Evaluation {score:.3f} is below {self.floor:.3f}, what the run began with ({self.strikes} in a row)."
            )
        engine.restore(self.good)
        self.strikes, self.returns = 0, self.returns + 1
        return (
            f"{self.limit} evaluations in a row were below {self.floor:.3f}, where the run began: the last weights "
            "that were not are back."
        )

    def describe(self) -> dict[str, Any]:
        """The state as JSON holds it; `good` goes beside it."""
        return {"floor": self.floor, "strikes": self.strikes, "returns": self.returns}

    def restore(self, told: Mapping[str, Any], good: dict[str, Array]) -> None:
        """Put back what was described."""
        self.floor, self.strikes, self.returns = told["floor"], told["strikes"], told["returns"]
        self.good = good
