"""A person as an agent: the game is drawn in the terminal or a window and keys are read at its own pace.

In soccer and kart the arrows or W A S D drive (space boosts, x drifts); in other games with one choice a digit is that
option until another is pressed, and space is option 0; continuous actions follow the arrows: left and right are the
first number, down and up the second. q ends the recording; a game that is not over is left out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from slipstream.agents.simple import BatchAgent
from slipstream.contracts import ActionSpec, Array, Vector
from slipstream.envs.adapters import gymnasium as adapter
from slipstream.envs.registry import EnvChoice, parse
from slipstream.envs.render.scenes import draw, render_state
from slipstream.errors import ConfigError, EnvError
from slipstream.runs.signals import StopRequest
from slipstream.runs.terminal import LETTERS, Terminal

FPS = 15.0
"""The pace of a game that has none of its own."""
AXES = {"throttle": ("up", "down"), "steer": ("left", "right"), "boost": ("space", ""), "drift": ("x", "")}
"""The keys that push each control up and down."""
CONTROLS = {"soccer": ("throttle", "steer", "boost", "drift"), "kart": ("steer", "throttle")}
"""What the columns of a game's action table are."""


def pushed(keys: Iterable[str], more: str, less: str) -> float:
    """1 or -1 by the newer of two keys, 0 if neither is held."""
    newest = [key for key in keys if key in (more, less)][-1:]
    return 0.0 if not newest else 1.0 if newest == [more] else -1.0


def drive(keys: Iterable[str], game: str, action: ActionSpec) -> Array:
    """The action of a driving game that is nearest to the keys that are held."""
    keys = list(keys)
    wanted = {name: pushed(keys, more, less) for name, (more, less) in AXES.items()}
    if (wanted["boost"] or wanted["drift"]) and not wanted["throttle"]:
        wanted["throttle"] = 1.0
    controls = np.array([wanted[name] for name in CONTROLS[game]], np.float32)
    if action.kind == "discrete":
        table: Array = import_module(f"slipstream.envs.{game}.actions").TABLE
        return np.array([np.abs(table - controls).sum(axis=1).argmin()], np.int32)
    shift = np.array(action.sizes) == 3 if action.kind == "multi_discrete" else 0
    return np.asarray(controls + shift, action.dtype)


def choose(keys: Iterable[str], last: Array, action: ActionSpec) -> Array:
    """The action of any other game: a digit stays until the next, arrows push continuous actions."""
    if action.kind == "discrete":
        options = [0 if key == "space" else int(key) for key in keys if key == "space" or key.isdigit()]
        allowed = [option for option in options if option < action.sizes[0]]
        return np.array(allowed[-1:] or last, np.int32)
    keys, pushes = list(keys), np.zeros(action.parts)
    for part, (more, less) in zip(range(action.parts), (("right", "left"), ("up", "down")), strict=False):
        pushes[part] = pushed(keys, more, less)
    low, high = (np.nan_to_num(np.array(side), posinf=1.0, neginf=-1.0) for side in (action.low, action.high))
    return np.asarray((low + high) / 2 + pushes * (high - low) / 2, np.float32)


def permitted(chosen: Array, mask: Array, action: ActionSpec) -> Array:
    """The chosen option, or the first that the mask allows if it forbids that one."""
    if action.masked and action.kind == "discrete" and not mask[chosen[0]]:
        return np.array([int(mask.argmax())], np.int32)
    return chosen


