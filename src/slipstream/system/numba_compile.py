"""The one way in which scalar Python is compiled: numba, cached, without the GIL, IEEE exact.

Numba's cache notices a change in a function's own file only, not in the compiled functions that it calls, nor in the
constants that it takes from elsewhere. So the cache stands in a folder named after a hash of all those sources: a
change in any of them starts a new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])
HOW: dict[str, Any] = {"cache": True, "nogil": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
"""What every way of compiling has in common; nobody takes a pointer to a function, so none is made for C."""
_IMPORTS = re.compile(rb"^ *from slipstream\.?([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
_NAMES = re.compile(rb"\w+")
_CONSTANTS = re.compile(rb"\b[A-Z][A-Z\d_]*\b")
Number = Any
"""A scalar in a kernel: numba decides its type at the call (float32 in network code), so Python's would mislead."""


def _compiled_sources(package: Path) -> dict[Path, bytes]:
    """The text of every source that compiles something, and of those whose constants such a one compiles in."""
    texts = {source: source.read_bytes() for source in package.rglob("*.py")}
    found = [source for source, text in texts.items() if b"numba" in text or b"numba_compile" in text]
    for source in found:  # grows
        for module, names in _IMPORTS.findall(texts[source]):
            origin = package.joinpath(*module.decode().split("."))
            taken = {origin / f"{name.decode()}.py" for name in _NAMES.findall(names)}
            if _CONSTANTS.search(names):
                taken.add(origin.with_suffix(".py"))
            found += sorted(taken & texts.keys() - set(found))
    return {source: texts[source] for source in found}


def cache_folder(package: Path = Path(__file__).parents[1]) -> Path:
    """Where compiled code is kept: where NUMBA_CACHE_DIR says, beside the sources, or in the user's cache."""
    digest = hashlib.sha256()
    for source, text in sorted(_compiled_sources(package).items()):
        digest.update(source.relative_to(package).as_posix().encode() + text)
    name, given = f"numba-{digest.hexdigest()[:16]}", os.environ.get("NUMBA_CACHE_DIR")
    if not given and os.access(package, os.W_OK):
        return package / "__pycache__" / name
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given or home) / "slipstream" / name


def _use_cache(folder: Path, keep: int = 2) -> bool:
    """Point numba at the folder and drop all but the newest others; return whether nothing is compiled yet."""
    setattr(numba.config, "CACHE_DIR", str(folder))  # noqa: B010 (an attribute that mypy does not know)
    if folder.exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(folder.parent.glob("numba-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in others[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return True


# Threads that wait must sleep soon: spinning ones take the cores from the actors, and from whatever else runs on the
# machine. But the next minibatch comes within some tens of microseconds, and waking a sleeper takes as long; so OpenMP
# (which reads this at its first use) waits for about that long before it sleeps. Ten times as long made two threads on
# a busy machine several times slower than one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
COLD = _use_cache(cache_folder())
"""Whether this process is the first of this version: then everything has to be compiled."""
NOTICE = "Compiling the kernels, once for this version; it takes up to a minute."
PATIENCE_S = 2.0
"""Seconds of compiling that need no explanation."""


class _Patience(event.Listener):
    """Says once in a process that something is being compiled, when it takes long; what is in the cache is not."""

    def __init__(self) -> None:
        self._say: Callable[[str], object] | None = None
        self._began: list[float] = []
        self._spent = 0.0

    def tell(self, say: Callable[[str], object]) -> None:
        """Whom to tell, if it takes long from now on."""
        self._say, self._spent = say, 0.0

    def on_start(self, _: event.Event) -> None:
        """A function, or one that it calls."""
        self._began.append(time.perf_counter())
        if self._say is not None and self._spent + self._began[-1] - self._began[0] > PATIENCE_S:
            self._say(NOTICE)
            self._say = None

    def on_end(self, _: event.Event) -> None:
        """Done."""
        began = self._began.pop()
        if not self._began:
            self._spent += time.perf_counter() - began


_patience = _Patience()
event.register("numba:compile", _patience)  # type: ignore[no-untyped-call]


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def announce(say: Callable[[str], object] = _print) -> None:
    """Say that kernels are compiled: at once where there are none yet, else when this process waits for some."""
    if COLD:
        say(NOTICE)
    else:
        _patience.tell(say)


def compiled(function: F) -> F:
    """Compile with strict IEEE arithmetic: the same bits on every machine."""
    return cast(F, numba.njit(**HOW)(function))


def compiled_here(function: F) -> F:
    """Like `compiled`, for this process alone: the cache would not notice another version of a user's function."""
    return cast(F, numba.njit(**HOW | {"cache": False})(function))


def inlined(function: F) -> F:
    """Like `compiled`, and always compiled into its callers.

    A tick of a game is a dozen small functions; left as calls, which is what the compiler does unless told otherwise,
    they cost more than what they do.
    """
    return cast(F, numba.njit(**HOW, forceinline=True)(function))


def compiled_fused(function: F) -> F:
    """Compile with fused multiply-add allowed: for network arithmetic, where speed matters more than the last bit."""
    return cast(F, numba.njit(**HOW, fastmath={"contract"})(function))


def compiled_sum(function: F) -> F:
    """Like `compiled_fused`, and sums are added up in whatever order is fastest on this machine."""
    return cast(F, numba.njit(**HOW, fastmath={"contract", "reassoc"})(function))


def twin(function: Callable[..., Any], name: str, **known: Any) -> FunctionType:
    """The same function under a name of its own, and with globals of its own if some are given.

    Numba's cache does not tell apart two ways of compiling one function, unless their names do.
    """
    names = function.__globals__ | known if known else function.__globals__
    made = FunctionType(function.__code__, names, name)
    made.__qualname__, made.__module__ = name, function.__module__
    return made


def compiled_threads(function: F) -> F:
    """Like `compiled_fused`, with `numba.prange` loops shared out over threads."""
    wrap = numba.njit(**HOW, parallel=True, fastmath={"contract"})
    return cast(F, wrap(twin(function, f"{function.__name__}_threads")))
