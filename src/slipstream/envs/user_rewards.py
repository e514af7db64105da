"""Reward terms that users write: compiled for this process, and said at once if they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from slipstream.contracts import Array
from slipstream.errors import ConfigError
from slipstream.system.numba_compile import Number, compiled_here


def compile_term(name: str, function: Callable[..., Any], more: tuple[str, ...] = ()) -> Any:
    """Compile a user's term for the types it will meet: the state before and after, the clock, and `more` integers."""
    term: Any = function if hasattr(function, "py_func") else compiled_here(function)
    row, clock = numba.types.Array(numba.float32, 1, "C"), numba.types.Array(numba.int64, 1, "C")
    try:
        if hasattr(term, "compile"):  # not where numba is switched off
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
    """Write a term of games for one into its column; what is not finite is masked and named by whoever collects."""
    for env in range(state.shape[0]):
        values[env] = np.float32(term(before[env], state[env], clock[env]))
