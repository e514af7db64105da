"""Write the episodes of a `Source` into a demos folder, all of them or none.

Shards are written to a staging folder next to the target and moved into place after the last episode, so a failed
import leaves nothing behind. Workers are threads: decoding, decompressing and resizing release the GIL. Each worker
writes one shard of consecutive episodes, so the order of episodes does not depend on the number of workers.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.format import Schema
from slipstream.demos.importers.source import EpisodeRef, Source, file_errors
from slipstream.demos.quality import LIMIT
from slipstream.demos.writer import Shard, prepare, recording_name
from slipstream.errors import ConfigError, DemoError
from slipstream.runs.layout import sync_folder, write_json
from slipstream.runs.provenance import version
from slipstream.system.machine import cores

SHOWN = 5
"""The number of unreadable episodes listed in an error."""
Share = Sequence[tuple[EpisodeRef, int | None]]
"""Episodes of one worker, each with the number of steps to keep, or None for all."""


def ingest(
    source: Source,
    out: Path,
    *,
    workers: int | None = None,
    allow: float = LIMIT,
    max_samples: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Import a source into a new demos folder, or into one with the same schema, and return a summary.

    `max_samples` limits the number of steps; the episode that reaches the limit is cut there. DemoError is raised if
    the share of unreadable episodes exceeds `allow`.
    """
    started = time.monotonic()
    out = out.absolute()
    try:
        _check_target(source, out)
        episodes = _select(source, max_samples)
        count = min(len(episodes), workers or cores()) if source.parallel else 1
        name = recording_name()
        staging = out.with_name(f".{out.name}.{name}")
        job = _IngestJob(source, staging, len(episodes), allow, on_progress)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            job.run({f"{name}-{number:03d}": share for number, share in enumerate(_shares(episodes, count))})
            shards = _publish(source.schema, staging, out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        source.close()
    return {
        "format": source.format,
        "source": source.location,
        "out": str(out),
        "env": source.schema.env,
        "shards": shards,
        "episodes": job.episodes,
        "steps": job.steps,
        "bytes": job.bytes,
        "workers": count,
        "seconds": time.monotonic() - started,
        "skipped": [{"episode": episode, "why": why} for episode, why in sorted(job.bad.items())],
        "notes": sorted(job.notes),
    }


def _check_target(source: Source, out: Path) -> None:
    """Check that the target folder can take these episodes, before anything is read."""
    if out.is_file():
        raise DemoError(f"{out} is a file, not a folder.", "choose another folder with --out DIR")
    if not out.exists() or not any(out.iterdir()):
        return
    prepare(out, source.schema)
    for file in sorted(out.glob("shards/*/shard.json")):
        with file_errors(file):
            known = json.loads(file.read_text(encoding="utf-8")).get("vocabulary", {})
        if known != {name: list(names) for name, names in source.categories.items()}:
            raise DemoError(
                f"{out} holds demos with a different `vocabulary` (category names, see {file}).",
                "import everything at once, or into another folder with --out DIR",
            )


def _select(source: Source, max_samples: int | None) -> Share:
    """The episodes to read, up to `max_samples` steps."""
    if max_samples is None:
        return [(episode, None) for episode in source.episodes]
    if max_samples < 1:
        raise ConfigError(f"--max-samples is {max_samples}.", "give --max-samples a positive number")
    left, selected = max_samples, []
    for episode in source.episodes:
        if left <= 0:
            break
        steps = source.count(episode)
        selected.append((episode, left if steps > left else None))
        left -= steps
    return selected


def _shares(episodes: Share, count: int) -> list[Share]:
    """Split consecutive episodes into `count` shares of about the same size."""
    ends = np.cumsum([episode.weight for episode, _ in episodes])
    middles = ends - np.diff(ends, prepend=0) / 2
    owner = np.minimum((middles / ends[-1] * count).astype(int), count - 1) if len(episodes) else np.zeros(0, int)
    return [[episodes[i] for i in np.flatnonzero(owner == number).tolist()] for number in range(count)]


class _IngestJob:
    """The state shared by the workers of one import."""

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
        self._game_numbers = {episode.name: number for number, episode in enumerate(source.episodes)}

    def run(self, shares: Mapping[str, Share]) -> None:
        """Read every share in its own thread; the first error stops all threads."""
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
            raise DemoError(f"{self.source.location} holds no usable episode.{why}", "check the source")

    def _write(self, name: str, share: Share) -> None:
        """Write one shard; on an error, stop the other workers."""
        try:
            if share:
                self._write_shard(name, share)
        except BaseException:
            self._stop.set()
            raise

    def _write_shard(self, name: str, share: Share) -> None:
        schema = self.source.schema
        shard = Shard(self.staging, name, schema, {})
        written: list[EpisodeRef] = []
        try:
            for ref, limit in share:
                if self._stop.is_set():
                    return
                try:
                    episode = self.source.read(ref)
                    values, ended = episode.values, episode.ended
                    if limit is not None and limit < len(values["reward"]):
                        values, ended = _truncate(schema, values, limit), 0
                    game = self._game_numbers[ref.name]
                    shard.add(values, game=game, ended=ended, outcome=episode.outcome, seed=episode.seed)
                except DemoError as error:
                    self._record(bad=(ref.name, error.message))
                    continue
                written.append(ref)
                self._record(notes=[f"{ref.name}: {note}" for note in episode.notes])
            if written:
                write_json(shard.path / "shard.json", self._origin | {"worker": _provenance(written)})
        finally:
            shard.close()
        with self._lock:
            self.episodes += shard.episodes
            self.steps += shard.steps
            self.bytes += shard.bytes

    def _record(self, bad: tuple[str, str] | None = None, notes: Sequence[str] = ()) -> None:
        """Count one finished episode and report progress."""
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
        listed = "".join(f"\n  {episode}: {why}" for episode, why in itertools.islice(self.bad.items(), SHOWN))
        share = f"more than {100 * self.allow:g} %"
        raise DemoError(
            f"{len(self.bad)} of {total} episodes of {self.source.location} cannot be used, {share}:{listed}",
            "fix or remove them, or import the others with a higher --allow SHARE; nothing was written",
        )


def _truncate(schema: Schema, values: Mapping[str, Array], steps: int) -> dict[str, Array]:
    """The first `steps` steps of an episode."""
    return {column.name: values[column.name][: column.count(steps)] for column in schema.columns}


def _origin(source: Source) -> dict[str, Any]:
    """The origin stored in every shard of an import."""
    return {
        "format": source.format,
        "source": str(Path(source.location).absolute()) if Path(source.location).exists() else source.location,
        "imported_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "slipstream": version("slipstream"),
        "options": dict(source.options),
        "vocabulary": {name: list(names) for name, names in source.categories.items()},
        "kinds": dict(source.dtypes),
    }


def _provenance(written: Sequence[EpisodeRef]) -> dict[str, Any]:
    """The names of the episodes of one shard, in order, and their files."""
    files = {}
    for file in dict.fromkeys(file for episode in written for file in episode.files if file.exists()):
        stat = file.stat()
        files[str(file.absolute())] = {"bytes": stat.st_size, "modified": stat.st_mtime}
    return {"episodes": [episode.name for episode in written], "files": files}


def _publish(schema: Schema, staging: Path, out: Path) -> list[str]:
    """Move the finished shards into the target folder."""
    prepare(out, schema)
    (out / "shards").mkdir(exist_ok=True)
    names = sorted(shard.name for shard in (staging / "shards").iterdir())
    for name in names:
        os.replace(staging / "shards" / name, out / "shards" / name)
    sync_folder(out / "shards")
    return names
