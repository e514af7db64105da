"""Memory of a run by stage and part, computed from sizes."""

from __future__ import annotations

from math import prod

import numpy as np

from slipstream.algorithms.replay_buffer import step_bytes
from slipstream.collect.rollout import rollout_fields
from slipstream.contracts import EnvSpec
from slipstream.perf.measurements import MemoryPart
from slipstream.plan import Plan
from slipstream.play.recorder import spread
from slipstream.policies.design import Design
from slipstream.settings import Settings

MIB = 2**20
OPTIMISER = 3
"""Floats per parameter besides the parameter: its gradient and Adam's two moments."""
KEPT = 2
"""Copies of weights and optimiser: the current one and the one for rollback."""


def rollout_mib(spec: EnvSpec, design: Design, steps: int, envs: int) -> float:
    """Memory of one rollout."""
    fields = rollout_fields(spec, design, steps, envs).values()
    return sum(prod(field.shape) * np.dtype(field.dtype).itemsize for field in fields) / MIB


def plan_memory(
    settings: Settings,
    spec: EnvSpec,
    design: Design,
    plan: Plan,
    *,
    env_mib: float,
    python_mib: float,
    used_mib: float | None = None,
) -> tuple[MemoryPart, ...]:
    """The memory of each stage; `env_mib` and `python_mib` are measured: an env and an empty process."""
    applied, ppo = plan.applied(), settings.algorithm == "ppo"
    workers = applied["workers"] if applied["collector"] == "actors" or applied["vector"] == "processes" else 0
    weights = 4 * design.weights.size / MIB
    steps = settings.ppo.rollout if ppo else settings.sac.rollout
    buffers = applied["lag"] + 1
    parts = {
        "Python and libraries": python_mib * (1 + workers),
        "environments": env_mib * applied["envs"],
        "rollouts": buffers * rollout_mib(spec, design, steps, applied["envs"]),
        "policy": weights * (1 + workers) * KEPT,
        "optimiser": weights * OPTIMISER * KEPT,
    }
    if not ppo:
        parts["replay buffer"] = step_bytes(design.obs.floats, design.action) * settings.sac.buffer_size / MIB
    found = [MemoryPart("train", name, mib) for name, mib in parts.items()]
    found.append(MemoryPart("train", "in all", sum(parts.values()), used_mib))
    episode = spec.obs.width * np.dtype(spec.obs.dtype).itemsize * spec.agents
    recording = spread(settings.record.games, spec)
    found.append(MemoryPart("record", "environments", env_mib * recording))
    found.append(MemoryPart("record", "running episodes, per 1,000 steps", episode * 1000 * recording / MIB))
    found.append(MemoryPart("clone", "window of demos", float(settings.clone.window_mib)))
    found.append(MemoryPart("clone", "policy and optimiser", weights * (1 + OPTIMISER) * KEPT))
    return tuple(found)
