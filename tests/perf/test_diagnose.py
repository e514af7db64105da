"""Diagnosis finds artificial bottlenecks by measurement, and its output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.algorithms.ppo import PPO
from slipstream.api import diagnose
from slipstream.errors import ConfigError
from slipstream.perf.diagnose import copy_rates, growth, past_of, shares_of
from slipstream.perf.machine_limits import item_us
from slipstream.perf.measurements import Shares
from slipstream.perf.tracing import counting_syncs
from slipstream.perf.trial import Trial
from slipstream.runs.layout import RunDir, write_text
from slipstream.system import machine
from slipstream.testing import SlowEnv, ToyEnv

SMALL: dict[str, Any] = {"plan__envs": 8, "plan__collector": "local", "ppo__rollout": 32, "ppo__minibatch": 128}
ALONE = "gpu"
"""The test that measures only training on a machine without a GPU."""


@pytest.mark.usefixtures("quiet_machine")
def test_a_python_loop_in_step_is_named_with_its_line() -> None:
    """500 iterations of Python in every step are env-bound, and the advice is to vectorise before adding processes."""
    found = diagnose(lambda: SlowEnv("loop", 500), test="env", seconds=1.5, **SMALL)
    first = found.advice[0]
    assert (found.verdict, first.rule) == ("env-bound", "python-loop-in-step")
    assert "testing.py" in first.told and "501 times in a step" in first.told
    assert first.do.startswith("vectorise that loop (NumPy, Numba) before adding processes")
    assert first.gain > 1.5


@pytest.mark.usefixtures("quiet_machine")
def test_a_sleep_in_reset_is_named() -> None:
    """5 ms in every reset with episodes of ten steps are reset-bound."""
    found = diagnose(lambda: SlowEnv("reset", 5), test="env", seconds=1.5, **SMALL)
    assert (found.verdict, found.advice[0].rule) == ("reset-bound", "slow-reset")
    assert found.found.env is not None and found.found.env.reset is not None
    assert found.found.env.reset.p50_us > 5_000 and found.found.env.reset_share > 0.9


@pytest.mark.usefixtures("quiet_machine")
def test_numbers_out_of_tensors_are_named() -> None:
    """200 calls of .item() in every step are sync-bound, and the advice has their number."""
    found = diagnose(lambda: SlowEnv("items", 200), test="env", seconds=1.5, **SMALL)
    assert (found.verdict, found.advice[0].rule) == ("sync-bound", "numbers-out-of-tensors-in-step")
    assert found.found.env is not None and found.found.env.syncs == 200


@pytest.mark.usefixtures("quiet_machine")
def test_a_leak_is_named_with_its_line() -> None:
    """4,000 bytes leaked in every step are a leak, and the advice has the line."""
    found = diagnose(lambda: SlowEnv("leak", 4000), test="env", seconds=1.5, **SMALL)
    assert (found.verdict, found.advice[0].rule) == ("leak", "leaking-env")
    assert "self._kept.append" in found.advice[0].told
    assert found.found.env is not None and 3900 < found.found.env.leak_bytes < 4400


@pytest.mark.usefixtures("quiet_machine")
def test_dear_activations_are_named() -> None:
    """Four layers of tanh in large minibatches on the torch learner are activation-bound."""
    deep = {"plan__learner": "torch", "plan__threads": 1, "policy__hidden": (64,) * 4, "ppo__epochs": 16}
    large = {"plan__envs": 32, "plan__collector": "local", "ppo__rollout": 128, "ppo__minibatch": 4096}
    found = diagnose(lambda: ToyEnv(), test="learn", seconds=4, **deep, **large)
    assert found.verdict == "activation-bound"
    assert found.found.learn is not None and found.found.learn.activation_share > 0.15


@pytest.mark.parametrize(
    "settings",
    [
        {"ppo__rollout": 1, "ppo__minibatch": 1, "ppo__normalise_advantage": False},
        {"algorithm": "sac", "sac__updates_per_step": 16, "sac__learning_starts": 16, "sac__batch_size": 16},
    ],
    ids=["ppo", "sac"],
)
@pytest.mark.usefixtures("quiet_machine")
def test_an_update_per_step_is_named(settings: dict[str, Any]) -> None:
    """Too many gradient steps per step are wasted-updates, for either algorithm."""
    found = diagnose(lambda: ToyEnv(), test=ALONE, seconds=2, **SMALL | settings)
    assert (found.verdict, found.advice[0].rule) == ("wasted-updates", "updates-without-data")
    assert found.found.train.updates_per_step >= 4


@pytest.mark.usefixtures("quiet_machine")
def test_a_buffer_that_is_never_cleared_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that trains on all past steps after every few new ones has wasted updates, not a slow env."""
    learn, seen = PPO.update, list[Any]()

    def update(self: PPO, rollout: Any, steps: int) -> tuple[int, dict[str, Any]]:
        seen.append(rollout)
        total = 0
        for one in seen:
            samples, row = learn(self, one, steps)
            total += row["ppo/updates"]
        return samples, row | {"ppo/updates": total, "ppo/epochs": row["ppo/epochs"] * len(seen)}

    monkeypatch.setattr(PPO, "update", update)
    found = diagnose(lambda: ToyEnv(), test=ALONE, seconds=2, **SMALL | {"ppo__rollout": 4, "ppo__minibatch": 32})
    assert found.verdict == "wasted-updates"
    assert found.found.train.update_to_data > 20 and found.found.train.rates[-1] < found.found.train.rates[0]


