"""Every kind of policy on every kind of game: the acting policy is the trained one, and it saves, resumes and plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.api import Run, configure, evaluate, resume
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir
from slipstream.training.build import build, choose_env

SMALL: dict[str, Any] = {
    "plan__collector": "local",
    "plan__envs": 4,
    "plan__threads": 1,
    "ppo__rollout": 16,
    "ppo__minibatch": 32,
    "ppo__epochs": 1,
    "policy__hidden": [16],
    "policy__memory_size": 12,
    "policy__sequence": 8,
    "policy__features": 16,
    "env__match_seconds": 1.0,
}
GAMES: dict[str, dict[str, Any]] = {
    "recall:masked": {},  # masks, vectors
    "pixels": {},  # an image alone
    "mixed": {},  # dict of image, vector and tokens; multi-discrete
    "mixed:continuous": {"policy__squash": True},  # dict; continuous
    "mixed:hybrid": {},  # dict; mixed actions
    "mixed:team": {"policy__layer_norm": True},  # dict, masks, multi-discrete, two agents
    "soccer": {"env__actions": "multi_discrete"},  # two agents, two sides
    "soccer:2v2": {"env__actions": "continuous", "policy__shared": False, "policy__layer_norm": True},
}


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("shared", [True, False])
def test_the_acting_policy_is_the_trained_one(game: str, memory: str, shared: bool) -> None:
    """At lag 0 the update computes the log-probabilities and values of the rollout: the ratio is 1 within 1e-5."""
    flags = {"policy__shared": shared} | SMALL | GAMES[game] | {"policy__memory": memory}
    settings = configure(game, flags=flags | {"policy__image": "impala" if shared else "nature"}).settings
    parts = build(choose_env(game, settings), settings)
    parts.publish(0)
    parts.collector.start(0, None)
    for version in range(3):
        rollout = parts.collector.collect(version)
        seen = parts.learner.engine.evaluate(parts.learner._load(rollout, 1.0))
        assert np.abs(np.exp(seen.log_prob - rollout.log_prob.reshape(-1)) - 1).max() < 1e-5
        assert np.allclose(seen.value, rollout.value[:-1].reshape(-1), atol=1e-5)
        _, row = parts.learner.update(rollout, 0)
        assert np.isfinite(row["loss/policy"]) and row["ppo/updates"] == len(rollout.log_prob.reshape(-1)) // 32
        parts.publish(version + 1)
    assert rollout.terminated.any() or rollout.truncated.any(), "episodes end inside the sequences"


@pytest.mark.parametrize(
    ("game", "more"),
    [
        ("mixed:team", {"policy__memory": "lstm"}),
        ("mixed:continuous", {"policy__memory": "gru"}),
        ("mixed:hybrid", {"policy__memory": "gru"}),
        ("recall:masked", {"policy__memory": "gru"}),
        ("soccer", {"policy__memory": "lstm", "opponent": "run"}),
        ("soccer", {"algorithm": "sac", "env__actions": "continuous", "sac__learning_starts": 100}),
        ("recall", {"algorithm": "sac", "sac__learning_starts": 100}),
    ],
)
def test_resumed_equals_uninterrupted_and_is_evaluated(
    game: str, more: dict[str, Any], quick: Callable[..., Run]
) -> None:
    """Weights, memory, optimiser, replay buffer, opponents and environments resume bit for bit, and the agent plays."""
    settings = SMALL | more | {"every__checkpoint": 0, "every__gradients": 64}
    if more.get("opponent"):
        teacher = quick(game, name="teacher", steps=200, **(settings | {"opponent": None}))
        settings["opponent"] = f"run:{teacher.path}"
    whole = quick(game, name="whole", steps=800, **settings)
    again = resume(quick(game, name="half", steps=400, **settings).path, steps=800)
    one, other = (load(find(RunDir.open(run.path))) for run in (whole, again))
    assert one.groups.keys() == other.groups.keys()
    for group, arrays in one.groups.items():
        for name, array in arrays.items():
            assert np.array_equal(array, other.groups[group][name]), f"{group}/{name} differs"
    versus = {"opponent": "random"} if game == "soccer" else {}
    shape = {key: value for key, value in settings.items() if key.startswith("env__")}
    results = [evaluate(f"run:{run.path}", game, games=4, **versus, **shape) for run in (whole, again)]
    assert results[0]["games"] == 4 and results[0]["mean_return"] == results[1]["mean_return"]
