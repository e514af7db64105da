"""Convert weights of other projects: VPT into a trunk or a run, Stable-Baselines3 models into runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.sb3_agent import SB3Agent
from slipstream.agents.trained import TrainedAgent, policy_arrays
from slipstream.config import Layer, Resolved, dump, flatten, resolve
from slipstream.contracts import EnvSpec
from slipstream.envs.registry import EnvChoice
from slipstream.errors import CheckpointError, ConfigError, did_you_mean
from slipstream.policies.convert_agent import VptAgentShape, agent_keys, agent_params, vpt_agent_shape
from slipstream.policies.convert_sb3 import ConvertedPolicy, convert_policy
from slipstream.policies.convert_weights import (
    KIND,
    compare_keys,
    compare_shapes,
    copy_matching,
    read_tensors,
    vpt_shape,
    write_trunk,
)
from slipstream.policies.pretrained import load_trunk
from slipstream.policies.sb3_model import SB3Model, read_model
from slipstream.runs import provenance
from slipstream.runs.checkpoint import Checkpoint, save
from slipstream.runs.layout import RunDir, lock, write_json, write_text
from slipstream.vector.make import make_vector

LAYOUTS = ("vpt", "vpt-agent", "sb3")
"""VPT's image encoder becomes a trunk, a whole VPT agent or a model of Stable-Baselines3 a run."""
ENV = "minecraft"
"""The env that a converted agent's run names."""
TEMPERATURE = 2.0
"""The temperature of the actions of the published VPT agents, which is not among their weights."""
PARITY_OBS = 10_000
"""Observations on which a converted policy is compared with the original."""
SAME_ACTIONS, LARGEST_DIFFERENCE = 0.999, 1e-4
"""The least share of equal discrete actions, and the largest difference of continuous ones."""


def check_layout(layout: str) -> None:
    """Raise if there is no such layout."""
    if layout not in LAYOUTS:
        raise ConfigError(
            f"There is no layout `{layout}`.{did_you_mean(layout, LAYOUTS)}", f"use one of: {', '.join(LAYOUTS)}"
        )


