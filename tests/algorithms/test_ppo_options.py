"""PPO's options: each has its documented effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ppo_cases import FOUR_ENVS, start_parts
from slipstream.algorithms.engine import UpdateStats
from slipstream.algorithms.schedules import tune_epochs
from slipstream.api import Run
from slipstream.contracts import Array
from slipstream.errors import ConfigError
from slipstream.policies.fused_actor import make_actor
from slipstream.settings import PPOSettings
from slipstream.testing import ToyEnv
from slipstream.training.parts import TrainingParts

SMALL = FOUR_ENVS | {"policy__memory_size": 12, "policy__sequence": 8}


def make(env: Any = ToyEnv, **more: Any) -> TrainingParts:
    """Build a small local learner."""
    return start_parts(env, **(SMALL | more))


def train(parts: TrainingParts, iterations: int) -> list[dict[str, Any]]:
    """Collect and learn; the metrics of each iteration."""
    rows = []
    for version in range(iterations):
        rows.append(parts.learner.update(parts.collector.collect(version), 0)[1])
        parts.publish(version + 1)
    return rows


def weights(parts: TrainingParts) -> dict[str, Array]:
    """The weights by name."""
    named: dict[str, Array] = parts.design.weights.named(parts.learner.engine.params)
    return named


def orders_taken(parts: TrainingParts, monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """Listen to the orders that the engine is given."""
    heard: list[Array] = []
    run_epoch = parts.learner.engine.run_epoch

    def listen(batch: Any, order: Array, coefficients: Any) -> Array:
        heard.append(order.copy())
        return run_epoch(batch, order, coefficients)

    monkeypatch.setattr(parts.learner.engine, "run_epoch", listen)
    return heard


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_adamw_shrinks_the_weights_and_adam_does_not(engine: str) -> None:
    """One step of AdamW is one step of Adam and the weight decay; the decay has no effect with Adam."""
    ends = []
    for optimiser, decay in (("adam", 0.0), ("adam", 0.1), ("adamw", 0.1)):
        one_step = {"ppo__minibatch": 128, "ppo__epochs": 1, "ppo__learning_rate": 0.01}
        parts = make(plan__learner=engine, ppo__optimiser=optimiser, ppo__weight_decay=decay, **one_step)
        start = parts.learner.engine.params.copy()
        train(parts, 1)
        ends.append(parts.learner.engine.params.copy())
    assert np.array_equal(ends[0], ends[1])
    assert np.allclose(ends[2], ends[0] - 0.01 * 0.1 * start, atol=1e-6)
    assert not np.allclose(ends[2], ends[0], atol=1e-6)


def test_muon_uses_torch_and_differs_from_adam() -> None:
    """Muon needs the torch learner, the plan gives the reason, and matrices move in another direction."""
    parts, plain = make(ppo__optimiser="muon"), make(plan__learner="torch")
    assert parts.plan.learner.applied == "torch" and "`ppo.optimiser` = muon" in parts.plan.learner.why
    start = weights(parts)
    train(parts, 1), train(plain, 1)
    moved = {name: weights(parts)[name] - start[name] for name in start}
    assert all(np.abs(step).max() > 0 for step in moved.values())
    other = weights(plain)["trunk.layers.0.weight"] - start["trunk.layers.0.weight"]
    assert not np.allclose(moved["trunk.layers.0.weight"], other, atol=1e-4)
    with pytest.raises(ConfigError, match=r"ppo\.optimiser"):
        make(ppo__optimiser="muon", plan__learner="fused")


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_vtrace_weights_by_the_current_policy(memory: str) -> None:
    """With ratios of 1 and wide limits it is GAE; when the policy has moved, advantages are weighted and clipped."""
    plain, weighed = make(policy__memory=memory), make(policy__memory=memory, ppo__vtrace_rho=1.0)
    for parts in (plain, weighed):
        parts.learner.update(parts.collector.collect(0), 0)
    one, other = plain.learner._batch, weighed.learner._batch
    assert not np.allclose(one.advantage, other.advantage, atol=1e-4), "later epochs saw another policy"
    still = make(policy__memory=memory, ppo__vtrace_rho=1.0, ppo__epochs=1)
    still.learner.update(still.collector.collect(0), 0)
    assert np.allclose(still.learner._batch.advantage, one.advantage, atol=1e-5)
    assert np.allclose(still.learner._batch.value_target, one.value_target, atol=1e-5)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_priorities_draw_large_advantages_more_often(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments with larger advantages are drawn more often, and their samples have a smaller weight."""
    parts = make(policy__memory=memory, ppo__priority_alpha=1.0, ppo__priority_beta=0.5, ppo__epochs=60)
    heard = orders_taken(parts, monkeypatch)
    parts.learner.update(parts.collector.collect(0), 0)
    batch, size = parts.learner._batch, 8 if memory == "none" else 1
    drawn = np.concatenate(heard).reshape(-1, size)[:, 0]
    drawn = drawn // 32 * 4 + drawn % 4 if memory == "none" else drawn
    counts = np.bincount(drawn, minlength=16)
    surprise = np.abs(batch.advantage.reshape(4, 8, 4)).sum(axis=1).reshape(-1)
    assert np.corrcoef(counts, surprise)[0, 1] > 0.9
    assert np.corrcoef(batch.weight.reshape(4, 8, 4)[:, 0].reshape(-1), surprise)[0, 1] < -0.5


