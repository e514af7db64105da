"""The modules that the user named by `--import`: the only ones in which a name from settings or a run is looked up."""

from __future__ import annotations

import sys
from types import ModuleType

_named: set[str] = set()


def allow(module: str) -> None:
    """Remember that the user named a module, which is imported."""
    _named.add(module)


def allowed(module: str) -> ModuleType | None:
    """The module, if the user named it in this process."""
    return sys.modules.get(module) if module in _named else None
