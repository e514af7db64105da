"""The text that `train` prints at the end."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.cli.train import training_text

FACTS: dict[str, Any] = {
    "steps": 1_000_000,
    "seconds": 20.0,
    "steps_per_second": 5e4,
    "start_seconds": 1.0,
    "mean_return": 1.0,
    "checkpoint": "runs/x/checkpoints/000001000000",
    "run": "runs/x",
    "stopped": "",
    "evaluating": 0.6,
    "evaluate_every": 2000,
}


def test_a_large_share_of_evaluations_is_mentioned() -> None:
    """The second line has the share and the setting for a tenth of the evaluations."""
    second = training_text(FACTS).splitlines()[1]
    assert "60%" in second and "`--set every.evaluate=20000`" in second


@pytest.mark.parametrize("change", [{"evaluating": 0.1}, {"seconds": 2.0}])
def test_a_small_share_of_evaluations_is_not_mentioned(change: dict[str, float]) -> None:
    """A small share, a short training and results of older versions have no line about evaluations."""
    quiet = training_text(FACTS | change)
    assert "evaluations" not in quiet
    older = {name: value for name, value in FACTS.items() if name != "evaluating"}
    assert training_text(older) == quiet.replace("2.0 s (", "20.0 s (")
