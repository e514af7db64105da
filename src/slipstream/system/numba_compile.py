"""Decorators that compile scalar Python with numba: cached, without the GIL, IEEE exact unless stated otherwise.

Numba's cache is invalidated by a change in a function's own file only, not in the compiled functions that it calls or
in the constants that it imports. So the cache folder is named after a hash of all those sources, and a change in any
of them starts a new one.
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
OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
"""Options of all decorators; nothing calls the kernels from C, so no C wrapper is compiled."""
WITHOUT_REFERENCES: dict[str, Any] = {"_nrt": False}
"""No reference counts: kernels whose arrays all belong to the caller, who holds them, and who allocate none.

Counting them made a step of soccer three times as slow: every function counts each of its array arguments, and the
compiler does not remove all of it, even where functions are compiled into their callers.
"""
_IMPORTS = re.compile(rb"^ *from slipstream\.?([\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
_NAMES = re.compile(rb"\w+")
_CONSTANTS = re.compile(rb"\b[A-Z][A-Z\d_]*\b")
Number = Any
"""A scalar in a kernel. Numba infers its type at the call (float32 in network code), so `float` would mislead."""


def _compiled_sources(package: Path) -> dict[Path, bytes]:
    """Return the text of every source that compiles something, and of those from which it imports constants."""
    texts = {source: source.read_bytes() for source in package.rglob("*.py")}
    found = [source for source, text in texts.items() if b"numba" in text or b"numba_compile" in text]
    for source in found:  # the list grows during the loop
        for module, names in _IMPORTS.findall(texts[source]):
            origin = package.joinpath(*module.decode().split("."))
            taken = {origin / f"{name.decode()}.py" for name in _NAMES.findall(names)}
            if _CONSTANTS.search(names):
                taken.add(origin.with_suffix(".py"))
            found += sorted(taken & texts.keys() - set(found))
    return {source: texts[source] for source in found}


def cache_folder(package: Path = Path(__file__).parents[1]) -> Path:
    """Return the cache folder: in NUMBA_CACHE_DIR, beside the sources, or in the user's cache."""
    digest = hashlib.sha256()
    for source, text in sorted(_compiled_sources(package).items()):
        digest.update(source.relative_to(package).as_posix().encode() + text)
    name, given = f"numba-{digest.hexdigest()[:16]}", os.environ.get("NUMBA_CACHE_DIR")
    if not given and os.access(package, os.W_OK):
        return package / "__pycache__" / name
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given or home) / "slipstream" / name


def _use_cache(folder: Path, keep: int = 2) -> bool:
    """Set numba's cache folder and delete all but the newest others; return whether the folder is new."""
    setattr(numba.config, "CACHE_DIR", str(folder))  # noqa: B010 (an attribute that mypy does not know)
    if folder.exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(folder.parent.glob("numba-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in others[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return True


# Waiting threads must sleep soon: spinning ones take cores from the actors and from other processes. But the next
# minibatch comes within tens of microseconds, and waking a thread takes as long, so OpenMP (which reads this at its
# first use) spins for about that long before it sleeps. Ten times as long made two threads on a busy machine several
# times slower than one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
COLD = _use_cache(cache_folder())
"""Whether the cache was empty when this process started, so that everything has to be compiled."""
NOTICE = "Compiling the kernels, once for this version; it takes up to a minute."
NOTICE_AFTER_S = 2.0
"""Seconds of compiling after which the notice is printed."""


class _CompileNotice(event.Listener):
    """Prints a notice once per process when compiling takes long; loading from the cache does not count."""

    def __init__(self) -> None:
        self._notify: Callable[[str], object] | None = None
        self._began: list[float] = []
        self._spent = 0.0

    def enable(self, notify: Callable[[str], object]) -> None:
        """Call `notify` if compiling takes long from now on."""
        self._notify, self._spent = notify, 0.0

    def on_start(self, _: event.Event) -> None:
        """Begin to compile a function, or one that it calls."""
        self._began.append(time.perf_counter())
        if self._notify is not None and self._spent + self._began[-1] - self._began[0] > NOTICE_AFTER_S:
            self._notify(NOTICE)
            self._notify = None

    def on_end(self, _: event.Event) -> None:
        """Finish compiling a function."""
        began = self._began.pop()
        if not self._began:
            self._spent += time.perf_counter() - began


_compile_notice = _CompileNotice()
event.register("numba:compile", _compile_notice)  # type: ignore[no-untyped-call]


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def announce(notify: Callable[[str], object] = _print) -> None:
    """Print the notice: at once if the cache is empty, otherwise when this process compiles for some seconds."""
    if COLD:
        notify(NOTICE)
    else:
        _compile_notice.enable(notify)


def compiled(function: F) -> F:
    """Compile with strict IEEE arithmetic: the same bits on every machine. The function returns no arrays."""
    return cast(F, numba.njit(**OPTIONS | WITHOUT_REFERENCES)(function))


def compiled_with_arrays(function: F) -> F:
    """Like `compiled`, for functions that return arrays, whose references are counted."""
    return cast(F, numba.njit(**OPTIONS)(function))


def compiled_here(function: F) -> F:
    """Like `compiled`, without the cache, which would not notice a change in a user's function."""
    return cast(F, numba.njit(**OPTIONS | {"cache": False})(function))


def inlined(function: F) -> F:
    """Like `compiled`, and always compiled into its callers.

    A tick of a game is a dozen small functions. As calls, which is the compiler's default, they would cost more than
    their work.
    """
    return cast(F, numba.njit(**OPTIONS | WITHOUT_REFERENCES, forceinline=True)(function))


def compiled_fused(function: F) -> F:
    """Compile with fused multiply-add: for network arithmetic, where speed matters more than the last bit."""
    return cast(F, numba.njit(**OPTIONS, fastmath={"contract"})(function))


def compiled_sum(function: F) -> F:
    """Like `compiled_fused`, with sums in whatever order is fastest on this machine."""
    return cast(F, numba.njit(**OPTIONS, fastmath={"contract", "reassoc"})(function))


def twin(function: Callable[..., Any], name: str, **known: Any) -> FunctionType:
    """Return a copy of a function with another name, and with additional globals if `known` are given.

    Numba's cache distinguishes two ways of compiling one function only by their names.
    """
    names = function.__globals__ | known if known else function.__globals__
    copy = FunctionType(function.__code__, names, name)
    copy.__qualname__, copy.__module__ = name, function.__module__
    return copy


def compiled_threads(function: F) -> F:
    """Like `compiled_fused`, with `numba.prange` loops split over threads."""
    wrap = numba.njit(**OPTIONS, parallel=True, fastmath={"contract"})
    return cast(F, wrap(twin(function, f"{function.__name__}_threads")))
