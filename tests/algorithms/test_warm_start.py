"""Warm start: a run continues from a trained policy and stays near it at first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.agents.trained import TrainedAgent
from slipstream.algorithms.warm_start import load_start
from slipstream.api import Run, configure, resume, train
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError
from slipstream.policies.design import Design
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir
from slipstream.settings import PolicySettings
from slipstream.stages.clone import clone
from slipstream.stages.record import record
from slipstream.training.build import build, choose_env

PENDULUM = "gymnasium:Pendulum-v1"
SOCCER = {"env__match_seconds": 4.0, "policy__hidden": [16]}


def clone_of(env: str, tmp_path: Path, agent: str, games: int = 8, **settings: Any) -> Path:
    """Record an agent and clone it."""
    given = {"clone__epochs": 2, "clone__demos": str(tmp_path / "demos"), "clone__batch_size": 128} | settings
    resolved = configure(env, flags=given)
    record(choose_env(env, resolved.settings), agent, games, tmp_path / "demos", workers=1)
    run = tmp_path / "clone"
    clone(resolved, tmp_path / "demos", run, lambda line: None, lambda done, total: None)
    return run


@pytest.fixture
def soccer_clone(tmp_path: Path) -> Path:
    """A small clone of soccer's rule-based player."""
    return clone_of("soccer", tmp_path, "scripted:rule", **SOCCER)


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_the_policy_is_the_clone_before_the_first_update(memory: str, tmp_path: Path) -> None:
    """Actions, values and normaliser equal those of the clone bit for bit."""
    more = {"policy__memory": memory, "policy__memory_size": 8} | SOCCER
    run = clone_of("soccer", tmp_path, "scripted:rule", **more)
    settings = configure("soccer", flags={"start": f"run:{run}", "plan__collector": "local", **SOCCER}).settings
    assert settings.policy.memory == memory
    parts = build(choose_env("soccer", settings), settings)
    obs = Demos.open(tmp_path / "demos").load(["obs"])["obs"][:500]
    one, two = TrainedAgent.from_run(run), TrainedAgent("learner", parts.design, parts.learner.params_and_stats)
    assert np.array_equal(one.params_and_stats, two.params_and_stats)
    assert np.array_equal(one.act(obs), two.act(obs))
    parts.collector.close()


def test_only_the_value_is_trained_during_warm_up(soccer_clone: Path, tmp_path: Path) -> None:
    """The policy is fixed until the value explains enough variance, and observation statistics are frozen."""
    settings = {
        "ppo__value_warmup": 1,
        "ppo__value_warmup_explained_variance": 1.0,
        "ppo__freeze_obs_stats_steps": 10**9,
        "plan__envs": 8,
    }
    small = {"ppo__rollout": 32, "ppo__minibatch": 128, "steps": 512, "every__evaluate": 0} | SOCCER
    run = train("soccer", run=tmp_path / "run", start=f"run:{soccer_clone}", **settings, **small)
    before, after = (load(find(RunDir.open(path))).groups["policy"] for path in (soccer_clone, run.path))
    assert np.array_equal(before["obs.mean"], after["obs.mean"])
    assert np.array_equal(before["trunk.layers.0.weight"], after["trunk.layers.0.weight"])
    assert np.array_equal(before["trunk.head.weight"][:-1], after["trunk.head.weight"][:-1])
    assert not np.array_equal(before["trunk.head.weight"][-1], after["trunk.head.weight"][-1])
    longer = resume(run.path, steps=1536)
    moved = load(find(RunDir.open(longer.path))).groups["policy"]
    assert not np.array_equal(before["trunk.layers.0.weight"], moved["trunk.layers.0.weight"])


def test_the_warm_up_ends_early(soccer_clone: Path, tmp_path: Path) -> None:
    """Once the explained variance is high enough, the policy is trained, before the iterations are over."""
    small = {"ppo__rollout": 32, "ppo__minibatch": 128, "plan__envs": 8, "steps": 8192, "every__evaluate": 0} | SOCCER
    free = {"ppo__value_warmup_explained_variance": 1e-9, "ppo__learning_rate": 1e-2, "ppo__value_warmup": 1000}
    run = train("soccer", run=tmp_path / "run", start=f"run:{soccer_clone}", **free, **small)
    assert load(find(RunDir.open(run.path))).groups["learner"]["warming"][0] == 0


def test_the_kl_coefficient_adapts_to_a_target(soccer_clone: Path, tmp_path: Path) -> None:
    """The coefficient falls by a third below the target KL, grows by half above it, and is in the checkpoint."""
    small = {"ppo__rollout": 32, "ppo__minibatch": 128, "plan__envs": 8, "steps": 1024, "every__evaluate": 0} | SOCCER
    free = {"ppo__value_warmup": 0, "ppo__reference_decay": 1.0}
    for target, pull in ((1e3, (1 / 1.5) ** 2), (1e-9, 1.5**2)):
        run = train(
            "soccer",
            run=tmp_path / f"run{target}",
            start=f"run:{soccer_clone}",
            ppo__reference_target=target,
            **free,
            **small,
        )
        assert load(find(RunDir.open(run.path))).groups["learner"]["anchor.pull"][0] == pytest.approx(pull)


