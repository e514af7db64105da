"""Describe a demos folder: its origin, counts and columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import ActionSpec
from slipstream.demos.quality import statistics, statistics_lines
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError, DemoError

WHO = ("agent", "opponent", "format", "source", "seed", "time_utc", "imported_utc", "hostname")
"""The most important keys of a shard's origin, in the order in which they are shown."""


def describe(path: Path) -> dict[str, Any]:
    """Describe a folder from its index alone; quarantined episodes are left out."""
    demos = Demos.open(path)
    schema = demos.schema
    files = [file for shard in demos.shards for file in shard.path.iterdir()]
    return {
        "path": str(path),
        "env": schema.env,
        "agents": schema.agents,
        "episodes": len(demos),
        "quarantined": sum(len(shard.records) for shard in demos.shards) - len(demos),
        **statistics(demos),
        "bytes": sum(file.stat().st_size for file in files),
        "step_seconds": schema.step_seconds,
        "action": schema.action.describe(),
        "columns": [{"name": c.name, "dtype": c.dtype, "shape": list(c.shape), "per": c.per} for c in schema.columns],
        "recordings": _recordings(demos),
    }


def find_episode(path: Path, episode: str) -> tuple[Demos, int]:
    """Find an episode by its number among the good ones, or by its name SHARD/INDEX, even if it is quarantined."""
    demos = Demos.open(path, quarantined="/" in episode)
    if "/" in episode:
        number = next((n for n in range(len(demos)) if demos.label(n) == episode), -1)
        if number < 0:
            raise DemoError(f"{path} has no episode {episode}.", f"episodes are named SHARD/INDEX; see {path}/shards")
        return demos, number
    try:
        number = int(episode)
    except ValueError:
        raise ConfigError(f"`{episode}` is not an episode.", "give a number, or a name such as SHARD/INDEX") from None
    if not len(demos):
        raise DemoError(f"{path} holds no good episode.", f"see why: slipstream demos check {path}")
    if not -len(demos) <= number < len(demos):
        raise DemoError(f"{path} has no episode {number:,}.", f"they are numbered 0 to {len(demos) - 1:,}")
    return demos, number % len(demos)


def _recordings(demos: Demos) -> list[dict[str, Any]]:
    """The counts of each recording; shards with the same origin belong to one recording."""
    found: dict[str, dict[str, Any]] = {}
    for number, shard in enumerate(demos.shards):
        origin = {key: value for key, value in shard.origin.items() if key != "worker"}
        mine = demos.episodes[demos.chosen[:, 0] == number]
        entry = found.setdefault(
            json.dumps(origin, sort_keys=True), {"origin": origin, "shards": 0, "episodes": 0, "steps": 0}
        )
        entry["shards"] += 1
        entry["episodes"] += len(mine)
        entry["steps"] += int(np.sum(mine["steps"]))
    return list(found.values())


def summary_lines(facts: dict[str, Any]) -> list[str]:
    """The result of `describe` as text."""
    mib = facts["bytes"] / 2**20
    lines = [f"{facts['path']}: {facts['env'] or 'no env'}, {facts['episodes']:,} episodes, {mib:,.1f} MiB"]
    lines += statistics_lines(facts) if facts["episodes"] else ["there is no good episode"]
    if facts["quarantined"]:
        lines.append(f"quarantined: {facts['quarantined']:,} episodes, which are left out")
    lines.append(f"actions: {_actions(ActionSpec.read(facts['action']))}")
    lines.append("columns:")
    width = max(len(column["name"]) for column in facts["columns"])
    for column in facts["columns"]:
        shape = "x".join(str(size) for size in column["shape"])
        lines.append(f"  {column['name']:<{width}}  {column['dtype']:<8} {shape or '1':<8} per {column['per']}")
    lines.append("recorded:")
    for entry in facts["recordings"]:
        shards = f"{entry['shards']} shard{'' if entry['shards'] == 1 else 's'}"
        lines.append(f"  {_origin(entry['origin'])}: {entry['episodes']:,} episodes, {shards}")
    return [*lines, f"checksum: {facts['checksum']}"]


def _actions(spec: ActionSpec) -> str:
    options = " x ".join(str(size) for size in spec.sizes) + " options" + (", masked" if spec.masked else "")
    bounds = [f"[{low:g}, {high:g}]" for low, high in zip(spec.low, spec.high, strict=True)]
    return ", ".join([options, *bounds] if spec.sizes else bounds)


def _origin(origin: dict[str, Any]) -> str:
    """The origin of a shard in one line."""
    known = [f"{key} {origin[key]}" for key in WHO if origin.get(key) is not None]
    return ", ".join(known) or "unknown origin"
