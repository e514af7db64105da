"""EnvPool games: stepped by EnvPool's own threads; a game that ends is reset in the same step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.adapters.action_spaces import action_spec, batch_decoder
from slipstream.envs.adapters.adapter_vector import ThreadedAdapter, import_package
from slipstream.envs.adapters.multi_agent import game_outcome
from slipstream.envs.adapters.observation_spaces import batch_encoder, obs_spec
from slipstream.errors import ConfigError, EnvError, did_you_mean
from slipstream.system import machine
from slipstream.system.rng import env_seeds

INSTALL = 'pip install "slipstream[envpool]" (it brings some 600 MB of assets)'
RESERVED = ("num_envs", "batch_size", "seed", "env_type", "gym_reset_return_info")
"""Arguments of EnvPool that `env.options` may not set."""


def make_pool(name: str, seeds: Sequence[int], options: Mapping[str, Any]) -> Any:
    """Make a pool with one game per seed."""
    envpool = import_package("envpool", f"envpool:{name}", "EnvPool", INSTALL)
    known = envpool.list_all_envs()
    if name not in known:
        raise EnvError(
            f"EnvPool has no game `{name}`.{did_you_mean(name, known)}", "envpool.list_all_envs() lists them"
        )
    if wrong := [key for key in options if key in RESERVED]:
        raise ConfigError(f"`env.options.{wrong[0]}` cannot be set.", "it follows from plan.envs and seed")
    given = {"num_threads": min(len(seeds), machine.threads())} | dict(options)
    try:
        return envpool.make(name, env_type="gymnasium", num_envs=len(seeds), seed=list(seeds), **given)
    except Exception as error:
        raise EnvError(
            f"EnvPool cannot make `{name}`: {error}", "check env.options, or install what the game needs"
        ) from error


class EnvPool(ThreadedAdapter):
    """`envs` games of one kind; in turn-based games, only the row of the player to move is active.

    EnvPool would reset a game in the step after its end. This class resets it at once, so no step is lost. A pool is
    seeded when it is made, so a game that starts from a given seed gets its own pool.
    """

    def __init__(
        self, name: str, envs: int, *, first: int = 0, seed: int = 0, options: Mapping[str, Any] | None = None
    ) -> None:
        self._initial_seeds = [one >> 1 for one in env_seeds(seed, first, envs)]
        super().__init__(envs, first, self._initial_seeds)
        self._name, self._options = name, dict(options or {})
        self._pool = make_pool(name, self._initial_seeds, self._options)
        self._pools: dict[int, Any] = {}
        """The pools of games that were started from a given seed."""
        players = int(self._pool.config["max_num_players"])
        self.spaces = self._pool.observation_space, self._pool.action_space
        self._encode, self._decode = batch_encoder(self.spaces[0]), batch_decoder(self.spaces[1])
        self._started = False
        self._returns = np.zeros((envs, players))
        self._turn = np.zeros(envs, int)
        """The player to move in each game."""
        self._action = np.zeros(0)
        label = f"envpool:{name}"
        spec = EnvSpec(label, obs_spec(self.spaces[0], label), action_spec(self.spaces[1], label), own_threads=True)
        self.spec = replace(spec, teams=(0,) * players)
        infos = self._guard(self._pool.reset)[1]
        self._turn_based, masked = "current_player" in infos, "legal_action_mask" in infos
        action = replace(spec.action, masked=masked and spec.action.kind == "discrete")
        teams = tuple(range(players)) if self._turn_based else (0,) * players
        self.spec = replace(spec, action=action, teams=teams, absences=self._turn_based and players > 1)

    def reset(self, out: Rows) -> None:
        """Reset every game; the first time from its own seed."""
        self._pools.clear()
        if self._started:
            self._reset_pool(self._pool, np.arange(self.envs), out)
            return
        # The first episode of the first pool was used to probe the game.
        self._pool = make_pool(self._name, self._initial_seeds, self._options)
        self._reset_pool(self._pool, np.arange(self.envs), out)
        self._started, self._seeds.begun[:] = True, self._initial_seeds

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Reset the given games, each from its seed if there is one."""
        if not self._started:
            self.reset(out)
        for index, seed in zip(indices, seeds or [-1] * len(indices), strict=True):
            if seed >= 0:
                self._pools[index] = make_pool(self._name, [int(seed) % 2**31], self._options)
            self._reset_pool(self._pools.get(index, self._pool), np.array([index]), out)
            self._seeds.begun[index] = seed

    def _send(self, action: Array) -> None:
        self._action = action
        self._pool.send(self._pool_action(np.arange(self.envs)))

    def _receive(self, out: Rows) -> None:
        done = [(self._pool, self._write_step(self._pool.recv(), np.arange(self.envs), out))]
        for index, pool in self._pools.items():
            result = pool.step(self._pool_action(np.array([index])))
            done.append((pool, self._write_step(result, np.array([index]), out)))
        for pool, ended in done:
            is_own_pool = pool is not self._pool
            ended = ended if is_own_pool else ended[~np.isin(ended, list(self._pools))]
            if len(ended):
                self._seeds.begun[ended] = -1
                self._reset_pool(pool, ended, out)

    def close(self) -> None:
        """Drop the pools; may be called twice."""
        self._pools.clear()
        self._pool = None

    def _rows(self, envs: Array) -> Array:
        agents = self.spec.agents
        return (envs[:, None] * agents + np.arange(agents)).reshape(-1)

    def _pool_action(self, envs: Array) -> Any:
        """The action of some games as EnvPool takes it: of all players, or of the player to move."""
        rows = envs * self.spec.agents + self._turn[envs] if self._turn_based else self._rows(envs)
        return self._decode(self._action[rows])

    def _reset_pool(self, pool: Any, envs: Array, out: Rows) -> None:
        """Reset some games of one pool and write their first observations."""
        ids = envs if pool is self._pool else np.zeros(1, int)
        obs, infos = self._guard(pool.reset, ids.astype(np.int32))
        self._returns[envs] = 0
        self._write_obs(obs, infos, envs, out)

    def _write_step(self, result: tuple[Any, ...], envs: Array, out: Rows) -> Array:
        """Write the results of a step; returns the games that ended."""
        obs, reward, terminated, truncated, infos = result
        rows, agents = self._rows(envs), self.spec.agents
        if len(reward) != len(rows):
            raise EnvError(
                f"`{self.spec.name}` has {len(reward)} players of {len(rows)} in a step.",
                "games with a changing number of players are not supported",
            )
        out.reward[rows] = reward
        self._returns[envs] += np.reshape(reward, (-1, agents))
        out.terminated[rows] = np.repeat(terminated, agents)
        out.truncated[rows] = np.repeat(truncated & ~terminated, agents)
        out.outcome[rows] = 0
        self._write_obs(obs, infos, envs, out)
        ended: Array = envs[np.asarray(terminated | truncated, bool)]
        ended_rows = self._rows(ended)
        out.final_obs[ended_rows] = out.obs[ended_rows]
        if self.spec.competitive:
            for env in ended.tolist():
                out.outcome[env * agents : (env + 1) * agents] = game_outcome(self._returns[env], self.spec.teams)
        return ended

    def _write_obs(self, obs: Any, infos: Mapping[str, Any], envs: Array, out: Rows) -> None:
        """Write observations, active rows and action masks."""
        rows, agents = self._rows(envs), self.spec.agents
        part = np.empty((len(rows), self.spec.obs.width), self.spec.obs.dtype)
        self._encode(obs, part)
        out.obs[rows] = part
        out.active[rows] = 1
        if self._turn_based:
            self._turn[envs] = infos["current_player"]
            out.active[rows] = (self._turn[envs, None] == np.arange(agents)).reshape(-1)
        if self.spec.action.masked:
            out.mask[rows] = np.repeat(np.reshape(infos["legal_action_mask"], (len(envs), -1)), agents, axis=0)


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> EnvPool:
    """Make games of one kind from the settings."""
    return EnvPool(variant, envs, first=first, seed=seed, options=choice.env.options)
