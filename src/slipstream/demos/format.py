"""The format of a demos folder: files, columns and episode records.

    DIR/demos.json              the schema: env, observations, actions, columns; written once
    DIR/quarantine.json         episodes that are left out, with reasons; only if there are any
    DIR/shards/NAME/shard.json  the origin: who recorded it, when, with what
    DIR/shards/NAME/*.bin       one file per column, concatenated values, little-endian
    DIR/shards/NAME/episodes.bin  one `EPISODE` record per complete episode, written after its values

A shard has one writer, which only appends. An episode exists once its record is written, so a killed writer never
leaves a partial episode: values after the last record are ignored. Every record holds a checksum of the episode's
values and one of itself. Concurrent recordings write separate shards and need no lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from slipstream.contracts import ActionSpec, EnvSpec, ObsSpec
from slipstream.errors import DemoError

VERSION = 1
TERMINATED, TRUNCATED = 1, 2
EPISODE = np.dtype(
    [
        ("first", "<i8"),  # index of its first step in the shard
        ("steps", "<i8"),
        ("game", "<i8"),  # number of its game in the recording; the agents of one game share it
        ("env", "<i8"),
        ("seed", "<i8"),
        ("return", "<f8"),
        ("agent", "<i4"),
        ("team", "<i4"),
        ("outcome", "<i4"),  # 1 won, 0 draw or no teams, -1 lost
        ("ended", "<i4"),  # TERMINATED, TRUNCATED, or 0 if the recording stops before the end
        ("checksum", "<u4"),  # CRC-32 of its values, column by column
        ("seal", "<u4"),  # CRC-32 of the preceding fields of this record
    ]
)


@dataclass(frozen=True)
class Column:
    """One typed column."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    per: Literal["step", "obs", "episode"] = "step"
    """One value per step, per observation (steps + 1 per episode), or per episode."""

    @property
    def file(self) -> str:
        """The name of the column's file."""
        return self.name.replace("/", ".") + ".bin"

    @property
    def bytes(self) -> int:
        """The size of one value."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def count(self, steps: int) -> int:
        """The number of values of an episode with this many steps."""
        return {"step": steps, "obs": steps + 1, "episode": 1}[self.per]

    def start(self, first: int, index: int) -> int:
        """The offset of the values of the shard's episode `index`, whose first step has the index `first`."""
        return {"step": first, "obs": first + index, "episode": index}[self.per]


@dataclass(frozen=True)
class Schema:
    """The columns and the environment of a demos folder."""

    env: str
    """The name of the environment; any text for imported data."""
    obs: ObsSpec
    action: ActionSpec
    terms: tuple[str, ...] = ()
    """Reward terms, each stored in the column `terms/NAME`."""
    agents: int = 1
    step_seconds: float = 0.0
    extras: tuple[Column, ...] = ()
    """Additional columns: `start/...` (the initial state of an episode) and `raw/...` (original imported values)."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in the order used by checksums."""
        fixed = [
            Column("obs", np.dtype(self.obs.dtype).name, (self.obs.width,), "obs"),
            Column("action", np.dtype(self.action.dtype).name, (self.action.parts,)),
            Column("reward", "float32", ()),
        ]
        if self.action.masked:
            fixed.append(Column("mask", "uint8", (self.action.options,)))
        terms = [Column(f"terms/{name}", "float32", ()) for name in self.terms]
        return (*fixed, *terms, *self.extras)

    def column(self, name: str) -> Column:
        """Look up a column by name."""
        for column in self.columns:
            if column.name == name:
                return column
        raise DemoError(
            f"These demos have no column `{name}`.", f"they have: {', '.join(c.name for c in self.columns)}"
        )

    def describe(self) -> dict[str, Any]:
        """The content of demos.json."""
        extras = [{"name": c.name, "dtype": c.dtype, "shape": list(c.shape), "per": c.per} for c in self.extras]
        return {
            "version": VERSION,
            "env": self.env,
            "obs": self.obs.describe(),
            "action": self.action.describe(),
            "terms": list(self.terms),
            "agents": self.agents,
            "step_seconds": self.step_seconds,
            "extras": extras,
        }

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Schema:
        """The inverse of `describe`."""
        return cls(
            content["env"],
            ObsSpec.read(content["obs"]),
            ActionSpec.read(content["action"]),
            tuple(content["terms"]),
            content["agents"],
            content["step_seconds"],
            tuple(_read_column(column) for column in content["extras"]),
        )

    @classmethod
    def of(cls, env: str, spec: EnvSpec, start: Mapping[str, Any] | None = None) -> Schema:
        """The schema for recording an environment; `start` is a snapshot, stored as the initial state of episodes."""
        extras = tuple(
            Column(f"start/{name}", array.dtype.name, tuple(array.shape[1:]), "episode")
            for name, array in (start or {}).items()
        )
        return cls(env, spec.obs, spec.action, spec.terms, spec.agents, spec.step_seconds, extras)


def _read_column(content: Mapping[str, Any]) -> Column:
    """Read a column of demos.json. Only numeric dtypes are allowed: mapping other dtypes from a file is not safe."""
    column = Column(content["name"], content["dtype"], tuple(content["shape"]), content["per"])
    if np.dtype(column.dtype).kind not in "biuf" or column.per not in ("step", "obs", "episode"):
        raise ValueError(f"column `{column.name}` is {column.dtype} per {column.per}")
    return column


def read_schema(folder: Path) -> Schema:
    """Read the schema of a demos folder."""
    file = folder / "demos.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        why = "there is no demos.json in it" if folder.is_dir() else "no such folder"
        why = "it is a file, not a folder" if folder.is_file() else why
        hint = f"record some: slipstream record AGENT --env ENV --episodes N --out {folder}"
        raise DemoError(f"No demos at {folder}: {why}.", hint) from None
    except (OSError, ValueError) as error:
        raise DemoError(f"{file} cannot be read: {error}.", "record or import the demos again") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise DemoError(f"{file} has format version {version}, not {VERSION}.", "record or import them again")
    try:
        return Schema.read(content)
    except (KeyError, TypeError, ValueError) as error:
        raise DemoError(f"{file} is damaged: {error!r}.", "record or import the demos again") from error
