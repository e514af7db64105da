"""Encode whole episodes of Gymnasium observations and actions as rows.

How a space maps to a row is defined by the environment adapters. The functions are passed in as `SpaceRules`, so
imported demos have exactly the layout of demos recorded in the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array, ObsSpec
from slipstream.demos.format import Schema
from slipstream.demos.importers.source import Episode
from slipstream.errors import DemoError, EnvError

Space = spaces.Space[Any]


@dataclass(frozen=True)
class SpaceRules:
    """How the environment adapters encode spaces."""

    obs_spec: Callable[[Space, str], ObsSpec]
    obs_encoder: Callable[[Space], Callable[[Any, Array], None] | None]
    """Returns a function that writes one observation into a row, or None if plain assignment is enough."""
    action_spec: Callable[[Space, str], ActionSpec]


class Codec:
    """Encodes the observations and actions of episodes as rows."""

    def __init__(self, observation: Space, action: Space, env: str, rules: SpaceRules) -> None:
        try:
            self.obs, self.action = rules.obs_spec(observation, env), rules.action_spec(action, env)
        except EnvError as error:
            raise DemoError(error.message, "remove that part from the data, or convert it to numbers") from error
        self.schema = Schema(env, self.obs, self.action)
        self._write = rules.obs_encoder(observation)
        self._space = action

    def episode(self, observations: Any, actions: Any, rewards: Any, ended: int, seed: int = 0) -> Episode:
        """Encode an episode of T steps: T + 1 observations, T actions and rewards; None stands for zero rewards."""
        steps = len(actions) if rewards is None else len(rewards)
        values = {
            "obs": self.encode_obs(observations, steps + 1),
            "action": self.encode_actions(actions, steps),
            "reward": np.zeros(steps, np.float32) if rewards is None else np.asarray(rewards, np.float32),
        }
        return Episode(values, ended, seed=seed)

    def encode_obs(self, values: Any, count: int) -> Array:
        """Encode observations [count, ...] (arrays, nested like their space) as rows [count, width]."""
        _check_length(values, count, "observations")
        rows = np.zeros((count, self.obs.width), self.obs.dtype)
        if self._write is None:
            rows[:] = np.asarray(values).reshape(count, -1)
            return rows
        try:
            for index in range(count):
                self._write(_at(values, index), rows[index])
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise DemoError(f"An observation does not fit its space: {error}.", "") from error
        return rows

    def encode_actions(self, values: Any, count: int) -> Array:
        """Encode actions [count, ...] of the space as [count, parts], discrete parts first.

        One array for a Dict or Tuple has these columns already, as exported demos do, with options counted from zero.
        """
        _check_length(values, count, "actions")
        if isinstance(self._space, spaces.Dict | spaces.Tuple) and isinstance(values, np.ndarray):
            if values.dtype.kind not in "biuf":
                raise DemoError(
                    f"Actions are {values.dtype}, not {self.action.parts} numbers per step.",
                    "save them as one array [steps, parts]: discrete parts first, each kind in the order of the space",
                )
            parts = values.reshape(count, -1)
        else:
            found = sorted(_parts(self._space, values), key=lambda part: part.continuous)
            parts = np.concatenate([part.values.reshape(count, -1) for part in found], axis=1)
        if parts.shape[1] != self.action.parts:
            raise DemoError(f"Actions have {parts.shape[1]} parts, not {self.action.parts}.", "")
        options = parts[:, : self.action.discrete_parts]
        wrong = (options < 0) | (options >= np.array(self.action.sizes)) | (options % 1 != 0)
        if wrong.any():
            step, part = np.argwhere(wrong)[0]
            size = self.action.sizes[part]
            raise DemoError(f"The action {options[step, part]:g} at step {step} is not one of {size} options.", "")
        return parts.astype(self.action.dtype)


class _Part(NamedTuple):
    """The values of one leaf of an action space."""

    values: Array
    continuous: bool


def _parts(space: Space, values: Any) -> list[_Part]:
    """The leaves of actions in the order of their space, counted from zero."""
    if isinstance(space, spaces.Dict):
        return [part for key, inner in space.spaces.items() for part in _parts(inner, values[key])]
    if isinstance(space, spaces.Tuple):
        return [part for inner, value in zip(space.spaces, values, strict=True) for part in _parts(inner, value)]
    array = np.asarray(values)
    if isinstance(space, spaces.Discrete):
        return [_Part(array - int(space.start), False)]
    if isinstance(space, spaces.MultiDiscrete):
        return [_Part(array - space.start, False)]
    return [_Part(array, isinstance(space, spaces.Box))]


def _leaves(values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        return [leaf for value in values.values() for leaf in _leaves(value)]
    if isinstance(values, tuple):
        return [leaf for value in values for leaf in _leaves(value)]
    return [values]


def _check_length(values: Any, count: int, what: str) -> None:
    for leaf in _leaves(values):
        if len(leaf) != count:
            raise DemoError(f"There are {len(leaf)} {what}, not {count}.", "")


def _at(values: Any, index: int) -> Any:
    if isinstance(values, Mapping):
        return {key: _at(value, index) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(_at(value, index) for value in values)
    return values[index]
