"""VPT and BASALT recordings: a video and a file of JSON lines, where line i holds the input at frame i.

As in the public loader, an attack that is held from the first frame is ignored until it is pressed again, a hotbar
change counts as a press of its key, and a cursor is drawn while a window is open. Unlike the public loader, the camera
uses floats, so small mouse movements are kept. N frames with N lines make N - 1 steps, because the observation after
the last action is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.format import Column, Schema
from slipstream.demos.importers import video
from slipstream.demos.importers.minerl import STEP_SECONDS
from slipstream.demos.importers.source import Episode, EpisodeRef, Source, file_errors
from slipstream.errors import DemoError
from slipstream.minecraft.action_maps import FULL, VPT_BUTTONS, ActionMap, CameraBins, action_map
from slipstream.minecraft.frames import VPT_FRAMES, FrameAdapter

KEYS = {
    "w": "forward",
    "s": "back",
    "a": "left",
    "d": "right",
    "space": "jump",
    "left.shift": "sneak",
    "left.control": "sprint",
    "q": "drop",
    "e": "inventory",
    "f": "swapHands",
    "escape": "ESC",
    **{str(n): f"hotbar.{n}" for n in range(1, 10)},
}
MOUSE = {0: "attack", 1: "use", 2: "pickItem"}
DEGREES = 360.0 / 2400.0
"""Camera degrees per mouse unit."""
SCREEN = 720
"""The window height of mouse coordinates."""
ADAPTER = VPT_FRAMES
CURSOR = np.array([list(row) for row in (
    "X.......", "XX......", "XoX.....", "XooX....", "XoooX...", "XooooX..", "XoooooX.", "XooooooX", "XooooXXX",
    "XoXooX..", "XX.XooX.", "X..XooX.", "....XX..",
)])  # fmt: skip
"""An arrow with a dark edge (X) and a light inside (o)."""


def vpt_source(
    location: Path,
    *,
    env: str = "",
    actions: str = "full",
    adapter: FrameAdapter = ADAPTER,
    drop_null: bool = False,
    look: float = 15.0,
    margin: float = 5.0,
    bins: CameraBins | None = FULL.bins,
) -> Source:
    """The recordings in a folder, or the existing recordings listed in an index file."""
    stems, notes = _segments(location)
    lost = {
        name: "has no .jsonl beside its video"
        for name, stem in stems.items()
        if not _with_suffix(stem, ".jsonl").is_file()
    }
    if not stems.keys() - lost.keys():
        raise DemoError(f"{location} has no recording (an .mp4 with a .jsonl beside it).", "check the source")
    chosen = action_map(actions, look=look, margin=margin, buttons=VPT_BUTTONS, bins=bins)
    if actions == "vpt":  # the observation of VPT's agents: an image without a name
        adapter = replace(adapter, name="")
    shape = video.frame_shape([_with_suffix(stem, ".mp4") for stem in stems.values()])
    raw = (*(Column(f"raw/{name}", "int64", ()) for name in VPT_BUTTONS), Column("raw/camera", "float32", (2,)))
    env = env or (f"minerl:{location.name}" if location.name.startswith("MineRL") else "vpt")
    schema = Schema(env, adapter.obs_spec(shape), chosen.spec, step_seconds=STEP_SECONDS, extras=raw)

    def read(ref: EpisodeRef) -> Episode:
        return _read(ref.files[0], ref.files[1], chosen, adapter, drop_null)

    def count(ref: EpisodeRef) -> int:
        with file_errors(ref.files[1]), open(ref.files[1], "rb") as file:
            return sum(1 for _ in file) - 1

    files = {name: (_with_suffix(stem, ".mp4"), _with_suffix(stem, ".jsonl")) for name, stem in stems.items()}
    return Source(
        "vpt",
        str(location),
        schema,
        [EpisodeRef(name, None, pair) for name, pair in files.items() if name not in lost],
        read,
        count,
        options={"actions": chosen.describe(), "frames": adapter.describe(), "drop_null": drop_null},
        bad=lost,
        notes=notes,
        parallel=True,
    )


def _with_suffix(stem: Path, suffix: str) -> Path:
    """A file of a segment, whose name may contain dots."""
    return stem.with_name(stem.name + suffix)


def _segments(location: Path) -> tuple[dict[str, Path], list[str]]:
    """The existing segments by name, as paths without suffix, and a note about missing ones."""
    if location.is_dir():
        videos = sorted(location.rglob("*.mp4"))
        found = {file.relative_to(location).as_posix().removesuffix(".mp4"): file for file in videos}
        return {name: file.with_name(file.name.removesuffix(".mp4")) for name, file in found.items()}, []
    with file_errors(location):
        index = json.loads(location.read_text(encoding="utf-8"))
        listed = [str(relative).removesuffix(".mp4") for relative in index["relpaths"]]
    stems: dict[str, Path] = {}
    for name in listed:
        candidates = (location.parent / name, location.parent / Path(name).name)
        existing = [stem for stem in candidates if _with_suffix(stem, ".mp4").is_file()]
        if existing:
            stems[name] = existing[0]
    missing = len(set(listed)) - len(stems)
    return stems, [f"{missing} of {len(listed)} recordings listed in {location} are missing"] if missing else []


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a recording; an incomplete last line is dropped."""
    found: list[dict[str, Any]] = []
    with file_errors(path):
        lines = path.read_bytes().splitlines()
        for number, text in enumerate(lines, 1):
            try:
                line = json.loads(text)
                if not isinstance(line["mouse"], dict) or not isinstance(line["keyboard"], dict):
                    raise TypeError("mouse and keyboard are not objects")
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines):
                    break
                raise DemoError(f"Line {number} of {path} cannot be read: {error!r}.", "leave it out") from error
            found.append(line)
    return found


