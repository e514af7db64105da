"""Layers of settings from YAML files and dotted keys, merged and validated, with the origin of every value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from slipstream.errors import ConfigError, did_you_mean
from slipstream.other_names import RENAMED, REPLACED, explain
from slipstream.settings import Settings

PRESETS = Path(__file__).parent / "presets"
Presets = str | Sequence[str] | None
"""Preset names; later presets override earlier ones."""
OPEN_KEYS = ("env.options", "policy.network_options", "rewards.weights", "rewards.groups", "schedules")
"""Settings that are dictionaries with free keys."""


@dataclass(frozen=True)
class Layer:
    """Settings from one source: values by dotted key, and the name of the source."""

    origin: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Resolved:
    """Validated settings and the origin of each value."""

    settings: Settings
    origins: dict[str, str]
    untuned: Settings | None = None
    """The settings without the tuned plan; None if there is no tuned plan."""

    def rows(self) -> list[tuple[str, Any, str]]:
        """Key, value and origin of every setting, in the order of the settings page."""
        return [(key, value, self.origins.get(key, "default")) for key, value in flatten(self.settings)]


def flatten(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the settings as (dotted key, value)."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


KEYS = tuple(key for key, _ in flatten(Settings()))


def presets() -> list[str]:
    """The names of all presets."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def preset_layer(name: str) -> Layer:
    """Read one of the presets of the package."""
    if name not in presets():
        raise ConfigError(
            f"There is no preset `{name}`.{did_you_mean(name, presets())}", f"use one of: {', '.join(presets())}"
        )
    return Layer(f"preset {name}", _read_yaml(PRESETS / f"{name}.yaml"))


def preset_layers(names: Presets) -> list[Layer]:
    """Read presets in order."""
    return [preset_layer(name) for name in preset_names(names)]


def preset_names(given: Presets) -> tuple[str, ...]:
    """The names of presets; `given` is one name, several names, or names separated by commas."""
    several = [given] if isinstance(given, str) else list(given or ())
    return tuple(name.strip() for words in several for name in words.split(",") if name.strip())


def file_layer(path: Path) -> Layer:
    """Read a YAML file of settings. In the config.yaml of a run, keys of earlier versions are renamed."""
    if not path.is_file():
        raise ConfigError(f"There is no config file `{path}`.", "give an existing YAML file to --config")
    values = _read_yaml(path)
    return Layer(path.name, _renamed(values) if (path.parent / "provenance.json").is_file() else values)


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the keys of earlier versions replaced by the new ones, in `schedules` too."""
    new = {RENAMED.get(key, key): value for key, value in values.items()}
    if isinstance(scheduled := new.get("schedules"), Mapping):
        new["schedules"] = {RENAMED.get(key, key): value for key, value in scheduled.items()}
    return new


def flag_layer(assignments: Mapping[str, Any] | list[str], origin: str = "flag") -> Layer:
    """Read `key=value` strings, or a mapping with dotted keys (`__` also separates the parts of a key)."""
    if isinstance(assignments, Mapping):
        return Layer(origin, _flatten_tree({key.replace("__", "."): value for key, value in assignments.items()}))
    values: dict[str, Any] = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"`{word}` is not of the form key=value.", "for example: --set ppo.learning_rate=1e-3")
        try:
            values.update(_flatten_tree({key.strip(): yaml.safe_load(text)}))
        except yaml.YAMLError as error:
            raise ConfigError(f"The value of `{key}` cannot be read: {text!r}.", "quote it as YAML") from error
    return Layer(origin, values)


def resolve(*layers: Layer) -> Resolved:
    """Merge the layers over the defaults, later layers override earlier ones, and validate every key and value."""
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            known = _known(key, value, layer.origin)
            origins[known] = layer.origin
            if known in OPEN_KEYS and key != known:
                merged[known] = {**merged.get(known, {}), key[len(known) + 1 :]: value}
            elif known in OPEN_KEYS:
                if value is not None and not isinstance(value, Mapping):
                    raise ConfigError(
                        f"Setting `{known}`{_where(layer.origin)} cannot be {value!r}: it holds values by name.",
                        f"write --set {known}.NAME=VALUE",
                    )
                merged[known] = {**merged.get(known, {}), **(value or {})}
            else:
                merged[key] = value
    try:
        return Resolved(Settings.model_validate(_nest(merged)), origins)
    except ValidationError as error:
        raise _config_error(error, origins) from error


def dump(resolved: Resolved, env: str) -> str:
    """Return the text of config.yaml: every value with its origin as a comment; `file_layer` reads it."""
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
        hint = "fix the file; it may hold names, numbers and lists only"
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


def _known(key: str, value: Any, origin: str) -> str:
    """The setting that a key belongs to: the key itself, or the dictionary that holds it."""
    _check_not_renamed(key, value, origin)
    if key in KEYS:
        if key == "schedules" and isinstance(value, Mapping):
            for name, text in value.items():
                _check_not_renamed(f"schedules.{name}", text, origin)
        return key
    for open_key in OPEN_KEYS:
        if key.startswith(f"{open_key}."):
            return open_key
    where, hint = _where(origin), "`slipstream train ENV --show` lists all settings"
    if (explained := explain(key)) is not None:
        sentence, example = explained
        raise ConfigError(f"Unknown setting `{key}`{where}. {sentence}", example or hint)
    raise ConfigError(f"Unknown setting `{key}`{where}.{did_you_mean(key, KEYS)}", hint)


def _check_not_renamed(key: str, value: Any, origin: str) -> None:
    prefix = "schedules." if key.startswith("schedules.") else ""
    old = key.removeprefix(prefix)
    if old in RENAMED:
        new = prefix + RENAMED[old]
        assigned = f"{new}={value}" if not prefix else f'{new}="{value}"'
        raise ConfigError(f"Setting `{key}`{_where(origin)} is now `{new}`.", f"write {assigned}")
    if old in REPLACED:
        assigned = REPLACED[old].format(value=value)
        raise ConfigError(f"Setting `{key}`{_where(origin)} is now `schedules.ppo.learning_rate`.", f"write {assigned}")


def _where(origin: str) -> str:
    return "" if origin == "flag" else f" ({origin})"


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
    where = _where(origins.get(known, "default"))
    near = ""
    if first["type"] == "literal_error":
        near = did_you_mean(str(first["input"]), re.findall(r"'([^']*)'", first["ctx"]["expected"]))
    return ConfigError(
        f"Setting `{known}`{where} cannot be {first['input']!r}: {first['msg'].lower()}.{near}",
        "`slipstream train ENV --show` lists all settings with their values",
    )
