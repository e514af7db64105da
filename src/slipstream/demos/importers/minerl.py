"""MineRL recordings (data of version 3 and 4): `recording.mp4` and `rendered.npz`, without the minerl package.

What comes out is what MineRL's own loader yields: the video is aligned from its end (T steps have T + 1 frames, the
last of which is overwritten by the one before), and an episode is done at its last step. Beside the chosen action map
every action is kept as it was, in the columns `raw/NAME`; words are numbered, and the shard says which is which.
"""

from __future__ import annotations

import json
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
from slipstream.demos.importers.ingest import Episode, Part, Source, readable
from slipstream.demos.importers.npz_stream import Archive
from slipstream.errors import ConfigError, DemoError
from slipstream.minecraft.action_maps import BUTTONS, FULL, ActionMap, CameraBins, action_map, codes
from slipstream.minecraft.frames import FrameAdapter

VERSIONS = ("3", "4")
PREFIX = re.compile(r"v([0-9]+?)_")
BLACKLIST = ("tempting_capers_shapeshifter-14",)
"""Recordings that are known to be broken."""
STEP_SECONDS = 0.05
OBFUSCATED = 1.05
"""The largest number in an obfuscated action."""


@dataclass(frozen=True)
class VectorMap:
    """Obfuscated actions: a vector, taken as it is."""

    size: int

    @property
    def spec(self) -> ActionSpec:
        """Real numbers."""
        return ActionSpec("continuous", (), (-OBFUSCATED,) * self.size, (OBFUSCATED,) * self.size)

    def encode(self, given: Mapping[str, Any]) -> Array:
        """The vector of each step."""
        return np.asarray(given["vector"], np.float32)

    def decode(self, action: Array) -> dict[str, Array]:
        """The vector of each step."""
        return {"vector": np.asarray(action, np.float32)}

    def describe(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"map": "vector", "size": self.size}


@dataclass(frozen=True)
class Layout:
    """What the recordings of one game hold, as the first of them tells."""

    actions: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    observations: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """All words of each action (`action$craft`) and observation that is told in words."""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """What recordings that go together have in common: names, kinds and shapes."""
        sides = (self.actions, self.observations)
        return tuple(tuple((name, dtype.kind, shape) for name, (dtype, shape) in side.items()) for side in sides)

    @property
    def worded(self) -> list[str]:
        """The members that are words."""
        kinds = {"action": self.actions, "observation": self.observations}
        return [f"{side}${n}" for side, of in kinds.items() for n, (dtype, _) in of.items() if dtype.kind == "U"]

    @property
    def scalars(self) -> tuple[tuple[str, int], ...]:
        """The numbers beside the frames, and how many each is; words are one-hot."""
        sizes = {
            n: len(self.words.get(f"observation${n}", ())) or math.prod(s) for n, (_, s) in self.observations.items()
        }
        return tuple((path(name), size) for name, size in sizes.items())

    @property
    def columns(self) -> tuple[Column, ...]:
        """The actions as they were."""
        return tuple(Column(f"raw/{path(name)}", _raw(dtype), shape) for name, (dtype, shape) in self.actions.items())


def path(name: str) -> str:
    """A name of theirs, nested by `$`, as one of ours."""
    return name.replace("$", "/")


def _raw(dtype: np.dtype[Any]) -> str:
    return {"U": "int32", "f": "float32"}.get(dtype.kind, dtype.name)


def recordings(folder: Path) -> list[Path]:
    """The folders below (or at) `folder` that hold a recording of a version we know."""
    if not folder.is_dir():
        raise DemoError(f"There is no folder {folder}.", "name the folder of a game, e.g. ROOT/MineRLTreechop-v0")
    for file in (folder / "VERSION", folder.parent / "VERSION"):
        if file.is_file() and file.read_text().strip() not in VERSIONS:
            raise DemoError(
                f"{file} says version {file.read_text().strip()}, not {' or '.join(VERSIONS)}.", "get newer data"
            )
    found: dict[Path, None] = {}
    for video_file in sorted(folder.rglob("*.mp4")):
        place = video_file.parent
        prefix = PREFIX.search(place.name)
        good = prefix is not None and prefix[1] in VERSIONS and not any(name in str(place) for name in BLACKLIST)
        if good and any(place.glob("*.npz")):
            found[place] = None
    if not found:
        raise DemoError(
            f"{folder} holds no MineRL recording of version {' or '.join(VERSIONS)}.",
            "a recording is a folder v3_NAME or v4_NAME with recording.mp4 and rendered.npz",
        )
    games = sorted({place.parent.name for place in found})
    if len(games) > 1:
        raise DemoError(
            f"{folder} holds recordings of several games: {', '.join(games)}.", f"name one: {folder / games[0]}"
        )
    return list(found)


