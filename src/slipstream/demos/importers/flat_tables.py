"""Flat tables of transitions (NPZ, HDF5): find the arrays by name and split them into episodes.

An episode of T steps needs T + 1 observations. The last one is taken from `next_obs` if the table has that array.
Without it, a terminated episode keeps its last step and repeats its last observation, which is never used as a
prediction target. An episode that was truncated or just stops loses its last step, because the observation after it is
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces

from slipstream.contracts import Array
from slipstream.demos.format import TERMINATED, TRUNCATED
from slipstream.demos.importers.source import Episode, EpisodeRef, Source, file_errors
from slipstream.demos.importers.space_values import Codec, Space, SpaceRules
from slipstream.errors import ConfigError, DemoError

ROLES = {
    "obs": ("obs", "observations", "observation", "states"),
    "next": ("next_obs", "next_observations", "next_states"),
    "action": ("acts", "actions", "action"),
    "reward": ("rews", "rewards", "reward"),
    "terminated": ("terminals", "terminations", "terminated", "dones", "done"),
    "truncated": ("timeouts", "truncations", "truncated"),
    "starts": ("episode_starts",),
    "episode": ("episode", "episodes", "episode_id", "episode_ids", "episode_index"),
    "indices": ("indices",),
    "terminal": ("terminal",),
    "ended": ("ended",),
}
"""The names accepted for each array; a group of observations has names like `obs/NAME`."""
ARRAY_NAMES = tuple(name for names in ROLES.values() for name in names)
BLOCK = 65536
"""Rows read at a time to find the range of actions."""


class RowArray(Protocol):
    """An array in a file or in memory; the first axis is the row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""

    def __getitem__(self, rows: slice, /) -> Array:
        """Read some rows."""


