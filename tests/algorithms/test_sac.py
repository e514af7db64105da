"""SAC from rollouts to weights: due updates, problems with a known optimum, resuming, and unsupported settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from slipstream.algorithms import sac as module
from slipstream.algorithms.replay_buffer import ReplayBuffer
from slipstream.algorithms.sac import SAC, target_entropy
from slipstream.collect.rollout import Rollout, empty_rollout
from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec, vector_obs
from slipstream.errors import ConfigError, EnvError
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.fused_actor import FusedActor
from slipstream.settings import SACSettings, Settings
from slipstream.training.build import make_sac_engine

BOX = ActionSpec("continuous", (), (-2.0,), (2.0,))
CHOICE = ActionSpec("discrete", (3,))
MASKED = ActionSpec("discrete", (3,), masked=True)
SMALL = {"batch_size": 16, "learning_starts": 10, "buffer_size": 500, "learning_rate": 1e-3}


def make(
    action: ActionSpec = BOX,
    rows: int = 1,
    obs: ObsSpec | None = None,
    learner: str = "fused",
    threads: int = 1,
    policy: dict[str, Any] | None = None,
    seed: int = 0,
    **sac: Any,
) -> SAC:
    """A small SAC learner."""
    settings = Settings.model_validate(
        {"algorithm": "sac", "seed": seed, "policy": {"hidden": [16]} | (policy or {}), "sac": SMALL | sac}
    )
    design = Design(obs or vector_obs(2), action, settings.policy, value=False)
    params_and_stats = design.initial_params_and_stats(seed)
    engine = make_sac_engine(settings, design, params_and_stats, learner, threads)
    return SAC(settings, design, params_and_stats, engine, rows)


class Game:
    """Makes rollouts by hand: each episode is one step in a random state, with reward `pay`(obs, action)."""

    def __init__(self, sac: SAC, rows: int, pay: Any, ended: str = "terminated", seed: int = 0) -> None:
        self.sac, self.rows, self.pay, self.ended = sac, rows, pay, ended
        self.acting = FusedActor(sac.design)
        self.acting.load(sac.params_and_stats)
        self.random = np.random.default_rng(seed)
        self.streams = np.stack([self.random.integers(0, 2**31, rows), np.zeros(rows, np.int64)], axis=1)

    def play(self, steps: int = 1) -> Rollout:
        """Act in random states; the mask, if any, excludes the last action."""
        sac, rows = self.sac, self.rows
        rollout = empty_rollout(EnvSpec("game", sac.design.obs, sac.design.action), sac.design, steps, rows)
        rollout.obs[:] = self.random.choice([-1.0, 1.0], rollout.obs.shape)
        rollout.active[:], rollout.mask[:] = 1, 1
        rollout.mask[..., -1:] = 0
        for t in range(steps):
            self.acting.act(
                ActInputs(
                    np.arange(rows), rollout.obs[t], rollout.mask[t], np.zeros((rows, 0), np.float32), self.streams
                ),
                ActOutputs(rollout.action[t], rollout.log_prob[t], rollout.value[t]),
                True,
            )
            rollout.reward[t] = self.pay(rollout.obs[t], rollout.action[t])
        getattr(rollout, self.ended)[:] = 1
        rollout.final_obs[:] = rollout.obs[1:]
        return rollout

    def learn(self, rollouts: int, steps: int = 1) -> dict[str, Any]:
        """Play and update; return the last metrics."""
        row: dict[str, Any] = {}
        for _ in range(rollouts):
            row = self.sac.update(self.play(steps), 0)[1]
        return row

    def greedy(self, obs: Array) -> Array:
        """The most likely actions, squashed if continuous."""
        count, action = len(obs), self.sac.design.action
        chosen = np.zeros((count, action.parts), action.dtype)
        mask = np.ones((count, action.options), np.uint8)
        mask[:, -1:] = 0
        self.acting.act(
            ActInputs(np.arange(count), obs, mask, np.zeros((count, 0), np.float32), self.streams),
            ActOutputs(chosen, np.zeros(count, np.float32), np.zeros(count, np.float32)),
            False,
        )
        return np.tanh(chosen) if action.kind == "continuous" else chosen


STATES = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float32)


def near(obs: Array, action: Array) -> Array:
    """The best action is half of the first observation."""
    paid: Array = 1.0 - np.square(np.tanh(action[:, 0]) - 0.5 * obs[:, 0])
    return paid


def right(obs: Array, action: Array) -> Array:
    """The best action is 1 if the second observation is positive, else 0."""
    paid: Array = (action[:, 0] == (obs[:, 1] > 0)).astype(np.float32)
    return paid


def nothing(obs: Array, action: Array) -> Array:
    """A constant reward of 1."""
    return np.ones(len(obs), np.float32)


@pytest.mark.parametrize("learner", ["fused", "torch"])
def test_it_learns_a_continuous_action(learner: str) -> None:
    """After some hundred steps the action is near the optimum and the temperature has fallen."""
    sac = make(rows=4, learner=learner, learning_rate=5e-3, updates_per_step=0.5, batch_size=64, buffer_size=4000)
    game = Game(sac, 4, near)
    row = game.learn(250 if learner == "torch" else 400)
    assert np.abs(game.greedy(STATES)[:, 0] - 0.5 * STATES[:, 0]).max() < 0.2
    assert row["sac/temperature"] < 0.6


@pytest.mark.parametrize(("action", "critics"), [(CHOICE, 2), (MASKED, 2), (MASKED, 4)])
def test_it_learns_a_discrete_action(action: ActionSpec, critics: int) -> None:
    """After some hundred steps the action is optimal in every state and never masked."""
    sac = make(
        action,
        rows=4,
        learning_rate=5e-3,
        updates_per_step=0.5,
        batch_size=64,
        buffer_size=4000,
        critics=critics,
        temperature=0.05,
    )
    game = Game(sac, 4, right)
    game.learn(250)
    assert game.greedy(STATES)[:, 0].tolist() == [0, 1, 0, 1]
    if action.masked:
        assert (sac.replay.data.action[: sac.replay.size] < 2).all()


@pytest.mark.parametrize(("ended", "worth"), [("terminated", 1.0), ("truncated", 10.0)])
def test_values_bootstrap_after_truncation_only(ended: str, worth: float) -> None:
    """With reward 1 and gamma 0.9 a truncated step is worth 10, a terminated one 1."""
    sac = make(rows=4, learning_rate=1e-2, gamma=0.9, tau=0.05, temperature=1e-6, updates_per_step=0.5, batch_size=64)
    row = Game(sac, 4, nothing, ended).learn(500)
    assert row["sac/q"] == pytest.approx(worth, rel=0.1)


@pytest.mark.parametrize("rows", [1, 4, 7])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_updates_per_step_is_held_for_any_number_of_envs(rows: int, ratio: float) -> None:
    """Fractions carry over, and no updates are due for steps before `sac.learning_starts`."""
    sac = make(rows=rows, updates_per_step=ratio, learning_starts=20, batch_size=4)
    game, before = Game(sac, rows, near), 0
    for _ in range(60):
        samples, row = sac.update(game.play(), 0)
        assert samples == rows
        total = sac.replay.total
        due = int(ratio * max(0, total - 20) + 1e-6)
        assert row["sac/updates"] == due == sac.engine.counters[0]
        assert row["sac/buffer"] == min(500, total)
        assert ("loss/value" in row) == (due > before)
        before = due
    assert row["sac/updates_per_step"] == pytest.approx(ratio, abs=1 / (60 * rows - 20))


def test_updates_are_due_for_active_steps_only() -> None:
    """Five steps of three rows, one of them inactive, are ten transitions."""
    sac = make(rows=3, learning_starts=0)
    rollout = Game(sac, 3, near).play(5)
    rollout.active[:, 2] = 0
    samples, row = sac.update(rollout, 0)
    assert samples == row["sac/updates"] == row["sac/buffer"] == 10


def test_logged_metrics() -> None:
    """An update returns all metrics, and they are finite."""
    sac = make(learning_starts=0, critics=3)
    row = Game(sac, 1, near).learn(20)
    assert set(row) == {
        "loss/policy",
        "loss/value",
        "sac/temperature",
        "sac/entropy",
        "sac/q",
        "sac/updates",
        "sac/learning_rate",
        "sac/updates_per_step",
        "sac/buffer",
        "sac/failed_updates",
        "sac/gradient_norm",
        "time/matmul",
    }
    assert all(np.isfinite(value) for value in row.values())
    assert 0 < row["time/matmul"] < 1.5 and row["sac/gradient_norm"] > 0 and row["sac/learning_rate"] == 1e-3


def test_training_updates_params_and_stats() -> None:
    """Every update changes the acting weights; the normaliser is unchanged by default."""
    sac = make(learning_starts=0)
    game = Game(sac, 1, near)
    before = sac.params_and_stats.copy()
    game.learn(3)
    params, mean, scale = sac.design.split_params_and_stats(sac.params_and_stats)
    assert not np.array_equal(params, before[: params.size])
    assert np.array_equal(params, sac.engine.params)
    assert (mean == 0).all() and (scale == 1).all()


def test_observations_can_be_normalised() -> None:
    """With `normalise_obs` the running mean and scale are in params_and_stats and change training."""
    sac, plain = make(learning_starts=0, normalise_obs=True), make(learning_starts=0)
    seen = []
    for step in range(30):
        rollout = Game(plain, 1, near, seed=step).play()
        rollout.obs[:] = 5 + 3 * rollout.obs
        rollout.final_obs[:] = rollout.obs[1:]
        seen.append(rollout.obs[0, 0].copy())
        for learner in (sac, plain):
            learner.update(rollout, 0)
    _, mean, scale = sac.design.split_params_and_stats(sac.params_and_stats)
    assert np.allclose(mean, np.mean(seen, axis=0), atol=1e-4)
    assert np.allclose(1 / scale, np.std(seen, axis=0), atol=1e-3)
    assert not np.array_equal(sac.engine.params, plain.engine.params)


@pytest.mark.parametrize("learner", ["fused", "torch"])
@pytest.mark.parametrize("action", [BOX, MASKED])
def test_a_restored_learner_continues_bit_for_bit(learner: str, action: ActionSpec) -> None:
    """After restoring weights, optimiser, buffer, streams and normaliser, 50 steps are equal."""

    def build() -> SAC:
        return make(
            action,
            rows=3,
            learner=learner,
            updates_per_step=0.7,
            buffer_size=60,
            normalise_obs=True,
            n_step=3,
            critics=3,
        )

    one, other = build(), build()
    game = Game(one, 3, right if action.masked else near)
    game.learn(30)
    arrays, state = one.snapshot()
    other.restore({name: array.copy() for name, array in arrays.items()}, state)
    assert np.array_equal(one.params_and_stats, other.params_and_stats)
    for _ in range(24):
        rollout = game.play()
        ours, theirs = (sac.update(rollout, 0)[1] for sac in (one, other))
        assert {**ours, "time/matmul": 0} == {**theirs, "time/matmul": 0}
    assert one.engine.counters[0] >= 50 + 30
    assert np.array_equal(one.params_and_stats, other.params_and_stats)
    again = other.snapshot()[0]
    assert all(np.array_equal(array, again[name]) for name, array in one.snapshot()[0].items())


def test_three_failures_in_a_row_restore_the_last_good_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are restored, the learning rate is halved, a notice is added, and training continues."""
    monkeypatch.setattr(module, "GOOD_EVERY", 7)
    sac = make(learning_starts=0)
    game = Game(sac, 1, near)
    game.learn(10)
    good = sac._good["weight/policy.head.weight"].copy()
    sac.replay.data.reward[:] = np.nan
    row = game.learn(2)
    assert row["sac/failed_updates"] == 1 and "loss/value" not in row
    assert sac.notices == ["1 gradient steps were not finite and were skipped."] * 2
    row = game.learn(1)
    assert sac.notices[-1] == (
        "Three gradient steps in a row were not finite: the last good weights are restored, and the learning rate is "
        "halved (now 0.5 of its setting)."
    )
    assert row["sac/learning_rate"] == 5e-4
    assert np.array_equal(sac.engine.snapshot()["weight/policy.head.weight"], good)
    sac.replay.data.reward[:] = 0.0
    row = game.learn(3)
    assert row["sac/failed_updates"] == 0 and np.isfinite(sac.params_and_stats).all()


