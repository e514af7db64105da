"""NPZ files row by row: read and written as a stream, never whole in memory, never with pickles."""

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.importers.ingest import readable
from slipstream.errors import DemoError

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
ONE_AT_A_TIME = threading.Lock()
"""NumPy parses a header as Python text, which two threads may not do at once before Python 3.11.8."""


class Member:
    """One array of an archive; only the rows that are asked for are read, best from first to last."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        self._file, self.where = file, where
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{where} is of format {version}")
        with ONE_AT_A_TIME:
            shape, self._fortran, self.dtype = HEADERS[version](file)
        self.shape: tuple[int, ...] = tuple(shape)
        self._start = file.tell()

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: slice) -> Array:
        """Some rows, as an array."""
        first, last, _ = rows.indices(len(self))
        if self._fortran and len(self.shape) > 1:
            return self._whole[first:last]
        row = prod(self.shape[1:]) * self.dtype.itemsize
        return self._take(self._start + first * row, (max(0, last - first), *self.shape[1:]))

    @cached_property
    def _whole(self) -> Array:
        """All of an array that lies column by column."""
        return np.ascontiguousarray(self._take(self._start, self.shape[::-1]).T)

    def _take(self, place: int, shape: tuple[int, ...]) -> Array:
        size = prod(shape) * self.dtype.itemsize
        self._file.seek(place)
        data = self._file.read(size)
        if len(data) != size:
            raise ValueError(f"{self.where} ends too early")
        return np.frombuffer(data, self.dtype).reshape(shape)


class Archive:
    """An NPZ file that is open for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(path):
            self._zip = zipfile.ZipFile(path)
        self.names = [name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")]
        self._members: dict[str, Member] = {}

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._zip.close()

    def pickled(self, name: str) -> bool:
        """Whether a member holds Python objects, which only running code from the file could read."""
        return self._member(name).dtype.hasobject

    def __getitem__(self, name: str) -> Member:
        """One array; one of Python objects is refused."""
        member = self._member(name)
        if member.dtype.hasobject:
            raise DemoError(
                f"`{name}` in {self.path} holds pickled Python objects, which are not loaded.",
                f"save it again with plain numbers or text: np.savez(..., {name}=np.array(values.tolist()))",
            )
        return member

    def _member(self, name: str) -> Member:
        if name not in self._members:
            if name not in self.names:
                raise DemoError(f"{self.path} has no `{name}`.", f"it has: {', '.join(self.names)}")
            with readable(self.path):
                self._members[name] = Member(self._zip.open(f"{name}.npy"), f"`{name}` in {self.path}")
        return self._members[name]

    def read(self, name: str) -> Array:
        """One array, whole."""
        with readable(self.path):
            member = self[name]
            return member[:] if member.shape else member._take(member._start, ())


def write_npz(path: Path, members: Iterable[tuple[str, Any, tuple[int, ...], Iterator[Array]]]) -> None:
    """Write an archive: of each member its name, dtype, shape, and its rows in blocks; all of it appears at once."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, dtype, shape, blocks in members:
                kind = np.dtype(dtype)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(file, header)
                    for block in blocks:
                        file.write(np.ascontiguousarray(block, kind).reshape(-1).view(np.uint8).data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
