"""A batch of a native game's envs behind the `Vector` contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks, target_tasks
from slipstream.envs.native import kernels
from slipstream.envs.native.build import Kernels
from slipstream.envs.native.sources import GameError
from slipstream.envs.rewards import COMPILE_ERRORS, CombinedReward, describe_compile_error
from slipstream.envs.snapshot import ArraySnapshot
from slipstream.system.gpu_kernels import KernelCall, OnDevice
from slipstream.system.rng import check_seeds, first_games


class NativeVector(ArraySnapshot):
    """`envs` envs of a game; a step allocates no arrays.

    All random numbers of a game follow from its own seed. The seed of env i's first game follows from `seed` and
    `first + i`, and each next game has the next seed.
    """

    KEPT = ("state", "numbers", "sums")

    def __init__(
        self,
        made: Kernels,
        spec: EnvSpec,
        envs: int,
        *,
        floats: type[np.generic],
        columns: int,
        table: Array,
        payout: CombinedReward,
        repeat: int,
        limit: int,
        at_limit: int,
        first: int = 0,
        seed: int = 0,
    ) -> None:
        self.spec, self.envs, self.payout = spec, envs, payout
        self.limit_steps = limit if at_limit == kernels.TRUNCATED else 0
        """Decisions after which a game is truncated; 0: never."""
        self._made, self._seed, self._first = made, seed, first
        rows = envs * spec.agents
        self.state = np.zeros((envs, columns), floats)
        self.numbers = np.zeros((envs, kernels.NUMBERS), np.int64)
        self.numbers[:, kernels.GIVEN] = -1
        self.sums = np.zeros((envs, spec.agents, len(spec.behaviours)), np.float32)
        before = np.zeros_like(self.state) if made.before else self.state
        acted = np.ones(rows, np.uint8)
        self._games = self.state, self.numbers, self.sums, target_tasks(spec, first, envs), table
        state, numbers, sums, targets, table = self._games
        self._world = state, before, numbers, sums, targets, table, acted, repeat, limit, at_limit
        self._no_mask = np.zeros((rows, 0), np.uint8)
        self._rules = tuple(payout.rules)

    def reset(self, out: Rows) -> None:
        """Begin the first game of every env."""
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self.payout.reset()
        self._begin(np.arange(self.envs), games, out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next game of the named envs, or the one of each seed."""
        self._begin(np.array(indices, np.int64), np.array(check_seeds(indices, seeds), np.int64), out)

    def _begin(self, envs: Array, games: Array, out: Rows) -> None:
        vectors = self.spec.obs.vectors(out.obs)
        self._run(self._made.begin_all, envs, games, *self._games, vectors, out.obs, out.active, out.mask)

    def _run(self, kernel: Any, *args: Any) -> None:
        """Run a kernel; what numba cannot compile is an error in the user's function."""
        try:
            kernel(*args)
        except COMPILE_ERRORS as error:
            raise GameError(
                f"`{self.spec.name}` cannot be compiled: {describe_compile_error(error, kernel)}",
                f"slipstream check-env {self.spec.name} plays the same functions uncompiled",
            ) from error

    def seeds(self) -> Array:
        """The seed of every present game."""
        return self.numbers[:, kernels.GAME].copy()

    def assign(self, tasks: Array) -> None:
        """Set the task of each env from its next game on."""
        self.numbers[:, kernels.GIVEN] = check_tasks(self.spec, tasks)

    def observe(self, obs: Array) -> None:
        """Write the observations of the present state."""
        state, numbers, _, _, table = self._games
        self._run(self._made.observe, state, numbers, table, self.spec.obs.vectors(obs), obs)

    def step(self, action: Array, out: Rows) -> None:
        """Play one decision of every game."""
        obs, final_obs = out.obs, out.final_obs
        vectors, final_vectors = (
            (obs, final_obs) if self.spec.obs.plain else map(self.spec.obs.vectors, (obs, final_obs))
        )
        results = (
            vectors,
            obs,
            out.reward,
            out.terminated,
            out.truncated,
            out.outcome,
            final_vectors,
            final_obs,
            out.active,
            out.terms,
            out.behaviour,
            out.mask,
        )
        self._run(self._made.step_all, *self._world, *self._rules, action, *results)

    def on_device(self) -> OnDevice:
        """The kernel that plays one decision of one env."""
        return OnDevice(KernelCall(self._made.step_env, self.envs, (*self._world, *self._rules)))
