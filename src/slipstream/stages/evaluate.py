"""Evaluate an agent: play games, and summarise them with confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from slipstream.agents.specs import load_agent
from slipstream.confidence import mean_interval
from slipstream.contracts import Agent, EnvSpec
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import ConfigError
from slipstream.play.games import GameSummary, play


def evaluate(
    choice: EnvChoice,
    agent: str,
    opponents: Sequence[str],
    games: int,
    *,
    seed: int = 0,
    sampled: bool = False,
    envs: int = 128,
    on_progress: Callable[[int, int], None] | None = None,
    beside: str | None = None,
) -> dict[str, Any]:
    """Play `games` games of `agent` against each opponent, greedy unless `sampled`, and summarise them.

    In a game of one side, `beside` is a second agent that plays the same starts; the difference of the two agents is
    computed game by game.
    """
    if games < 1:
        raise ConfigError(f"{games} games cannot be played.", "give --games a positive number")
    game, _ = parse(choice.name)
    if beside and (opponents or (game is not None and game.opponents)):
        raise ConfigError(
            f"`{choice.name}` has two sides: compare agents by playing them against each other, not with --beside.",
            f"make it the opponent: --opponent {beside}",
        )
    rounds = len(opponents or [None]) + bool(beside)

    def loader(text: str) -> Callable[[EnvSpec, EnvChoice], Agent]:
        return lambda spec, choice: load_agent(text, spec, choice, sampled)

    def report(number: int, done: int) -> None:
        if on_progress is not None:
            on_progress(number * games + done, rounds * games)

    def play_round(number: int, name: str, opponent: str | None) -> GameSummary:
        other = loader(opponent) if opponent else None
        progress = partial(report, number)
        return play(choice, loader(name), other, games, seed=seed, envs=envs, on_progress=progress)

    whole, each = GameSummary(competitive=bool(opponents)), {}
    for number, opponent in enumerate(opponents or [None]):
        result = play_round(number, agent, opponent)
        whole.extend(result)
        if opponent:
            each[opponent] = result.summary()
    facts = {"agent": agent, "env": choice.name, "seed": seed, "sampled": sampled}
    facts |= whole.summary() | {"opponents": each}
    if beside:
        other = play_round(1, beside, None)
        facts["beside"] = {"agent": beside} | other.summary() | _differences(whole, other)
    return facts


def _differences(one: GameSummary, other: GameSummary) -> dict[str, Any]:
    """Mean differences of return and length over the same starts, with 95 % intervals."""
    found: dict[str, Any] = {}
    for name, ours, theirs in (("return", one.returns, other.returns), ("length", one.lengths, other.lengths)):
        mean, low, high = mean_interval([a - b for a, b in zip(ours, theirs, strict=True)])
        found |= {f"{name}_gain": mean, f"{name}_gain_low": low, f"{name}_gain_high": high}
    return found
