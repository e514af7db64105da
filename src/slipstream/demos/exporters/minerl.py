"""MineRL recordings of data version 4: a folder per episode with a video, arrays and metadata."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.exporters.exporter import Progress, check_target, export_summary
from slipstream.demos.importers import video
from slipstream.demos.iterators import nested_obs, raw_actions
from slipstream.demos.reader import Demos
from slipstream.errors import DemoError
from slipstream.minecraft.action_maps import FULL, NAMES, ActionMap, action_map
from slipstream.runs.layout import write_json


def write_recording(
    folder: Path,
    frames: Array,
    actions: Mapping[str, Any],
    reward: Array,
    *,
    observations: Mapping[str, Any] | None = None,
    lead: int = 0,
    success: bool = True,
) -> None:
    """Write one recording of T steps: frames [T + 1, H, W, 3], actions [T], reward [T], observations [T + 1].

    Nested names are joined by `$`. `lead` extra frames precede the first state, as in real recordings.
    """
    steps = len(reward)
    if len(frames) != steps + 1:
        raise DemoError(f"{steps} steps have {steps + 1} frames, not {len(frames)}.", "")
    staging = folder.with_name(f".{folder.name}.tmp")
    try:
        staging.mkdir(parents=True)
        count = video.encode(staging / "recording.mp4", chain(repeat(frames[0], lead), frames))
        arrays = {f"action${name}": np.asarray(value) for name, value in actions.items()}
        arrays |= {f"observation${name}": np.asarray(value) for name, value in (observations or {}).items()}
        np.savez_compressed(staging / "rendered.npz", reward=np.asarray(reward, np.float32), **arrays)  # type: ignore[arg-type]
        metadata = {
            "success": success,
            "duration_ms": steps * 50,
            "duration_steps": steps,
            "total_reward": float(np.sum(reward)),
            "stream_name": folder.name,
            "true_video_frame_count": count,
        }
        write_json(staging / "metadata.json", metadata)
        os.replace(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _action_map(demos: Demos, episode: int) -> ActionMap:
    """The action map of an episode, with the look angle that it was recorded with."""
    origin = demos.shards[int(demos.chosen[episode, 0])].origin
    options = origin.get("settings", {}).get("env", {}).get("options", {})
    if demos.schema.action == FULL.spec:
        return FULL
    for kind, names in NAMES.items():
        if demos.schema.action.sizes == (len(names),):
            return action_map(kind, look=float(options.get("look", 15.0)))
    raise DemoError(
        f"{demos.path} has neither `raw/` actions nor the actions of an action map.", "export as minari or npz"
    )


def export_minerl(demos: Demos, out: Path, on_progress: Progress | None = None) -> dict[str, Any]:
    """Write demos with frames `pov` to the folder `out`, one recording per episode.

    Actions are the `raw/` columns, or are decoded with the action map (14, 8 or full). Video is lossy, and MineRL's
    readers ignore the last frame of an episode.
    """
    image = next((field for field in demos.schema.obs.fields if field.name == "pov" and field.kind == "image"), None)
    if image is None or image.shape[2] != 3:
        raise DemoError(f"{demos.path} has no unstacked RGB frames `pov`.", "export as minari or npz")
    check_target(out, "DIR", allow_empty=True)
    out.mkdir(parents=True, exist_ok=True)
    for number in range(len(demos)):
        values = demos.episode(number)
        steps = len(values["reward"])
        actions = raw_actions(demos, number, values)
        if not actions:
            actions = _action_map(demos, number).decode(np.array(values["action"]))
        observations = nested_obs(demos, number, np.array(values["obs"]))
        frames = observations.pop("pov")
        name = f"v4_{demos.schema.env.replace(':', '_').replace('/', '_')}-{number}_0-{steps}"
        write_recording(
            out / name,
            frames,
            {key.replace("/", "$"): value for key, value in actions.items()},
            np.array(values["reward"]),
            observations={key.replace("/", "$"): value for key, value in observations.items()},
            success=int(demos.episodes["outcome"][number]) >= 0,
        )
        if on_progress is not None:
            on_progress(number + 1, len(demos))
    return export_summary("minerl", demos, out)
