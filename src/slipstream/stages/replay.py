"""Describe a replay in text, and render it as a video, an animation or one picture."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from slipstream.contracts import sides_of
from slipstream.envs.render.canvas import BLUE, ORANGE, PAGE, WHITE, YELLOW, blended
from slipstream.envs.render.video import ReplayVideo, contact_sheet, short_name
from slipstream.errors import ConfigError, MachineError
from slipstream.runs.replays import Event, Replay

SIZE, SMALL = (960, 540), (640, 360)
"""Default size in pixels of a video and of an animation."""
FPS, SLOW_FPS = 60.0, 20.0
"""Default frames per second of a video and of an animation."""
GROUND = (23, 37, 52)
"""The approximate background colour of a picture."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FilmOptions:
    """Options for rendering a replay."""

    speed: float = 1.0
    fps: float | None = None
    size: tuple[int, int] | None = None
    first_s: float = 0.0
    """The second of the game at which the film starts."""
    last_s: float | None = None

    def check(self, replay: Replay) -> tuple[float, float]:
        """The steps [first, last) of the film; invalid options are an error."""
        for name, value in (("--speed", self.speed), ("--fps", self.fps)):
            if value is not None and not 0 < value <= 1000:
                raise ConfigError(f"`{name} {value:g}` is not possible.", "give a positive number")
        if self.size is not None and not all(64 <= edge <= 8192 for edge in self.size):
            raise ConfigError(
                f"A size of {self.size[0]}x{self.size[1]} is not possible.", "each edge must be 64 to 8192"
            )
        seconds, length = replay.facts.step_seconds or 1 / 15, replay.facts.length
        first = max(self.first_s, 0.0) / seconds
        last = length if self.last_s is None else min(self.last_s / seconds, length)
        if first >= last:
            raise ConfigError(
                f"The game has no steps from {self.first_s:g} s to "
                f"{length * seconds if self.last_s is None else self.last_s:g} s.",
                f"the game lasts {length * seconds:g} s",
            )
        return first, last


def describe(replay: Replay) -> dict[str, Any]:
    """The facts of a replay as JSON values: players, game, result and events."""
    facts = replay.facts
    counts = Counter((event.kind, _side(replay, event)) for event in facts.events)
    kinds = dict.fromkeys(event.kind for event in facts.events)
    return {
        "path": str(replay.path),
        "bytes": replay.path.stat().st_size,
        "env": facts.env,
        "task": facts.task,
        "seed": facts.seed,
        "players": list(facts.players),
        "outcome": facts.outcome,
        "score": None if facts.score is None else list(facts.score),
        "length": facts.length,
        "seconds": facts.length * facts.step_seconds,
        "kind": facts.kind,
        "steps": facts.steps,
        "counts": {kind: [counts[kind, side] for side in range(len(facts.players))] for kind in kinds},
        "events": [
            {
                "step": event.step,
                "seconds": event.step * facts.step_seconds,
                "kind": event.kind,
                "agent": event.agent,
                "side": _side(replay, event),
            }
            for event in facts.events
        ],
        "arrays": list(replay.names),
    }


def describe_lines(replay: Replay) -> list[str]:
    """The facts as lines of text; touches are only counted."""
    facts, about = replay.facts, describe(replay)
    lines = [f"{replay.path}: {facts.env}{', ' + facts.task if facts.task else ''}, {about['bytes'] / 1024:.0f} kB"]
    names = [short_name(name) for name in facts.players]
    if len(names) > 1:
        ended = {1: f"{names[0]} won", 0: "a draw", -1: f"{names[1]} won"}[facts.outcome]
        score = "" if facts.score is None else " " + " : ".join(f"{goals:g}" for goals in facts.score)
        lines.append(f"{names[0]} (blue) against {names[1]} (orange):{score} {ended}")
    else:
        lines.append(f"{names[0]}: return {facts.returns[0]:.4g}" if facts.returns else names[0])
    pace = f", {about['seconds']:.1f} s" if facts.step_seconds else ""
    trained = f" after {facts.steps:,} steps of training" if facts.steps is not None else ""
    why = f", {facts.kind}{trained}" if facts.kind else ""
    lines.append(f"{facts.length:,} steps{pace}, seed {facts.seed}{why}")
    for kind, numbers in about["counts"].items():
        lines.append(f"{kind}: " + ", ".join(f"{n} {name}" for n, name in zip(numbers, names, strict=True)))
    for event in facts.events:
        if event.kind != "touch":
            when = f"{event.step * facts.step_seconds:6.1f} s" if facts.step_seconds else f"step {event.step:,}"
            lines.append(f"{when}  {event.kind:<6} {names[_side(replay, event)]}")
    return lines


