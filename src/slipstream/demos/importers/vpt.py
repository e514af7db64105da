"""VPT and BASALT recordings: a video and a file of JSON lines, where line i tells what was done at frame i.

As in the public loader, an attack that is stuck from the first frame is taken out until it is pressed anew, a change of
the hotbar counts as its key, and a cursor is drawn where a window is open. Unlike there, the camera is in floats, so
that small moves of the mouse are not lost. N frames with N lines make N - 1 steps: what follows the last is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.format import Column, Schema
from slipstream.demos.importers import video
from slipstream.demos.importers.ingest import Episode, Part, Source, readable
from slipstream.demos.importers.minerl import STEP_SECONDS
from slipstream.errors import DemoError
from slipstream.minecraft.action_maps import FULL, VPT_BUTTONS, ActionMap, CameraBins, action_map
from slipstream.minecraft.frames import FrameAdapter

KEYS = {
    "w": "forward", "s": "back", "a": "left", "d": "right", "space": "jump", "left.shift": "sneak",
    "left.control": "sprint", "q": "drop", "e": "inventory", "f": "swapHands", "escape": "ESC",
    **{str(n): f"hotbar.{n}" for n in range(1, 10)},
}  # fmt: skip
MOUSE = {0: "attack", 1: "use", 2: "pickItem"}
DEGREES = 360.0 / 2400.0
"""Degrees that one unit of the mouse turns."""
SCREEN = 720
"""Height of the window in which the mouse is told."""
ADAPTER = FrameAdapter((128, 128), how="bilinear")
"""What VPT's policies see."""
CURSOR = np.array([list(row) for row in (
    "X.......", "XX......", "XoX.....", "XooX....", "XoooX...", "XooooX..", "XoooooX.", "XooooooX", "XooooXXX",
    "XoXooX..", "XX.XooX.", "X..XooX.", "....XX..",
)])  # fmt: skip
"""An arrow: dark edge, light inside."""


def vpt_source(
    place: Path, *, env: str = "", actions: str = "full", adapter: FrameAdapter = ADAPTER, drop_null: bool = False,
    look: float = 15.0, margin: float = 5.0, bins: CameraBins | None = FULL.bins,
) -> Source:  # fmt: skip
    """The recordings in a folder, or those that an index file names and that are there."""
    stems, notes = _segments(place)
    lost = {name: "has no .jsonl beside its video" for name, s in stems.items() if not _beside(s, ".jsonl").is_file()}
    if not stems.keys() - lost.keys():
        raise DemoError(f"{place} leads to no recording: no .mp4 with a .jsonl beside it.", "look at the source")
    chosen = action_map(actions, look=look, margin=margin, buttons=VPT_BUTTONS, bins=bins)
    shape = video.first_size([_beside(stem, ".mp4") for stem in stems.values()])
    raw = (*(Column(f"raw/{name}", "int64", ()) for name in VPT_BUTTONS), Column("raw/camera", "float32", (2,)))
    name = env or (place.name if place.name.startswith("MineRL") else "vpt")
    schema = Schema(name, adapter.obs_spec(shape), chosen.spec, step_seconds=STEP_SECONDS, extras=raw)

    def read(part: Part) -> Episode:
        return _read(part.files[0], part.files[1], chosen, adapter, drop_null)

    def count(part: Part) -> int:
        with readable(part.files[1]), open(part.files[1], "rb") as file:
            return sum(1 for _ in file) - 1

    files = {name: (_beside(stem, ".mp4"), _beside(stem, ".jsonl")) for name, stem in stems.items()}
    parts = [Part(name, None, pair) for name, pair in files.items() if name not in lost]
    return Source(
        "vpt", str(place), schema, parts, read, count, bad=lost, notes=notes, parallel=True,
        options={"actions": chosen.describe(), "frames": adapter.describe(), "drop_null": drop_null},
    )  # fmt: skip


def _beside(stem: Path, suffix: str) -> Path:
    """The file of a segment; its name may have dots of its own."""
    return stem.with_name(stem.name + suffix)


