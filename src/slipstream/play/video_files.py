"""Files of games: a video, an animation or one picture, of a replay or of a game that is played now.

A game with a drawing (`Game.scene`) is drawn from its recorded states. Other games are played, or played again, in an
environment that draws itself (`rgb_array`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from slipstream.contracts import Array
from slipstream.envs.registry import UserCode, find_game
from slipstream.envs.render.canvas import BLUE, ORANGE, PAGE, WHITE, YELLOW, blended
from slipstream.envs.render.video import CELLS, ReplayVideo, contact_sheet, image_sheet
from slipstream.errors import ConfigError, MachineError
from slipstream.play.rendering import RenderedGame
from slipstream.runs.replays import Replay

SIZE, SMALL = (960, 540), (640, 360)
"""Default size in pixels of a video and of an animation."""
FPS, SLOW_FPS = 60.0, 20.0
"""Default frames per second of a video and of an animation."""
GROUND = (23, 37, 52)
"""The approximate background colour of a picture."""
CELL = (480, 480)
"""Most pixels of an image on a sheet, unless a size is given."""
STEP_S = 1 / 15
"""Time of a step in games that have no time of their own."""
SUFFIXES = {"mp4": (".mp4", ".m4v"), "gif": (".gif",), "png": (".png",)}
"""The endings of files of each kind."""
SMALLEST = 240
"""Images with a smaller height are enlarged by a whole number."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class VideoOptions:
    """Options for rendering a replay."""

    speed: float = 1.0
    fps: float | None = None
    size: tuple[int, int] | None = None
    first_s: float = 0.0
    """The second of the game at which the video starts."""
    last_s: float | None = None

    def check(self) -> None:
        """Raise an error for values that are not possible."""
        for name, value in (("--speed", self.speed), ("--fps", self.fps)):
            if value is not None and not 0 < value <= 1000:
                raise ConfigError(f"`{name} {value:g}` is not possible.", "give a positive number")
        if self.size is not None and not all(64 <= edge <= 8192 for edge in self.size):
            raise ConfigError(
                f"A size of {self.size[0]}x{self.size[1]} is not possible.", "each edge must be 64 to 8192"
            )

    def steps(self, seconds: float, length: int) -> tuple[float, float]:
        """The steps [first, last) of the video of a game with so many steps of so many seconds."""
        self.check()
        first = max(self.first_s, 0.0) / seconds
        last = length if self.last_s is None else min(self.last_s / seconds, length)
        if first >= last:
            raise ConfigError(
                f"The game has no steps from {self.first_s:g} s to "
                f"{length * seconds if self.last_s is None else self.last_s:g} s.",
                f"the game lasts {length * seconds:g} s",
            )
        return first, last


def check_files(outputs: Mapping[str, Path]) -> None:
    """Raise if the name of a file does not fit its kind, `mp4`, `gif` or `png`."""
    for kind, path in outputs.items():
        if path.suffix.lower() not in SUFFIXES[kind] and not path.is_dir():
            raise ConfigError(
                f"--{kind} {path} does not end in .{kind}.", f"write --{kind} {path.with_suffix('.' + kind)}"
            )


def save_png(replay: Replay, path: Path, options: VideoOptions, code: UserCode | None = None) -> None:
    """Write one sheet with the key moments, or with images at regular intervals."""
    if not _has_scene(replay):
        with closing(RenderedGame.of_replay(replay, code)) as game:
            save_game_png(game, path, options)
        return
    _steps(replay, options)
    with _replacing(path) as temporary:
        contact_sheet(ReplayVideo(replay, options.size or SIZE)).save(temporary, "PNG", optimize=True)


def save_gif(
    replay: Replay, path: Path, options: VideoOptions, on_progress: Progress, code: UserCode | None = None
) -> int:
    """Write a GIF; return the number of frames."""
    if not _has_scene(replay):
        with closing(RenderedGame.of_replay(replay, code)) as game:
            return save_game_gif(game, path, options, _steps(replay, options, 1 / game.rate), on_progress)
    delay = _delay(options.fps or SLOW_FPS)
    frames = _frames(replay, options, options.size or SMALL, 100 / delay, on_progress)
    return _write_gif(path, frames, delay, _scene_palette)


