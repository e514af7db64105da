"""A resumed run equals an uninterrupted one, bit for bit, except for times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.api import Run, resume
from slipstream.runs.checkpoint import Checkpoint, find, load
from slipstream.runs.layout import RunDir

CASES: dict[str, dict[str, Any]] = {
    "local": {"plan__collector": "local"},
    "lag 0": {"plan__collector": "actors", "plan__workers": 2, "plan__lag": 0},
    "lag 1": {"plan__collector": "actors", "plan__workers": 2, "plan__lag": 1},
    "opponent": {"plan__collector": "actors", "plan__workers": 2, "opponent": "random", "plan__lag": 1},
    "torch": {"plan__collector": "local", "plan__learner": "torch"},
    "schedule": {
        "plan__collector": "local",
        "schedules": {
            "ppo.learning_rate": "cosine to 0 over 2000",
            "ppo.clip": "linear to 0.1 by ppo/kl from 0 to 0.01",
        },
    },
    "lstm": {"plan__collector": "actors", "plan__workers": 2, "policy__memory": "lstm", "policy__memory_size": 12},
    "gru, burn-in, lag 1": {
        "plan__collector": "actors",
        "plan__workers": 2,
        "plan__lag": 1,
        "policy__memory": "gru",
        "policy__memory_size": 12,
        "policy__sequence": 8,
        "policy__burn_in": 4,
    },
    "options": {
        "plan__collector": "local",
        "ppo__optimiser": "adamw",
        "ppo__weight_decay": 0.01,
        "ppo__vtrace_rho": 1.0,
        "ppo__priority_alpha": 0.6,
        "ppo__epochs_max": 4,
        "ppo__centre_rewards": 0.1,
    },
    "rewards": {
        "plan__collector": "actors",
        "plan__workers": 2,
        "rewards": {"normalise": True, "potential": True, "clip": 3.0, "zero_sum": 1.0, "half_life_s": 2.0},
    },
    "images, scalars, memory": {
        "env": "treechop",
        "plan__collector": "local",
        "env__options": {"scalars": True},
        "env__match_seconds": 2.0,
        "policy__memory": "lstm",
        "policy__memory_size": 8,
        "policy__features": 8,
        "policy__sequence": 8,
        "evaluation__games": 2,
        "evaluation__final_games": 2,
    },
    "muon": {"plan__collector": "local", "ppo__optimiser": "muon", "ppo__contrastive_coef": 0.1},
}
WHOLE = {"every__log": 64, "every__evaluate": 512, "every__checkpoint": 10**9, "every__gradients": 256}


def exact(row: dict[str, Any]) -> dict[str, Any]:
    """Return a metrics row without times."""
    return {key: value for key, value in row.items() if not key.startswith(("time/", "system/"))}


def last(run: Run) -> Checkpoint:
    """Return the newest checkpoint."""
    return load(find(RunDir.open(Path(run.path))))


@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_uninterrupted(case: str, quick: Callable[..., Run]) -> None:
    """Weights, optimiser, normalisers, environments, RNG and metrics are all the same."""
    settings = WHOLE | CASES[case]
    whole = quick(name="whole", steps=2000, **settings)
    half = quick(name="half", steps=1000, **settings)
    again = resume(half.path, steps=2000)
    one, other = last(whole), last(again)
    assert one.steps == other.steps
    assert one.groups.keys() == other.groups.keys()
    for group, arrays in one.groups.items():
        assert arrays.keys() == other.groups[group].keys()
        for name, array in arrays.items():
            assert np.array_equal(array, other.groups[group][name]), f"{group}/{name} differs"
    assert one.state | {"seconds": 0} == other.state | {"seconds": 0}
    assert [exact(row) for row in whole.metrics()] == [exact(row) for row in again.metrics()]


def test_resume_discards_newer_metrics(quick: Callable[..., Run]) -> None:
    """Rows newer than the newest checkpoint are moved to another file."""
    run = quick(steps=1000, **WHOLE)
    place = RunDir.open(Path(run.path))
    with place.metrics.open("a") as file:
        file.write('{"steps": 99999, "loss/policy": 1.0}\n')
    again = resume(run.path, steps=1200)
    assert all(row["steps"] < 99999 for row in again.metrics())
    assert "99999" in place.discarded.read_text()


def test_schedule_does_not_depend_on_the_length_of_the_run(quick: Callable[..., Run]) -> None:
    """With its own length, a schedule has the same value at a step count in a short and in a long run."""
    settings = {"schedules": {"ppo.learning_rate": "linear to 0 over 4000"}, "every__log": 64}
    short, long = quick(name="a", steps=500, **settings), quick(name="b", steps=1000, **settings)
    rates = [{row["steps"]: row["ppo/learning_rate"] for row in run.metrics()} for run in (short, long)]
    assert rates[0].items() <= rates[1].items()
    assert min(rates[1].values()) < max(rates[1].values())
