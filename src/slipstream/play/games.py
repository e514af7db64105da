"""Games of one agent against an opponent: pairs with the sides swapped, and their summary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slipstream.confidence import mean_interval, wilson
from slipstream.contracts import Agent, EnvSpec
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError
from slipstream.play.engine import GameResult, ScheduledGame, play_scheduled
from slipstream.vector.make import make_vector


def paired_games(one: str, other: str, games: int, seed: int, task: str = "") -> list[ScheduledGame]:
    """Games in pairs: games 2k and 2k + 1 have the same start with the sides swapped."""
    sides = ((one, other), (other, one))
    return [ScheduledGame(sides[game % 2], game_seed(seed, game // 2), task) for game in range(games)]


def rotated_games(one: str, other: str, games: int, seed: int, sides: int) -> list[ScheduledGame]:
    """Games of three or more sides, as many from each start as there are sides.

    In these `one` plays each side once, and `other` plays all the remaining sides.
    """
    turns = [divmod(game, sides) for game in range(games)]
    return [ScheduledGame((one, other), game_seed(seed, start), first=first) for start, first in turns]


def game_seed(seed: int, number: int) -> int:
    """The seed of game `number` of a schedule."""
    first, second = np.random.SeedSequence([seed, 0x9A3E, number]).generate_state(2, np.uint32).tolist()
    return int(first) << 16 | int(second) & 0xFFFF


@dataclass
class GameSummary:
    """The results of a number of games, from the view of one agent."""

    competitive: bool
    outcomes: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """One entry per game, in the order of the schedule."""
    behaviour: list[dict[str, float]] = field(default_factory=list)
    opponent_behaviour: list[dict[str, float]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Counts, rates and means with 95 % intervals; a game of one side has no wins and losses."""
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
        result |= {"mean_length": float(np.mean(self.lengths))}
        return result | {"behaviour": _means(self.behaviour), "opponent_behaviour": _means(self.opponent_behaviour)}

    def extend(self, other: GameSummary) -> None:
        """Add the games of another summary."""
        for name in ("outcomes", "returns", "lengths", "behaviour", "opponent_behaviour"):
            getattr(self, name).extend(getattr(other, name))

    def add(self, result: GameResult, agent: str) -> None:
        """Add a game of the agent with this name."""
        side = result.game.players.index(agent)
        self.outcomes.append(result.outcome if side == 0 else -result.outcome)
        self.returns.append(result.returns[side])
        self.lengths.append(result.length)
        self.behaviour.append(result.behaviour[side])
        if len(result.behaviour) > 1:
            self.opponent_behaviour.append(result.behaviour[1 - side])


def _means(behaviour: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """The mean of each behaviour over games with its 95 % interval."""
    names = behaviour[0] if behaviour else {}
    return {name: list(mean_interval([one[name] for one in behaviour])) for name in names}


def one_sided_error(spec: EnvSpec) -> ConfigError:
    """The error for an opponent in a game of one side."""
    return ConfigError(f"`{spec.name}` has one side and takes no opponent.", "leave --opponent out")


def play(
    choice: EnvChoice,
    make_agent: Callable[..., Agent],
    make_opponent: Callable[..., Agent] | None,
    games: int,
    *,
    seed: int,
    envs: int = 128,
    keep: list[GameResult] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> GameSummary:
    """Play exactly `games` games in pairs with the same start and swapped sides.

    In games of three or more sides the agent plays each side in turn, and the opponent plays all others.
    The results, with actions, are appended to `keep` if it is given.
    """
    with contextlib.closing(make_vector(choice, 1)) as vector:
        spec = vector.spec
    sides = len(set(spec.teams))
    if spec.competitive and make_opponent is None:
        count = "two" if sides == 2 else sides
        raise ConfigError(f"`{spec.name}` has {count} sides: it needs an opponent.", "add --opponent AGENT")
    if make_opponent is not None and not spec.competitive:
        raise one_sided_error(spec)

    def load(name: str, spec: EnvSpec, choice: EnvChoice) -> Agent:
        make = make_agent if name == "agent" else make_opponent
        assert make is not None
        return make(spec, choice)

    schedule = paired_games("agent", "opponent", games, seed)
    if sides > 2:
        schedule = rotated_games("agent", "opponent", games, seed, sides)
    if not spec.competitive:
        schedule = [ScheduledGame(("agent",), game_seed(seed, game)) for game in range(games)]
    results = play_scheduled(
        choice, load, schedule, envs=envs, keep_actions=keep is not None, tolerant=False, on_progress=on_progress
    )
    summary = GameSummary(spec.competitive)
    for result in results:
        summary.add(result, "agent")
    if keep is not None:
        keep += results
    return summary
