"""MineRL recordings (data versions 3 and 4): `recording.mp4` and `rendered.npz`, read without the minerl package.

Episodes match those of MineRL's own loader: the video is aligned at its end (T steps have T + 1 frames, and the last
frame is replaced by the one before), and an episode is terminated at its last step. Beside the chosen action map, the
original actions are stored in the columns `raw/NAME`; strings are stored as integer codes, with their category names
in the shard.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import ActionSpec, Array
from slipstream.demos.format import TERMINATED, Column, Schema
from slipstream.demos.importers import video
from slipstream.demos.importers.npz_stream import NpzFile
from slipstream.demos.importers.source import Episode, EpisodeRef, Source, read_json_object
from slipstream.errors import ConfigError, DemoError
from slipstream.minecraft.action_maps import BUTTONS, FULL, ActionMap, CameraBins, action_map, codes
from slipstream.minecraft.frames import FrameAdapter

VERSIONS = ("3", "4")
PREFIX = re.compile(r"v([0-9]+?)_")
BLACKLIST = ("tempting_capers_shapeshifter-14",)
"""Recordings known to be broken."""
STEP_SECONDS = 0.05
OBFUSCATED_LIMIT = 1.05
"""The largest absolute value in an obfuscated action."""


@dataclass(frozen=True)
class VectorMap:
    """The action map of obfuscated actions: the vector is used as it is."""

    size: int

    @property
    def spec(self) -> ActionSpec:
        """A continuous action."""
        return ActionSpec("continuous", (), (-OBFUSCATED_LIMIT,) * self.size, (OBFUSCATED_LIMIT,) * self.size)

    def encode(self, given: Mapping[str, Any]) -> Array:
        """The vector of each step."""
        return np.asarray(given["vector"], np.float32)

    def decode(self, action: Array) -> dict[str, Array]:
        """The vector of each step."""
        return {"vector": np.asarray(action, np.float32)}

    def describe(self) -> dict[str, Any]:
        """The map as JSON."""
        return {"map": "vector", "size": self.size}


ArrayTypes = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The dtype and the shape of one row of each array."""


@dataclass(frozen=True)
class RecordingLayout:
    """The arrays in the recordings of one game."""

    actions: ArrayTypes
    observations: ArrayTypes
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """All values of each string action (`action$craft`) and string observation."""

    @property
    def signature(self) -> tuple[Any, ...]:
        """Names, dtype kinds and shapes, which all recordings of a source must share."""
        sides = (self.actions, self.observations)
        return tuple(tuple((name, dtype.kind, shape) for name, (dtype, shape) in side.items()) for side in sides)

    @property
    def string_arrays(self) -> list[str]:
        """The arrays of strings."""
        sides = {"action": self.actions, "observation": self.observations}
        return [f"{side}${n}" for side, of in sides.items() for n, (dtype, _) in of.items() if dtype.kind == "U"]

    @property
    def scalars(self) -> tuple[tuple[str, int], ...]:
        """The width of each observation beside the frames; strings are one-hot."""
        sizes = {
            n: len(self.categories.get(f"observation${n}", ())) or math.prod(shape)
            for n, (_, shape) in self.observations.items()
        }
        return tuple((field_name(name), size) for name, size in sizes.items())

    @property
    def raw_columns(self) -> tuple[Column, ...]:
        """The columns of the original actions."""
        return tuple(
            Column(f"raw/{field_name(name)}", _raw_dtype(dtype), shape) for name, (dtype, shape) in self.actions.items()
        )


def field_name(name: str) -> str:
    """A MineRL array name, nested by `$`, as a field name, nested by `/`."""
    return name.replace("$", "/")


def _raw_dtype(dtype: np.dtype[Any]) -> str:
    return {"U": "int32", "f": "float32"}.get(dtype.kind, dtype.name)


