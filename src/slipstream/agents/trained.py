"""Trained agents: the policy of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slipstream.agents.simple import BatchAgent
from slipstream.contracts import GAME_OWN, Array, EnvSpec, read_meanings
from slipstream.errors import CheckpointError
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.distributions import bound
from slipstream.policies.fused_actor import make_actor
from slipstream.runs.checkpoint import Checkpoint, find, load
from slipstream.runs.layout import RunDir


def policy_arrays(design: Design, params_and_stats: Array) -> dict[str, Array]:
    """The arrays of `policy.safetensors`: named weights and the normaliser."""
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    return design.weights.named(params) | {"obs.mean": mean.copy(), "obs.scale": scale.copy()}


class TrainedAgent(BatchAgent):
    """Acts with the weights of a checkpoint: the most likely action, or a sampled one."""

    def __init__(self, name: str, design: Design, params_and_stats: Array, sampled: bool = False) -> None:
        self.name = name
        self.design = design
        self.obs, self.action = design.obs, design.action
        self.sampled = sampled
        self.params_and_stats = params_and_stats
        self.acting = make_actor(design)
        self.acting.load(params_and_stats)
        self._log_prob_and_value: Array = np.zeros((2, 0), np.float32)
        """Log-probability and value of the last act [2, rows]."""
        self._states: Array = np.zeros((0, design.state_size), np.float32)
        self._low, self._high = np.array(self.action.low, np.float32), np.array(self.action.high, np.float32)
        self.meanings: dict[str, str] = {}
        """What observation and action numbers meant in the env of training; empty if unknown."""

    @classmethod
    def from_checkpoint(cls, name: str, checkpoint: Checkpoint, sampled: bool = False) -> TrainedAgent:
        """Build the agent of a checkpoint."""
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
            raise CheckpointError(f"{name} has weights that are not finite.", "choose another checkpoint of its run")
        agent = cls(name, design, params_and_stats, sampled)
        agent.meanings = read_meanings(checkpoint.state.get("world", {}))
        return agent

    @classmethod
    def from_run(cls, path: Path, which: str = "latest", sampled: bool = False) -> TrainedAgent:
        """Load the agent of a run."""
        checkpoint = load(find(RunDir.open(path), which), groups=("policy",))
        return cls.from_checkpoint(f"run:{path}@{checkpoint.steps}", checkpoint, sampled)

    def check_fits(self, spec: EnvSpec) -> None:
        """Raise if an environment has other observation or action spaces than the policy."""
        if self.meanings.get("observation") != spec.meanings.get("observation"):
            self.check_meanings(spec)
        if (self.obs, self.action) != (spec.obs, spec.action):
            raise CheckpointError(
                f"{self.name} reads {self.obs.text} and outputs {self.action.text}, but "
                f"`{spec.name}` has {spec.obs.text} and {spec.action.text}.",
                "evaluate it on the env it was trained on (provenance.json in its run names it)",
            )
        self.check_meanings(spec)

    def check_meanings(self, spec: EnvSpec) -> None:
        """Raise if observation or action numbers have another meaning in an environment than in training."""
        for what, which in self.meanings.items():
            here = spec.meanings.get(what, "none")
            if which != here and what == "observation":
                raise CheckpointError(
                    f"{self.name} was trained with the observation of {which}; `{spec.name}` here has that of {here}.",
                    "leave out --observation"
                    if which == GAME_OWN
                    else f"give the same builder: --observation MODULE:{which} --import MODULE",
                )
            if which != here:
                raise CheckpointError(
                    f"{self.name} was trained where the {what} are {which}; in `{spec.name}` here they are {here}.",
                    "install the version of the game that its run was made with (provenance.json names it)",
                )

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write actions [rows, parts]."""
        self.act_rows(np.arange(len(obs)), obs, mask, streams, out, self.memory(len(obs)))

    def act_rows(self, rows: Array, obs: Array, mask: Array, streams: Array, out: Array, states: Array) -> None:
        """Act for some rows of a batch, all arrays indexed by row; `states` [all rows, size] are recurrent states."""
        if self._log_prob_and_value.shape[1] < len(obs):
            self._log_prob_and_value = np.zeros((2, len(obs)), np.float32)
        self.acting.act(
            ActInputs(rows, obs, mask, states, streams),
            ActOutputs(out, self._log_prob_and_value[0], self._log_prob_and_value[1]),
            self.sampled,
        )
        if self.action.continuous_parts:
            actions = out[rows]
            bound(actions, self._low, self._high, self.design.squashed, actions)
            out[rows] = actions

    @property
    def values(self) -> Array | None:
        """The value estimates of the last act, indexed by row; None without a value function."""
        return self._log_prob_and_value[1] if self.design.value else None

    def memory(self, rows: int) -> Array:
        """The recurrent states [rows, size]; another number of rows resets them."""
        if len(self._states) != rows:
            self._states = np.zeros((rows, self.design.state_size), np.float32)
        return self._states

    def begin(self, rows: Array | None = None) -> None:
        """Reset the recurrent states of some rows, or of all, at the start of an episode."""
        self._states[slice(None) if rows is None else rows] = 0
