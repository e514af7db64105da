"""The modules that the user named by `--import`: the only ones in which a name from settings or a run is looked up."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

VARIABLE = "SLIPSTREAM_IMPORT"
"""The environment variable that names modules for every command, separated by spaces."""
_named: set[str] = set()
_in_variable: set[str] = set()


def names(modules: str | Sequence[str]) -> tuple[str, ...]:
    """Names of modules: several, or one as a string."""
    return (modules,) if isinstance(modules, str) else tuple(modules)


def read_variable() -> tuple[str, ...]:
    """The modules that the environment variable names; only the command line reads it."""
    found = tuple(os.environ.get(VARIABLE, "").split())
    _in_variable.clear()
    _in_variable.update(found)
    return found


def in_variable(module: str) -> bool:
    """Whether the environment variable named a module."""
    return module in _in_variable


def allow(module: str) -> None:
    """Remember that the user named a module, which is imported."""
    _named.add(module)


def allowed(module: str) -> ModuleType | None:
    """The module, if the user named it in this process."""
    return sys.modules.get(module) if module in _named else None
