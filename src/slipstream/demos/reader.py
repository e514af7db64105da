"""Read demos: memory-mapped columns, accessed by episode, by step and by sequence."""

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

SCATTERED = 8
"""If rows are further apart than this on average, read-ahead of the file is turned off."""


class ShardView:
    """The complete episodes of one shard."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self.schema = schema
        self.name = path.name
        self.records = self._complete_records()
        self._columns: dict[str, Array] = {}
        self._scattered: set[str] = set()
        """Columns with read-ahead turned off."""

    @cached_property
    def origin(self) -> dict[str, Any]:
        """The content of shard.json: who recorded the shard, when, with what."""
        try:
            content = json.loads((self.path / "shard.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _complete_records(self) -> Array:
        """The records before the first one that is damaged or has missing values."""
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
        """All values of a column, memory-mapped; `scattered` turns read-ahead off."""
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
            hint = "raise the limit (ulimit -n), or merge the shards: slipstream demos merge DIR --out NEW"
            raise MachineError(f"{self.path / column.file} cannot be opened: too many open files.", hint) from error

    def span(self, column: Column, index: int) -> slice:
        """The slice of a column that holds an episode."""
        record = self.records[index]
        start = column.start(int(record["first"]), index)
        return slice(start, start + column.count(int(record["steps"])))

    def values(self, index: int, names: Iterable[str] | None = None) -> dict[str, Array]:
        """The columns of an episode, as views."""
        columns = list(self.schema.columns) if names is None else [self.schema.column(n) for n in names]
        return {c.name: self.column(c.name)[self.span(c, index)] for c in columns}

    def intact(self, index: int) -> bool:
        """Whether the values of an episode match its checksum."""
        checksum = 0
        for array in self.values(index).values():
            checksum = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, checksum)
        return bool(checksum == self.records[index]["checksum"])


class Demos:
    """A demos folder, or some of its episodes."""

    def __init__(
        self, path: Path, schema: Schema, shards: Sequence[ShardView], chosen: Array, left_out: Mapping[str, Any]
    ) -> None:
        self.path = path
        self.schema = schema
        self.shards = list(shards)
        self.chosen = chosen
        """Shard number and index in the shard of each episode [episodes, 2]."""
        self.left_out = left_out
        """The reasons of quarantined episodes, by `SHARD/INDEX`."""
        self.episodes = np.zeros(len(chosen), EPISODE)
        for number in np.unique(chosen[:, 0]):
            mine = np.flatnonzero(chosen[:, 0] == number)
            self.episodes[mine] = self.shards[number].records[chosen[mine, 1]]
        self.offsets = np.concatenate([[0], np.cumsum(self.episodes["steps"])])
        """The number of each episode's first step among all steps, and the total at the end [episodes + 1]."""

    @classmethod
    def open(cls, path: Path | str, *, quarantined: bool = False) -> Demos:
        """Open a folder; quarantined episodes are left out unless `quarantined` is set."""
        path = Path(path)
        schema = read_schema(path)
        folders = sorted(p for p in (path / "shards").iterdir() if p.is_dir()) if (path / "shards").is_dir() else []
        shards = [view for view in (ShardView(folder, schema) for folder in folders) if len(view.records)]
        left_out = _quarantine(path)
        chosen = [
            (number, index)
            for number, shard in enumerate(shards)
            for index in range(len(shard.records))
            if quarantined or f"{shard.name}/{index}" not in left_out
        ]
        return cls(path, schema, shards, np.array(chosen, np.int64).reshape(-1, 2), left_out)

    def __len__(self) -> int:
        """The number of episodes."""
        return len(self.episodes)

    @property
    def steps(self) -> int:
        """The number of steps of all episodes."""
        return int(self.offsets[-1])

    @cached_property
    def games(self) -> Array:
        """The number of each episode's game; the agents of one game share it."""
        keys = np.stack([self.chosen[:, 0], self.episodes["game"]], axis=1)
        return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)

    @cached_property
    def checksum(self) -> str:
        """A hash of the schema and of the checksums of all episodes."""
        digest = hashlib.sha256(json.dumps(self.schema.describe(), sort_keys=True).encode())
        digest.update(self.episodes["steps"].tobytes() + self.episodes["checksum"].tobytes())
        return digest.hexdigest()

    def label(self, episode: int) -> str:
        """The name of an episode: its shard and its index there."""
        shard, index = self.chosen[episode]
        return f"{self.shards[shard].name}/{index}"

    def pick(self, episodes: Sequence[int] | Array) -> Demos:
        """The same folder with some of its episodes, in the given order."""
        chosen = self.chosen[np.asarray(episodes, np.int64)].reshape(-1, 2)
        return Demos(self.path, self.schema, self.shards, chosen, self.left_out)

    def join(self, other: Demos) -> Demos:
        """These episodes followed by those of another folder with the same schema."""
        if other.schema != self.schema:
            raise DemoError(
                f"{other.path} and {self.path} have different schemas.", "record both with the same env and settings"
            )
        moved = other.chosen + np.array([len(self.shards), 0])
        return Demos(
            self.path, self.schema, [*self.shards, *other.shards], np.concatenate([self.chosen, moved]), self.left_out
        )

    def episode(self, number: int, names: Iterable[str] | None = None) -> dict[str, Array]:
        """The columns of an episode, as memory-mapped views; `obs` has one more row than there are steps."""
        shard, index = (int(x) for x in self.chosen[number])
        return self.shards[shard].values(index, names)

    def locate(self, steps: Array) -> tuple[Array, Array]:
        """The episode of each step (numbered over all episodes), and the step's index in the episode."""
        if len(steps) and (steps.min() < 0 or steps.max() >= self.steps):
            wrong = steps.min() if steps.min() < 0 else steps.max()
            raise DemoError(f"There is no step {wrong:,}: these demos have {self.steps:,}.", "")
        episode = np.searchsorted(self.offsets, steps, "right") - 1
        return episode, steps - self.offsets[episode]

    def take(self, name: str, steps: Array, ahead: int = 0, out: Array | None = None) -> Array:
        """Gather the values of a column at some steps [n, ...]; `ahead` = 1 gives the next observation of each."""
        column = self.schema.column(name)
        episode, within = self.locate(np.asarray(steps, np.int64))
        if out is None:
            out = np.zeros((len(episode), *column.shape), column.dtype)
        shards, indices = self.chosen[episode, 0], self.chosen[episode, 1]
        first = self.episodes["first"][episode]
        extra = {"step": within, "obs": within + indices + ahead, "episode": indices - first}[column.per]
        for shard in np.unique(shards):
            mine = np.flatnonzero(shards == shard)
            rows = (first + extra)[mine]
            scattered = bool(np.ptp(rows) > SCATTERED * len(rows))
            out[mine] = self.shards[shard].column(name, scattered)[rows]
        return out

    def sequences(self, length: int) -> Array:
        """The first steps of all consecutive sequences of `length` steps within episodes; remainders are dropped."""
        starts = [
            np.arange(start, start + steps // length * length, length)
            for start, steps in zip(self.offsets, self.episodes["steps"], strict=False)
        ]
        return np.concatenate(starts) if starts else np.zeros(0, np.int64)

    def take_sequences(self, name: str, starts: Array, length: int) -> Array:
        """Gather the values of a column over sequences [n, length, ...] that begin at the steps `starts`."""
        steps = (np.asarray(starts, np.int64)[:, None] + np.arange(length)).reshape(-1)
        taken = self.take(name, steps)
        return taken.reshape(len(starts), length, *taken.shape[1:])

    def load(self, names: Sequence[str]) -> dict[str, Array]:
        """Copy whole columns of all episodes into memory; the last observation of each episode is left out."""
        found: dict[str, Array] = {}
        for name in names:
            column = self.schema.column(name)
            per_episode = column.per == "episode"
            out = np.zeros((len(self) if per_episode else self.steps, *column.shape), column.dtype)
            for number, (shard, index) in enumerate(self.chosen):
                view, low = self.shards[shard], int(self.offsets[number])
                steps = int(self.episodes["steps"][number])
                span = view.span(column, int(index))
                if per_episode:
                    out[number] = view.column(name)[span][0]
                else:
                    out[low : low + steps] = view.column(name)[span][:steps]
            found[name] = out
        return found


def _quarantine(path: Path) -> dict[str, Any]:
    file = path / "quarantine.json"
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))["episodes"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DemoError(
            f"{file} cannot be read: {error!r}.", f"remove it and run: slipstream demos check {path}"
        ) from error
