"""How soccer's scalar functions are compiled: into their callers, IEEE exact.

A tick is a dozen small functions; calling them costs more than what they do (a step takes 1.6 times as
long), and the compiler leaves them as calls unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def scalar(function: Function) -> Function:
    """Compile a function of one env's state that is always inlined."""
    result: Function = numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function)
    return result
