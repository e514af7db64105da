"""Writing demos: whole episodes, appended to a shard of one's own."""

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
    """Make a demos folder, or see that one that is there holds the same kind of data."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "demos.json").exists():
        if any(folder.iterdir()):
            raise DemoError(f"{folder} is not empty and holds no demos.", "choose another folder with --out DIR")
        write_json(folder / "demos.json", schema.describe())
    difference = compare(read_schema(folder), schema)
    if difference:
        raise DemoError(f"{folder} holds demos with {difference}.", "record into another folder with --out DIR")


def compare(known: Schema, wanted: Schema) -> str:
    """The first thing in which a schema is another than the one wanted, or nothing."""
    wants = wanted.describe()
    for name, has in known.describe().items():
        if has != wants[name]:
            return f"another `{name}`: {_short(has)}, not {_short(wants[name])}"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."


def recording_name() -> str:
    """A name for the shards of one recording, which sort by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"


class Shard:
    """Appends episodes to files of its own: values first, then the record that makes them count."""

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
        """Append one whole episode: an array per column (rows of its values), and what its record tells."""
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
        told = {"first": self.steps, "steps": steps, "checksum": checksum, **facts}
        for name, value in told.items():
            record[name] = value
        record["return"] = values["reward"].sum(dtype=np.float64)
        record["seal"] = seal(record)[0]
        _write(self._index, record.view(np.uint8).data, self.episodes * EPISODE.itemsize)
        self.episodes += 1
        self.steps += steps
        self.bytes += written

    def _array(self, column: Column, values: Mapping[str, Array], steps: int) -> Array:
        """The values of a column as they are written, or an error that says what is wrong with them."""
        array = np.ascontiguousarray(values[column.name], column.dtype)
        shape = (column.count(steps), *column.shape)
        if array.shape != shape:
            raise DemoError(f"`{column.name}` of an episode should be {shape} but is {array.shape}.", "")
        return array

    def close(self) -> None:
        """Wait until everything is on disk; a shard without an episode is taken away."""
        for descriptor in (*self._files.values(), self._index):
            os.fsync(descriptor)
            os.close(descriptor)
        if not self.episodes:
            for file in self.path.iterdir():
                file.unlink()
            self.path.rmdir()


def seal(records: Array) -> Array:
    """The checksum of each record, its own field aside."""
    return np.array([zlib.crc32(record.tobytes()[: -EPISODE["seal"].itemsize]) for record in records], np.uint32)


def _write(descriptor: int, data: memoryview, place: int) -> None:
    """Write all of it at `place`, or say why that cannot be; what was written counts only with its record.

    The place is told, so that an episode that failed half-way leaves nothing in the way of the next.
    """
    done = 0
    try:
        os.lseek(descriptor, place, os.SEEK_SET)
        while done < len(data):
            done += os.write(descriptor, data[done : done + (1 << 30)])
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space and record the rest: new episodes are added to those there are" if full else ""
        raise MachineError(f"An episode could not be written: {error.strerror}.", hint) from error
