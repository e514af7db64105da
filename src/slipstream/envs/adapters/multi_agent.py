"""Games of several players as rows, whoever made them: who may act, what they see, what they earned, who won."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.snapshot import NoSnapshot
from slipstream.errors import guarded
from slipstream.system.rng import Seeds, env_seeds

Encoder = Callable[[Any, Array], None]
"""Writes what a player sees into a row."""


class Table(Protocol):
    """One game and its players."""

    players: list[Any]
    acting: list[Any]
    """Those who may act next; nobody when the game is over."""

    def reset(self, seed: int | None) -> None:
        """Begin a game."""

    def step(self, chosen: Mapping[Any, Any]) -> tuple[Mapping[Any, float], Mapping[Any, bool], Mapping[Any, bool]]:
        """Take the acts of those who may; rewards, and who has ended how."""

    def look(self, player: Any) -> tuple[Any, Any]:
        """What a player sees and may do; None: anything."""

    def winner(self) -> int | None:
        """The side that won, -1 for a draw, None where the game does not tell."""

    def close(self) -> None:
        """Close the game."""


class Decoder(Protocol):
    """Turns one player's action into what its game takes."""

    options: int
    """Choices that the player has, where they are masked."""

    def __call__(self, action: Array) -> list[Any]:
        """A list of one."""


def game_outcome(earned: Array, sides: Sequence[int]) -> Array:
    """Who won, by what each player earned in a game: the team that earned more on average."""
    teams = np.array(sides)
    means = np.array([earned[teams == team].mean() for team in range(teams.max() + 1)])
    best = means[teams] == means.max()
    if best.all():
        return np.zeros(len(teams), np.int8)
    return np.where(best, 1, -1).astype(np.int8)


class MultiAgentEnvs(NoSnapshot):
    """Games of one kind, stepped one after another; an episode is a game, for all its players."""

    def __init__(
        self, tables: Sequence[Table], spec: EnvSpec, encoders: Sequence[Encoder], decoders: Sequence[Decoder],
        first: int, seed: int,
    ) -> None:  # fmt: skip
        self.envs, self.first, self.spec = len(tables), first, spec
        self._tables: list[Table] = list(tables)
        self._players = tables[0].players
        self._encoders, self._decoders = encoders, decoders
        self._agents = {player: agent for agent, player in enumerate(self._players)}
        self._seeds = Seeds(env_seeds(seed, first, self.envs))
        self._earned = np.zeros((self.envs, len(self._players)))
        self._steps = self._at = 0

    def reset(self, out: Rows) -> None:
        """Start every game anew, seeded the first time."""
        self.reset_envs(range(self.envs), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the named games anew, each from its seed where there is one."""
        self._seeds.give(indices, seeds)
        self._guard(self._begin_all, indices, out)

    def seeds(self) -> Array:
        """The seed of each game that was begun by one, else -1."""
        return self._seeds.begun.copy()

    def step(self, action: Array, out: Rows) -> None:
        """Let those whose turn it is act in every game."""
        self._steps += 1
        self._guard(self._step_all, action, out)

    def close(self) -> None:
        """Close every game; may be called twice."""
        tables, self._tables = self._tables, []
        for table in tables:
            table.close()

    def _begin_all(self, indices: Sequence[int], out: Rows) -> None:
        for index in indices:
            self._begin(index, out)

    def _step_all(self, action: Array, out: Rows) -> None:
        for index in range(self.envs):
            self._step(index, action, out)

    def _begin(self, index: int, out: Rows) -> None:
        self._at = index
        self._tables[index].reset(self._seeds.next[index])
        self._seeds.begin(index)
        self._earned[index] = 0
        self._show(index, out)

    def _step(self, index: int, action: Array, out: Rows) -> None:
        self._at, table, low = index, self._tables[index], index * len(self._players)
        own = slice(low, low + len(self._players))
        chosen = {
            player: self._decoders[agent](action[low + agent : low + agent + 1])[0]
            for player in table.acting
            for agent in (self._agents[player],)
        }
        rewards, over, cut = table.step(chosen)
        out.reward[own], out.terminated[own], out.truncated[own], out.outcome[own] = 0, 0, 0, 0
        for player, paid in rewards.items():
            out.reward[low + self._agents[player]] = paid
            self._earned[index, self._agents[player]] += paid
        if table.acting:
            self._show(index, out)
            return
        truncated = any(cut.values()) and not any(over.values())
        out.truncated[own], out.terminated[own] = truncated, not truncated
        if truncated:
            for player in self._players:
                self._write(table, player, low, out.final_obs)
        else:
            out.final_obs[own] = 0
        if self.spec.competitive:
            out.outcome[own] = self._outcome(index)
        self._begin(index, out)

    def _outcome(self, index: int) -> Array:
        """Who won: the side that the game names, else the one that earned more on average."""
        teams, winner = np.array(self.spec.teams), self._tables[index].winner()
        if winner is not None:
            return np.where(teams == winner, 1, -1).astype(np.int8) if winner >= 0 else np.zeros(len(teams), np.int8)
        return game_outcome(self._earned[index], self.spec.teams)

    def _show(self, index: int, out: Rows) -> None:
        """Who acts next, and on what."""
        table, low = self._tables[index], index * len(self._players)
        out.active[low : low + len(self._players)] = 0
        for player in table.acting:
            out.active[low + self._agents[player]] = 1
            mask = self._write(table, player, low, out.obs)
            if self.spec.action.masked:
                row = out.mask[low + self._agents[player]]
                row[:] = 0
                size = self._decoders[self._agents[player]].options
                row[:size] = 1 if mask is None else mask

    def _write(self, table: Table, player: str, low: int, rows: Array) -> Any:
        agent = self._agents[player]
        seen, mask = table.look(player)
        self._encoders[agent](seen, rows[low + agent])
        return mask

    def _guard(self, work: Callable[..., None], *args: Any) -> None:
        guarded(work, args, lambda: (self.first + self._at, self._seeds.named[self._at], self._steps))