def find_recordings(folder: Path) -> list[Path]:
    """The folders in (or at) `folder` that hold a recording of a supported version."""
    if not folder.is_dir():
        raise DemoError(f"There is no folder {folder}.", "give the folder of a game, e.g. ROOT/MineRLTreechop-v0")
    for file in (folder / "VERSION", folder.parent / "VERSION"):
        if file.is_file() and file.read_text().strip() not in VERSIONS:
            raise DemoError(
                f"{file} is version {file.read_text().strip()}, not {' or '.join(VERSIONS)}.", "download newer data"
            )
    found: dict[Path, None] = {}
    for video_file in sorted(folder.rglob("*.mp4")):
        recording = video_file.parent
        prefix = PREFIX.search(recording.name)
        good = prefix is not None and prefix[1] in VERSIONS and not any(name in str(recording) for name in BLACKLIST)
        if good and any(recording.glob("*.npz")):
            found[recording] = None
    if not found:
        raise DemoError(
            f"{folder} holds no MineRL recording of version {' or '.join(VERSIONS)}.",
            "a recording is a folder v3_NAME or v4_NAME with recording.mp4 and rendered.npz",
        )
    games = sorted({recording.parent.name for recording in found})
    if len(games) > 1:
        raise DemoError(
            f"{folder} holds recordings of several games: {', '.join(games)}.", f"choose one: {folder / games[0]}"
        )
    return list(found)


def minerl_source(
    folder: Path,
    *,
    env: str = "",
    actions: str = "14",
    adapter: FrameAdapter | None = None,
    look: float = 15.0,
    margin: float = 5.0,
    bins: CameraBins | None = FULL.bins,
) -> Source:
    """The recordings of a game; `actions` is `14`, `8` or `full`."""
    recordings = find_recordings(folder)
    layout, frame_shape, bad = _common_layout(recordings)
    categories = {
        field_name(name.replace("action$", "raw$").replace("observation$", "")): names
        for name, names in layout.categories.items()
    }
    chosen = _choose_map(layout, actions, look, margin, bins)
    frames = replace(adapter or FrameAdapter(), scalars=layout.scalars)
    game = recordings[0].parent.name
    schema = Schema(
        env or (f"minerl:{game}" if game.startswith("MineRL") else game),
        frames.obs_spec(frame_shape),
        chosen.spec,
        step_seconds=STEP_SECONDS,
        extras=layout.raw_columns,
    )

    def count(ref: EpisodeRef) -> int:
        with NpzFile(ref.key / "rendered.npz") as arrays:
            return len(arrays["reward"])

    files = ("recording.mp4", "rendered.npz", "metadata.json")
    return Source(
        "minerl",
        str(folder),
        schema,
        [EpisodeRef(path.name, path, tuple(path / f for f in files)) for path in recordings if path.name not in bad],
        lambda ref: _read(ref.key, layout, chosen, frames),
        count,
        options={"actions": chosen.describe(), "frames": frames.describe()},
        categories=categories,
        dtypes={field_name(name): dtype.str for name, (dtype, _) in layout.observations.items()},
        bad=bad,
        parallel=True,
    )


def _choose_map(layout: RecordingLayout, kind: str, look: float, margin: float, bins: CameraBins | None) -> ActionMap:
    """The action map for the actions in the recordings."""
    if kind == "vpt":
        raise ConfigError("MineRL recordings do not have the buttons of the action map `vpt`.", "use 14, 8 or full")
    if "camera" in layout.actions:
        buttons = [n for n, (dtype, shape) in layout.actions.items() if dtype.kind in "biu" and not shape]
        buttons.sort(key=lambda name: (BUTTONS.index(name) if name in BUTTONS else len(BUTTONS), name))
        choices = {name: names for name in layout.actions if (names := layout.categories.get(f"action${name}"))}
        return action_map(kind, look=look, margin=margin, buttons=buttons, choices=choices, bins=bins)
    if "vector" not in layout.actions:
        raise DemoError("The actions of these recordings have neither `camera` nor `vector`.", "")
    if kind != "full":
        raise ConfigError(
            f"Obfuscated actions cannot be mapped to the action table `{kind}`.", "import with --actions full"
        )
    return VectorMap(layout.actions["vector"][1][0])


def _common_layout(recordings: Sequence[Path]) -> tuple[RecordingLayout, tuple[int, int, int], dict[str, str]]:
    """The most common layout, the shape of a frame, and the recordings that cannot be opened, with the reason."""
    layouts: dict[Path, RecordingLayout] = {}
    bad: dict[str, str] = {}
    for path in recordings:
        try:
            with NpzFile(path / "rendered.npz") as arrays:
                layouts[path] = _read_layout(arrays)
        except DemoError as error:
            bad[path.name] = error.message
    if not layouts:
        raise DemoError(f"No recording can be opened. The first: {next(iter(bad.values()))}", "check the source")
    (usual, _), *_ = Counter(layout.signature for layout in layouts.values()).most_common(1)
    matching = [path for path, layout in layouts.items() if layout.signature == usual]
    layout = layouts[matching[0]]
    values: dict[str, set[str]] = {}
    for path in matching if layout.string_arrays else ():
        try:
            with NpzFile(path / "rendered.npz") as arrays:
                for name in layout.string_arrays:
                    values.setdefault(name, set()).update(np.unique(arrays.read(name)).tolist())
        except DemoError as error:
            bad[path.name] = error.message
    categories = {name: tuple(sorted(known, key=lambda w: (w != "none", w))) for name, known in values.items()}
    frame_shape = video.frame_shape([path / "recording.mp4" for path in matching])
    return replace(layout, categories=categories), frame_shape, bad


