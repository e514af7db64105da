"""The batched and local collectors make the same rollouts, with any vector and any groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import slipstream
from ppo_cases import build_parts, collect_and_learn
from slipstream.api import Run
from slipstream.collect.batched import BatchedCollector
from slipstream.errors import EnvError
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir
from slipstream.system import machine
from slipstream.testing import BrokenEnv

SETTINGS = {
    "plan__envs": 7,
    "ppo__rollout": 16,
    "ppo__minibatch": 16,
    "policy__hidden": [16],
    "env__match_seconds": 2.0,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("soccer", {"plan__vector": "threads", "plan__groups": 1}),
    ("soccer", {"plan__vector": "threads", "plan__groups": 3, "plan__lag": 1}),
    ("soccer", {"plan__vector": "processes", "plan__groups": 2, "opponent": "scripted:chaser"}),
    ("soccer:2v2", {"plan__vector": "processes", "plan__groups": 2, "env__actions": "continuous"}),
    ("gymnasium:CartPole-v1", {"plan__vector": "processes", "plan__groups": 1}),
    ("gymnasium:CartPole-v1", {"plan__vector": "processes", "plan__groups": 4, "plan__lag": 1}),
    ("gymnasium:Pendulum-v1", {"plan__vector": "serial", "plan__groups": 2, "plan__zero_copy": False}),
    ("gymnasium:Pendulum-v1", {"plan__vector": "processes", "plan__groups": 2, "plan__zero_copy": False}),
    ("recall:masked", {"plan__vector": "threads", "plan__groups": 2, "policy__memory": "gru", "plan__lag": 1}),
    ("mixed:team", {"plan__vector": "processes", "plan__groups": 1, "policy__features": 16}),
]


def rollouts(
    env: str, count: int, notices: list[str] | None = None, **more: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Collect and learn for some iterations; return copies of the rollouts, and the start state of the next one.

    Notices are added to `notices`.
    """
    parts = build_parts(env, **(SETTINGS | more))
    try:
        made = [
            rollout | {"matches": parts.collector.finished_games(version)}
            for version, rollout in enumerate(collect_and_learn(parts, count))
        ]
        state = parts.collector.snapshot(count)
        if notices is not None:
            notices += parts.learner.notices + parts.collector.drain_faults()
    finally:
        parts.close()
    return made, state


def same(one: Any, other: Any) -> bool:
    """Return whether two arrays or lists are equal."""
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.mark.parametrize(("env", "more"), CASES)
def test_batched_equals_local(env: str, more: dict[str, Any]) -> None:
    """Every array of every rollout, the games and the next start state are the same, bit for bit."""
    local, start = rollouts(env, 4, plan__collector="local", **more)
    batched, other_start = rollouts(env, 4, plan__collector="batched", plan__workers=2, **more)
    for number, (one, other) in enumerate(zip(local, batched, strict=True)):
        for name in one:
            assert same(one[name], other[name]), f"rollout {number}: {name} differs"
    assert start.keys() == other_start.keys()
    for name in start:
        assert np.array_equal(start[name], other_start[name]), name


