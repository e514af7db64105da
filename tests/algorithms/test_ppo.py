"""PPO from a rollout to weights: the acting policy is the trained policy, and failures are reported."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ppo_cases import FOUR_ENVS, start_parts
from slipstream.collect.rollout import Rollout
from slipstream.errors import EnvError
from slipstream.policies.fused_actor import make_actor
from slipstream.testing import ToyEnv

ENGINES = ["fused", "torch"]
make = partial(start_parts, **FOUR_ENVS)


class Counting(gymnasium.Env[Any, Any]):
    """Shows how far the episode is; truncates after ten steps; pays the number of the step."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start at zero."""
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count."""
        self._t += 1
        return np.array([self._t / 10], np.float32), float(self._t), False, self._t == 10, {}


def test_truncation_every_ten_steps_stores_no_fake_rows_and_bootstraps_each_end() -> None:
    """Each row is a real transition, the next row is the next episode's first, and each end has V of its last obs."""
    parts = make(Counting, ppo__rollout=40, ppo__minibatch=40, ppo__normalise_obs=False, ppo__normalise_return=False)
    rollout = parts.collector.collect(0)
    assert rollout.active.all()
    assert not rollout.terminated.any()
    ends = np.arange(40) % 10 == 9
    assert np.array_equal(rollout.truncated, np.repeat(ends[:, None], 4, axis=1))
    clock = np.arange(41) % 10
    assert np.allclose(rollout.obs[:, :, 0], clock[:, None] / 10)
    assert np.array_equal(rollout.reward, np.repeat(clock[:40, None] + 1, 4, axis=1))
    acting, last = make_actor(parts.design), np.zeros(1, np.float32)
    acting.load(parts.learner.params_and_stats)
    acting.value(np.arange(1), np.ones((1, 1), np.float32), last, np.zeros((1, 0), np.float32))
    assert (rollout.final_value[ends] == last[0]).all()
    assert last[0] != rollout.value[0, 0]
    parts.learner.update(rollout, 0)
    gamma, end = 0.99, 9
    batch = parts.learner._batch
    wanted = 10 + gamma * last[0] - rollout.value[end, 0]
    assert batch.advantage.reshape(40, 4)[end, 0] == pytest.approx(wanted, rel=1e-5)


def test_toy_env_that_truncates_has_no_terminations() -> None:
    """The toy env's own truncation arrives as truncation in the rollout."""
    rollout = make(lambda: ToyEnv(truncates=True)).collector.collect(0)
    assert not rollout.terminated.any()
    assert rollout.truncated.sum() == 4 * 3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("actions", ["discrete", "multi_discrete", "continuous", "masked", "binary"])
