"""Rollback: strikes, and restored weights."""

from __future__ import annotations

import numpy as np

from slipstream.algorithms.rollback import Rollback
from slipstream.contracts import Array


class Weights:
    """One number that training changes."""

    def __init__(self) -> None:
        self.value = np.zeros(1)

    def snapshot(self) -> dict[str, Array]:
        """A copy."""
        return {"value": self.value.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put it back."""
        self.value[:] = arrays["value"]


def result(low: float) -> dict[str, float]:
    """An evaluation with this lower bound."""
    return {"evaluate/score_low": low}


def test_three_bad_evaluations_restore_the_last_good_weights() -> None:
    """Only evaluations below the first one's lower bound count, and only in a row."""
    gate, weights = Rollback(3), Weights()
    assert gate.judge(0.45, result(0.40), weights) == ""
    assert gate.floor == 0.40
    weights.value[:] = 1
    assert gate.judge(0.41, result(0.1), weights) == ""
    weights.value[:] = 2
    assert "0.390 is below 0.400" in gate.judge(0.39, result(0.1), weights)
    gate.judge(0.40, result(0.1), weights)
    weights.value[:] = 3
    for strike in range(2):
        assert f"({strike + 1} in a row)" in gate.judge(0.2, result(0.1), weights)
    assert not gate.restored
    assert "are restored" in gate.judge(0.2, result(0.1), weights)
    assert gate.restored
    assert weights.value[0] == 2
    assert (gate.strikes, gate.returns) == (0, 1)


def test_games_without_sides_use_the_return() -> None:
    """Without wins and losses the floor is the lower bound of the mean return."""
    gate = Rollback(1)
    gate.judge(5.0, {"evaluate/mean_return_low": 4.0}, Weights())
    assert gate.floor == 4.0


def test_the_state_can_be_restored() -> None:
    """A restored rollback continues with the same floor and strikes."""
    gate, weights = Rollback(2), Weights()
    gate.judge(0.5, result(0.4), weights)
    gate.judge(0.1, result(0.0), weights)
    other = Rollback(2)
    other.restore(gate.describe(), gate.good)
    weights.value[:] = 7
    assert "are restored" in other.judge(0.1, result(0.0), weights)
    assert weights.value[0] == 0
