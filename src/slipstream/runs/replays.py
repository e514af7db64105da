"""Replay files: one game in one small file, stored as changes from step to step, readable from any step.

    8 bytes    MAGIC
    12 bytes   version, bytes of the header, its CRC-32 (little-endian uint32 each)
    header     JSON, zlib: the facts of the game (`ReplayFacts`) and the positions of the data (`ReplayIndex`)
    data       zlib blocks: the columns that never change, then `EVERY` steps per block

A step consists of several arrays, each with a number of columns. A block holds, for each array, one bit per column and
step that is 1 where the number changed (column after column, the lowest bit first, whole bytes for each column), and
then the changes: old XOR new, in the same order, first the lowest byte of all of them, then the next one. A block
starts from zeros, so each block can be read on its own. XOR and bytes make it easy to write a reader in any language.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream import __version__
from slipstream.contracts import Array
from slipstream.errors import DemoError, MachineError
from slipstream.runs.layout import plain, write_bytes

MAGIC = b"\x89REPLAY\n"
VERSION = 1
EVERY = 256
"""Steps of a block."""
_START = struct.Struct("<III")
_MAX_HEADER = 1 << 26
"""The most bytes of a header; a larger claimed size is an error."""
_TYPES = ("<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
_PLAIN = ConfigDict(frozen=True, extra="forbid")


class Event(NamedTuple):
    """An event in a step: its kind, and its agent (-1: no agent)."""

    step: int
    kind: str
    agent: int


class ReplayFacts(BaseModel):
    """Who played what, and the result: everything needed to play the game again, except the actions."""

    model_config = _PLAIN

    env: str
    settings: dict[str, dict[str, Any]] = {}
    """The sections `env` and `rewards` of the settings."""
    task: str = ""
    seed: int
    players: tuple[str, ...]
    """A name per side, with the version."""
    teams: tuple[int, ...]
    """The side of each agent."""
    outcome: int
    """For the first side: 1 won, 0 drawn, -1 lost."""
    score: tuple[float, ...] | None = None
    """Goals of each side, if the env counts goals."""
    length: int = Field(ge=1)
    """Steps, and rows of every array."""
    step_seconds: float = 0.0
    returns: tuple[float, ...] = ()
    """Per side."""
    behaviour: tuple[dict[str, float], ...] = ()
    """Per side, by name."""
    terms: tuple[str, ...] = ()
    """Names of the reward terms."""
    events: tuple[Event, ...] = ()
    kind: str = ""
    """Why the game was kept: best, worst, closest, lost."""
    steps: int | None = None
    """Training steps of the run at that time."""
    version: str = __version__


class ReplayArray(BaseModel):
    """One array: its dtype, the shape of one step, the labels of its columns, and which columns change."""

    model_config = _PLAIN

    name: str
    dtype: str
    shape: tuple[int, ...]
    labels: tuple[str, ...] = ()
    moving: tuple[int, ...]

    @property
    def width(self) -> int:
        """Columns."""
        return prod(self.shape)


class ReplayBlock(BaseModel):
    """The position of a block after the header, and its CRC-32."""

    model_config = _PLAIN

    at: int = Field(ge=0)
    size: int = Field(ge=0)
    crc: int


class ReplayIndex(BaseModel):
    """The data after the header."""

    model_config = _PLAIN

    every: int = Field(EVERY, ge=1)
    arrays: tuple[ReplayArray, ...]
    blocks: tuple[ReplayBlock, ...]
    """The columns that never change, then one for every `every` steps."""


def write(path: Path, facts: ReplayFacts, arrays: Mapping[str, Array], labels: Mapping[str, tuple[str, ...]]) -> None:
    """Write a replay atomically; every array has a row per step, and `labels` names the columns of some arrays."""
    columns, flat = [], {}
    for name, array in arrays.items():
        whole = np.ascontiguousarray(array)
        assert len(whole) == facts.length
        bits = whole.view(f"u{whole.itemsize}").reshape(len(whole), -1)
        moving = np.flatnonzero((bits != bits[0]).any(axis=0)).tolist()
        stored = whole.dtype.newbyteorder("<")
        columns.append(
            ReplayArray(name=name, dtype=stored.str, shape=whole.shape[1:], labels=labels.get(name, ()), moving=moving)
        )
        flat[name] = bits.astype(bits.dtype.newbyteorder("<"))
    constant = b"".join(np.delete(flat[c.name][0], list(c.moving)).tobytes() for c in columns)
    packed, blocks, at = [zlib.compress(constant, 9)], [], 0
    for first in range(0, facts.length, EVERY):
        parts = [_encode(flat[c.name][first : first + EVERY][:, list(c.moving)]) for c in columns]
        packed.append(zlib.compress(b"".join(parts), 9))
    for data in packed:
        blocks.append(ReplayBlock(at=at, size=len(data), crc=zlib.crc32(data)))
        at += len(data)
    header_parts = {"facts": facts, "index": ReplayIndex(arrays=tuple(columns), blocks=tuple(blocks))}
    text = json.dumps(plain({name: part.model_dump() for name, part in header_parts.items()}), allow_nan=False)
    header = zlib.compress(text.encode(), 9)
    start = MAGIC + _START.pack(VERSION, len(header), zlib.crc32(header))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, b"".join([start, header, *packed]))
    except OSError as error:
        raise MachineError(
            f"{path} could not be written: {error.strerror}.", "free some disk or choose another folder"
        ) from error


def _encode(bits: Array) -> bytes:
    """Encode steps [steps, columns] as change bits and changes."""
    before = np.zeros_like(bits)
    before[1:] = bits[:-1]
    change = np.ascontiguousarray((bits ^ before).T)
    changed = change != 0
    values = change[changed]
    planes = values.view(np.uint8).reshape(len(values), bits.itemsize).T
    return bytes(np.packbits(changed, axis=1, bitorder="little").tobytes() + planes.tobytes())


def _decode(data: bytes, at: int, steps: int, columns: int, itemsize: int) -> tuple[Array, int]:
    """The inverse of `_encode` from a position in a block: steps [steps, columns], and the position after them."""
    per = -(-steps // 8)
    flags = np.frombuffer(data, np.uint8, columns * per, at).reshape(columns, per)
    changed = np.unpackbits(flags, axis=1, count=steps, bitorder="little").astype(bool)
    count, at = int(changed.sum()), at + columns * per
    planes = np.frombuffer(data, np.uint8, count * itemsize, at).reshape(itemsize, count)
    change = np.zeros((columns, steps), f"<u{itemsize}")
    change[changed] = np.ascontiguousarray(planes.T).view(f"<u{itemsize}")[:, 0]
    return np.bitwise_xor.accumulate(change, axis=1).T, at + count * itemsize


class Replay:
    """A replay file: the facts are read at once, the steps on demand."""

    def __init__(self, path: Path, facts: ReplayFacts, index: ReplayIndex, start: int) -> None:
        self.path, self.facts = path, facts
        self._index, self._start = index, start
        self._arrays = {array.name: array for array in index.arrays}
        self._read_block = lru_cache(maxsize=8)(self._unpack)
        self._constant: dict[str, Array] = {}

    @classmethod
    def open(cls, path: Path) -> Replay:
        """Read the header of a file; raise an error if it is not a replay, damaged or truncated."""
        path = Path(path)
        try:
            size = path.stat().st_size
            with open(path, "rb") as file:
                start = file.read(len(MAGIC) + _START.size)
                if not start.startswith(MAGIC) or len(start) < len(MAGIC) + _START.size:
                    raise DemoError(f"{path} is not a replay.", "replays end in .replay; a run keeps them in replays/")
                version, length, crc = _START.unpack(start[len(MAGIC) :])
                if version != VERSION:
                    raise DemoError(
                        f"{path} is a replay of version {version}; this slipstream reads version {VERSION}.",
                        "use the slipstream that wrote it" if version < VERSION else "update slipstream",
                    )
                header = file.read(min(length, _MAX_HEADER))
        except OSError as error:
            raise DemoError(f"{path} cannot be read: {error.strerror}.", "name a .replay file") from error
        if len(header) < length or zlib.crc32(header) != crc:
            raise _damaged(path, "its header does not match its checksum")
        facts, index = _parse(path, header)
        begin = len(start) + length
        if size < begin + sum(block.size for block in index.blocks):
            raise _damaged(path, "it ends too early")
        return cls(path, facts, index, begin)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(self._arrays)

    def labels(self, name: str) -> tuple[str, ...]:
        """The labels of an array's columns, if it has any."""
        return self._arrays[name].labels

    def read(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """The rows [first, last) of an array, by default all; only their blocks are read."""
        array, length = self._arrays[name], self.facts.length
        last = length if last is None else min(last, length)
        if not array.moving:
            row = self._constant_columns(name).view(array.dtype).reshape(array.shape)
            return np.broadcast_to(row, (max(last - first, 0), *array.shape))
        rows = np.empty((max(last - first, 0), array.width), f"<u{np.dtype(array.dtype).itemsize}")
        constant = np.ones(array.width, bool)
        constant[list(array.moving)] = False
        rows[:, constant] = self._constant_columns(name)
        every = self._index.every
        for block in range(first // every, -(-last // every) if len(rows) else 0):
            low, high = max(first, block * every), min(last, (block + 1) * every)
            moved = self._read_block(block)[name]
            rows[low - first : high - first, ~constant] = moved[low - block * every : high - block * every]
        return rows.view(array.dtype).reshape(len(rows), *array.shape)

    def at(self, step: int) -> dict[str, Array]:
        """Every array at one step."""
        return {name: self.read(name, step, step + 1)[0] for name in self._arrays}

    def _constant_columns(self, name: str) -> Array:
        """The columns of an array that never change."""
        if not self._constant:
            sizes = {a.name: (a.width - len(a.moving)) * np.dtype(a.dtype).itemsize for a in self._index.arrays}
            data, at = self._block(0, sum(sizes.values())), 0
            for array in self._index.arrays:
                part = data[at : at + sizes[array.name]]
                self._constant[array.name] = np.frombuffer(part, f"<u{np.dtype(array.dtype).itemsize}")
                at += sizes[array.name]
        return self._constant[name]

    def _unpack(self, block: int) -> dict[str, Array]:
        """The changing columns of every array in a block of steps."""
        steps = min(self._index.every, self.facts.length - block * self._index.every)
        sizes = {array.name: np.dtype(array.dtype).itemsize for array in self._index.arrays}
        most = sum(len(a.moving) * (-(-steps // 8) + steps * sizes[a.name]) for a in self._index.arrays)
        data, at, found = self._block(block + 1, most), 0, {}
        try:
            for array in self._index.arrays:
                found[array.name], at = _decode(data, at, steps, len(array.moving), sizes[array.name])
        except ValueError as error:
            raise _damaged(self.path, f"block {block + 1} cannot be decompressed") from error
        return found

    def _block(self, number: int, most: int) -> bytes:
        """Read, check and decompress a block of at most `most` bytes."""
        block = self._index.blocks[number]
        try:
            with open(self.path, "rb") as file:
                file.seek(self._start + block.at)
                data = file.read(block.size)
        except OSError as error:
            raise DemoError(f"{self.path} cannot be read: {error.strerror}.", "name a .replay file") from error
        if len(data) < block.size or zlib.crc32(data) != block.crc:
            raise _damaged(self.path, f"block {number} does not match its checksum")
        return _inflate(self.path, data, most, f"block {number}")


def _parse(path: Path, header: bytes) -> tuple[ReplayFacts, ReplayIndex]:
    """Parse the two parts of a header, and check that they are consistent."""
    try:
        parts = json.loads(_inflate(path, header, _MAX_HEADER, "its header"))
        facts, index = ReplayFacts.model_validate(parts["facts"]), ReplayIndex.model_validate(parts["index"])
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise DemoError(f"The header of {path} is invalid.", "record the game again") from error
    blocks = 1 + -(-facts.length // index.every)
    known = all(array.dtype in _TYPES for array in index.arrays)
    inside = all(0 <= column < array.width for array in index.arrays for column in array.moving)
    if len(index.blocks) != blocks or not known or not inside:
        raise DemoError(f"The header of {path} is invalid.", "record the game again")
    return facts, index


def _inflate(path: Path, data: bytes, most: int, what: str) -> bytes:
    """Decompress at most `most` bytes."""
    try:
        worker = zlib.decompressobj()
        unpacked = worker.decompress(data, most + 1)
    except zlib.error as error:
        raise _damaged(path, f"{what} cannot be decompressed") from error
    if not worker.eof or len(unpacked) > most:
        raise _damaged(path, f"{what} cannot be decompressed")
    return unpacked


def _damaged(path: Path, what: str) -> DemoError:
    return DemoError(f"{path} is damaged: {what}.", "copy it again, or record the game again")
