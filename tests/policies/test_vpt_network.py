"""Whole VPT agents: keys of the published models, the same outputs as a plain rebuild, and runs that learn further."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from slipstream.agents.trained import TrainedAgent
from slipstream.api import train
from slipstream.cli import main
from slipstream.contracts import ObsField, ObsSpec
from slipstream.errors import CheckpointError, ConfigError
from slipstream.policies.convert_agent import VptAgentShape, agent_keys, agent_params, vpt_agent_shape
from slipstream.policies.convert_weights import VptShape
from slipstream.policies.design import Design
from slipstream.policies.torch_policy import ActorCritic
from slipstream.policies.vpt_network import VptNetwork
from slipstream.stages.convert import convert

IMAGE = VptShape(widths=(4, 6, 8), blocks=2, channels=3, side=16, dense=10, features=16)
SMALL = VptAgentShape(IMAGE, layers=2, heads=4, memory=5, ratio=2, buttons=7, camera=5)
PUBLISHED = VptShape(widths=(128, 256, 256), dense=256, features=2048)
TEMPERATURE = 2.0
"""The temperature of the tests."""


def random_agent(shape: VptAgentShape = SMALL) -> dict[str, Tensor]:
    """The state dict of an agent with random weights."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for key, size in agent_keys(shape).items():
        drawn = torch.randn(size, generator=generator)
        tensors[key] = 0.4 * drawn if len(size) < 2 or key.endswith("b_nd") else 2 * drawn / math.sqrt(drawn[0].numel())
    statistics = {"running_mean": [0.6], "running_mean_sq": [2.0], "debiasing_term": 0.5}
    return tensors | {f"value_head.normalizer.{name}": torch.tensor(value) for name, value in statistics.items()}