def _read_layout(arrays: NpzFile) -> RecordingLayout:
    sides: dict[str, ArrayTypes] = {"action": {}, "observation": {}}
    for name in sorted(arrays.names):
        side, _, rest = name.partition("$")
        if side in sides and rest and rest != "pov":
            array = arrays[name]
            sides[side][rest] = array.dtype, array.shape[1:]
    return RecordingLayout(sides["action"], sides["observation"])


def _read(recording: Path, layout: RecordingLayout, chosen: ActionMap, frames: FrameAdapter) -> Episode:
    with NpzFile(recording / "rendered.npz") as arrays:
        reward = arrays.read("reward").astype(np.float32)
        steps = len(reward)
        actions = {n: _checked(arrays, f"action${n}", steps, *types) for n, types in layout.actions.items()}
        observations = {
            n: _checked(arrays, f"observation${n}", steps + 1, *types) for n, types in layout.observations.items()
        }
    values: dict[str, Array] = {}
    for name, array in actions.items():
        names = layout.categories.get(f"action${name}")
        values[f"raw/{field_name(name)}"] = codes(array, names, f"action${name}") if names is not None else array
    scalars = {}
    for name, array in observations.items():
        names = layout.categories.get(f"observation${name}")
        scalars[field_name(name)] = np.eye(len(names))[codes(array, names, name)] if names else array
    metadata_file = recording / "metadata.json"
    metadata = read_json_object(metadata_file) if metadata_file.exists() else {}
    images = _read_frames(recording / "recording.mp4", steps + 1, metadata.get("true_video_frame_count"), frames)
    values |= {"obs": frames.rows(images, scalars), "action": chosen.encode(actions), "reward": reward}
    success = metadata.get("success")
    outcome = 0 if success is None else 1 if success else -1
    return Episode(values, TERMINATED, outcome, notes=tuple(_metadata_mismatches(metadata, reward)))


def _checked(arrays: NpzFile, name: str, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Read one array and check its shape, dtype and values."""
    array = arrays.read(name)
    if array.shape != (rows, *shape) or array.dtype.kind != dtype.kind:
        raise DemoError(
            f"`{name}` in {arrays.path} is {array.dtype} {array.shape}, not {dtype} {(rows, *shape)}.", "leave it out"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DemoError(f"`{name}` in {arrays.path} has NaN or infinite values.", "leave it out")
    return array


def _read_frames(file: Path, needed: int, frame_count: Any, adapter: FrameAdapter) -> Array:
    """The last `needed` frames of a video; earlier frames show the time before the first step."""
    total = int(frame_count) if frame_count is not None else video.count_frames(file)
    if total < needed:
        raise DemoError(f"{file} has {total} frames for {needed} states.", "leave it out")
    out = video.stack_frames(map(adapter.shrink, islice(video.decode(file), total - needed, total)), needed)
    if len(out) < needed:
        raise DemoError(f"{file} has fewer frames than the expected {total}.", "download it again, or leave it out")
    out[-1] = out[-2]
    return out


def _metadata_mismatches(metadata: Mapping[str, Any], reward: Array) -> list[str]:
    """Where metadata.json differs from the data; the data are used."""
    found = []
    total = float(reward.sum(dtype=np.float64))
    if "total_reward" in metadata:
        expected = float(metadata["total_reward"])
        if not math.isclose(total, expected, rel_tol=1e-4, abs_tol=1e-4):
            found.append(f"total_reward is {expected:g} in metadata.json and {total:g} in the data")
    if "duration_steps" in metadata and int(metadata["duration_steps"]) != len(reward):
        found.append(f"duration_steps is {metadata['duration_steps']} in metadata.json and {len(reward)} in the data")
    return found
