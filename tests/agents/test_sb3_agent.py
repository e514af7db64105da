"""Models of Stable-Baselines3 as agents: the same actions as SB3 gives, permission, statistics and clear refusals."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from slipstream.agents.sb3_agent import SB3Agent, load_sb3
from slipstream.agents.specs import load_agent
from slipstream.contracts import EnvSpec
from slipstream.envs.adapters.action_spaces import action_spec
from slipstream.envs.adapters.observation_spaces import list_encoder, obs_spec
from slipstream.envs.registry import EnvChoice
from slipstream.errors import AgentFault, CheckpointError, ConfigError
from slipstream.policies.sb3_model import statistics_file
from slipstream.system.rng import make_streams

BOX = spaces.Box(-1, 1, (4,), np.float32)
NARROW = spaces.Box(np.float32([-2, 0]), np.float32([1, 3]))
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
MANY = spaces.Dict({"near": BOX, "place": spaces.Discrete(5), "seen": IMAGE})


def sb3(name: str) -> Any:
    """An algorithm of Stable-Baselines3 or sb3-contrib, imported when it is used."""
    contrib = name in ("MaskablePPO", "RecurrentPPO")
    return getattr(import_module("sb3_contrib" if contrib else "stable_baselines3"), name)


class Blank(gym.Env[Any, Any]):
    """An environment with the given spaces, in which nothing happens."""

    def __init__(self, obs: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = obs, action

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode with a random observation."""
        return self.observation_space.sample(), {}

    def step(self, _: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Give a random observation."""
        return self.observation_space.sample(), 1.0, False, False, {}


def spec_of(obs: spaces.Space[Any], action: spaces.Space[Any], masked: bool = False) -> EnvSpec:
    """The spec of an environment with these spaces."""
    return EnvSpec("blank", obs_spec(obs, "blank"), action_spec(action, "blank", masked))


def rows_of(space: spaces.Space[Any], count: int, seed: int = 0) -> tuple[list[Any], np.ndarray]:
    """Random observations, and the same as rows."""
    space.seed(seed)
    drawn = [space.sample() for _ in range(count)]
    spec = obs_spec(space, "")
    rows = np.zeros((count, spec.width), spec.dtype)
    list_encoder(space)(drawn, rows)
    return drawn, rows


def batch_of(drawn: list[Any]) -> Any:
    """A batch of observations, as SB3's `predict` takes it."""
    if isinstance(drawn[0], dict):
        return {key: np.stack([one[key] for one in drawn]) for key in drawn[0]}
    return np.stack(drawn)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., tuple[Any, str]]:
    """Make a model with random weights, and save it."""

    def make(kind: str, policy: str, obs: spaces.Space[Any], action: spaces.Space[Any], **more: Any) -> tuple[Any, str]:
        model = sb3(kind)(policy, Blank(obs, action), seed=3, device="cpu", **more)
        with torch.no_grad():
            for name, weights in model.policy.named_parameters():
                if name.startswith(("action_net", "actor.mu", "log_std")):  # their initial values are nearly 0
                    weights.add_(torch.randn_like(weights) * 0.5)
                elif name.startswith("lstm"):  # so that the state matters
                    weights.mul_(6)
        model.save(tmp_path / "model.zip")
        return model, str(tmp_path / "model.zip")

    return make


