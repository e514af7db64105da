"""NPZ files (flat tables, imitation's and Stable-Baselines' ones) and trajectories in memory.

Arrays are found by the names that people give them (`obs`, `actions` or `acts`, `rewards` or `rews`, `dones`, ...).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.format import TERMINATED, Schema
from slipstream.demos.importers.flat_tables import ROLES, Bounds, Table, infer_action, infer_obs, table_source
from slipstream.demos.importers.ingest import Episode, Part, Source, readable
from slipstream.demos.importers.npz_stream import Archive
from slipstream.demos.importers.space_values import Codec, Space, SpaceRules
from slipstream.errors import DemoError

NEEDED = tuple(name for names in ROLES.values() for name in names)


def npz_source(
    path: Path, env: str, rules: SpaceRules, given: tuple[Space, Space] | None = None, bounds: Bounds | None = None
) -> Source:
    """The episodes of an NPZ file; what is not needed of it (imitation's pickled `infos`) is never read."""
    archive = Archive(path)
    try:
        with readable(path):
            members = {name: archive[name] for name in archive.names if name.partition("/")[0] in NEEDED}
            table = Table(members, str(path))
            return table_source(table, "npz", str(path), env, rules, given, bounds or Bounds(), [path], archive.close)
    except BaseException:
        archive.close()
        raise


def trajectories_source(
    trajectories: Sequence[Any], env: str, rules: SpaceRules, given: tuple[Space, Space] | None = None,
    bounds: Bounds | None = None,
) -> Source:  # fmt: skip
    """Trajectories in memory, as `imitation` has them: `obs` [T + 1], `acts` [T], `terminal`, and `rews` if there are.

    Observations may be a dict of arrays.
    """
    if not trajectories:
        raise DemoError("There are no trajectories.", "give a list of objects with obs, acts, rews and terminal")
    first = _obs(trajectories[0])
    group = first if isinstance(first, Mapping) else {"": first}
    obs_space, action_space = given or (
        infer_obs(group),
        infer_action((np.asarray(one.acts) for one in trajectories), bounds or Bounds()),
    )
    codec = Codec(obs_space, action_space, env, rules)

    def read(part: Part) -> Episode:
        one = trajectories[part.key]
        acts, rews = np.asarray(one.acts), getattr(one, "rews", None)
        steps = len(acts)
        reward = np.zeros(steps, np.float32) if rews is None else np.asarray(rews, np.float32)
        values = {"obs": codec.rows(_obs(one), steps + 1), "action": codec.actions(acts, steps), "reward": reward}
        return Episode(values, TERMINATED if one.terminal else 0)

    parts = [Part(f"trajectory {number}", number) for number in range(len(trajectories))]
    schema = Schema(env, codec.obs, codec.action)
    return Source("trajectories", "memory", schema, parts, read, lambda part: len(trajectories[part.key].acts))


def _obs(one: Any) -> Array | dict[str, Array]:
    """The observations of a trajectory; a bare number per step becomes a vector of one."""
    if isinstance(one.obs, Mapping):
        return {name: _vectors(np.asarray(value)) for name, value in one.obs.items()}
    return _vectors(np.asarray(one.obs))


def _vectors(array: Array) -> Array:
    return array[:, None] if array.ndim == 1 else array
