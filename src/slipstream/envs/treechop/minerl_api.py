"""Treechop with the API of MineRL's own environments: dicts in, dicts out, and four things from a step."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import Array, empty_rows
from slipstream.envs.treechop.game import SCALARS, Treechop
from slipstream.envs.treechop.layout import ENOUGH_TICKS, PIXELS, TICK_HZ
from slipstream.errors import EnvError
from slipstream.minecraft.action_maps import BUTTONS
from slipstream.system.rng import GAME_SEEDS

TURN = 180.0
"""Degrees that a camera may turn at once."""


class MineRLTreechop:
    """One game of treechop as `gym.make("MineRLTreechop-v0")` has it: the same spaces, the same length, the same goal.

    `reset()` gives an observation, `step(action)` an observation, a reward, whether it is done, and a dict, which says
    `TimeLimit.truncated` where only the time was up. `scalars` adds an inventory and a compass, as other games have.
    """

    def __init__(
        self, task: str = "dense", *, seconds: float = ENOUGH_TICKS / TICK_HZ, scalars: bool = False, seed: int = 0
    ) -> None:
        self._vector = Treechop(1, variant=task, limit_seconds=seconds, options={"scalars": scalars}, seed=seed)
        self._rows = empty_rows(self._vector.spec, 1)
        self._begun, self._played, self._next = False, False, -1
        pov = spaces.Box(0, 255, (PIXELS, PIXELS, 3), np.uint8)
        seen: dict[str, spaces.Space[Any]] = {"pov": pov}
        for name in SCALARS if scalars else ():
            group, key = name.split("/")
            seen[group] = spaces.Dict({key: spaces.Box(-np.inf, np.inf, (), np.float32)})
        self.observation_space = spaces.Dict(seen)
        camera = spaces.Box(-TURN, TURN, (2,), np.float32)
        self.action_space = spaces.Dict({name: spaces.Discrete(2) for name in BUTTONS} | {"camera": camera})

    def seed(self, seed: int) -> None:
        """Say from which seed the next game begins."""
        self._next = seed % GAME_SEEDS

    def reset(self) -> dict[str, Any]:
        """Begin a game: that of the seed that was given, else the next."""
        if self._next < 0 and not self._played:
            self._vector.reset(self._rows)
        else:
            self._vector.reset_envs([0], self._rows, [self._next])
        self._begun, self._played, self._next = True, True, -1
        return self._told(self._rows.obs)

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        """Press the buttons and turn the camera of an action for one tick; what is not named is not done."""
        if not self._begun:
            raise EnvError("A game of treechop was stepped before it was begun.", "call reset() first")
        rows = self._rows
        given = {name: np.array([int(action.get(name, 0))]) for name in BUTTONS}
        given["camera"] = np.asarray(action.get("camera", (0.0, 0.0)), np.float32).reshape(1, 2)
        self._vector.press(given, rows)
        done = bool(rows.terminated[0] or rows.truncated[0])
        info = {"TimeLimit.truncated": True} if rows.truncated[0] else {}
        if done:
            self._begun = False
        return self._told(rows.final_obs if done else rows.obs), float(rows.reward[0]), done, info

    def close(self) -> None:
        """Nothing is held open."""

    def _told(self, rows: Array) -> dict[str, Any]:
        fields = self._vector.spec.obs.split(rows)
        told: dict[str, Any] = {"pov": fields["pov"][0].copy()}
        for name in SCALARS:
            if name in fields:
                group, key = name.split("/")
                told[group] = {key: np.float32(fields[name][0, 0])}
        return told