@pytest.mark.parametrize(
    ("kind", "policy", "obs", "action", "more"),
    [
        ("PPO", "MlpPolicy", BOX, spaces.Discrete(5), {}),
        ("A2C", "MlpPolicy", BOX, spaces.MultiDiscrete([3, 2, 4]), {}),
        ("PPO", "MlpPolicy", spaces.Discrete(6), spaces.MultiBinary(3), {}),
        ("PPO", "MlpPolicy", BOX, NARROW, {"learning_rate": lambda left: left * 1e-3}),
        ("PPO", "MlpPolicy", BOX, NARROW, {"use_sde": True, "policy_kwargs": {"squash_output": True}}),
        ("PPO", "CnnPolicy", IMAGE, spaces.Discrete(4), {}),
        ("PPO", "MultiInputPolicy", MANY, spaces.Discrete(4), {}),
        ("SAC", "MlpPolicy", BOX, NARROW, {"buffer_size": 10}),
        ("MaskablePPO", "MlpPolicy", BOX, spaces.Discrete(5), {}),
    ],
)
def test_actions_are_those_of_sb3(
    kind: str, policy: str, obs: Any, action: Any, more: Any, saved: Callable[..., tuple[Any, str]]
) -> None:
    """The agent acts as `model.predict(deterministic=True)`, for every kind of policy, observation and action."""
    model, file = saved(kind, policy, obs, action, **more)
    agent = load_sb3(file, spec_of(obs, action), trust=True)
    drawn, rows = rows_of(obs, 50)
    batch = batch_of(drawn)
    expected, _ = model.predict(batch.transpose(0, 3, 1, 2) if obs is IMAGE else batch, deterministic=True)
    if isinstance(action, spaces.Box):
        assert np.allclose(agent.act(rows), expected, atol=1e-5)
    else:
        assert np.array_equal(agent.act(rows), expected)


@pytest.mark.parametrize("action", [spaces.Discrete(5), NARROW], ids=["discrete", "continuous"])
def test_sampled_actions_have_the_distribution_of_sb3(action: Any, saved: Callable[..., tuple[Any, str]]) -> None:
    """Frequencies, or mean and deviation, equal those of SB3, and the same streams give the same actions."""
    model, file = saved("PPO", "MlpPolicy", BOX, action)
    agent = load_sb3(file, spec_of(BOX, action), trust=True, sampled=True)
    rows = np.tile(np.float32([[0.3, -0.2, 0.9, 0.1]]), (4000, 1))
    out = [np.zeros((4000, agent.action.parts), agent.action.dtype) for _ in range(2)]
    for actions in out:
        agent.act_into(rows, np.zeros((4000, 0), np.uint8), make_streams(5, "test", 0, 4000), actions)
    assert np.array_equal(*out)
    torch.manual_seed(0)
    expected, _ = model.predict(rows, deterministic=False)
    if isinstance(action, spaces.Box):
        assert np.allclose(out[0].mean(axis=0), expected.mean(axis=0), atol=0.06)
        assert np.allclose(out[0].std(axis=0), expected.std(axis=0), atol=0.06)
    else:
        both = (np.bincount(np.reshape(one, -1), minlength=5) / 4000 for one in (out[0], expected))
        assert np.allclose(*both, atol=0.04)


def test_masked_options_are_not_chosen(saved: Callable[..., tuple[Any, str]]) -> None:
    """The env's action mask applies to models that know no masks."""
    _, file = saved("PPO", "MlpPolicy", BOX, spaces.Discrete(5))
    for sampled in (False, True):
        agent = load_sb3(file, spec_of(BOX, spaces.Discrete(5), masked=True), trust=True, sampled=sampled)
        mask = np.random.default_rng(0).integers(0, 2, (200, 5)).astype(np.uint8)
        mask[:, 2] = 1
        actions = agent.act(rows_of(BOX, 200)[1], mask)
        assert mask[np.arange(200), actions].all()


def test_recurrent_states_are_kept_by_row(saved: Callable[..., tuple[Any, str]]) -> None:
    """Episodes that begin at different steps, acted for in any groups of rows, give the actions of RecurrentPPO."""
    more = {"policy_kwargs": {"lstm_hidden_size": 12, "n_lstm_layers": 2, "net_arch": [16]}}
    model, file = saved("RecurrentPPO", "MlpLstmPolicy", BOX, spaces.Discrete(5), **more)
    agent, split = (load_sb3(file, spec_of(BOX, spaces.Discrete(5)), trust=True) for _ in range(2))
    assert agent.memory(3).shape == (3, 49)
    rng, count = np.random.default_rng(1), 6
    states, started, memory = None, np.ones(count, bool), np.zeros((count, 49), np.float32)
    mask, streams = np.zeros((count, 0), np.uint8), make_streams(0, "test", 0, count)
    changed = 0
    for _ in range(30):
        obs = rng.standard_normal((count, 4)).astype(np.float32)
        expected, states = model.predict(obs, states, started, deterministic=True)
        assert np.array_equal(agent.act(obs), expected)
        out = np.zeros((count, 1), np.int32)
        for rows in (np.array([4, 0, 5]), np.array([1, 2, 3])):
            split.act_rows(rows, obs, mask, streams, out, memory)
        assert np.array_equal(out[:, 0], expected)
        changed += int((model.predict(obs, None, started, deterministic=True)[0] != expected).sum())
        started = rng.random(count) < 0.2
        agent.begin(np.flatnonzero(started))
        memory[started] = 0
    assert changed  # the state matters


