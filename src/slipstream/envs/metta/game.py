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
from slipstream.envs.game import EnvChoice
from slipstream.envs.metta.own_worlds import OwnStage, make_stage
from slipstream.envs.metta.worlds import WORLDS, Stage, choose, stage
from slipstream.envs.python_terms import PythonTerms, make_python_terms
from slipstream.errors import EnvError, EnvFault, guarded
from slipstream.system.rng import check_seeds, first_games, game_key, next_game

ABSENT = 255
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
        own: OwnStage | None = None,
        choice: EnvChoice | None = None,
    ) -> None:
        self._simulation = own or stage(choose(variant, options or {}))
        world = self._simulation.world
        self.envs, self._first, self._seed, self._world = envs, first, seed, world
        spec = _spec(own.name if own else f"mettagrid:{variant}", self._simulation, target)
        self.spec, self._terms = make_python_terms(choice, spec, envs)
        agents, rows = world.agents, envs * world.agents
        self._obs_bytes = 3 * world.tokens
        """Bytes of an observation."""
        self._tokens = np.full((envs, agents, world.max_tokens, 3), ABSENT, np.uint8)
        ids = self._simulation.action_ids
        self._action_ids = None if np.array_equal(ids, np.arange(len(ids))) else ids
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
        self.history = np.zeros((envs, world.steps, agents), np.min_scalar_type(int(ids.max())))
        self.cuts = np.zeros((envs, agents), np.int32)
        self._everyone = np.arange(envs)
        self._steps = self._current = 0

    def reset(self, out: Rows) -> None:
        """Reset every env to the first game of its seed."""
        games = np.zeros(self.envs, np.int64)
        first_games(self._seed, self._first, games)
        if self._terms is not None:
            self._terms.reset()
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
        means = self._terms.snapshot() if self._terms is not None else {}
        return {name: getattr(self, name).copy() for name in KEPT} | means

    def restore(self, state: dict[str, Array]) -> None:
        """Replay every game up to the snapshot."""
        if self._terms is not None:
            self._terms.restore(state)
        self._guard(self._replay, state)

    def view(self) -> dict[str, Array]:
        """The map, the agents and what they hold, for drawings."""
        pictures = [self._view_game(env) for env in range(self.envs)]
        return {name: stack_padded([picture[name] for picture in pictures]) for name in pictures[0]}

    def close(self) -> None:
        """Free the games."""
        self._games, self._steppers, self._spares = [], [], {}

    def _step(self, action: Array, out: Rows) -> None:
        chosen = action.reshape(self._action.shape)
        self._action[:] = chosen if self._action_ids is None else self._action_ids[chosen]
        self._observe_for_terms()
        self.history[self._everyone, self.count] = self._action
        self._current = 0
        for step in self._steppers:
            step()
            self._current += 1
        self.count += 1
        ended = self.count >= self._world.steps
        if self._simulation.thresholds:
            self._cut_short(ended)
        out.reward[:] = self._reward.reshape(-1)
        if self._terms is not None:
            self._value_terms(self._terms, out)
        out.terminated[:], out.truncated[:] = self._ends.reshape(2, -1)
        out.active.fill(1)
        np.copyto(out.obs[:, : self._obs_bytes], self._bytes[:, : self._obs_bytes])
        if self._overflow.size:
            self.cuts += (self._overflow != ABSENT).reshape(self.cuts.shape)
        if ended.any():
            out.outcome.fill(0)
            self._end(np.flatnonzero(ended).tolist(), out)
        else:
            self._make_ahead()

    def _cut_short(self, ended: Array) -> None:
        """Truncate the games in which a statistic has reached its threshold."""
        for env, game in enumerate(self._games):
            values = {name: game.get_game_stat(name) for name in self._simulation.thresholds}
            if any(value is not None and value >= self._simulation.thresholds[k] for k, value in values.items()):
                ended[env] = self._ends[1, env] = True

    def _seen(self, env: int, agent: int) -> Array:
        """The tokens [tokens, 3] that an agent sees."""
        return self._tokens[env, agent, : self._world.tokens]

    def _observe_for_terms(self) -> None:
        """Keep what all agents see before a step, for the user's reward terms."""
        if self._terms is not None:
            for row in range(self.envs * self._world.agents):
                self._terms.observe(row, self._seen(*divmod(row, self._world.agents)))

    def _value_terms(self, terms: PythonTerms, out: Rows) -> None:
        """Value the user's reward terms for every agent and pay the rewards."""
        for row in range(self.envs * self._world.agents):
            self._current, agent = divmod(row, self._world.agents)
            terms.act(row, int(self._action[self._current, agent]))
            terms.reward(row, float(self._reward[self._current, agent]))
            terms.value(row, self._seen(self._current, agent), {"agent": agent, "step": int(self.count[self._current])})
        terms.pay(out)

    def _end(self, envs: Sequence[int], out: Rows) -> None:
        """Write the statistics of games that have ended, and start the next ones."""
        agents = self._world.agents
        for env in envs:
            rows = slice(env * agents, (env + 1) * agents)
            out.final_obs[rows] = out.obs[rows]
            counted = self._games[env].get_episode_stats()["agent"]
            out.behaviour[rows, :-1] = [[own.get(name, 0.0) for name in self._simulation.statistics] for own in counted]
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

    def _view_game(self, env: int) -> dict[str, Array]:
        game, resources = self._games[env], self._simulation.resources
        kinds = game.object_type_names
        cells = np.zeros((game.map_height, game.map_width), np.uint8)
        stock = np.zeros(cells.shape, np.uint16)
        agents = np.full((self._world.agents, 3), -1, np.int16)
        held = np.zeros((self._world.agents, len(resources)), np.uint16)
        for thing in game.grid_objects().values():
            place = thing["r"], thing["c"]
            if "agent_id" in thing:
                agents[thing["agent_id"]] = *place, thing["group_id"]
                held[thing["agent_id"], list(thing["inventory"])] = list(thing["inventory"].values())
            else:
                cells[place] = 1 + kinds.index(thing["type_name"])
                stock[place] = min(sum(thing["inventory"].values()), 65535)
        return {
            "cells": cells,
            "stock": stock,
            "agents": agents,
            "held": held,
            "earned": np.array(game.get_episode_rewards(), np.float32),
            "clock": np.array([self.count[env], self._world.steps], np.int32),
            "names": np.frombuffer("\n".join([",".join(kinds), ",".join(resources)]).encode(), np.uint8),
        }

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        try:
            guarded(work, args, lambda: (self._first + self._current, int(self.games[self._current]), self._steps))
        except EnvFault as error:
            if "token budget exceeded" not in error.report:
                raise
            raise EnvError(
                f"An agent of `{self.spec.name}` sees more than {self._world.max_tokens} tokens, for which MettaGrid's "
                f"buffer has space (env {error.env}, seed {error.seed}, step {error.step}).",
                "raise game.obs.num_tokens; env.options.tokens keeps only the nearest",
            ) from error


def stack_padded(arrays: Sequence[Array]) -> Array:
    """Stack arrays, those of smaller maps padded with zeros."""
    shape = np.max([array.shape for array in arrays], axis=0)
    stacked = np.zeros((len(arrays), *shape), arrays[0].dtype)
    for into, array in zip(stacked, arrays, strict=True):
        into[tuple(map(slice, array.shape))] = array
    return stacked


def _spec(name: str, made: Stage | OwnStage, target: Sequence[str]) -> EnvSpec:
    choose_target(name, (), (), target)
    return EnvSpec(
        name=name,
        obs=ObsSpec((ObsField("", "tokens", (made.world.tokens, 3)),)),
        action=ActionSpec("discrete", (len(made.actions),)),
        teams=(0,) * made.world.agents,
        exact=made.exact,
        behaviours=made.behaviours,
        world=made.meanings,
    )


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> Metta:
    """Make games from the settings."""
    env = choice.env
    if choice.name.startswith("python:") or variant not in WORLDS:
        return Metta(envs, seed=seed, first=first, target=env.target, own=make_stage(choice, variant), choice=choice)
    options, target = env.options, env.target
    return Metta(envs, variant=variant, seed=seed, first=first, options=options, target=target, choice=choice)
