"""A trained agent: the acting half of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slipstream.agents.simple import BatchAgent
from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsSpec, read_meanings
from slipstream.errors import CheckpointError
from slipstream.policies.action_bounds import bound
from slipstream.policies.design import Design
from slipstream.policies.fused_actor import make_actor
from slipstream.runs.checkpoint import Checkpoint, find, load
from slipstream.runs.layout import RunDir


def policy_arrays(design: Design, params_and_stats: Array) -> dict[str, Array]:
    """The arrays of `policy.safetensors`: named weights and the normaliser."""
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    return design.weights.named(params) | {"obs.mean": mean.copy(), "obs.scale": scale.copy()}


class TrainedAgent(BatchAgent):
    """Acts with the weights of a checkpoint: the likeliest action, or a sampled one."""

    def __init__(self, name: str, design: Design, params_and_stats: Array, sampled: bool = False) -> None:
        self.name = name
        self.design = design
        self.obs, self.action = design.obs, design.action
        self.sampled = sampled
        self.params_and_stats = params_and_stats
        self.acting = make_actor(design)
        self.acting.load(params_and_stats)
        self._told: Array = np.zeros((2, 0), np.float32)
        """Log-probability and value of each row that acted last."""
        self._states: Array = np.zeros((0, design.state_size), np.float32)
        self._low, self._high = np.array(self.action.low, np.float32), np.array(self.action.high, np.float32)
        self.meanings: dict[str, str] = {}
        """What the numbers that it sees stood for where it was trained; empty: nothing is known of that."""

    @classmethod
    def from_checkpoint(cls, name: str, checkpoint: Checkpoint, sampled: bool = False) -> TrainedAgent:
        """Build the agent that a checkpoint holds."""
        try:
            design = Design.read(checkpoint.state["policy"])
        except (KeyError, TypeError, ValueError) as error:
            hint = "it was not written by this version"
            raise CheckpointError(f"{name} does not describe its policy.", hint) from error
        params_and_stats = np.zeros(design.params_and_stats_size, np.float32)
        params, mean, scale = design.split_params_and_stats(params_and_stats)
        arrays = checkpoint.groups["policy"]
        design.weights.flatten(arrays, params)
        mean[:], scale[:] = arrays["obs.mean"], arrays["obs.scale"]
        if not np.isfinite(params_and_stats).all():
            raise CheckpointError(f"{name} has weights that are not numbers.", "choose another checkpoint of its run")
        agent = cls(name, design, params_and_stats, sampled)
        agent.meanings = read_meanings(checkpoint.state.get("world", {}))
        return agent

    @classmethod
    def from_run(cls, path: Path, which: str = "latest", sampled: bool = False) -> TrainedAgent:
        """Load the agent of a run directory."""
        checkpoint = load(find(RunDir.open(path), which), groups=("policy",))
        return cls.from_checkpoint(f"run:{path}@{checkpoint.steps}", checkpoint, sampled)

    def check_fits(self, spec: EnvSpec) -> None:
        """Refuse an environment with other observations or actions than the one trained on."""
        if (self.obs, self.action) != (spec.obs, spec.action):
            raise CheckpointError(
                f"{self.name} reads {_seen(self.obs)} and gives {_done(self.action)}, but `{spec.name}` has "
                f"{_seen(spec.obs)} and {_done(spec.action)}.",
                "evaluate it on the env it was trained on (provenance.json in its run names it)",
            )
        self.check_meanings(spec)

    def check_meanings(self, spec: EnvSpec) -> None:
        """Refuse an environment where the same numbers stand for other things."""
        for what, which in self.meanings.items():
            here = spec.meanings.get(what, "none")
            if which != here:
                raise CheckpointError(
                    f"{self.name} was trained where the {what} are {which}; in `{spec.name}` here they are {here}.",
                    "install the version of the game that its run was made with (provenance.json names it)",
                )

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write actions [rows, parts]."""
        self.act_rows(np.arange(len(obs)), obs, mask, streams, out, self.memory(len(obs)))

    def act_rows(self, rows: Array, obs: Array, mask: Array, streams: Array, out: Array, states: Array) -> None:
        """Act for some rows of a batch, all arrays indexed by row; `states` [all rows, size] is what it remembers."""
        if self._told.shape[1] < len(obs):
            self._told = np.zeros((2, len(obs)), np.float32)
        self.acting.act(rows, obs, mask, streams, self.sampled, out, self._told[0], self._told[1], states)
        if self.action.kind == "continuous":
            chosen = out[rows]
            bound(chosen, self._low, self._high, self.design.squashed, chosen)
            out[rows] = chosen

    @property
    def values(self) -> Array | None:
        """What it expected of each row that acted last, indexed by row; None: it has no idea."""
        return self._told[1] if self.design.value else None

    def memory(self, rows: int) -> Array:
        """The states in use; another number of rows starts anew."""
        if len(self._states) != rows:
            self._states = np.zeros((rows, self.design.state_size), np.float32)
        return self._states

    def begin(self, rows: Array | None = None) -> None:
        """Forget: the episodes of these rows (all, if not said) begin."""
        self._states[slice(None) if rows is None else rows] = 0


def _seen(obs: ObsSpec) -> str:
    if obs.plain:
        return f"{obs.width} numbers"
    return ", ".join(f"{field.kind} {'x'.join(map(str, field.shape))}" for field in obs.fields)


def _done(action: ActionSpec) -> str:
    if action.kind == "continuous":
        return f"{action.parts} continuous actions"
    return f"choices of {' x '.join(map(str, action.sizes))}"
