"""The cost model, against arithmetic by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slipstream.perf.cost_model import Cost, CostModel
from slipstream.perf.trial import Trial
from slipstream.plan import Facts, make_plan
from slipstream.settings import PlanSettings

MODEL = CostModel(cores=2, env=Cost(2.0, 32.0), inference=Cost(1.0, 0.0), learn=4.0, rest=0.5)


def plan(**more: Any) -> dict[str, Any]:
    """The switches of an applied plan that the model reads."""
    return {"collector": "actors", "envs": 64, "workers": 2, "groups": 1, "threads": 1, "lag": 0} | more


def test_costs_are_fitted_through_two_sizes() -> None:
    """2 s per step with 64 envs and 1.25 s with 256 give 1 s per step and 64 s per call."""
    assert Cost.fit({64: 2.0, 256: 1.25}) == Cost(1.0, 64.0)
    assert Cost.fit({64: 2.0}) == Cost(2.0, 0.0)
    assert Cost.fit({64: 1.0, 256: 1.5}) == Cost(1.5, 0.0), "a call costs nothing rather than less"


@pytest.mark.parametrize(
    ("wished", "seconds"),
    [
        ({"collector": "local"}, 2.5 + 1.0 + 4.0 + 0.5),
        ({}, (3.0 + 1.0) / 2 + 4.0 + 0.5),
        ({"threads": 2}, (3.0 + 1.0) / 2 + 2.0 + 0.5),
        ({"workers": 8}, (3.0 + 1.0) / 2 + 4.0 + 0.5),
        ({"envs": 128}, (2.5 + 1.0) / 2 + 4.0 + 0.5),
        ({"lag": 1}, (4.0 + 4.0) / 2 + 0.5),
        ({"collector": "batched"}, 3.0 / 2 + 1.0 + 4.0 + 0.5),
        ({"collector": "batched", "groups": 2}, max(4.0 / 2, 1.0, (4.0 + 1.0) / 2) + 4.0 + 0.5),
    ],
)
def test_plans_are_predicted(wished: dict[str, Any], seconds: float) -> None:
    """Workers divide collecting, threads divide learning, lag overlaps the two, groups overlap env and policy."""
    assert MODEL.predict(plan(**wished)) == pytest.approx(1 / seconds)


def test_the_limit_is_every_core_busy_all_the_time() -> None:
    """cores / (env + inference + learning)."""
    assert MODEL.limit(64) == pytest.approx(2 / (2.5 + 1.0 + 4.0))
    assert MODEL.facts(64)["env_us"] == pytest.approx(2.5e6)


def test_it_is_read_off_trials(make_trial: Callable[..., Trial]) -> None:
    """Costs are the seconds of each span per step; learning is taken from the trial with most envs."""
    applied = make_plan(PlanSettings(), Facts(2, True, 1024))
    spans = {"env": 200.0, "inference": 100.0, "learn": 400.0, "rest": 50.0}
    one = make_trial(plan=applied, steps=100, seconds=1.0, spans=spans, updates=4, samples=400)
    few = replace(one, spans=one.spans | {"env": 250.0, "learn": 900.0})
    model = CostModel.of({64: few, 256: one}, 2)
    assert model.learn == 4.0 and model.rest == 0.5
    assert model.env(64) == pytest.approx(2.5) and model.env(256) == pytest.approx(2.0)
