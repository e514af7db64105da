"""MineRL recordings, written as version 3 and 4 have them: a video, arrays and a few facts in a folder each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.importers import video
from slipstream.demos.iterators import nested_obs, raw_actions
from slipstream.demos.reader import Demos
from slipstream.errors import DemoError
from slipstream.minecraft.action_maps import FULL, NAMES, ActionMap, action_map
from slipstream.runs.layout import write_json


def write_recording(
    folder: Path, frames: Array, actions: Mapping[str, Any], reward: Array, *,
    observations: Mapping[str, Any] | None = None, lead: int = 0, success: bool = True,
) -> None:  # fmt: skip
    """Write one recording of T steps: frames [T + 1, H, W, 3], actions [T], reward [T], observations [T + 1].

    Nested names are joined by `$`. `lead` frames stand before the first state, as real recordings have them.
    """
    steps = len(reward)
    if len(frames) != steps + 1:
        raise DemoError(f"{steps} steps have {steps + 1} frames, not {len(frames)}.", "")
    staging = folder.with_name(f".{folder.name}.tmp")
    try:
        staging.mkdir(parents=True)
        before = (frames[0] for _ in range(lead))
        count = video.encode(staging / "recording.mp4", _chain(before, frames))
        members = {f"action${name}": np.asarray(value) for name, value in actions.items()}
        members |= {f"observation${name}": np.asarray(value) for name, value in (observations or {}).items()}
        np.savez_compressed(staging / "rendered.npz", reward=np.asarray(reward, np.float32), **members)  # type: ignore[arg-type]
        told = {
            "success": success,
            "duration_ms": steps * 50,
            "duration_steps": steps,
            "total_reward": float(np.sum(reward)),
            "stream_name": folder.name,
            "true_video_frame_count": count,
        }
        write_json(staging / "metadata.json", told)
        os.replace(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _chain(before: Iterator[Array], frames: Array) -> Iterator[Array]:
    yield from before
    yield from frames


def _map(demos: Demos, episode: int) -> ActionMap:
    """The map whose actions an episode has; a look turns as far as it did when the episode was recorded."""
    told = demos.shards[int(demos.chosen[episode, 0])].origin.get("settings", {}).get("env", {}).get("options", {})
    if demos.schema.action == FULL.spec:
        return FULL
    for kind, names in NAMES.items():
        if demos.schema.action.sizes == (len(names),):
            return action_map(kind, look=float(told.get("look", 15.0)))
    raise DemoError(f"{demos.path} has no `raw/` actions and none of a map.", "export as minari or npz")


def export_minerl(demos: Demos, out: Path, on_progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Write demos with frames `pov` as the game folder `out`: one recording per episode.

    Actions are the `raw/` columns, or what the actions of a map (14, 8 or full) stand for. Video is not exact, and the
    last frame of an episode is lost on every reader.
    """
    image = next((field for field in demos.schema.obs.fields if field.name == "pov" and field.kind == "image"), None)
    if image is None or image.shape[2] != 3:
        raise DemoError(f"{demos.path} has no frames `pov` in colour and one at a time.", "export as minari or npz")
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise DemoError(f"{out} is already there and not empty.", "choose another folder with --out DIR")
    out.mkdir(parents=True, exist_ok=True)
    for number in range(len(demos)):
        values = demos.episode(number)
        steps = len(values["reward"])
        actions = raw_actions(demos, number, values)
        if not actions:
            actions = _map(demos, number).decode(np.array(values["action"]))
        seen = nested_obs(demos, number, np.array(values["obs"]))
        frames = seen.pop("pov")
        name = f"v4_{demos.schema.env.replace(':', '_').replace('/', '_')}-{number}_0-{steps}"
        write_recording(
            out / name, frames, {key.replace("/", "$"): value for key, value in actions.items()},
            np.array(values["reward"]), observations={key.replace("/", "$"): value for key, value in seen.items()},
            success=int(demos.episodes["outcome"][number]) >= 0,
        )  # fmt: skip
        if on_progress is not None:
            on_progress(number + 1, len(demos))
    return {"format": "minerl", "out": str(out), "episodes": len(demos), "steps": demos.steps, "left_out": []}
