"""Watch games live: drawn in the terminal in real time, as lines of text where there is no terminal, or as a video."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.contracts import Agent, Array, EnvSpec, sides_of
from slipstream.envs.registry import EnvChoice, find_game
from slipstream.envs.render.scenes import SIZE, Scene, make_scene
from slipstream.envs.render.video import CAPTION_S, short_name
from slipstream.errors import ConfigError
from slipstream.play.engine import AgentLoader, ScheduledGame, play_scheduled
from slipstream.play.games import game_seed
from slipstream.play.rendering import RenderedGame
from slipstream.play.replay_recording import STATE, SingleGame, goals, write_replay
from slipstream.play.video_files import (
    STEP_S,
    Progress,
    VideoOptions,
    check_files,
    save_game_gif,
    save_game_mp4,
    save_game_png,
    save_gif,
    save_mp4,
    save_png,
)
from slipstream.runs.replays import Event, Replay
from slipstream.runs.terminal import Terminal, is_terminal

SHEET = "images of several moments"
FASTER = 1.5
"""The factor of the speed for a press of + or -."""
TRAIL_STEPS = 12
"""Past steps that a picture shows as trails."""
SHADES = 6
"""Colours are rounded to multiples of this, so that less text is sent to the terminal."""
COLOURS = ("\x1b[38;2;64;150;255m", "\x1b[38;2;255;148;46m")


def watch(
    choice: EnvChoice,
    names: tuple[str, ...],
    *,
    games: int = 1,
    seed: int = 0,
    speed: float = 1.0,
    sampled: bool = False,
    mp4: str | Path | None = None,
    gif: str | Path | None = None,
    png: str | Path | None = None,
    fps: float | None = None,
    size: tuple[int, int] | None = None,
    on_notice: Callable[[str], None] = print,
    on_progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Play games between the named agents, swapping sides after each game; return the results.

    With `mp4`, `gif` or `png`, one game is played and written as a video, an animation or an image.
    """
    if games < 1:
        raise ConfigError(f"{games} games cannot be watched.", "give --games a number of at least 1")
    if not 0 < speed <= 1000:
        raise ConfigError(f"A speed of {speed:g} cannot be played.", "give --speed a positive number")

    def load(name: str, spec: EnvSpec, choice: EnvChoice) -> Agent:
        return load_agent(name, spec, choice, sampled)

    facts: dict[str, Any] = {"env": choice.name, "agents": list(names), "seed": seed, "sampled": sampled}
    outputs = {kind: Path(path) for kind, path in (("mp4", mp4), ("gif", gif), ("png", png)) if path is not None}
    if outputs:
        check_files(outputs)
        if games != 1:
            raise ConfigError(f"{games} games cannot be written into one video.", "leave out --games")
        options = VideoOptions(speed, fps, size)
        game = ScheduledGame(names, game_seed(seed, 0))
        written = _write_videos(choice, game, load, outputs, options, on_notice, on_progress)
        paths = [str(path) for path in outputs.values()]
        return facts | {"games": 1, "stopped": "", "results": [written], "written": paths}
    if fps is not None or size is not None:
        raise ConfigError("--fps and --size apply to videos only.", "add --mp4, --gif or --png, or leave them out")
    screen = Terminal() if is_terminal() else None
    results: list[dict[str, Any]] = []
    display = GameDisplay(screen, speed, on_notice)
    try:
        for number in range(games):
            players = names[::-1] if number % 2 else names
            scheduled = ScheduledGame(players, game_seed(seed, number // max(1, len(names))))
            with contextlib.closing(SingleGame(choice, scheduled, load)) as single:
                result = display.play(single, f"game {number + 1} of {games}")
            if result is None:
                break
            results.append(result)
    finally:
        if screen is not None:
            screen.close()
    stopped = "" if len(results) == games else "quit"
    return facts | {"games": len(results), "stopped": stopped, "results": results, "written": []}


def _write_videos(
    choice: EnvChoice,
    game: ScheduledGame,
    load: AgentLoader,
    outputs: Mapping[str, Path],
    options: VideoOptions,
    on_notice: Callable[[str], None],
    on_progress: Progress,
) -> dict[str, Any]:
    """Play a game and write it into each file: with the game's own drawing, or with the images of its env."""
    options.check()
    declared = find_game(choice.name)
    if declared is not None and declared.scene is not None:
        return _write_scene_videos(choice, game, load, outputs, options, on_notice, on_progress)
    result: dict[str, Any] = {}
    for kind, path in outputs.items():
        with contextlib.closing(RenderedGame(choice, game, load)) as rendered:
            if kind == "png":
                save_game_png(rendered, path, options)
                on_notice(f"{path}: {SHEET}")
            else:
                save = save_game_mp4 if kind == "mp4" else save_game_gif
                on_notice(f"{path}: {save(rendered, path, options, (0, inf), on_progress):,} frames")
        played, spec = rendered.game, rendered.game.spec
        outcome = int(played.rows.outcome[0]) if spec.competitive else 0
        result = _result(game, outcome, None, played.steps, float(rendered.total.mean()))
    return result


def _write_scene_videos(
    choice: EnvChoice,
    game: ScheduledGame,
    load: AgentLoader,
    outputs: Mapping[str, Path],
    options: VideoOptions,
    on_notice: Callable[[str], None],
    on_progress: Progress,
) -> dict[str, Any]:
    """Record the game as a replay in a temporary folder, and draw that."""
    with tempfile.TemporaryDirectory() as folder:
        (played,) = play_scheduled(choice, load, [game], keep_actions=True, tolerant=False)
        path = Path(folder) / "game.replay"
        played = write_replay(choice, played, path, load=load)
        replay = Replay.open(path)
        for kind, out in outputs.items():
            if kind == "png":
                save_png(replay, out, options)
                on_notice(f"{out}: {SHEET}")
            else:
                save = save_mp4 if kind == "mp4" else save_gif
                on_notice(f"{out}: {save(replay, out, options, on_progress):,} frames")
    scored = goals(played)
    score = None if scored is None else [int(one) for one in scored]
    return _result(game, played.outcome, score, played.length, float(np.mean(played.returns)))


def _result(game: ScheduledGame, outcome: int, score: list[int] | None, length: int, total: float) -> dict[str, Any]:
    """The result of a game, as JSON values."""
    return {
        "players": list(game.players),
        "seed": game.seed,
        "outcome": outcome,
        "score": score,
        "length": length,
        "return": total,
    }


class GameDisplay:
    """The screen and its keys: space pauses, + and - change the speed, q quits."""

    def __init__(self, screen: Terminal | None, speed: float, on_notice: Callable[[str], None]) -> None:
        self._screen, self._speed, self._on_notice = screen, speed, on_notice
        self._paused = False
        self._due = time.monotonic()

    def play(self, game: SingleGame, title: str) -> dict[str, Any] | None:
        """Play one game to the end; None if the user quits."""
        spec, names = game.spec, [short_name(name) for name in game.game.players]
        past: deque[dict[str, Array]] = deque(maxlen=TRAIL_STEPS)
        events, total = list[Event](), np.zeros(spec.agents)
        seconds = spec.step_seconds or STEP_S
        while not game.over:
            past.append(game.frame())
            if not self._draw(game, past, events, names, title, total):
                return None
            game.act()
            found = game.step()
            total += game.rows.reward
            events += found
            if self._screen is None:
                for event in found:
                    if event.kind != "touch":
                        self._on_notice(_event_line(game, event, names, seconds))
        outcome = int(game.rows.outcome[0]) if spec.competitive else 0
        score = game.score or None
        if self._screen is None:
            self._on_notice(f"{title}: {_result_line(game, names, outcome, float(total.mean()))}")
        return _result(game.game, outcome, score, game.steps, float(total.mean()))

    def _draw(
        self,
        game: SingleGame,
        past: deque[dict[str, Array]],
        events: list[Event],
        names: list[str],
        title: str,
        total: Array,
    ) -> bool:
        """Draw the game and wait until the next step is due; False if the user quits."""
        if self._screen is None:
            return True
        seconds = game.spec.step_seconds or STEP_S
        scene = _scene(game, past)
        header = _header(game, scene, len(past) - 1, names)
        frame = None if scene is None else np.asarray(scene.paint(len(past) - 1.0)) // SHADES * SHADES
        while True:
            lines = [header, _recent_event(game, events, names, seconds)]
            if frame is None:
                lines += _numbers(game, total)
            state = "paused" if self._paused else f"{self._speed:.2g}x"
            lines.append(f"\x1b[2m{title}   {state}   space pauses, + and - change the speed, q quits\x1b[0m")
            self._screen.show(frame, lines)
            pace = seconds / self._speed
            self._due = max(self._due + pace, time.monotonic()) if not self._paused else time.monotonic() + 0.2
            for key in self._screen.presses(max(0.0, self._due - time.monotonic())):
                if key == "q":
                    return False
                self._paused ^= key == "space"
                if key in ("+", "=", "-"):
                    self._speed = min(100.0, max(0.05, self._speed * (1 / FASTER if key == "-" else FASTER)))
            if not self._paused:
                return True


def _scene(game: SingleGame, past: deque[dict[str, Array]]) -> Scene | None:
    """The scene of the last steps; None if the game has no drawing."""
    names = [name for name in past[-1] if name.startswith(STATE)]
    arrays = {name.removeprefix(STATE): np.stack([frame[name] for frame in past]) for name in names}
    return make_scene(game.spec.name, SIZE, arrays, game.spec.step_seconds) if names else None


def _header(game: SingleGame, scene: Scene | None, step: int, names: list[str]) -> str:
    """Names, score and clock."""
    played = f"{game.steps * game.spec.step_seconds:.1f} s" if game.spec.step_seconds else f"step {game.steps:,}"
    if len(names) < 2:
        return f"{COLOURS[0]}{names[0]}\x1b[0m   {played}"
    clock = scene.clock(step) if scene is not None else played
    score = " : ".join(f"{COLOURS[side]}{goals}\x1b[0m" for side, goals in enumerate(game.score)) or "against"
    return f"{COLOURS[0]}{names[0]}\x1b[0m  {score}  {COLOURS[1]}{names[1]}\x1b[0m   {clock}"


def _recent_event(game: SingleGame, events: list[Event], names: list[str], seconds: float) -> str:
    """A line about the last event, for a few seconds."""
    found = [e for e in events if e.kind != "touch" and (game.steps - e.step) * seconds < 2 * CAPTION_S]
    return _event_line(game, found[-1], names, seconds) if found else ""


def _event_line(game: SingleGame, event: Event, names: list[str], seconds: float) -> str:
    """A line about an event."""
    side = sides_of(game.spec.teams)[event.agent] if event.agent >= 0 else 0
    score = "  " + " : ".join(map(str, game.score)) if event.kind == "goal" and game.score else ""
    return f"{event.step * seconds:6.1f} s  {event.kind}  {names[side]}{score}"


def _numbers(game: SingleGame, total: Array) -> list[str]:
    """The return and observation of a game that has no drawing."""
    obs = np.array2string(game.spec.obs.vectors(game.rows.obs)[0], precision=2, threshold=60)
    return [f"return {total.mean():.4g}", *obs.splitlines()]


def _result_line(game: SingleGame, names: list[str], outcome: int, total: float) -> str:
    if len(names) < 2:
        return f"{names[0]}, {game.steps:,} steps, return {total:.4g}"
    won = {1: f"{names[0]} won", 0: "a draw", -1: f"{names[1]} won"}[outcome]
    return f"{names[0]} {' : '.join(map(str, game.score)) or 'against'} {names[1]}, {won}"