def minerl_source(
    folder: Path, *, env: str = "", actions: str = "14", adapter: FrameAdapter | None = None, look: float = 15.0,
    margin: float = 5.0, bins: CameraBins | None = FULL.bins,
) -> Source:  # fmt: skip
    """The recordings of a game; `actions` is `14`, `8` or `full`."""
    found = recordings(folder)
    layout, shape, bad = _survey(found)
    words = {path(name.replace("action$", "raw$").replace("observation$", "")): w for name, w in layout.words.items()}
    chosen = _map(layout, actions, look, margin, bins)
    frames = replace(adapter or FrameAdapter(), scalars=layout.scalars)
    schema = Schema(
        env or found[0].parent.name, frames.obs_spec(shape), chosen.spec, step_seconds=STEP_SECONDS,
        extras=layout.columns,
    )  # fmt: skip

    def count(part: Part) -> int:
        with Archive(part.key / "rendered.npz") as archive:
            return len(archive["reward"])

    parts = [
        Part(place.name, place, tuple(place / name for name in ("recording.mp4", "rendered.npz", "metadata.json")))
        for place in found
        if place.name not in bad
    ]
    return Source(
        "minerl", str(folder), schema, parts, lambda part: _read(part.key, layout, chosen, frames), count,
        options={"actions": chosen.describe(), "frames": frames.describe()}, vocabulary=words,
        kinds={path(name): dtype.str for name, (dtype, _) in layout.observations.items()}, bad=bad, parallel=True,
    )  # fmt: skip


def _map(layout: Layout, kind: str, look: float, margin: float, bins: CameraBins | None) -> ActionMap:
    """The action map for what the recordings have."""
    if "camera" in layout.actions:
        buttons = [n for n, (dtype, shape) in layout.actions.items() if dtype.kind in "biu" and not shape]
        buttons.sort(key=lambda name: (BUTTONS.index(name) if name in BUTTONS else len(BUTTONS), name))
        choices = {name: words for name in layout.actions if (words := layout.words.get(f"action${name}"))}
        return action_map(kind, look=look, margin=margin, buttons=buttons, choices=choices, bins=bins)
    if "vector" not in layout.actions:
        raise DemoError("These recordings have neither a camera nor a vector among their actions.", "")
    if kind != "full":
        raise ConfigError(f"Obfuscated actions cannot be told by the table `{kind}`.", "import with --actions full")
    return VectorMap(layout.actions["vector"][1][0])


def _survey(found: Sequence[Path]) -> tuple[Layout, tuple[int, int, int], dict[str, str]]:
    """What most recordings hold, the shape of a frame, and recordings that cannot be opened, with the reason."""
    layouts: dict[Path, Layout] = {}
    bad: dict[str, str] = {}
    for place in found:
        try:
            with Archive(place / "rendered.npz") as archive:
                layouts[place] = _layout(archive)
        except DemoError as error:
            bad[place.name] = error.message
    if not layouts:
        raise DemoError(f"No recording can be opened. The first: {next(iter(bad.values()))}", "look at the source")
    (usual, _), *_ = Counter(layout.kinds for layout in layouts.values()).most_common(1)
    alike = [place for place, layout in layouts.items() if layout.kinds == usual]
    layout = layouts[alike[0]]
    words: dict[str, set[str]] = {}
    for place in alike if layout.worded else ():
        try:
            with Archive(place / "rendered.npz") as archive:
                for name in layout.worded:
                    words.setdefault(name, set()).update(np.unique(archive.read(name)).tolist())
        except DemoError as error:
            bad[place.name] = error.message
    ordered = {name: tuple(sorted(known, key=lambda w: (w != "none", w))) for name, known in words.items()}
    return replace(layout, words=ordered), video.first_size([place / "recording.mp4" for place in alike]), bad


