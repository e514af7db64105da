"""Precision and compiling as planned and as applied, in engines of real games, and the messages when they fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ppo_cases import SIXTEEN_ENVS, start_parts
from slipstream.api import Run, configure, resume
from slipstream.engines.fused_engine import FusedEngine
from slipstream.engines.torch_engine import TorchEngine
from slipstream.errors import ConfigError
from slipstream.plan import Facts, Switch, make_plan
from slipstream.runs.checkpoint import Saver, find, load
from slipstream.runs.layout import RunDir
from slipstream.runs.metrics import Metrics
from slipstream.runs.signals import StopRequest
from slipstream.settings import PlanSettings
from slipstream.training.build import make_engine
from slipstream.training.loop import iterate
from slipstream.training.parts import TrainingParts
from slipstream.training.run_state import Position, capture


def make(env: str = "pixels", before: dict[str, Any] | None = None, **more: Any) -> TrainingParts:
    """Build the parts of a small run, ready to collect."""
    return start_parts(env, before, **(SIXTEEN_ENVS | more))


def dtypes(policy: Any) -> set[torch.dtype]:
    """Record the output dtypes of a policy's hidden layers."""
    found: set[torch.dtype] = set()
    for module in policy.hidden_modules().values():
        module.register_forward_hook(lambda module, inputs, output: found.add(output.dtype))
    return found


def broken(*_: Any, **__: Any) -> Any:
    """A compiler that always fails."""
    raise RuntimeError("there is no compiler")


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch.compile fail at the first call, as it does without a C++ compiler."""
    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)


def test_learning_is_halved_and_acting_is_not() -> None:
    """With `plan.precision=bf16` the learner's layers compute in bf16; inference of the same policy is in fp32."""
    for wanted, learned in (("bf16", torch.bfloat16), ("auto", torch.float32)):
        parts = make(plan__precision=wanted)
        assert isinstance(parts.learner.engine, TorchEngine)
        acting, learning = dtypes(parts.collector.actor.policy.policy), dtypes(parts.learner.engine.policy)
        rollout = parts.collector.collect(0)
        assert (acting, learning) == ({torch.float32}, set())
        _, row = parts.learner.update(rollout, 0)
        assert (acting, learning) == ({torch.float32}, {learned})
        assert np.isfinite([value for value in row.values() if isinstance(value, float)]).all()
        assert parts.plan.precision.applied == {"bf16": "bf16", "auto": "fp32"}[wanted]


def test_a_vector_policy_gets_torch_for_it() -> None:
    """bf16 selects torch where the fused kernels would be used, and the plan states why; both together are refused."""
    assert isinstance(make("recall").learner.engine, FusedEngine)
    parts = make("recall", plan__precision="bf16", policy__memory="lstm")
    assert (parts.plan.learner.applied, parts.plan.learner.why) == ("torch", "bf16 needs torch")
    assert parts.learner.engine.precision == "bf16"
    with pytest.raises(ConfigError, match="fused learner does not support bf16"):
        make("recall", plan__precision="bf16", plan__learner="fused")
    with pytest.raises(ConfigError, match="SAC does not support bf16"):
        make("gymnasium:Pendulum-v1", plan__precision="bf16", algorithm="sac")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_pixels_are_learned_in_either_precision(precision: str) -> None:
    """The policy finds the bright quarter nearly always after some thousand steps, in fp32 and in bf16."""
    network = {"plan__precision": precision, "policy__features": 64, "policy__hidden": [32]}
    samples = {"plan__envs": 32, "ppo__rollout": 32, "ppo__minibatch": 256, "ppo__epochs": 4}
    bandit = {"ppo__gamma": 0.0, "ppo__gae_lambda": 0.0}
    parts = make(ppo__learning_rate=1e-3, **network, **samples, **bandit)
    paid = []
    for version in range(10):
        rollout = parts.collector.collect(version)
        paid.append(float(rollout.reward.mean()))
        parts.learner.update(rollout, version * 1024)
        parts.publish(version + 1)
    assert paid[0] < 0.5 and paid[-1] > 0.85, paid


