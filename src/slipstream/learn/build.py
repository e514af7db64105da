"""From settings to parts: environments, policy, collector and learner of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.collect.actor import Actor, learning_rows
from slipstream.collect.actors import Actors
from slipstream.collect.games import nobody_to_play
from slipstream.collect.local import Local
from slipstream.collect.rollout import Rollout, empty_rollout
from slipstream.collect.vectors import make_vector
from slipstream.core import machine
from slipstream.core.contracts import Array, EnvSpec
from slipstream.core.plan import Plan, check_batch, make_plan
from slipstream.core.slab import Field
from slipstream.envs.registry import EnvChoice, parse
from slipstream.learn.batch import Engine
from slipstream.learn.episodes import Episodes
from slipstream.learn.ppo import PPO
from slipstream.models.acting import pack_size, split_pack
from slipstream.models.shape import Shape
from slipstream.settings import Settings


class Collector(Protocol):
    """How rollouts are made is hidden behind this; the learner never knows."""

    lag: int

    def publish(self, version: int, pack: Array) -> None:
        """Give the weights and normaliser of a version."""

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Begin with rollout number `version`, from a snapshot if there is one."""

    def collect(self, version: int) -> Rollout:
        """Return rollout number `version`, made with weights number `version - lag`."""

    def snapshot(self, version: int) -> dict[str, Array]:
        """What rollout number `version`, the next one to be trained on, starts from."""

    def drain_faults(self) -> list[str]:
        """What was kept out of the batch since the last call."""

    def seconds(self) -> tuple[float, float]:
        """Time spent in environments and in inference so far."""

    def close(self) -> None:
        """End everything that was started."""


@dataclass
class Parts:
    """What a run is made of."""

    choice: EnvChoice
    spec: EnvSpec
    plan: Plan
    shape: Shape
    learner: PPO
    episodes: Episodes
    collector: Collector
    batch: int


def choose_env(name: str, settings: Settings, **more: Any) -> EnvChoice:
    """The environment of a run."""
    return EnvChoice(name, settings.env, settings.rewards, **more)


def build(choice: EnvChoice, settings: Settings, before: Mapping[str, Any] | None = None) -> Parts:
    """Make the parts of a run; `before` is the applied plan of a run that goes on."""
    game, _ = parse(choice.name)
    plan = make_plan(
        settings.plan, cores=machine.cores(), native=game is not None, minibatch=settings.ppo.minibatch, before=before
    )
    spec, shape, fields = look(choice, settings)
    if settings.opponent and not spec.competitive:
        raise nobody_to_play(spec)
    envs = plan.envs.applied
    batch = check_batch(settings, envs, spec.agents)
    pack = np.zeros(pack_size(shape), np.float32)
    params = split_pack(shape, pack)[0]
    params[:] = shape.initial(settings.seed, settings.policy.log_std)
    rows = envs * spec.agents
    learner = PPO(settings.ppo, shape, pack, _engine(shape, params, plan), rows, settings.seed)
    learning = learning_rows(spec.teams, envs, settings.opponent is not None)
    collector = _collector(choice, settings, plan, spec, shape, fields)
    return Parts(choice, spec, plan, shape, learner, Episodes(learning, spec.competitive), collector, batch)


def look(choice: EnvChoice, settings: Settings) -> tuple[EnvSpec, Shape, dict[str, Field]]:
    """Make one environment, play one step of it, and read off its facts and the shape of its policy.

    This compiles what workers need, once, and finds a broken environment or opponent before anything is started.
    """
    vector = make_vector(choice, 1, seed=settings.seed)
    try:
        spec = vector.spec
        policy = settings.policy
        shape = Shape(spec.obs_size, spec.action, policy.hidden, policy.activation, policy.shared)
        opponent = load_agent(settings.opponent, spec, choice) if settings.opponent else None
        actor = Actor(vector, shape, seed=settings.seed, opponent=opponent)
        actor.reset()
        fields = {name: Field(value.shape, value.dtype.name) for name, value in actor.snapshot().items()}
        actor.fill(empty_rollout(spec, 1, 1))
    finally:
        vector.close()
    return spec, shape, fields


def _engine(shape: Shape, params: Array, plan: Plan) -> Engine:
    if plan.learner.applied == "torch":
        from slipstream.learn.reference import TorchEngine

        return TorchEngine(shape, params, plan.threads.applied)
    from slipstream.learn.fused import FusedEngine

    return FusedEngine(shape, params, plan.threads.applied)


def _collector(
    choice: EnvChoice, settings: Settings, plan: Plan, spec: EnvSpec, shape: Shape, fields: dict[str, Field]
) -> Collector:
    envs, steps, lag = plan.envs.applied, settings.ppo.rollout, plan.lag.applied
    if plan.collector.applied == "local":
        vector = make_vector(choice, envs, seed=settings.seed)
        opponent = load_agent(settings.opponent, spec, choice) if settings.opponent else None
        return Local(Actor(vector, shape, seed=settings.seed, opponent=opponent), steps, lag)

    def sized(name: str, field: Field) -> Field:
        first = envs if name.startswith("env/") else envs * spec.agents
        return Field((first, *field.shape[1:]), field.dtype)

    return Actors(
        choice, spec, shape, {name: sized(name, field) for name, field in fields.items()}, envs=envs,
        workers=plan.workers.applied, steps=steps, lag=lag, seed=settings.seed, opponent=settings.opponent,
        deadline_s=settings.plan.deadline_s,
    )  # fmt: skip
