"""Minari datasets, written without loss: images are stored raw, not as JPEG."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array, ObsSpec, nest
from slipstream.demos.exporters.exporter import BASIC_COLUMNS, Progress, check_target, export_summary
from slipstream.demos.format import TERMINATED, TRUNCATED
from slipstream.demos.importers.minari import minari_root
from slipstream.demos.importers.source import import_optional
from slipstream.demos.importers.space_values import Space
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError
from slipstream.runs.layout import sync_folder
from slipstream.runs.provenance import version

ID = re.compile(r"([-_\w]+/)*[-_\w]+-v\d+")


def export_minari(demos: Demos, out: Path, on_progress: Progress | None = None) -> dict[str, Any]:
    """Write demos as a Minari dataset in the folder `out`, whose name must be a valid dataset id such as `NAME-v0`.

    In Minari's own folder, the dataset id is the relative path, so `minari.load_dataset` finds the dataset.
    """
    import_optional("minari", "minari")
    storages = import_optional("minari.dataset.minari_storage", "minari")
    out, root = out.absolute(), minari_root().absolute()
    name = out.relative_to(root).as_posix() if out.is_relative_to(root) else out.name
    if not ID.fullmatch(name):
        raise ConfigError(
            f"`{name}` is not a valid Minari dataset id.", f"give --out a folder such as {out.name or 'demos'}-v0"
        )
    check_target(out, "DIR")
    staging = out.with_name(f".{out.name}.tmp")
    try:
        (staging / "data").mkdir(parents=True)
        storage = storages.MinariStorage.new(
            staging / "data",
            obs_space(demos.schema.obs),
            action_space(demos.schema.action),
            _env_spec(demos),
            data_format="hdf5",
            jpeg_encoding=False,
        )
        metadata = {"dataset_id": name, "minari_version": version("minari"), "description": _description(demos)}
        storage.update_metadata(metadata)
        storage.update_episodes(_buffers(demos, on_progress))
        os.replace(staging, out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return export_summary("minari", demos, out, BASIC_COLUMNS) | {"dataset": name}


def _buffers(demos: Demos, on_progress: Progress | None) -> Iterator[Any]:
    """Yield the episodes as Minari's episode buffers."""
    buffer = import_optional("minari.data_collector.episode_buffer", "minari").EpisodeBuffer
    for number in range(len(demos)):
        values, record = demos.episode(number, ("obs", "action", "reward")), demos.episodes[number]
        ends = np.zeros((2, len(values["reward"])), bool)
        ends[0, -1], ends[1, -1] = record["ended"] == TERMINATED, record["ended"] == TRUNCATED
        yield buffer(
            seed=int(record["seed"]),
            observations=nest(demos.schema.obs.split(np.array(values["obs"]))),
            actions=_split(demos.schema.action, np.array(values["action"])),
            rewards=np.array(values["reward"]),
            terminations=ends[0],
            truncations=ends[1],
        )
        if on_progress is not None:
            on_progress(number + 1, len(demos))


def obs_space(spec: ObsSpec) -> Space:
    """The Gymnasium space of an observation spec: uint8 for images and tokens, float32 otherwise."""
    boxes: dict[str, Any] = {}
    for field in spec.fields:
        low, high = (-np.inf, np.inf) if field.kind == "vector" else (0, 255)
        boxes[field.name] = spaces.Box(low, high, field.shape, field.dtype)
    return _dicts(nest(boxes))


def _dicts(tree: Any) -> Space:
    return spaces.Dict({key: _dicts(value) for key, value in tree.items()}) if isinstance(tree, dict) else tree


def _runs(spec: ActionSpec) -> list[tuple[bool, slice]]:
    """Runs of consecutive discrete parts that are all binary, or all not."""
    binary, runs, start = spec.binary or (False,) * spec.discrete_parts, [], 0
    for is_binary, group in groupby(binary):
        stop = start + len(list(group))
        runs.append((is_binary, slice(start, stop)))
        start = stop
    return runs


def action_space(spec: ActionSpec) -> Space:
    """The Gymnasium space of an action spec; a mix of binary, other discrete and continuous parts becomes a Tuple."""
    if spec.kind == "discrete":
        return spaces.Discrete(spec.sizes[0])
    found: list[Any] = [
        spaces.MultiBinary(at.stop - at.start) if is_binary else spaces.MultiDiscrete(list(spec.sizes[at]))
        for is_binary, at in _runs(spec)
    ]
    if spec.continuous_parts:
        found.append(spaces.Box(np.array(spec.low, np.float32), np.array(spec.high, np.float32), dtype=np.float32))
    return found[0] if len(found) == 1 else spaces.Tuple(found)


def _split(spec: ActionSpec, action: Array) -> Any:
    """Actions [T, parts] as values of `action_space`."""
    if spec.kind == "discrete":
        return action[:, 0].astype(np.int64)
    found = [action[:, at].astype(np.int8 if is_binary else np.int64) for is_binary, at in _runs(spec)]
    found += [action[:, spec.discrete_parts :]] if spec.continuous_parts else []
    return found[0] if len(found) == 1 else tuple(found)


def _env_spec(demos: Demos) -> Any:
    """The Gymnasium spec of the environment, from which Minari can recreate it; None for other environments."""
    import gymnasium

    kind, _, name = demos.schema.env.partition(":")
    return gymnasium.registry.get(name) if kind == "gymnasium" else None


def _description(demos: Demos) -> str:
    return f"Demonstrations of {demos.schema.env}, exported by slipstream {version('slipstream')}."
