"""A game of treechop from the player's view: the image of each step, enlarged, with the logs and the time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from PIL import Image

from slipstream.contracts import Array
from slipstream.envs.native.layout import columns_of
from slipstream.envs.render.canvas import WHITE, write_text
from slipstream.envs.treechop.columns import TICK_HZ, State
from slipstream.envs.treechop.game import game

AT = {name: column for column, name in enumerate(columns_of(State).names())}
"""The column of the state of each name."""


class PlayerView:
    """The player's view at each step; there is no interpolation between steps."""

    def __init__(self, size: tuple[int, int], arrays: Mapping[str, Array], step_seconds: float) -> None:
        self._size, self._states, self._worlds = size, arrays["state"], arrays["world"]
        self._game = game.vector(1, options={"size": 128})
        assert self._game.world is not None
        self._world = self._game.world
        self.step_seconds = step_seconds or 1 / TICK_HZ

    def score(self, step: float) -> None:
        """None: there are no teams."""

    def clock(self, step: float) -> str:
        """The elapsed time and the logs."""
        left, own = self._states[:, AT["ticks_left"]], self._states[self._at(step)]
        return f"{(left[0] - own[AT['ticks_left']]) / TICK_HZ:.1f} s, {own[AT['logs']]:.0f} logs"

    def paint(self, step: float, beyond: float = 0.0) -> Image.Image:
        """Draw the view of a step."""
        index = self._at(step)
        self._game.state[0] = self._states[index]
        self._world[0] = self._worlds[index]
        obs = self._game.spec.obs
        row = np.zeros((1, obs.width), np.uint8)
        self._game.observe(row)
        side = min(self._size)
        small = Image.fromarray(obs.split(row)["pov"][0]).resize((side, side), Image.Resampling.NEAREST)
        picture = Image.new("RGB", self._size)
        picture.paste(small, ((self._size[0] - side) // 2, (self._size[1] - side) // 2))
        write_text(picture, (8, 8), self.clock(step), 12, WHITE)
        return picture

    def _at(self, step: float) -> int:
        return min(max(int(step), 0), len(self._states) - 1)
