"""The command that a diagnosis suggests, with everything that was given to the command before."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

OWN_FLAGS = ("opponent", "seed")
"""Settings that have a flag of their own."""


@dataclass(frozen=True)
class Given:
    """What the user gave to a command, so that the next one works too."""

    presets: tuple[str, ...] = ()
    config: str = ""
    """A YAML file of settings."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key."""
    tuned: bool = True
    flags: str = ""
    """The flags that give the user's code, each after a space (see `EnvChoice.flags`)."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """The user's code as arguments of a Python function, as source text."""
    python_only: bool = False
    """Whether a Python object was given, which no flag can name."""


def next_command(verb: str, env: str, given: Given, settings: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """A command with `settings` on top of those that were given; a Python call if it needs Python objects.

    `settings` are YAML texts by dotted key, `options` further flags of the verb.
    """
    kept = {key: value for key, value in given.settings.items() if key not in settings}
    head, _, made = env.partition(":")
    if head == "python" or given.python_only:
        called = made.rpartition("/")[2] if head == "python" else repr(env)
        return f"slipstream.{verb}({', '.join([called, *_arguments(given, kept, settings, options)])})"
    words = ["slipstream", verb, env]
    for preset in given.presets:
        words += ["--preset", preset]
    words += ["--config", given.config] if given.config else []
    for key, value in kept.items():
        own = key in OWN_FLAGS and value is not None
        words += [f"--{key}", str(value)] if own else ["--set", f"{key}={_yaml_text(value)}"]
    for key, text in settings.items():
        words += ["--set", f"{key}={text}"]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    words += [] if given.tuned else ["--no-tuned"]
    return shlex.join(words) + given.flags


def _arguments(
    given: Given, kept: Mapping[str, Any], settings: Mapping[str, str], options: Mapping[str, Any]
) -> Sequence[str]:
    """The arguments of a Python call."""
    values: dict[str, Any] = {}
    if given.presets:
        values["preset"] = given.presets[0] if len(given.presets) == 1 else list(given.presets)
    if given.config:
        values["config"] = given.config
    values |= {key.replace(".", "__"): value for key, value in kept.items()}
    values |= {key.replace(".", "__"): yaml.safe_load(text) for key, text in settings.items()}
    values |= options if given.tuned else {**options, "tuned": False}
    return [f"{name}={_source(value)}" for name, value in values.items()] + [
        f"{name}={text}" for name, text in given.arguments.items()
    ]


def _source(value: Any) -> str:
    """A value as Python source; an agent `python:NAME` is the object NAME."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_source(one) for one in value)}]"
    return value.removeprefix("python:") if isinstance(value, str) and value.startswith("python:") else repr(value)


def _yaml_text(value: Any) -> str:
    """A value as YAML that `--set` reads."""
    plain = isinstance(value, str) and yaml.safe_load(value) == value
    return str(value) if plain else json.dumps(value, default=str)
