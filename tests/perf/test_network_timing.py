"""Timing of inference and learner on synthetic samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.api import configure
from slipstream.contracts import Array, EnvSpec
from slipstream.perf.network_timing import measure_inference, measure_learner, synthetic_rollout, with_relu
from slipstream.plan import Facts, make_plan
from slipstream.policies.design import Design
from slipstream.testing import ToyEnv
from slipstream.training.build import choose_env, probe_env


@pytest.mark.parametrize("kind", ["discrete", "continuous", "masked"])
@pytest.mark.usefixtures("quiet_machine")
def test_acting_is_measured(kind: str, make_policy: Callable[..., tuple[Design, Array]]) -> None:
    """Every batch size is timed, including that of training; larger batches take longer."""
    design, _ = make_policy(kind, hidden=(64, 64))
    acting = measure_inference(design, EnvSpec("x", design.obs, design.action), 24, 0.2)
    assert set(acting.by_batch) == {1, 8, 24, 64, 512} and acting.rows == 24
    assert acting.by_batch[512].p50_us > acting.by_batch[1].p50_us
    assert acting.per_row_us(8) == acting.by_batch[8].p50_us / 8


@pytest.mark.parametrize(
    ("flags", "engine"),
    [({}, "fused"), ({"plan__learner": "torch"}, "torch"), ({"policy__memory": "gru", "policy__sequence": 8}, "fused")],
    ids=["fused", "torch", "memory"],
)
def test_learning_is_measured(flags: dict[str, Any], engine: str) -> None:
    """Each engine trains on synthetic samples; a requested torch learner is compared with the fused engine."""
    base = {"plan__envs": 8, "ppo__rollout": 16, "ppo__minibatch": 64, "policy__hidden": (16,)}
    settings = configure("python:x", flags=base | flags).settings
    spec, design, *_ = probe_env(choose_env("python:x", settings, factory=lambda: ToyEnv()), settings)
    plan = make_plan(settings.plan, Facts(cores=2, native=False, minibatch=64))
    learn = measure_learner(settings, design, spec, plan, 0.1)
    assert learn.engine == engine and learn.samples_per_second > 0 and learn.update_ms > 0
    assert (learn.fused_ratio > 0) is (engine == "torch")
    assert (learn.syncs > 0) is (engine == "torch")


def test_synthetic_samples_have_the_right_shape() -> None:
    """A synthetic rollout is like that of training: finite, active, with legal actions."""
    settings = configure("pixels", preset="smoke").settings
    spec, design, *_ = probe_env(choose_env("pixels", settings), settings)
    rollout = synthetic_rollout(spec, design, settings, 2)
    assert rollout.obs.dtype == np.uint8 and rollout.active.all() and np.isfinite(rollout.reward).all()
    assert rollout.action.max() < spec.action.sizes[0] and rollout.steps == settings.ppo.rollout
    assert with_relu(design).policy.activation == "relu" and design.policy.activation == "tanh"
