"""The treechop environment: many games at once behind the `Vector` contract, controlled through an action map.

MineRL's actions are a dict of eight buttons and a camera. Here they are one option of a table (`discrete`, the 14
actions that importers use as well) or separate parts (`multi_discrete`). `MineRLTreechop` takes the original dicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, ObsField, ObsSpec, Rows, check_tasks, choose_target, target_tasks
from slipstream.envs.options import GameOptions, check_choice, check_options
from slipstream.envs.rewards import CombinedReward, compile_term, value_user_term
from slipstream.envs.snapshot import ArraySnapshot
from slipstream.envs.treechop import batch
from slipstream.envs.treechop.behaviours import BEHAVIOURS
from slipstream.envs.treechop.layout import CLOCK_SIZE, GAME, PIXELS, SIDE, STATE_SIZE, TASKS, TICK_HZ, TREES
from slipstream.envs.treechop.rendering import make_render_buffers
from slipstream.envs.treechop.rewards import SCHEME, TERMS
from slipstream.errors import ConfigError
from slipstream.minecraft.action_maps import BUTTONS, ActionMap, action_map
from slipstream.system.rng import check_seeds, first_games

MAPS = {"discrete": "14", "multi_discrete": "full"}
"""The action map for each value of `env.actions`."""
SCALARS = ("compass/angle", "inventory/log")
"""The observations beside the image if `env.options.scalars` is set, with the names and order of MineRL's data."""
OPTIONS = ("scalars", "look")


class Treechop(ArraySnapshot):
    """`envs` games of gathering logs; see `layout` for the columns of the state.

    All randomness of a game follows from its seed. The seed of env i's first game follows from `seed` and `first + i`;
    each next game's seed is one higher. Images are rendered directly into the rows.
    """

    KEPT = ("state", "clock", "cells", "tasks", "behaviour")

    def __init__(self, envs: int, *, variant: str = "dense", **options: Any) -> None:
        """Make the games; the other keyword arguments are those of `GameOptions`."""
        given = GameOptions(**({"action_repeat": 1} | options))
        given.check(envs, tuple(MAPS))
        check_choice("variant", variant, (*TASKS, "mixed"))
        self.actions, scalars = _read_options(given.actions, dict(given.options))
        extra, first, repeat = given.extra_terms, given.first, given.action_repeat
        name = f"treechop:{variant}" if variant != TASKS[0] else "treechop"
        vectors = [ObsField(key, "vector", (1,)) for key in SCALARS if scalars]
        self.envs = envs
        self.spec = EnvSpec(
            name=name,
            obs=ObsSpec((*vectors, ObsField("pov", "image", (PIXELS, PIXELS, 3)))),
            action=self.actions.spec,
            terms=(*TERMS, *extra),
            exact=True,
            step_seconds=repeat / TICK_HZ,
            action_repeat=repeat,
            behaviours=BEHAVIOURS,
            tasks=TASKS,
            target=choose_target(name, TASKS, TASKS if variant == "mixed" else (variant,), given.target),
        )
        self.state = np.zeros((envs, STATE_SIZE), np.float32)
        self.clock = np.zeros((envs, CLOCK_SIZE), np.int64)
        self.cells = np.zeros((envs, SIDE * SIDE), np.uint32)
        self.tasks = np.full(envs, -1)
        """The assigned task of each env; -1: one of the target tasks."""
        self.behaviour = np.zeros((envs, len(BEHAVIOURS)), np.float32)
        """The statistics of the running game."""
        self.payout = CombinedReward(SCHEME, given.rewards, self.spec, envs, given.gamma, tuple(extra))
        self._terms = [compile_term(key, function) for key, function in extra.items()]
        self._before = np.zeros_like(self.state)
        self._acted = np.ones(envs, np.uint8)
        self._buttons, self._camera = np.zeros((envs, len(BUTTONS)), np.uint8), np.zeros((envs, 2), np.float32)
        self._seed, self._first, self._repeat = given.seed, first, repeat
        limit_ticks = max(round(given.match_seconds * TICK_HZ), 1)
        self.limit_steps = -(-limit_ticks // repeat)
        """Steps after which a game is truncated."""
        self._games = batch.Games(self.state, self.clock, self.cells)
        self._rules = batch.Rules(
            target_tasks(self.spec, first, envs), np.array(TREES), limit_ticks, np.float32(given.random_starts)
        )
        self._buffers = make_render_buffers()

    def reset(self, out: Rows) -> None:
        """Reset every env to the first game of its seed."""
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self._start_games(np.arange(self.envs), games, out)
        self.payout.reset()

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the next game of the given envs, or the game of each seed."""
        self._start_games(np.array(indices, np.int64), np.array(check_seeds(indices, seeds), np.int64), out)

    def seeds(self) -> Array:
        """The seed of every running game."""
        return self.clock[:, GAME].copy()

    def assign(self, tasks: Array) -> None:
        """Set the task of each env from its next game on."""
        self.tasks[:] = check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Step every game with actions of the action map."""
        self.press(self.actions.decode(action), out)

    def press(self, given: Mapping[str, Any], out: Rows) -> None:
        """Step every game with MineRL's actions: arrays [envs] of buttons, and the camera [envs, 2]."""
        for column, button in enumerate(BUTTONS):
            self._buttons[:, column] = given[button]
        self._camera[:] = given["camera"]
        payout = self.payout
        batch.advance(
            self._games, self._before, self._buttons, self._camera, self._repeat, self.behaviour, payout.values
        )
        for column, term in enumerate(self._terms, len(TERMS)):
            value_user_term(term, self._before, self.state, self.clock, payout.values[:, column])
        batch.settle(
            self._games,
            self.tasks,
            self._rules,
            self.behaviour,
            self._buffers,
            self._obs_rows(out.obs),
            self._obs_rows(out.final_obs),
            out.terminated,
            out.truncated,
            out.outcome,
            out.behaviour,
        )
        payout.pay(self._acted, out.reward, out.terms)
        out.active[:] = 1

    def observe(self, obs: Array) -> None:
        """Write the observations of the current state."""
        batch.observe_all(self._games, self._buffers, self._obs_rows(obs))

    def _start_games(self, envs: Array, seeds: Array, out: Rows) -> None:
        obs = self._obs_rows(out.obs)
        batch.start_games(envs, seeds, self._games, self.tasks, self._rules, self.behaviour, self._buffers, obs)
        out.active[envs] = 1

    def _obs_rows(self, rows: Array) -> batch.ObsRows:
        return batch.ObsRows(rows, self.spec.obs.vectors(rows), self.spec.obs.places["pov"][1])


def _read_options(actions: str, options: dict[str, Any]) -> tuple[ActionMap, bool]:
    """The action map, and whether scalars are part of the observation."""
    check_options("treechop", options, OPTIONS)
    look = options.pop("look", 15.0)
    if isinstance(look, bool) or not isinstance(look, int | float) or not 5 <= look <= 90:
        raise ConfigError(f"`env.options.look` = {look} is out of range.", "give degrees from 5 to 90.")
    scalars = options.pop("scalars", False)
    if not isinstance(scalars, bool):
        raise ConfigError(f"`env.options.scalars` = {scalars} is not a boolean.", "give true or false.")
    return action_map(MAPS[actions], look=float(look)), scalars


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> Treechop:
    """Make games from the settings."""
    return Treechop(envs, variant=variant, **choice.game_options(first, seed, action_repeat=1))
