"""The cache of tuned plans of this machine, in the user's cache folder.

A file has names and numbers only; its settings are limited to those that tuning may change, and they are validated. A
plan applies to trainings with the same game, policy, algorithm, batch and plan settings.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream import __version__
from slipstream.config import Layer
from slipstream.errors import CheckpointError, ConfigError
from slipstream.runs.layout import read_json, write_json
from slipstream.settings import PlanSettings, Settings
from slipstream.system import machine

if TYPE_CHECKING:
    from slipstream.perf.tune import Tuned

ORIGIN = "tuned"
VARIED = ("default", "preset ", ORIGIN)
"""Prefixes of the origins of settings that the user did not give."""
LEARNING = {
    "ppo": ("rollout", "minibatch", "epochs", "shuffle", "optimiser", "contrastive_coef", "epochs_max"),
    "sac": ("rollout", "batch_size", "updates_per_step", "critics", "buffer_size"),
}
"""Settings of learning that affect the speed."""
TUNABLE = {f"plan.{name}" for name in PlanSettings.model_fields} | {"ppo.rollout", "sac.rollout", "ppo.minibatch"}


def folder() -> Path:
    """The folder of the cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipstream" / "plans"


def plan_path(env: str, settings: Settings) -> Path:
    """The file of a kind of training on this machine; `settings` are those without a tuned plan."""
    algorithm = settings.algorithm
    section = getattr(settings, algorithm)
    kind = {
        "version": __version__,
        "env": env,
        "game": settings.env.model_dump(include={"action_repeat", "actions", "options", "match_seconds"}),
        "policy": settings.policy.model_dump(),
        algorithm: {name: getattr(section, name) for name in LEARNING[algorithm]},
        "plan": settings.plan.model_dump(exclude={"deadline_s"}),
        "opponent": settings.opponent is not None,
    }
    digest = hashlib.sha256(json.dumps(kind, sort_keys=True, default=str).encode()).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", env.lower()).strip("-")
    return folder() / machine.fingerprint() / f"{slug}-{digest}.json"


def load(env: str, settings: Settings) -> dict[str, Any] | None:
    """The tuned plan of a kind of training; None if there is none, or if the env has no name."""
    if env.startswith("python:") or not folder().is_dir():
        return None
    path = plan_path(env, settings)
    try:
        return read_json(path)
    except CheckpointError as error:
        raise ConfigError(error.message, _again(env)) from error


def _again(env: str) -> str:
    return f"remove it, and tune again with the same flags: slipstream tune {env}"


def tuned_layer(env: str, settings: Settings) -> Layer | None:
    """The tuned plan as a layer of settings; None if there is none."""
    found = load(env, settings)
    if found is None:
        return None
    values = found.get("settings")
    strange = sorted(set(values) - TUNABLE) if isinstance(values, dict) else ["settings"]
    if strange:
        raise ConfigError(
            f"The tuned plan {plan_path(env, settings)} has `{strange[0]}`, which tuning never sets.",
            _again(env),
        )
    return Layer(ORIGIN, dict(values)) if isinstance(values, dict) else None


def save(env: str, settings: Settings, found: Tuned) -> Tuned:
    """Cache the outcome of tuning; return it with its path."""
    if env.startswith("python:"):
        return found
    path = plan_path(env, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = replace(found, path=str(path))
    made = {"made": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": machine.fingerprint(), "cpu": machine.cpu_model()}
    write_json(path, made | found.facts())
    return found


def stage_costs(env: str, settings: Settings) -> dict[str, float]:
    """Seconds per unit of work of each stage of the last `run` on this machine; empty without one."""
    found = read_json(_stages_path(env, settings)) or {}
    return {name: float(cost) for name, cost in found.items() if isinstance(cost, int | float) and cost > 0}


def keep_stage_cost(env: str, settings: Settings, stage: str, cost: float) -> None:
    """Save the seconds per unit of work of a stage."""
    path = _stages_path(env, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, stage_costs(env, settings) | {stage: cost})


def _stages_path(env: str, settings: Settings) -> Path:
    path = plan_path(env, settings)
    return path.with_name(f"{path.stem}-stages.json")
