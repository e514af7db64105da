"""The kart environment: a batch of laps behind the `Vector` contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks, choose_target, target_tasks, vector_obs
from slipstream.envs.game import EnvChoice
from slipstream.envs.kart import batch
from slipstream.envs.kart.actions import KINDS, SPECS, TABLE
from slipstream.envs.kart.behaviours import BEHAVIOURS
from slipstream.envs.kart.layout import (
    CLOCK_SIZE,
    EASIEST,
    GAME,
    HARDEST,
    LEVELS,
    OBS_SIZE,
    POINTS,
    STATE_SIZE,
    TICK_HZ,
    TRACK_SIZE,
)
from slipstream.envs.kart.next_tracks import draw_ahead, move_point
from slipstream.envs.kart.rewards import SCHEME, TERMS
from slipstream.envs.kart.tracks import SCRATCH
from slipstream.envs.options import GameOptions, check_choice, check_options
from slipstream.envs.rewards import CombinedReward, compile_term, value_user_term
from slipstream.envs.snapshot import ArraySnapshot
from slipstream.errors import ConfigError
from slipstream.system.gpu_kernels import EmptyArray, KernelCall, OnDevice
from slipstream.system.rng import check_seeds, first_games

RANGES = {"mixed": (0.0, 1.0), "easy": (0.0, 0.33), "hard": (0.67, 1.0)}
"""The range of difficulties of each variant."""
_KEYS = ("difficulty", "difficulty_low", "difficulty_high")


def difficulty_range(variant: str, options: Mapping[str, object]) -> tuple[float, float]:
    """The range of difficulties set by a variant and `env.options`."""
    check_options("kart", options, _KEYS)
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(f"`env.options.{name}` = {value} is out of range.", "give a number from 0 to 1.")
    if "difficulty" in options and len(options) > 1:
        raise ConfigError("`env.options.difficulty` excludes the other options.", "give it, or a low and a high one")
    numbers = {name: float(value) for name, value in options.items() if isinstance(value, int | float)}
    low, high = RANGES[variant]
    only = numbers.get("difficulty")
    return (only, only) if only is not None else (numbers.get(_KEYS[1], low), numbers.get(_KEYS[2], high))


class Kart(ArraySnapshot):
    """`envs` laps against the clock; see `layout` for the columns of a state.

    All random numbers of a lap follow from its own seed. The seed of env i's first lap follows from `seed` and
    `first + i`, and each next lap has the next seed. A step allocates no arrays.
    """

    KEPT = ("state", "clock", "tracks", "tasks", "behaviour")

    def __init__(
        self,
        envs: int,
        *,
        difficulty: tuple[float, float] = (0.0, 1.0),
        variant: str = "mixed",
        **options: Any,
    ) -> None:
        """Make the laps; the other keyword arguments are those of `GameOptions`."""
        given = GameOptions(**({"actions": "continuous"} | options))
        given.check(envs, KINDS)
        check_choice("variant", variant, tuple(RANGES))
        extra, first, repeat = given.extra_terms, given.first, given.action_repeat
        self.envs = envs
        name = "kart" if variant == "mixed" else f"kart:{variant}"
        tasks = tuple(f"level {k + 1}" for k in range(LEVELS))
        self.spec = EnvSpec(
            name=name,
            obs=vector_obs(OBS_SIZE),
            action=SPECS[given.actions],
            terms=(*TERMS, *extra),
            exact=True,
            step_seconds=repeat / TICK_HZ,
            action_repeat=repeat,
            behaviours=BEHAVIOURS,
            tasks=tasks,
            target=choose_target(name, tasks, (), given.target),
        )
        self.state = np.zeros((envs, STATE_SIZE), np.float32)
        self.clock = np.zeros((envs, CLOCK_SIZE), np.int64)
        self.tracks = np.zeros((envs, POINTS, TRACK_SIZE), np.float32)
        self.tasks = np.full(envs, -1)
        """The given task of each env; -1: its target, or the whole range of difficulties without a target."""
        self.behaviour = np.zeros((envs, len(BEHAVIOURS)), np.float32)
        """Behaviour statistics of the present lap."""
        self.payout = CombinedReward(SCHEME, given.rewards, self.spec, envs, given.gamma, tuple(extra))
        self._before = np.zeros_like(self.state)
        self._acted = np.ones(envs, np.uint8)
        self._scratch = np.zeros((1, *SCRATCH))
        self._terms = [compile_term(name, function) for name, function in extra.items()]
        self._seed, self._first = given.seed, first
        self._kind = KINDS.index(given.actions)
        self._repeat = repeat
        limit_ticks = max(round(given.match_seconds * TICK_HZ), 1)
        self.limit_steps = -(-limit_ticks // repeat)
        """Steps after which a lap is truncated."""
        self._rules = target_tasks(self.spec, first, envs), limit_ticks, np.float32(given.random_starts)
        arrays = self.state, self.clock, self.tasks, self.tracks, self._scratch, self.behaviour
        self._laps = *arrays, *self._rules
        """The arguments of the kernels that begin laps."""
        self.set_difficulty(*difficulty)
        self._begin(np.zeros((envs, OBS_SIZE), np.float32))

    def _begin(self, obs: Array) -> None:
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self._begin_laps(np.arange(self.envs), games, obs)

    def _begin_laps(self, envs: Array, games: Array, obs: Array) -> None:
        batch.begin_laps(envs, games, *self._laps, obs)

    def set_difficulty(self, low: Array | float, high: Array | float) -> None:
        """Set the range of difficulties from the next lap on, for all envs or for each one."""
        low, high = np.broadcast_to(low, self.envs), np.broadcast_to(high, self.envs)
        if not ((low >= 0) & (low <= high) & (high <= 1)).all():
            span = f"{np.min(low):.3g} to {np.max(high):.3g}"
            raise ConfigError(f"A difficulty from {span} is out of range.", "give 0 <= low <= high <= 1.")
        self.state[:, EASIEST], self.state[:, HARDEST] = low, high

    def reset(self, out: Rows) -> None:
        """Begin the first lap of every env."""
        self._begin(out.obs)
        self.payout.reset()
        out.active[:] = 1

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next lap of the named envs, or the one of each seed."""
        games = np.array(check_seeds(indices, seeds), np.int64)
        self._begin_laps(np.array(indices, np.int64), games, out.obs)
        out.active[list(indices)] = 1

    def seeds(self) -> Array:
        """The seed of every present lap."""
        return self.clock[:, GAME].copy()

    def assign(self, tasks: Array) -> None:
        """Set the task of each env from its next lap on."""
        self.tasks[:] = check_tasks(self.spec, tasks)

    def observe(self, obs: Array) -> None:
        """Write the observations of the present state."""
        batch.observe_all(self.state, self.clock, self.tracks, obs)

    def step(self, action: Array, out: Rows) -> None:
        """Drive one decision of every lap."""
        payout = self.payout
        batch.advance(
            self.state,
            self._before,
            self.clock,
            self.tracks,
            action,
            self._kind,
            TABLE,
            self._repeat,
            self.behaviour,
            payout.values,
        )
        for column, term in enumerate(self._terms, len(TERMS)):
            value_user_term(term, self._before, self.state, self.clock, payout.values[:, column])
        if payout.shaped:
            batch.shape(self._before, self.state, self.clock, payout.gamma, payout.values)
        batch.finish_step(
            *self._laps,
            out.obs,
            out.terminated,
            out.truncated,
            out.outcome,
            out.behaviour,
            out.final_obs,
        )
        payout.pay(self._acted, out.reward, out.terms)
        out.active[:] = 1

    def on_device(self) -> OnDevice:
        """The kernels: one decision of one env, next tracks before a rollout, and copies of tracks that were taken."""
        envs, payout, targets = self.envs, self.payout, self._rules[0]
        scratch, roads = EmptyArray((envs, *SCRATCH), "float64"), EmptyArray((envs, POINTS, TRACK_SIZE), "float32")
        facts, drawn = EmptyArray((envs, STATE_SIZE), "float32"), EmptyArray((envs, CLOCK_SIZE), "int64")
        step = (
            self.state,
            self._before,
            self.clock,
            self.tasks,
            self.tracks,
            scratch,
            roads,
            facts,
            drawn,
            self.behaviour,
            *self._rules,
            self._kind,
            TABLE,
            self._repeat,
            self._acted,
            payout.shaped,
            payout.gamma,
            *payout.rules,
        )
        draw = self.state, self.clock, self.tasks, targets, scratch, roads, facts, drawn
        return OnDevice(
            KernelCall(batch.step_env, envs, step),
            before=KernelCall(draw_ahead, envs, draw),
            after=KernelCall(move_point, envs * POINTS, (self.tracks, roads, drawn)),
        )


def make(choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> Kart:
    """Make the laps that the settings describe."""
    difficulty = difficulty_range(variant, choice.env.options)
    options = choice.game_options(first, seed, action_repeat=4)
    return Kart(envs, difficulty=difficulty, variant=variant, **options)