def rebuild(tensors: dict[str, Tensor], images: Tensor, starts: list[bool], shape: VptAgentShape) -> tuple[Any, ...]:
    """Log-probabilities of buttons and camera, and values, of a sequence of frames of one lane, in double precision."""
    state = {key.removeprefix("net."): tensor.double() for key, tensor in tensors.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"])

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def unit(x: Tensor, name: str) -> Tensor:
        return linear(norm(x, f"{name}.norm"), f"{name}.layer").relu()

    def group(x: Tensor, name: str) -> Tensor:
        return functional.group_norm(x, 1, state[f"{name}.weight"], state[f"{name}.bias"])

    def conv(x: Tensor, name: str) -> Tensor:
        x = group(x, f"{name}.norm") if f"{name}.norm.weight" in state else x
        bias = state.get(f"{name}.layer.bias")
        return functional.conv2d(x, state[f"{name}.layer.weight"], bias, padding=1).relu()

    x = images.double().permute(0, 3, 1, 2) / 255
    for number in range(len(shape.image.widths)):
        stack = f"img_process.cnn.stacks.{number}"
        x = group(functional.max_pool2d(conv(x, f"{stack}.firstconv"), 3, 2, 1), f"{stack}.n")
        for block in range(shape.image.blocks):
            x = x + conv(conv(x, f"{stack}.blocks.{block}.conv0"), f"{stack}.blocks.{block}.conv1")
    x = unit(unit(x.flatten(1), "img_process.cnn.dense"), "img_process.linear")  # [steps, units]

    steps, episode = len(x), np.cumsum(starts)
    distance = np.arange(steps)[:, None] - np.arange(steps)
    allowed = (distance >= 0) & (distance < shape.memory) & (episode[:, None] == episode)
    lags = torch.from_numpy(distance.clip(0, shape.memory - 1))
    for number in range(shape.layers):
        block = f"recurrent_layer.blocks.{number}"
        layer = f"{block}.r.orc_block"
        x = norm(x, f"{block}.pre_r_ln")
        q, k, v = (linear(x, f"{layer}.{name}_layer").view(steps, shape.heads, -1) for name in "qkv")
        mixed = linear(x, f"{layer}.r_layer").view(steps, shape.heads, -1)
        bias = torch.einsum("thn,nts->hts", mixed, state[f"{layer}.b_nd"][:, lags])
        logits = torch.einsum("the,she->hts", q, k) / q.shape[-1] + bias
        weights = logits.masked_fill(~torch.from_numpy(allowed), -torch.inf).softmax(-1)
        x = x + linear(torch.einsum("hts,she->the", weights, v).flatten(1), f"{layer}.proj_layer")
        x = x + linear(unit(x, f"{block}.mlp0"), f"{block}.mlp1.layer")
    x = norm(unit(x.relu(), "lastlayer"), "final_ln")
    heads = [
        (linear(x, f"pi_head.{name}.linear_layer") / TEMPERATURE).log_softmax(-1) for name in ("buttons", "camera")
    ]
    scaled = [state[f"value_head.normalizer.{name}"] for name in ("running_mean", "running_mean_sq", "debiasing_term")]
    mean, square = scaled[0] / scaled[2], scaled[1] / scaled[2]
    return *heads, linear(x, "value_head.linear")[:, 0] * (square - mean**2).sqrt() + mean


def log_probs(design: Design, outputs: Any) -> list[Any]:
    """The log-probabilities of both parts."""
    parts = torch.split(torch.as_tensor(outputs), list(design.action.sizes), -1)
    return [part.log_softmax(-1) for part in parts]


def images(steps: int, side: int) -> Tensor:
    """Random frames [steps, side, side, 3]."""
    return torch.randint(0, 256, (steps, side, side, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def check_parity(tensors: dict[str, Tensor], shape: VptAgentShape, steps: int, atol: float) -> None:
    """Compare acting step by step and a sequence with resets to the rebuild."""
    design = shape.design()
    params = agent_params(design, tensors, TEMPERATURE)
    frames, starts = images(steps, shape.image.side), [step in (0, steps // 2) for step in range(steps)]
    *expected, values = rebuild(tensors, frames, starts, shape)
    agent, rows = TrainedAgent("agent", design, params), frames.reshape(steps, -1).numpy()
    assert rows.shape[1] == design.obs.width
    states = np.zeros((1, design.state_size), np.float32)
    for step in range(steps):
        if starts[step]:
            states[:] = 0
        out = np.zeros((1, design.outputs), np.float32)
        agent.acting.outputs(np.arange(1), rows[step : step + 1], states, out)
        for found, wanted in zip(log_probs(design, out), expected, strict=True):
            np.testing.assert_allclose(found[0], wanted[step], atol=atol)
    policy = ActorCritic(design)
    weights, mean, scale = design.split_params_and_stats(params)
    policy.load_state_dict({name: torch.from_numpy(a) for name, a in design.weights.named(weights).items()})
    with torch.no_grad():
        begins = torch.tensor(starts)[:, None].to(torch.uint8)
        noise = torch.ones(1, design.state_size)  # the first step begins an episode, so it has no effect
        whole = policy(torch.from_numpy(rows), torch.from_numpy(mean), torch.from_numpy(scale), noise, begins)
    for found, wanted in zip(log_probs(design, whole.outputs), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=atol)
    np.testing.assert_allclose(whole.value, values, rtol=1e-4, atol=atol)
    np.testing.assert_allclose(whole.state, states, atol=atol)


def test_small_agents_equal_a_plain_rebuild() -> None:
    """Step by step and as a sequence, beyond the memory and across episodes, the outputs are those of the rebuild."""
    check_parity(random_agent(), SMALL, steps=16, atol=2e-4)


@pytest.mark.slow
def test_published_sizes_equal_a_plain_rebuild() -> None:
    """The same holds for the sizes of the smallest published model."""
    shape = VptAgentShape(VptShape())
    check_parity(random_agent(shape), shape, steps=2, atol=2e-4)


def test_the_keys_are_those_of_the_published_models() -> None:
    """The doubled model has 134 tensors and 248.5 million parameters; shapes of the single one are as published."""
    double = agent_keys(VptAgentShape(PUBLISHED, heads=16))
    assert len(double) == 134
    assert sum(int(np.prod(size)) for size in double.values()) == pytest.approx(248.5e6, rel=1e-3)
    single = agent_keys(VptAgentShape(VptShape()))
    layer = "net.recurrent_layer.blocks.3."
    assert single[f"{layer}mlp0.layer.weight"] == (4096, 1024) and f"{layer}mlp1.layer.bias" in single
    assert single[f"{layer}r.orc_block.b_nd"] == (10, 128) and single[f"{layer}r.orc_block.r_layer.weight"] == (
        80,
        1024,
    )
    assert f"{layer}r.orc_block.k_layer.bias" not in single and f"{layer}r.orc_block.q_layer.bias" in single
    assert single["pi_head.buttons.linear_layer.weight"] == (8641, 1024) and "net.lastlayer.layer.bias" not in single


def test_the_sizes_are_inferred() -> None:
    """The sizes of an agent follow from its tensors."""
    assert vpt_agent_shape(random_agent()) == SMALL


class Minecraft(gymnasium.Env[Any, Any]):
    """An env with the spaces of a small agent."""

    observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = spaces.MultiDiscrete([7, 5])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed)
        self._left = 6
        return self.np_random.integers(0, 256, (16, 16, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward the first button."""
        self._left -= 1
        seen = self.np_random.integers(0, 256, (16, 16, 3), np.uint8)
        return seen, float(action[0] == 0), self._left == 0, False, {}


@pytest.mark.slow
def test_a_converted_agent_plays_and_learns_further(tmp_path: Path) -> None:
    """A weights file becomes a run, which acts with memory and is the start of training."""
    file = tmp_path / "small.weights"
    torch.save(random_agent(), file)
    facts = convert("vpt-agent", file, tmp_path / "agent")
    assert (facts["counts"]["matched"], facts["counts"]["unused"]) == (len(agent_keys(SMALL)), 0)
    agent = TrainedAgent.from_run(tmp_path / "agent")
    assert np.array_equal(agent.params_and_stats, agent_params(SMALL.design(), random_agent(), 2.0))
    run = train(
        Minecraft, run=tmp_path / "run", start=f"run:{tmp_path / 'agent'}", steps=64, plan__envs=2,
        plan__collector="local", plan__threads=1, ppo__rollout=16, ppo__minibatch=32, ppo__value_warmup=0,
        policy__sequence=8,
    )  # fmt: skip
    after = run.agent()
    assert after.design.policy.network == "vpt" and after.design.state_size == 2 * 2 * 4 * 16 + 1
    assert not np.array_equal(after.params_and_stats, agent.params_and_stats)


@pytest.mark.slow
def test_an_agent_with_published_spaces_plays_minerl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_python: str
) -> None:
    """The commands that `convert` prints evaluate a small agent and train it further in a game of another Python."""
    monkeypatch.chdir(tmp_path)
    image = VptShape(widths=(2, 2, 2), blocks=1, channels=3, side=128, dense=4, features=8)
    torch.save(random_agent(VptAgentShape(image, layers=1, heads=2, memory=3, ratio=1)), "small.weights")

    def call(*words: str) -> str:
        result = CliRunner().invoke(main, list(words), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    printed = call("convert", "vpt-agent", "small.weights", "--out", "agent")
    found = re.findall(r": slipstream (.*)", printed.replace("ID", "MineRLBasaltFindCave-v0"))
    evaluate, further = (command.replace("PATH", other_python).split() for command in found)
    assert json.loads(call(*evaluate, "--games", "1", "--json").splitlines()[-1])["mean_length"] == 20
    tiny = "--preset smoke --steps 16 --set plan.envs=1 --set ppo.rollout=8 --set ppo.minibatch=8 --set ppo.epochs=1"
    tiny += " --set ppo.value_warmup=0"
    quiet = "--set plan.collector=local --set every.evaluate=0 --set evaluation.final_games=1 --set evaluation.envs=1"
    call(*further, *tiny.split(), *quiet.split(), "--set", "policy.sequence=8", "--run", "further")
    before, after = (TrainedAgent.from_run(tmp_path / name) for name in ("agent", "further"))
    assert not np.array_equal(before.params_and_stats, after.params_and_stats)


def test_what_is_refused(tmp_path: Path) -> None:
    """Missing tensors, a temperature of a trunk, and observations that are not one square image are refused."""
    tensors = random_agent()
    del tensors["net.final_ln.bias"]
    torch.save(tensors, tmp_path / "part.weights")
    with pytest.raises(CheckpointError, match=r"net\.final_ln\.bias"):
        convert("vpt-agent", tmp_path / "part.weights", tmp_path / "agent")
    assert not (tmp_path / "agent").exists()
    with pytest.raises(ConfigError, match="--temperature"):
        convert("vpt", tmp_path / "part.weights", tmp_path / "agent", temperature=1.0)
    for fields in ((ObsField("", "image", (16, 12, 3)),), (ObsField("", "vector", (3,)),)):
        with pytest.raises(ConfigError, match="one square image"):
            VptNetwork(ObsSpec(fields))
