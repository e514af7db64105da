"""Treechop with the API of MineRL's environments: dict actions and observations, and four values from `step`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import Array, empty_rows
from slipstream.envs.treechop.columns import ENOUGH_TICKS, SCALAR_NAMES, TICK_HZ
from slipstream.envs.treechop.minerl_spaces import Treechop
from slipstream.errors import EnvError
from slipstream.minecraft.action_maps import BUTTONS
from slipstream.system.rng import GAME_SEEDS

TURN = 180.0
"""The largest camera turn in degrees."""


class MineRLTreechop:
    """One game of treechop with the spaces, length and goal of `gym.make("MineRLTreechop-v0")`.

    `reset()` returns an observation; `step(action)` returns an observation, a reward, done, and an info dict with
    `TimeLimit.truncated` if the time limit was reached. `scalars` adds an inventory and a compass, as in other games.
    """

    def __init__(
        self,
        task: str = "dense",
        *,
        seconds: float = ENOUGH_TICKS / TICK_HZ,
        scalars: bool = False,
        size: int = 64,
        seed: int = 0,
    ) -> None:
        options = {"scalars": scalars, "size": size}
        self._vector = Treechop(1, variant=task, match_seconds=seconds, options=options, seed=seed)
        self._rows = empty_rows(self._vector.spec, 1)
        self._running, self._played, self._next_seed = False, False, -1
        pov = spaces.Box(0, 255, (size, size, 3), np.uint8)
        fields: dict[str, spaces.Space[Any]] = {"pov": pov}
        for name in SCALAR_NAMES if scalars else ():
            group, key = name.split("/")
            fields[group] = spaces.Dict({key: spaces.Box(-np.inf, np.inf, (), np.float32)})
        self.observation_space = spaces.Dict(fields)
        camera = spaces.Box(-TURN, TURN, (2,), np.float32)
        self.action_space = spaces.Dict({name: spaces.Discrete(2) for name in BUTTONS} | {"camera": camera})

    def seed(self, seed: int) -> None:
        """Set the seed of the next game."""
        self._next_seed = seed % GAME_SEEDS

    def reset(self) -> dict[str, Any]:
        """Start a game: from the seed set by `seed`, else the next one."""
        if self._next_seed < 0 and not self._played:
            self._vector.reset(self._rows)
        else:
            self._vector.reset_envs([0], self._rows, [self._next_seed])
        self._running, self._played, self._next_seed = True, True, -1
        return self._observation(self._rows.obs)

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        """Step one tick with a dict of buttons and camera; missing keys default to no action."""
        if not self._running:
            raise EnvError("A game of treechop was stepped before reset.", "call reset() first")
        rows = self._rows
        given = {name: np.array([int(action.get(name, 0))]) for name in BUTTONS}
        given["camera"] = np.asarray(action.get("camera", (0.0, 0.0)), np.float32).reshape(1, 2)
        self._vector.press(given, rows)
        done = bool(rows.terminated[0] or rows.truncated[0])
        info = {"TimeLimit.truncated": True} if rows.truncated[0] else {}
        if done:
            self._running = False
        return self._observation(rows.final_obs if done else rows.obs), float(rows.reward[0]), done, info

    def close(self) -> None:
        """Nothing to close."""

    def _observation(self, rows: Array) -> dict[str, Any]:
        fields = self._vector.spec.obs.split(rows)
        observation: dict[str, Any] = {"pov": fields["pov"][0].copy()}
        for name in SCALAR_NAMES:
            if name in fields:
                group, key = name.split("/")
                observation[group] = {key: np.float32(fields[name][0, 0])}
        return observation