def _side(replay: Replay, event: Event) -> int:
    return sides_of(replay.facts.teams)[event.agent] if event.agent >= 0 else 0


def save_png(replay: Replay, path: Path, options: FilmOptions) -> None:
    """Write one sheet with the key moments."""
    options.check(replay)
    with _replacing(path) as temporary:
        contact_sheet(ReplayVideo(replay, options.size or SIZE)).save(temporary, "PNG", optimize=True)


def save_gif(replay: Replay, path: Path, options: FilmOptions, on_progress: Progress) -> int:
    """Write a GIF; return the number of frames."""
    fps = options.fps or SLOW_FPS
    delay = max(2, round(100 / fps))  # a GIF counts in hundredths of a second
    frames = _frames(replay, options, options.size or SMALL, 100 / delay, on_progress)
    first = next(frames)
    palette = _palette(first)
    count = 1

    def following() -> Iterator[Image.Image]:
        nonlocal count
        for frame in frames:
            count += 1
            yield frame.quantize(palette=palette, dither=Image.Dither.NONE)

    with _replacing(path) as temporary:
        first.quantize(palette=palette, dither=Image.Dither.NONE).save(
            temporary, "GIF", save_all=True, append_images=following(), duration=10 * delay, loop=0
        )
    return count


def _palette(frame: Image.Image) -> Image.Image:
    """The colours of a frame, and blends from the background to the colours of players and ball."""
    found = frame.quantize(128, Image.Quantize.MEDIANCUT).getpalette() or []
    bright = (BLUE, ORANGE, YELLOW, WHITE)
    blends = [(start, end, step) for start in (PAGE, GROUND) for end in bright for step in range(1, 16)]
    ramps = [part for start, end, step in blends for part in blended(start, end, step / 15)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*found[: 3 * 128], *ramps])
    return palette


def save_mp4(replay: Replay, path: Path, options: FilmOptions, on_progress: Progress) -> int:
    """Write an MP4 frame by frame; return the number of frames."""
    try:
        av: Any = import_module("av")
    except ImportError as error:
        raise MachineError(
            "A video needs PyAV, which is not installed.", 'pip install "slipstream[view]", or make a --gif'
        ) from error
    fps = options.fps or FPS
    width, height = options.size or SIZE
    size = width // 2 * 2, height // 2 * 2
    count = 0
    with _replacing(path) as temporary:
        try:
            with av.open(str(temporary), "w", format="mp4", options={"movflags": "faststart"}) as container:
                codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
                stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001))
                stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
                stream.options = {"crf": "20", "preset": "veryfast"} if codec == "libx264" else {"q": "3"}
                for frame in _frames(replay, options, size, fps, on_progress):
                    container.mux(stream.encode(av.VideoFrame.from_image(frame)))
                    count += 1
                container.mux(stream.encode())
        except av.FFmpegError as error:
            raise MachineError(f"{path} could not be encoded: {error}.", "make a --gif instead") from error
    return count


def _frames(
    replay: Replay, options: FilmOptions, size: tuple[int, int], fps: float, on_progress: Progress
) -> Iterator[Image.Image]:
    first, last = options.check(replay)
    film = ReplayVideo(replay, size)
    for moment in film.moments(first, last, fps, options.speed):
        yield film.frame(moment)
        on_progress(round(moment.step - first), round(last - first))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` when it is complete."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise MachineError(f"{path} could not be written: {error.strerror or error}.", "choose another file") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
