"""Handing over: a run that starts from a trained agent, and is kept from forgetting it."""

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
"""What `start` sets, below the presets and your own settings: first the value learns, and the policy stays near."""

FROZEN_COUNT = 1e6
"""Observations that the statistics of a frozen copy are taken to come from."""


def load_start(text: str, design: Design, params_and_stats: Array, spec: EnvSpec | None = None) -> dict[str, Array]:
    """Write the policy that `run:DIR` names into `params_and_stats`; return the running moments that came with it, by name.

    It must have been trained where numbers mean what they mean in the env with this spec, if there is one.
    """
    folder, which = split_run(text)
    path = find(RunDir.open(folder), which)
    checkpoint = load(path, groups=("policy",))
    donor = TrainedAgent.from_checkpoint(text, checkpoint)
    _check(donor, design)
    if spec is not None:
        donor.check_meanings(spec)
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    given = donor.design.weights.named(donor.design.split_params_and_stats(donor.params_and_stats)[0])
    if donor.design.value and not design.value:
        given = _as_actor(given, design)
    wanted = {name: array.shape for name, array in design.weights.named(params).items()}
    differ = [name for name, shape in wanted.items() if name not in given or given[name].shape != shape]
    if differ:
        raise ConfigError(
            f"{text} has another network than this run asks for: {', '.join(differ[:4])} differ.",
            "leave policy.* as it is in that run: `start` takes it over unless your own settings say otherwise",
        )
    design.weights.flatten({name: given[name] for name in wanted}, params)
    _, mean[:], scale[:] = donor.design.split_params_and_stats(donor.params_and_stats)
    if not donor.design.value:
        return {}
    if checkpoint.state.get("frozen"):
        return _moments(mean, scale)
    arrays, floats = load(path, groups=("learner",)).groups["learner"], design.obs.floats
    found = {name: array for name, array in arrays.items() if name.startswith(("obs.", "return."))}
    # What a frozen trunk gives was normalised by the clone; PPO's own statistics are of the observed vectors alone.
    return {name: array[:floats] if name in ("obs.mean", "obs.variance") else array for name, array in found.items()}


def _moments(mean: Array, scale: Array) -> dict[str, Array]:
    """What a copy without its learner still tells about observations: the statistics that it acts by."""
    variance = 1.0 / scale.astype(np.float64) ** 2
    return {"obs.count": np.full(1, FROZEN_COUNT), "obs.mean": mean.astype(np.float64), "obs.variance": variance}


def _check(donor: TrainedAgent, design: Design) -> None:
    if (donor.obs, donor.action) != (design.obs, design.action):
        raise ConfigError(
            f"{donor.name} sees and does other things than the agents of this env.",
            "start from a run on the same env with the same env settings",
        )
    if donor.design.squashed != design.squashed:
        raise ConfigError(
            f"{donor.name} bends its actions by tanh and this policy does not, or the other way round.",
            f"set policy.squash={str(donor.design.squashed).lower()}; for SAC, clone with --set algorithm=sac",
        )


def _as_actor(given: dict[str, Array], design: Design) -> dict[str, Array]:
    """A policy with one deviation for all states as SAC's actor, whose deviations are outputs: the same function."""
    actor = {name: array for name, array in given.items() if name.startswith("policy.")}
    if design.action.kind == "continuous" and "policy.head.weight" in actor:
        weight, bias = actor["policy.head.weight"], actor["policy.head.bias"]
        actor["policy.head.weight"] = np.concatenate([weight, np.zeros_like(weight)])
        actor["policy.head.bias"] = np.concatenate([bias, given["log_std"]])
    return actor
