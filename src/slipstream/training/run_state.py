"""The state of a run in a checkpoint: `capture` copies it, `restore` puts it into new parts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.agents.trained import policy_arrays
from slipstream.contracts import Array, EnvSpec
from slipstream.errors import CheckpointError, ConfigError
from slipstream.runs.checkpoint import Checkpoint
from slipstream.training.parts import TrainingParts
from slipstream.vector.make import make_vector


@dataclass
class Position:
    """The progress of a run between two iterations."""

    steps: int = 0
    iteration: int = 0
    """Iterations done; also the number of the next rollout and the version of the newest weights."""
    seconds: float = 0.0
    """Training time before this process resumed the run."""
    best_score: float | None = None
    """The best evaluation score so far."""
    previous_weights: Array | None = None
    """At lag 1, the weights with which the next rollout is being made."""
    collector_state: Mapping[str, Array] = field(default_factory=dict)
    """The collector's state from which the next rollout starts."""
    consistent: bool = True
    """Whether all of the state belongs to the same iteration; false during an update, when nothing can be saved."""


def capture(parts: TrainingParts, position: Position, seconds: float) -> Checkpoint:
    """Return a copy of the whole state; training does not change it afterwards."""
    learner, state = parts.learner.snapshot()
    learner |= {name: array.copy() for name, array in parts.episodes.arrays().items()}
    groups = {
        "policy": policy_arrays(parts.design, parts.learner.params_and_stats),
        "learner": learner,
        "envs": dict(position.collector_state),
    }
    if position.previous_weights is not None:
        groups["acting"] = {"previous": position.previous_weights}
    groups["matches"], matchmaker_state = parts.matchmaker.snapshot()
    if parts.rollback is not None and parts.rollback.good:
        groups["gate"] = parts.rollback.good
    return Checkpoint(
        steps=position.steps,
        groups=groups,
        state={
            "version": position.iteration,
            "seconds": seconds,
            "best": position.best_score,
            "plan": parts.plan.applied(),
            "terms": list(parts.spec.terms),
            "world": dict(parts.spec.world),
            "policy": parts.design.describe(),
            "env": parts.choice.name,
            "seen": dict(parts.schedules.seen),
            "fixed": dict(parts.schedules.fixed),
            "learner": state,
            "matches": matchmaker_state,
            "alarm": parts.reward_hacking.describe(),
            "gate": parts.rollback.describe() if parts.rollback is not None else None,
        },
    )


def restore(parts: TrainingParts, checkpoint: Checkpoint) -> Position:
    """Restore a checkpoint into newly built parts and start the collector where it stopped."""
    state: dict[str, Any] = checkpoint.state
    world = dict(parts.spec.world)
    builder = state.get("world", {}).get("observation")
    if builder != world.get("observation"):
        raise ConfigError(
            f"This run was trained with {_observation(builder)}, and now has {_observation(world.get('observation'))}.",
            f"add --observation MODULE:{builder} --import MODULE, or in Python observation={builder}"
            if builder
            else "leave out the observation builder",
        )
    if "config" in world and world["config"] != state.get("world", {}).get("config"):
        raise CheckpointError(
            f"`{parts.choice.name}` has changed since the run was started: its configuration, or what its package "
            "makes of it, differs.",
            "restore it, or continue with the run's weights in a new run: --start run:DIR",
        )
    if world != state.get("world", {}):
        raise CheckpointError(
            f"This run was trained with {_describe(state.get('world', {}))}, but this machine has {_describe(world)}.",
            "install the same, or start a new run from this one: --start run:DIR",
        )
    check_terms(parts.spec, state["terms"])
    if "trunk" in state["policy"]:
        from slipstream.policies.pretrained import check_trunk

        check_trunk(state["policy"]["trunk"])
    learner = checkpoint.groups["learner"]
    parts.learner.restore(learner, state["learner"])
    parts.episodes.restore(learner)
    parts.schedules.seen.update(state["seen"])
    parts.schedules.fixed.update(state.get("fixed", {}))
    parts.reward_hacking.restore(state["alarm"])
    if parts.rollback is not None and state["gate"]:
        parts.rollback.restore(state["gate"], checkpoint.groups.get("gate", {}))
    matchmaker = parts.matchmaker
    matchmaker.restore(checkpoint.groups["matches"], state["matches"])
    previous = checkpoint.groups.get("acting", {}).get("previous")
    version = int(state["version"])
    if previous is not None:
        parts.collector.publish(version - 1, previous, matchmaker.previous_assignments)
    parts.publish(version)
    envs = checkpoint.groups["envs"]
    if parts.spec.exact and not _fits(parts, envs):
        envs = {}
    parts.collector.start(version, envs or None)
    return Position(checkpoint.steps, version, float(state["seconds"]), state["best"], previous, envs)


def _fits(parts: TrainingParts, saved: Mapping[str, Array]) -> bool:
    """Whether saved games have the present form of their state: a game may have changed since."""
    with contextlib.closing(make_vector(parts.choice, 1)) as vector:
        now = vector.snapshot()
    return all(
        f"env/{name}" in saved and saved[f"env/{name}"].shape[1:] == array.shape[1:] for name, array in now.items()
    )


def _observation(builder: str | None) -> str:
    return f"the observation builder `{builder}`" if builder else "the game's own observation"


def _describe(world: Mapping[str, str]) -> str:
    return ", ".join(f"{what} {which}" for what, which in world.items()) or "none of these"


def check_terms(spec: EnvSpec, trained: Sequence[str]) -> None:
    """Raise if an env has other reward terms than a run was trained with."""
    if list(spec.terms) != list(trained):
        missing = [name for name in trained if name not in spec.terms]
        raise ConfigError(
            f"This run was trained with the reward terms {list(trained)}, but the environment now has "
            f"{list(spec.terms)}.",
            f"pass {', '.join(missing) or 'the same terms'} again: --reward MODULE:NAME --import MODULE, or in Python: "
            "terms={...}, as in slipstream.resume(run, terms={...})",
        )