@pytest.mark.parametrize(("order", "sorted_"), [("samples", False), ("segments", False), ("time", True)])
def test_the_order_of_minibatches(order: str, sorted_: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are shuffled, or segments of steps, or nothing; every epoch visits each sample once."""
    parts = make(ppo__shuffle=order)
    heard = orders_taken(parts, monkeypatch)
    parts.learner.update(parts.collector.collect(0), 0)
    assert len(heard) == 4
    for taken in heard:
        assert sorted(taken) == list(range(128))
        assert (taken.tolist() == list(range(128))) == sorted_
        assert bool((np.diff(taken.reshape(-1, 8), axis=1) == 4).all()) == (order == "segments")


def test_tune_epochs_by_hand() -> None:
    """One less where KL or clip fraction is too large, one more where both are small, within its limits."""
    settings = PPOSettings(epochs_max=6, epochs_target_kl=0.01, epochs_max_clip_fraction=0.2)
    calm = UpdateStats(0, 0, 0, 0.01, 0.15, 0, 0, 1.0, 1, 0, False)
    cases = [(0.01, 0.15, 4, 4), (0.02, 0.05, 4, 3), (0.001, 0.3, 4, 3), (0.001, 0.05, 4, 5), (0.001, 0.15, 4, 4)]
    for kl, clipped, epochs, wanted in [*cases, (0.001, 0.0, 6, 6), (0.9, 0.9, 1, 1)]:
        assert tune_epochs(epochs, replace(calm, kl=kl, clip_fraction=clipped), settings) == wanted


def test_epochs_are_tuned() -> None:
    """With a tiny learning rate the epochs grow to their limit, with a very large one they fall to 1."""
    for rate, wanted in ((1e-7, [4, 5, 6, 6]), (0.1, [4, 3, 2, 1])):
        rows = train(make(ppo__epochs_max=6, ppo__learning_rate=rate), 4)
        assert [row["ppo/epochs"] for row in rows] == wanted


def test_target_kl_ends_the_epochs() -> None:
    """The epochs stop after the first one whose KL exceeds the limit."""
    rows = train(make(ppo__target_kl=0.003, ppo__learning_rate=0.05, ppo__epochs=8), 1)
    assert rows[0]["ppo/epochs"] < 8 and rows[0]["ppo/kl"] > 0.003


def test_rewards_are_centred() -> None:
    """The centre is the mean reward of the first rollout, then a moving average, and is subtracted from rewards."""
    parts = make(ppo__centre_rewards=0.25, ppo__normalise_return=False, ppo__learning_rate=1e-9)
    means, centre = [], 0.0
    for version in range(3):
        rollout = parts.collector.collect(version)
        row = parts.learner.update(rollout, 0)[1]
        means.append(float(rollout.reward.mean()))
        centre = means[0] if version == 0 else centre + 0.25 * (means[-1] - centre)
        assert row["ppo/reward_centre"] == pytest.approx(centre, rel=1e-5)
        parts.publish(version + 1)
    last, value = parts.learner._batch.advantage.reshape(32, 4)[31], rollout.value[31:]
    ends = rollout.terminated[31] == 0
    wanted = rollout.reward[31] - centre + 0.99 * value[1] * ends - value[0]
    assert last.tolist() == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.parametrize("engine", ["fused", "torch"])
@pytest.mark.parametrize("shared", [True, False])
def test_the_policy_is_frozen_during_value_warmup(engine: str, shared: bool) -> None:
    """Two iterations train only the value function's own weights; then all weights are trained."""
    parts = make(plan__learner=engine, policy__shared=shared, ppo__value_warmup=2, policy__memory="gru")
    start = weights(parts)
    train(parts, 2)
    now = weights(parts)
    for name, array in now.items():
        same = array == start[name]
        if name.startswith("value."):
            assert not same.all(), name
        elif name.startswith("trunk.head."):
            assert same[:-1].all() and not same[-1].all(), name
        else:
            assert same.all(), name
    rollout = parts.collector.collect(2)
    parts.learner.update(rollout, 0)
    assert all((weights(parts)[name] != array).any() for name, array in now.items())


@pytest.mark.parametrize("engine", ["fused", "torch"])
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_the_kl_reference_attracts_the_policy(engine: str, memory: str, quick: Callable[..., Run]) -> None:
    """The KL to the reference falls with a weight, which decays, and stays large without one."""
    teacher = quick(
        lambda: ToyEnv("masked"),
        name="teacher",
        steps=6000,
        plan__envs=8,
        ppo__learning_rate=3e-3,
        policy__memory=memory,
        policy__memory_size=12,
        policy__sequence=8,
    )
    ends = {}
    for pull in (0.0, 20.0):
        parts = make(
            lambda: ToyEnv("masked"),
            plan__learner=engine,
            ppo__reference=f"run:{teacher.path}",
            ppo__reference_kl_coef=pull,
            ppo__reference_decay=0.9,
            ppo__entropy_coef=0.0,
            ppo__learning_rate=1e-3,
            ppo__max_grad_norm=10.0,
        )
        rows = train(parts, 12)
        ends[pull] = rows[-1]["ppo/reference_kl"]
        assert [row["ppo/reference_kl_coef"] for row in rows[:3]] == pytest.approx([pull, 0.9 * pull, 0.81 * pull])
        assert rows[0]["ppo/reference_kl"] > 0.05
    assert ends[20.0] < 0.5 * ends[0.0]


def test_a_policy_has_no_kl_from_itself(quick: Callable[..., Run]) -> None:
    """The reference's own weights have a KL of 0, memory and masks included."""
    teacher = quick("recall:masked", steps=1000, policy__memory="lstm", policy__memory_size=12, policy__sequence=8)
    parts = make(
        "recall:masked",
        policy__memory="lstm",
        policy__hidden=[16, 16],
        ppo__reference=f"run:{teacher.path}",
        ppo__normalise_obs=False,
        ppo__learning_rate=1e-12,
    )
    agent = parts.learner.reference.agent
    parts.learner.params_and_stats[:] = agent.params_and_stats
    parts.publish(0)
    assert [row["ppo/reference_kl"] for row in train(parts, 3)] == pytest.approx([0, 0, 0], abs=1e-7)


def test_a_reference_that_does_not_fit_is_refused(quick: Callable[..., Run]) -> None:
    """A reference with another squashing of actions is refused."""
    teacher = quick(lambda: ToyEnv("continuous"), name="teacher", steps=100)
    with pytest.raises(ConfigError, match=r"hint: set policy\.squash=false"):
        make(lambda: ToyEnv("continuous"), ppo__reference=f"run:{teacher.path}", policy__squash=True)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_contrastive_loss_falls(memory: str) -> None:
    """The contrastive loss needs the torch learner, is logged, and falls when only it is trained."""
    nothing_else = {"ppo__value_coef": 0.0, "ppo__entropy_coef": 0.0, "ppo__clip": 1e-6, "ppo__learning_rate": 3e-3}
    contrast = {"ppo__contrastive_coef": 1.0, "ppo__contrastive_steps": 2}
    parts = make("gymnasium:CartPole-v1", policy__memory=memory, **contrast, **nothing_else)
    assert "`ppo.contrastive_coef`" in parts.plan.learner.why
    losses = [row["loss/contrastive"] for row in train(parts, 12)]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:2])
    assert "loss/contrastive" not in train(make(policy__memory=memory), 1)[0]


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_dormant_units_are_counted(engine: str) -> None:
    """Two of sixteen units with a very negative bias are dormant, and the share is 2 / 16."""
    parts = make(plan__learner=engine, policy__activation="relu", ppo__learning_rate=1e-9)
    named = weights(parts)
    named["trunk.layers.0.bias"][:] = 1.0
    named["trunk.layers.0.bias"][[3, 7]] = -100.0
    parts.learner.engine.restore(parts.learner.engine.snapshot() | {f"weight/{k}": v for k, v in named.items()})
    parts.publish(0)
    train(parts, 1)
    assert parts.learner.dormant() == {"dormant_units/trunk.0": 2 / 16, "dormant_units/share": 2 / 16}


