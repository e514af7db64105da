"""A human as an agent: the game is drawn in the terminal or a window, and keys become actions at the game's own pace.

A game maps keys to actions by `Game.controls`; see `envs.controls` for games without their own. q ends the recording,
which leaves out an unfinished episode.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from slipstream.agents.simple import BatchAgent
from slipstream.contracts import ActionSpec, Array, Vector
from slipstream.envs.adapters import gymnasium as adapter
from slipstream.envs.controls import default_action
from slipstream.envs.registry import EnvChoice, import_modules, parse
from slipstream.envs.render.scenes import draw, render_state
from slipstream.errors import ConfigError, EnvError
from slipstream.runs.signals import StopRequest
from slipstream.runs.terminal import LETTERS, Terminal

FPS = 15.0
"""Steps per second for a game that does not define its own pace."""


def permitted(chosen: Array, mask: Array, action: ActionSpec) -> Array:
    """The chosen option, or the first allowed option if the mask forbids it."""
    if action.masked and action.kind == "discrete" and not mask[chosen[0]]:
        return np.array([int(mask.argmax())], np.int32)
    return chosen


class Window:
    """A pygame window."""

    def __init__(self) -> None:
        self._pygame: Any = import_module("pygame")
        self._pygame.display.init()
        self._screen = self._pygame.display.set_mode((960, 600))
        self._held: dict[str, None] = {}

    def show(self, frame: Array | None, lines: list[str]) -> None:
        """Fill the window with the frame and use the text as its title."""
        if frame is not None:
            picture = self._pygame.surfarray.make_surface(frame.swapaxes(0, 1))
            self._screen.blit(self._pygame.transform.scale(picture, self._screen.get_size()), (0, 0))
            self._pygame.display.flip()
        self._pygame.display.set_caption("   ".join(lines))

    def wait(self, seconds: float) -> list[str]:
        """Return the keys held after `seconds`, and those pressed and released meanwhile."""
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
    """A window if there is a display and pygame is installed, else the terminal."""
    display = any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if find_spec("pygame") and (display or sys.platform in ("win32", "darwin")):
        return Window()
    return Terminal()


class HumanAgent(BatchAgent):
    """Shows the game before every step and acts by the keys that are held when the step is due."""

    def __init__(self, choice: EnvChoice, fps: float | None = None) -> None:
        if fps is not None and not fps > 0:
            raise ConfigError(f"{fps:g} steps per second cannot be played.", "give --fps a positive number")
        import_modules(choice.modules)
        game, variant = parse(choice.name)
        self.name = "human"
        self.choice = choice if game is not None or choice.factory else replace(choice, factory=self._make)
        self.stop_request = StopRequest()
        self._controls = game.controls if game is not None else None
        self._variant, self._fps = variant, fps
        self._made: list[Any] = []
        self._step = self._episode = 0

    def __enter__(self) -> HumanAgent:
        self._screen = open_screen()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.close()

    def bind(self, vector: Vector) -> HumanAgent:
        """Play the first agent of this environment."""
        spec = vector.spec
        self._vector, self.obs, self.action = vector, spec.obs, spec.action
        if spec.action.kind in ("multi_discrete", "mixed") and self._controls is None:
            raise ConfigError(
                f"`{spec.name}` has actions of {spec.action.parts} parts and no keyboard controls.",
                "give the game `Game.controls`, or choose another `env.actions`",
            )
        metadata = self._made[-1].metadata if self._made else {}
        own = 1.0 / spec.step_seconds if spec.step_seconds else float(metadata.get("render_fps") or FPS)
        self._pace_s = 1.0 / (self._fps or own)
        self._due = time.monotonic()
        self._last = np.zeros(spec.action.parts, spec.action.dtype)
        return self

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Show the game, wait until the step is due, and write the action of the keys."""
        words = f"{self.choice.name}   game {self._episode}   step {self._step}   q ends"
        frame = self._frame()
        numbers = [] if frame is not None else [np.array2string(self.obs.vectors(obs)[0], precision=2, threshold=60)]
        self._screen.show(frame, [words, *"\n".join(numbers).splitlines()])
        self._due = max(self._due + self._pace_s, time.monotonic())
        keys = self._screen.wait(self._due - time.monotonic())
        if "q" in keys:
            self.stop_request.stop = self.stop_request.stop or "quit"
        chosen = (self._controls or default_action)(keys, self._last, self.action)
        self._last = permitted(chosen, mask[0], self.action)
        out[0] = self._last
        self._step += 1

    def begin(self, rows: Array | None = None) -> None:
        """Count the episodes."""
        if rows is None or len(rows):
            self._episode += 1
            self._step = 0

    def _make(self) -> Any:
        """Make a Gymnasium env, with frames where it supports them."""
        options = self.choice.env.options
        try:
            env = adapter.make(self._variant, {**options, "render_mode": "rgb_array"})
        except EnvError:
            env = adapter.make(self._variant, options)
        self._made.append(env)
        return env

    def _frame(self) -> Array | None:
        """An image of the present state, or None."""
        state = render_state(self._vector)
        if state:
            return draw(self.choice.name, state)
        if self._made:
            try:
                return np.asarray(adapter.strip_wrappers(self._made[-1])[0].render(), np.uint8)[..., :3]
            except Exception:  # a game that cannot be drawn is played by its numbers
                self._made.clear()
        return None
