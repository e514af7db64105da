"""The one way in which scalar Python is compiled: numba, cached, without the GIL, IEEE exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
Number = Any
"""A scalar in a kernel: numba decides its type at the call (float32 in network code), so Python's would mislead."""


def compiled(function: F) -> F:
    """Compile with strict IEEE arithmetic: the same bits on every machine."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def compiled_fused(function: F) -> F:
    """Compile with fused multiply-add allowed: for network arithmetic, where speed matters more than the last bit."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function))
