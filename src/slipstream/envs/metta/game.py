"""MettaGrid behind the `Vector` contract: each agent of each game is a row.

The simulator writes its observations into one buffer owned by the vector. The first `world.tokens` tokens of each
agent are copied from there into the rows. (The simulator could write elsewhere, but changing its buffers recomputes all
observations, which costs more than a step.) A game is determined by its seed and its actions, so a snapshot holds
those, and `restore` replays each game. A game cannot be reset in place: the next game of an env is made some steps
ahead, one per step, so that no step has to make many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec, Rows, check_tasks, choose_target
from slipstream.envs.metta.worlds import Stage, choose, stage
from slipstream.errors import guarded
from slipstream.system.rng import check_seeds, first_games, game_key, next_game

ABSENT = 255
STATISTICS = ("heart.gained", "ore.gained", "action.move.success", "action.failed", "cell.unique_visited")
"""The simulator's statistics of each agent that are reported."""
BEHAVIOURS = ("hearts", "ores", "moves", "failed", "cells", "cut")
"""The reported names of these statistics, and the share of steps in which an observation had too many tokens."""
KEPT = ("games", "count", "history", "cuts")
"""The arrays of a snapshot."""


class Metta:
    """`envs` games of one world."""

    def __init__(
        self,
        envs: int,
        *,
        variant: str = "arena",
        seed: int = 0,
        first: int = 0,
        options: Mapping[str, Any] | None = None,
        target: Sequence[str] = (),
    ) -> None:
        world = choose(variant, options or {})
        self.envs, self._first, self._seed, self._world = envs, first, seed, world
        self._simulation: Stage = stage(world)
        self.spec = _spec(variant, self._simulation, target)
        agents, rows = world.agents, envs * world.agents
        self._obs_bytes = 3 * world.tokens
        """Bytes of an observation."""
        self._tokens = np.full((envs, agents, world.max_tokens, 3), ABSENT, np.uint8)
        self._reward, self._action = np.zeros((envs, agents), np.float32), np.zeros((envs, agents), np.int32)
        self._ends = np.zeros((2, envs, agents), np.bool_)
        """Whether the simulator has terminated or truncated each agent's episode."""
        self._bytes = self._tokens.reshape(rows, -1)
        self._overflow = self._bytes[:, self._obs_bytes] if world.max_tokens > world.tokens else np.zeros(0, np.uint8)
        """The first byte of each row that is not part of the observation."""
        self._games: list[Any] = [None] * envs
        self._steppers: list[Callable[[], None]] = []
        self._spares: dict[int, tuple[int, Any]] = {}
        """Games made ahead, by env: the seed and the game."""
        self._lead = min(2 * envs, world.steps)
        self.games, self.count = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        self.history = np.zeros((envs, world.steps, agents), np.uint8)
        self.cuts = np.zeros((envs, agents), np.int32)
        self._everyone = np.arange(envs)
        self._steps = self._current = 0

    def reset(self, out: Rows) -> None:
        """Reset every env to the first game of its seed."""
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self._guard(self._start_games, range(self.envs), games.tolist(), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the next game of the given envs, or the game of each seed."""
        given = check_seeds(indices, seeds)
        games = [next_game(self.games[env]) if seed < 0 else seed for env, seed in zip(indices, given, strict=True)]
        self._guard(self._start_games, indices, games, out)

    def seeds(self) -> Array:
        """The seed of every running game."""
        return self.games.copy()

    def assign(self, tasks: Array) -> None:
        """Check the tasks: there are none to assign."""
        check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Step every game."""
        self._steps += 1
        self._guard(self._step, action, out)

    def snapshot(self) -> dict[str, Array]:
        """The seeds and actions of all games."""
        return {name: getattr(self, name).copy() for name in KEPT}

    def restore(self, state: dict[str, Array]) -> None:
        """Replay every game up to the snapshot."""
        self._guard(self._replay, state)

    def close(self) -> None:
        """Free the games."""
        self._games, self._steppers, self._spares = [], [], {}

    def _step(self, action: Array, out: Rows) -> None:
        self._action[:] = action.reshape(self._action.shape)
        self.history[self._everyone, self.count] = self._action
        self._current = 0
        for step in self._steppers:
            step()
            self._current += 1
        self.count += 1
        out.reward[:] = self._reward.reshape(-1)
        out.terminated[:], out.truncated[:] = self._ends.reshape(2, -1)
        out.active.fill(1)
        np.copyto(out.obs[:, : self._obs_bytes], self._bytes[:, : self._obs_bytes])
        if self._overflow.size:
            self.cuts += (self._overflow != ABSENT).reshape(self.cuts.shape)
        if self.count.max() >= self._world.steps:
            out.outcome.fill(0)
            self._end(np.flatnonzero(self.count >= self._world.steps).tolist(), out)
        else:
            self._make_ahead()

    def _end(self, envs: Sequence[int], out: Rows) -> None:
        """Write the statistics of games that have ended, and start the next ones."""
        agents = self._world.agents
        for env in envs:
            rows = slice(env * agents, (env + 1) * agents)
            out.final_obs[rows] = out.obs[rows]
            counted = self._games[env].get_episode_stats()["agent"]
            out.behaviour[rows, :-1] = [[own.get(name, 0.0) for name in STATISTICS] for own in counted]
            out.behaviour[rows, -1] = self.cuts[env] / self.count[env]
        self._start_games(envs, [next_game(self.games[env]) for env in envs], out)

    def _start_games(self, envs: Sequence[int], games: Sequence[int], out: Rows) -> None:
        agents = self._world.agents
        for env, game in zip(envs, games, strict=True):
            self._start_game(env, int(game))
            rows = slice(env * agents, (env + 1) * agents)
            out.obs[rows, : self._obs_bytes] = self._bytes[rows, : self._obs_bytes]
            out.active[rows] = 1

    def _start_game(self, env: int, game: int) -> None:
        """Start the game of a seed; a matching game made ahead is used."""
        self._current, self.games[env] = env, game
        seed, made = self._spares.pop(env, (-1, None))
        self._games[env] = made if seed == game else self._simulation.make_game(game_key(game))
        self.count[env], self.cuts[env] = 0, 0
        over, cut = self._ends[:, env]
        self._games[env].set_buffers(self._tokens[env], over, cut, self._reward[env], self._action[env])
        self._steppers = [playing.step for playing in self._games if playing is not None]

    def _make_ahead(self) -> None:
        """Make one of the games that will be needed soon."""
        for env in np.flatnonzero(self.count + self._lead >= self._world.steps).tolist():
            if env not in self._spares:
                game = next_game(int(self.games[env]))
                self._spares[env] = game, self._simulation.make_game(game_key(game))
                return

    def _replay(self, state: Mapping[str, Array]) -> None:
        kept = {name: state[name].copy() for name in KEPT}
        for env in range(self.envs):
            self._start_game(env, int(kept["games"][env]))
            for action in kept["history"][env, : int(kept["count"][env])]:
                self._action[env] = action
                self._games[env].step()
        for name, array in kept.items():
            getattr(self, name)[:] = array

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        guarded(work, args, lambda: (self._first + self._current, int(self.games[self._current]), self._steps))


def _spec(variant: str, made: Stage, target: Sequence[str]) -> EnvSpec:
    name = f"mettagrid:{variant}"
    choose_target(name, (), (), target)
    return EnvSpec(
        name=name,
        obs=ObsSpec((ObsField("", "tokens", (made.world.tokens, 3)),)),
        action=ActionSpec("discrete", (len(made.actions),)),
        teams=(0,) * made.world.agents,
        exact=True,
        behaviours=BEHAVIOURS,
        world=made.meanings,
    )


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> Metta:
    """Make games from the settings."""
    return Metta(envs, variant=variant, seed=seed, first=first, options=choice.env.options, target=choice.env.target)
