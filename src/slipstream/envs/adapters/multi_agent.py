"""Multi-agent games as rows: one row per player, active when the player may act."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows
from slipstream.envs.adapters.adapter_vector import AdapterVector
from slipstream.envs.game import EnvChoice
from slipstream.envs.python_terms import PythonTerms, make_python_terms
from slipstream.errors import EnvError
from slipstream.system.rng import env_seeds

Encoder = Callable[[Any, Array], None]
"""Writes the observation of a player into a row."""


class MultiAgentGame(Protocol):
    """One game and its players."""

    players: list[Any]
    acting: list[Any]
    """The players who may act next; empty when the game is over."""

    def reset(self, seed: int | None) -> None:
        """Start a game."""

    def step(self, actions: Mapping[Any, Any]) -> tuple[Mapping[Any, float], Mapping[Any, bool], Mapping[Any, bool]]:
        """Step with the actions of the acting players; returns rewards, terminations and truncations."""

    def observe(self, player: Any) -> tuple[Any, Any]:
        """The observation of a player and its action mask; None if all actions are allowed."""

    def info(self, player: Any) -> dict[str, Any]:
        """What a reward term of the user is told about the step, with the player as `agent`."""

    def winner(self) -> int | None:
        """The team that won, -1 for a draw, None if the game does not report a winner."""

    def close(self) -> None:
        """Close the game."""


class Decoder(Protocol):
    """Turns one player's action into what its game takes."""

    options: int
    """The number of options of the player, all parts of its actions together, if actions are masked."""

    def __call__(self, action: Array) -> list[Any]:
        """A list with one action."""


def game_outcome(returns: Array, player_teams: Sequence[int]) -> Array:
    """The outcome of each player (1 won, 0 drawn, -1 lost): the team with the highest mean return wins."""
    teams = np.array(player_teams)
    means = np.array([returns[teams == team].mean() for team in range(teams.max() + 1)])
    best = means[teams] == means.max()
    if best.all():
        return np.zeros(len(teams), np.int8)
    return np.where(best, 1, -1).astype(np.int8)