def _check_empty(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already exists and is not empty.", "choose another folder with --out DIR")


def convert(
    layout: str,
    source: Path,
    out: Path,
    minimum: float = 1.0,
    on_report: Callable[[dict[str, Any]], None] | None = None,
    temperature: float | None = None,
) -> dict[str, Any]:
    """Write the trunk or agent in `source` to the folder `out`; at least the share `minimum` of its keys must match.

    `temperature` divides the logits of an agent. `on_report` receives the comparison of keys before anything is written
    or refused.
    """
    check_layout(layout)
    if not 0 < minimum <= 1:
        raise ConfigError(f"--minimum is {minimum}.", "give --minimum a share above 0 and up to 1")
    _check_empty(out)
    if temperature is not None and (layout != "vpt-agent" or not temperature > 0):
        raise ConfigError(f"--temperature is {temperature}.", "give vpt-agent a temperature above 0, or leave it out")
    tensors = read_tensors(source)
    shape, agent = vpt_shape(tensors), vpt_agent_shape(tensors)
    whole = layout == "vpt-agent"
    report = compare_shapes(agent_keys(agent), tensors) if whole else compare_keys(shape, tensors)
    facts = {"layout": layout, "source": str(source), "minimum": minimum} | report.facts()
    if on_report is not None:
        on_report(facts)
    if report.share < minimum:
        raise CheckpointError(
            f"{source} does not hold what layout `{layout}` expects: {report.words()}. That is {report.share:.0%} of "
            f"the keys, and --minimum is {minimum:.0%}.",
            "give another file, or copy the matching keys with a lower --minimum (the rest is initialised randomly)",
        )
    if whole:
        return facts | _write_run(out, agent, {key: tensors[key] for key in report.matched}, facts, temperature)
    write_trunk(out, shape, copy_matching(shape, tensors, report), facts)
    trunk = load_trunk(str(out))
    trunk_facts = {"out": str(out), "kind": KIND, "features": trunk.features, "side": shape.side, "hash": trunk.hash}
    return facts | trunk_facts


def convert_sb3(choice: EnvChoice, resolved: Resolved, source: Path, out: Path) -> dict[str, Any]:
    """Write the policy of a Stable-Baselines3 model as a run for `run:DIR` and `--start run:DIR`; needs `trust`.

    The original and the converted policy are compared on random observations, and the result says how far they differ.
    """
    _check_empty(out)
    model = read_model(source, choice.trust)
    with closing(make_vector(choice, 1)) as vector:
        spec = vector.spec
    original = SB3Agent(f"sb3:{source}", model, spec, sampled=False)
    converted = convert_policy(model, spec.obs, spec.action)
    parity = _compare(original, converted, spec)
    if parity.get("same_actions", 1.0) < SAME_ACTIONS or parity.get("largest_difference", 0.0) > LARGEST_DIFFERENCE:
        raise CheckpointError(
            f"{source} cannot be converted: the converted policy acts differently ({parity}).",
            f"use the model as it is: sb3:{source}",
        )
    settings = _settings_of(model, converted, resolved)
    place = RunDir.create(out)
    with lock(place):
        write_text(place.config, dump(settings, choice.name))
        origin = {"env": choice.name, "stage": "convert", "source": str(source), "layout": "sb3"}
        write_json(place.provenance, provenance.collect(sys.argv) | origin | {"modules": list(choice.modules)})
        state = {"policy": converted.design.describe(), "env": choice.name, "world": dict(spec.world)}
        groups = {"policy": policy_arrays(converted.design, converted.params_and_stats), "learner": converted.learner}
        save(place, Checkpoint(model.steps, groups, {"stage": "convert", **state}))
    statistics = model.statistics.file if model.statistics is not None else None
    return {
        "layout": "sb3",
        "source": str(source),
        "out": str(out),
        "env": choice.name,
        "flags": choice.flags,
        "algorithm": settings.settings.algorithm,
        "steps": model.steps,
        "statistics": str(statistics) if statistics else None,
        "policy": converted.design.policy.model_dump(mode="json"),
        **parity,
    }


def _settings_of(model: SB3Model, converted: ConvertedPolicy, resolved: Resolved) -> Resolved:
    """The settings of the converted run: those of the environment, with the policy and the discount of the model."""
    algorithm = "sac" if model.algorithm == "sac" else "ppo"
    policy = {f"policy.{name}": value for name, value in converted.design.policy.model_dump().items()}
    values = policy | {
        "algorithm": algorithm,
        f"{algorithm}.gamma": model.gamma,
        f"{algorithm}.normalise_obs": "obs.mean" in converted.learner,
        "ppo.normalise_return": model.statistics is not None and model.statistics.normalises_return,
    }
    own = Layer("settings", dict(flatten(resolved.settings)))
    return resolve(own, Layer(str(model.file), values))


def _compare(original: SB3Agent, converted: ConvertedPolicy, spec: EnvSpec) -> dict[str, Any]:
    """Compare the actions of both policies on random observations, recurrent ones over sequences of 10 steps."""
    rng, steps = np.random.default_rng(0), 10
    _, mean, scale = converted.design.split_params_and_stats(converted.params_and_stats)
    agent = TrainedAgent("converted", converted.design, converted.params_and_stats)
    same, largest = 0, 0.0
    for _ in range(steps):
        drawn = rng.standard_normal((PARITY_OBS // steps, spec.obs.width))
        obs = (drawn / scale + mean).astype(np.float32)
        one, two = original.act(obs), agent.act(obs)
        if spec.action.kind == "continuous":
            largest = max(largest, float(np.abs(one - two).max()))
        same += int(np.all(one == two, axis=-1).sum()) if one.ndim > 1 else int((one == two).sum())
    if spec.action.kind == "continuous":
        return {"compared": PARITY_OBS, "largest_difference": largest}
    return {"compared": PARITY_OBS, "same_actions": same / PARITY_OBS}


def _write_run(
    out: Path, shape: VptAgentShape, tensors: dict[str, Any], facts: dict[str, Any], temperature: float | None
) -> dict[str, Any]:
    """Write an agent as a run with one checkpoint at step 0, which plays and from which training can start."""
    temperature = temperature or TEMPERATURE
    design = shape.design()
    params_and_stats = agent_params(design, tensors, temperature, missing=facts["share"] < 1)
    values = {f"policy.{name}": value for name, value in design.policy.model_dump().items()}
    run = RunDir.create(out)
    write_text(run.config, dump(resolve(Layer("convert", values)), ENV))
    kept = {"layout": facts["layout"], "source": facts["source"], "temperature": temperature}
    write_json(run.provenance, provenance.collect(sys.argv) | {"env": ENV, "stage": "convert", "origin": kept})
    state = {"policy": design.describe(), "env": ENV, "frozen": True}
    save(run, Checkpoint(0, {"policy": policy_arrays(design, params_and_stats)}, state))
    return {"out": str(out), "kind": "run", "parameters": design.weights.size, "side": shape.image.side, **kept}
