"""Reward terms written by the user: compiled when the environment is made, with an error if that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from slipstream.contracts import Array
from slipstream.errors import ConfigError
from slipstream.system.numba_compile import Number, compiled_here


def compile_term(name: str, function: Callable[..., Any], more: tuple[str, ...] = ()) -> Any:
    """Compile a term for its argument types: the state before and after, the clock, and the integers named `more`."""
    term: Any = function if hasattr(function, "py_func") else compiled_here(function)
    row, clock = numba.types.Array(numba.float32, 1, "C"), numba.types.Array(numba.int64, 1, "C")
    try:
        if hasattr(term, "compile"):  # absent if numba is disabled
            term.compile((row, row, clock, *(numba.int64 for _ in more)))
    except numba.core.errors.NumbaError as error:
        form = ", ".join(("before", "after", "clock", *more))
        raise ConfigError(
            f"Reward term `{name}` cannot be compiled: {str(error).strip().splitlines()[0]}",
            f"use arithmetic, `math` and indexing only: term({form}) -> float.",
        ) from error
    return term


@compiled_here
def value_user_term(term: Callable[..., Number], before: Array, state: Array, clock: Array, values: Array) -> None:
    """Write a term of a single-agent game into its column; the collector masks and reports non-finite values."""
    for env in range(state.shape[0]):
        values[env] = np.float32(term(before[env], state[env], clock[env]))