def _segments(place: Path) -> tuple[dict[str, Path], list[str]]:
    """The segments that are there, by name and without their suffixes, and what to say about others."""
    if place.is_dir():
        videos = sorted(place.rglob("*.mp4"))
        found = {file.relative_to(place).as_posix().removesuffix(".mp4"): file for file in videos}
        return {name: file.with_name(file.name.removesuffix(".mp4")) for name, file in found.items()}, []
    with readable(place):
        told = json.loads(place.read_text(encoding="utf-8"))
        named = [str(relative).removesuffix(".mp4") for relative in told["relpaths"]]
    stems: dict[str, Path] = {}
    for name in named:
        ways = (place.parent / name, place.parent / Path(name).name)
        here = [way for way in ways if _beside(way, ".mp4").is_file()]
        if here:
            stems[name] = here[0]
    missing = len(set(named)) - len(stems)
    return stems, [f"{missing} of {len(named)} recordings that {place} names are not here"] if missing else []


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a recording; a last one that was cut off is dropped."""
    found: list[dict[str, Any]] = []
    with readable(path):
        lines = path.read_bytes().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                told = json.loads(line)
                if not isinstance(told["mouse"], dict) or not isinstance(told["keyboard"], dict):
                    raise TypeError("mouse and keyboard are not objects")
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines):
                    break
                raise DemoError(f"Line {number} of {path} cannot be read: {error!r}.", "leave it out") from error
            found.append(told)
    return found


def read_actions(lines: Sequence[dict[str, Any]]) -> dict[str, Array]:
    """What was done at each line: 0 or 1 for every button [n], and the camera [n, 2] in degrees."""
    found = {name: np.zeros(len(lines), np.int64) for name in VPT_BUTTONS}
    moved = np.zeros((len(lines), 2))
    stuck, slot = False, 0
    for number, line in enumerate(lines):
        mouse, fresh = line["mouse"], line["mouse"].get("newButtons", [])
        stuck = fresh == [0] if number == 0 else stuck and 0 not in fresh
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
    """Where nothing was done at all."""
    busy: Array = np.any([array.reshape(len(array), -1).any(axis=1) for array in actions.values()], axis=0)
    return ~busy


def draw_cursor(frame: Array, x: float, y: float) -> None:
    """Draw an arrow into a frame [H, W, 3], its tip where the mouse is, in units of a window 720 high."""
    left, top = int(x * frame.shape[0] / SCREEN), int(y * frame.shape[0] / SCREEN)
    if not (0 <= top < frame.shape[0] and 0 <= left < frame.shape[1]):
        return
    part = frame[top : top + CURSOR.shape[0], left : left + CURSOR.shape[1]]
    arrow = CURSOR[: part.shape[0], : part.shape[1]]
    part[arrow == "X"] = 0
    part[arrow == "o"] = 255


def _shown(lines: Iterable[dict[str, Any]], frames: Iterable[Array]) -> Iterator[Array]:
    """Frames that have a line, with the cursor where a window is open."""
    for line, frame in zip(lines, frames, strict=False):
        if line.get("isGuiOpen"):
            draw_cursor(frame, float(line["mouse"].get("x", 0.0)), float(line["mouse"].get("y", 0.0)))
        yield frame


def _read(film: Path, told: Path, chosen: ActionMap, adapter: FrameAdapter, drop_null: bool) -> Episode:
    lines = read_lines(told)
    small = video.gather(map(adapter.shrink, _shown(lines, video.decode(film))), len(lines))
    count = len(small)
    if count < 2:
        raise DemoError(f"{film} and {told} have {count} frames and lines in common; a step needs two.", "leave it out")
    actions = {name: array[: count - 1] for name, array in read_actions(lines).items()}
    if not np.isfinite(actions["camera"]).all():
        raise DemoError(f"The mouse in {told} moves by NaN or infinity.", "leave it out")
    kept = np.flatnonzero(~null_steps(actions)) if drop_null else np.arange(count - 1)
    if not len(kept):
        raise DemoError(f"{told} holds nothing but null actions.", "leave it out, or keep null actions")
    done = {name: array[kept] for name, array in actions.items()}
    small = small[np.append(kept, count - 1)] if drop_null else small[:count]
    values = {f"raw/{name}": array for name, array in done.items()}
    values |= {"obs": adapter.rows(small), "action": chosen.encode(done), "reward": np.zeros(len(kept), np.float32)}
    notes = () if len(lines) - count <= 1 else (f"{len(lines) - count} lines have no frame",)
    return Episode(values, 0, notes=notes)
