"""How soccer's scalar functions are compiled: into their callers, IEEE exact.

A tick is a dozen small functions; calling them costs more than what they do (a step takes 1.6 times as
long), and the compiler leaves them as calls unless told otherwise.
"""

from __future__ import annotations

from typing import Any, cast

import numba

from slipstream.core.compile import F

Scalar = Any
"""The type of a float32 number in annotations, which numba does not read."""


def scalar(function: F) -> F:
    """Compile a function of one env's state that is always inlined."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))