@pytest.mark.usefixtures("quiet_machine")
def test_more_workers_than_cores_are_named() -> None:
    """Twice as many busy workers as cores are oversubscribed, compared with one worker per core."""
    many = 2 * machine.cores()
    settings = {"plan__collector": "actors", "plan__workers": many, "plan__envs": 4 * many, "ppo__rollout": 32}
    found = diagnose(lambda: SlowEnv("loop", 500), test=ALONE, seconds=3, ppo__minibatch=64, **settings)
    assert (found.verdict, found.advice[0].rule) == ("oversubscribed", "more-workers-than-cores")
    assert f"{many} workers share {machine.cores()} cores" in found.advice[0].told
    assert found.found.train.fewer_rate > 0 and f"plan__workers={machine.cores()}" in found.advice[0].command


@pytest.mark.usefixtures("quiet_machine")
def test_a_sound_training_is_measured_whole() -> None:
    """With all tests every part is measured, shares sum to 1, and no leak is found."""
    found = diagnose(lambda: ToyEnv(), seconds=2, **SMALL)
    facts = found.facts()
    assert sum(facts["train"]["shares"].values()) == pytest.approx(1.0)
    assert facts["verdict"] in ("env-bound", "learner-bound", "balanced")
    assert facts["gpu"] is None and facts["train"]["update_to_data"] == 4
    assert set(facts["inference"]["by_batch"]) == {1, 8, 64, 512}
    assert facts["learn"]["engine"] == "fused" and facts["learn"]["syncs"] == 0
    assert {part["name"] for part in facts["memory"] if part["stage"] == "train"} >= {"rollouts", "policy", "in all"}
    assert facts["limits"]["env_steps_per_second"] == facts["env"]["rate"] * facts["limits"]["cores"]
    assert all(one["gain"] >= 1 for one in facts["advice"])


def test_wrong_wishes_are_refused() -> None:
    """An unknown test and zero seconds are errors with a hint."""
    with pytest.raises(ConfigError, match=r"There is no test `envs`\. Did you mean `env`\?") as wrong:
        diagnose("soccer", test="envs")
    assert wrong.value.hint == "tests: all, env, inference, learn, gpu, memory"
    with pytest.raises(ConfigError, match="Nothing can be measured in 0 s"):
        diagnose("soccer", seconds=0)


def test_shares_follow_what_workers_did(make_trial: Callable[..., Trial]) -> None:
    """4 s of collecting, of which workers stepped 1 s and inferred 3 s for every one, and 5 s of learning, of 10."""
    spans = {"collect": 4.0, "learn": 5.0, "rest": 1.0, "env": 1.0, "inference": 3.0}
    trial = make_trial(seconds=10.0, spans=spans)
    assert shares_of(trial) == Shares(env=0.1, inference=pytest.approx(0.3), learn=0.5, rest=pytest.approx(0.1))


def test_the_past_of_a_run(tmp_path: Path) -> None:
    """Rates are computed between rows, and memory at the rows that have a sample."""
    run = RunDir(tmp_path)
    rows = [
        f'{{"steps": {100 * n}, "time/seconds": {n * n}, "system/memory_mib": {500 + 100 * n}}}' for n in range(1, 9)
    ]
    write_text(run.metrics, "\n".join(rows) + "\n")
    past = past_of(run)
    assert past.steps == 800 and past.rates[0] == (4, pytest.approx(100 / 3))
    assert past.memory[0] == (100, 600) and past.memory[-1] == (800, 1300)
    assert past.growth.sure and past.growth.change == pytest.approx(700 / 600)


def test_a_run_without_metrics_says_so(tmp_path: Path) -> None:
    """A run without metrics is an error."""
    with pytest.raises(ConfigError, match="has no metrics"):
        past_of(RunDir(tmp_path))


@pytest.mark.parametrize(
    ("mib", "filled", "expected"),
    [
        (lambda s: 500 + 10 * s, 0, 100 * 2**20),
        (lambda s: 500 + 10 * s, 100 * 2**20, 0.0),
        (lambda s: 500.0, 0, 0.0),
        (lambda s: 500 + min(s, 3.0) * 40, 0, 0.0),
        (lambda s: 500 + 0.5 * s, 0, 0.0),
    ],
    ids=["leak", "a buffer that fills", "steady", "settling", "hardly"],
)
def test_growth_of_memory(mib: Callable[[float], float], filled: int, expected: float) -> None:
    """10 MiB per second for 10 s are 100 MiB; memory that fills a buffer, settles or hardly changes is no leak."""
    memory = [(n / 10, mib(n / 10)) for n in range(101)]
    assert growth(memory, 1, filled) == pytest.approx(expected)
    assert growth(memory[:40], 1, filled) == 0.0


def test_copies_are_timed() -> None:
    """Copies in both directions have a rate, on any device."""
    up, down = copy_rates("cpu", pinned=False, mib=1)
    assert up > 0 and down > 0


@pytest.mark.gpu
def test_a_gpu_is_measured() -> None:
    """Copies, numbers read from tensors and synchronisations are measured on a GPU."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU that torch can use")
    up, down = copy_rates("cuda", pinned=True)
    assert up > 0.5 and down > 0.5
    assert item_us("cuda") > item_us("cpu")
    numbers = torch.ones(8, device="cuda")
    with counting_syncs() as counts:
        numbers.nonzero()
    assert counts["wait"] == 1
