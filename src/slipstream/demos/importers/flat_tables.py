"""Flat tables of transitions (NPZ, HDF5) as episodes: which array is which, where episodes end, what comes last.

An episode of T steps needs T + 1 observations. The last one is taken from `next_obs` where the table has it. Where it
has not, an episode that was terminated keeps its last step, and its last observation stands a second time: nothing
ever follows it, so that it is never used as a prediction's target. One that was cut off, or that just stops, loses its
last step, whose outcome nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from slipstream.contracts import Array
from slipstream.demos.format import TERMINATED, TRUNCATED, Schema
from slipstream.demos.importers.ingest import Episode, Part, Source, readable
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
"""The names under which each kind of array is known; a group of observations has names like `obs/NAME`."""
BLOCK = 65536
"""Rows that are looked at together."""


class Rows(Protocol):
    """An array in a file, or in memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its values."""

    def __getitem__(self, rows: slice, /) -> Array:
        """Some rows."""


@dataclass(frozen=True)
class Bounds:
    """What is known about actions beyond the data; where nothing is, the data tell."""

    sizes: tuple[int, ...] = ()
    """Options of each part of a choice."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Span:
    """Where an episode stands: its steps, the row of its first observation, and where its last one comes from."""

    start: int
    stop: int
    obs: int
    last: str
    """`own`: behind the others; `next`: in the array of next observations; `again`: the one before, once more."""
    ended: int


class Table:
    """Arrays of equal length, one row per transition."""

    def __init__(self, members: Mapping[str, Rows], where: str) -> None:
        self.where = where
        self._members = members
        self.obs, self.next = self._group("obs"), self._group("next")
        self.action, self.reward = self._find("action"), self._find("reward")
        if not self.obs or self.action is None:
            missing = "observations" if not self.obs else "actions"
            names = ", ".join(ROLES["obs" if not self.obs else "action"])
            raise DemoError(
                f"{where} has no {missing}: none of its arrays is called {names}.", f"it has: {', '.join(members)}"
            )
        self.rows = self.action.shape[0]
        self.spans = self._trajectories() if self._find("indices") is not None else self._episodes()

    def _find(self, role: str) -> Rows | None:
        return next((self._members[name] for name in ROLES[role] if name in self._members), None)

    def _group(self, role: str) -> dict[str, Rows]:
        """An array, under no name, or a group of them by the rest of their names."""
        bare = self._find(role)
        if bare is not None:
            return {"": bare}
        for name in ROLES[role]:
            found = {k[len(name) + 1 :]: v for k, v in self._members.items() if k.startswith(f"{name}/")}
            if found:
                return found
        return {}

    def _flags(self, role: str) -> Array | None:
        found = self._find(role)
        if found is None:
            return None
        if found.shape[:1] != (self.rows,):
            name = next(name for name in ROLES[role] if name in self._members)
            raise DemoError(f"`{name}` of {self.where} has {found.shape[0]} rows, not {self.rows}.", "")
        return found[:].reshape(self.rows)

    def _trajectories(self) -> list[Span]:
        """Episodes of T + 1 observations each behind one another, cut at the steps in `indices` (imitation's NPZ)."""
        cuts = self._whole("indices").astype(np.int64)
        bounds = [0, *cuts.tolist(), self.rows]
        count = len(bounds) - 1
        self._expect(self.obs, self.rows + count)
        ended = self._whole("ended") if self._find("ended") is not None else None
        if ended is None:
            terminal = self._whole("terminal") if self._find("terminal") is not None else np.zeros(count, bool)
            ended = np.where(terminal.astype(bool), TERMINATED, 0)
        if len(ended) != count or any(stop < start for start, stop in pairwise(bounds)):
            raise DemoError(f"`indices` of {self.where} does not cut {self.rows} steps into {len(ended)} episodes.", "")
        pairs = enumerate(pairwise(bounds))
        return [Span(start, stop, start + n, "own", int(ended[n])) for n, (start, stop) in pairs]

    def _whole(self, role: str) -> Array:
        found = self._find(role)
        assert found is not None
        return found[:].reshape(-1)

    def _episodes(self) -> list[Span]:
        """Episodes told by flags, by their starts or by their numbers."""
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
                f"Nothing in {self.where} says where episodes end.",
                "add an array `terminals` and `timeouts`, `dones`, `episode_starts` or `episode` (its number)",
            )
        self._expect(self.obs, self.rows)
        if self.next:
            self._expect(self.next, self.rows)
        stops = np.unique(np.append(np.flatnonzero(last) + 1, self.rows))
        spans = []
        for start, stop in zip([0, *stops.tolist()], stops.tolist(), strict=False):
            ended = TRUNCATED if truncated is not None and truncated[stop - 1] else 0
            ended = TERMINATED if terminated is not None and terminated[stop - 1] else ended
            last_obs = "next" if self.next else "again" if ended == TERMINATED else "own"
            spans.append(Span(start, stop if last_obs != "own" else stop - 1, start, last_obs, ended))
        return spans

    def _expect(self, group: Mapping[str, Rows], rows: int) -> None:
        for name, array in group.items():
            if array.shape[0] != rows:
                label = f"obs/{name}" if name else "obs"
                raise DemoError(f"`{label}` of {self.where} has {array.shape[0]} rows, not {rows}.", "")
        for name, other in (("actions", self.action), ("rewards", self.reward)):
            if other is not None and other.shape[0] != self.rows:
                raise DemoError(f"{self.where} has {other.shape[0]} {name} for {self.rows} steps.", "")

    def observations(self, span: Span) -> Any:
        """The T + 1 observations of an episode."""
        found = {}
        for name, array in self.obs.items():
            if span.last == "own":
                found[name] = array[span.obs : span.obs + span.stop - span.start + 1]
                continue
            rows = array[span.obs : span.stop]
            behind = self.next[name][span.stop - 1 : span.stop] if span.last == "next" else rows[-1:]
            found[name] = np.concatenate([rows, behind])
        return found.get("", found)

    def rewards(self, span: Span) -> Array:
        """The rewards of an episode; zeros where the table has none."""
        if self.reward is None:
            return np.zeros(span.stop - span.start, np.float32)
        return self.reward[span.start : span.stop].reshape(-1).astype(np.float32)