class MultiAgentEnvs(AdapterVector):
    """Games of one kind, stepped one after another; an episode is one game, for all its players."""

    def __init__(
        self,
        games: Sequence[MultiAgentGame],
        spec: EnvSpec,
        encoders: Sequence[Encoder],
        decoders: Sequence[Decoder],
        first: int,
        seed: int,
        choice: EnvChoice | None = None,
    ) -> None:
        """`choice` holds reward settings and the user's own reward terms, if there are any."""
        super().__init__(len(games), first, env_seeds(seed, first, len(games)))
        self.spec, self._terms = make_python_terms(choice, spec, len(games))
        self._waiting: list[set[Any]] = [set() for _ in games]
        """The players of each game who have acted and whose reward terms are not valued yet."""
        self._games: list[MultiAgentGame] = list(games)
        self._players = games[0].players
        self._encoders, self._decoders = encoders, decoders
        self._part_starts = np.cumsum((0, *self.spec.action.sizes[:-1]))
        """The columns of an action mask at which the parts of an action begin."""
        self._agents = {player: agent for agent, player in enumerate(self._players)}
        self._returns = np.zeros((self.envs, len(self._players)))
        self._gone: list[set[Any]] = [set() for _ in range(self.envs)]
        """The players of each game that were terminated and have not come back; they are not truncated at its end."""
        self._cut: list[set[Any]] = [set() for _ in range(self.envs)]
        """The players of each game that were truncated before its end and have not come back."""
        rows = self.envs * len(self._players)
        self._last_obs = np.zeros((rows, self.spec.obs.width), self.spec.obs.dtype)
        """The last observations of these players."""

    def close(self) -> None:
        """Close every game; may be called twice."""
        games, self._games = self._games, []
        for game in games:
            game.close()

    def _reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        for index in indices:
            self._reset_game(index, out)

    def _step(self, action: Array, out: Rows) -> None:
        for index in range(self.envs):
            self._step_game(index, action, out)
        if self._terms is not None:
            self._terms.pay(out)

    def _reset_game(self, index: int, out: Rows) -> None:
        self._current = index
        self._games[index].reset(self._seeds.next[index])
        self._seeds.begin(index)
        self._returns[index] = 0
        self._gone[index].clear()
        self._cut[index].clear()
        self._waiting[index].clear()
        self._write_acting(index, out)

    def _step_game(self, index: int, action: Array, out: Rows) -> None:
        self._current, game, low = index, self._games[index], index * len(self._players)
        rows = slice(low, low + len(self._players))
        actions = {
            player: self._decoders[agent](action[low + agent : low + agent + 1])[0]
            for player in game.acting
            for agent in (self._agents[player],)
        }
        rewards, terminations, truncations = game.step(actions)
        out.reward[rows], out.terminated[rows], out.truncated[rows], out.outcome[rows] = 0, 0, 0, 0
        for player, reward in rewards.items():
            out.reward[low + self._agents[player]] = reward
            self._returns[index, self._agents[player]] += reward
        gone, cut = self._gone[index], self._cut[index]
        gone.update(player for player, over in terminations.items() if over and player not in cut)
        gone.difference_update(game.acting)
        cut.difference_update(game.acting)
        if self._terms is not None:
            left = {player for ends in (terminations, truncations) for player, over in ends.items() if over}
            self._value_terms(self._terms, index, actions, rewards, left)
        ended = {player for player, over in truncations.items() if over} - gone - cut
        for player in ended.difference(game.acting):
            self._write_obs(game, player, low, self._last_obs)
            cut.add(player)
        if game.acting:
            self._write_acting(index, out)
            return
        out.terminated[rows], out.final_obs[rows] = 1, 0
        if any(truncations.values()):  # then a player without a flag of its own was truncated too
            for player in [one for one in self._players if one not in gone and one not in cut]:
                self._write_obs(game, player, low, self._last_obs)
                cut.add(player)
        for row in [low + self._agents[player] for player in cut]:
            out.terminated[row], out.truncated[row], out.final_obs[row] = 0, 1, self._last_obs[row]
        if self.spec.competitive:
            out.outcome[rows] = self._outcome(index)
        self._reset_game(index, out)

    def _value_terms(
        self,
        terms: PythonTerms,
        index: int,
        actions: Mapping[Any, Any],
        rewards: Mapping[Any, float],
        gone: set[Any],
    ) -> None:
        """Value the terms of the players who act again, or whose game is over; a player who waits is valued later."""
        game, low, waiting = self._games[index], index * len(self._players), self._waiting[index]
        for player, action in actions.items():
            terms.act(low + self._agents[player], action)
            waiting.add(player)
        for player, reward in rewards.items():
            terms.reward(low + self._agents[player], reward)
        for player in [one for one in self._players if one in waiting]:
            if player in game.acting or player in gone or not game.acting:
                terms.value(low + self._agents[player], game.observe(player)[0], game.info(player))
                waiting.discard(player)

    def _outcome(self, index: int) -> Array:
        """The outcome by the winner that the game reports, else by the mean returns of the teams."""
        teams, winner = np.array(self.spec.teams), self._games[index].winner()
        if winner is not None:
            return np.where(teams == winner, 1, -1).astype(np.int8) if winner >= 0 else np.zeros(len(teams), np.int8)
        return game_outcome(self._returns[index], self.spec.teams)

    def _write_acting(self, index: int, out: Rows) -> None:
        """Write the active rows of a game with their observations and action masks; inactive rows may do anything."""
        game, low = self._games[index], index * len(self._players)
        rows = slice(low, low + len(self._players))
        out.active[rows], out.mask[rows] = 0, 1
        for player in game.acting:
            agent = self._agents[player]
            out.active[low + agent] = 1
            mask = self._write_obs(game, player, low, out.obs)
            if self.spec.action.masked:
                row, options = out.mask[low + agent], self._decoders[agent].options
                row[options:] = 0
                row[:options] = 1 if mask is None else self._checked_mask(index, player, mask)
            elif mask is not None:
                raise EnvError(
                    f"`{self.spec.name}` gives an action mask to {player}{self._place(index)}, but gave none at reset.",
                    "give a mask in the infos of reset too; one of ones allows all actions",
                )

    def _checked_mask(self, index: int, player: Any, mask: Any) -> Array:
        """The action mask of a player, which must allow at least one option of every part of its actions."""
        options, name = self._decoders[self._agents[player]].options, self.spec.name
        allowed: Array = np.asarray(mask).reshape(-1) != 0
        if allowed.size != options:
            raise EnvError(
                f"The action mask of {player} in `{name}` has {allowed.size} numbers, but its actions have {options} "
                f"options{self._place(index)}.",
                "give one number for each option: 1 if it is allowed, else 0",
            )
        if not np.logical_or.reduceat(allowed, self._part_starts).all():
            raise EnvError(
                f"The mask of {player} allows no action in `{name}`{self._place(index)}.",
                "allow at least one action to every agent that is in the game, or take the agent out of `agents`",
            )
        return allowed

    def _place(self, index: int) -> str:
        """Where a game is, for messages."""
        return f" (env {self.first + index}, seed {self._seeds.named[index]}, step {self._steps})"

    def _write_obs(self, game: MultiAgentGame, player: Any, low: int, rows: Array) -> Any:
        """Write the observation of a player; returns its action mask."""
        agent = self._agents[player]
        obs, mask = game.observe(player)
        if self._terms is not None:
            self._terms.observe(low + agent, obs)
        self._encoders[agent](obs, rows[low + agent])
        return mask
