"""Read and write video files frame by frame with PyAV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.importers.source import import_optional
from slipstream.errors import DemoError


def count_frames(path: Path) -> int:
    """The number of frames, read from the container without decoding."""
    av = import_optional("av", "video")
    try:
        with av.open(str(path)) as container:
            return sum(1 for packet in container.demux(_stream(container, path)) if packet.size)
    except av.FFmpegError as error:
        raise _decode_error(path, error) from error


def frame_shape(paths: Sequence[Path]) -> tuple[int, int, int]:
    """The shape (height, width, 3) of a frame, from the first video that opens."""
    av = import_optional("av", "video")
    for path in paths:
        try:
            with av.open(str(path)) as container:
                stream = _stream(container, path)
                return stream.height, stream.width, 3
        except (av.FFmpegError, DemoError):
            continue
    raise DemoError(f"None of {len(paths)} videos can be opened; the first is {paths[0]}.", "download them again")


def decode(path: Path) -> Iterator[Array]:
    """Yield every frame [H, W, 3] as RGB, in presentation order."""
    av = import_optional("av", "video")
    # One reformatter for all frames: creating one costs more than converting a frame.
    reformatter = import_optional("av.video.reformatter", "video").VideoReformatter()
    try:
        with av.open(str(path)) as container:
            stream = _stream(container, path)
            stream.codec_context.thread_count = 1  # episodes are decoded in parallel instead
            for frame in container.decode(stream):
                yield reformatter.reformat(frame, format="rgb24").to_ndarray()
    except av.FFmpegError as error:
        raise _decode_error(path, error) from error


def stack_frames(frames: Iterable[Array], limit: int) -> Array:
    """Copy at most `limit` frames into one array."""
    out = np.zeros((0,), np.uint8)
    count = 0
    for frame in frames:
        if not count:
            out = np.empty((limit, *frame.shape), np.uint8)
        out[count] = frame
        count += 1
    return out[:count]


def encode(path: Path, frames: Iterable[Array], fps: int = 20, quality: int = 18) -> int:
    """Write frames [H, W, 3] as H.264 and return their number; sides must be even, and encoding is lossy."""
    av = import_optional("av", "video")
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
        raise DemoError(f"{path} holds no video stream.", "")
    return container.streams.video[0]


def _decode_error(path: Path, error: Exception) -> DemoError:
    return DemoError(f"{path} cannot be decoded: {error}.", "download it again, or leave it out")
