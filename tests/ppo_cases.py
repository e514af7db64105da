"""Training parts, coefficients and rollouts that tests of PPO, its engines and collectors share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from slipstream.algorithms.engine import Batch, Coefficients
from slipstream.api import configure
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array
from slipstream.training.build import build, choose_env
from slipstream.training.parts import TrainingParts

COEFFICIENTS = Coefficients(
    minibatch=40,
    clip=0.2,
    clip_value=0.0,
    value=0.5,
    entropy=0.02,
    max_grad_norm=0.5,
    learning_rate=1e-3,
    adam_eps=1e-5,
    weight_decay=0.0,
    normalise_advantage=True,
)
LOCAL: dict[str, Any] = {"plan__collector": "local", "plan__threads": 1, "policy__hidden": [16]}
"""Settings of a small policy that is trained in this process."""
FOUR_ENVS: dict[str, Any] = LOCAL | {"plan__envs": 4, "ppo__rollout": 32, "ppo__minibatch": 32}
SIXTEEN_ENVS: dict[str, Any] = LOCAL | {
    "plan__envs": 16,
    "ppo__rollout": 16,
    "ppo__minibatch": 64,
    "ppo__epochs": 2,
    "policy__features": 24,
}


def blank_batch(obs: Array, normaliser: tuple[Array, Array], mask: Array, action: Array, **more: Any) -> Batch:
    """A batch of one row whose samples all count, with zeros for what policies compute, except for some columns."""
    count, none = len(obs), np.zeros((len(obs), 0), np.float32)
    columns = (*np.zeros((4, count), np.float32), np.ones(count, np.float32), np.zeros(count, np.uint8))
    batch = Batch(obs, *normaliser, mask, action, *columns, none, none, np.zeros(0, np.int64), rows=1)
    return batch._replace(**more)


def build_parts(env: Any, before: Any = None, **flags: Any) -> TrainingParts:
    """Build the parts of a training on an env, by name or as a factory."""
    name, factory = (env, None) if isinstance(env, str) else ("python:Test", env)
    settings = configure(name, flags=flags, tuned=False).settings
    return build(choose_env(name, settings, factory=factory), settings, before)


def start_parts(env: Any, before: Any = None, **flags: Any) -> TrainingParts:
    """Build the parts of a training, ready to collect."""
    parts = build_parts(env, before, **flags)
    parts.publish(0)
    parts.collector.start(0, None)
    return parts


def collect_and_learn(parts: TrainingParts, iterations: int) -> Iterator[dict[str, Any]]:
    """Train for some iterations; yield a copy of each rollout before the policy is trained on it."""
    parts.publish(0)
    parts.collector.start(0, None)
    steps = 0
    for version in range(iterations):
        rollout = parts.collector.collect(version)
        yield {field.name: getattr(rollout, field.name).copy() for field in fields(Rollout)}
        samples, _ = parts.learner.update(rollout, steps)
        steps += samples
        parts.publish(version + 1)
