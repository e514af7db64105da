"""YAML files and dotted overrides turned into settings, with the origin of every value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from slipstream.errors import ConfigError, did_you_mean
from slipstream.settings import Settings

PRESETS = Path(__file__).parent / "presets"
Presets = str | Sequence[str] | None
"""Presets by name, later ones on top."""
OPEN_KEYS = ("env.options", "rewards.weights", "rewards.groups", "schedules")
"""Settings that hold names of the env's own choosing."""


@dataclass(frozen=True)
class Layer:
    """Settings from one place: dotted keys and the words that name the place."""

    origin: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Resolved:
    """Settings, and where each value came from."""

    settings: Settings
    origins: dict[str, str]
    untuned: Settings | None = None
    """The settings without the tuned plan, where there is one."""

    def rows(self) -> list[tuple[str, Any, str]]:
        """Key, value and origin of every setting, in the order of the settings page."""
        return [(key, value, self.origins.get(key, "default")) for key, value in flatten(self.settings)]


def flatten(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Walk the settings as (dotted key, value)."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


KEYS = tuple(key for key, _ in flatten(Settings()))


def presets() -> list[str]:
    """Names that `--preset` takes."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def preset_layer(name: str) -> Layer:
    """Read a preset that ships with the package."""
    if name not in presets():
        raise ConfigError(
            f"There is no preset `{name}`.{did_you_mean(name, presets())}", f"use one of: {', '.join(presets())}"
        )
    return Layer(f"preset {name}", _read_yaml(PRESETS / f"{name}.yaml"))


def preset_layers(names: Presets) -> list[Layer]:
    """Read presets to be laid over each other: a name, several, or several with commas between them."""
    given = [names] if isinstance(names, str) else list(names or ())
    return [preset_layer(name.strip()) for words in given for name in words.split(",") if name.strip()]


def file_layer(path: Path) -> Layer:
    """Read a user's YAML file, or the config.yaml of a run."""
    if not path.is_file():
        raise ConfigError(f"There is no config file `{path}`.", "give an existing YAML file to --config")
    return Layer(path.name, _read_yaml(path))


def flag_layer(assignments: Mapping[str, Any] | list[str], origin: str = "flag") -> Layer:
    """Read `key=value` words, or a mapping of dotted (or `__`) keys."""
    if isinstance(assignments, Mapping):
        return Layer(origin, _flatten_tree({key.replace("__", "."): value for key, value in assignments.items()}))
    values: dict[str, Any] = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"`{word}` is not of the form key=value.", "for instance --set ppo.learning_rate=1e-3")
        try:
            values.update(_flatten_tree({key.strip(): yaml.safe_load(text)}))
        except yaml.YAMLError as error:
            raise ConfigError(f"The value of `{key}` cannot be read: {text!r}.", "quote it as YAML") from error
    return Layer(origin, values)


def resolve(*layers: Layer) -> Resolved:
    """Lay the layers over the defaults, later ones on top, and check every key and value."""
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            known = _known(key, layer.origin)
            origins[known] = layer.origin
            if known in OPEN_KEYS and key != known:
                merged[known] = {**merged.get(known, {}), key[len(known) + 1 :]: value}
            elif known in OPEN_KEYS:
                merged[known] = {**merged.get(known, {}), **(value or {})}
            else:
                merged[key] = value
    try:
        return Resolved(Settings.model_validate(_nest(merged)), origins)
    except ValidationError as error:
        raise _config_error(error, origins) from error


def dump(resolved: Resolved, env: str) -> str:
    """Write config.yaml: every value, and its origin as a comment; it can be read back by `file_layer`."""
    lines = [f"# slipstream train {env}"]
    section = ""
    for key, value, origin in resolved.rows():
        head, _, name = key.rpartition(".")
        if head != section:
            section = head
            if head:
                lines.append(f"{head}:")
        text = yaml.safe_dump({name: _plain(value)}, default_flow_style=True, width=10_000).strip()[1:-1]
        lines.append(f"{'  ' if head else ''}{text}  # {origin}")
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        hint = "mend the file; it holds names and numbers"
        raise ConfigError(f"`{path}` is not valid YAML: {error}", hint) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"`{path}` must hold settings by name, not a {type(tree).__name__}.", "see docs/reference/settings.md"
        )
    return _flatten_tree(tree)


def _flatten_tree(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and dotted not in OPEN_KEYS:
            flat.update(_flatten_tree(value, f"{dotted}."))
        else:
            flat[dotted] = value
    return flat


def _known(key: str, origin: str) -> str:
    if key in KEYS:
        return key
    for open_key in OPEN_KEYS:
        if key.startswith(f"{open_key}."):
            return open_key
    where = "" if origin == "flag" else f" ({origin})"
    raise ConfigError(
        f"Unknown setting `{key}`{where}.{did_you_mean(key, KEYS)}", "`slipstream train ENV --show` lists all settings"
    )


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        head, _, name = key.rpartition(".")
        if head:
            tree.setdefault(head, {})[name] = value
        else:
            tree[name] = value
    return tree


def _config_error(error: ValidationError, origins: Mapping[str, str]) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    known = next((k for k in KEYS if f"{key}.".startswith(f"{k}.")), key)
    origin = origins.get(known, "default")
    where = "" if origin == "flag" else f" ({origin})"
    return ConfigError(
        f"Setting `{known}`{where} cannot be {first['input']!r}: {first['msg'].lower()}.",
        "`slipstream train ENV --show` lists all settings with their values",
    )
