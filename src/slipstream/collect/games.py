"""Games, really played: the one place where agents meet, for evaluation in training and out of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slipstream.collect.rollout import learning_rows
from slipstream.collect.vectors import make_vector
from slipstream.core.contracts import Agent, Array, EnvSpec, Vector, empty_rows
from slipstream.core.errors import ConfigError
from slipstream.core.stats import mean_interval, wilson
from slipstream.core.streams import make_streams
from slipstream.envs.registry import EnvChoice


@dataclass
class Games:
    """The results of a number of games, from the first agent's side."""

    competitive: bool
    outcomes: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """One of each per game, by game and env, so that the same seed gives the same places to the same starts."""

    def summary(self) -> dict[str, Any]:
        """Counts, rates and means with their 95 % intervals; games without sides are not won or lost."""
        games = len(self.returns)
        mean, low, high = mean_interval(self.returns)
        result: dict[str, Any] = {"games": games}
        if self.competitive:
            wins, draws = self.outcomes.count(1), self.outcomes.count(0)
            points = wins + draws / 2
            win_low, win_high = wilson(wins, games)
            score_low, score_high = wilson(points, games)
            result |= {"wins": wins, "draws": draws, "losses": games - wins - draws}
            result |= {"win_rate": wins / games, "win_rate_low": win_low, "win_rate_high": win_high}
            result |= {"score": points / games, "score_low": score_low, "score_high": score_high}
        else:
            names = ("wins", "draws", "losses", "win_rate", "win_rate_low", "win_rate_high")
            result |= dict.fromkeys((*names, "score", "score_low", "score_high"))
        result |= {"mean_return": mean, "mean_return_low": low, "mean_return_high": high}
        return result | {"mean_length": float(np.mean(self.lengths))}


def nobody_to_play(spec: EnvSpec) -> ConfigError:
    """What an opponent in a game of one side is answered."""
    return ConfigError(f"`{spec.name}` has one side: there is nobody to play against.", "leave --opponent out")


def play(
    choice: EnvChoice, make_agent: Callable[..., Agent], make_opponent: Callable[..., Agent] | None, games: int, *,
    seed: int, envs: int = 128, on_progress: Callable[[int], None] | None = None,
) -> Games:  # fmt: skip
    """Play exactly `games` games; in games of two sides, sides alternate and both play from the start position.

    Each env plays a fixed share of the games to their end, so that short games are not favoured.
    """
    choice = replace(choice, env=choice.env.model_copy(update={"random_starts": 0.0}))
    envs = min(envs, games)
    with contextlib.closing(make_vector(choice, envs, seed=seed)) as vector:
        return _play_all(vector, choice, make_agent, make_opponent, games, seed, on_progress)


def _play_all(
    vector: Vector, choice: EnvChoice, make_agent: Callable[..., Agent], make_opponent: Callable[..., Agent] | None,
    games: int, seed: int, on_progress: Callable[[int], None] | None,
) -> Games:  # fmt: skip
    spec, envs = vector.spec, vector.envs
    if spec.competitive and make_opponent is None:
        raise ConfigError(f"`{spec.name}` has two sides: it needs an opponent.", "add --opponent AGENT")
    if make_opponent is not None and not spec.competitive:
        raise nobody_to_play(spec)
    agent = make_agent(spec, choice)
    opponent = make_opponent(spec, choice) if make_opponent is not None else None
    learning = learning_rows(spec.teams, envs, opponent is not None)
    sides = [(agent, np.flatnonzero(learning), make_streams(seed, "agent", 0, int(learning.sum())))]
    if opponent is not None:
        sides.append((opponent, np.flatnonzero(~learning), make_streams(seed, "opponent", 0, int((~learning).sum()))))
    rows, action = empty_rows(spec, envs), np.zeros((envs * spec.agents, spec.action.parts), spec.action.dtype)
    buffers = [np.zeros((len(index), spec.action.parts), spec.action.dtype) for _, index, _ in sides]
    left = np.array([games // envs + (i < games % envs) for i in range(envs)])
    places: list[tuple[int, int]] = []
    result, tally = Games(spec.competitive), _Tally(spec.agents, learning, envs)
    vector.reset(rows)
    for player, _, _ in sides:
        player.begin()
    while left.any():
        for (player, index, streams), chosen in zip(sides, buffers, strict=True):
            player.act_into(rows.obs[index], rows.mask[index], streams, chosen)
            action[index] = chosen
        vector.step(action, rows)
        ended = (rows.terminated | rows.truncated) > 0
        for player, index, _ in sides:
            player.begin(np.flatnonzero(ended[index]))
        for env in tally.add(rows):
            if left[env]:
                left[env] -= 1
                places.append((-int(left[env]), env))
                tally.finish(env, rows.outcome, result)
            tally.clear(env)
        if on_progress is not None:
            on_progress(len(result.returns))
    order = sorted(range(games), key=places.__getitem__)
    for name in ("outcomes", "returns", "lengths"):
        setattr(result, name, [getattr(result, name)[i] for i in order])
    return result


class _Tally:
    """Returns and lengths of the games in play, averaged over the first agent's rows of each env."""

    def __init__(self, agents: int, learning: Array, envs: int) -> None:
        self._rows = learning.reshape(envs, agents)
        self._share = self._rows / self._rows.sum(axis=1, keepdims=True)
        self._returns = np.zeros(envs)
        self._lengths = np.zeros(envs, np.int64)

    def add(self, rows: Any) -> list[int]:
        """Count a step; return the envs whose game ended."""
        self._returns += (rows.reward.reshape(self._rows.shape) * self._share).sum(axis=1)
        self._lengths += 1
        ended = (rows.terminated | rows.truncated).reshape(self._rows.shape).any(axis=1)
        return np.flatnonzero(ended).tolist()

    def finish(self, env: int, outcome: Array, result: Games) -> None:
        """Take the game of an env into the result."""
        result.outcomes.append(int(outcome.reshape(self._rows.shape)[env][self._rows[env]][0]))
        result.returns.append(float(self._returns[env]))
        result.lengths.append(int(self._lengths[env]))

    def clear(self, env: int) -> None:
        """Begin the next game of an env."""
        self._returns[env] = 0.0
        self._lengths[env] = 0