def read_actions(lines: Sequence[dict[str, Any]]) -> dict[str, Array]:
    """The action of each line: 0 or 1 for every button [n], and the camera [n, 2] in degrees."""
    found = {name: np.zeros(len(lines), np.int64) for name in VPT_BUTTONS}
    moved = np.zeros((len(lines), 2))
    stuck, slot = False, 0
    for number, line in enumerate(lines):
        mouse, pressed = line["mouse"], line["mouse"].get("newButtons", [])
        stuck = pressed == [0] if number == 0 else stuck and 0 not in pressed
        for key in line["keyboard"].get("keys", []):
            name = KEYS.get(str(key).removeprefix("key.keyboard."))
            if name is not None:
                found[name][number] = 1
        for button in mouse.get("buttons", []):
            if button in MOUSE and not (button == 0 and stuck):
                found[MOUSE[button]][number] = 1
        now = int(line.get("hotbar", slot))
        if now != slot and f"hotbar.{now + 1}" in found:
            found[f"hotbar.{now + 1}"][number] = 1
        slot = now
        moved[number] = mouse.get("dy", 0.0), mouse.get("dx", 0.0)
    return found | {"camera": (moved * DEGREES).astype(np.float32)}


def null_steps(actions: dict[str, Array]) -> Array:
    """Whether each step is a null action: no button pressed and no camera movement."""
    busy: Array = np.any([array.reshape(len(array), -1).any(axis=1) for array in actions.values()], axis=0)
    return ~busy


def draw_cursor(frame: Array, x: float, y: float) -> None:
    """Draw an arrow into a frame [H, W, 3] with its tip at the mouse, in coordinates of a window 720 pixels high."""
    left, top = int(x * frame.shape[0] / SCREEN), int(y * frame.shape[0] / SCREEN)
    if not (0 <= top < frame.shape[0] and 0 <= left < frame.shape[1]):
        return
    part = frame[top : top + CURSOR.shape[0], left : left + CURSOR.shape[1]]
    arrow = CURSOR[: part.shape[0], : part.shape[1]]
    part[arrow == "X"] = 0
    part[arrow == "o"] = 255


def _with_cursor(lines: Iterable[dict[str, Any]], frames: Iterable[Array]) -> Iterator[Array]:
    """The frames that have a line, with the cursor drawn while a window is open."""
    for line, frame in zip(lines, frames, strict=False):
        if line.get("isGuiOpen"):
            draw_cursor(frame, float(line["mouse"].get("x", 0.0)), float(line["mouse"].get("y", 0.0)))
        yield frame


def _read(video_file: Path, lines_file: Path, chosen: ActionMap, adapter: FrameAdapter, drop_null: bool) -> Episode:
    lines = read_lines(lines_file)
    images = video.stack_frames(map(adapter.shrink, _with_cursor(lines, video.decode(video_file))), len(lines))
    count = len(images)
    if count < 2:
        raise DemoError(
            f"{video_file} and {lines_file} have {count} frames and lines in common; a step needs 2.", "leave it out"
        )
    actions = {name: array[: count - 1] for name, array in read_actions(lines).items()}
    if not np.isfinite(actions["camera"]).all():
        raise DemoError(f"{lines_file} has NaN or infinite mouse movements.", "leave it out")
    kept = np.flatnonzero(~null_steps(actions)) if drop_null else np.arange(count - 1)
    if not len(kept):
        raise DemoError(f"{lines_file} holds only null actions.", "leave it out, or import without --drop-null")
    kept_actions = {name: array[kept] for name, array in actions.items()}
    images = images[np.append(kept, count - 1)] if drop_null else images[:count]
    values = {f"raw/{name}": array for name, array in kept_actions.items()}
    values |= {
        "obs": adapter.rows(images),
        "action": chosen.encode(kept_actions),
        "reward": np.zeros(len(kept), np.float32),
    }
    notes = () if len(lines) - count <= 1 else (f"{len(lines) - count} lines have no frame",)
    return Episode(values, 0, notes=notes)