def test_dormant_units_are_reported_at_their_interval(quick: Callable[..., Run]) -> None:
    """`every.dormant_units` adds the shares to the metrics."""
    run = quick(lambda: ToyEnv(), steps=640, every__log=64, every__dormant_units=320, policy__memory="lstm")
    found = [row["steps"] for row in run.metrics() if "dormant_units/share" in row]
    assert found == [320, 640]
    assert "dormant_units/trunk.0.memory" in run.metrics()[-1]


@pytest.mark.parametrize("engine", ["fused", "torch"])
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_burn_in_refreshes_stale_states(engine: str, memory: str) -> None:
    """After a change of the weights, states replayed from the start are exact, and stored ones are not."""
    found = {}
    for burn_in in (0, 8, 24):
        parts = make(
            plan__learner=engine,
            policy__memory=memory,
            policy__burn_in=burn_in,
            ppo__learning_rate=0.02,
            ppo__normalise_obs=False,
            ppo__rollout=32,
        )
        rollout = parts.collector.collect(0)
        parts.learner.update(rollout, 0)
        found[burn_in] = parts.learner.engine.evaluate(parts.learner._batch).log_prob.reshape(32, 4)
    acting, states = make_actor(parts.design), np.zeros((4, parts.design.state_size), np.float32)
    acting.load(parts.learner.params_and_stats)
    episode_start, exact = parts.learner._batch.episode_start.reshape(32, 4), np.zeros((32, 4), np.float32)
    told = np.zeros((4, 4), np.float32)
    for t in range(32):
        states[episode_start[t] > 0] = 0
        acting.outputs(np.arange(4), rollout.obs[t], states, told)
        logs = told - np.log(np.exp(told).sum(axis=1, keepdims=True))
        exact[t] = logs[np.arange(4), rollout.action[t, :, 0]]
    assert np.allclose(found[24], exact, atol=1e-5)
    assert np.allclose(found[8][:16], exact[:16], atol=1e-5)
    assert np.abs(found[0][8:] - exact[8:]).max() > 1e-4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"policy__memory": "lstm", "ppo__rollout": 36},
            "`ppo.rollout` = 36 does not divide into sequences of `policy.sequence` = 8 steps.\n"
            "hint: use a multiple, e.g. 32 or 40, or another policy.sequence",
        ),
        (
            {"policy__memory": "gru", "ppo__minibatch": 4},
            "`ppo.minibatch` = 4 does not divide into sequences of `policy.sequence` = 8 steps.\n"
            "hint: use a multiple, e.g. 8, or another policy.sequence",
        ),
        (
            {"ppo__priority_alpha": 0.5, "policy__sequence": 5, "ppo__rollout": 32},
            "`ppo.rollout` = 32 does not divide into sequences of `policy.sequence` = 5 steps.\n"
            "hint: use a multiple, e.g. 30 or 35, or another policy.sequence",
        ),
        (
            {"policy__memory": "lstm", "policy__burn_in": 32},
            "`policy.burn_in` = 32 is as long as a whole rollout of 32 steps.\n"
            "hint: lower it; a few steps are enough to warm up the recurrent state",
        ),
    ],
)
def test_sequences_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    """Impossible shapes are refused before training starts."""
    with pytest.raises(ConfigError) as caught:
        make(**settings)
    assert str(caught.value) == message
    assert caught.value.code == 2
