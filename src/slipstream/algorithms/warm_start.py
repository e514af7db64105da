"""Warm start: initialises a run from a trained agent, with default settings that keep the policy near it at first."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.agents.specs import split_run
from slipstream.agents.trained import TrainedAgent
from slipstream.contracts import Array, EnvSpec
from slipstream.errors import ConfigError
from slipstream.policies.design import Design
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir

DEFAULTS: dict[str, Any] = {
    "ppo.value_warmup": 20,
    "ppo.value_warmup_explained_variance": 0.5,
    "ppo.reference_kl_coef": 0.05,
    "ppo.reference_decay": 0.99,
    "ppo.freeze_obs_stats_steps": 2_000_000,
    "sac.actor_warmup": 10_000,
    "sac.initial_temperature": 0.01,
    "evaluation.rollback_after": 3,
}
"""Settings that `start` changes, below presets and user settings: value warm-up, and a KL penalty to the start."""

FROZEN_COUNT = 1e6
"""The observation count assumed for the statistics of a frozen copy."""


def load_start(text: str, design: Design, params_and_stats: Array, spec: EnvSpec | None = None) -> dict[str, Array]:
    """Load the policy of `run:DIR` into `params_and_stats`; return its running statistics as named arrays.

    With `spec`, raise if the policy was trained where observation or action numbers have another meaning.
    """
    folder, which = split_run(text)
    path = find(RunDir.open(folder), which)
    checkpoint = load(path, groups=("policy",))
    source = TrainedAgent.from_checkpoint(text, checkpoint)
    _check(source, design, spec, RunDir(folder).observation)
    if spec is not None:
        source.check_meanings(spec)
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    weights = source.design.weights.named(source.design.split_params_and_stats(source.params_and_stats)[0])
    if source.design.value and not design.value:
        weights = _as_actor(weights, design)
    expected = {name: array.shape for name, array in design.weights.named(params).items()}
    differ = [name for name, shape in expected.items() if name not in weights or weights[name].shape != shape]
    if differ:
        raise ConfigError(
            f"{text} has another network than this run: {', '.join(differ[:4])} differ.",
            "remove your own policy.* settings: `start` uses those of the other run by default",
        )
    design.weights.flatten({name: weights[name] for name in expected}, params)
    _, mean[:], scale[:] = source.design.split_params_and_stats(source.params_and_stats)
    if not source.design.value:
        return {}
    if checkpoint.state.get("frozen"):
        return _statistics(mean, scale)
    arrays, floats = load(path, groups=("learner",)).groups["learner"], design.obs.floats
    found = {name: array for name, array in arrays.items() if name.startswith(("obs.", "return."))}
    # The clone also normalises the features of a frozen trunk; PPO keeps statistics of the observation vectors only.
    return {name: array[:floats] if name in ("obs.mean", "obs.variance") else array for name, array in found.items()}


def _statistics(mean: Array, scale: Array) -> dict[str, Array]:
    """Running statistics of a frozen copy, which has only the mean and scale that it acts with."""
    variance = 1.0 / scale.astype(np.float64) ** 2
    return {"obs.count": np.full(1, FROZEN_COUNT), "obs.mean": mean.astype(np.float64), "obs.variance": variance}


def _check(source: TrainedAgent, design: Design, spec: EnvSpec | None, builder: str) -> None:
    if (source.obs, source.action) != (design.obs, design.action):
        if spec is not None and source.meanings.get("observation") != spec.meanings.get("observation"):
            source.check_meanings(spec)
        if builder:
            raise ConfigError(
                f"{source.name} has other observation or action spaces than this env: its demos were recorded with the "
                f"observation builder {builder}.",
                f"give the same builder: --observation {builder} --import {builder.partition(':')[0]}",
            )
        raise ConfigError(
            f"{source.name} has other observation or action spaces than this env.",
            "start from a run on the same env with the same env settings",
        )
    if source.design.squashed != design.squashed:
        raise ConfigError(
            f"{source.name} and this policy differ in `policy.squash`: only one of them squashes actions by tanh.",
            f"set policy.squash={str(source.design.squashed).lower()}; for SAC, clone with --set algorithm=sac",
        )


def _as_actor(weights: dict[str, Array], design: Design) -> dict[str, Array]:
    """Convert a policy with a state-independent std to SAC's actor, which outputs it; the function is the same."""
    actor = {name: array for name, array in weights.items() if name.startswith("policy.")}
    if design.action.continuous_parts and "policy.head.weight" in actor:
        weight, bias = actor["policy.head.weight"], actor["policy.head.bias"]
        zeros = np.zeros((design.action.continuous_parts, weight.shape[1]), weight.dtype)
        actor["policy.head.weight"] = np.concatenate([weight, zeros])
        actor["policy.head.bias"] = np.concatenate([bias, weights["log_std"]])
    return actor
