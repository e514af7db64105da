"""Stop requests: Ctrl-C and SIGTERM set a flag that the loop polls."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

STOPPED = {"SIGTERM": 143, "Ctrl-C": 130}
"""Exit codes of a command that was stopped and has saved."""


@dataclass
class StopRequest:
    """Flags that a signal or a key sets at any time; the loop polls them after every iteration."""

    stop: str = ""
    """Why to stop; empty: continue."""
    save: bool = False
    """Whether to save a checkpoint after this iteration."""


@contextlib.contextmanager
def handle_signals(request: StopRequest) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the loop after the current iteration; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, _: Any) -> None:
        if request.stop:
            raise KeyboardInterrupt
        request.stop = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"

    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)
