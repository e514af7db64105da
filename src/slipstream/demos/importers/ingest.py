"""Taking episodes in: from any source into new shards, several at once, all of them or none.

Shards are written beside the target and moved there when the last episode is in, so that an import that fails leaves
nothing behind. Workers are threads: decoding, unpacking and resizing leave the interpreter free. Each writes one shard
of neighbouring episodes, so that their order is that of the source, however many workers there are.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.format import Schema
from slipstream.demos.quality import LIMIT
from slipstream.demos.writer import Shard, prepare, recording_name
from slipstream.errors import ConfigError, DemoError, MachineError
from slipstream.runs.layout import sync_folder, write_json
from slipstream.runs.provenance import version
from slipstream.system.machine import cores

SHOWN = 5
"""Unreadable episodes that an error names."""


@dataclass(frozen=True)
class Part:
    """One episode of a source, before it is read."""

    name: str
    key: Any = None
    """What its source finds it by."""
    files: tuple[Path, ...] = ()

    @property
    def weight(self) -> int:
        """How much work it is, roughly."""
        return 1 + sum(file.stat().st_size for file in self.files if file.exists())


@dataclass(frozen=True)
class Episode:
    """One episode as it was read."""

    values: dict[str, Array]
    ended: int
    outcome: int = 0
    seed: int = 0
    notes: tuple[str, ...] = ()
    """What is odd about it, though it can be used."""


@dataclass(frozen=True)
class Source:
    """Episodes in somebody else's format, found but not yet read."""

    format: str
    place: str
    schema: Schema
    parts: Sequence[Part]
    read: Callable[[Part], Episode]
    """Reads one episode whole; raises DemoError where it cannot be used."""
    count: Callable[[Part], int]
    """The steps of an episode, found without reading it whole."""
    options: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The words behind one-hot observations and numbered actions, by field or column."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The dtype that observations had, by field."""
    bad: Mapping[str, str] = field(default_factory=dict)
    """Episodes that are known to be unreadable, and why."""
    notes: Sequence[str] = ()
    """What is odd about the source as a whole."""
    parallel: bool = False
    close: Callable[[], None] = lambda: None


def optional(module: str, extra: str) -> Any:
    """A package that is not always there, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MachineError(
            f"This needs the package `{module}`, which cannot be imported: {error}.",
            f'pip install "slipstream[{extra}]"',
        ) from error


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """What goes wrong while a file is read, told as an error about that file."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
        raise DemoError(f"{path} {what}.", "get it again, or leave it out") from error