@pytest.mark.parametrize(
    ("env", "more"),
    [("pixels", {}), ("mixed", {"policy__shared": False}), ("recall", {"policy__memory": "lstm"}), ("frozen", {})],
)
def test_what_was_tried_is_what_learns(
    env: str, more: dict[str, Any], quick: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial compiles everything that PPO runs later, for every kind of observation and memory."""
    if env == "frozen":
        base = quick("pixels", "base", **SIXTEEN_ENVS | {"steps": 256})
        env, more = "pixels", {"policy__image": "frozen", "policy__trunk": f"run:{base.path}"}
    found: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=keep))
    for precision in ("fp32", "bf16"):
        found.clear()
        parts = make(env, plan__compile=True, plan__precision=precision, **more)
        tried = len(found)
        parts.learner.update(parts.collector.collect(0), 0)
        assert parts.learner.engine.compiled and parts.learner.notices == []
        assert 0 < tried == len(found)


def test_a_failed_compiler_is_told_once_and_kept(tmp_path: Path, no_compiler: None) -> None:
    """If compiling fails, the run continues; plan, checkpoint and first iteration report the value and why."""
    parts = make(plan__compile=True)
    why = "compiling failed: there is no compiler"
    assert parts.plan.compile == Switch(True, False, why)
    assert ("plan.compile", True, False, why) in parts.plan.rows()
    settings = configure("pixels", flags=SIXTEEN_ENVS | {"steps": 512}).settings
    place = RunDir.create(tmp_path / "run")
    saver, metrics, wishes = Saver(place, settings.keep), Metrics(place), StopRequest()
    loop = iterate(
        parts, settings, Position(), metrics, saver, wishes, lambda steps: (0.0, {}), lambda steps: nullcontext()
    )
    said = [list(progress.notices) for progress in loop]
    saver.close()
    metrics.close()
    assert said == [[f"plan.compile is off: {why}"], []]
    kept = capture(parts, Position(), 0.0).state["plan"]
    assert (kept["compile"], kept["precision"]) == (False, "fp32")


def test_what_is_said_later_is_heard_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler failure during training is a notice of the learner and updates the plan."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    parts = make(plan__compile=True)
    assert parts.learner.engine.compiled and parts.plan.compile == Switch(True, True, "requested")
    monkeypatch.setattr(parts.learner.engine, "_learning", broken)
    parts.learner.update(parts.collector.collect(0), 0)
    assert parts.learner.notices == ["plan.compile is off: compiling failed: there is no compiler"]
    assert parts.plan.compile == Switch(True, False, "compiling failed: there is no compiler")


def test_whoever_gives_no_ear_is_warned(no_compiler: None) -> None:
    """An engine made without `say` issues a Python warning."""
    settings = configure("pixels", flags=SIXTEEN_ENVS | {"plan__compile": True}).settings
    design = make().design
    plan = make_plan(PlanSettings(compile=True), Facts(cores=1, native=True, minibatch=64))
    with pytest.warns(UserWarning, match=r"^plan\.compile is off: compiling failed: there is no compiler$"):
        engine = make_engine(settings, design, design.initial_weights(0), plan)
    assert isinstance(engine, TorchEngine) and not engine.compiled and not plan.compile.applied


def test_runs_go_on_in_the_precision_they_began_in(quick: Callable[..., Run], no_compiler: None) -> None:
    """A resumed run equals the uninterrupted run bit for bit, and does not retry a failed compilation."""
    more: dict[str, Any] = SIXTEEN_ENVS | {"plan__precision": "bf16", "plan__compile": True, "every__checkpoint": 256}
    whole = quick("pixels", "whole", steps=512, **more)
    half = quick("pixels", "half", steps=256, **more)
    assert np.array_equal(resume(half.path, steps=512).agent().params_and_stats, whole.agent().params_and_stats)
    plan = load(find(RunDir.open(half.path)), groups=()).state["plan"]
    assert (plan["precision"], plan["compile"]) == ("bf16", False)
    plain = quick("pixels", "plain", steps=512, **SIXTEEN_ENVS)
    assert not np.array_equal(plain.agent().params_and_stats, whole.agent().params_and_stats)


def test_a_run_from_before_these_switches_is_built_as_it_was() -> None:
    """A plan of an older version without these switches gives the engine of that version."""
    before = make().plan.applied()
    del before["precision"], before["compile"]
    parts = make(before=before)
    assert (parts.learner.engine.precision, parts.learner.engine.compiled) == ("fp32", False)
    assert parts.plan.precision == Switch("auto", "fp32", "the run was started with it")