def test_a_decayed_kl_reference_is_not_evaluated(soccer_clone: Path, tmp_path: Path) -> None:
    """Below a hundredth of its coefficient the KL divergence is not computed."""
    small = {"ppo__rollout": 32, "ppo__minibatch": 128, "plan__envs": 8, "steps": 2048, "every__evaluate": 0} | SOCCER
    free = {"ppo__value_warmup": 0, "ppo__reference_decay": 0.05, "every__log": 1}
    rows = train("soccer", run=tmp_path / "run", start=f"run:{soccer_clone}", **free, **small).metrics()
    assert rows[0]["ppo/reference_kl"] > 0
    assert [row["ppo/reference_kl"] for row in rows[2:]] == [0.0, 0.0]


def test_a_run_from_a_clone_resumes_bit_for_bit(soccer_clone: Path, tmp_path: Path) -> None:
    """With teacher, demos, reference, warm-up and rollback a resumed run equals an uninterrupted one."""
    settings = {
        "start": f"run:{soccer_clone}",
        "ppo__teacher": "scripted:rule",
        "ppo__demos": str(tmp_path / "demos"),
        "ppo__demo_batch": 64,
        "ppo__value_warmup": 1,
        "ppo__rollout": 32,
        "ppo__minibatch": 128,
        "plan__envs": 8,
        "every__evaluate": 512,
        "evaluation__games": 4,
        "evaluation__rollback_after": 1,
        "opponent": "scripted:chaser",
    } | SOCCER
    whole = train("soccer", run=tmp_path / "whole", steps=2048, **settings)
    half = train("soccer", run=tmp_path / "half", steps=1024, **settings)
    again = resume(half.path, steps=2048)
    one, two = (load(find(RunDir.open(run.path))) for run in (whole, again))
    for group, arrays in one.groups.items():
        for name, array in arrays.items():
            assert np.array_equal(array, two.groups[group][name]), (group, name)
    assert one.state["gate"] == two.state["gate"]
    assert one.state["gate"]["floor"] is not None


def test_a_teacher_and_demos_are_imitated(soccer_clone: Path, tmp_path: Path, quick: Callable[..., Run]) -> None:
    """Their losses are logged and fall; the demo coefficient decays, and a schedule ends the teacher's."""
    rows = quick(
        name="taught",
        ppo__teacher="scripted:rule",
        ppo__demos=str(tmp_path / "demos"),
        ppo__demo_decay=0.5,
        ppo__teacher_coef=2.0,
        ppo__learning_rate=3e-3,
        steps=40_000,
        every__log=1,
    ).metrics()
    assert rows[-1]["ppo/teacher_loss"] < rows[0]["ppo/teacher_loss"] - 0.2
    assert rows[1]["ppo/demo_coef"] == pytest.approx(0.05)
    assert np.isfinite([row["ppo/demo_loss"] for row in rows]).all()


def test_a_clone_becomes_sacs_actor(tmp_path: Path) -> None:
    """Means, deviations and hidden layers are the same function, and the actor waits for the critics."""
    run = clone_of(PENDULUM, tmp_path, "random", algorithm="sac", policy__hidden=[16])
    settings = configure(
        PENDULUM, flags={"start": f"run:{run}", "algorithm": "sac", "sac__learning_starts": 64}
    ).settings
    parts = build(choose_env(PENDULUM, settings), settings)
    obs = Demos.open(tmp_path / "demos").load(["obs"])["obs"][:200]
    one, two = TrainedAgent.from_run(run), TrainedAgent("actor", parts.design, parts.learner.params_and_stats)
    assert np.allclose(one.act(obs), two.act(obs), atol=1e-6)
    parts.collector.close()
    given = {
        "algorithm": "sac",
        "start": f"run:{run}",
        "sac__learning_starts": 64,
        "plan__envs": 2,
        "every__evaluate": 0,
    }
    few = {"sac__actor_warmup": 20, "sac__updates_per_step": 1e-3}
    waited = load(find(RunDir.open(train(PENDULUM, run=tmp_path / "sac", steps=200, **given, **few).path))).groups
    first = load(find(RunDir.open(run))).groups["policy"]
    assert np.array_equal(waited["policy"]["policy.layers.0.weight"], first["policy.layers.0.weight"])
    assert waited["learner"]["counters"][0] == 20
    assert waited["learner"]["temperature"][0] == pytest.approx(np.log(0.01))
    longer = train(PENDULUM, run=tmp_path / "sac2", steps=200, **given, sac__actor_warmup=20)
    moved = load(find(RunDir.open(longer.path))).groups["policy"]
    assert not np.array_equal(moved["policy.layers.0.weight"], first["policy.layers.0.weight"])


def test_incompatible_starts_raise(soccer_clone: Path) -> None:
    """Another network, other observations and another kind of action raise."""
    donor = TrainedAgent.from_run(soccer_clone).design
    other = Design(donor.obs, donor.action, PolicySettings(hidden=(9,)))
    with pytest.raises(ConfigError, match="has another network than this run"):
        load_start(f"run:{soccer_clone}", other, other.initial_params_and_stats(0))
    with pytest.raises(ConfigError, match="other observation or action spaces"):
        settings = configure("soccer:2v2", flags={"start": f"run:{soccer_clone}"}).settings
        build(choose_env("soccer:2v2", settings), settings)
