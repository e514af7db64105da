"""Agents of Stable-Baselines3 models: `sb3:FILE.zip`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slipstream.agents.foreign import ForeignAgent
from slipstream.agents.guarded import WrongAction
from slipstream.contracts import ActionSpec, Array, EnvSpec
from slipstream.envs.adapters.action_spaces import action_spec
from slipstream.envs.adapters.observation_spaces import obs_decoder, obs_spec
from slipstream.errors import CheckpointError, EnvError, first_line
from slipstream.policies.design import ActInputs
from slipstream.policies.parameter_layout import head_table
from slipstream.policies.sb3_model import SB3Model, read_model
from slipstream.policies.torch_policy import torch_threads


class SB3Agent(ForeignAgent):
    """Acts with a policy of Stable-Baselines3."""

    def __init__(self, name: str, model: SB3Model, spec: EnvSpec, sampled: bool) -> None:
        super().__init__(name, spec, sampled, model.state_size)
        self.model = model
        own = _spec_of_spaces(name, model, spec)
        self._own_obs = own.obs
        self._decode_own = obs_decoder(model.observation_space)
        self._head = head_table(replace(own.action, masked=False), False, False, 0, 0)

    def choose(self, inputs: ActInputs, out: Array, restart: Callable[[], None]) -> None:
        """Run the network once for all rows, and write their actions."""
        rows, obs, mask, states, streams = inputs
        with torch_threads(1):
            try:
                outputs, std, squashed = self._forward(rows, self._observations(obs[rows]), states[:, 1:])
            except Exception as error:  # torch refuses NaN in distributions; its frames would not help
                raise WrongAction(f"raised {type(error).__name__}: {first_line(error)}", 0) from error
        self.select(rows, self._head, outputs, std, mask, streams, out)
        if self.action.kind == "continuous":
            low, high = self._low, self._high
            actions = out[rows]
            if squashed:
                actions = low + np.float32(0.5) * (np.tanh(actions) + np.float32(1)) * (high - low)
            out[rows] = np.clip(actions, low, high)

    def _observations(self, rows: Array) -> Any:
        """Observations as the model's own environment gives them, normalised by its VecNormalize statistics."""
        if self._own_obs != self.obs:
            rows = self._own_obs.join(self.obs.split(rows))
        obs = self._decode_own(np.ascontiguousarray(rows))
        return obs if self.model.statistics is None else self.model.statistics.apply(obs)

    def _forward(self, rows: Array, obs: Any, states: Array) -> tuple[Array, Array, bool]:
        """Logits, or means and standard deviations, and whether tanh squashes actions; advances `states`."""
        policy = self.model.policy
        with torch.no_grad():
            tensors, _ = policy.obs_to_tensor(obs)
            if self.model.algorithm == "sac":
                mean, log_std, more = policy.actor.get_action_dist_params(tensors)
                made = policy.actor.action_dist.proba_distribution(mean, log_std, **more)
            elif self.model.algorithm == "recurrent_ppo":
                layers, _, units = policy.lstm_hidden_state_shape
                parts = torch.from_numpy(states[rows].reshape(len(rows), 2, layers, units)).permute(1, 2, 0, 3)
                start = torch.zeros(len(rows))
                made, after = policy.get_distribution(tensors, (parts[0].contiguous(), parts[1].contiguous()), start)
                states[rows] = torch.stack(after).permute(2, 0, 1, 3).reshape(len(rows), -1).numpy()
            else:
                made = policy.get_distribution(tensors)
            return _parameters(made, self.action)


def _parameters(made: Any, action: ActionSpec) -> tuple[Array, Array, bool]:
    """The parameters of a distribution of Stable-Baselines3."""
    if action.kind == "continuous":
        # State-dependent exploration (gSDE) and SAC may squash by tanh.
        squashed = type(made).__name__.startswith("Squashed") or getattr(made, "bijector", None) is not None
        return made.distribution.mean.numpy(), made.distribution.stddev.numpy(), squashed
    parts = getattr(made, "distributions", None) or made.distribution
    if not isinstance(parts, list):
        parts = [parts]
    logits = np.concatenate([part.logits.numpy() for part in parts], axis=-1)
    return logits, np.zeros(1, np.float32), False


def _spec_of_spaces(name: str, model: SB3Model, spec: EnvSpec) -> EnvSpec:
    """The spec of a model's spaces; raise if they are not those of the env."""
    try:
        obs, action = obs_spec(model.observation_space, name), action_spec(model.action_space, name)
    except EnvError as error:
        raise CheckpointError(error.message, "its environment is not supported") from error
    same_obs = {field.name: field for field in obs.fields} == {field.name: field for field in spec.obs.fields}
    same_action = (action.kind, action.sizes) == (spec.action.kind, spec.action.sizes) and (
        np.allclose(action.low, spec.action.low) and np.allclose(action.high, spec.action.high)
        if len(action.low) == len(spec.action.low)
        else False
    )
    if not (same_obs and same_action):
        which = "observations" if not same_obs else "actions"
        space = model.observation_space if not same_obs else model.action_space
        here = spec.obs.text if not same_obs else spec.action.text
        raise CheckpointError(
            f"{name} was trained with the {which} {space}, but `{spec.name}` has {here}.",
            "use it in the environment it was trained on, with the same wrappers and env settings",
        )
    return EnvSpec(name, obs, action)


def load_sb3(file: str, spec: EnvSpec, trust: bool, sampled: bool = False) -> SB3Agent:
    """Load `sb3:FILE.zip`; its pickles are opened only with `trust`."""
    return SB3Agent(f"sb3:{file}", read_model(Path(file), trust), spec, sampled)
