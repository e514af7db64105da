"""The features of demos: what a frozen trunk makes of every image, computed once and kept on disk.

    DEMOS/features/TRUNK-DATA.bin   half-precision features, one row per observation of a shard, in the shard's order
    DEMOS/features/TRUNK-DATA.sums  a checksum of each episode's features, 0 where they are not computed yet
    DEMOS/features/TRUNK-DATA.json  for people: whose features they are

TRUNK is the start of the trunk's hash, DATA that of a hash of the shard's data: features of another trunk or of other
data are never taken for these. Episodes are computed as they are asked for and count once their checksum is right, so
whatever ends the work, it goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from slipstream.contracts import Array, ObsSpec
from slipstream.demos.format import Schema
from slipstream.demos.reader import Demos, ShardView
from slipstream.errors import DemoError, MachineError
from slipstream.policies.pretrained import Trunk, head_obs
from slipstream.policies.torch_policy import torch_threads
from slipstream.runs.checkpoint import check_space
from slipstream.runs.layout import write_json
from slipstream.system.machine import cores

TOGETHER = 256
"""Observations that are brought in at once."""
BLOCK = 4 * TOGETHER
"""Observations, about, after which what is done is put on disk; episodes are done as a whole."""
Progress = Callable[[int, int], None]


class Rows:
    """Observations of a shard as the head reads them: vectors and tokens from the demos, images as their features."""

    def __init__(self, view: ShardView, head: ObsSpec, features: Array) -> None:
        self._obs, self._head, self._features = view.schema.obs, head, features
        self._column = view.column("obs")
        self.shape, self.dtype = (len(features), head.width), np.dtype(head.dtype)

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: Any) -> Array:
        features = self._features[index].astype(np.float32)
        named, place = {}, 0
        for name, (field, start) in self._obs.places.items():
            if field.kind == "image":
                (width,) = self._head.places[name][0].shape
                named[name] = features[..., place : place + width]
                place += width
            else:
                data = np.ascontiguousarray(self._column[:, start : start + field.bytes][index])
                named[name] = data.view(field.dtype).reshape(*data.shape[:-1], *field.shape)
        return self._head.join(named)


class SeenShard(ShardView):
    """A shard whose observations are those that the head reads."""

    def __init__(self, view: ShardView, schema: Schema, features: Array) -> None:
        self.path, self.name, self.records = view.path, view.name, view.records
        self.schema = schema
        self._view = view
        self._rows: Any = Rows(view, schema.obs, features)

    def column(self, name: str, scattered: bool = False) -> Array:
        """All values of a column; observations are put together as they are taken."""
        values: Array = self._rows if name == "obs" else self._view.column(name, scattered)
        return values

    def intact(self, place: int) -> bool:
        """Whether the values of an episode are those that were written."""
        return self._view.intact(place)


def replaced(demos: Demos, trunk: Trunk, on_progress: Progress | None = None, device: str | None = None) -> Demos:
    """The same demos with every image replaced by its features, as a head learns from them.

    What is not in the cache yet is computed first; `on_progress` is told the observations done and those to do.
    """
    if all(field.kind != "image" for field in demos.schema.obs.fields):
        raise DemoError(f"The demos in {demos.path} have no images to read.", "leave policy.image=frozen out")
    schema = replace(demos.schema, obs=head_obs(demos.schema.obs, trunk))
    asked = [np.sort(demos.chosen[demos.chosen[:, 0] == number, 1]) for number in range(len(demos.shards))]
    caches = [Cache(view, trunk) if len(own) else None for view, own in zip(demos.shards, asked, strict=True)]
    lacking = [cache.lacking(own) if cache else own for cache, own in zip(caches, asked, strict=True)]
    total = sum(cache.count(own) for cache, own in zip(caches, lacking, strict=True) if cache)
    done, where = 0, device or ("cuda" if torch.cuda.is_available() else "cpu")
    with torch_threads(cores()):
        for cache, own in zip(caches, lacking, strict=True):
            for added in cache.fill(own, where) if cache else ():
                done += added
                if on_progress is not None:
                    on_progress(done, total)
    shards = [
        SeenShard(view, schema, cache.features()) if cache else view
        for view, cache in zip(demos.shards, caches, strict=True)
    ]
    return Demos(demos.path, schema, shards, demos.chosen, demos.left_out)


class Cache:
    """The features of one shard on disk."""

    def __init__(self, view: ShardView, trunk: Trunk) -> None:
        self.view, self.trunk = view, trunk
        self._images = [field for field in view.schema.obs.fields if field.kind == "image"]
        self._column = view.schema.column("obs")
        last = len(view.records) - 1
        self.shape = self._span(last).stop, trunk.features * len(self._images)
        data = data_hash(view)
        folder = view.path.parent.parent / "features"
        self._stem = folder / f"{trunk.hash[:16]}-{data[:16]}"
        try:
            self._open(data)
        except OSError as error:
            raise MachineError(
                f"The features of {view.path} cannot be kept in {folder}: {error.strerror or error}.",
                "make the folder writable, or copy the demos to where you may write",
            ) from error

    def _open(self, data: str) -> None:
        self._stem.parent.mkdir(exist_ok=True)
        sizes = {".bin": 2 * self.shape[0] * self.shape[1], ".sums": 4 * len(self.view.records)}
        for suffix, size in sizes.items():
            file = self._file(suffix)
            if not file.exists() or file.stat().st_size != size:
                check_space(file.parent, size)
                with file.open("ab") as opened:
                    opened.truncate(size)
        told = {"trunk": self.trunk.name, "trunk_hash": self.trunk.hash, "data_hash": data, "shard": self.view.name}
        if not self._file(".json").exists():
            write_json(self._file(".json"), told | {"observations": self.shape[0], "features": self.shape[1]})
        self._sums = np.fromfile(self._file(".sums"), "<u4")

    def _file(self, suffix: str) -> Path:
        return self._stem.with_name(self._stem.name + suffix)

    def _span(self, place: int) -> slice:
        """Where an episode's observations stand."""
        return self.view.span(self._column, place)

    def features(self) -> Array:
        """The features of all observations [observations, features], mapped from disk."""
        return self._map("r")

    def _map(self, mode: Literal["r", "r+"]) -> np.memmap[Any, Any]:
        return np.memmap(self._file(".bin"), "<f2", mode, shape=self.shape)

    def count(self, places: Array) -> int:
        """Observations of some episodes."""
        return int(self.view.records["steps"][places].sum()) + len(places)

    def lacking(self, places: Array) -> Array:
        """Those episodes whose features are not there, or not as they were written."""
        features = self.features()
        there = [
            self._sums[place] != 0 and self._sums[place] == checksum(features[self._span(place)]) for place in places
        ]
        lacking: Array = places[~np.array(there, bool)]
        return lacking

    def fill(self, places: Array, device: str) -> Iterator[int]:
        """Compute the features of some episodes; yields the observations done since the last time."""
        if not len(places):
            return
        features = self._map("r+")
        counts = self.view.records["steps"][places] + 1
        cuts = np.flatnonzero(np.diff((np.cumsum(counts) - counts) // BLOCK)) + 1
        for block in np.split(places, cuts):
            spans = [self._span(int(place)) for place in block]
            rows = np.concatenate([np.arange(span.start, span.stop) for span in spans])
            for first in range(0, len(rows), TOGETHER):
                some = rows[first : first + TOGETHER]
                features[some] = self._read(some, device)
                yield len(some)
            features.flush()
            self._note(block, [checksum(features[span]) for span in spans])

    def _note(self, places: Array, sums: list[int]) -> None:
        """Say that the features of some episodes are there."""
        self._sums[places] = sums
        with self._file(".sums").open("r+b") as file:
            for place in places:
                file.seek(4 * int(place))
                file.write(self._sums[place].tobytes())

    def _read(self, rows: Array, device: str) -> Array:
        obs, column = self.view.schema.obs, self.view.column("obs")
        parts = []
        for field in self._images:
            start = obs.places[field.name][1]
            pixels = column[:, start : start + field.bytes][rows].reshape(-1, *field.shape)
            parts.append(self.trunk.encode(pixels, device))
        return np.concatenate(parts, -1)


def checksum(features: Array) -> int:
    """A checksum that is never 0."""
    return zlib.crc32(np.ascontiguousarray(features).view(np.uint8).data) or 1


def data_hash(view: ShardView) -> str:
    """What tells a shard's data from any other: a hash of the schema and of its episodes' own checksums."""
    told = hashlib.sha256(json.dumps(view.schema.describe(), sort_keys=True).encode())
    told.update(view.records["steps"].tobytes() + view.records["checksum"].tobytes())
    return told.hexdigest()