@pytest.mark.parametrize(("vector", "lag"), [("threads", 0), ("processes", 1)])
def test_a_resumed_run_is_exact(vector: str, lag: int, quick: Callable[..., Run], tmp_path: Path) -> None:
    """A resumed run ends with the same weights as an uninterrupted one."""
    how = {"plan__collector": "batched", "plan__vector": vector, "plan__groups": 2, "plan__lag": lag}
    run = quick(name="whole", plan__workers=2, steps=2048, **how)
    quick(name="parts", plan__workers=2, steps=1024, **how)
    slipstream.resume(tmp_path / "parts", steps=2048)
    weights = [load(find(RunDir.open(path))).groups["policy"] for path in (Path(run.path), tmp_path / "parts")]
    assert all(np.array_equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "ValueError: broken on purpose"),
        ("die", r"Worker [01] ended with exit code 7\. Env [01] \(seed \d+, step 6\) was the last it stepped\."),
        ("hang", r"Env [01] \(seed \d+, step 6\) did not return from `step` or `reset` within 1 s\."),
    ],
)
def test_workers_that_fail_are_reported(fault: Any, message: str, lag: int) -> None:
    """An env that raises, dies or hangs in a worker is reported with index, seed and step."""
    flags = SETTINGS | {
        "plan__collector": "batched",
        "plan__vector": "processes",
        "plan__envs": 2,
        "plan__groups": 2,
        "plan__workers": 2,
        "plan__lag": lag,
        "plan__deadline_s": 1.0,
    }
    parts = build_parts(lambda: BrokenEnv(fault, at=5), **flags)
    try:
        with pytest.raises(EnvError, match=message):
            parts.publish(0)
            parts.collector.start(0, None)
            parts.collector.collect(0)
    finally:
        parts.close()
    assert not [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_one_group_steps_while_the_policy_acts_for_another() -> None:
    """Whenever the policy acts for one of two groups, the other is stepping, except the first time."""
    parts = build_parts("soccer", **(SETTINGS | {"plan__collector": "batched", "plan__groups": 2}))
    collector, stepping, seen = parts.collector, set[int](), list[int]()
    assert isinstance(collector, BatchedCollector)
    for number, group in enumerate(collector.groups):
        vector: Any = group.vector

        def send(action: Any, out: Any, number: int = number, real: Any = vector.send) -> None:
            stepping.add(number)
            real(action, out)

        def receive(number: int = number, real: Any = vector.receive) -> None:
            real()
            stepping.discard(number)

        vector.send, vector.receive = send, receive
    acting: Any = collector.groups[0].policy
    act = acting.act
    acting.act = lambda *args: (seen.append(len(stepping)), act(*args))
    try:
        parts.publish(0)
        collector.start(0, None)
        collector.collect(0)
    finally:
        parts.close()
    assert seen == [0] + [1] * 31


@pytest.mark.parametrize("lag", [0, 1])
def test_gpu_inference_equals_local(lag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the CPU in place of the GPU, rollouts are the same bit for bit."""
    monkeypatch.setattr(machine, "gpu_name", lambda: "a simulated GPU")
    monkeypatch.setattr(machine, "gpu_bf16", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    memory = {"policy__features": 16, "policy__memory": "lstm", "policy__memory_size": 12}
    how = {"plan__lag": lag, "plan__device": "cpu"} | memory
    local, _ = rollouts("mixed:team", 3, plan__collector="local", **how)
    there = {"plan__collector": "batched", "plan__groups": 1, "plan__inference": "cuda"}
    staged, _ = rollouts("mixed:team", 3, **there, **how)
    for number, (one, other) in enumerate(zip(local, staged, strict=True)):
        for name in one:
            assert same(one[name], other[name]), f"rollout {number}: {name} differs"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("storage", ["device", "host"])
@pytest.mark.parametrize("env", ["soccer", "mixed:multi"])
def test_training_on_a_gpu_is_close_to_the_cpu(env: str, storage: str, lag: int) -> None:
    """In fp32 the first rollout has the RNG and the actions of local; with and without graphs the rest agrees."""
    how = {"plan__lag": lag, "policy__features": 16, "plan__envs": 64, "ppo__minibatch": 128, "env__match_seconds": 2.0}
    local, _ = rollouts(env, 4, plan__collector="local", plan__device="cpu", **how)
    there = {"plan__collector": "batched", "plan__groups": 2, "plan__device": "cuda", "plan__inference": "cuda"}
    made = {}
    for graphs in (False, True):
        more = {"plan__graphs": graphs, "plan__storage": storage, "plan__precision": "fp32"}
        notices: list[str] = []
        made[graphs], _ = rollouts(env, 4, notices, **there, **more, **how)
        if graphs and storage == "device":
            assert not [notice for notice in notices if "plan.graphs" in notice]
        first, other = local[0], made[graphs][0]
        same_choice, gap = np.mean(first["action"] == other["action"]), np.abs(first["log_prob"] - other["log_prob"])
        assert same_choice > 0.99, f"graphs {graphs}: {same_choice:.4f} of the actions are the same"
        assert np.mean(gap < 1e-3) > 0.99, (
            f"graphs {graphs}: logp differs by {np.median(gap):.1e}, most {gap.max():.1e}"
        )
    for number, (one, other) in enumerate(zip(made[False], made[True], strict=True)):
        gap = np.abs(one["value"] - other["value"])
        assert np.mean(gap < 1e-2) > 0.9, (
            f"rollout {number}: values differ by {np.median(gap):.1e}, most {gap.max():.1e}"
        )