def test_the_acting_policy_is_the_trained_policy(engine: str, memory: str, actions: str) -> None:
    """At lag 0 the first minibatch has ratio 1 within 1e-5 in both definitions, episode ends in the sequences included.

    Episodes of ten steps end inside sequences of sixteen, and states go on from rollout to rollout.
    """
    more = {
        "plan__learner": engine,
        "ppo__learning_rate": 1e-12,
        "ppo__epochs": 1,
        "policy__memory": memory,
        "policy__memory_size": 12,
        "policy__squash": actions == "continuous",
    }
    parts = make(lambda: ToyEnv(actions), **more)
    steps = 0
    for version in range(3):
        rollout, learner = parts.collector.collect(version), parts.learner
        before = rollout.log_prob.copy(), rollout.value[:-1].copy()
        samples, row = learner.update(rollout, steps)
        seen = learner.engine.evaluate(learner._batch)
        assert np.abs(np.exp(seen.log_prob - before[0].reshape(-1)) - 1).max() < 1e-5
        assert np.allclose(seen.value, before[1].reshape(-1), atol=1e-5)
        if memory != "none":
            assert rollout.state.shape == (2, 4, parts.design.state_size)
            inside = [bool(state.any()) for state in rollout.state]
            assert inside == [[False, True], [True, True], [True, False]][version], "80 steps are whole episodes"
            assert parts.learner._batch.episode_start.any()
        steps += samples
        assert abs(row["ppo/kl"]) < 1e-6
        assert row["ppo/clip_fraction"] == 0
        moved = {name: 1.1 * array for name, array in learner.engine.snapshot().items() if name.startswith("weight/")}
        learner.engine.restore(learner.engine.snapshot() | moved)
        parts.publish(version + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_three_bad_steps_restore_the_weights_and_halve_the_rate(engine: str) -> None:
    """Steps that are not finite are skipped with a notice; three in a row restore the last good weights."""
    parts = make(ToyEnv, plan__learner=engine, ppo__epochs=1)
    learner = parts.learner
    start = learner.params_and_stats[: parts.design.weights.size].copy()
    rollout = parts.collector.collect(0)
    learner.update(rollout, 0)
    moved = learner.params_and_stats[: parts.design.weights.size].copy()
    assert not np.array_equal(start, moved)
    assert learner.notices == []
    rollout.value[:] = np.nan
    _, row = learner.update(rollout, 128)
    assert row["ppo/failed_updates"] >= 3
    assert learner.notices == [
        f"{row['ppo/failed_updates']} gradient steps were not finite and were skipped.",
        "Three gradient steps in a row were not finite: the last good weights are restored, and the learning rate is "
        "halved (now 0.5 of its setting).",
    ]
    assert np.array_equal(learner.params_and_stats[: parts.design.weights.size], start)
    assert np.isfinite(learner.params_and_stats).all()
    assert learner.coefficients().learning_rate == pytest.approx(0.5 * parts.learner.settings.learning_rate)
    arrays, state = learner.snapshot()
    other = make(ToyEnv, plan__learner=engine).learner
    other.restore(arrays, state)
    assert other.coefficients().learning_rate == learner.coefficients().learning_rate


def test_one_bad_minibatch_is_reported_and_nothing_is_restored() -> None:
    """A single skipped step gives a notice, and the rest of the iteration is trained on."""
    parts = make(ToyEnv, ppo__epochs=1, ppo__normalise_return=False)
    start = parts.learner.params_and_stats.copy()
    rollout = parts.collector.collect(0)
    rollout.value[-2, 0] = np.nan
    rollout.terminated[-2, 0] = 1
    _, row = parts.learner.update(rollout, 0)
    assert row["ppo/failed_updates"] == 1
    assert parts.learner.notices == ["1 gradient steps were not finite and were skipped."]
    assert not np.array_equal(start, parts.learner.params_and_stats)


def test_normalisers_are_in_the_snapshot() -> None:
    """Statistics of observations and returns are restored with the rest, and the actor uses them at once."""
    parts = make(ToyEnv)
    learner = parts.learner
    steps = 0
    for version in range(3):
        samples, _ = learner.update(parts.collector.collect(version), steps)
        steps += samples
        parts.publish(version + 1)
    arrays, state = learner.snapshot()
    assert {"obs.count", "obs.mean", "obs.variance", "return.count", "return.mean", "return.variance"} <= arrays.keys()
    assert arrays["obs.count"][0] == steps
    episode_start = make(ToyEnv).learner
    episode_start.restore(arrays, state)
    assert np.array_equal(episode_start.params_and_stats, learner.params_and_stats)
    rollout = parts.collector.collect(3)
    copy = Rollout(**{field.name: getattr(rollout, field.name).copy() for field in fields(rollout)})
    assert episode_start.update(copy, steps) == learner.update(rollout, steps)
    assert np.array_equal(episode_start.params_and_stats, learner.params_and_stats)


def test_normalised_observations_have_mean_0_and_deviation_1() -> None:
    """Mean and scale are those of all observations acted on so far."""
    parts = make(ToyEnv)
    seen = []
    for version in range(2):
        rollout = parts.collector.collect(version)
        seen.append(rollout.obs[:-1].reshape(-1, 4).copy())
        parts.learner.update(rollout, 0)
        parts.publish(version + 1)
    _, mean, scale = parts.design.split_params_and_stats(parts.learner.params_and_stats)
    assert np.allclose(mean, np.concatenate(seen).mean(axis=0), atol=1e-5)
    assert np.allclose(scale, 1 / np.concatenate(seen).std(axis=0), atol=1e-4)


def test_normalisation_can_be_turned_off() -> None:
    """Without it observations and rewards are not scaled."""
    parts = make(ToyEnv, ppo__normalise_obs=False, ppo__normalise_return=False)
    _, row = parts.learner.update(parts.collector.collect(0), 0)
    _, mean, scale = parts.design.split_params_and_stats(parts.learner.params_and_stats)
    assert not mean.any() and (scale == 1).all()
    assert row["ppo/reward_scale"] == 1.0


@pytest.mark.parametrize("engine", ENGINES)
def test_gradient_statistics_are_by_layer(engine: str) -> None:
    """Every layer's last gradient has its norm, largest entry, share of zeros and norm relative to the weights."""
    parts = make(ToyEnv, plan__learner=engine)
    parts.learner.update(parts.collector.collect(0), 0)
    row = parts.learner.gradient_statistics()
    names = [f"trunk.{layer}.{kind}" for layer in ("layers.0", "head") for kind in ("weight", "bias")]
    assert row.keys() == {
        f"gradient/{n}/{what}" for n in names for what in ("norm", "max_abs", "zero_share", "relative_norm")
    }
    named = parts.design.weights.named(parts.learner.engine.gradient())["trunk.layers.0.weight"]
    assert row["gradient/trunk.layers.0.weight/norm"] == pytest.approx(float(np.sqrt((named**2).sum())), rel=1e-5)
    assert row["gradient/trunk.layers.0.weight/max_abs"] == pytest.approx(float(np.abs(named).max()))
    assert row["gradient/trunk.layers.0.weight/zero_share"] == float((named == 0).mean())
    assert row["gradient/trunk.layers.0.weight/relative_norm"] > 0


def test_inactive_rows_are_not_samples() -> None:
    """Only the actions of the learning policy count as steps."""
    parts = make(ToyEnv)
    rollout = parts.collector.collect(0)
    rollout.active[:16, 1] = 0
    samples, _ = parts.learner.update(rollout, 0)
    assert samples == 4 * 32 - 16


def test_a_rollout_without_transitions_ends_the_run() -> None:
    """A rollout in which every transition was masked is an error of the env, with exit code 3."""
    parts = make(ToyEnv)
    rollout = parts.collector.collect(0)
    rollout.active[:] = 0
    with pytest.raises(EnvError, match=r"Every transition of this rollout was masked\. No agent") as caught:
        parts.learner.update(rollout, 0)
    assert caught.value.hint and caught.value.code == 3
