"""Converted Stable-Baselines3 policies act as the originals; what cannot be represented exactly is refused."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from slipstream.agents.sb3_agent import SB3Agent
from slipstream.agents.trained import TrainedAgent
from slipstream.contracts import ActionSpec, EnvSpec, vector_obs
from slipstream.errors import ConfigError
from slipstream.policies.convert_sb3 import ConvertedPolicy, convert_policy
from slipstream.policies.sb3_model import read_model

BOX = spaces.Box(-5, 5, (6,), np.float32)
ACTIONS: dict[str, tuple[spaces.Space[Any], ActionSpec]] = {
    "discrete": (spaces.Discrete(5), ActionSpec("discrete", (5,))),
    "multi": (spaces.MultiDiscrete([3, 2, 4]), ActionSpec("multi_discrete", (3, 2, 4))),
    "switches": (spaces.MultiDiscrete([2, 3]), ActionSpec("multi_discrete", (2, 3), binary=(True, False))),
    "binary": (spaces.MultiBinary(3), ActionSpec("multi_discrete", (2, 2, 2), binary=(True,) * 3)),
    "bounded": (
        spaces.Box(np.float32([-2, 0]), np.float32([1, 3])),
        ActionSpec("continuous", low=(-2.0, 0.0), high=(1.0, 3.0)),
    ),
}
LSTM = {"lstm_hidden_size": 20, "n_lstm_layers": 2}
OBS = 10_000


def sb3(name: str) -> Any:
    """An algorithm of Stable-Baselines3 or sb3-contrib, imported when it is used."""
    contrib = name in ("MaskablePPO", "RecurrentPPO")
    return getattr(import_module("sb3_contrib" if contrib else "stable_baselines3"), name)


class Blank(gym.Env[Any, Any]):
    """An environment with the given action space, in which nothing happens."""

    observation_space = BOX

    def __init__(self, action: spaces.Space[Any]) -> None:
        self.action_space = action

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode with a random observation."""
        return self.observation_space.sample(), {}

    def step(self, _: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Give a random observation and reward."""
        return self.observation_space.sample(), float(np.random.default_rng(0).random()), False, False, {}


def save(folder: Path, kind: str, action: str, statistics: dict[str, Any] | None = None, **more: Any) -> Any:
    """Save a model with random weights, and VecNormalize statistics if requested."""
    policy = "MlpLstmPolicy" if kind == "RecurrentPPO" else "MlpPolicy"
    space = ACTIONS[action][0]
    sac = {"buffer_size": 10} if kind == "SAC" else {}
    model = sb3(kind)(policy, Blank(space), seed=1, device="cpu", policy_kwargs=more, **sac)
    with torch.no_grad():
        for weights in model.policy.parameters():
            weights.add_(0.3 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(weights.numel())))
    model.num_timesteps = 4321
    model.save(folder / "model.zip")
    if statistics is not None:
        vec_env = import_module("stable_baselines3.common.vec_env")
        env = vec_env.VecNormalize(vec_env.DummyVecEnv([lambda: Blank(space)]), **statistics)
        env.reset()
        for _ in range(50):
            env.step(np.stack([space.sample()]))
        env.save(str(folder / "vecnormalize.pkl"))
    return model


def convert(folder: Path, action: str) -> tuple[ConvertedPolicy, TrainedAgent, SB3Agent]:
    """Convert the saved model; return it as an agent, beside the original."""
    spec = EnvSpec("blank", vector_obs(6), ACTIONS[action][1])
    model = read_model(folder / "model.zip", trust=True)
    converted = convert_policy(model, spec.obs, spec.action)
    agent = TrainedAgent("converted", converted.design, converted.params_and_stats)
    return converted, agent, SB3Agent("original", model, spec, sampled=False)


def compare(agent: TrainedAgent, original: SB3Agent, steps: int = 1) -> None:
    """Discrete actions are all the same, continuous ones within 1e-5, on 10,000 observations."""
    rng = np.random.default_rng(3)
    seen = set()
    for _ in range(steps):
        obs = (3 * rng.standard_normal((OBS // steps, 6))).astype(np.float32)
        one, two = agent.act(obs), original.act(obs)
        seen |= {str(row) for row in two[:50].tolist()}
        if agent.action.kind == "continuous":
            assert np.abs(one - two).max() <= 1e-5
        else:
            assert np.array_equal(one, two)
    assert len(seen) > 2


@pytest.mark.parametrize(
    ("kind", "action", "more"),
    [
        *(("PPO", action, {}) for action in ACTIONS),
        ("A2C", "bounded", {"activation_fn": nn.ELU, "net_arch": [32]}),
        ("PPO", "discrete", {"activation_fn": nn.ReLU, "net_arch": []}),
        ("PPO", "bounded", {"share_features_extractor": False, "log_std_init": -1.0}),
        ("SAC", "bounded", {"net_arch": [24, 24]}),
    ],
)
@pytest.mark.parametrize("normalised", [False, True])
def test_feedforward_policies_act_the_same(
    kind: str, action: str, more: dict[str, Any], normalised: bool, tmp_path: Path
) -> None:
    """PPO, A2C and SAC with every action space, activation and depth, with and without VecNormalize."""
    save(tmp_path, kind, action, {} if normalised else None, **more)
    _, agent, original = convert(tmp_path, action)
    compare(agent, original)


@pytest.mark.parametrize(
    ("action", "more"),
    [
        ("discrete", {}),
        ("bounded", {**LSTM, "net_arch": [24]}),
        ("multi", {**LSTM, "net_arch": []}),
        ("discrete", {**LSTM, "net_arch": [], "shared_lstm": True, "enable_critic_lstm": False}),
    ],
)
def test_recurrent_policies_act_the_same(action: str, more: dict[str, Any], tmp_path: Path) -> None:
    """RecurrentPPO with its default networks, several layers, or one LSTM for policy and value, over 20 steps."""
    save(tmp_path, "RecurrentPPO", action, {}, **more)
    converted, agent, original = convert(tmp_path, action)
    assert converted.design.policy.memory == "lstm" and converted.design.policy.memory_first
    compare(agent, original, steps=20)


def test_values_and_deviations_are_the_same(tmp_path: Path) -> None:
    """The value function and the standard deviation of actions are converted too, in our scale of actions."""
    model = save(tmp_path, "PPO", "bounded")
    converted, agent, _ = convert(tmp_path, "bounded")
    obs = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
    agent.act(obs)
    expected = model.policy.predict_values(torch.from_numpy(obs)).detach().numpy()[:, 0]
    assert agent.values is not None and np.allclose(agent.values, expected, atol=1e-5)
    named = converted.design.weights.named(converted.design.split_params_and_stats(converted.params_and_stats)[0])
    assert np.allclose(np.exp(named["log_std"]) * 1.5, model.policy.log_std.detach().exp().numpy(), atol=1e-6)


def test_statistics_go_on(tmp_path: Path) -> None:
    """VecNormalize's statistics of observations and returns become the running statistics that training continues."""
    save(tmp_path, "PPO", "discrete", {"gamma": 0.9})
    converted, _, original = convert(tmp_path, "discrete")
    stats = original.model.statistics
    assert stats is not None and stats.count > 50
    assert np.allclose(converted.learner["obs.mean"], stats.mean[""])
    assert np.allclose(converted.learner["obs.variance"], stats.variance[""] + stats.epsilon)
    assert converted.learner["obs.count"] == stats.count
    assert converted.learner["return.variance"] == stats.return_variance


@pytest.mark.parametrize(
    ("kind", "more", "statistics", "named"),
    [
        ("PPO", {"net_arch": {"pi": [8], "vf": [9]}}, None, "`net_arch` has different layers"),
        ("PPO", {"activation_fn": nn.SiLU}, None, "`activation_fn` = SiLU"),
        ("PPO", {}, {"clip_obs": 5.0}, "`clip_obs` = 5"),
        ("RecurrentPPO", {"enable_critic_lstm": False}, None, "`enable_critic_lstm` = False"),
        ("RecurrentPPO", {"shared_lstm": True, "enable_critic_lstm": False}, None, "`shared_lstm` = True"),
    ],
)
def test_what_cannot_be_exact_is_refused(
    kind: str, more: dict[str, Any], statistics: dict[str, Any] | None, named: str, tmp_path: Path
) -> None:
    """The error names the setting that our networks cannot represent."""
    save(tmp_path, kind, "discrete", statistics, **more)
    with pytest.raises(ConfigError) as caught:
        convert(tmp_path, "discrete")
    assert "cannot be converted exactly" in caught.value.message and named in caught.value.message


def test_state_dependent_exploration_is_refused(tmp_path: Path) -> None:
    """gSDE is not implemented here."""
    sb3("PPO")("MlpPolicy", Blank(ACTIONS["bounded"][0]), use_sde=True, device="cpu").save(tmp_path / "model.zip")
    with pytest.raises(ConfigError, match="use_sde"):
        convert(tmp_path, "bounded")
