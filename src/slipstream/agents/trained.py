"""A trained agent: the acting half of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.simple import BatchAgent
from slipstream.core.contracts import ActionSpec, Array, EnvSpec
from slipstream.core.errors import CheckpointError
from slipstream.models.acting import Acting, bound, pack_size, split_pack
from slipstream.models.shape import Shape
from slipstream.runs.checkpoint import Checkpoint, find, load
from slipstream.runs.layout import RunDir


def describe_policy(shape: Shape, env: str) -> dict[str, Any]:
    """What a checkpoint must say about its policy so that it can act again."""
    action = shape.action
    return {
        "env": env,
        "obs": shape.obs,
        "hidden": list(shape.hidden),
        "activation": shape.activation,
        "shared": shape.shared,
        "action": {
            "kind": action.kind,
            "sizes": list(action.sizes),
            "low": [repr(x) for x in action.low],
            "high": [repr(x) for x in action.high],
            "masked": action.masked,
        },
    }


def read_shape(description: dict[str, Any]) -> Shape:
    """The inverse of `describe_policy`."""
    action = description["action"]
    low, high = (tuple(float(x) for x in action[side]) for side in ("low", "high"))
    spec = ActionSpec(action["kind"], tuple(action["sizes"]), low, high, masked=action["masked"])
    hidden = tuple(description["hidden"])
    return Shape(description["obs"], spec, hidden, description["activation"], description["shared"])


def policy_arrays(shape: Shape, pack: Array) -> dict[str, Array]:
    """The arrays of `policy.safetensors`: named weights and the normaliser."""
    params, mean, scale = split_pack(shape, pack)
    return shape.named(params) | {"obs.mean": mean.copy(), "obs.scale": scale.copy()}


class TrainedAgent(BatchAgent):
    """Acts with the weights of a checkpoint: the likeliest action, or a sampled one."""

    def __init__(self, name: str, shape: Shape, pack: Array, sampled: bool = False) -> None:
        self.name = name
        self.shape = shape
        self.action = shape.action
        self.sampled = sampled
        self._acting = Acting(shape)
        self._acting.load(pack)
        self._low, self._high = np.array(self.action.low, np.float32), np.array(self.action.high, np.float32)

    @classmethod
    def from_checkpoint(cls, name: str, checkpoint: Checkpoint, sampled: bool = False) -> TrainedAgent:
        """Build the agent that a checkpoint holds."""
        try:
            shape = read_shape(checkpoint.state["policy"])
        except (KeyError, TypeError, ValueError) as error:
            hint = "it was not written by this version"
            raise CheckpointError(f"{name} does not describe its policy.", hint) from error
        pack = np.zeros(pack_size(shape), np.float32)
        params, mean, scale = split_pack(shape, pack)
        arrays = checkpoint.groups["policy"]
        shape.flatten(arrays, params)
        mean[:], scale[:] = arrays["obs.mean"], arrays["obs.scale"]
        return cls(name, shape, pack, sampled)

    @classmethod
    def from_run(cls, path: Path, which: str = "latest", sampled: bool = False) -> TrainedAgent:
        """Load the agent of a run directory."""
        checkpoint = load(find(RunDir.open(path), which), groups=("policy",))
        return cls.from_checkpoint(f"run:{path}@{checkpoint.steps}", checkpoint, sampled)

    def check_fits(self, spec: EnvSpec) -> None:
        """Refuse an environment with other observations or actions than the one trained on."""
        ours, theirs = (self.shape.obs, self.action), (spec.obs_size, spec.action)
        if ours != theirs:
            raise CheckpointError(
                f"{self.name} reads {ours[0]} numbers and gives {_words(ours[1])}, but `{spec.name}` has {theirs[0]} "
                f"and {_words(theirs[1])}.",
                "evaluate it on the env it was trained on (provenance.json in its run names it)",
            )

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write actions [rows, parts]."""
        count = len(obs)
        unused = np.zeros((2, count), np.float32)
        self._acting.act(np.arange(count), obs, mask, streams, self.sampled, out, unused[0], unused[1])
        if self.action.kind == "continuous":
            bound(out, self._low, self._high, out)


def _words(action: ActionSpec) -> str:
    if action.kind == "continuous":
        return f"{action.parts} continuous actions"
    return f"choices of {' x '.join(map(str, action.sizes))}"