@dataclass(frozen=True)
class ActionBounds:
    """The range of actions; what is not given is inferred from the data."""

    sizes: tuple[int, ...] = ()
    """The number of options of each discrete part."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class EpisodeSpan:
    """The rows of an episode in a table."""

    start: int
    stop: int
    obs: int
    """The row of the first observation."""
    last_obs: Literal["stored", "next", "repeat"]
    """The last observation is the row after the others, or in the `next_obs` array, or the one before repeated."""
    ended: int


class TransitionTable:
    """Arrays of equal length, one row per transition, split into episodes."""

    def __init__(self, arrays: Mapping[str, RowArray], path: Path) -> None:
        self.path = path
        self._arrays = arrays
        self.obs, self.next_obs = self._group("obs"), self._group("next")
        action, self.reward = self._find("action"), self._find("reward")
        if not self.obs or action is None:
            missing = "observations" if not self.obs else "actions"
            names = ", ".join(ROLES["obs" if not self.obs else "action"])
            raise DemoError(
                f"{path} has no {missing}: none of its arrays is named {names}.", f"it has: {', '.join(arrays)}"
            )
        self.action = action
        self.rows = self.action.shape[0]
        self.spans = self._split_by_indices() if self._find("indices") is not None else self._split_by_flags()

    def _find(self, role: str) -> RowArray | None:
        return next((self._arrays[name] for name in ROLES[role] if name in self._arrays), None)

    def _group(self, role: str) -> dict[str, RowArray]:
        """The array of a role under the empty name, or a group of arrays by the rest of their names."""
        single = self._find(role)
        if single is not None:
            return {"": single}
        for name in ROLES[role]:
            found = {k[len(name) + 1 :]: v for k, v in self._arrays.items() if k.startswith(f"{name}/")}
            if found:
                return found
        return {}

    def _flags(self, role: str) -> Array | None:
        found = self._find(role)
        if found is None:
            return None
        if found.shape[:1] != (self.rows,):
            name = next(name for name in ROLES[role] if name in self._arrays)
            raise DemoError(f"`{name}` of {self.path} has {found.shape[0]} rows, not {self.rows}.", "")
        return found[:].reshape(self.rows)

    def _split_by_indices(self) -> list[EpisodeSpan]:
        """Episodes of T + 1 observations each, split at the steps in `indices` (the NPZ files of imitation)."""
        cuts = self._read("indices").astype(np.int64)
        bounds = [0, *cuts.tolist(), self.rows]
        count = len(bounds) - 1
        self._check_rows(self.obs, self.rows + count)
        ended = self._read("ended") if self._find("ended") is not None else None
        if ended is None:
            terminal = self._read("terminal") if self._find("terminal") is not None else np.zeros(count, bool)
            ended = np.where(terminal.astype(bool), TERMINATED, 0)
        if len(ended) != count or any(stop < start for start, stop in pairwise(bounds)):
            raise DemoError(
                f"`indices` of {self.path} does not split {self.rows} steps into {len(ended)} episodes.", ""
            )
        pairs = enumerate(pairwise(bounds))
        return [EpisodeSpan(start, stop, start + n, "stored", int(ended[n])) for n, (start, stop) in pairs]

    def _read(self, role: str) -> Array:
        found = self._find(role)
        assert found is not None
        return found[:].reshape(-1)

    def _split_by_flags(self) -> list[EpisodeSpan]:
        """Episodes given by done flags, by episode starts or by episode numbers."""
        terminated, truncated = self._flags("terminated"), self._flags("truncated")
        starts, numbers = self._flags("starts"), self._flags("episode")
        last = np.zeros(self.rows, bool)
        for flags in (terminated, truncated):
            last |= flags.astype(bool) if flags is not None else False
        if starts is not None:
            last[:-1] |= starts[1:].astype(bool)
        if numbers is not None:
            last[:-1] |= numbers[1:] != numbers[:-1]
        if all(flags is None for flags in (terminated, truncated, starts, numbers)):
            raise DemoError(
                f"{self.path} does not mark where episodes end.",
                "add an array `terminals` and `timeouts`, `dones`, `episode_starts` or `episode` (its number)",
            )
        self._check_rows(self.obs, self.rows)
        if self.next_obs:
            self._check_rows(self.next_obs, self.rows)
        stops = np.unique(np.append(np.flatnonzero(last) + 1, self.rows))
        spans = []
        for start, stop in zip([0, *stops.tolist()], stops.tolist(), strict=False):
            ended = TRUNCATED if truncated is not None and truncated[stop - 1] else 0
            ended = TERMINATED if terminated is not None and terminated[stop - 1] else ended
            if self.next_obs:
                spans.append(EpisodeSpan(start, stop, start, "next", ended))
            elif ended == TERMINATED:
                spans.append(EpisodeSpan(start, stop, start, "repeat", ended))
            else:
                spans.append(EpisodeSpan(start, stop - 1, start, "stored", ended))
        return spans

    def _check_rows(self, group: Mapping[str, RowArray], rows: int) -> None:
        for name, array in group.items():
            if array.shape[0] != rows:
                label = f"obs/{name}" if name else "obs"
                raise DemoError(f"`{label}` of {self.path} has {array.shape[0]} rows, not {rows}.", "")
        for name, other in (("actions", self.action), ("rewards", self.reward)):
            if other is not None and other.shape[0] != self.rows:
                raise DemoError(f"{self.path} has {other.shape[0]} {name} for {self.rows} steps.", "")

    def observations(self, span: EpisodeSpan) -> Any:
        """The T + 1 observations of an episode."""
        found = {}
        for name, array in self.obs.items():
            if span.last_obs == "stored":
                found[name] = array[span.obs : span.obs + span.stop - span.start + 1]
                continue
            rows = array[span.obs : span.stop]
            last = self.next_obs[name][span.stop - 1 : span.stop] if span.last_obs == "next" else rows[-1:]
            found[name] = np.concatenate([rows, last])
        return found.get("", found)

    def rewards(self, span: EpisodeSpan) -> Array:
        """The rewards of an episode; zeros if the table has none."""
        if self.reward is None:
            return np.zeros(span.stop - span.start, np.float32)
        return self.reward[span.start : span.stop].reshape(-1).astype(np.float32)


class TableOptions(NamedTuple):
    """What the arrays of a table mean."""

    env: str
    rules: SpaceRules
    env_spaces: tuple[Space, Space] | None
    """The spaces of the environment; None: inferred from the data."""
    bounds: ActionBounds


def table_source(table: TransitionTable, format: str, options: TableOptions, close: Callable[[], None]) -> Source:
    """The episodes of a table."""
    obs_space, action_space = options.env_spaces or (
        infer_obs_space(table.obs),
        infer_action_space(_blocks(table.action), options.bounds),
    )
    codec = Codec(obs_space, action_space, options.env, options.rules)

    def read(ref: EpisodeRef) -> Episode:
        span: EpisodeSpan = ref.key
        if span.stop <= span.start:
            raise DemoError("has no complete step: the observation after its only one is not in the data", "")
        with file_errors(table.path):
            obs, actions = _shaped(table.observations(span), obs_space), table.action[span.start : span.stop]
            reward = table.rewards(span)
        return codec.episode(obs, actions, reward, span.ended)

    episodes = [EpisodeRef(f"episode {number}", span, (table.path,)) for number, span in enumerate(table.spans)]
    return Source(
        format,
        str(table.path),
        codec.schema,
        episodes,
        read,
        lambda ref: ref.key.stop - ref.key.start,
        options={"action": codec.action.describe(), "spaces": "env" if options.env_spaces else "data"},
        close=close,
    )


def infer_obs_space(arrays: Mapping[str, Any]) -> Space:
    """The observation space of some arrays: images for uint8, otherwise unbounded float32."""
    inner = {name: _box(array.shape[1:], np.dtype(array.dtype), name) for name, array in arrays.items()}
    return inner[""] if "" in inner else spaces.Dict(inner)


def _box(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> Space:
    if dtype == np.uint8:
        return spaces.Box(0, 255, shape or (1,), np.uint8)
    if dtype.kind not in "biuf":
        raise DemoError(f"The observations{f' `{name}`' if name else ''} are {dtype}, not numbers.", "remove them")
    return spaces.Box(-np.inf, np.inf, shape or (1,), np.float32)


def infer_action_space(blocks: Iterable[Array], bounds: ActionBounds) -> Space:
    """The action space of some blocks of actions: discrete for integers, bounded Box for floats."""
    low: Array | None = None
    high: Array | None = None
    kind, parts = "f", 1
    for block in blocks:
        kind, parts = block.dtype.kind, prod(block.shape[1:])
        if kind not in "biuf" or not len(block):
            continue
        flat = block.reshape(len(block), parts)
        low = flat.min(axis=0) if low is None else np.minimum(low, flat.min(axis=0))
        high = flat.max(axis=0) if high is None else np.maximum(high, flat.max(axis=0))
    if low is None or high is None:
        raise DemoError("There are no actions, or they are not numbers.", "save actions as integers or floats")
    if not np.isfinite(low).all() or not np.isfinite(high).all():
        raise DemoError("There are NaN or infinite values among the actions.", "remove those episodes")
    if kind == "f":
        return _bounded_box(low, high, bounds, parts)
    if low.min() < 0:
        raise DemoError(f"The discrete action {low.min()} is negative.", "count options from 0")
    if kind == "b" and not bounds.sizes:
        return spaces.MultiBinary(parts)
    sizes = _per_part(bounds.sizes, parts, "--sizes") if bounds.sizes else (high.astype(np.int64) + 1).tolist()
    return spaces.Discrete(int(sizes[0])) if parts == 1 else spaces.MultiDiscrete(sizes)


def _bounded_box(low: Array, high: Array, bounds: ActionBounds, parts: int) -> Space:
    """A Box with the given bounds or those of the data; a constant part gets a margin of 1."""
    margin = (low == high).astype(np.float32)
    least = _per_part(bounds.low, parts, "--low") if bounds.low else low - margin
    most = _per_part(bounds.high, parts, "--high") if bounds.high else high + margin
    return spaces.Box(np.asarray(least, np.float32), np.asarray(most, np.float32), dtype=np.float32)


def _per_part(given: Sequence[Any], parts: int, flag: str) -> list[Any]:
    if len(given) not in (1, parts):
        raise ConfigError(
            f"Actions have {parts} parts, but {flag} has {len(given)} values.", f"give {flag} 1 or {parts} numbers"
        )
    return list(given) * parts if len(given) == 1 else list(given)


def _blocks(array: RowArray) -> Iterable[Array]:
    return (array[start : start + BLOCK] for start in range(0, array.shape[0], BLOCK))


def _shaped(values: Any, space: Space) -> Any:
    """Observations in the shape of their space: a scalar becomes a vector of length 1."""
    if isinstance(values, Mapping):
        return {name: _shaped(value, space[name]) for name, value in values.items()}  # type: ignore[index]
    return values.reshape(len(values), *space.shape) if isinstance(space, spaces.Box) else values
