"""Games made of scenes, many at once: what is shown and what pays follow from a game's key and its age alone.

So three numbers are the whole state of an env, a snapshot is exact, and a scene can be shown as often as one likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, check_tasks
from slipstream.system.numba_compile import Number, compiled, inlined
from slipstream.system.rng import check_seeds, game_key, mix, next_game

KEY, GAME, AGE, CLOCK_SIZE = 0, 1, 2, 3
"""The columns of a clock: the game's key, the seed that it is from, and the steps so far."""
UNIT = np.float32(2.0**-24)

Show = Callable[[Array, Array, Array, Array, Array], None]
"""(clock, chosen envs, vectors, rows, masks): writes what the chosen envs look like now; vectors are a view of rows."""
Pay = Callable[[Array, Array, Array], None]
"""(clock, action, reward): writes what the actions earn in the scenes that were shown."""


@inlined
def first_game(seed: int, index: int) -> int:
    """Return the seed of the first game of the env with this global index in the run with this seed."""
    return mix(mix(mix(seed) ^ (seed >> 32)) + mix(index + 0x3C6EF372)) << 16


@inlined
def draw(key: int, turn: int, place: int) -> int:
    """Return one of the 32-bit numbers of a turn."""
    return mix(mix(mix(turn) ^ key) + mix(place + 0x1E3779B1))


@inlined
def pick(key: int, turn: int, place: int, options: int) -> int:
    """Return one of so many options."""
    return (draw(key, turn, place) * options) >> 32


@inlined
def share(key: int, turn: int, place: int) -> Number:
    """Return a number in [0, 1)."""
    return np.float32(draw(key, turn, place) >> 8) * UNIT


@compiled
def renew(clock: Array, chosen: Array, games: Array) -> None:
    """Begin the games of these seeds in the chosen envs; below 0: the env's next one."""
    for env in range(clock.shape[0]):
        if chosen[env] == 1:
            own = games[env] if games[env] >= 0 else next_game(clock[env, GAME])
            clock[env, KEY], clock[env, GAME], clock[env, AGE] = game_key(own), own, 0


class Scenes:
    """`envs` games of `length` steps each that end by termination; the chance of env i is that of `first + i`."""

    def __init__(
        self, spec: EnvSpec, envs: int, length: int, show: Show, pay: Pay, *, first: int = 0, seed: int = 0
    ) -> None:
        self.spec, self.envs = spec, envs
        self.clock = np.zeros((envs, CLOCK_SIZE), np.int64)
        self._first_games = np.array([first_game(seed & (2**63 - 1), first + env) for env in range(envs)], np.int64)
        self._next_games = np.full(envs, -1)
        self._length, self._show, self._pay = length, show, pay
        self._all = np.ones(envs, np.uint8)
        self._no_mask = np.zeros((envs * spec.agents, spec.action.options), np.uint8)
        """Where the masks of last observations go, on which nobody acts."""

    def reset(self, out: Rows) -> None:
        """Start every env anew, from the first episode of its seed."""
        renew(self.clock, self._all, self._first_games)
        self._write(self._all, out.obs, out.mask)
        out.active[:] = 1

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next game of the named envs at once, or the one of each seed."""
        chosen, games = np.zeros(self.envs, np.uint8), np.full(self.envs, -1)
        chosen[list(indices)], games[list(indices)] = 1, check_seeds(indices, seeds)
        renew(self.clock, chosen, games)
        self._write(chosen, out.obs, out.mask)
        out.active[self._rows(chosen) == 1] = 1

    def seeds(self) -> Array:
        """The seed of every game that is being played."""
        return self.clock[:, GAME].copy()

    def assign(self, tasks: Array) -> None:
        """There is one kind of game."""
        check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Pay for the actions and show the next scenes."""
        self._pay(self.clock, action, out.reward)
        self.clock[:, AGE] += 1
        over = (self.clock[:, AGE] == self._length).astype(np.uint8)
        out.terminated[:] = self._rows(over)
        out.truncated[:] = 0
        out.outcome[:] = 0
        out.active[:] = 1
        if over.any():
            self._write(over, out.final_obs, self._no_mask)
            renew(self.clock, over, self._next_games)
        self._write(self._all, out.obs, out.mask)

    def snapshot(self) -> dict[str, Array]:
        """Copy the clock: there is nothing else."""
        return {"clock": self.clock.copy()}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from a snapshot."""
        self.clock[:] = state["clock"]

    def close(self) -> None:
        """Nothing is held open."""

    def _write(self, chosen: Array, obs: Array, mask: Array) -> None:
        self._show(self.clock, chosen, self.spec.obs.vectors(obs), obs, mask)

    def _rows(self, chosen: Array) -> Array:
        return np.repeat(chosen, self.spec.agents)