def test_too_many_empty_rollouts_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout without a transition is accepted, many in a row raise."""
    monkeypatch.setattr(module, "EMPTY_LIMIT", 4)
    sac = make()
    rollout = Game(sac, 1, near).play()
    rollout.active[:] = 0
    for _ in range(3):
        assert sac.update(rollout, 0)[0] == 0
    rollout.fault = "The reward was not finite in env 2."
    with pytest.raises(EnvError, match=r"The last 4 rollouts had no usable transition.* in env 2\."):
        sac.update(rollout, 0)


def write_demos(path: Path, count: int = 40) -> str:
    """Write steps that are recognisable by a reward of 100."""
    columns = {
        "obs": np.ones((count, 2), np.float32),
        "next_obs": np.ones((count, 2), np.float32),
        "action": np.ones((count, 1), np.float32),
        "reward": np.full(count, 100, np.float32),
        "terminated": np.ones(count, np.uint8),
    }
    safetensors.numpy.save_file(columns, path)
    return str(path)


@pytest.mark.parametrize("learner", ["fused", "torch"])
def test_a_share_of_every_batch_comes_from_the_demos(learner: str, tmp_path: Path) -> None:
    """Every batch holds `sac.demo_share` of demos, half by default."""
    demos = write_demos(tmp_path / "demos.safetensors")
    for share, count in ((None, 8), (0.25, 4), (0.01, 1), (0.99, 15)):
        sac = make(learner=learner, demos=demos, learning_starts=0, **({} if share is None else {"demo_share": share}))
        game = Game(sac, 1, near)
        for _ in range(5):
            game.learn(1)
            sample = sac.sampler.batch
            assert int((sample.reward == 100).sum()) == count
            assert np.allclose(sample.action[sample.reward == 100], 0.5)


def test_rlpd(tmp_path: Path) -> None:
    """Ten critics with trained layer norms, two changing target critics, and half of the batch from demos."""
    sac = make(
        demos=write_demos(tmp_path / "demos.safetensors"),
        critics=10,
        target_critics=2,
        critic_layer_norm=True,
        updates_per_step=5,
        learning_starts=0,
    )
    game, pairs = Game(sac, 1, near), set()
    first = sac.engine.snapshot()
    for _ in range(20):
        game.learn(1)
        pairs.add(tuple(sac.sampler.batch.target_critics.tolist()))
    last = sac.engine.snapshot()
    assert len(pairs) > 10
    for critic in range(10):
        for name in (f"critic{critic}.norms.0.weight", f"critic{critic}.layers.0.weight"):
            assert not np.array_equal(first[f"weight/{name}"], last[f"weight/{name}"])
    assert "weight/policy.norms.0.weight" not in last


OPTIONS: list[dict[str, Any]] = [
    {"updates_per_step": 2.0},
    {"batch_size": 20},
    {"buffer_size": 12},
    {"learning_starts": 0},
    {"learning_rate": 1e-2},
    {"gamma": 0.5},
    {"tau": 0.5},
    {"n_step": 4},
    {"critics": 3},
    {"critics": 4, "target_critics": 1},
    {"critic_layer_norm": True},
    {"temperature": 0.5},
    {"target_entropy": 1.0},
    {"normalise_obs": True},
]


@pytest.mark.parametrize("learner", ["fused", "torch"])
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: "-".join(option))
def test_every_option_has_an_effect(option: dict[str, Any], learner: str) -> None:
    """Weights after the same rollouts differ from those of the default settings."""
    plain, other = make(learner=learner), make(learner=learner, **option)
    game = Game(plain, 1, near, "truncated")
    for _ in range(20):
        rollout = game.play(2)
        rollout.truncated[0] = 0
        for sac in (plain, other):
            sac.update(rollout, 0)
    assert not np.array_equal(plain.engine.params, other.engine.params)


def test_scheduled_settings_are_used() -> None:
    """Learning rate and updates per step follow `now`, which schedules replace."""
    sac = make(learning_starts=0)
    game = Game(sac, 1, near)
    assert game.learn(1)["sac/updates"] == 1
    sac.settings = sac.settings.model_copy(update={"learning_rate": 1e-9, "updates_per_step": 4.0})
    before = sac.params_and_stats.copy()
    row = game.learn(1)
    assert row["sac/updates"] == 5 and row["sac/learning_rate"] == 1e-9
    assert np.allclose(sac.params_and_stats, before, atol=1e-7)


@pytest.mark.parametrize("learner", ["fused", "torch"])
def test_gradient_statistics_and_dormant_units_by_layer(learner: str) -> None:
    """Empty before the first update, then norm, largest entry, zeros and relative norm of every array."""
    sac = make(learner=learner, policy={"hidden": [16, 8], "activation": "relu"}, learning_starts=0)
    assert sac.gradient_statistics() == sac.dormant() == {}
    params = sac.design.split_params_and_stats(sac.params_and_stats)[0]
    named = sac.design.weights.named(params)
    named["policy.layers.0.bias"][:4] = -100.0
    sac.design.weights.flatten(named, params)
    sac.engine.restore(sac.engine.snapshot() | {f"weight/{name}": array for name, array in named.items()})
    Game(sac, 1, near).learn(3)
    row = sac.gradient_statistics()
    assert len(row) == 4 * 6
    assert row["gradient/policy.layers.0.bias/zero_share"] >= 0.25
    assert 0 < row["gradient/policy.head.weight/max_abs"] <= row["gradient/policy.head.weight/norm"]
    weight = np.linalg.norm(sac.design.weights.named(params)["policy.head.weight"])
    assert row["gradient/policy.head.weight/relative_norm"] == pytest.approx(
        row["gradient/policy.head.weight/norm"] / weight, rel=1e-5
    )
    shares = sac.dormant()
    assert set(shares) == {"dormant_units/policy.0", "dormant_units/policy.1", "dormant_units/share"}
    assert shares["dormant_units/policy.0"] >= 0.25
    assert shares["dormant_units/share"] == pytest.approx(
        (16 * shares["dormant_units/policy.0"] + 8 * shares["dormant_units/policy.1"]) / 24
    )


def test_target_entropy() -> None:
    """Minus the action dimensions, half of the maximum entropy if discrete, or the setting."""
    assert target_entropy(SACSettings(), make(BOX).design) == -1.0
    assert target_entropy(SACSettings(), make(CHOICE).design) == pytest.approx(0.5 * np.log(3))
    assert target_entropy(SACSettings(target_entropy=0.25), make(BOX).design) == 0.25


IMAGE = ObsSpec((ObsField("size", "vector", (2,)), ObsField("camera", "image", (8, 8, 3))))
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"policy": {"memory": "gru"}}, "`policy.memory` = gru", "set policy.memory=none, or use algorithm=ppo"),
    ({"obs": IMAGE}, "`camera` is of kind image (8, 8, 3)", "or use algorithm=ppo"),
    ({"action": ActionSpec("multi_discrete", (3, 2))}, "Box or a Discrete action space", "or use algorithm=ppo"),
    (
        {"critics": 2, "target_critics": 3},
        "`sac.target_critics` = 3 is more than `sac.critics` = 2",
        "use sac.target_critics=2 at most",
    ),
    ({"batch_size": 1, "demos": "demos.safetensors"}, "`sac.batch_size` = 1", "use sac.batch_size=2 at least"),
]


@pytest.mark.parametrize(("case", "message", "hint"), REFUSED)
def test_unsupported_settings_and_envs_raise(case: dict[str, Any], message: str, hint: str) -> None:
    """Recurrent policies, images, multi-discrete actions and contradicting settings raise with key, value and hint."""
    with pytest.raises(ConfigError) as caught:
        make(**case)
    assert message in caught.value.message and hint in str(caught.value)


def test_a_buffer_above_its_memory_limit_is_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check runs before the buffer is allocated."""
    made: list[Any] = []
    monkeypatch.setattr(module, "ReplayBuffer", lambda *size: made.append(size) or ReplayBuffer(*size))
    with pytest.raises(ConfigError, match=r"takes .* MiB; `sac.buffer_mib` allows 1 MiB"):
        make(buffer_size=1_000_000_000, buffer_mib=1)
    assert not made
    make(buffer_size=100, buffer_mib=1)
    assert made == [(2, BOX, 100, 1)]