@pytest.mark.parametrize("name", ["model_vecnormalize.pkl", "vecnormalize.pkl", "model/vecnormalize.pkl"])
def test_vecnormalize_statistics_are_applied(name: str, tmp_path: Path, saved: Callable[..., tuple[Any, str]]) -> None:
    """Observations are normalised and clipped by the statistics beside the model, as VecNormalize does."""
    model, file = saved("PPO", "MlpPolicy", BOX, NARROW)
    vec_env = import_module("stable_baselines3.common.vec_env")
    env = vec_env.VecNormalize(vec_env.DummyVecEnv([lambda: Blank(BOX, NARROW)]), clip_obs=2.0)
    env.reset()
    for _ in range(20):
        env.step(np.zeros((1, 2), np.float32))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    env.save(str(tmp_path / name))
    agent = load_sb3(file, spec_of(BOX, NARROW), trust=True)
    obs = 3 * rows_of(BOX, 50)[1]
    expected, _ = model.predict(env.normalize_obs(obs), deterministic=True)
    assert np.allclose(agent.act(obs), expected, atol=1e-6)
    assert not np.allclose(model.predict(obs, deterministic=True)[0], expected, atol=1e-2)


def test_statistics_of_a_checkpoint_callback(tmp_path: Path) -> None:
    """The names that CheckpointCallback gives are found, before those that any model of the folder would use."""
    assert statistics_file(tmp_path / "rl_model_800_steps.zip") is None
    for name in ("vecnormalize.pkl", "rl_model_vecnormalize_800_steps.pkl"):
        (tmp_path / name).touch()
        assert statistics_file(tmp_path / "rl_model_800_steps.zip") == tmp_path / name


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("where", ["data", "statistics"])
def test_nothing_is_opened_without_trust(where: str, tmp_path: Path, saved: Callable[..., tuple[Any, str]]) -> None:
    """Code in a model or in its statistics does not run, and the error names the flag to add."""
    _, file = saved("PPO", "MlpPolicy", BOX, spaces.Discrete(5))
    sprung = tmp_path / "sprung"
    if where == "statistics":
        (tmp_path / "model_vecnormalize.pkl").write_bytes(pickle.dumps(Trap(sprung)))
    else:
        with zipfile.ZipFile(file) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        data = json.loads(parts["data"])
        data["policy_kwargs"] = {
            ":type:": "dict",
            ":serialized:": base64.b64encode(pickle.dumps(Trap(sprung))).decode(),
        }
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in (parts | {"data": json.dumps(data)}).items():
                archive.writestr(name, content)
    spec = spec_of(BOX, spaces.Discrete(5))
    with pytest.raises(ConfigError) as caught:
        load_agent(f"sb3:{file}", spec, EnvChoice("blank"))
    assert (
        "can execute code" in caught.value.message and "--trust" in caught.value.hint and file in caught.value.message
    )
    assert (where == "statistics") == ("model_vecnormalize.pkl" in caught.value.message)
    assert not sprung.exists()
    with pytest.raises((CheckpointError, AttributeError)):
        load_agent(f"sb3:{file}", spec, EnvChoice("blank", trust=True))
    assert sprung.exists()


