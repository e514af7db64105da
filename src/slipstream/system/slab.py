"""A slab: one anonymous shared memory mapping with named, typed, aligned fields.

The mapping is anonymous, so nothing is left behind when a process dies: memfd on Linux, an unlinked file on other POSIX
systems, a named section of the paging file on Windows (freed with its last handle).
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.errors import MachineError
from slipstream.system.machine import memory_bytes

ALIGNMENT = 64


@dataclass(frozen=True)
class Field:
    """The shape and dtype of one field."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size of the field in bytes, without padding."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class Slab:
    """Fields in shared memory: `slab["obs"]` is a NumPy view of one."""

    def __init__(self, fields: Mapping[str, Field], handle: int | str | None = None) -> None:
        self.fields = dict(fields)
        self.nbytes = max(ALIGNMENT, sum(_padded(field.nbytes) for field in self.fields.values()))
        if handle is None and self.nbytes > 0.8 * memory_bytes():
            raise MachineError(
                f"The rollout buffers need {self.nbytes / 2**30:.1f} GiB, more than this machine's memory.",
                "lower plan.envs or ppo.rollout",
            )
        self.handle = allocate(self.nbytes) if handle is None else handle
        self._map = _attach(self.handle, self.nbytes)
        self._views: dict[str, Array] = {}
        offset = 0
        for name, field in self.fields.items():
            dtype = np.dtype(field.dtype)
            count = field.nbytes // dtype.itemsize
            flat = np.frombuffer(self._map, dtype, count, offset) if count else np.zeros(0, dtype)
            self._views[name] = flat.reshape(field.shape)
            offset += _padded(field.nbytes)

    def __getitem__(self, name: str) -> Array:
        return self._views[name]

    @property
    def address(self) -> int:
        """The address of the mapping in this process."""
        address: int = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        return address

    def offset(self, name: str) -> int:
        """Where a field begins in the mapping, in bytes."""
        start: int = self._views[name].__array_interface__["data"][0]
        return start - self.address

    def describe(self) -> dict[str, Any]:
        """Return what another process needs to attach, as JSON."""
        fields = {name: [list(field.shape), field.dtype] for name, field in self.fields.items()}
        return {"fields": fields, "handle": self.handle}

    @classmethod
    def attach(cls, description: Mapping[str, Any]) -> Slab:
        """Open the mapping that `describe` described; its descriptor must have been inherited."""
        fields = {name: Field(tuple(shape), dtype) for name, (shape, dtype) in description["fields"].items()}
        return cls(fields, description["handle"])

    def close(self) -> None:
        """Release the mapping; views keep their pages until they are deleted."""
        self._views.clear()
        if isinstance(self.handle, int) and self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def allocate(nbytes: int) -> int | str:
    """Make anonymous shared memory and return its handle: a file descriptor, or a name on Windows."""
    if sys.platform == "win32":
        return f"slipstream-{uuid.uuid4().hex}"
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("slipstream")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes)
    return descriptor


def _attach(handle: int | str, nbytes: int) -> mmap.mmap:
    if isinstance(handle, str):
        return mmap.mmap(-1, nbytes, tagname=handle)  # type: ignore[call-arg,unused-ignore]
    if os.fstat(handle).st_size < nbytes:  # made before its size was known
        os.ftruncate(handle, nbytes)
    return mmap.mmap(handle, nbytes)
