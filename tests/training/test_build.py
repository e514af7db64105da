"""From settings to parts: the discount from a half-life, potentials, and presets."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.api import configure
from slipstream.errors import ConfigError
from slipstream.system import machine
from slipstream.training.build import build, choose_env
from slipstream.training.parts import TrainingParts

STEP = 4 / 60
GPU = configure("recall", preset="gpu", tuned=False).settings


def parts(env: str = "soccer", **settings: Any) -> TrainingParts:
    """Return the parts of a small run that is not started."""
    resolved = configure(env, preset="smoke", flags={"plan__collector": "local"} | settings)
    made = build(choose_env(env, resolved.settings), resolved.settings)
    made.collector.close()
    return made


def test_a_half_life_sets_the_discount_of_ppo_with_a_notice() -> None:
    """Ten seconds in steps of four ticks are 150 steps, whatever `ppo.gamma` is; a notice has the value."""
    made = parts(rewards__half_life_s=10.0, ppo__gamma=0.5)
    gamma = made.schedules.at("ppo", 0).gamma
    assert gamma**150 == pytest.approx(0.5) and made.learner.settings.gamma == gamma
    assert made.learner.notices == ["ppo.gamma = 0.99539  (rewards.half_life_s: 10 s in steps of 0.0667 s)"]
    assert parts(rewards__half_life_s=10.0, env__action_repeat=8).learner.settings.gamma ** 75 == pytest.approx(0.5)
    assert parts().learner.notices == []


def test_a_half_life_sets_the_discount_of_sac() -> None:
    """A half-life sets the discount of SAC as well."""
    made = parts("kart", algorithm="sac", env__actions="continuous", rewards__half_life_s=3.0)
    assert made.learner.settings.gamma ** (3 / STEP) == pytest.approx(0.5)
    assert made.learner.notices[0].startswith("sac.gamma = ")


def test_a_schedule_starts_at_the_half_life() -> None:
    """A schedule of gamma starts at the value that follows from the half-life."""
    made = parts(rewards__half_life_s=10.0, schedules={"ppo.gamma": "linear to 0.9 over 100"})
    assert made.schedules.at("ppo", 0).gamma == pytest.approx(0.5 ** (STEP / 10))
    assert made.schedules.at("ppo", 100).gamma == pytest.approx(0.9)


def test_an_env_without_time_has_no_half_life() -> None:
    """A Gymnasium env has no step duration, so a half-life is an error."""
    with pytest.raises(ConfigError, match="`gymnasium:CartPole-v1` does not declare the duration of a step"):
        parts("gymnasium:CartPole-v1", rewards__half_life_s=10.0)


def test_potentials_use_the_learners_discount() -> None:
    """The env gets the discount of the algorithm, which must not have a schedule."""
    settings = configure("soccer", flags={"ppo__gamma": 0.97, "sac__gamma": 0.96}).settings
    assert choose_env("soccer", settings).gamma == 0.97
    assert choose_env("soccer", settings.model_copy(update={"algorithm": "sac"})).gamma == 0.96
    with pytest.raises(ConfigError, match=r"`rewards.potential`.*`ppo.gamma`"):
        parts(rewards__potential=True, schedules={"ppo.gamma": "linear to 0.9 over 100"})


@pytest.mark.parametrize("env", ["soccer", "gymnasium:CartPole-v1", "pixels"])
def test_presets_fit_every_env(env: str) -> None:
    """Each preset, and some combinations, can be built for any env: batches divide, and the plan follows it."""
    for preset in ("quick", "low-memory", "many-cores", "gpu", "throughput", "quick,low-memory", "throughput,gpu"):
        flags = {"plan__collector": "local", "plan__device": "cpu", "opponent": "random" if env == "soccer" else None}
        settings = configure(env, preset=preset, flags=flags, tuned=False).settings
        made = build(choose_env(env, settings), settings)
        made.close()
        assert made.batch % settings.ppo.minibatch == 0
        assert settings.plan.envs in (None, made.plan.envs.applied)
        assert made.plan.lag.applied == (1 if "many" in preset or "through" in preset else 0)


@pytest.mark.skipif(bool(machine.gpu_name()), reason="this machine has a GPU")
def test_the_gpu_preset_without_a_gpu_is_an_error() -> None:
    """Without a GPU the error has a hint."""
    with pytest.raises(ConfigError, match=r"GPU.*\nhint: slipstream doctor"):
        build(choose_env("recall", GPU), GPU)
