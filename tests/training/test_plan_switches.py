"""Every switch of the plan has an effect, and falls back where it cannot be applied."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from ppo_cases import SIXTEEN_ENVS, start_parts
from slipstream.api import Run
from slipstream.engines.torch_backends import LossScale, set_backend_flags
from slipstream.engines.torch_engine import TorchEngine
from slipstream.errors import MachineError
from slipstream.plan import Facts, Plan, Switch, make_plan
from slipstream.policies.torch_policy import ActorCritic
from slipstream.settings import PlanSettings
from slipstream.system.worker_pool import WorkerPool
from slipstream.training.parts import TrainingParts

make = partial(start_parts, **SIXTEEN_ENVS)


@pytest.fixture(autouse=True)
def modes() -> Iterator[None]:
    """Restore torch's global flags."""
    yield
    set_backend_flags(make_plan(PlanSettings(), Facts(cores=1, native=True, minibatch=64)))
    torch.set_num_threads(1)


def learn(parts: TrainingParts, iterations: int = 1) -> dict[str, Any]:
    """Run some iterations and return the last metrics."""
    row: dict[str, Any] = {}
    for version in range(iterations):
        _, row = parts.learner.update(parts.collector.collect(version), version)
        parts.publish(version + 1)
    return row


def most_rows(parts: TrainingParts) -> int:
    """Return the largest batch that the network computed during an update."""
    seen: list[int] = []
    policy = parts.learner.engine.policy
    policy.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    learn(parts)
    return max(seen)


def copied(parts: TrainingParts) -> bool:
    """Return whether the learner gets a copy of the workers' memory."""
    return not np.shares_memory(parts.collector.collect(0).obs, parts.collector._rollouts[0].obs)


def passes(parts: TrainingParts) -> int:
    """Return the number of forward passes of a hidden layer in one update."""
    seen: list[int] = []
    layer = next(iter(parts.learner.engine.policy.hidden_modules().values()))
    layer.register_forward_hook(lambda *_: seen.append(1))
    learn(parts)
    return len(seen)


ACTORS = {"plan__collector": "actors", "plan__workers": 2}
TORCH = {"plan__learner": "torch"}
CASES: dict[str, tuple[str, dict[str, Any], Any, Callable[[TrainingParts], Any], Any, Any]] = {
    "envs": ("recall", {}, 8, lambda p: p.collector.collect(0).reward.shape[1], 16, 8),
    "collector": ("recall", {}, "actors", lambda p: type(p.collector).__name__, "LocalCollector", "ActorsCollector"),
    "vector": (
        "recall",
        {},
        "threads",
        lambda p: type(p.collector.actor.vector).__name__,
        "TinyVector",
        "ThreadVector",
    ),
    "native": (
        "gymnasium:CartPole-v1",
        {"plan__native": False},
        True,
        lambda p: type(p.collector.actor.vector).__name__,
        "SerialVector",
        "Native",
    ),
    "workers": ("recall", ACTORS | {"plan__workers": 1}, 2, lambda p: len(psutil.Process().children()), 1, 2),
    "groups": ("recall", {"plan__collector": "batched", "plan__groups": 1}, 2, lambda p: len(p.collector.groups), 1, 2),
    "lag": ("recall", {}, 1, lambda p: p.collector.lag, 0, 1),
    "zero_copy": ("recall", ACTORS, False, copied, False, True),
    "learner": ("recall", {}, "torch", lambda p: type(p.learner.engine).__name__, "FusedEngine", "TorchEngine"),
    "threads": ("pixels", {}, 2, lambda p: (learn(p), torch.get_num_threads())[1], 1, 2),
    "micro_batch": ("pixels", {}, 16, most_rows, 64, 16),
    "activation_checkpointing": ("pixels", {}, True, passes, 8, 16),
    "reproducible": ("recall", TORCH, True, lambda p: torch.are_deterministic_algorithms_enabled(), False, True),
}
ELSEWHERE = {
    "precision": "test_precision.py, and below",
    "compile": "test_precision.py",
    "compile_mode": "below",
    "cudnn_benchmark": "below",
    "device": "below",
    "inference": "tests of the batched collector",
    "storage": "tests of the batched collector",
    "graphs": "tests of the batched collector",
    "pinned": "tests of the batched collector",
}


def test_every_switch_is_tested() -> None:
    """Every switch of the plan is set by some test."""
    assert set(CASES) | set(ELSEWHERE) == set(PlanSettings.model_fields) - {"deadline_s"}
    assert not set(CASES) & set(ELSEWHERE)


@pytest.mark.parametrize("name", CASES)
def test_a_switch_has_an_effect(name: str) -> None:
    """What runs differs with and without the switch."""
    env, common, value, observe, before, after = CASES[name]
    for requested, expected in (({}, before), ({f"plan__{name}": value}, after)):
        parts = make(env, **common | requested)
        try:
            assert observe(parts) == expected
        finally:
            parts.close()


