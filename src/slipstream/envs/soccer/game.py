"""The soccer environment: a batch of matches behind the `Vector` contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks, choose_target, target_tasks, vector_obs
from slipstream.envs.game import EnvChoice
from slipstream.envs.options import GameOptions, check_range
from slipstream.envs.rewards import CombinedReward, compile_term
from slipstream.envs.snapshot import ArraySnapshot
from slipstream.envs.soccer import batch
from slipstream.envs.soccer.actions import KINDS, SPECS, TABLE
from slipstream.envs.soccer.behaviours import BEHAVIOURS, SUMS
from slipstream.envs.soccer.layout import CLOCK_SIZE, GAME, MIXED_OBS, SLOTS, TICK_HZ, obs_size, state_size
from slipstream.envs.soccer.rewards import SCHEME, T_EXTRA, TERMS
from slipstream.envs.soccer.tasks import GIVEN, task_names, task_rules
from slipstream.system.gpu_kernels import KernelCall, OnDevice
from slipstream.system.rng import check_seeds, first_games


class Soccer(ArraySnapshot):
    """`envs` matches of two teams of `team_size` cars; see `layout` for the columns of a state.

    All random numbers of a match follow from its own seed. The seed of env i's first match follows from `seed` and
    `first + i`, and each next match has the next seed. With `mixed` a match has one to three cars per team, set by its
    task: every env has six rows, and rows without a car are inactive, observe zeros and earn nothing. A step allocates
    no arrays.
    """

    KEPT = ("state", "clock", "tasks", "behaviour")

    limit_steps = 0
    """0: matches terminate and are never truncated."""

    def __init__(self, envs: int, *, team_size: int = 1, mixed: bool = False, **options: Any) -> None:
        """Make the matches; the other keyword arguments are those of `GameOptions`."""
        given = GameOptions(**options)
        given.check(envs, KINDS)
        check_range("team_size", team_size, 1, 3)
        extra, first = given.extra_terms, given.first
        self.envs = envs
        self.spec = _spec(team_size, mixed, given)
        rows, slots = envs * self.spec.agents, self.spec.agents // 2
        self.state = np.zeros((envs, state_size(slots)), np.float32)
        self.clock = np.zeros((envs, CLOCK_SIZE), np.int64)
        self.tasks = np.full((envs, 2), -1)
        """Of each env: the given task, -1 for its target, and the task of the present match."""
        self.behaviour = np.zeros((envs, 2 * slots, SUMS), np.float32)
        """Behaviour statistics of the present match."""
        self.payout = CombinedReward(SCHEME, given.rewards, self.spec, envs, given.gamma, tuple(extra))
        self.steps = 0
        self._before = np.zeros_like(self.state)
        self._extra = bool(self.payout.weights[T_EXTRA : len(TERMS)].any())
        self._acted, self._sizes = np.ones(rows, np.uint8), np.zeros(envs, np.int64)
        self._seed, self._first, self._slots = given.seed, first, slots
        self._kind = KINDS.index(given.actions)
        self._match_ticks = max(round(given.match_seconds * TICK_HZ), 1)
        self._overtime_ticks = self._match_ticks // 2
        self._task_rules = task_rules(self.spec.tasks, given.action_repeat)
        targets = target_tasks(self.spec, first, envs)
        self._rules = self._task_rules, targets, slots, self._match_ticks, np.float32(given.random_starts)
        self._begin(np.zeros((rows, self.spec.obs.width), np.float32), self._acted)
        row = self.state[0], self.state[0], self.clock[0]
        calls = [(*row, car, slots) for car in range(2 * slots)]
        self._terms = [compile_term(name, function, ("car", "team_size"), calls) for name, function in extra.items()]

    def _begin(self, obs: Array, active: Array) -> None:
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self._begin_matches(np.arange(self.envs), games, obs, active)

    def _begin_matches(self, envs: Array, games: Array, obs: Array, active: Array) -> None:
        batch.begin_matches(envs, games, self.state, self.clock, self.tasks, self.behaviour, *self._rules, obs, active)

    def reset(self, out: Rows) -> None:
        """Begin the first match of every env."""
        self.steps = 0
        self.payout.reset()
        self._begin(out.obs, out.active)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next match of the named envs, or the one of each seed."""
        games = np.array(check_seeds(indices, seeds), np.int64)
        self._begin_matches(np.array(indices, np.int64), games, out.obs, out.active)

    def seeds(self) -> Array:
        """The seed of every present match."""
        return self.clock[:, GAME].copy()

    def assign(self, tasks: Array) -> None:
        """Set the task of each env from its next match on."""
        self.tasks[:, GIVEN] = check_tasks(self.spec, tasks)

    def observe(self, obs: Array) -> None:
        """Write the observations of the present state."""
        batch.observe_all(self.state, self.clock, self.tasks, self._task_rules, self._slots, self._match_ticks, obs)

    def step(self, action: Array, out: Rows) -> None:
        """Play one decision of every match."""
        payout, before, state, clock = self.payout, self._before, self.state, self.clock
        sizes, slots = self._sizes, self._slots
        batch.advance(
            state,
            before,
            clock,
            self.tasks,
            self._task_rules,
            slots,
            action,
            self._kind,
            TABLE,
            self._overtime_ticks,
            sizes,
            self._acted,
            self.behaviour,
            payout.values,
        )
        if self._extra:
            batch.value_extra(before, state, clock, sizes, slots, payout.values)
        for column, term in enumerate(self._terms, len(TERMS)):
            batch.value_user_term(term, before, state, clock, sizes, slots, payout.values, column)
        batch.finish_step(
            state,
            clock,
            self.tasks,
            self.behaviour,
            *self._rules,
            out.obs,
            out.active,
            out.terminated,
            out.outcome,
            out.behaviour,
            out.final_obs,
        )
        if payout.shaped:
            batch.shape(before, state, out.terminated, sizes, slots, payout.gamma, payout.values)
        payout.pay(self._acted, out.reward, out.terms)
        out.truncated[:] = 0
        self.steps += 1

    def on_device(self) -> OnDevice:
        """The kernel that plays one decision of one env."""
        payout = self.payout
        own = (
            self.state,
            self._before,
            self.clock,
            self.tasks,
            self.behaviour,
            *self._rules,
            self._kind,
            TABLE,
            self._overtime_ticks,
            self._sizes,
            self._acted,
            self._extra,
            payout.shaped,
            payout.gamma,
            *payout.rules,
        )
        return OnDevice(KernelCall(batch.step_env, self.envs, own))