def save_mp4(
    replay: Replay, path: Path, options: VideoOptions, on_progress: Progress, code: UserCode | None = None
) -> int:
    """Write an MP4 frame by frame; return the number of frames."""
    if not _has_scene(replay):
        with closing(RenderedGame.of_replay(replay, code)) as game:
            return save_game_mp4(game, path, options, _steps(replay, options, 1 / game.rate), on_progress)
    fps, (width, height) = options.fps or FPS, options.size or SIZE
    return _write_mp4(path, _frames(replay, options, (width // 2 * 2, height // 2 * 2), fps, on_progress), fps)


def save_game_png(game: RenderedGame, path: Path, options: VideoOptions) -> None:
    """Write one sheet with images of a game at regular intervals."""
    options.check()
    kept, every = list[tuple[int, Array]](), 1
    for step, image in enumerate(game.images()):
        if step % every == 0:
            kept.append((step, image))
        if len(kept) > 8 * CELLS:  # the length is not known: keep images at twice the interval from here on
            kept, every = kept[::2], 2 * every
    chosen = [kept[round(n * (len(kept) - 1) / (CELLS - 1))] for n in range(CELLS)] if len(kept) > CELLS else kept
    pictures = [_fit(image, options.size) for _, image in chosen]
    for picture in pictures:
        picture.thumbnail(options.size or CELL)
    sheet = image_sheet([(f"step {step:,}", picture) for (step, _), picture in zip(chosen, pictures, strict=True)])
    with _replacing(path) as temporary:
        sheet.save(temporary, "PNG", optimize=True)


def save_game_gif(
    game: RenderedGame, path: Path, options: VideoOptions, steps: tuple[float, float], on_progress: Progress
) -> int:
    """Write a GIF of a game that draws itself; return the number of frames."""
    delay = _delay(options.fps or min(SLOW_FPS, game.rate * options.speed))
    return _write_gif(path, _game_frames(game, options, steps, 100 / delay, on_progress), delay, _image_palette)


def save_game_mp4(
    game: RenderedGame, path: Path, options: VideoOptions, steps: tuple[float, float], on_progress: Progress
) -> int:
    """Write an MP4 of a game that draws itself; return the number of frames."""
    fps = options.fps or min(FPS, game.rate * options.speed)
    return _write_mp4(path, _game_frames(game, options, steps, fps, on_progress), fps)


def _has_scene(replay: Replay) -> bool:
    game = find_game(replay.facts.env)
    return game is not None and game.scene is not None


def _steps(replay: Replay, options: VideoOptions, seconds: float = STEP_S) -> tuple[float, float]:
    """The steps to draw; `seconds` is the time of a step in a game that does not say it."""
    return options.steps(replay.facts.step_seconds or seconds, replay.facts.length)


def _delay(fps: float) -> int:
    """The time of a frame of a GIF, in hundredths of a second."""
    return max(2, round(100 / fps))


def _write_gif(
    path: Path, frames: Iterator[Image.Image], delay: int, make_palette: Callable[[Image.Image], Image.Image]
) -> int:
    first = next(frames, None)
    if first is None:
        raise _no_frames()
    palette = make_palette(first)
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


def _image_palette(frame: Image.Image) -> Image.Image:
    """The colours of a frame."""
    return frame.quantize(256, Image.Quantize.MEDIANCUT)


def _scene_palette(frame: Image.Image) -> Image.Image:
    """The colours of a frame, and blends from the background to the colours of players and ball."""
    found = frame.quantize(128, Image.Quantize.MEDIANCUT).getpalette() or []
    bright = (BLUE, ORANGE, YELLOW, WHITE)
    blends = [(start, end, step) for start in (PAGE, GROUND) for end in bright for step in range(1, 16)]
    ramps = [part for start, end, step in blends for part in blended(start, end, step / 15)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*found[: 3 * 128], *ramps])
    return palette


def _write_mp4(path: Path, frames: Iterator[Image.Image], fps: float) -> int:
    try:
        av: Any = import_module("av")
    except ImportError as error:
        raise MachineError(
            "A video needs PyAV, which is not installed.", 'pip install "slipstream[video]", or make a --gif'
        ) from error
    count = 0
    with _replacing(path) as temporary:
        try:
            with av.open(str(temporary), "w", format="mp4", options={"movflags": "faststart"}) as container:
                codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
                stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001))
                stream.pix_fmt = "yuv420p"
                stream.options = {"crf": "20", "preset": "veryfast"} if codec == "libx264" else {"q": "3"}
                first = next(frames, None)
                if first is None:
                    raise _no_frames()
                for frame in chain((first,), frames):
                    if not count:
                        stream.width, stream.height = frame.width // 2 * 2, frame.height // 2 * 2
                    frame = frame.crop((0, 0, stream.width, stream.height))  # the codec needs even edges
                    container.mux(stream.encode(av.VideoFrame.from_image(frame)))
                    count += 1
                container.mux(stream.encode())
        except av.FFmpegError as error:
            raise MachineError(f"{path} could not be encoded: {error}.", "make a --gif instead") from error
    return count


def _no_frames() -> ConfigError:
    return ConfigError("No step of the game is within the given times.", "give --from and --to a longer span")


def _frames(
    replay: Replay, options: VideoOptions, size: tuple[int, int], fps: float, on_progress: Progress
) -> Iterator[Image.Image]:
    first, last = _steps(replay, options)
    video = ReplayVideo(replay, size)
    for moment in video.moments(first, last, fps, options.speed):
        yield video.frame(moment)
        on_progress(round(moment.step - first), round(last - first))


def _game_frames(
    game: RenderedGame, options: VideoOptions, steps: tuple[float, float], fps: float, on_progress: Progress
) -> Iterator[Image.Image]:
    """The images of a game at a frame rate: an image is repeated or left out where the rates differ."""
    options.check()
    first, last = steps
    shown = 0
    for step, image in enumerate(game.images()):
        if step >= last:
            break
        due = max(1, round((step + 1 - first) / (game.rate * options.speed) * fps)) if step >= first else 0
        if shown < due:
            yield from [_fit(image, options.size)] * (due - shown)
            shown = due
        on_progress(step, round(last) if last < inf else step)


def _fit(image: Array, size: tuple[int, int] | None) -> Image.Image:
    """An image at its own size, enlarged if it is small, or centred in the given size."""
    picture = Image.fromarray(image)
    if size is not None:
        return ImageOps.pad(picture, size, Image.Resampling.LANCZOS, color=PAGE)
    times = -(-SMALLEST // picture.height)
    return picture.resize((times * picture.width, times * picture.height), Image.Resampling.NEAREST)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file that replaces `path` when it is complete."""
    if not path.name or path.is_dir():
        raise MachineError(f"{path} is a folder.", "name a file")
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
