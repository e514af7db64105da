"""Video files, frame by frame, through PyAV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.importers.ingest import optional
from slipstream.errors import DemoError


def count(path: Path) -> int:
    """How many frames there are, from the container alone: nothing is decoded."""
    av = optional("av", "video")
    try:
        with av.open(str(path)) as container:
            return sum(1 for packet in container.demux(_stream(container, path)) if packet.size)
    except av.FFmpegError as error:
        raise _unreadable(path, error) from error


def first_size(paths: Sequence[Path]) -> tuple[int, int, int]:
    """The shape of a frame (height, width, 3), from the first video that opens."""
    av = optional("av", "video")
    for path in paths:
        try:
            with av.open(str(path)) as container:
                stream = _stream(container, path)
                return stream.height, stream.width, 3
        except (av.FFmpegError, DemoError):
            continue
    raise DemoError(f"None of {len(paths)} videos can be opened; the first is {paths[0]}.", "get them again")


def decode(path: Path) -> Iterator[Array]:
    """Every frame [H, W, 3] as RGB, in the order in which they are shown."""
    av = optional("av", "video")
    turn = optional("av.video.reformatter", "video").VideoReformatter()  # made once: making one costs more than a frame
    try:
        with av.open(str(path)) as container:
            stream = _stream(container, path)
            stream.codec_context.thread_count = (
                1  # episodes are decoded side by side: threads within one would not help
            )
            for frame in container.decode(stream):
                yield turn.reformat(frame, format="rgb24").to_ndarray()
    except av.FFmpegError as error:
        raise _unreadable(path, error) from error


def gather(frames: Iterable[Array], most: int) -> Array:
    """Frames, `most` at most, in one array that is made once; shorter where they end before."""
    out = np.zeros((0,), np.uint8)
    done = 0
    for frame in frames:
        if not done:
            out = np.empty((most, *frame.shape), np.uint8)
        out[done] = frame
        done += 1
    return out[:done]


def encode(path: Path, frames: Iterable[Array], fps: int = 20, quality: int = 18) -> int:
    """Write frames [H, W, 3] as H.264 and return how many; sides must be even, and colours are not kept exactly."""
    av = optional("av", "video")
    given = iter(frames)
    first = next(given)
    height, width = first.shape[:2]
    if height % 2 or width % 2:
        raise DemoError(f"Frames of {height}x{width} cannot be written as video: sides must be even.", "resize them")
    written = 0
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": str(quality)}
        for frame in chain([first], given):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
            written += 1
        container.mux(stream.encode())
    return written


def _stream(container: Any, path: Path) -> Any:
    if not container.streams.video:
        raise DemoError(f"{path} holds no video.", "")
    return container.streams.video[0]


def _unreadable(path: Path, error: Exception) -> DemoError:
    return DemoError(f"{path} cannot be decoded: {error}.", "get it again, or leave it out")
