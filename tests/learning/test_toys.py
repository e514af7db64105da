"""Tiny environments with a known optimum: learned in seconds, for every kind of action and several seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.api import Run, evaluate
from slipstream.policies.design import ActInputs, ActOutputs
from slipstream.testing import ToyEnv

SETTINGS: dict[str, Any] = {
    "plan__collector": "local", "plan__envs": 16, "plan__threads": 1, "ppo__rollout": 32, "ppo__minibatch": 128,
    "ppo__epochs": 4, "ppo__learning_rate": 3e-3, "ppo__gamma": 0.9, "policy__hidden": [32],
    "every__gradients": 0, "every__checkpoint": 0, "every__log": 0,
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("actions", "engine"),
    [
        ("discrete", "fused"),
        ("discrete", "torch"),
        ("multi_discrete", "fused"),
        ("continuous", "fused"),
        ("masked", "fused"),
        ("mixed", "fused"),
        ("mixed", "torch"),
    ],
)
def test_nine_tenths_of_the_optimum(actions: str, engine: str, seed: int, quick: Callable[..., Run]) -> None:
    """After 20,000 steps the greedy policy is within 10 % of the optimum."""
    run = quick(lambda: ToyEnv(actions), steps=20_000, seed=seed, plan__learner=engine, **SETTINGS)
    result = evaluate(f"run:{run.path}", lambda: ToyEnv(actions), games=50, seed=seed)
    assert result["mean_return"] >= 9.0


def test_truncation_is_not_mistaken_for_an_end(quick: Callable[..., Run]) -> None:
    """With truncated episodes, values are bootstrapped and approach r / (1 - gamma)."""
    run = quick(lambda: ToyEnv(truncates=True), steps=20_000, ppo__normalise_return=False, **SETTINGS)
    assert run.facts["mean_return"] > 8.0
    agent = run.agent()
    value, action, log_prob = np.zeros(4, np.float32), np.zeros((4, 1), np.int32), np.zeros(4, np.float32)
    acting = agent.acting
    mask, streams = np.zeros((4, 0), np.uint8), np.zeros((4, 2), np.int64)
    acting.act(
        ActInputs(np.arange(4), np.eye(4, dtype=np.float32), mask, np.zeros((4, 0), np.float32), streams),
        ActOutputs(action, log_prob, value),
        False,
    )
    assert 7.5 < value.mean() < 11, "1 / (1 - 0.9) = 10"


def test_cartpole_in_seconds(quick: Callable[..., Run]) -> None:
    """CartPole reaches a mean return of 400 over its last hundred episodes in less than 20 seconds."""
    run = quick(
        "gymnasium:CartPole-v1", preset=None, steps=200_000, plan__envs=16, plan__workers=2, ppo__rollout=64,
        ppo__minibatch=256, ppo__epochs=8, ppo__learning_rate=2e-3, ppo__gamma=0.98, ppo__gae_lambda=0.9,
        schedules={"ppo.learning_rate": "linear to 0 over 200000"}, every__checkpoint=0,
    )  # fmt: skip
    assert run.facts["mean_return"] >= 400
    assert run.facts["steps"] / run.facts["steps_per_second"] < 20
