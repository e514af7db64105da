"""The demos folder: what it holds, column by column.

    DIR/demos.json              what is recorded: env, observations, actions, columns; written once
    DIR/quarantine.json         episodes that are left out, and why; only where there are some
    DIR/shards/NAME/shard.json  who recorded it, when, with what
    DIR/shards/NAME/*.bin       one file per column, values behind one another, little-endian
    DIR/shards/NAME/episodes.bin  one `EPISODE` record per whole episode, written after its values

A shard has one writer, which only appends. An episode exists once its record does, so that whatever kills a writer,
half an episode is never seen; what lies behind the last record is not read. Every record carries a checksum of its
episode's values and one of itself. Several recordings are several shards: they need no lock.
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
        ("first", "<i8"),  # its first step among the shard's steps
        ("steps", "<i8"),
        ("game", "<i8"),  # the game of its recording that it belongs to; agents of one game share it
        ("env", "<i8"),
        ("seed", "<i8"),
        ("return", "<f8"),
        ("agent", "<i4"),
        ("team", "<i4"),
        ("outcome", "<i4"),  # 1 won, 0 draw or no sides, -1 lost
        ("ended", "<i4"),  # TERMINATED, TRUNCATED, or 0 where the recording just stops
        ("checksum", "<u4"),  # CRC-32 of its values, column after column
        ("seal", "<u4"),  # CRC-32 of the record before this
    ]
)


@dataclass(frozen=True)
class Column:
    """One typed column."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    per: Literal["step", "obs", "episode"] = "step"
    """One value per step; one per observation, of which an episode has one more than steps; one per episode."""

    @property
    def file(self) -> str:
        """The file that holds it."""
        return self.name.replace("/", ".") + ".bin"

    @property
    def bytes(self) -> int:
        """Size of one value."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def count(self, steps: int) -> int:
        """Values of an episode of so many steps."""
        return {"step": steps, "obs": steps + 1, "episode": 1}[self.per]

    def start(self, first: int, place: int) -> int:
        """Where the values of the shard's episode number `place` begin, whose first step is number `first`."""
        return {"step": first, "obs": first + place, "episode": place}[self.per]


@dataclass(frozen=True)
class Schema:
    """What every episode of a demos folder has."""

    env: str
    """The environment by name; free text for imported data."""
    obs: ObsSpec
    action: ActionSpec
    terms: tuple[str, ...] = ()
    """Reward terms, each a column of its own: `terms/NAME`."""
    agents: int = 1
    step_seconds: float = 0.0
    extras: tuple[Column, ...] = ()
    """Further columns, such as `start/...` (the state an episode starts from) and `raw/...` (as imported)."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns in the order in which they are summed up."""
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
        """One column by name."""
        for column in self.columns:
            if column.name == name:
                return column
        raise DemoError(
            f"These demos have no column `{name}`.", f"they have: {', '.join(c.name for c in self.columns)}"
        )

    def describe(self) -> dict[str, Any]:
        """As demos.json holds it."""
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
    def read(cls, told: Mapping[str, Any]) -> Schema:
        """The inverse of `describe`."""
        extras = tuple(_read_column(c) for c in told["extras"])
        return cls(
            told["env"], ObsSpec.read(told["obs"]), ActionSpec.read(told["action"]), tuple(told["terms"]),
            told["agents"], told["step_seconds"], extras,
        )  # fmt: skip

    @classmethod
    def of(cls, env: str, spec: EnvSpec, start: Mapping[str, Any] | None = None) -> Schema:
        """The schema of a recording of an environment, with the arrays of its snapshot as start states."""
        extras = tuple(
            Column(f"start/{name}", array.dtype.name, tuple(array.shape[1:]), "episode")
            for name, array in (start or {}).items()
        )
        return cls(env, spec.obs, spec.action, spec.terms, spec.agents, spec.step_seconds, extras)


def _read_column(told: Mapping[str, Any]) -> Column:
    """A column as demos.json tells it; only plain numbers, since anything else mapped from a file is not safe."""
    column = Column(told["name"], told["dtype"], tuple(told["shape"]), told["per"])
    if np.dtype(column.dtype).kind not in "biuf" or column.per not in ("step", "obs", "episode"):
        raise ValueError(f"column `{column.name}` is {column.dtype} per {column.per}")
    return column


def read_schema(folder: Path) -> Schema:
    """The schema of a demos folder, or an error that says what is there instead."""
    file = folder / "demos.json"
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        why = "there is no demos.json in it" if folder.is_dir() else "no such folder"
        why = "it is a file, not a folder" if folder.is_file() else why
        hint = f"record some: slipstream record AGENT --env ENV --episodes N --out {folder}"
        raise DemoError(f"No demos at {folder}: {why}.", hint) from None
    except (OSError, ValueError) as error:
        raise DemoError(f"{file} cannot be read: {error}.", "record or import the demos again") from error
    version = told.get("version") if isinstance(told, dict) else None
    if version != VERSION:
        raise DemoError(f"{file} is of format {version}; this version reads {VERSION}.", "record or import them again")
    try:
        return Schema.read(told)
    except (KeyError, TypeError, ValueError) as error:
        raise DemoError(f"{file} is damaged: {error!r}.", "record or import the demos again") from error
