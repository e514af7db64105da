"""The device collector and engine on the CPU: the same games and gradient steps as local, checkpoints for either."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slipstream.api import configure
from slipstream.training.build import build, choose_env
from slipstream.training.parts import TrainingParts
from slipstream.training.run_state import Position, capture, restore

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "soccer": ("soccer", {"ppo.minibatch": 128, "ppo.shuffle": "time"}),
    "two networks": (
        "soccer",
        {
            "ppo.minibatch": 128,
            "ppo.shuffle": "time",
            "policy.shared": False,
            "ppo.epochs": 2,
            "policy.activation": "tanh",
            "ppo.clip_value": 0.1,
            "ppo.optimiser": "adamw",
            "ppo.weight_decay": 0.1,
        },
    ),
    "lstm": (
        "soccer",
        {
            "ppo.minibatch": 512,
            "policy.memory": "lstm",
            "policy.memory_size": 20,
            "policy.sequence": 8,
            "ppo.shuffle": "time",
            "env.match_seconds": 0.8,
        },
    ),
    "kart": ("kart", {"ppo.minibatch": 64, "ppo.shuffle": "time", "env.match_seconds": 2.4}),
    "kart, two ends in a rollout": ("kart", {"ppo.minibatch": 64, "ppo.shuffle": "time", "env.match_seconds": 1.0}),
    "mixed": (
        "soccer:mixed",
        {"ppo.minibatch": 1536, "ppo.shuffle": "time", "env.match_seconds": 1.0, "env.target": ("1v1", "3v3")},
    ),
}
COMPARED = ("obs", "action", "log_prob", "value", "reward", "terminated", "truncated", "active", "state")


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")


def parts_of(env: str, collector: str, more: dict[str, Any], device: str = "cpu") -> TrainingParts:
    """The parts of a small run."""
    flags = {"plan.collector": collector, "plan.device": device, "plan.envs": 8, "ppo.rollout": 32} | more
    settings = configure(env, flags=flags, tuned=False).settings
    return build(choose_env(env, settings), settings)


def begin(parts: TrainingParts) -> None:
    """Start collecting."""
    parts.publish(0)
    parts.collector.start(0, None)


def iterate(parts: TrainingParts, version: int) -> Any:
    """One iteration, without a log."""
    rollout = parts.collector.collect(version)
    samples, row = parts.learner.update(rollout, version)
    parts.episodes.add(rollout)
    parts.publish(version + 1)
    return rollout, samples, row


@pytest.mark.parametrize("name", list(CASES))
def test_device_is_local(name: str) -> None:
    """Rollouts use the same random numbers and games, and learning from them takes the same gradient steps."""
    env, more = CASES[name]
    local, device = parts_of(env, "local", more), parts_of(env, "device", more)
    begin(local)
    begin(device)
    for version in range(3):
        here, samples, row = iterate(local, version)
        there, others, other_row = iterate(device, version)
        assert samples == others
        for field in COMPARED:
            mine, theirs = getattr(here, field), getattr(there, field).numpy()
            assert np.allclose(mine, theirs, atol=1e-4 * (1 + version)), (version, field)
        cut = here.truncated > 0
        assert np.allclose(here.final_value[cut], there.final_value.numpy()[cut], atol=1e-3)
        assert np.allclose(
            local.learner.params_and_stats, device.learner.params_and_stats, atol=3e-4 * (1 + version)
        ), version
        assert other_row["loss/value"] == pytest.approx(row["loss/value"], rel=1e-3)
        assert other_row["ppo/updates"] == row["ppo/updates"]
        assert np.allclose(here.term_sums(), there.term_sums(), atol=1e-3)
    assert local.episodes.metrics()["episode/count"] == device.episodes.metrics()["episode/count"]


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ({"ppo.target_kl": 1e-4, "ppo.epochs": 4, "ppo.learning_rate": 3e-3}, "ppo/epochs"),
        ({"ppo.epochs_max": 5, "ppo.epochs": 2, "ppo.epochs_target_kl": 1e-3}, "ppo/epochs"),
        ({"ppo.centre_rewards": 0.5}, "ppo/reward_centre"),
        ({"ppo.centre_rewards": 0.5, "ppo.normalise_return": False}, "ppo/reward_centre"),
    ],
)
def test_the_device_follows_every_rule_of_an_update(settings: dict[str, Any], metric: str) -> None:
    """Early stopping, tuned epochs and reward centring over active rows are those of the host, with absent players."""
    env, more = CASES["mixed"]
    local, device = (parts_of(env, collector, more | settings) for collector in ("local", "device"))
    begin(local)
    begin(device)
    rows = []
    for version in range(3):
        (_, _, row), (_, _, other) = iterate(local, version), iterate(device, version)
        assert other[metric] == pytest.approx(row[metric], rel=1e-4), version
        assert other["ppo/updates"] == row["ppo/updates"]
        rows.append(row[metric])
    if "ppo.target_kl" in settings:
        assert min(rows) < 4, "the limit was reached"
    if "ppo.epochs_max" in settings:
        assert len(set(rows)) > 1, "the number of epochs was tuned"


@pytest.mark.parametrize("resumes", ["local", "device"])
def test_a_run_resumes_with_either_collector(resumes: str) -> None:
    """A checkpoint of `device` can be resumed by `local`, and by `device` itself bit for bit."""
    more = {
        "ppo.minibatch": 512,
        "policy.memory": "lstm",
        "policy.memory_size": 16,
        "policy.sequence": 8,
        "env.match_seconds": 0.8,
    }
    first, second = parts_of("soccer", "device", more), parts_of("soccer", resumes, more)
    begin(first)
    for version in range(2):
        iterate(first, version)
    position = Position(steps=1024, iteration=2, collector_state=first.collector.snapshot(2))
    restore(second, capture(first, position, 0.0))
    after, _, _ = iterate(first, 2)
    again, _, _ = iterate(second, 2)
    for field in ("obs", "action", "reward"):
        mine, theirs = (np.asarray(getattr(rollout, field)) for rollout in (after, again))
        assert np.allclose(mine, theirs, atol=1e-5), field
    if resumes == "device":
        assert np.array_equal(first.learner.params_and_stats, second.learner.params_and_stats)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_a_rollout_that_was_started_early_changes_no_checkpoint(device: str) -> None:
    """A checkpoint taken after the next rollout was started equals one taken before."""
    parts = parts_of("soccer", "device", {"ppo.minibatch": 512, "env.match_seconds": 0.8}, device)
    begin(parts)
    iterate(parts, 0)
    position = Position(steps=512, iteration=1, collector_state=parts.collector.snapshot(1))
    before = capture(parts, position, 0.0)
    position.collector_state = parts.collector.snapshot(1)
    parts.collector.prefetch(1)
    after = capture(parts, position, 0.0)
    for group, arrays in before.groups.items():
        for name, array in arrays.items():
            assert np.array_equal(array, after.groups[group][name]), (group, name)


def test_samples_are_shuffled_by_the_seed() -> None:
    """Shuffled samples or segments visit every sample once, and not in the order of time."""
    for order in ("samples", "segments"):
        parts = parts_of("soccer", "device", {"ppo.minibatch": 128, "ppo.shuffle": order, "policy.sequence": 8})
        begin(parts)
        rollout = parts.collector.collect(0)
        engine, now = parts.learner.engine, parts.learner.settings
        drawn = engine.draw_order(rollout, None, now, np.random.default_rng(0))
        assert drawn.shape == (4, 128)
        assert torch.equal(drawn.flatten().sort().values, torch.arange(512))
        assert not torch.equal(drawn.flatten(), torch.arange(512))
        parts.learner.update(rollout, 0)


def test_unsupported_settings_are_refused() -> None:
    """An opponent, a curriculum or a GRU needs the CPU, and the error names the setting."""
    from slipstream.errors import ConfigError

    for more, why in (
        ({"opponent": "scripted:rule"}, "opponents play on the CPU"),
        ({"policy.memory": "gru"}, "policy.memory"),
        ({"curriculum.kind": "uniform"}, "curriculum.kind"),
        ({"ppo.vtrace_rho": 1.0}, "ppo.vtrace_rho"),
    ):
        with pytest.raises(ConfigError, match=why):
            parts_of("soccer", "device", more | {"ppo.minibatch": 128})


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", list(CASES))
def test_the_gpu_matches_the_cpu(name: str) -> None:
    """Captured as graphs on a GPU in fp32, rollouts and gradient steps match the CPU within rounding."""
    env, more = CASES[name]
    local, device = parts_of(env, "local", more), parts_of(env, "device", more | {"plan.precision": "fp32"}, "cuda")
    begin(local)
    begin(device)
    for version in range(2):
        here, _, _ = iterate(local, version)
        there, _, _ = iterate(device, version)
        for field in COMPARED:
            mine, theirs = getattr(here, field), getattr(there, field).cpu().numpy()
            assert np.allclose(mine, theirs, atol=2e-4 * (1 + version)), (version, field)
        assert np.allclose(
            local.learner.params_and_stats, device.learner.params_and_stats, atol=1e-3 * (1 + version)
        ), version
    local.close()
    device.close()


@pytest.mark.gpu
@needs_gpu
def test_graphs_change_nothing() -> None:
    """With and without graphs a GPU computes the same, in bf16 too."""
    more = {"ppo.minibatch": 128, "plan.precision": "bf16"}
    packs = []
    for graphs in (True, False):
        parts = parts_of("soccer", "device", more | {"plan.graphs": graphs}, "cuda")
        begin(parts)
        for version in range(3):
            iterate(parts, version)
        packs.append(parts.learner.params_and_stats.copy())
        parts.close()
    assert np.allclose(*packs, atol=1e-5)
