"""Games played live: drawn in the terminal at their own pace, or told line by line where there is none."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.contracts import Agent, Array, EnvSpec, sides_of
from slipstream.envs.registry import EnvChoice
from slipstream.envs.render.scenes import SIZE, Scene, make_scene
from slipstream.envs.render.video import CAPTION_S, short_name
from slipstream.errors import ConfigError
from slipstream.play.games import ScheduledGame, game_seed
from slipstream.play.replay_recording import STATE, ReplayedActions, ReplayRecorder
from slipstream.runs.replays import Event
from slipstream.runs.terminal import Terminal, is_terminal

PACE_S = 1 / 15
"""Time of a step in games that have none of their own."""
FASTER = 1.5
"""What a press of + or - multiplies or divides the speed by."""
MEMORY = 12
"""Steps that a picture looks back, for trails."""
SHADES = 6
"""Colours are rounded to this, so that less text goes to the terminal."""
COLOURS = ("\x1b[38;2;64;150;255m", "\x1b[38;2;255;148;46m")


def watch(
    choice: EnvChoice, names: tuple[str, ...], *, games: int = 1, seed: int = 0, speed: float = 1.0,
    sampled: bool = False, say: Callable[[str], None] = print,
) -> dict[str, Any]:  # fmt: skip
    """Play games between the named agents, the sides swapped from game to game; return how they ended."""
    if games < 1:
        raise ConfigError(f"{games} games cannot be watched.", "give --games a number of at least 1")
    if not 0 < speed <= 1000:
        raise ConfigError(f"A speed of {speed:g} cannot be played.", "give --speed a positive number")

    def seat(name: str, spec: EnvSpec, choice: EnvChoice) -> Agent:
        return load_agent(name, spec, choice, sampled)

    screen = Terminal() if is_terminal() else None
    results: list[dict[str, Any]] = []
    show = Show(screen, speed, say)
    try:
        for game in range(games):
            players = names[::-1] if game % 2 else names
            fixture = ScheduledGame(players, game_seed(seed, game // max(1, len(names))))
            with contextlib.closing(ReplayRecorder(choice, fixture)) as tape:
                result = show.play(tape, ReplayedActions(tape, seat), f"game {game + 1} of {games}")
            if result is None:
                break
            results.append(result)
    finally:
        if screen is not None:
            screen.close()
    facts = {"env": choice.name, "agents": list(names), "seed": seed, "sampled": sampled, "games": len(results)}
    return facts | {"stopped": "" if len(results) == games else "quit", "results": results}


class Show:
    """The screen and its keys: space pauses, + and - change the speed, q leaves."""

    def __init__(self, screen: Terminal | None, speed: float, say: Callable[[str], None]) -> None:
        self._screen, self._speed, self._say = screen, speed, say
        self._paused = False
        self._due = time.monotonic()

    def play(self, tape: ReplayRecorder, table: ReplayedActions, title: str) -> dict[str, Any] | None:
        """Play one game to its end; None if the watcher left."""
        spec, names = tape.spec, [short_name(name) for name in tape.fixture.players]
        past: deque[dict[str, Array]] = deque(maxlen=MEMORY)
        events, total = list[Event](), np.zeros(spec.agents)
        seconds = spec.step_seconds or PACE_S
        while not tape.over:
            past.append(tape.seen())
            if not self._show(tape, past, events, names, title, total):
                return None
            table.act()
            found = tape.step(table.action)
            total += tape.rows.reward
            events += found
            if self._screen is None:
                for event in found:
                    if event.kind != "touch":
                        self._say(_line(tape, event, names, seconds))
        outcome = int(tape.rows.outcome[0]) if spec.competitive else 0
        score = tape.score if "goals" in spec.behaviours else None
        if self._screen is None:
            self._say(f"{title}: {_ending(tape, names, outcome, float(total.mean()))}")
        return {
            "players": list(tape.fixture.players), "seed": tape.fixture.seed, "outcome": outcome, "score": score,
            "length": tape.steps, "return": float(total.mean()),
        }  # fmt: skip

    def _show(
        self,
        tape: ReplayRecorder,
        past: deque[dict[str, Array]],
        events: list[Event],
        names: list[str],
        title: str,
        total: Array,
    ) -> bool:
        """Draw, and wait for the next step's time; False if the watcher leaves."""
        if self._screen is None:
            return True
        seconds = tape.spec.step_seconds or PACE_S
        scene = _scene(tape, past)
        header = _header(tape, scene, len(past) - 1, names)
        frame = None if scene is None else np.asarray(scene.paint(len(past) - 1.0)) // SHADES * SHADES
        while True:
            lines = [header, _recent(tape, events, names, seconds)]
            if frame is None:
                lines += _numbers(tape, total)
            state = "paused" if self._paused else f"{self._speed:.2g}x"
            lines.append(f"\x1b[2m{title}   {state}   space pauses, + and - change the speed, q leaves\x1b[0m")
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


def _scene(tape: ReplayRecorder, past: deque[dict[str, Array]]) -> Scene | None:
    """What draws the last steps, if the game has a drawing."""
    names = [name for name in past[-1] if name.startswith(STATE)]
    arrays = {name.removeprefix(STATE): np.stack([frame[name] for frame in past]) for name in names}
    return make_scene(tape.spec.name, SIZE, arrays, tape.spec.step_seconds) if names else None


def _header(tape: ReplayRecorder, scene: Scene | None, step: int, names: list[str]) -> str:
    """Names, score and clock."""
    told = f"{tape.steps * tape.spec.step_seconds:.1f} s" if tape.spec.step_seconds else f"step {tape.steps:,}"
    if len(names) < 2:
        return f"{COLOURS[0]}{names[0]}\x1b[0m   {told}"
    clock = scene.clock(step) if scene is not None else told
    score = " : ".join(f"{COLOURS[side]}{goals}\x1b[0m" for side, goals in enumerate(tape.score))
    return f"{COLOURS[0]}{names[0]}\x1b[0m  {score}  {COLOURS[1]}{names[1]}\x1b[0m   {clock}"


def _recent(tape: ReplayRecorder, events: list[Event], names: list[str], seconds: float) -> str:
    """What happened a moment ago."""
    found = [e for e in events if e.kind != "touch" and (tape.steps - e.step) * seconds < 2 * CAPTION_S]
    return _line(tape, found[-1], names, seconds) if found else ""


def _line(tape: ReplayRecorder, event: Event, names: list[str], seconds: float) -> str:
    """An event in words."""
    side = sides_of(tape.spec.teams)[event.agent] if event.agent >= 0 else 0
    score = "  " + " : ".join(map(str, tape.score)) if event.kind == "goal" else ""
    return f"{event.step * seconds:6.1f} s  {event.kind}  {names[side]}{score}"


def _numbers(tape: ReplayRecorder, total: Array) -> list[str]:
    """The facts of a game that has no drawing."""
    seen = np.array2string(tape.spec.obs.vectors(tape.rows.obs)[0], precision=2, threshold=60)
    return [f"return {total.mean():.4g}", *seen.splitlines()]


def _ending(tape: ReplayRecorder, names: list[str], outcome: int, total: float) -> str:
    if len(names) < 2:
        return f"{names[0]}, {tape.steps:,} steps, return {total:.4g}"
    won = {1: f"{names[0]} won", 0: "a draw", -1: f"{names[1]} won"}[outcome]
    return f"{names[0]} {' : '.join(map(str, tape.score))} {names[1]}, {won}"
