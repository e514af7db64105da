"""The tiny games: policies with memory, images or several observation fields learn the games that need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slipstream.api import Run, evaluate

SETTINGS: dict[str, Any] = {
    "plan__collector": "local", "plan__envs": 32, "plan__threads": 1, "ppo__rollout": 32, "ppo__minibatch": 256,
    "ppo__learning_rate": 3e-3, "ppo__gamma": 0.95, "policy__hidden": [32], "policy__memory_size": 32,
    "policy__features": 64, "every__gradients": 0, "every__checkpoint": 0, "every__log": 0,
}  # fmt: skip


AT_ONCE = {"ppo__gamma": 0.0, "ppo__gae_lambda": 0.0, "ppo__learning_rate": 1e-3}
"""A discount of 0, because every action is rewarded immediately."""


def learn(quick: Callable[..., Run], game: str, steps: int, games: int = 200, **more: Any) -> float:
    """Train and evaluate greedily; return the mean return."""
    run = quick(game, steps=steps, **(SETTINGS | more))
    return float(evaluate(f"run:{run.path}", game, games=games, seed=1)["mean_return"])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("game", "memory"), [("recall", "gru"), ("recall", "lstm"), ("recall:masked", "lstm")])
def test_memory_solves_the_delayed_cue(game: str, memory: str, seed: int, quick: Callable[..., Run]) -> None:
    """With memory the cue is remembered over eight blank steps: the optimum is 1."""
    assert learn(quick, game, 120_000, policy__memory=memory, seed=seed) >= 0.95


def test_without_memory_it_is_a_coin(quick: Callable[..., Run]) -> None:
    """A feed-forward policy is no better than random."""
    assert abs(learn(quick, "recall", 120_000, games=1000)) <= 0.12


@pytest.mark.parametrize("image", ["nature", "impala"])
def test_images_are_read(image: str, quick: Callable[..., Run]) -> None:
    """Both convolutional encoders name the bright quadrant: the optimum is 8."""
    assert learn(quick, "pixels", 12_000, games=50, policy__image=image, **AT_ONCE) >= 7.2


def test_image_vector_and_tokens_are_read_together(quick: Callable[..., Run]) -> None:
    """Each field gives a third of the reward; two agents with masks need all three for more than 6 of 8."""
    assert learn(quick, "mixed:team", 40_000, games=50, **AT_ONCE) >= 6.8


@pytest.mark.parametrize(("memory", "steps"), [("none", 30_000), ("lstm", 75_000)])
def test_continuous_actions_from_several_senses(memory: str, steps: int, quick: Callable[..., Run]) -> None:
    """Squashed actions approach the targets given by three fields, with and without memory."""
    score = learn(
        quick, "mixed:continuous", steps, games=50, policy__memory=memory, policy__squash=True, policy__log_std=-0.5,
        ppo__entropy_coef=0.0, **AT_ONCE,
    )  # fmt: skip
    assert score >= 6.0