def table_source(
    table: Table, form: str, place: str, env: str, rules: SpaceRules, given: tuple[Space, Space] | None,
    bounds: Bounds, files: Sequence[Any] = (), close: Callable[[], None] = lambda: None,
) -> Source:  # fmt: skip
    """The episodes of a table; spaces are those of the environment where it is known, else found in the data."""
    assert table.action is not None
    action_rows = table.action
    obs_space, action_space = given or (infer_obs(table.obs), infer_action(_blocks(action_rows), bounds))
    codec = Codec(obs_space, action_space, env, rules)

    def read(part: Part) -> Episode:
        span: Span = part.key
        steps = span.stop - span.start
        if steps < 1:
            raise DemoError("has no whole step: what came after its only observation is not in the data", "")
        with readable(Path(place)):
            obs, acts = _columns(table.observations(span), obs_space), action_rows[span.start : span.stop]
            reward = table.rewards(span)
        return Episode(
            {"obs": codec.rows(obs, steps + 1), "action": codec.actions(acts, steps), "reward": reward}, span.ended
        )

    parts = [Part(f"episode {number}", span, tuple(files)) for number, span in enumerate(table.spans)]
    schema = Schema(env, codec.obs, codec.action)
    return Source(
        form, place, schema, parts, read, lambda part: part.key.stop - part.key.start, close=close,
        options={"action": codec.action.describe(), "spaces": "env" if given else "data"},
    )  # fmt: skip


def infer_obs(group: Mapping[str, Any]) -> Space:
    """The space that observations must have had: pixels where they are uint8, else numbers."""
    inner = {name: _box(array.shape[1:], np.dtype(array.dtype), name) for name, array in group.items()}
    return inner[""] if "" in inner else spaces.Dict(inner)


def _box(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> Space:
    if dtype == np.uint8:
        return spaces.Box(0, 255, shape or (1,), np.uint8)
    if dtype.kind not in "biuf":
        raise DemoError(f"The observations{f' `{name}`' if name else ''} are {dtype}, not numbers.", "leave them out")
    return spaces.Box(-np.inf, np.inf, shape or (1,), np.float32)


def infer_action(blocks: Any, bounds: Bounds) -> Space:
    """The space that actions must have had: whole numbers are choices, others lie between bounds."""
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
        raise DemoError("There are no actions, or they are not numbers.", "save them as whole or real numbers")
    if not np.isfinite(low).all() or not np.isfinite(high).all():
        raise DemoError("There are NaN or infinite numbers among the actions.", "leave those episodes out")
    if kind == "f":
        return _between(low, high, bounds, parts)
    if low.min() < 0:
        raise DemoError(f"A choice of {low.min()} is negative.", "count options from 0")
    if kind == "b" and not bounds.sizes:
        return spaces.MultiBinary(parts)
    sizes = _spread(bounds.sizes, parts, "--sizes") if bounds.sizes else (high.astype(np.int64) + 1).tolist()
    return spaces.Discrete(int(sizes[0])) if parts == 1 else spaces.MultiDiscrete(sizes)


def _between(low: Array, high: Array, bounds: Bounds, parts: int) -> Space:
    """Real numbers between given bounds or those of the data; a part that never changed gets some room."""
    room = (low == high).astype(np.float32)
    least = _spread(bounds.low, parts, "--low") if bounds.low else low - room
    most = _spread(bounds.high, parts, "--high") if bounds.high else high + room
    return spaces.Box(np.asarray(least, np.float32), np.asarray(most, np.float32), dtype=np.float32)


def _spread(given: Sequence[Any], parts: int, flag: str) -> list[Any]:
    if len(given) not in (1, parts):
        raise ConfigError(
            f"Actions have {parts} parts, {flag} is for {len(given)}.", f"give {flag} 1 or {parts} numbers"
        )
    return list(given) * parts if len(given) == 1 else list(given)


def _blocks(array: Rows) -> Any:
    return (array[start : start + BLOCK] for start in range(0, array.shape[0], BLOCK))


def _columns(values: Any, space: Space) -> Any:
    """Observations shaped as their space has them: a bare number becomes a vector of one."""
    if isinstance(values, Mapping):
        return {name: _columns(value, space[name]) for name, value in values.items()}  # type: ignore[index]
    return values.reshape(len(values), *space.shape) if isinstance(space, spaces.Box) else values
