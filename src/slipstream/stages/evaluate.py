"""Evaluate an agent: games really played, counted, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slipstream.agents.specs import load_agent
from slipstream.collect.games import Games, play
from slipstream.core.errors import ConfigError
from slipstream.envs.registry import EnvChoice


def evaluate(
    choice: EnvChoice, agent: str, opponents: Sequence[str], games: int, *, seed: int = 0, sampled: bool = False,
    envs: int = 128, on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Play `games` games of `agent` against each opponent, greedy unless `sampled`, and sum them up."""
    if games < 1:
        raise ConfigError(f"{games} games cannot be played.", "give --games a positive number")

    def seat(text: str) -> Callable[..., Any]:
        return lambda spec, where: load_agent(text, spec, where, sampled)

    rounds: list[str | None] = list(opponents) or [None]
    whole, each = Games(competitive=bool(opponents)), {}
    for number, opponent in enumerate(rounds):

        def tell(done: int, before: int = number * games) -> None:
            if on_progress is not None:
                on_progress(before + done, games * len(rounds))

        versus = seat(opponent) if opponent else None
        result = play(choice, seat(agent), versus, games, seed=seed, envs=envs, on_progress=tell)
        whole.outcomes += result.outcomes
        whole.returns += result.returns
        whole.lengths += result.lengths
        if opponent:
            each[opponent] = result.summary()
    facts = {"agent": agent, "env": choice.name, "seed": seed, "sampled": sampled}
    return facts | whole.summary() | {"opponents": each}