def _spec(team_size: int, mixed: bool, given: GameOptions) -> EnvSpec:
    """The spec of one variant."""
    slots = SLOTS if mixed else team_size
    sizes = tuple(range(1, SLOTS + 1)) if mixed else (team_size,)
    name = "soccer:mixed" if mixed else "soccer" if team_size == 1 else f"soccer:{team_size}v{team_size}"
    tasks = task_names(sizes)
    return EnvSpec(
        name=name,
        obs=vector_obs(MIXED_OBS if mixed else obs_size(team_size)),
        action=SPECS[given.actions],
        teams=(0,) * slots + (1,) * slots,
        terms=(*TERMS, *given.extra_terms),
        exact=True,
        step_seconds=given.action_repeat / TICK_HZ,
        action_repeat=given.action_repeat,
        behaviours=BEHAVIOURS,
        tasks=tasks,
        target=choose_target(name, tasks, tuple(f"{size}v{size}" for size in sizes), given.target),
        absences=mixed,
    )


def make(choice: EnvChoice, variant: str, envs: int, first: int, seed: int) -> Soccer:
    """Make the matches that the settings describe."""
    mixed = variant == "mixed"
    team_size = SLOTS if mixed else int(variant[0])
    return Soccer(envs, team_size=team_size, mixed=mixed, **choice.game_options(first, seed, action_repeat=4))
