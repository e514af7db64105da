"""Reading demos: columns mapped into memory, found by episode, by step and by sequence."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.format import EPISODE, Column, Schema, read_schema
from slipstream.demos.writer import seal
from slipstream.errors import DemoError, MachineError

FAR = 8
"""Values that lie further apart than this on average are read one by one, and nothing ahead of them."""


class ShardView:
    """The whole episodes of one shard."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self.schema = schema
        self.name = path.name
        self.records = self._whole()
        self._columns: dict[str, Array] = {}
        self._scattered: set[str] = set()
        """Columns of which the system was told not to read ahead."""

    @cached_property
    def origin(self) -> dict[str, Any]:
        """Who recorded it, when, with what."""
        try:
            told = json.loads((self.path / "shard.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def _whole(self) -> Array:
        """The records up to the first that is damaged or whose values are not all there."""
        try:
            data = (self.path / "episodes.bin").read_bytes()
        except FileNotFoundError:
            return np.zeros(0, EPISODE)
        records = np.frombuffer(data[: len(data) // EPISODE.itemsize * EPISODE.itemsize], EPISODE)
        good = seal(records) == records["seal"]
        ends = records["first"] + records["steps"]
        for column in self.schema.columns:
            file = self.path / column.file
            held = file.stat().st_size // max(1, column.bytes) if file.exists() else 0
            if column.bytes:
                needed = {"step": ends, "obs": ends + np.arange(len(records)) + 1}.get(
                    column.per, np.arange(len(records)) + 1
                )
                good &= needed <= held
        return records[: int(np.argmin(good)) if not good.all() else len(records)]

    def column(self, name: str, scattered: bool = False) -> Array:
        """All values of a column, mapped from disk; values here and there are read without what is around them."""
        if name not in self._columns:
            self._columns[name] = self._map(self.schema.column(name))
        mapped = self._columns[name].base
        if scattered != (name in self._scattered) and isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM if scattered else mmap.MADV_NORMAL)
            self._scattered ^= {name}
        return self._columns[name]

    def _map(self, column: Column) -> Array:
        last = self.records[-1]
        count = column.start(int(last["first"]), len(self.records) - 1) + column.count(int(last["steps"]))
        shape = (count, *column.shape)
        if not column.bytes:
            return np.zeros(shape, column.dtype)
        try:
            return np.memmap(self.path / column.file, column.dtype, "r", shape=shape)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            hint = "raise the limit (ulimit -n), or make one shard of many: slipstream demos merge DIR --out NEW"
            raise MachineError(f"{self.path / column.file}: too many files are open at once.", hint) from error

    def span(self, column: Column, place: int) -> slice:
        """Where the values of an episode stand in a column."""
        record = self.records[place]
        start = column.start(int(record["first"]), place)
        return slice(start, start + column.count(int(record["steps"])))

    def values(self, place: int, names: Iterable[str] | None = None) -> dict[str, Array]:
        """The columns of an episode, as views."""
        wanted = list(self.schema.columns) if names is None else [self.schema.column(n) for n in names]
        return {c.name: self.column(c.name)[self.span(c, place)] for c in wanted}

    def intact(self, place: int) -> bool:
        """Whether the values of an episode are those that were written."""
        checksum = 0
        for array in self.values(place).values():
            checksum = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, checksum)
        return bool(checksum == self.records[place]["checksum"])


class Demos:
    """A demos folder, or some of its episodes."""

    def __init__(
        self, path: Path, schema: Schema, shards: Sequence[ShardView], chosen: Array, left_out: Mapping[str, Any]
    ) -> None:
        self.path = path
        self.schema = schema
        self.shards = list(shards)
        self.chosen = chosen
        """Shard and place of each episode [episodes, 2]."""
        self.left_out = left_out
        """Why episodes are in quarantine, by `SHARD/PLACE`."""
        self.episodes = np.zeros(len(chosen), EPISODE)
        for number in np.unique(chosen[:, 0]):
            mine = np.flatnonzero(chosen[:, 0] == number)
            self.episodes[mine] = self.shards[number].records[chosen[mine, 1]]
        self.offsets = np.concatenate([[0], np.cumsum(self.episodes["steps"])])
        """The number of each episode's first step among all, and behind the last their count."""

    @classmethod
    def open(cls, path: Path | str, *, quarantined: bool = False) -> Demos:
        """Open a folder; episodes in quarantine are left out unless asked for."""
        path = Path(path)
        schema = read_schema(path)
        folders = sorted(p for p in (path / "shards").iterdir() if p.is_dir()) if (path / "shards").is_dir() else []
        shards = [view for view in (ShardView(folder, schema) for folder in folders) if len(view.records)]
        left_out = _quarantine(path)
        chosen = [
            (number, place)
            for number, shard in enumerate(shards)
            for place in range(len(shard.records))
            if quarantined or f"{shard.name}/{place}" not in left_out
        ]
        return cls(path, schema, shards, np.array(chosen, np.int64).reshape(-1, 2), left_out)

    def __len__(self) -> int:
        """Episodes."""
        return len(self.episodes)

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return int(self.offsets[-1])

    @cached_property
    def games(self) -> Array:
        """The number of the game that each episode belongs to; agents of one game share it."""
        keys = np.stack([self.chosen[:, 0], self.episodes["game"]], axis=1)
        return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)

    @cached_property
    def checksum(self) -> str:
        """What tells this data from any other: a hash of the schema and of the episodes' own checksums."""
        told = hashlib.sha256(json.dumps(self.schema.describe(), sort_keys=True).encode())
        told.update(self.episodes["steps"].tobytes() + self.episodes["checksum"].tobytes())
        return told.hexdigest()

    def label(self, episode: int) -> str:
        """The name of an episode: its shard and its place there."""
        shard, place = self.chosen[episode]
        return f"{self.shards[shard].name}/{place}"

    def pick(self, episodes: Sequence[int] | Array) -> Demos:
        """The same folder with some of its episodes, in the order given."""
        return Demos(
            self.path, self.schema, self.shards, self.chosen[np.asarray(episodes, np.int64)].reshape(-1, 2),
            self.left_out,
        )  # fmt: skip

    def join(self, other: Demos) -> Demos:
        """These episodes and, behind them, those of another folder with the same kind of data."""
        if other.schema != self.schema:
            raise DemoError(f"{other.path} and {self.path} hold different kinds of data.", "record both alike")
        moved = other.chosen + np.array([len(self.shards), 0])
        return Demos(
            self.path, self.schema, [*self.shards, *other.shards], np.concatenate([self.chosen, moved]), self.left_out
        )

    def episode(self, number: int, names: Iterable[str] | None = None) -> dict[str, Array]:
        """The columns of an episode, as views of what is on disk; `obs` has one row more than steps."""
        shard, place = (int(x) for x in self.chosen[number])
        return self.shards[shard].values(place, names)

    def locate(self, steps: Array) -> tuple[Array, Array]:
        """The episode of each step (numbered over all episodes), and its number there."""
        if len(steps) and (steps.min() < 0 or steps.max() >= self.steps):
            wrong = steps.min() if steps.min() < 0 else steps.max()
            raise DemoError(f"There is no step {wrong:,}: these demos have {self.steps:,}.", "")
        episode = np.searchsorted(self.offsets, steps, "right") - 1
        return episode, steps - self.offsets[episode]

    def take(self, name: str, steps: Array, ahead: int = 0, out: Array | None = None) -> Array:
        """The values of a column at some steps [n, ...]; `ahead` = 1 gives the observation after each."""
        column = self.schema.column(name)
        episode, within = self.locate(np.asarray(steps, np.int64))
        if out is None:
            out = np.zeros((len(episode), *column.shape), column.dtype)
        shards, places = self.chosen[episode, 0], self.chosen[episode, 1]
        first = self.episodes["first"][episode]
        extra = {"step": within, "obs": within + places + ahead, "episode": places - first}[column.per]
        for shard in np.unique(shards):
            mine = np.flatnonzero(shards == shard)
            rows = (first + extra)[mine]
            scattered = bool(np.ptp(rows) > FAR * len(rows))
            out[mine] = self.shards[shard].column(name, scattered)[rows]
        return out

    def sequences(self, length: int) -> Array:
        """The first step of every sequence of `length` steps that lies within an episode, side by side; tails drop."""
        starts = [
            np.arange(start, start + steps // length * length, length)
            for start, steps in zip(self.offsets, self.episodes["steps"], strict=False)
        ]
        return np.concatenate(starts) if starts else np.zeros(0, np.int64)

    def take_sequences(self, name: str, starts: Array, length: int) -> Array:
        """The values of a column over sequences [n, length, ...] that begin at the steps `starts`."""
        steps = (np.asarray(starts, np.int64)[:, None] + np.arange(length)).reshape(-1)
        taken = self.take(name, steps)
        return taken.reshape(len(starts), length, *taken.shape[1:])

    def load(self, names: Sequence[str]) -> dict[str, Array]:
        """Whole columns of all episodes, copied behind one another; observations without the last of each."""
        found: dict[str, Array] = {}
        for name in names:
            column = self.schema.column(name)
            per_episode = column.per == "episode"
            out = np.zeros((len(self) if per_episode else self.steps, *column.shape), column.dtype)
            for number, (shard, place) in enumerate(self.chosen):
                view, low = self.shards[shard], int(self.offsets[number])
                steps = int(self.episodes["steps"][number])
                span = view.span(column, int(place))
                if per_episode:
                    out[number] = view.column(name)[span][0]
                else:
                    out[low : low + steps] = view.column(name)[span][:steps]
            found[name] = out
        return found


def _quarantine(path: Path) -> dict[str, Any]:
    file = path / "quarantine.json"
    try:
        told: Any = json.loads(file.read_text(encoding="utf-8"))["episodes"]
        return dict(told)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DemoError(
            f"{file} cannot be read: {error!r}.", f"remove it and run: slipstream demos check {path}"
        ) from error
