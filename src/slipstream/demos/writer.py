"""Write demos: append complete episodes to a shard."""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.format import EPISODE, Column, Schema, read_schema
from slipstream.errors import DemoError, MachineError
from slipstream.runs.layout import write_json


def prepare(folder: Path, schema: Schema) -> None:
    """Create a demos folder, or check that an existing one has the same schema."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "demos.json").exists():
        if any(folder.iterdir()):
            raise DemoError(f"{folder} is not empty and holds no demos.", "choose another folder with --out DIR")
        write_json(folder / "demos.json", schema.describe())
    difference = compare(read_schema(folder), schema)
    if difference:
        raise DemoError(f"{folder} holds demos with {difference}.", "record into another folder with --out DIR")


def compare(actual: Schema, expected: Schema) -> str:
    """Describe the first difference between two schemas; empty if they are equal."""
    expected_values = expected.describe()
    for name, value in actual.describe().items():
        if value != expected_values[name]:
            return f"another `{name}`: {_short(value)}, not {_short(expected_values[name])}"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."


def recording_name() -> str:
    """A unique name for the shards of one recording; names sort by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"


class Shard:
    """Appends episodes to its files: the values first, then the record that commits them."""

    def __init__(self, folder: Path, name: str, schema: Schema, origin: Mapping[str, Any]) -> None:
        self.path = folder / "shards" / name
        self.schema = schema
        self.episodes = 0
        self.steps = 0
        self.bytes = 0
        self.path.mkdir(parents=True)
        write_json(self.path / "shard.json", dict(origin))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._files = {column.name: os.open(self.path / column.file, flags, 0o644) for column in schema.columns}
        self._index = os.open(self.path / "episodes.bin", flags, 0o644)

    def add(self, values: Mapping[str, Array], **facts: int) -> None:
        """Append one complete episode: an array per column, and the other fields of its record."""
        steps = len(values["reward"])
        if not steps:
            raise DemoError("An episode without steps cannot be recorded.", "leave it out")
        arrays = [(column, self._array(column, values, steps)) for column in self.schema.columns]
        checksum = written = 0
        for column, array in arrays:
            data = array.reshape(-1).view(np.uint8).data
            checksum = zlib.crc32(data, checksum)
            _write(self._files[column.name], data, column.start(self.steps, self.episodes) * column.bytes)
            written += data.nbytes
        record = np.zeros(1, EPISODE)
        fields = {"first": self.steps, "steps": steps, "checksum": checksum, **facts}
        for name, value in fields.items():
            record[name] = value
        record["return"] = values["reward"].sum(dtype=np.float64)
        record["seal"] = seal(record)[0]
        _write(self._index, record.view(np.uint8).data, self.episodes * EPISODE.itemsize)
        self.episodes += 1
        self.steps += steps
        self.bytes += written

    def _array(self, column: Column, values: Mapping[str, Array], steps: int) -> Array:
        """Convert the values of a column to its dtype and check their shape."""
        array = np.ascontiguousarray(values[column.name], column.dtype)
        shape = (column.count(steps), *column.shape)
        if array.shape != shape:
            raise DemoError(f"`{column.name}` of an episode should be {shape} but is {array.shape}.", "")
        return array

    def close(self) -> None:
        """Flush everything to disk; a shard without episodes is removed."""
        for descriptor in (*self._files.values(), self._index):
            os.fsync(descriptor)
            os.close(descriptor)
        if not self.episodes:
            for file in self.path.iterdir():
                file.unlink()
            self.path.rmdir()


def seal(records: Array) -> Array:
    """The checksum of each record, without its `seal` field."""
    return np.array([zlib.crc32(record.tobytes()[: -EPISODE["seal"].itemsize]) for record in records], np.uint32)


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all data at an offset.

    The offset is explicit, so the next episode overwrites the values of an episode that failed half-way.
    """
    done = 0
    try:
        os.lseek(descriptor, offset, os.SEEK_SET)
        while done < len(data):
            done += os.write(descriptor, data[done : done + (1 << 30)])
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some disk space and record the rest into the same folder" if full else ""
        raise MachineError(f"An episode could not be written: {error.strerror}.", hint) from error