def _layout(archive: Archive) -> Layout:
    sides: dict[str, dict[str, tuple[np.dtype[Any], tuple[int, ...]]]] = {"action": {}, "observation": {}}
    for name in sorted(archive.names):
        side, _, rest = name.partition("$")
        if side in sides and rest and rest != "pov":
            member = archive[name]
            sides[side][rest] = member.dtype, member.shape[1:]
    return Layout(sides["action"], sides["observation"])


def _read(place: Path, layout: Layout, chosen: ActionMap, frames: FrameAdapter) -> Episode:
    with Archive(place / "rendered.npz") as archive:
        reward = archive.read("reward").astype(np.float32)
        steps = len(reward)
        actions = {n: _member(archive, f"action${n}", steps, told) for n, told in layout.actions.items()}
        seen = {n: _member(archive, f"observation${n}", steps + 1, told) for n, told in layout.observations.items()}
    values = {f"raw/{path(name)}": _numbers(f"action${name}", array, layout) for name, array in actions.items()}
    scalars = {}
    for name, array in seen.items():
        listed = layout.words.get(f"observation${name}")
        scalars[path(name)] = np.eye(len(listed))[codes(array, listed, name)] if listed else array
    told = _metadata(place)
    small = _frames(place / "recording.mp4", steps + 1, told.get("true_video_frame_count"), frames)
    values |= {"obs": frames.rows(small, scalars), "action": chosen.encode(actions), "reward": reward}
    success = told.get("success")
    outcome = 0 if success is None else 1 if success else -1
    return Episode(values, TERMINATED, outcome, notes=tuple(_doubts(told, reward)))


def _member(archive: Archive, name: str, rows: int, told: tuple[np.dtype[Any], tuple[int, ...]]) -> Array:
    """One array, of the length and the kind that it must have."""
    array = archive.read(name)
    dtype, shape = told
    if array.shape != (rows, *shape) or array.dtype.kind != dtype.kind:
        raise DemoError(
            f"`{name}` in {archive.path} is {array.dtype} {array.shape}, not {dtype} {(rows, *shape)}.", "leave it out"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DemoError(f"`{name}` in {archive.path} has NaN or infinite values.", "leave it out")
    return array


def _numbers(name: str, array: Array, layout: Layout) -> Array:
    return codes(array, layout.words[name], name) if name in layout.words else array


def _frames(file: Path, needed: int, told: Any, adapter: FrameAdapter) -> Array:
    """The last frames of a video, as many as there are states; those before them show what came before."""
    total = int(told) if told is not None else video.count(file)
    if total < needed:
        raise DemoError(f"{file} has {total} frames for {needed} states.", "leave it out")
    out = video.gather(map(adapter.shrink, islice(video.decode(file), total - needed, total)), needed)
    if len(out) < needed:
        raise DemoError(f"{file} has fewer than the {total} frames it should have.", "get it again, or leave it out")
    out[-1] = out[-2]
    return out


def _metadata(place: Path) -> dict[str, Any]:
    file = place / "metadata.json"
    if not file.exists():
        return {}
    with readable(file):
        told = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(told, dict):
            raise ValueError("it is not an object")
    return told


def _doubts(told: Mapping[str, Any], reward: Array) -> list[str]:
    """Where metadata.json and the data differ; the data are believed."""
    found = []
    total = float(reward.sum(dtype=np.float64))
    if "total_reward" in told and not math.isclose(total, float(told["total_reward"]), rel_tol=1e-4, abs_tol=1e-4):
        found.append(f"metadata.json says total_reward {told['total_reward']:g}, the data have {total:g}")
    if "duration_steps" in told and int(told["duration_steps"]) != len(reward):
        found.append(f"metadata.json says duration_steps {told['duration_steps']}, the data have {len(reward)}")
    return found
