"""The examples: equal to Gymnasium's envs, equal compiled and as plain Python, and short."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from slipstream.contracts import empty_rows
from slipstream.envs.native import examples
from slipstream.envs.native.game import Game
from slipstream.stages.check_game import GPUVector, check_game, random_actions

NAMES = ("acrobot", "cartpole", "maze", "mountain_car", "pendulum", "pong", "tag")
STATES = 10_000
PI = float(np.pi)


def game_of(name: str) -> Game:
    """The game of an example."""
    game: Game = importlib.import_module(f"slipstream.envs.native.examples.{name}").game
    return game


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "original", "low", "high", "draw"),
    [
        ("cartpole", "CartPole-v1", (-2.5, -3, -0.25, -3), (2.5, 3, 0.25, 3), lambda rng: rng.integers(0, 2, STATES)),
        ("mountain_car", "MountainCar-v0", (-1.2, -0.07), (0.6, 0.07), lambda rng: rng.integers(0, 3, STATES)),
        ("pendulum", "Pendulum-v1", (-10, -8), (10, 8), lambda rng: rng.uniform(-2, 2, (STATES, 1))),
        ("acrobot", "Acrobot-v1", (-PI, -PI, -12, -28), (PI, PI, 12, 28), lambda rng: rng.integers(0, 3, STATES)),
    ],
)
def test_a_step_equals_gymnasiums(
    name: str, original: str, low: Any, high: Any, draw: Callable[[np.random.Generator], Any]
) -> None:
    """From 10,000 random states, observations and rewards are equal to 1e-6 (relative above 1), ends are the same."""
    rng = np.random.default_rng(0)
    vector = game_of(name).vector(STATES)
    out = empty_rows(vector.spec, STATES)
    vector.reset(out)
    vector.state[:] = rng.uniform(low, high, vector.state.shape)
    states, actions = vector.state.astype(np.float64), draw(rng).astype(vector.spec.action.dtype)
    env: Any = gymnasium.make(original).unwrapped
    env.reset(seed=0)
    seen, rewards, ends = [], [], []
    for state, action in zip(states, actions, strict=True):
        env.state, env.steps_beyond_terminated = state.copy(), None
        obs, reward, terminated, _, _ = env.step(action if action.ndim else int(action))
        seen.append(obs)
        rewards.append(reward)
        ends.append(terminated)
    vector.step(actions.reshape(STATES, -1), out)
    found = np.where(out.terminated[:, None] > 0, out.final_obs, out.obs)
    np.testing.assert_allclose(found, np.array(seen), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(out.reward, np.array(rewards), rtol=1e-6, atol=1e-6)
    assert (out.terminated == ends).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compiled_equals_plain_python(name: str) -> None:
    """A thousand random decisions give the same bits, and games end."""
    report = check_game(game_of(name), 1_000 if name == "cartpole" else 4_000)
    assert not report.problems, report.problems
    assert report.episodes > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("name", ["cartpole", "acrobot", "pong", "tag"])
def test_a_gpu_equals_plain_python(name: str) -> None:
    """`check-env` plays on the GPU too and finds the same bits."""
    game = game_of(name)
    vector = GPUVector(game.vector(8, seed=3))
    rows = empty_rows(vector.spec, 8)
    vector.reset(rows)
    before = vector.state.copy()
    vector.step(random_actions(vector.spec, rows.mask, np.random.default_rng(0)), rows)
    assert not np.array_equal(before, vector.state)
    assert not check_game(game, 800).problems


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_short(name: str) -> None:
    """An example is read in a minute: at most 80 lines of code."""
    text = (Path(examples.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 80
