"""Values of Gymnasium spaces, whole episodes at once, as rows of observations and actions.

What a space becomes is decided where environments are adapted, one layer beside this one: the rules are handed in, so
that imported demos look exactly like those recorded in the environment itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array, ObsSpec
from slipstream.errors import DemoError, EnvError

Space = spaces.Space[Any]


@dataclass(frozen=True)
class SpaceRules:
    """How environments' spaces are read here."""

    obs_spec: Callable[[Space, str], ObsSpec]
    obs_encoder: Callable[[Space], Callable[[Any, Array], None] | None]
    """A function that writes one observation into a row; None where plain assignment does."""
    action_spec: Callable[[Space, str], ActionSpec]


class Codec:
    """Turns the observations and actions of episodes into rows."""

    def __init__(self, observation: Space, action: Space, name: str, rules: SpaceRules) -> None:
        try:
            self.obs, self.action = rules.obs_spec(observation, name), rules.action_spec(action, name)
        except EnvError as error:
            raise DemoError(error.message, "leave that part out of the data, or turn it into numbers") from error
        self._write = rules.obs_encoder(observation)
        self._space = action

    def rows(self, values: Any, count: int) -> Array:
        """Observations [count, ...], a tree of arrays as its space has it, as rows [count, width]."""
        _check(values, count, "observations")
        rows = np.zeros((count, self.obs.width), self.obs.dtype)
        if self._write is None:
            rows[:] = np.asarray(values).reshape(count, -1)
            return rows
        try:
            for number in range(count):
                self._write(_at(values, number), rows[number])
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise DemoError(f"An observation does not fit its space: {error}.", "") from error
        return rows

    def actions(self, values: Any, count: int) -> Array:
        """Actions [count, ...] of the space as [count, parts]."""
        _check(values, count, "actions")
        parts = np.concatenate([part.reshape(count, -1) for part in _parts(self._space, values)], axis=1)
        if parts.shape[1] != self.action.parts:
            raise DemoError(f"Actions have {parts.shape[1]} parts, not {self.action.parts}.", "")
        if self.action.kind != "continuous":
            wrong = (parts < 0) | (parts >= np.array(self.action.sizes))
            if wrong.any():
                step, part = np.argwhere(wrong)[0]
                size = self.action.sizes[part]
                raise DemoError(f"The action {parts[step, part]} at step {step} is not one of {size} options.", "")
        return parts.astype(self.action.dtype)


def _parts(space: Space, values: Any) -> list[Array]:
    """The leaves of actions in the order of their space, counted from zero."""
    if isinstance(space, spaces.Dict):
        return [part for key, inner in space.spaces.items() for part in _parts(inner, values[key])]
    if isinstance(space, spaces.Tuple):
        return [part for inner, value in zip(space.spaces, values, strict=True) for part in _parts(inner, value)]
    array = np.asarray(values)
    if isinstance(space, spaces.Discrete):
        return [array - int(space.start)]
    if isinstance(space, spaces.MultiDiscrete):
        return [array - space.start]
    return [array]


def _leaves(values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        return [leaf for value in values.values() for leaf in _leaves(value)]
    if isinstance(values, tuple):
        return [leaf for value in values for leaf in _leaves(value)]
    return [values]


def _check(values: Any, count: int, what: str) -> None:
    for leaf in _leaves(values):
        if len(leaf) != count:
            raise DemoError(f"There are {len(leaf)} {what}, not {count}.", "")


def _at(values: Any, number: int) -> Any:
    if isinstance(values, Mapping):
        return {key: _at(value, number) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(_at(value, number) for value in values)
    return values[number]
