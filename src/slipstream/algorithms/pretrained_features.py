"""Features of demos: the output of a frozen trunk for every image, computed once and cached on disk.

    DEMOS/features/TRUNK-DATA.bin   half-precision features, one row per observation of a shard, in the shard's order
    DEMOS/features/TRUNK-DATA.sums  a checksum of each episode's features, 0 if they are not computed yet
    DEMOS/features/TRUNK-DATA.json  a description for humans

TRUNK is a prefix of the trunk's hash, DATA of a hash of the shard's data, so features of another trunk or of other data
are never used. Episodes are computed on demand and are valid once their checksum matches, so an interrupted computation
continues where it stopped.
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

READ_BATCH = 256
"""Observations per read."""
FLUSH_EVERY = 4 * READ_BATCH
"""Approximate number of observations between writes to disk; whole episodes are written."""
Progress = Callable[[int, int], None]


class FeatureRows:
    """Observations of a shard as the head reads them: vectors and tokens of the demos, features of the images."""

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


class FeatureShard(ShardView):
    """A shard whose images are replaced by their features."""

    def __init__(self, view: ShardView, schema: Schema, features: Array) -> None:
        self.path, self.name, self.records = view.path, view.name, view.records
        self.schema = schema
        self._view = view
        self._rows: Any = FeatureRows(view, schema.obs, features)

    def column(self, name: str, scattered: bool = False) -> Array:
        """All values of a column; observations are assembled when they are indexed."""
        values: Array = self._rows if name == "obs" else self._view.column(name, scattered)
        return values

    def intact(self, place: int) -> bool:
        """Whether the checksum of an episode matches."""
        return self._view.intact(place)


def replace_images(demos: Demos, trunk: Trunk, on_progress: Progress | None = None, device: str | None = None) -> Demos:
    """Return the demos with every image replaced by its features.

    Features that are not cached are computed first; `on_progress` gets the observations done and the total.
    """
    if all(field.kind != "image" for field in demos.schema.obs.fields):
        raise DemoError(f"The demos in {demos.path} have no images.", "remove policy.image=frozen")
    schema = replace(demos.schema, obs=head_obs(demos.schema.obs, trunk))
    requested = [np.sort(demos.chosen[demos.chosen[:, 0] == number, 1]) for number in range(len(demos.shards))]
    caches = [
        FeatureCache(view, trunk) if len(own) else None for view, own in zip(demos.shards, requested, strict=True)
    ]
    missing = [cache.missing(own) if cache else own for cache, own in zip(caches, requested, strict=True)]
    total = sum(cache.count(own) for cache, own in zip(caches, missing, strict=True) if cache)
    done, compute_device = 0, device or ("cuda" if torch.cuda.is_available() else "cpu")
    with torch_threads(cores()):
        for cache, own in zip(caches, missing, strict=True):
            for added in cache.fill(own, compute_device) if cache else ():
                done += added
                if on_progress is not None:
                    on_progress(done, total)
    shards = [
        FeatureShard(view, schema, cache.features()) if cache else view
        for view, cache in zip(demos.shards, caches, strict=True)
    ]
    return Demos(demos.path, schema, shards, demos.chosen, demos.left_out)


class FeatureCache:
    """The cached features of one shard."""

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
                f"The features of {view.path} cannot be written to {folder}: {error.strerror or error}.",
                "make the folder writable, or copy the demos to a writable folder",
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
        description = {
            "trunk": self.trunk.name,
            "trunk_hash": self.trunk.hash,
            "data_hash": data,
            "shard": self.view.name,
        }
        if not self._file(".json").exists():
            write_json(self._file(".json"), description | {"observations": self.shape[0], "features": self.shape[1]})
        self._sums = np.fromfile(self._file(".sums"), "<u4")

    def _file(self, suffix: str) -> Path:
        return self._stem.with_name(self._stem.name + suffix)

    def _span(self, episode: int) -> slice:
        """The range of an episode's observations."""
        return self.view.span(self._column, episode)

    def features(self) -> Array:
        """The features of all observations [observations, features], mapped from disk."""
        return self._map("r")

    def _map(self, mode: Literal["r", "r+"]) -> np.memmap[Any, Any]:
        return np.memmap(self._file(".bin"), "<f2", mode, shape=self.shape)

    def count(self, episodes: Array) -> int:
        """Number of observations of some episodes."""
        return int(self.view.records["steps"][episodes].sum()) + len(episodes)

    def missing(self, episodes: Array) -> Array:
        """The episodes whose features are not computed, or whose checksum does not match."""
        features = self.features()
        valid = [
            self._sums[episode] != 0 and self._sums[episode] == checksum(features[self._span(episode)])
            for episode in episodes
        ]
        missing: Array = episodes[~np.array(valid, bool)]
        return missing

    def fill(self, episodes: Array, device: str) -> Iterator[int]:
        """Compute the features of some episodes; yield the number of observations of each step."""
        if not len(episodes):
            return
        features = self._map("r+")
        counts = self.view.records["steps"][episodes] + 1
        cuts = np.flatnonzero(np.diff((np.cumsum(counts) - counts) // FLUSH_EVERY)) + 1
        for block in np.split(episodes, cuts):
            spans = [self._span(int(episode)) for episode in block]
            rows = np.concatenate([np.arange(span.start, span.stop) for span in spans])
            for first in range(0, len(rows), READ_BATCH):
                batch = rows[first : first + READ_BATCH]
                features[batch] = self._read(batch, device)
                yield len(batch)
            features.flush()
            self._store_checksums(block, [checksum(features[span]) for span in spans])

    def _store_checksums(self, episodes: Array, sums: list[int]) -> None:
        """Write the checksums of episodes whose features are complete."""
        self._sums[episodes] = sums
        with self._file(".sums").open("r+b") as file:
            for episode in episodes:
                file.seek(4 * int(episode))
                file.write(self._sums[episode].tobytes())

    def _read(self, rows: Array, device: str) -> Array:
        obs, column = self.view.schema.obs, self.view.column("obs")
        parts = []
        for field in self._images:
            start = obs.places[field.name][1]
            pixels = column[:, start : start + field.bytes][rows].reshape(-1, *field.shape)
            parts.append(self.trunk.encode(pixels, device))
        return np.concatenate(parts, -1)


def checksum(features: Array) -> int:
    """A checksum of features; never 0."""
    return zlib.crc32(np.ascontiguousarray(features).view(np.uint8).data) or 1


def data_hash(view: ShardView) -> str:
    """A hash that identifies a shard's data: of the schema and of its episodes' checksums."""
    digest = hashlib.sha256(json.dumps(view.schema.describe(), sort_keys=True).encode())
    digest.update(view.records["steps"].tobytes() + view.records["checksum"].tobytes())
    return digest.hexdigest()