@pytest.mark.parametrize("vector", ["threads", "processes"])
def test_rollouts_do_not_depend_on_the_vector(vector: str) -> None:
    """Threads and processes collect the same bits as a serial vector, and no worker is left over."""
    found = []
    for how in ("serial", vector):
        parts = make("soccer", plan__vector=how, plan__workers=2)
        rollouts = [parts.collector.collect(0), parts.collector.snapshot(1)]
        found.append([np.concatenate([rollouts[0].obs.ravel(), rollouts[0].reward.ravel()]), rollouts[1]])
        parts.close()
    assert np.array_equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    assert all(np.array_equal(found[0][1][name], found[1][1][name]) for name in found[0][1])
    assert not psutil.Process().children()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("envs-")]


def test_workers_that_cannot_start_fall_back_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no process can be started, this one steps the envs; the notice comes once, and the plan has the reason."""

    def refuse(*_: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(WorkerPool, "_start", refuse)
    why = "workers cannot be started: [Errno 11] Resource temporarily unavailable"
    parts = make("recall", plan__collector="actors", plan__workers=2)
    assert parts.plan.collector == Switch("actors", "local", why)
    assert parts.learner.notices == [
        f"plan.collector is local: {why}",
        "plan.workers is 1: the local collector steps all envs in this process",
    ]
    learn(parts)
    parts = make("recall", plan__vector="processes", plan__workers=2)
    assert (parts.plan.vector, parts.plan.workers.applied) == (Switch("processes", "serial", why), 1)
    learn(parts)
    assert not psutil.Process().children()


def gpu_plan(**requested: Any) -> Plan:
    """Return the plan for a machine with a GPU."""
    facts = Facts(cores=4, native=True, minibatch=64, gpu="H200", images=True)
    return make_plan(PlanSettings(device="cuda", **requested), facts)


def test_torch_flags_follow_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan sets and unsets torch's flags for TF32, cuDNN autotune and deterministic kernels."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)

    def flags() -> tuple[Any, ...]:
        cudnn = torch.backends.cudnn
        deterministic = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic
        return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark, *deterministic

    for requested, expected in (
        ({"precision": "tf32"}, ("high", True, True, False, False)),
        ({"precision": "fp32"}, ("highest", False, True, False, False)),
        ({"cudnn_benchmark": False}, ("highest", False, False, False, False)),
    ):
        set_backend_flags(gpu_plan(**requested))
        assert flags() == expected
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    set_backend_flags(gpu_plan(reproducible=True))
    assert flags() == ("highest", False, False, True, True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_the_learner_is_on_the_planned_device(precision: str) -> None:
    """Updates on a GPU end near those on the CPU, in every precision."""
    found = []
    for device in ("cpu", "cuda"):
        parts = make(
            "pixels",
            plan__device=device,
            plan__collector="local",
            plan__precision=precision if device == "cuda" else "fp32",
        )
        learn(parts, 2)
        assert next(parts.learner.engine.policy.parameters()).device.type == device
        found.append(parts.learner.params_and_stats.copy())
        parts.close()
    assert np.abs(found[0] - found[1]).max() < (1e-4 if precision == "fp32" else 2e-2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_torch_compiles_in_the_requested_mode(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network is compiled in that mode before the first update."""
    modes: list[Any] = []

    def note(function: Any, **how: Any) -> Any:
        modes.append(how.pop("mode"))
        return compile_plainly(function, **how)

    compile_plainly = partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", note)
    parts = make("pixels", plan__compile=True, plan__compile_mode=mode)
    learn(parts)
    assert parts.learner.engine.compiled and set(modes) == {mode} and parts.learner.notices == []


def half(parts: TrainingParts, factor: float = 65536.0) -> TorchEngine:
    """Give the learner an engine that computes in fp16 on the CPU, with a given loss scale."""
    params = parts.design.split_params_and_stats(parts.learner.params_and_stats)[0]
    engine = TorchEngine(parts.design, params, 1, precision="fp16")
    engine.restore(engine.snapshot() | {"loss_scale": np.array([factor, 0.0])})
    parts.learner.engine = engine
    return engine


def test_fp16_updates_are_close_to_fp32() -> None:
    """Layers output fp16, gradients are unscaled before clipping, and the weights end close to those of fp32."""
    whole, parts, dtypes = make("pixels"), make("pixels"), set[torch.dtype]()
    engine = half(parts, 1024.0)
    for module in engine.policy.hidden_modules().values():
        module.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    rows, packs = [learn(whole), learn(parts)], [whole.learner.params_and_stats, parts.learner.params_and_stats]
    assert dtypes == {torch.float16}
    assert rows[1]["ppo/gradient_norm"] == pytest.approx(rows[0]["ppo/gradient_norm"], rel=0.05)
    assert rows[1]["ppo/updates"] == 8 and "ppo/skipped_updates" not in rows[1]
    assert np.abs(packs[0] - packs[1]).max() < 3e-3
    assert engine.snapshot()["loss_scale"].tolist() == [1024.0, 8.0]


