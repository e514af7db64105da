"""All that a run needs to go on exactly, to and from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream.agents.trained import policy_arrays
from slipstream.contracts import Array
from slipstream.errors import CheckpointError, ConfigError
from slipstream.runs.checkpoint import Checkpoint
from slipstream.training.build import TrainingParts


@dataclass
class Position:
    """Where a run stands between two iterations."""

    steps: int = 0
    version: int = 0
    """Updates iterations done: the number of the next rollout and of the newest weights."""
    seconds: float = 0.0
    """Time that earlier starts of this run took."""
    best: float | None = None
    """The best evaluation so far."""
    previous: Array | None = None
    """At lag 1, the weights that the rollout in flight is being made with."""
    start: Mapping[str, Array] = field(default_factory=dict)
    """What the next rollout starts from."""
    whole: bool = True
    """Whether everything belongs to the same moment; false in the midst of an update."""


def capture(parts: TrainingParts, position: Position, seconds: float) -> Checkpoint:
    """Copy everything; nothing in the result changes when training goes on."""
    learner, state = parts.learner.snapshot()
    learner |= {name: array.copy() for name, array in parts.episodes.arrays().items()}
    groups = {
        "policy": policy_arrays(parts.design, parts.learner.params_and_stats),
        "learner": learner,
        "envs": dict(position.start),
    }
    if position.previous is not None:
        groups["acting"] = {"previous": position.previous}
    groups["matches"], matches = parts.matches.snapshot()
    if parts.gate is not None and parts.gate.good:
        groups["gate"] = parts.gate.good
    return Checkpoint(
        steps=position.steps,
        groups=groups,
        state={
            "version": position.version,
            "seconds": seconds,
            "best": position.best,
            "plan": parts.plan.applied(),
            "terms": list(parts.spec.terms),
            "world": dict(parts.spec.world),
            "policy": parts.design.describe(),
            "env": parts.choice.name,
            "seen": dict(parts.schedules.seen),
            "learner": state,
            "matches": matches,
            "alarm": parts.alarm.describe(),
            "gate": parts.gate.describe() if parts.gate is not None else None,
        },
    )


def restore(parts: TrainingParts, checkpoint: Checkpoint) -> Position:
    """Put a checkpoint's state into freshly built parts and start collecting where it stopped."""
    state: dict[str, Any] = checkpoint.state
    world = dict(parts.spec.world)
    if world != state.get("world", {}):
        raise CheckpointError(
            f"This run was played on {_named(state.get('world', {}))}, but here is {_named(world)}.",
            "bring the same, or start a new run from this one: --start run:DIR",
        )
    if list(parts.spec.terms) != state["terms"]:
        missing = [name for name in state["terms"] if name not in parts.spec.terms]
        raise ConfigError(
            f"This run was trained with the reward terms {state['terms']}, but now there are {list(parts.spec.terms)}.",
            f"give {', '.join(missing) or 'the same terms'} again in Python: slipstream.resume(run, terms={{...}})",
        )
    if "trunk" in state["policy"]:
        from slipstream.policies.pretrained import check_trunk

        check_trunk(state["policy"]["trunk"])
    learner = checkpoint.groups["learner"]
    parts.learner.restore(learner, state["learner"])
    parts.episodes.restore(learner)
    parts.schedules.seen.update(state["seen"])
    parts.alarm.restore(state["alarm"])
    if parts.gate is not None and state["gate"]:
        parts.gate.restore(state["gate"], checkpoint.groups.get("gate", {}))
    matches = parts.matches
    matches.restore(checkpoint.groups["matches"], state["matches"])
    previous = checkpoint.groups.get("acting", {}).get("previous")
    version = int(state["version"])
    if previous is not None:
        parts.collector.publish(version - 1, previous, matches.previous_assignments)
    parts.publish(version)
    parts.collector.start(version, checkpoint.groups["envs"])
    return Position(
        checkpoint.steps, version, float(state["seconds"]), state["best"], previous, checkpoint.groups["envs"]
    )


def _named(world: Mapping[str, str]) -> str:
    return ", ".join(f"{what} {which}" for what, which in world.items()) or "nothing of the kind"
