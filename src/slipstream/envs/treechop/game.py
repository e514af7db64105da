"""The treechop environment: many games at once behind the `Vector` contract, acted on by an action map.

MineRL's actions are a dict of eight buttons and a camera. A policy gets them as one choice of a table (`discrete`, the
14 actions that importers use too) or side by side (`multi_discrete`); whoever has dicts uses `MineRLTreechop`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, ObsField, ObsSpec, Rows, check_tasks, choose_target, target_tasks
from slipstream.envs.options import check_choice, check_game, check_options
from slipstream.envs.rewards import Payout
from slipstream.envs.snapshot import ArraySnapshot
from slipstream.envs.treechop import batch
from slipstream.envs.treechop.behaviours import BEHAVIOURS
from slipstream.envs.treechop.layout import CLOCK_SIZE, GAME, PIXELS, SIDE, STATE_SIZE, TASKS, TICK_HZ, TREES
from slipstream.envs.treechop.rendering import ROOM
from slipstream.envs.treechop.rewards import SCHEME, TERMS
from slipstream.envs.user_rewards import compile_term, value_user_term
from slipstream.errors import ConfigError
from slipstream.minecraft.action_maps import BUTTONS, ActionMap, action_map
from slipstream.settings import RewardSettings
from slipstream.system.rng import check_seeds, first_games

MAPS = {"discrete": "14", "multi_discrete": "full"}
"""The action map of each of `env.actions`."""
SCALARS = ("compass/angle", "inventory/log")
"""What is seen beside the picture if `env.options.scalars` says so, by the names and in the order of MineRL's data."""
OPTIONS = ("scalars", "look")


