"""Minari datasets, written without loss: images as they are, not as JPEG."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array, ObsSpec
from slipstream.demos.format import TERMINATED, TRUNCATED
from slipstream.demos.importers.ingest import optional
from slipstream.demos.importers.minari import minari_root
from slipstream.demos.importers.space_values import Space
from slipstream.demos.iterators import nest
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError, DemoError
from slipstream.runs.layout import sync_folder
from slipstream.runs.provenance import version

ID = re.compile(r"([-_\w]+/)*[-_\w]+-v\d+")


def export_minari(demos: Demos, out: Path, on_progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Write demos as the Minari dataset in the folder `out`, which is named as Minari names them: `NAME-v0`.

    Below Minari's own folder its name is the path from there, so that `minari.load_dataset` finds it.
    """
    optional("minari", "minari")
    storages = optional("minari.dataset.minari_storage", "minari")
    out, root = out.absolute(), minari_root().absolute()
    name = out.relative_to(root).as_posix() if out.is_relative_to(root) else out.name
    if not ID.fullmatch(name):
        raise ConfigError(f"Minari calls no dataset `{name}`.", f"give --out a folder such as {out.name or 'demos'}-v0")
    if out.exists():
        raise DemoError(f"{out} is already there.", "choose another folder with --out DIR")
    staging = out.with_name(f".{out.name}.tmp")
    try:
        (staging / "data").mkdir(parents=True)
        storage = storages.MinariStorage.new(
            staging / "data", obs_space(demos.schema.obs), action_space(demos.schema.action), _env_spec(demos),
            data_format="hdf5", jpeg_encoding=False,
        )  # fmt: skip
        told = {"dataset_id": name, "minari_version": version("minari"), "description": _description(demos)}
        storage.update_metadata(told)
        storage.update_episodes(_buffers(demos, on_progress))
        os.replace(staging, out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    kept = ("obs", "action", "reward")
    left = [column.name for column in demos.schema.columns if column.name not in kept]
    facts = {"format": "minari", "out": str(out), "dataset": name, "episodes": len(demos), "steps": demos.steps}
    return facts | {"left_out": left}


def _buffers(demos: Demos, on_progress: Callable[[int, int], None] | None) -> Iterator[Any]:
    """One episode after the other, as Minari takes them."""
    buffer = optional("minari.data_collector.episode_buffer", "minari").EpisodeBuffer
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
    """The space of our observations: pixels and tokens as bytes, all else as numbers."""
    boxes: dict[str, Any] = {}
    for field in spec.fields:
        low, high = (-np.inf, np.inf) if field.kind == "vector" else (0, 255)
        boxes[field.name] = spaces.Box(low, high, field.shape, field.dtype)
    return _dicts(nest(boxes))


def _dicts(tree: Any) -> Space:
    return spaces.Dict({key: _dicts(value) for key, value in tree.items()}) if isinstance(tree, dict) else tree


def _runs(spec: ActionSpec) -> list[tuple[bool, slice]]:
    """Neighbouring parts that are all switches, or none of them."""
    binary, runs, start = spec.binary or (False,) * spec.parts, [], 0
    for switch, group in groupby(binary):
        stop = start + len(list(group))
        runs.append((switch, slice(start, stop)))
        start = stop
    return runs


def action_space(spec: ActionSpec) -> Space:
    """The space of our actions; switches among other choices become parts of a tuple."""
    if spec.kind == "continuous":
        return spaces.Box(np.array(spec.low, np.float32), np.array(spec.high, np.float32), dtype=np.float32)
    if spec.kind == "discrete":
        return spaces.Discrete(spec.sizes[0])
    found: list[Any] = [
        spaces.MultiBinary(at.stop - at.start) if switch else spaces.MultiDiscrete(list(spec.sizes[at]))
        for switch, at in _runs(spec)
    ]
    return found[0] if len(found) == 1 else spaces.Tuple(found)


def _split(spec: ActionSpec, action: Array) -> Any:
    """Actions [T, parts] as values of `action_space`."""
    if spec.kind == "continuous":
        return action
    if spec.kind == "discrete":
        return action[:, 0].astype(np.int64)
    found = tuple(action[:, at].astype(np.int8 if switch else np.int64) for switch, at in _runs(spec))
    return found[0] if len(found) == 1 else found


def _env_spec(demos: Demos) -> Any:
    """What Gymnasium knows of the environment, so that the dataset can make it again; None for others."""
    import gymnasium

    kind, _, name = demos.schema.env.partition(":")
    return gymnasium.registry.get(name) if kind == "gymnasium" else None


def _description(demos: Demos) -> str:
    return f"Demonstrations of {demos.schema.env}, exported by slipstream {version('slipstream')}."
