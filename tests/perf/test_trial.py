"""Trials: their counts, and equality with training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipstream.api import configure
from slipstream.envs.registry import EnvChoice
from slipstream.errors import EnvError
from slipstream.perf.trial import TrialRun, run_trial
from slipstream.settings import Settings
from slipstream.testing import BrokenEnv, ToyEnv
from slipstream.training.build import choose_env


def game(env: str = "soccer", **flags: Any) -> tuple[EnvChoice, Settings]:
    """A game in its smallest form."""
    settings = configure(env, preset="smoke", flags=flags).settings
    return choose_env(env, settings), settings


@pytest.mark.parametrize("collector", ["local", "actors"])
@pytest.mark.usefixtures("quiet_machine")
def test_a_trial_counts_what_was_done(collector: str) -> None:
    """Steps, gradient steps and samples follow from batch, minibatch and epochs; the parts of the time add up."""
    trial = run_trial(*game(plan__collector=collector, plan__workers=2), seconds=0.3)
    assert trial.plan.collector.applied == collector
    assert trial.steps == trial.iterations * 4 * 2 * 16
    assert trial.updates == trial.iterations * 2 * (128 // 32)
    assert trial.samples == 2 * trial.steps
    assert trial.seconds >= 0.3 and trial.build_s > 0 and trial.warm_s > 0
    assert trial.rate == trial.steps / trial.seconds
    assert sum(trial.spans[name] for name in ("collect", "learn", "rest")) == pytest.approx(trial.seconds, rel=1e-3)
    assert 0 < trial.spans["env"] + trial.spans["inference"] <= trial.seconds
    assert min(trial.rates) <= trial.rate * 1.5 and max(trial.rates) >= trial.rate / 1.5
    assert trial.memory_mib > 50 and trial.gpu_mib == 0.0


def test_it_learns_what_training_learns(quick: Any) -> None:
    """The weights after some iterations equal those of a run of the same steps, bit for bit."""
    run = quick(steps=3 * 128)
    with TrialRun(*game(), warm_iterations=2) as trial_run:
        seen: list[float] = []
        trial = trial_run.measure(0.0, lambda seconds, row: seen.append(row["loss/value"]))
        assert trial.iterations == 1 and len(seen) == 1
        np.testing.assert_array_equal(trial_run.parts.learner.params_and_stats, run.agent().params_and_stats)


def test_off_policy_learning_is_measured_while_it_learns() -> None:
    """The measurement starts after the warm-up of the replay buffer, and counts gradient steps."""
    more = {"algorithm": "sac", "sac.learning_starts": 64, "sac.batch_size": 16, "env.actions": "continuous"}
    trial = run_trial(*game(**more), seconds=0.1)
    assert trial.updates == trial.steps
    assert trial.samples == 16 * trial.updates


def test_a_broken_env_ends_the_trial() -> None:
    """An error of an environment is raised, and no worker is left running."""
    settings = configure("gymnasium:CartPole-v1", preset="smoke").settings
    choice = choose_env("python:BrokenEnv", settings, factory=lambda: BrokenEnv("raise", at=40))
    with pytest.raises(EnvError, match="broken on purpose"):
        run_trial(choice, settings, seconds=5.0)
    fine = choose_env("python:ToyEnv", settings, factory=ToyEnv)
    assert run_trial(fine, settings, seconds=0.05).iterations >= 1
