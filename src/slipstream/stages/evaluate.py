"""Evaluate an agent: games really played, counted, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slipstream.agents.specs import load_agent
from slipstream.confidence import mean_interval
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import ConfigError
from slipstream.play.games import GameSummary, play


def evaluate(
    choice: EnvChoice, agent: str, opponents: Sequence[str], games: int, *, seed: int = 0, sampled: bool = False,
    envs: int = 128, on_progress: Callable[[int, int], None] | None = None, beside: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Play `games` games of `agent` against each opponent, greedy unless `sampled`, and sum them up.

    Where there is one side, `beside` plays the same starts, and what lies between the two is told game by game.
    """
    if games < 1:
        raise ConfigError(f"{games} games cannot be played.", "give --games a positive number")
    game, _ = parse(choice.name)
    if beside and (opponents or (game is not None and game.opponents)):
        raise ConfigError(
            f"`{choice.name}` has two sides: agents are compared by playing, not beside each other.",
            f"let it be the opponent: --opponent {beside}",
        )

    def seat(text: str) -> Callable[..., Any]:
        return lambda spec, where: load_agent(text, spec, where, sampled)

    rounds: list[str | None] = list(opponents) or [None]
    turns = len(rounds) + bool(beside)
    whole, each = GameSummary(competitive=bool(opponents)), {}
    for number, opponent in enumerate(rounds):

        def tell(done: int, before: int = number * games) -> None:
            if on_progress is not None:
                on_progress(before + done, games * turns)

        versus = seat(opponent) if opponent else None
        result = play(choice, seat(agent), versus, games, seed=seed, envs=envs, on_progress=tell)
        whole.extend(result)
        if opponent:
            each[opponent] = result.summary()
    facts = {"agent": agent, "env": choice.name, "seed": seed, "sampled": sampled}
    facts |= whole.summary() | {"opponents": each}
    if beside:

        def tell_on(done: int) -> None:
            if on_progress is not None:
                on_progress(games + done, games * turns)

        other = play(choice, seat(beside), None, games, seed=seed, envs=envs, on_progress=tell_on)
        facts["beside"] = {"agent": beside} | other.summary() | _between(whole, other)
    return facts


def _between(one: GameSummary, other: GameSummary) -> dict[str, Any]:
    """Mean differences of return and length over the same starts, with 95 % intervals."""
    found: dict[str, Any] = {}
    for name, ours, theirs in (("return", one.returns, other.returns), ("length", one.lengths, other.lengths)):
        gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
        mean, low, high = mean_interval(gaps)
        found |= {f"{name}_gain": mean, f"{name}_gain_low": low, f"{name}_gain_high": high}
    return found