def test_a_loss_scale_that_is_too_large_is_halved() -> None:
    """Steps whose gradient overflows are skipped and counted, the scale is halved each time, and training continues."""
    parts = make("pixels", plan__learner="torch")
    engine, before = half(parts, 2.0**40), parts.learner.params_and_stats.copy()
    row = learn(parts)
    assert row["ppo/skipped_updates"] == 8 and row["ppo/updates"] == row["ppo/failed_updates"] == 0
    assert np.array_equal(before[: engine.params.size], engine.params)
    assert engine.snapshot()["loss_scale"].tolist() == [2.0**32, 0.0]
    row = learn(parts, 4)
    assert row["ppo/updates"] > 0 and parts.learner.notices == []
    kept = engine.snapshot()
    other = half(parts)
    other.restore(kept)
    assert np.array_equal(other.snapshot()["loss_scale"], kept["loss_scale"])


def test_overflow_is_only_blamed_on_the_loss_scale_if_it_can_be() -> None:
    """Only an infinite gradient of a finite loss with a scale above 1 counts as overflow."""
    fine, infinite = torch.tensor(1.0), torch.tensor(float("inf"))
    scale = LossScale("cpu")
    assert scale.multiply(torch.tensor(2.0)) == 2 * 65536
    assert [float(scale.overflowed(*pair)) for pair in ((fine, infinite), (fine, fine), (infinite, infinite))] == [
        1,
        0,
        0,
    ]
    scale.restore(np.array([1.0, 0.0]))
    assert float(scale.overflowed(fine, infinite)) == 0


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make the network run out of memory for batches with gradients above a given size."""
    forward = ActorCritic.forward

    def set_limit(limit: int) -> None:
        def limited(self: Any, obs: Any, *rest: Any) -> Any:
            outputs = forward(self, obs, *rest)
            if torch.is_grad_enabled() and len(obs) > limit:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return outputs

        monkeypatch.setattr(ActorCritic, "forward", limited)

    return set_limit


@pytest.mark.parametrize(
    ("env", "more"), [("pixels", {}), ("recall", {"policy__memory": "lstm", "policy__sequence": 4, **TORCH})]
)
def test_running_out_of_memory_halves_the_micro_batch(
    env: str, more: dict[str, Any], small_memory: Callable[[int], None]
) -> None:
    """The weights are the same up to rounding, the plan has the new size, and each halving is reported once."""
    whole = make(env, **more)
    learn(whole, 2)
    small_memory(20)
    parts = make(env, **more)
    learn(parts, 2)
    assert np.abs(whole.learner.params_and_stats - parts.learner.params_and_stats).max() < 1e-6
    assert parts.learner.notices == [
        "plan.micro_batch is 32: memory ran out with 64 samples at once",
        "plan.micro_batch is 16: memory ran out with 32 samples at once",
    ]
    assert parts.plan.micro_batch == Switch(None, 16, "memory ran out with 32 samples at once")


def test_memory_too_small_for_one_sample_is_an_error(small_memory: Callable[[int], None]) -> None:
    """If not even one sample fits, the error has a hint."""
    small_memory(0)
    parts = make("pixels")
    with pytest.raises(MachineError) as caught:
        learn(parts)
    assert str(caught.value) == (
        "Out of memory with a micro batch of one sequence of 1 samples.\n"
        "hint: set plan.activation_checkpointing=true, or lower plan.envs, policy.sequence or policy.hidden"
    )


def test_fallbacks_are_recorded(
    quick: Callable[..., Run], small_memory: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """provenance.json has the final plan, and events.jsonl has each change once."""

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("there is no compiler")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    small_memory(40)
    run = quick("pixels", steps=1024, plan__compile=True, **SIXTEEN_ENVS)
    plan = json.loads((Path(run.path) / "provenance.json").read_text())["plan"]
    why = "memory ran out with 64 samples at once"
    assert plan["plan.micro_batch"] == {"requested": None, "applied": 32, "why": why}
    assert plan["plan.compile"] == {
        "requested": True,
        "applied": False,
        "why": "compiling failed: there is no compiler",
    }
    assert plan["plan.envs"]["applied"] == 16 and plan["ppo.minibatch"]["applied"] == 64
    lines = (Path(run.path) / "events.jsonl").read_text().splitlines()
    said = [event["text"] for event in map(json.loads, lines) if event["text"].startswith("plan.")]
    assert said == ["plan.compile is off: compiling failed: there is no compiler", f"plan.micro_batch is 32: {why}"]
