"""Small faithful files of the supported formats; the brightness of a frame encodes its number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array

STEP = 6
"""Levels of brightness from frame to frame."""
BUTTONS = ("attack", "back", "forward", "jump", "left", "right", "sneak", "sprint")


def film(path: Path, frames: Iterable[Array]) -> None:
    """Write a video as MineRL and VPT have them: H.264, yuv420p, 20 frames a second."""
    import av  # here, so that a machine without it can collect the other tests

    with av.open(str(path), "w") as container:
        stream = None
        for frame in frames:
            if stream is None:
                stream = container.add_stream("libx264", rate=20)
                stream.height, stream.width, stream.pix_fmt = *frame.shape[:2], "yuv420p"
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def shades(count: int, height: int = 16, width: int = 16) -> Iterable[Array]:
    """Frames that differ in brightness."""
    return (np.full((height, width, 3), 10 + STEP * number, np.uint8) for number in range(count))


@pytest.fixture
def numbers() -> Callable[[Array], list[int]]:
    """The number of each frame, from its brightness."""

    def tell(frames: Array) -> list[int]:
        return np.round((frames.reshape(len(frames), -1).mean(axis=1) - 10) / STEP).astype(int).tolist()

    return tell


def treechop(steps: int, seed: int) -> dict[str, Array]:
    """The arrays of a Treechop recording."""
    random = np.random.default_rng(seed)
    members: dict[str, Array] = {f"action${name}": random.integers(0, 2, steps) for name in BUTTONS}
    members["action$camera"] = random.normal(0, 6, (steps, 2)).astype(np.float32)
    members["reward"] = (random.random(steps) < 0.1).astype(np.float32)
    return members


@pytest.fixture
def recording(tmp_path: Path) -> Callable[..., Path]:
    """Write one MineRL recording: T steps, `lead` frames before the first state, members added or replaced."""

    def write(
        name: str = "v3_absolute_grape_changeling-6_3774-4098",
        steps: int = 20,
        *,
        game: str = "MineRLTreechop-v0",
        lead: int = 5,
        seed: int = 0,
        meta: dict[str, Any] | None = None,
        size: int = 16,
        **members: Any,
    ) -> Path:
        folder = tmp_path / "data" / game / name
        folder.mkdir(parents=True)
        film(folder / "recording.mp4", shades(steps + 1 + lead, size, size))
        arrays = treechop(steps, seed) | {key.replace("__", "$"): value for key, value in members.items()}
        np.savez_compressed(folder / "rendered.npz", **{k: v for k, v in arrays.items() if v is not None})
        told = {
            "success": True,
            "duration_ms": steps * 50,
            "duration_steps": steps,
            "stream_name": name,
            "total_reward": float(arrays["reward"].sum()),
            "true_video_frame_count": steps + 1 + lead,
        }
        if meta is None or meta:
            (folder / "metadata.json").write_text(json.dumps(told | (meta or {})))
        return folder.parent

    return write


def line(number: int = 0, **changes: Any) -> dict[str, Any]:
    """One line of a VPT recording at which nothing is done."""
    mouse = {
        "x": 640.0,
        "y": 360.0,
        "dx": 0.0,
        "dy": 0.0,
        "scaledX": 0.0,
        "scaledY": 0.0,
        "dwheel": 0.0,
        "buttons": [],
        "newButtons": [],
    }
    keyboard = {"keys": [], "newKeys": [], "chars": ""}
    told = {
        "mouse": mouse | changes.pop("mouse", {}),
        "keyboard": keyboard | changes.pop("keyboard", {}),
        "isGuiOpen": False,
        "isGuiInventory": False,
        "hotbar": 0,
        "yaw": 0.0,
        "pitch": 0.0,
        "xpos": 0.0,
        "ypos": 64.0,
        "zpos": 0.0,
        "tick": number,
        "milli": number * 50,
        "inventory": [{"type": "log", "quantity": 1}],
        "serverTick": number,
        "serverTickDurationMs": 5.0,
        "stats": {},
    }
    return told | changes


@pytest.fixture
def segment(tmp_path: Path) -> Callable[..., Path]:
    """Write one VPT segment from its lines; `frames` where the video has another number of them."""

    def write(
        lines: list[dict[str, Any]],
        name: str = "8.0/cheeky-setter-02e496ce4abb-20220421-092639",
        frames: int | None = None,
        height: int = 36,
        width: int = 64,
        tail: str = "",
    ) -> Path:
        stem = tmp_path / "vpt" / name
        stem.parent.mkdir(parents=True, exist_ok=True)
        film(stem.with_name(stem.name + ".mp4"), shades(len(lines) if frames is None else frames, height, width))
        text = "\n".join(json.dumps(told) for told in lines) + "\n" + tail
        stem.with_name(stem.name + ".jsonl").write_text(text)
        return tmp_path / "vpt"

    return write


@pytest.fixture
def vpt_line() -> Callable[..., dict[str, Any]]:
    """Make one line of a VPT recording."""
    return line
