"""The soccer environment: many matches at once behind the `Vector` contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numba
import numpy as np

from slipstream.core.contracts import Array, EnvSpec, Rows, check_tasks, vector_obs
from slipstream.core.errors import ConfigError, did_you_mean
from slipstream.core.streams import check_seeds
from slipstream.envs.rewards import Payout
from slipstream.envs.soccer import batch
from slipstream.envs.soccer.actions import KINDS, SPECS, TABLE
from slipstream.envs.soccer.layout import CLOCK_SIZE, GAME, TICK_HZ, obs_size, state_size
from slipstream.envs.soccer.rewards import SCHEME, T_MORE, TERMS
from slipstream.settings import RewardSettings

_value_user_term = numba.njit(nogil=True, error_model="numpy")(batch.value_user_term)


class Soccer:
    """`envs` matches of two teams of `team_size` cars; see `layout` for what a state holds.

    The chance of a match comes from its own seed only: that of env i's first match follows from `seed` and `first + i`,
    and each next one is one more. Nothing is allocated in a step.
    """

    def __init__(
        self,
        envs: int,
        *,
        team_size: int = 1,
        seed: int = 0,
        first: int = 0,
        match_seconds: float = 60.0,
        action_repeat: int = 4,
        actions: str = "discrete",
        random_starts: float = 0.0,
        rewards: RewardSettings | None = None,
        gamma: float = 0.99,
        extra_terms: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        _check(envs, team_size, match_seconds, action_repeat, random_starts)
        _check_choice("env.actions", actions, KINDS)
        extra = dict(extra_terms or {})
        self.envs = envs
        self.spec = EnvSpec(
            name="soccer" if team_size == 1 else f"soccer:{team_size}v{team_size}",
            obs=vector_obs(obs_size(team_size)),
            action=SPECS[actions],
            teams=(0,) * team_size + (1,) * team_size,
            terms=(*TERMS, *extra),
            exact=True,
            step_seconds=action_repeat / TICK_HZ,
        )
        self.state = np.zeros((envs, state_size(team_size)), np.float32)
        self.clock = np.zeros((envs, CLOCK_SIZE), np.int64)
        self.payout = Payout(
            SCHEME, rewards or RewardSettings(), env=self.spec.name, envs=envs, teams=self.spec.teams,
            step_seconds=self.spec.step_seconds, gamma=gamma, extra=tuple(extra),
        )  # fmt: skip
        self.steps = 0
        self._before = np.zeros_like(self.state)
        self._more = bool(self.payout.weights[T_MORE : len(TERMS)].any())
        self._acted = np.ones(envs * 2 * team_size, np.uint8)
        self._terms = [_compile(name, function) for name, function in extra.items()]
        self._team_size = team_size
        self._seed, self._first = seed, first
        self._kind = KINDS.index(actions)
        self._repeat = action_repeat
        self._match_ticks = max(round(match_seconds * TICK_HZ), 1)
        self._overtime_ticks = self._match_ticks // 2
        self._random_starts = np.float32(random_starts)
        self._begin()

    def _begin(self) -> None:
        batch.begin(
            self.state, self.clock, self._seed, self._first, self._team_size, self._match_ticks, self._random_starts
        )

    def reset(self, out: Rows) -> None:
        """Start every match anew, from the first one of its seed."""
        self.steps = 0
        self._begin()
        self.payout.reset()
        self.observe(out.obs)
        out.active[:] = 1

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next match of the named envs at once, or the one of each seed."""
        cars = 2 * self._team_size
        for env, game in zip(indices, check_seeds(indices, seeds), strict=True):
            batch.renew(
                self.state[env],
                self.clock[env],
                game,
                self._team_size,
                self._match_ticks,
                self._random_starts,
                out.obs[env * cars : (env + 1) * cars],
            )
            out.active[env * cars : (env + 1) * cars] = 1

    def seeds(self) -> Array:
        """The seed of every match that is being played."""
        return self.clock[:, GAME].copy()

    def assign(self, tasks: Array) -> None:
        """There is one kind of match."""
        check_tasks(self.spec, tasks)

    def observe(self, obs: Array) -> None:
        """Write the observations of the present state."""
        batch.observe_all(self.state, self.clock, self._team_size, self._match_ticks, obs)

    def step(self, action: Array, out: Rows) -> None:
        """Play one decision of every match."""
        payout = self.payout
        batch.advance(
            self.state,
            self._before,
            self.clock,
            action,
            self._kind,
            TABLE,
            self._repeat,
            self._overtime_ticks,
            self._team_size,
            payout.values,
        )
        if self._more:
            batch.value_others(self._before, self.state, self.clock, self._team_size, payout.values)
        for column, term in enumerate(self._terms, len(TERMS)):
            _value_user_term(term, self._before, self.state, self.clock, self._team_size, payout.values, column)
        batch.settle(
            self.state,
            self.clock,
            self._team_size,
            self._match_ticks,
            self._random_starts,
            out.obs,
            out.terminated,
            out.outcome,
            out.final_obs,
        )
        if payout.shaped:
            batch.shape(self._before, self.state, out.terminated, self._team_size, payout.gamma, payout.values)
        payout.pay(self._acted, out.reward, out.terms)
        out.truncated[:] = 0
        out.active[:] = 1
        self.steps += 1

    def snapshot(self) -> dict[str, Array]:
        """Copy `state` and `clock`, and the sizes of reward terms if they are normalised: there is nothing else."""
        return {"state": self.state.copy(), "clock": self.clock.copy(), **self.payout.snapshot()}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from a snapshot."""
        self.state[:] = state["state"]
        self.clock[:] = state["clock"]
        self.payout.restore(state)

    def close(self) -> None:
        """Nothing is held open."""


def _check(envs: int, team_size: int, match_seconds: float, action_repeat: int, random_starts: float) -> None:
    for name, value, low, high in (
        ("plan.envs", envs, 1, None),
        ("team_size", team_size, 1, 3),
        ("env.match_seconds", match_seconds, 0.1, 3600),
        ("env.action_repeat", action_repeat, 1, 60),
        ("env.random_starts", random_starts, 0, 1),
    ):
        if not low <= value or (high is not None and value > high):
            span = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ConfigError(f"`{name}` = {value} is out of range.", hint=f"give a number {span}.")


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        near = did_you_mean(value, known)
        raise ConfigError(f"`{name}` = `{value}` is unknown.{near}", hint=f"one of {', '.join(known)}.")


def _compile(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a user's term for the types it will meet, so that what cannot be compiled is said at once."""
    term: Any = function if hasattr(function, "py_func") else numba.njit(nogil=True, error_model="numpy")(function)
    row = numba.types.Array(numba.float32, 1, "C")
    try:
        if hasattr(term, "compile"):
            term.compile((row, row, numba.types.Array(numba.int64, 1, "C"), numba.int64, numba.int64))
    except numba.core.errors.NumbaError as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"Reward term `{name}` cannot be compiled: {reason}",
            hint="use arithmetic, `math` and indexing only: term(before, after, clock, car, team_size) -> float.",
        ) from error
    return term  # type: ignore[no-any-return]