class Window:
    """A window of pygame's."""

    def __init__(self) -> None:
        self._pygame: Any = import_module("pygame")
        self._pygame.display.init()
        self._screen = self._pygame.display.set_mode((960, 600))
        self._held: dict[str, None] = {}

    def show(self, frame: Array | None, lines: list[str]) -> None:
        """Fill the window with the picture; the text is its title."""
        if frame is not None:
            picture = self._pygame.surfarray.make_surface(frame.swapaxes(0, 1))
            self._screen.blit(self._pygame.transform.scale(picture, self._screen.get_size()), (0, 0))
            self._pygame.display.flip()
        self._pygame.display.set_caption("   ".join(lines))

    def wait(self, seconds: float) -> list[str]:
        """Follow key presses and releases; one that was both counts once."""
        time.sleep(seconds)
        seen = dict(self._held)
        for event in self._pygame.event.get():
            if event.type == self._pygame.QUIT:
                seen["q"] = None
            elif event.type in (self._pygame.KEYDOWN, self._pygame.KEYUP):
                name = self._pygame.key.name(event.key)
                key = LETTERS.get(name, name)
                self._held.pop(key, None)
                if event.type == self._pygame.KEYDOWN:
                    self._held[key] = seen[key] = None
        return list(seen)

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()


def open_screen() -> Terminal | Window:
    """A window where there is a display and pygame, else the terminal."""
    display = any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if find_spec("pygame") and (display or sys.platform in ("win32", "darwin")):
        return Window()
    return Terminal()


class HumanAgent(BatchAgent):
    """The person: shows the game before every step and acts by the keys that are held when its time has come."""

    def __init__(self, choice: EnvChoice, fps: float | None = None) -> None:
        if fps is not None and not fps > 0:
            raise ConfigError(f"{fps:g} steps per second cannot be played.", "give --fps a positive number")
        game, variant = parse(choice.name)
        self.name = "human"
        self.choice = choice if game is not None or choice.factory else replace(choice, factory=self._make)
        self.wishes = StopRequest()
        self._game, self._variant, self._fps = choice.name.partition(":")[0], variant, fps
        self._made: list[Any] = []
        self._step = self._episode = 0

    def __enter__(self) -> HumanAgent:
        self._screen = open_screen()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.close()

    def sit(self, vector: Vector) -> HumanAgent:
        """Take the first seat of a game."""
        spec = vector.spec
        self._vector, self.obs, self.action = vector, spec.obs, spec.action
        if spec.action.kind == "multi_discrete" and self._game not in CONTROLS:
            raise ConfigError(f"`{spec.name}` has {spec.action.parts} choices at a time: there are no keys for that.")
        metadata = self._made[-1].metadata if self._made else {}
        own = 1.0 / spec.step_seconds if spec.step_seconds else float(metadata.get("render_fps") or FPS)
        self._pace_s = 1.0 / (self._fps or own)
        self._due = time.monotonic()
        self._last = np.zeros(spec.action.parts, spec.action.dtype)
        return self

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Show, wait, and write what the keys say."""
        words = f"{self.choice.name}   game {self._episode}   step {self._step}   q ends"
        frame = self._frame()
        numbers = [] if frame is not None else [np.array2string(self.obs.vectors(obs)[0], precision=2, threshold=60)]
        self._screen.show(frame, [words, *"\n".join(numbers).splitlines()])
        self._due = max(self._due + self._pace_s, time.monotonic())
        keys = self._screen.wait(self._due - time.monotonic())
        if "q" in keys:
            self.wishes.stop = self.wishes.stop or "quit"
        driven = self._game in CONTROLS
        wanted = drive(keys, self._game, self.action) if driven else choose(keys, self._last, self.action)
        self._last = permitted(wanted, mask[0], self.action)
        out[0] = self._last
        self._step += 1

    def begin(self, rows: Array | None = None) -> None:
        """Count games."""
        if rows is None or len(rows):
            self._episode += 1
            self._step = 0

    def _make(self) -> Any:
        """Make a Gymnasium env that can be drawn, if it can be."""
        options = self.choice.env.options
        try:
            env = adapter.make(self._variant, {**options, "render_mode": "rgb_array"})
        except EnvError:
            env = adapter.make(self._variant, options)
        self._made.append(env)
        return env

    def _frame(self) -> Array | None:
        """A picture of the game now, if there is one."""
        state = render_state(self._vector)
        if state:
            return draw(self._game, state)
        if self._made:
            try:
                return np.asarray(adapter.strip(self._made[-1])[0].render(), np.uint8)[..., :3]
            except Exception:  # whatever keeps a game from drawing itself, it can be played by its numbers
                self._made.clear()
        return None
