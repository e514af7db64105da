"""What the verbs of training and playing say at their end."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.cli.train import trained

FACTS: dict[str, Any] = {
    "steps": 1_000_000, "seconds": 20.0, "steps_per_second": 5e4, "start_seconds": 1.0, "mean_return": 1.0,
    "checkpoint": "runs/x/checkpoints/000001000000", "run": "runs/x", "stopped": "", "evaluating": 0.6,
    "evaluate_every": 2000,
}  # fmt: skip


def test_evaluations_that_take_much_of_the_time_are_told() -> None:
    """With the setting that has a tenth of them, where the user reads how fast it was."""
    second = trained(FACTS).splitlines()[1]
    assert second == "60% of the time went into evaluations: `--set every.evaluate=20000` has a tenth of them"


@pytest.mark.parametrize("change", [{"evaluating": 0.1}, {"seconds": 2.0}])
def test_nothing_is_said_of_little(change: dict[str, float]) -> None:
    """Neither of a small share nor of a short training; nor where a run of an older version does not know."""
    quiet = trained(FACTS | change)
    assert "evaluations" not in quiet
    older = {name: value for name, value in FACTS.items() if name != "evaluating"}
    assert trained(older) == quiet.replace("2.0 s (", "20.0 s (")
