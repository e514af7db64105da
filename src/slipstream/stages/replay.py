"""A replay told and shown: its facts and events in words, and as a video, an animation or one picture."""

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
"""Pixels of a video and of an animation, unless said."""
FPS, SLOW_FPS = 60.0, 20.0
"""Pictures a second of a video and of an animation, unless said."""
GROUND = (23, 37, 52)
"""What most of a picture is, about."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Cut:
    """How a film is made of a replay."""

    speed: float = 1.0
    fps: float | None = None
    size: tuple[int, int] | None = None
    first_s: float = 0.0
    """Seconds of the game at which it begins."""
    last_s: float | None = None

    def check(self, replay: Replay) -> tuple[float, float]:
        """The steps [first, last) of the film; what cannot be filmed is refused."""
        for name, value in (("--speed", self.speed), ("--fps", self.fps)):
            if value is not None and not 0 < value <= 1000:
                raise ConfigError(f"`{name} {value:g}` cannot be filmed.", "give a positive number")
        if self.size is not None and not all(64 <= edge <= 8192 for edge in self.size):
            raise ConfigError(f"A picture of {self.size[0]}x{self.size[1]} cannot be made.", "each edge is 64 to 8192")
        seconds, length = replay.facts.step_seconds or 1 / 15, replay.facts.length
        first = max(self.first_s, 0.0) / seconds
        last = length if self.last_s is None else min(self.last_s / seconds, length)
        if first >= last:
            raise ConfigError(
                f"There is nothing from {self.first_s:g} s to "
                f"{length * seconds if self.last_s is None else self.last_s:g} s.",
                f"the game lasts {length * seconds:g} s",
            )
        return first, last


def describe(replay: Replay) -> dict[str, Any]:
    """The facts of a replay for a script: who, what, how it ended, what happened."""
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
            {"step": e.step, "seconds": e.step * facts.step_seconds, "kind": e.kind, "agent": e.agent,
             "side": _side(replay, e)} for e in facts.events
        ],
        "arrays": list(replay.names),
    }  # fmt: skip


def told(replay: Replay) -> list[str]:
    """The facts in words; of touches only their number is told."""
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
    lines.append(f"{facts.length:,} decisions{pace}, seed {facts.seed}{why}")
    for kind, numbers in about["counts"].items():
        lines.append(f"{kind}: " + ", ".join(f"{n} {name}" for n, name in zip(numbers, names, strict=True)))
    for event in facts.events:
        if event.kind != "touch":
            when = f"{event.step * facts.step_seconds:6.1f} s" if facts.step_seconds else f"step {event.step:,}"
            lines.append(f"{when}  {event.kind:<6} {names[_side(replay, event)]}")
    return lines


def _side(replay: Replay, event: Event) -> int:
    return sides_of(replay.facts.teams)[event.agent] if event.agent >= 0 else 0


def save_png(replay: Replay, path: Path, cut: Cut) -> None:
    """One sheet of the key moments."""
    cut.check(replay)
    with _beside(path) as temporary:
        contact_sheet(ReplayVideo(replay, cut.size or SIZE)).save(temporary, "PNG", optimize=True)


def save_gif(replay: Replay, path: Path, cut: Cut, on_progress: Progress) -> int:
    """An animation; returns the number of pictures."""
    fps = cut.fps or SLOW_FPS
    delay = max(2, round(100 / fps))  # a GIF counts in hundredths of a second
    frames = _frames(replay, cut, cut.size or SMALL, 100 / delay, on_progress)
    first = next(frames)
    palette = _palette(first)
    count = 1

    def following() -> Iterator[Image.Image]:
        nonlocal count
        for frame in frames:
            count += 1
            yield frame.quantize(palette=palette, dither=Image.Dither.NONE)

    with _beside(path) as temporary:
        first.quantize(palette=palette, dither=Image.Dither.NONE).save(
            temporary, "GIF", save_all=True, append_images=following(), duration=10 * delay, loop=0
        )
    return count


def _palette(frame: Image.Image) -> Image.Image:
    """The colours of a picture, and all the ways from its ground to what stands out in later ones."""
    found = frame.quantize(128, Image.Quantize.MEDIANCUT).getpalette() or []
    bright = (BLUE, ORANGE, YELLOW, WHITE)
    ways = [(start, end, step) for start in (PAGE, GROUND) for end in bright for step in range(1, 16)]
    ramps = [part for start, end, step in ways for part in blended(start, end, step / 15)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*found[: 3 * 128], *ramps])
    return palette


def save_mp4(replay: Replay, path: Path, cut: Cut, on_progress: Progress) -> int:
    """A video, written picture by picture; returns their number."""
    try:
        av: Any = import_module("av")
    except ImportError as error:
        raise MachineError(
            "A video needs PyAV, which is not installed.", 'pip install "slipstream[view]", or make a --gif'
        ) from error
    fps = cut.fps or FPS
    width, height = cut.size or SIZE
    size = width // 2 * 2, height // 2 * 2
    count = 0
    with _beside(path) as temporary:
        try:
            with av.open(str(temporary), "w", format="mp4", options={"movflags": "faststart"}) as container:
                codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
                stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001))
                stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
                stream.options = {"crf": "20", "preset": "veryfast"} if codec == "libx264" else {"q": "3"}
                for frame in _frames(replay, cut, size, fps, on_progress):
                    container.mux(stream.encode(av.VideoFrame.from_image(frame)))
                    count += 1
                container.mux(stream.encode())
        except av.FFmpegError as error:
            raise MachineError(f"{path} could not be encoded: {error}.", "make a --gif instead") from error
    return count


def _frames(
    replay: Replay, cut: Cut, size: tuple[int, int], fps: float, on_progress: Progress
) -> Iterator[Image.Image]:
    first, last = cut.check(replay)
    film = ReplayVideo(replay, size)
    for moment in film.moments(first, last, fps, cut.speed):
        yield film.frame(moment)
        on_progress(round(moment.step - first), round(last - first))


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when it is whole."""
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
