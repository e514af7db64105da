"""MettaGrid behind the `Vector` contract: each agent of each game is a row.

The simulator's core writes all that it tells into one block that the vector owns, and one copy of the block, cut to the
tokens that agents are told, goes into the rows. (The core can be pointed at other memory, but then works out every
observation anew, which costs more than a step.) A game is told by its seed and by what its agents did, so a snapshot
holds those, and a restored game is played again up to where it was. A game cannot be begun again in place: the next one
of an env is made some steps before it is wanted, one per step, so that no step waits for many of them.
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
"""What the simulator counts for each agent that is told on."""
BEHAVIOURS = ("hearts", "ores", "moves", "failed", "cells", "cut")
"""The same in our words, and the share of steps in which an agent was not told all that it could see."""
KEPT = ("games", "count", "history", "cuts")
"""The arrays of a snapshot."""


class Metta:
    """`envs` games of one world."""

    def __init__(
        self, envs: int, *, variant: str = "arena", seed: int = 0, first: int = 0,
        options: Mapping[str, Any] | None = None, target: Sequence[str] = (),
    ) -> None:  # fmt: skip
        world = choose(variant, options or {})
        self.envs, self._first, self._seed, self._world = envs, first, seed, world
        self._stage: Stage = stage(world)
        self.spec = _spec(variant, self._stage, target)
        agents, rows = world.agents, envs * world.agents
        self._told = 3 * world.tokens
        """Bytes of an observation that are told."""
        self._tokens = np.full((envs, agents, world.room, 3), ABSENT, np.uint8)
        self._reward, self._action = np.zeros((envs, agents), np.float32), np.zeros((envs, agents), np.int32)
        self._ends = np.zeros((2, envs, agents), np.bool_)
        """Whether the simulator has ended or cut each agent's episode."""
        self._bytes = self._tokens.reshape(rows, -1)
        self._beyond = self._bytes[:, self._told] if world.room > world.tokens else np.zeros(0, np.uint8)
        """Of each row the first byte that is not told."""
        self._games: list[Any] = [None] * envs
        self._steppers: list[Callable[[], None]] = []
        self._spares: dict[int, tuple[int, Any]] = {}
        """By env, the seed of a game to come and the game."""
        self._lead = min(2 * envs, world.steps)
        self.games, self.count = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        self.history = np.zeros((envs, world.steps, agents), np.uint8)
        self.cuts = np.zeros((envs, agents), np.int32)
        self._everyone = np.arange(envs)
        self._steps = self._at = 0

    def reset(self, out: Rows) -> None:
        """Start every game anew, from the first one of its seed."""
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        self._guard(self._renew, range(self.envs), games.tolist(), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin the next game of the named envs at once, or the one of each seed."""
        given = check_seeds(indices, seeds)
        games = [next_game(self.games[env]) if seed < 0 else seed for env, seed in zip(indices, given, strict=True)]
        self._guard(self._renew, indices, games, out)

    def seeds(self) -> Array:
        """The seed of every game that is being played."""
        return self.games.copy()

    def assign(self, tasks: Array) -> None:
        """There is one kind of game."""
        check_tasks(self.spec, tasks)

    def step(self, action: Array, out: Rows) -> None:
        """Let every agent of every game act once."""
        self._steps += 1
        self._guard(self._step, action, out)

    def snapshot(self) -> dict[str, Array]:
        """Seeds and what the agents did: all that there is to a game."""
        return {name: getattr(self, name).copy() for name in KEPT}

    def restore(self, state: dict[str, Array]) -> None:
        """Play every game again up to where it was."""
        self._guard(self._replay, state)

    def close(self) -> None:
        """Let the games go."""
        self._games, self._steppers, self._spares = [], [], {}

    def _step(self, action: Array, out: Rows) -> None:
        self._action[:] = action.reshape(self._action.shape)
        self.history[self._everyone, self.count] = self._action
        self._at = 0
        for move in self._steppers:
            move()
            self._at += 1
        self.count += 1
        out.reward[:] = self._reward.reshape(-1)
        out.terminated[:], out.truncated[:] = self._ends.reshape(2, -1)
        out.active.fill(1)
        np.copyto(out.obs[:, : self._told], self._bytes[:, : self._told])
        if self._beyond.size:
            self.cuts += (self._beyond != ABSENT).reshape(self.cuts.shape)
        if self.count.max() >= self._world.steps:
            out.outcome.fill(0)
            self._end(np.flatnonzero(self.count >= self._world.steps).tolist(), out)
        else:
            self._make_ahead()

    def _end(self, envs: Sequence[int], out: Rows) -> None:
        """Tell on the games that have ended, and begin the next ones."""
        agents = self._world.agents
        for env in envs:
            rows = slice(env * agents, (env + 1) * agents)
            out.final_obs[rows] = out.obs[rows]
            counted = self._games[env].get_episode_stats()["agent"]
            out.behaviour[rows, :-1] = [[own.get(name, 0.0) for name in STATISTICS] for own in counted]
            out.behaviour[rows, -1] = self.cuts[env] / self.count[env]
        self._renew(envs, [next_game(self.games[env]) for env in envs], out)

    def _renew(self, envs: Sequence[int], games: Sequence[int], out: Rows) -> None:
        agents = self._world.agents
        for env, game in zip(envs, games, strict=True):
            self._begin(env, int(game))
            rows = slice(env * agents, (env + 1) * agents)
            out.obs[rows, : self._told] = self._bytes[rows, : self._told]
            out.active[rows] = 1

    def _begin(self, env: int, game: int) -> None:
        """Begin the game of a seed, with the one made ahead if it is that."""
        self._at, self.games[env] = env, game
        known, made = self._spares.pop(env, (-1, None))
        self._games[env] = made if known == game else self._stage.play(game_key(game))
        self.count[env], self.cuts[env] = 0, 0
        over, cut = self._ends[:, env]
        self._games[env].set_buffers(self._tokens[env], over, cut, self._reward[env], self._action[env])
        self._steppers = [playing.step for playing in self._games if playing is not None]

    def _make_ahead(self) -> None:
        """Make one of the games that will be wanted soon."""
        for env in np.flatnonzero(self.count + self._lead >= self._world.steps).tolist():
            if env not in self._spares:
                game = next_game(int(self.games[env]))
                self._spares[env] = game, self._stage.play(game_key(game))
                return

    def _replay(self, state: Mapping[str, Array]) -> None:
        kept = {name: state[name].copy() for name in KEPT}
        for env in range(self.envs):
            self._begin(env, int(kept["games"][env]))
            for action in kept["history"][env, : int(kept["count"][env])]:
                self._action[env] = action
                self._games[env].step()
        for name, array in kept.items():
            getattr(self, name)[:] = array

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        guarded(work, args, lambda: (self._first + self._at, int(self.games[self._at]), self._steps))


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
    """Make games as the settings say."""
    return Metta(
        envs, variant=variant, seed=seed, first=first, options=choice.env.options, target=choice.env.target
    )  # fmt: skip
