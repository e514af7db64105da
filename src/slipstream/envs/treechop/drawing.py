"""Draw a game of treechop from the player's view: the image of each step, enlarged, with the logs and the time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from PIL import Image

from slipstream.contracts import Array
from slipstream.envs.render.canvas import WHITE, write_text
from slipstream.envs.treechop import layout as at
from slipstream.envs.treechop.game import Treechop


class Eyes:
    """The player's view at each step; there is no interpolation between steps."""

    def __init__(self, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> None:
        self._size, self._arrays = size, arrays
        self._game = Treechop(1)
        self.step_seconds = step_seconds or 1 / at.TICK_HZ

    def score(self, step: float) -> None:
        """None: there are no teams."""

    def clock(self, step: float) -> str:
        """The elapsed time and the logs."""
        left = self._arrays["clock"][:, at.TICKS_LEFT]
        own = self._arrays["clock"][self._at(step)]
        return f"{(left[0] - own[at.TICKS_LEFT]) / at.TICK_HZ:.1f} s, {own[at.LOGS]} logs"

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """Draw the view of a step."""
        index = self._at(step)
        for name in ("state", "clock", "cells"):
            getattr(self._game, name)[0] = self._arrays[name][index]
        row = np.zeros((1, self._game.spec.obs.width), np.uint8)
        self._game.observe(row)
        side = min(self._size)
        small = Image.fromarray(row.reshape(at.PIXELS, at.PIXELS, 3)).resize((side, side), Image.Resampling.NEAREST)
        picture = Image.new("RGB", self._size)
        picture.paste(small, ((self._size[0] - side) // 2, (self._size[1] - side) // 2))
        write_text(picture, (8, 8), self.clock(step), 12, WHITE)
        return picture

    def _at(self, step: float) -> int:
        return min(max(int(step), 0), len(self._arrays["clock"]) - 1)


def labels(widths: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Names of the columns of `state` and `clock`."""
    state = ("x", "y", "z", "vx", "vy", "vz", "yaw", "pitch", "walked")
    clock = {at.TICKS_LEFT: "ticks_left", at.LOGS: "logs", at.AIM: "aim", at.WORN: "worn"}
    return {"state": state, "clock": tuple(clock.get(column, "") for column in range(widths["clock"]))}