class Treechop(ArraySnapshot):
    """`envs` games of gathering logs; see `layout` for what a state holds.

    The chance of a game comes from its own seed only: that of env i's first game follows from `seed` and `first + i`,
    and each next one is one more. Pictures are written straight into the rows.
    """

    KEPT = ("state", "clock", "cells", "tasks", "behaviour")

    def __init__(
        self,
        envs: int,
        *,
        variant: str = "dense",
        seed: int = 0,
        first: int = 0,
        limit_seconds: float = 60.0,
        action_repeat: int = 1,
        actions: str = "discrete",
        random_starts: float = 0.0,
        target: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        rewards: RewardSettings | None = None,
        gamma: float = 0.99,
        extra_terms: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        check_game(envs, limit_seconds, action_repeat, random_starts)
        check_choice("variant", variant, (*TASKS, "mixed"))
        self.actions, scalars = _told(actions, dict(options or {}))
        extra = dict(extra_terms or {})
        name = f"treechop:{variant}" if variant != TASKS[0] else "treechop"
        vectors = [ObsField(key, "vector", (1,)) for key in SCALARS if scalars]
        self.envs = envs
        self.spec = EnvSpec(
            name=name,
            obs=ObsSpec((*vectors, ObsField("pov", "image", (PIXELS, PIXELS, 3)))),
            action=self.actions.spec,
            terms=(*TERMS, *extra),
            exact=True,
            step_seconds=action_repeat / TICK_HZ,
            action_repeat=action_repeat,
            behaviours=BEHAVIOURS,
            tasks=TASKS,
            target=choose_target(name, TASKS, TASKS if variant == "mixed" else (variant,), target),
        )
        self.state = np.zeros((envs, STATE_SIZE), np.float32)
        self.clock = np.zeros((envs, CLOCK_SIZE), np.int64)
        self.cells = np.zeros((envs, SIDE * SIDE), np.uint32)
        self.tasks = np.full(envs, -1)
        """The task that each env was given; -1: one of its target's."""
        self.behaviour = np.zeros((envs, len(BEHAVIOURS)), np.float32)
        """What was counted in the present game."""
        self.payout = Payout(
            SCHEME, rewards or RewardSettings(), env=name, envs=envs, teams=self.spec.teams,
            step_seconds=self.spec.step_seconds, gamma=gamma, extra=tuple(extra),
        )  # fmt: skip
        self._terms = [compile_term(key, function) for key, function in extra.items()]
        self._before = np.zeros_like(self.state)
        self._acted = np.ones(envs, np.uint8)
        self._buttons, self._camera = np.zeros((envs, len(BUTTONS)), np.uint8), np.zeros((envs, 2), np.float32)
        self._seed, self._first, self._repeat = seed, first, action_repeat
        limit_ticks = max(round(limit_seconds * TICK_HZ), 1)
        self.limit_steps = -(-limit_ticks // action_repeat)
        """Steps after which a game is cut off."""
        self._rules: tuple[Array, Array, Array, int, np.float32] = (
            target_tasks(self.spec, first, envs), np.array(TREES), self.behaviour, limit_ticks,
            np.float32(random_starts),
        )  # fmt: skip
        start = self.spec.obs.places["pov"][1]
        self._sight: tuple[Array, Array, Array, int]
        self._sight = np.zeros(4, np.float32), np.zeros((*ROOM, 2), np.int64), np.zeros(ROOM, np.float32), start

    def reset(self, out: Rows) -> None:
        """Start every env anew, from the first game of its seed."""
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self._renew(np.arange(self.envs), games, out)
        self.payout.reset()

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next game of the named envs at once, or the one of each seed."""
        self._renew(np.array(indices, np.int64), np.array(check_seeds(indices, seeds), np.int64), out)

    def seeds(self) -> Array:
        """The seed of every game that is being played."""
        return self.clock[:, GAME].copy()

    def assign(self, tasks: Array) -> None:
        """Say which task each env has from its next game on."""
        self.tasks[:] = check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Play one decision of every game, chosen by the action map."""
        self.press(self.actions.decode(action), out)

    def press(self, given: Mapping[str, Any], out: Rows) -> None:
        """Play one decision of every game, told as MineRL does: arrays [envs] of buttons, and the camera [envs, 2]."""
        for column, button in enumerate(BUTTONS):
            self._buttons[:, column] = given[button]
        self._camera[:] = given["camera"]
        payout = self.payout
        batch.advance(
            self.state, self._before, self.clock, self.cells, self._buttons, self._camera, self._repeat,
            self.behaviour, payout.values,
        )  # fmt: skip
        for column, term in enumerate(self._terms, len(TERMS)):
            value_user_term(term, self._before, self.state, self.clock, payout.values[:, column])
        batch.settle(
            self.state, self.clock, self.cells, self.tasks, *self._rules, *self._sight,
            self.spec.obs.vectors(out.obs), out.obs, self.spec.obs.vectors(out.final_obs), out.final_obs,
            out.terminated, out.truncated, out.outcome, out.behaviour,
        )  # fmt: skip
        payout.pay(self._acted, out.reward, out.terms)
        out.active[:] = 1

    def observe(self, obs: Array) -> None:
        """Write the observations of the present state."""
        batch.observe_all(self.state, self.clock, self.cells, *self._sight, self.spec.obs.vectors(obs), obs)

    def _renew(self, envs: Array, games: Array, out: Rows) -> None:
        batch.renew(
            envs, games, self.state, self.clock, self.cells, self.tasks, *self._rules, *self._sight,
            self.spec.obs.vectors(out.obs), out.obs,
        )  # fmt: skip
        out.active[envs] = 1


def _told(actions: str, options: dict[str, Any]) -> tuple[ActionMap, bool]:
    """The action map that the settings ask for, and whether numbers are shown beside the picture."""
    check_choice("env.actions", actions, tuple(MAPS))
    check_options("treechop", options, OPTIONS)
    look = options.pop("look", 15.0)
    if isinstance(look, bool) or not isinstance(look, int | float) or not 5 <= look <= 90:
        raise ConfigError(f"`env.options.look` = {look} is out of range.", "give degrees from 5 to 90.")
    scalars = options.pop("scalars", False)
    if not isinstance(scalars, bool):
        raise ConfigError(f"`env.options.scalars` = {scalars} is neither true nor false.", "say which.")
    return action_map(MAPS[actions], look=float(look)), scalars


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> Treechop:
    """Make games as the settings say."""
    env = choice.env
    return Treechop(
        envs, variant=variant, seed=seed, first=first, limit_seconds=env.match_seconds,
        action_repeat=env.action_repeat or 1, actions=env.actions, random_starts=env.random_starts, target=env.target,
        options=env.options, rewards=choice.rewards, gamma=choice.gamma, extra_terms=choice.terms,
    )  # fmt: skip
