"""The actors and local collectors make the same rollouts, whatever the split and the lag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppo_cases import build_parts, collect_and_learn
from slipstream.api import Run
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir

SETTINGS = {
    "plan__envs": 6,
    "ppo__rollout": 16,
    "ppo__minibatch": 32,
    "policy__hidden": [16],
    "env__match_seconds": 2.0,
}


def rollouts(env: str, count: int, **more: Any) -> list[dict[str, Any]]:
    """Collect and learn for some iterations; return copies of the rollouts."""
    parts = build_parts(env, **(SETTINGS | more))
    try:
        return list(collect_and_learn(parts, count))
    finally:
        parts.collector.close()


@pytest.mark.parametrize(
    ("env", "more"),
    [
        ("soccer", {"plan__workers": 2}),
        ("soccer", {"plan__workers": 3, "plan__lag": 1}),
        ("soccer", {"plan__workers": 2, "opponent": "scripted:chaser"}),
        ("soccer:2v2", {"plan__workers": 2, "env__actions": "continuous", "opponent": "random"}),
        ("gymnasium:CartPole-v1", {"plan__workers": 3}),
        ("gymnasium:Pendulum-v1", {"plan__workers": 2, "plan__lag": 1}),
        ("soccer", {"plan__workers": 3, "policy__memory": "lstm", "policy__memory_size": 12}),
        ("recall:masked", {"plan__workers": 2, "policy__memory": "gru", "policy__memory_size": 12, "plan__lag": 1}),
        ("soccer:2v2", {"plan__workers": 2, "rewards": {"normalise": True, "potential": True, "team_spirit": 0.5}}),
        ("mixed:hybrid", {"plan__workers": 1, "policy__features": 16}),
        (
            "mixed:team",
            {"plan__workers": 1, "policy__memory": "lstm", "policy__memory_size": 12, "policy__features": 16},
        ),
    ],
)
def test_actors_equal_local(env: str, more: dict[str, Any]) -> None:
    """Every array of every rollout is the same, bit for bit."""
    local = rollouts(env, 4, plan__collector="local", **more)
    actors = rollouts(env, 4, plan__collector="actors", **more)
    for number, (one, other) in enumerate(zip(local, actors, strict=True)):
        for name in one:
            assert np.array_equal(one[name], other[name]), f"rollout {number}: {name} differs"


def test_lag_is_exactly_one() -> None:
    """At lag 1, rollouts 0 and 1 are made with the first weights, and rollout 2 with those of update 1."""
    current = rollouts("soccer", 3, plan__collector="local", plan__lag=0)
    stale = rollouts("soccer", 3, plan__collector="local", plan__lag=1)
    assert np.array_equal(current[0]["log_prob"], stale[0]["log_prob"])
    assert not np.array_equal(current[1]["log_prob"], stale[1]["log_prob"])
    never = rollouts("soccer", 2, plan__collector="local", ppo__learning_rate=1e-30, ppo__normalise_obs=False)
    first = rollouts("soccer", 2, plan__collector="local", plan__lag=1, ppo__normalise_obs=False)
    assert np.array_equal(never[1]["log_prob"], first[1]["log_prob"])


def test_training_does_not_depend_on_the_collector(quick: Callable[..., Run]) -> None:
    """A whole run with actors ends with the same weights as a local one."""
    weights = []
    for name, collector in (("a", "local"), ("b", "actors")):
        run = quick(name=name, plan__collector=collector, plan__threads=1)
        weights.append(load(find(RunDir.open(Path(run.path)))).groups["policy"])
    assert all(np.array_equal(weights[0][key], weights[1][key]) for key in weights[0])
