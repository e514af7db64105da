"""The vector behind the tiny games: observations and rewards follow from an episode's key and its age alone.

Three numbers are therefore the whole state of an env, and a snapshot is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks
from slipstream.system.numba_compile import Number, compiled, inlined
from slipstream.system.rng import check_seeds, game_key, mix, next_game

KEY, GAME, AGE, CLOCK_SIZE = 0, 1, 2, 3
"""Columns of the clock: the RNG key of the episode, its seed, and its steps so far."""
UNIT = np.float32(2.0**-24)

WriteObservations = Callable[[Array, Array, Array, Array, Array], None]
"""(clock, chosen envs, vectors, rows, masks): writes the observations of the chosen envs; vectors is a view of rows."""
WriteRewards = Callable[[Array, Array, Array], None]
"""(clock, action, reward): writes the rewards of the actions for the present observations."""


@inlined
def first_game(seed: int, index: int) -> int:
    """Return the seed of the first episode of the env with this global index, for a run's seed."""
    return mix(mix(mix(seed) ^ (seed >> 32)) + mix(index + 0x3C6EF372)) << 16


@inlined
def draw(key: int, step_key: int, place: int) -> int:
    """Return random number `place` of a step, 32 bits."""
    return mix(mix(mix(step_key) ^ key) + mix(place + 0x1E3779B1))


@inlined
def pick(key: int, step_key: int, place: int, options: int) -> int:
    """Return a random option, an integer below `options`."""
    return (draw(key, step_key, place) * options) >> 32


@inlined
def share(key: int, step_key: int, place: int) -> Number:
    """Return a random number in [0, 1)."""
    return np.float32(draw(key, step_key, place) >> 8) * UNIT


@compiled
def begin_episodes(clock: Array, chosen: Array, games: Array) -> None:
    """Begin an episode in each chosen env, from its seed in `games` or, if negative, from the env's next seed."""
    for env in range(clock.shape[0]):
        if chosen[env] == 1:
            own = games[env] if games[env] >= 0 else next_game(clock[env, GAME])
            clock[env, KEY], clock[env, GAME], clock[env, AGE] = game_key(own), own, 0


class TinyVector:
    """`envs` environments whose episodes terminate after `length` steps; env i is seeded by `seed` and `first + i`."""

    def __init__(
        self,
        spec: EnvSpec,
        envs: int,
        length: int,
        write_observations: WriteObservations,
        write_rewards: WriteRewards,
        *,
        first: int = 0,
        seed: int = 0,
    ) -> None:
        self.spec, self.envs = spec, envs
        self.clock = np.zeros((envs, CLOCK_SIZE), np.int64)
        self._first_games = np.array([first_game(seed & (2**63 - 1), first + env) for env in range(envs)], np.int64)
        self._next_games = np.full(envs, -1)
        self._length, self._write_observations, self._write_rewards = length, write_observations, write_rewards
        self._all = np.ones(envs, np.uint8)
        self._no_mask = np.zeros((envs * spec.agents, spec.action.options), np.uint8)
        """Receives the masks of final observations, which are not used."""

    def reset(self, out: Rows) -> None:
        """Begin the first episode of every env."""
        begin_episodes(self.clock, self._all, self._first_games)
        self._write(self._all, out.obs, out.mask)
        out.active[:] = 1

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next episode of the named envs, or the one of each seed."""
        chosen, games = np.zeros(self.envs, np.uint8), np.full(self.envs, -1)
        chosen[list(indices)], games[list(indices)] = 1, check_seeds(indices, seeds)
        begin_episodes(self.clock, chosen, games)
        self._write(chosen, out.obs, out.mask)
        out.active[self._rows(chosen) == 1] = 1

    def seeds(self) -> Array:
        """The seed of every present episode."""
        return self.clock[:, GAME].copy()

    def assign(self, tasks: Array) -> None:
        """Check the tasks: there are none to assign."""
        check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Write the rewards of the actions and the next observations."""
        self._write_rewards(self.clock, action, out.reward)
        self.clock[:, AGE] += 1
        over = (self.clock[:, AGE] == self._length).astype(np.uint8)
        out.terminated[:] = self._rows(over)
        out.truncated[:] = 0
        out.outcome[:] = 0
        out.active[:] = 1
        if over.any():
            self._write(over, out.final_obs, self._no_mask)
            begin_episodes(self.clock, over, self._next_games)
        self._write(self._all, out.obs, out.mask)

    def snapshot(self) -> dict[str, Array]:
        """Copy the clock, which is the whole state."""
        return {"clock": self.clock.copy()}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore a snapshot."""
        self.clock[:] = state["clock"]

    def close(self) -> None:
        """Nothing to free."""

    def _write(self, chosen: Array, obs: Array, mask: Array) -> None:
        self._write_observations(self.clock, chosen, self.spec.obs.vectors(obs), obs, mask)

    def _rows(self, chosen: Array) -> Array:
        return np.repeat(chosen, self.spec.agents)
