"""The protocol between importers and `ingest`: a `Source` lists episodes and reads them one at a time.

An importer is a function that returns a `Source`. `Source.read` returns an `Episode` of T steps: T actions, T rewards
and T + 1 observations, and in `ended` whether the episode was terminated, truncated or just stops. It raises DemoError
for an episode that cannot be used; `ingest` skips such episodes and reports them.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from slipstream.contracts import Array
from slipstream.demos.format import Schema
from slipstream.errors import DemoError, MachineError


@dataclass(frozen=True)
class EpisodeRef:
    """One episode of a source, not yet read."""

    name: str
    key: Any = None
    """Identifies the episode to `Source.read`."""
    files: tuple[Path, ...] = ()

    @property
    def weight(self) -> int:
        """The size of the files in bytes, used to balance the load between workers."""
        return 1 + sum(file.stat().st_size for file in self.files if file.exists())


@dataclass(frozen=True)
class Episode:
    """One episode in memory."""

    values: dict[str, Array]
    """An array for every column of the schema: at least `obs` [T + 1, width], `action` [T, parts], `reward` [T]."""
    ended: int
    """TERMINATED, TRUNCATED, or 0 if the recording stops before the end of the episode."""
    outcome: int = 0
    """1 won, 0 drawn or unknown, -1 lost."""
    seed: int = 0
    notes: tuple[str, ...] = ()
    """Warnings about an episode that is imported nevertheless."""


@dataclass(frozen=True)
class Source:
    """The episodes of a recording in another format."""

    format: str
    location: str
    schema: Schema
    episodes: Sequence[EpisodeRef]
    read: Callable[[EpisodeRef], Episode]
    """Read one episode; raises DemoError if it cannot be used."""
    count: Callable[[EpisodeRef], int]
    """The number of steps of an episode, without decoding it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How the source is read; stored in every shard."""
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Category names of one-hot observations and of integer-coded actions, by field or column."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """The original dtype of observations, by field."""
    bad: Mapping[str, str] = field(default_factory=dict)
    """Episodes known to be unreadable before reading, with the reason."""
    notes: Sequence[str] = ()
    """Warnings about the source as a whole."""
    parallel: bool = False
    """Whether several threads may call `read` at once."""
    close: Callable[[], None] = lambda: None


def import_optional(module: str, extra: str) -> Any:
    """Import an optional dependency, or raise an error with the install command."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MachineError(
            f"This needs the package `{module}`, which cannot be imported: {error}.",
            f'pip install "slipstream[{extra}]"',
        ) from error


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn exceptions raised while reading a file into a DemoError that names the file."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
        raise DemoError(f"{path} {what}.", "download or copy the file again, or remove it") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    with file_errors(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it does not hold a JSON object")
    return content
