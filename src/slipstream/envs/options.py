"""What a game may be told: choices and options by name, with a word about what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slipstream.core.errors import ConfigError, did_you_mean


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a setting that is none of those known."""
    if value not in known:
        near = did_you_mean(value, known)
        raise ConfigError(f"`{name}` = `{value}` is unknown.{near}", hint=f"one of {', '.join(known)}.")


def check_options(game: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse names in `env.options` that a game has not."""
    for name in given:
        if name not in known:
            near = did_you_mean(name, known).replace("`", "`env.options.", 1)
            raise ConfigError(f"Unknown setting `env.options.{name}`.{near}", f"{game} has {', '.join(known)}")
