"""Checks of game settings: choices, ranges and option names, with the nearest known name in the error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from slipstream.errors import ConfigError, did_you_mean


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raise a ConfigError for a value that is not one of the known ones."""
    if value not in known:
        near = did_you_mean(value, known)
        raise ConfigError(f"`{name}` = `{value}` is unknown.{near}", hint=f"one of {', '.join(known)}.")


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise a ConfigError for a number out of range."""
    if not low <= value <= high:
        span = f"from {low} to {high}" if high < math.inf else f"at least {low}"
        raise ConfigError(f"`{name}` = {value} is out of range.", hint=f"give a number {span}.")


def check_game(envs: int, match_seconds: float, action_repeat: int, random_starts: float) -> None:
    """Check the settings that all built-in games have in common."""
    check_range("plan.envs", envs, 1)
    check_range("env.match_seconds", match_seconds, 0.1, 3600)
    check_range("env.action_repeat", action_repeat, 1, 60)
    check_range("env.random_starts", random_starts, 0, 1)


def check_options(game: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise a ConfigError for names in `env.options` that the game does not have."""
    for name in given:
        if name not in known:
            near = did_you_mean(name, known).replace("`", "`env.options.", 1)
            raise ConfigError(f"Unknown setting `env.options.{name}`.{near}", f"{game} has {', '.join(known)}")
