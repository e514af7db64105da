"""The options that the built-in games share, and checks of settings with the nearest known name in the error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.errors import ConfigError, did_you_mean
from slipstream.settings import RewardSettings


@dataclass(frozen=True, kw_only=True)
class GameOptions:
    """The keyword arguments that the vectors of all built-in games take; a game may have other defaults."""

    seed: int = 0
    first: int = 0
    """Global index of the first env."""
    match_seconds: float = 60.0
    """Length of a match, or the time limit of a lap."""
    action_repeat: int = 4
    actions: str = "discrete"
    random_starts: float = 0.0
    """Probability that an episode begins in a random state."""
    target: Sequence[str] = ()
    """Names of the tasks that are trained without a curriculum."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The game's own options, `env.options`."""
    rewards: RewardSettings | None = None
    gamma: float = 0.99
    extra_terms: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """The user's reward terms by name."""

    def check(self, envs: int, actions: Sequence[str]) -> None:
        """Raise a ConfigError for a number out of range or an unknown kind of action."""
        check_range("plan.envs", envs, 1)
        check_range("env.match_seconds", self.match_seconds, 0.1, 3600)
        check_range("env.action_repeat", self.action_repeat, 1, 60)
        check_range("env.random_starts", self.random_starts, 0, 1)
        check_choice("env.actions", self.actions, actions)


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


def check_options(game: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise a ConfigError for names in `env.options` that the game does not have."""
    for name in given:
        if name not in known:
            near = did_you_mean(name, known).replace("`", "`env.options.", 1)
            raise ConfigError(f"Unknown setting `env.options.{name}`.{near}", f"{game} has {', '.join(known)}")
