"""Games of EnvPool: many stepped by threads of its own; a game that ends begins anew in the same step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.adapters.action_spaces import action_spec, batch_decoder
from slipstream.envs.adapters.multi_agent import game_outcome
from slipstream.envs.adapters.observation_spaces import batch_encoder, obs_spec
from slipstream.envs.snapshot import NoSnapshot
from slipstream.errors import ConfigError, EnvError, did_you_mean, guarded
from slipstream.system import machine
from slipstream.system.rng import env_seeds

INSTALL = 'pip install "slipstream[envpool]" (it brings some 600 MB of assets)'
ITS_OWN = ("num_envs", "batch_size", "seed", "env_type", "gym_reset_return_info")
"""What is not for `env.options` to say."""


def open_pool(name: str, seeds: Sequence[int], options: Mapping[str, Any]) -> Any:
    """A pool of one game for each seed."""
    try:
        import envpool
    except ImportError as error:
        raise EnvError(f"`envpool:{name}` needs EnvPool: {error}.", INSTALL) from error
    known = envpool.list_all_envs()
    if name not in known:
        raise EnvError(
            f"EnvPool has no game `{name}`.{did_you_mean(name, known)}", "envpool.list_all_envs() lists them"
        )
    if wrong := [key for key in options if key in ITS_OWN]:
        raise ConfigError(f"`env.options.{wrong[0]}` is not for you to say.", "plan.envs and seed say it")
    given = {"num_threads": min(len(seeds), machine.threads())} | dict(options)
    try:
        return envpool.make(name, env_type="gymnasium", num_envs=len(seeds), seed=list(seeds), **given)
    except Exception as error:
        raise EnvError(
            f"EnvPool cannot make `{name}`: {error}", "check env.options, or what it says it needs"
        ) from error


class EnvPool(NoSnapshot):
    """`envs` games of one kind; where players take turns, only the row whose turn it is is active.

    EnvPool would reset a game in the step after its end: it is told to at once instead, so that no step is lost. A pool
    is seeded when it is made, so a game that is to begin from a seed of its own gets a pool of its own.
    """

    def __init__(
        self, name: str, envs: int, *, first: int = 0, seed: int = 0, options: Mapping[str, Any] | None = None
    ) -> None:
        self.envs, self.first, self._name, self._options = envs, first, name, dict(options or {})
        self._seeds = [one >> 1 for one in env_seeds(seed, first, envs)]
        self._pool = open_pool(name, self._seeds, self._options)
        self._pools: dict[int, Any] = {}
        """Those of games that were begun from a seed of their own."""
        players = int(self._pool.config["max_num_players"])
        self.spaces = self._pool.observation_space, self._pool.action_space
        self._encode, self._decode = batch_encoder(self.spaces[0]), batch_decoder(self.spaces[1])
        self._fresh, self._begun = True, np.full(envs, -1)
        self._earned = np.zeros((envs, players))
        self._turn = np.zeros(envs, int)
        """Whose turn it is in each game."""
        self._steps = 0
        self._out: Rows | None = None
        self._action = np.zeros(0)
        label = f"envpool:{name}"
        spec = EnvSpec(label, obs_spec(self.spaces[0], label), action_spec(self.spaces[1], label), own_threads=True)
        self.spec = replace(spec, teams=(0,) * players)
        told = self._guard(self._pool.reset)[1]
        self._in_turn, masked = "current_player" in told, "legal_action_mask" in told
        action = replace(spec.action, masked=masked and spec.action.kind == "discrete")
        teams = tuple(range(players)) if self._in_turn else (0,) * players
        self.spec = replace(spec, action=action, teams=teams, absences=self._in_turn and players > 1)

    def reset(self, out: Rows) -> None:
        """Start every game anew; the first time each from its own seed."""
        self._pools.clear()
        if not self._fresh:
            self._begin(self._pool, np.arange(self.envs), out)
            return
        self._pool = open_pool(self._name, self._seeds, self._options)  # the first episode was looked at
        self._begin(self._pool, np.arange(self.envs), out)
        self._fresh, self._begun[:] = False, self._seeds

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the named games anew, each from its seed where there is one."""
        if self._fresh:
            self.reset(out)
        for index, seed in zip(indices, seeds or [-1] * len(indices), strict=True):
            if seed >= 0:
                self._pools[index] = open_pool(self._name, [int(seed) % 2**31], self._options)
            self._begin(self._pools.get(index, self._pool), np.array([index]), out)
            self._begun[index] = seed

    def seeds(self) -> Array:
        """The seed of each game that was begun by one, else -1."""
        return self._begun.copy()

    def step(self, action: Array, out: Rows) -> None:
        """Step every game."""
        self.send(action, out)
        self.receive()

    def send(self, action: Array, out: Rows) -> None:
        """Give EnvPool's threads the actions."""
        self._steps += 1
        self._out, self._action = out, action
        self._guard(self._pool.send, self._acts(np.arange(self.envs)))

    def receive(self) -> None:
        """Wait for EnvPool's threads and write the rows."""
        out, self._out = self._out, None
        assert out is not None
        told, done = self._guard(self._pool.recv), list[tuple[Any, Array]]()
        done.append((self._pool, self._settle(told, np.arange(self.envs), out)))
        for index, pool in self._pools.items():
            told = self._guard(pool.step, self._acts(np.array([index])))
            done.append((pool, self._settle(told, np.array([index]), out)))
        for pool, ended in done:
            own_pool = pool is not self._pool
            ended = ended if own_pool else ended[~np.isin(ended, list(self._pools))]
            if len(ended):
                self._begun[ended] = -1
                self._begin(pool, ended, out)

    def close(self) -> None:
        """Let the pools go; may be called twice."""
        self._pools.clear()
        self._pool = None

    def _rows(self, envs: Array) -> Array:
        agents = self.spec.agents
        return (envs[:, None] * agents + np.arange(agents)).reshape(-1)

    def _acts(self, envs: Array) -> Any:
        """What EnvPool takes for some games: everybody's action, or, in turn, that of whose turn it is."""
        rows = envs * self.spec.agents + self._turn[envs] if self._in_turn else self._rows(envs)
        return self._decode(self._action[rows])

    def _begin(self, pool: Any, envs: Array, out: Rows) -> None:
        """Start games of one pool anew and show them."""
        ids = envs if pool is self._pool else np.zeros(1, int)
        obs, told = self._guard(pool.reset, ids.astype(np.int32))
        self._earned[envs] = 0
        self._show(obs, told, envs, out)

    def _settle(self, told: tuple[Any, ...], envs: Array, out: Rows) -> Array:
        """Write what a step has brought; the games that it has ended."""
        obs, reward, terminated, truncated, infos = told
        rows, agents = self._rows(envs), self.spec.agents
        if len(reward) != len(rows):
            raise EnvError(
                f"`{self.spec.name}` has {len(reward)} players of {len(rows)} in a step.",
                "games whose players come and go cannot be trained on",
            )
        out.reward[rows] = reward
        self._earned[envs] += np.reshape(reward, (-1, agents))
        out.terminated[rows] = np.repeat(terminated, agents)
        out.truncated[rows] = np.repeat(truncated & ~terminated, agents)
        out.outcome[rows] = 0
        self._show(obs, infos, envs, out)
        ended: Array = envs[np.asarray(terminated | truncated, bool)]
        over = self._rows(ended)
        out.final_obs[over] = out.obs[over]
        if self.spec.competitive:
            for env in ended.tolist():
                out.outcome[env * agents : (env + 1) * agents] = game_outcome(self._earned[env], self.spec.teams)
        return ended

    def _show(self, obs: Any, infos: Mapping[str, Any], envs: Array, out: Rows) -> None:
        """What is seen, who acts on it, and what is allowed."""
        rows, agents = self._rows(envs), self.spec.agents
        part = np.empty((len(rows), self.spec.obs.width), self.spec.obs.dtype)
        self._encode(obs, part)
        out.obs[rows] = part
        out.active[rows] = 1
        if self._in_turn:
            self._turn[envs] = infos["current_player"]
            out.active[rows] = (self._turn[envs, None] == np.arange(agents)).reshape(-1)
        if self.spec.action.masked:
            out.mask[rows] = np.repeat(np.reshape(infos["legal_action_mask"], (len(envs), -1)), agents, axis=0)

    def _guard(self, work: Any, *args: Any) -> Any:
        return guarded(work, args, lambda: (self.first, self._seeds[0], self._steps))


def make(choice: Any, variant: str, envs: int, first: int, seed: int) -> EnvPool:
    """Make games of one kind as the settings say."""
    return EnvPool(variant, envs, first=first, seed=seed, options=choice.env.options)
