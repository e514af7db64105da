"""Behaviour cloning: all kinds of policies imitate their demos, and resuming is exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.algorithms.cloning import Cloner
from slipstream.algorithms.demo_batches import demo_statistics
from slipstream.contracts import Array
from slipstream.demos.edit import split
from slipstream.demos.reader import Demos
from slipstream.engines.fused_engine import FusedEngine
from slipstream.engines.torch_engine import TorchEngine
from slipstream.policies.design import Design
from slipstream.settings import CloneSettings, PolicySettings


def cloner_of(folder: Path, engine: str = "fused", policy: dict[str, Any] | None = None, **settings: Any) -> Cloner:
    """Build a cloner of the demos in a folder."""
    demos = Demos.open(folder)
    clone_settings = CloneSettings(**({"batch_size": 64, "epochs": 30, "learning_rate": 1e-2} | settings))
    design = Design(demos.schema.obs, demos.schema.action, PolicySettings(**({"hidden": (32,)} | (policy or {}))))
    params_and_stats = design.initial_params_and_stats(0)
    train, held_out = split(demos, 0.2, 0)
    kind = FusedEngine if engine == "fused" else TorchEngine
    made: Any = kind(design, design.split_params_and_stats(params_and_stats)[0], 1)
    return Cloner(
        clone_settings, design, params_and_stats, made, demo_statistics(train, 0.9), train, held_out, gamma=0.9, seed=0
    )


@pytest.mark.parametrize("engine", ["fused", "torch"])
@pytest.mark.parametrize(
    "kind", ["discrete", "multi_discrete", "masked", "binary", "continuous", "squashed", "mixed", "masked_mixed"]
)
def test_every_kind_of_action_is_cloned(kind: str, engine: str, make_demos: Callable[..., Path]) -> None:
    """On held-out episodes most discrete actions are right, and continuous ones are within 0.1."""
    policy = {"squash": True, "shared": False} if kind in ("squashed", "masked_mixed") else {}
    cloner = cloner_of(make_demos(kind, episodes=200), engine, policy)
    before, _ = cloner.validate()
    for epoch in range(12):
        row = cloner.epoch(epoch)
    after, confusion = cloner.validate()
    assert after["clone/held_out_loss"] < before["clone/held_out_loss"] - 0.3
    assert np.isfinite(row["clone/loss"])
    action = cloner.design.action
    if action.continuous_parts:
        assert after["clone/error"] < 0.1 < before["clone/error"]
        named_errors = [key for key in after if key.startswith("clone/error/")]
        assert named_errors == [f"clone/error/{part}" for part in range(action.discrete_parts, action.parts)]
        named = cloner.design.weights.named(cloner.design.split_params_and_stats(cloner.params_and_stats)[0])
        assert named["log_std"].min() >= np.log(0.05) - 1e-6
    if action.discrete_parts:
        assert after["clone/accuracy"] > 0.85 > before["clone/accuracy"]
        counts = sum(matrix.sum() for matrix in confusion)
        assert counts == cloner.held_out.demos.steps * len(confusion)
        right = sum(np.trace(matrix) for matrix in confusion)
        assert right / counts == pytest.approx(after["clone/accuracy"])


def test_value_targets_are_scaled_returns(make_demos: Callable[..., Path]) -> None:
    """Value targets are discounted returns divided by PPO's return scale, and the value loss falls."""
    cloner = cloner_of(make_demos(episodes=100), value_coef=0.5)
    deviation = float(np.sqrt(cloner.statistics.returns.variance[0]))
    (window,) = cloner.held_out.batches(None, np.zeros(6), np.ones(6), False)
    steps = int(cloner.held_out.demos.episodes["steps"][0])
    assert window.batch.value_target[0] == pytest.approx((1 - 0.9**steps) / 0.1 / deviation, rel=1e-4)
    first = cloner.epoch(0)["clone/value_loss"]
    for epoch in range(1, 6):
        last = cloner.epoch(epoch)["clone/value_loss"]
    assert last < 0.5 * first


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_recurrent_expert_needs_recurrent_policy(memory: str, make_demos: Callable[..., Path]) -> None:
    """An expert that acts on its first observation is imitated by a recurrent policy only."""
    folder = make_demos(episodes=300, recall=True)
    plain = cloner_of(folder)
    settings = {"memory": memory, "memory_size": 32, "sequence": 16}
    recurrent = cloner_of(folder, policy=settings, epochs=25)
    for epoch in range(25):
        recurrent.epoch(epoch)
        if epoch < 5:
            plain.epoch(epoch)
    assert recurrent.validate()[0]["clone/accuracy"] > 0.75 > plain.validate()[0]["clone/accuracy"]


def weights_after(cloner: Cloner, first: int, last: int) -> Array:
    """The weights after some epochs."""
    for epoch in range(first, last):
        cloner.epoch(epoch)
    return cloner.params_and_stats.copy()


@pytest.mark.parametrize("policy", [{}, {"memory": "gru", "memory_size": 8}])
def test_restored_cloner_continues_bit_for_bit(policy: dict[str, Any], make_demos: Callable[..., Path]) -> None:
    """Epochs after restoring a snapshot into a new cloner equal uninterrupted ones bit for bit."""
    folder = make_demos()
    whole = weights_after(cloner_of(folder, policy=policy), 0, 4)
    half, rest = cloner_of(folder, policy=policy), cloner_of(folder, policy=policy)
    weights_after(half, 0, 2)
    rest.restore(half.snapshot())
    assert np.array_equal(weights_after(rest, 2, 4), whole)


def test_windows_change_only_the_order(make_demos: Callable[..., Path]) -> None:
    """Cloning from windows is as good as from memory, and prefetching does not change the result."""
    folder, packs = make_demos(episodes=200), []
    for ahead in (False, True):
        cloner = cloner_of(folder)
        cloner.train._window_steps = 400
        cloner.prefetch = ahead
        packs.append(weights_after(cloner, 0, 12))
        assert cloner.validate()[0]["clone/accuracy"] > 0.85
    assert np.array_equal(*packs)


def test_prefetch_is_decided_by_measurement(make_demos: Callable[..., Path]) -> None:
    """Windows are prefetched only if reading takes a relevant share of the epoch."""
    cloner = cloner_of(make_demos())
    assert "fit in memory" in cloner.choose_prefetch({"time/read": 0.5})
    assert not cloner.prefetch
    cloner.train._window_steps = 100
    assert "prefetched by a thread" in cloner.choose_prefetch({"time/read": 0.5})
    assert cloner.prefetch
    assert "read when needed" in cloner.choose_prefetch({"time/read": 0.01})
    assert not cloner.prefetch