def ingest(
    source: Source, out: Path, *, workers: int | None = None, allow: float = LIMIT, max_samples: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the episodes of a source into a demos folder, new or of the same kind, and tell what was done.

    `max_samples` is the most steps taken; the episode that passes it is cut there. A larger share of unreadable
    episodes than `allow` is an error.
    """
    started = time.monotonic()
    out = out.absolute()
    try:
        _check_target(source, out)
        parts = _chosen(source, max_samples)
        count = min(len(parts), workers or cores()) if source.parallel else 1
        name = recording_name()
        staging = out.with_name(f".{out.name}.{name}")
        intake = _Intake(source, staging, len(parts), allow, on_progress)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            intake.run({f"{name}-{number:03d}": share for number, share in enumerate(_shares(parts, count))})
            shards = _publish(source.schema, staging, out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        source.close()
    return {
        "format": source.format,
        "source": source.place,
        "out": str(out),
        "env": source.schema.env,
        "shards": shards,
        "episodes": intake.episodes,
        "steps": intake.steps,
        "bytes": intake.bytes,
        "workers": count,
        "seconds": time.monotonic() - started,
        "skipped": [{"episode": episode, "why": why} for episode, why in sorted(intake.bad.items())],
        "notes": sorted(intake.notes),
    }


def _check_target(source: Source, out: Path) -> None:
    """See early that the target can take these episodes."""
    if out.is_file():
        raise DemoError(f"{out} is a file, not a folder.", "choose another folder with --out DIR")
    if not out.exists() or not any(out.iterdir()):
        return
    prepare(out, source.schema)
    for file in sorted(out.glob("shards/*/shard.json")):
        with readable(file):
            known = json.loads(file.read_text(encoding="utf-8")).get("vocabulary", {})
        if known != {name: list(words) for name, words in source.vocabulary.items()}:
            raise DemoError(
                f"{out} holds demos with other words behind their numbers (`vocabulary` in {file}).",
                "import everything at once, or into another folder with --out DIR",
            )


def _chosen(source: Source, max_samples: int | None) -> list[tuple[Part, int | None]]:
    """The episodes to read, each with the steps to keep of it where it is cut."""
    if max_samples is None:
        return [(part, None) for part in source.parts]
    if max_samples < 1:
        raise ConfigError(f"{max_samples} samples cannot be imported.", "give --max-samples a positive number")
    left, chosen = max_samples, []
    for part in source.parts:
        if left <= 0:
            break
        steps = source.count(part)
        chosen.append((part, left if steps > left else None))
        left -= steps
    return chosen


def _shares(parts: Sequence[tuple[Part, int | None]], count: int) -> list[list[tuple[Part, int | None]]]:
    """Neighbouring episodes in `count` shares of about the same work."""
    ends = np.cumsum([part.weight for part, _ in parts])
    middles = ends - np.diff(ends, prepend=0) / 2
    owner = np.minimum((middles / ends[-1] * count).astype(int), count - 1) if len(parts) else np.zeros(0, int)
    return [[parts[i] for i in np.flatnonzero(owner == number).tolist()] for number in range(count)]


class _Intake:
    """What the workers of one import share."""

    def __init__(
        self, source: Source, staging: Path, total: int, allow: float, on_progress: Callable[[int, int], None] | None
    ) -> None:
        self.source, self.staging, self.total, self.allow = source, staging, total, allow
        self.on_progress = on_progress
        self.bad: dict[str, str] = dict(source.bad)
        self.notes: list[str] = list(source.notes)
        self.episodes = self.steps = self.bytes = 0
        self._done = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._origin = _origin(source)
        self._games = {part.name: number for number, part in enumerate(source.parts)}

    def run(self, shares: Mapping[str, Sequence[tuple[Part, int | None]]]) -> None:
        """Read every share in a thread of its own; the first error stops all."""
        self._check_bad()
        with ThreadPoolExecutor(max(1, len(shares))) as pool:
            try:
                for done in [pool.submit(self._write, name, share) for name, share in shares.items()]:
                    done.result()
            except BaseException:
                self._stop.set()
                raise
        if not self.episodes:
            why = f" The first: {next(iter(self.bad.items()))}." if self.bad else ""
            raise DemoError(f"{self.source.place} holds no episode that can be used.{why}", "look at the source")

    def _write(self, name: str, share: Sequence[tuple[Part, int | None]]) -> None:
        """Write one shard."""
        try:
            if share:
                self._write_shard(name, share)
        except BaseException:
            self._stop.set()
            raise

    def _write_shard(self, name: str, share: Sequence[tuple[Part, int | None]]) -> None:
        schema = self.source.schema
        shard = Shard(self.staging, name, schema, {})
        written: list[Part] = []
        try:
            for part, limit in share:
                if self._stop.is_set():
                    return
                try:
                    episode = self.source.read(part)
                    values, ended = episode.values, episode.ended
                    if limit is not None and limit < len(values["reward"]):
                        values, ended = cut(schema, values, limit), 0
                    shard.add(
                        values, game=self._games[part.name], ended=ended, outcome=episode.outcome, seed=episode.seed
                    )
                except DemoError as error:
                    self._tell(bad=(part.name, error.message))
                    continue
                written.append(part)
                self._tell(notes=[f"{part.name}: {note}" for note in episode.notes])
            if written:
                write_json(shard.path / "shard.json", self._origin | {"worker": _sources(written)})
        finally:
            shard.close()
        with self._lock:
            self.episodes += shard.episodes
            self.steps += shard.steps
            self.bytes += shard.bytes

    def _tell(self, bad: tuple[str, str] | None = None, notes: Sequence[str] = ()) -> None:
        with self._lock:
            self._done += 1
            self.notes += notes
            if bad is not None:
                self.bad[bad[0]] = bad[1]
            self._check_bad()
            if self.on_progress is not None:
                self.on_progress(self._done, self.total)

    def _check_bad(self) -> None:
        total = self.total + len(self.source.bad)
        if len(self.bad) <= self.allow * total:
            return
        named = "".join(f"\n  {episode}: {why}" for episode, why in itertools.islice(self.bad.items(), SHOWN))
        share = f"more than {100 * self.allow:g} %"
        raise DemoError(
            f"{len(self.bad)} of {total} episodes of {self.source.place} cannot be used, {share}:{named}",
            "mend or remove them, or take the others: --allow SHARE says how many may be bad; nothing was written",
        )


def cut(schema: Schema, values: Mapping[str, Array], steps: int) -> dict[str, Array]:
    """The first steps of an episode, every column as long as it must be."""
    return {column.name: values[column.name][: column.count(steps)] for column in schema.columns}


def _origin(source: Source) -> dict[str, Any]:
    """Where episodes came from and how they were read: the same for all shards of an import."""
    return {
        "format": source.format,
        "source": str(Path(source.place).absolute()) if Path(source.place).exists() else source.place,
        "imported_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "slipstream": version("slipstream"),
        "options": dict(source.options),
        "vocabulary": {name: list(words) for name, words in source.vocabulary.items()},
        "kinds": dict(source.kinds),
    }


def _sources(written: Sequence[Part]) -> dict[str, Any]:
    """The episodes of one shard by their own names, in their order, and the files they were in."""
    files = {}
    for file in dict.fromkeys(file for part in written for file in part.files if file.exists()):
        told = file.stat()
        files[str(file.absolute())] = {"bytes": told.st_size, "modified": told.st_mtime}
    return {"episodes": [part.name for part in written], "files": files}


def _publish(schema: Schema, staging: Path, out: Path) -> list[str]:
    """Move the finished shards to where they belong."""
    prepare(out, schema)
    (out / "shards").mkdir(exist_ok=True)
    names = sorted(shard.name for shard in (staging / "shards").iterdir())
    for name in names:
        os.replace(staging / "shards" / name, out / "shards" / name)
    sync_folder(out / "shards")
    return names