def test_schedules_and_buffers_are_not_unpickled(tmp_path: Path, saved: Callable[..., tuple[Any, str]]) -> None:
    """Only what acting needs is unpickled, so entries that cannot be read here do no harm."""
    _, file = saved("PPO", "MlpPolicy", BOX, spaces.Discrete(5))
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(parts["data"])
    for name in ("lr_schedule", "clip_range", "ep_info_buffer"):
        data[name] = {":type:": "x", ":serialized:": base64.b64encode(b"not a pickle").decode()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in (parts | {"data": json.dumps(data)}).items():
            archive.writestr(name, content)
    assert isinstance(load_sb3(file, spec_of(BOX, spaces.Discrete(5)), trust=True), SB3Agent)


@pytest.mark.parametrize(
    ("obs", "action", "found"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(5), ("observations Box", "3 numbers")),
        (BOX, spaces.Discrete(4), ("actions Discrete(5)", "discrete actions of 4")),
        (BOX, NARROW, ("actions Discrete(5)", "2 continuous actions from [-2.0, 0.0] to [1.0, 3.0]")),
        (spaces.Dict({"a": BOX}), spaces.Discrete(5), ("observations Box", "`a`: 4 numbers")),
    ],
)
def test_other_spaces_are_refused(
    obs: Any, action: Any, found: tuple[str, ...], saved: Callable[..., tuple[Any, str]]
) -> None:
    """An env with other spaces than the model's is an error that names both."""
    _, file = saved("PPO", "MlpPolicy", BOX, spaces.Discrete(5))
    with pytest.raises(CheckpointError) as caught:
        load_sb3(file, spec_of(obs, action), trust=True)
    assert all(text in caught.value.message for text in found), caught.value.message


def test_files_that_are_no_models(tmp_path: Path, saved: Callable[..., tuple[Any, str]]) -> None:
    """A missing file, another file, another algorithm and statistics of something else are errors with a hint."""
    spec = spec_of(BOX, spaces.Discrete(5))

    def refusal(file: Any) -> str:
        with pytest.raises(CheckpointError) as caught:
            load_sb3(str(file), spec, trust=True)
        assert caught.value.hint
        return caught.value.message

    assert "no such file" in refusal(tmp_path / "nothing.zip")
    assert "it is a folder" in refusal(tmp_path)
    (tmp_path / "text.zip").write_text("hello")
    assert "is not a model of Stable-Baselines3" in refusal(tmp_path / "text.zip")
    _, file = saved("DQN", "MlpPolicy", BOX, spaces.Discrete(5), buffer_size=10)
    assert "a model of DQN" in refusal(file)
    _, file = saved("PPO", "MlpPolicy", BOX, spaces.Discrete(5))
    (tmp_path / "vecnormalize.pkl").write_bytes(pickle.dumps([1]))
    assert "is a list, not the statistics" in refusal(file)
    (tmp_path / "vecnormalize.pkl").write_bytes(b"?")
    assert "cannot be read" in refusal(file)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, saved: Callable[..., tuple[Any, str]]) -> None:
    """The error has the pip command of the package that a model needs."""
    _, file = saved("RecurrentPPO", "MlpLstmPolicy", BOX, spaces.Discrete(5))
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    with pytest.raises(ConfigError) as caught:
        load_sb3(file, spec_of(BOX, spaces.Discrete(5)), trust=True)
    assert "sb3-contrib" in caught.value.message and caught.value.hint == 'pip install "slipstream[sb3]"'


def test_weights_that_are_not_finite(saved: Callable[..., tuple[Any, str]]) -> None:
    """A model that gives NaN is a fault with the step and the observation, not an action."""
    model, file = saved("PPO", "MlpPolicy", BOX, spaces.Discrete(5))
    with torch.no_grad():
        model.policy.mlp_extractor.policy_net[0].bias.fill_(float("nan"))
    model.save(file)
    agent = load_sb3(file, spec_of(BOX, spaces.Discrete(5)), trust=True)
    with pytest.raises(AgentFault, match=r"`sb3:.*invalid values: \(step 0; observation: array"):
        agent.act(rows_of(BOX, 2)[1])
