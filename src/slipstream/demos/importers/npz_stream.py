"""Read and write NPZ files row by row: arrays are never loaded whole, and pickles are never loaded."""

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
from slipstream.demos.importers.source import file_errors
from slipstream.errors import DemoError

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
HEADER_LOCK = threading.Lock()
"""NumPy parses a header with `ast`, which is not thread-safe before Python 3.11.8."""


class NpzArray:
    """One array of an NPZ file; only the requested rows are read. Reading front to back is fastest."""

    def __init__(self, file: IO[bytes], label: str) -> None:
        self._file, self.label = file, label
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"{label} has the unknown format version {version}")
        with HEADER_LOCK:
            shape, self._fortran, self.dtype = HEADERS[version](file)
        self.shape: tuple[int, ...] = tuple(shape)
        self._start = file.tell()

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: slice) -> Array:
        """Read some rows."""
        first, last, _ = rows.indices(len(self))
        if self._fortran and len(self.shape) > 1:
            return self._fortran_array[first:last]
        row = prod(self.shape[1:]) * self.dtype.itemsize
        return self._read(self._start + first * row, (max(0, last - first), *self.shape[1:]))

    def read(self) -> Array:
        """Read the whole array."""
        return self[:] if self.shape else self._read(self._start, ())

    @cached_property
    def _fortran_array(self) -> Array:
        """The whole array, if it is stored in Fortran order."""
        return np.ascontiguousarray(self._read(self._start, self.shape[::-1]).T)

    def _read(self, offset: int, shape: tuple[int, ...]) -> Array:
        size = prod(shape) * self.dtype.itemsize
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise ValueError(f"{self.label} is truncated")
        return np.frombuffer(data, self.dtype).reshape(shape)


class NpzFile:
    """An NPZ file open for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with file_errors(path):
            self._zip = zipfile.ZipFile(path)
        self.names = [name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")]
        self._arrays: dict[str, NpzArray] = {}

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._zip.close()

    def is_pickled(self, name: str) -> bool:
        """Whether an array holds Python objects, which only unpickling could read."""
        return self._open(name).dtype.hasobject

    def __getitem__(self, name: str) -> NpzArray:
        """One array; raises DemoError for an array of Python objects."""
        array = self._open(name)
        if array.dtype.hasobject:
            raise DemoError(
                f"`{name}` in {self.path} holds pickled Python objects, which are not loaded.",
                f"save it again with plain numbers or text: np.savez(..., {name}=np.array(values.tolist()))",
            )
        return array

    def _open(self, name: str) -> NpzArray:
        if name not in self._arrays:
            if name not in self.names:
                raise DemoError(f"{self.path} has no `{name}`.", f"it has: {', '.join(self.names)}")
            with file_errors(self.path):
                self._arrays[name] = NpzArray(self._zip.open(f"{name}.npy"), f"`{name}` in {self.path}")
        return self._arrays[name]

    def read(self, name: str) -> Array:
        """Read one array whole."""
        with file_errors(self.path):
            return self[name].read()


def write_npz(path: Path, arrays: Iterable[tuple[str, Any, tuple[int, ...], Iterator[Array]]]) -> None:
    """Write an NPZ file atomically; each array is its name, dtype, shape and an iterator over blocks of rows."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, dtype, shape, blocks in arrays:
                kind = np.dtype(dtype)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(file, header)
                    for block in blocks:
                        file.write(np.ascontiguousarray(block, kind).reshape(-1).view(np.uint8).data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
