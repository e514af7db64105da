"""Trajectories in memory, as the `imitation` library represents them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.format import TERMINATED
from slipstream.demos.importers.flat_tables import ActionBounds, infer_action_space, infer_obs_space
from slipstream.demos.importers.source import Episode, EpisodeRef, Source
from slipstream.demos.importers.space_values import Codec, Space, SpaceRules
from slipstream.errors import DemoError


def trajectories_source(
    trajectories: Sequence[Any],
    env: str,
    rules: SpaceRules,
    env_spaces: tuple[Space, Space] | None = None,
    bounds: ActionBounds | None = None,
) -> Source:
    """Objects with `obs` [T + 1] (an array or a dict of arrays), `acts` [T], `terminal`, and optionally `rews` [T]."""
    if not trajectories:
        raise DemoError("There are no trajectories.", "give a list of objects with obs, acts, rews and terminal")
    if env_spaces is None:
        first = _observations(trajectories[0])
        arrays = first if isinstance(first, Mapping) else {"": first}
        actions = (np.asarray(one.acts) for one in trajectories)
        env_spaces = infer_obs_space(arrays), infer_action_space(actions, bounds or ActionBounds())
    codec = Codec(*env_spaces, env, rules)

    def read(ref: EpisodeRef) -> Episode:
        one = trajectories[ref.key]
        ended = TERMINATED if one.terminal else 0
        return codec.episode(_observations(one), np.asarray(one.acts), getattr(one, "rews", None), ended)

    episodes = [EpisodeRef(f"trajectory {number}", number) for number in range(len(trajectories))]
    return Source("trajectories", "memory", codec.schema, episodes, read, lambda ref: len(trajectories[ref.key].acts))


def _observations(trajectory: Any) -> Array | dict[str, Array]:
    """The observations of a trajectory; one scalar per step becomes a vector of length 1."""
    if isinstance(trajectory.obs, Mapping):
        return {name: _as_vectors(np.asarray(value)) for name, value in trajectory.obs.items()}
    return _as_vectors(np.asarray(trajectory.obs))


def _as_vectors(array: Array) -> Array:
    return array[:, None] if array.ndim == 1 else array
