"""A batch of a native game's envs behind the `Vector` contract."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks, target_tasks
from slipstream.envs.native import kernels
from slipstream.envs.native.build import Classes, Kernels
from slipstream.envs.native.layout import Columns
from slipstream.envs.native.mathematics import GAME
from slipstream.envs.native.sources import GameError
from slipstream.envs.rewards import COMPILE_ERRORS, CombinedReward, describe_compile_error
from slipstream.envs.snapshot import ArraySnapshot
from slipstream.errors import ConfigError, did_you_mean, user_frames
from slipstream.system.gpu_kernels import EmptyArray, KernelCall, OnDevice
from slipstream.system.rng import check_seeds, first_games


class Rules(NamedTuple):
    """Numbers of the settings that the loops read."""

    ticks: int
    """Ticks of a decision."""
    limit: int
    """Decisions after which a game ends; 0: never."""
    at_limit: int
    kind: int
    """The kind of actions, as `controls` numbers them."""


class NativeVector(ArraySnapshot):
    """`envs` envs of a game; a step allocates no arrays.

    All random numbers of a game follow from its own seed. The seed of env i's first game follows from `seed` and
    `first + i`, and each next game has the next seed.
    """

    def __init__(
        self,
        made: Kernels,
        spec: EnvSpec,
        envs: int,
        classes: Classes,
        *,
        floats: type[np.generic],
        table: Array,
        payout: CombinedReward,
        rules: Rules,
        first: int = 0,
        seed: int = 0,
    ) -> None:
        self.spec, self.envs, self.payout = spec, envs, payout
        self.limit_steps = rules.limit if rules.at_limit == kernels.TRUNCATED else 0
        """Decisions after which a game is truncated; 0: never."""
        self._made, self._seed, self._first, self._columns = made, seed, first, classes.state
        self._settings_size = classes.settings.size if classes.settings else 0
        self._task_size = classes.task.size if classes.task else 0
        rows = envs * spec.agents
        self.state = np.zeros((envs, classes.state.size), floats)
        self.numbers = np.zeros((envs, kernels.NUMBERS), np.int64)
        self.numbers[:, kernels.GIVEN] = -1
        self.behaviour = np.zeros((envs, spec.agents, len(spec.behaviours)), np.float32)
        """Statistics of the present game."""
        self.world = np.zeros((envs, classes.world.size), _stored(classes.world, floats)) if classes.world else None
        self.KEPT = ("state", "numbers", "behaviour", *(() if self.world is None else ("world",)))
        none = np.zeros((1, 1), floats)
        self._games = kernels.Games(
            state=self.state,
            before=np.zeros_like(self.state) if made.before else self.state,
            numbers=self.numbers,
            behaviour=self.behaviour,
            world=none if self.world is None else self.world,
            next_world=none if self.world is None else self.world,
            next_numbers=self.numbers,
            scratch=np.zeros((1, classes.scratch.size if classes.scratch else 1)),
            controls=np.zeros((rows, classes.action.size), floats),
            kind=rules.kind,
            targets=target_tasks(spec, first, envs),
            table=table,
            acted=np.ones(rows, np.uint8),
            ticks=rules.ticks,
            limit=rules.limit,
            at_limit=rules.at_limit,
            shaped=payout.shaped,
            gamma=floats(payout.gamma),
        )
        self._plain_games, self._plain_rules = tuple(self._games), tuple(payout.rules)

    def reset(self, out: Rows) -> None:
        """Begin the first game of every env."""
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self.payout.reset()
        self._begin(np.arange(self.envs), games, out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next game of the named envs, or the one of each seed."""
        self._begin(np.array(indices, np.int64), np.array(check_seeds(indices, seeds), np.int64), out)

    def _begin(self, envs: Array, seeds: Array, out: Rows) -> None:
        vectors = self.spec.obs.vectors(out.obs)
        self._run(self._made.begin_all, envs, seeds, self._plain_games, vectors, out.obs, out.active, out.mask)

    def _run(self, kernel: Any, *args: Any) -> None:
        """Run a kernel; what numba cannot compile is an error in the user's function."""
        try:
            kernel(*args)
        except IndexError as error:  # when compiled, only the user's own reward terms are checked
            raise self._term_out_of_range(error) from None
        except COMPILE_ERRORS as error:
            raise GameError(
                f"`{self.spec.name}` cannot be compiled: {describe_compile_error(error, kernel)}",
                f"slipstream check-env {self.spec.name} plays the same functions uncompiled",
            ) from error

    def _term_out_of_range(self, error: IndexError) -> Exception:
        """The error of the reward term that reads out of range, which plain Python finds; `error` if it finds none."""
        games, agents, action = self._games, self.spec.agents, self._games.controls
        for env, me in product(range(self.envs), range(agents)):
            place = self._settings_size + (int(self.numbers[env, kernels.TASK]) + 1) * self._task_size
            for key, term in self._made.plain_terms.items():
                try:
                    term(games.before, games.state, env, games.world, action, env * agents, me, games.table, place)
                except IndexError as found:
                    text = f"Reward term `{key}` reads out of range: {found}.\n{user_frames(found)}"
                    return ConfigError(text, "use indices below the sizes of lists and arrays")
                except ArithmeticError:
                    continue
        return error

    def column(self, name: str) -> Array:
        """A column of the state for every env, such as `cars.0.x`, to read or to change in tests and debuggers."""
        names = self._columns.names()
        if name not in names:
            raise GameError(
                f"{self._columns.name} has no column `{name}`.{did_you_mean(name, names)}", ", ".join(names)
            )
        found: Array = self.state[:, names.index(name)]
        return found

    def seeds(self) -> Array:
        """The seed of every present game."""
        return self.numbers[:, GAME].copy()

    def assign(self, tasks: Array) -> None:
        """Set the task of each env from its next game on."""
        self.numbers[:, kernels.GIVEN] = check_tasks(self.spec, tasks)

    def observe(self, obs: Array) -> None:
        """Write the observations of the present state."""
        self._run(self._made.observe, self._plain_games, self.spec.obs.vectors(obs), obs)

    def step(self, action: Array, out: Rows) -> None:
        """Play one decision of every game."""
        obs, final_obs = out.obs, out.final_obs
        vectors, final_vectors = obs, final_obs
        if not self.spec.obs.plain:
            vectors, final_vectors = self.spec.obs.vectors(obs), self.spec.obs.vectors(final_obs)
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
        self._run(self._made.step_all, self._plain_games, self._plain_rules, action, results)

    def on_device(self) -> OnDevice:
        """The kernels: one decision of one env and, where there are worlds, those of the next games."""
        scratch: Any = EmptyArray((self.envs, self._games.scratch.shape[1]), "float64")
        games = self._games._replace(scratch=scratch)
        if self.world is None:
            return OnDevice(KernelCall(self._made.step_env, self.envs, (games, self.payout.rules)))
        next_world: Any = EmptyArray(self.world.shape, self.world.dtype.name)
        next_numbers: Any = EmptyArray(self.numbers.shape, "int64")
        games = games._replace(next_world=next_world, next_numbers=next_numbers)
        ahead = games.numbers, next_world, next_numbers, games.scratch, games.targets, games.table
        return OnDevice(
            KernelCall(self._made.step_env, self.envs, (games, self.payout.rules)),
            before=KernelCall(self._made.next_world, self.envs, ahead),
            after=KernelCall(self._made.take_world, self.envs * kernels.LANES, (self.world, next_world, next_numbers)),
        )


def _stored(columns: Columns, floats: type[np.generic]) -> type[np.generic]:
    """The kind of numbers in which a world is stored."""
    return np.int32 if columns.whole else floats
