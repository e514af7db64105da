"""Being asked to stop: Ctrl-C and SIGTERM become a wish that a loop looks at."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

STOPPED = {"SIGTERM": 143, "Ctrl-C": 130}
"""Exit codes of what was stopped and has saved."""


@dataclass
class StopRequest:
    """What the outside may ask of a loop at any moment; it looks at every boundary."""

    stop: str = ""
    """Why to stop; empty: go on."""
    save: bool = False


@contextlib.contextmanager
def handle_signals(wishes: StopRequest) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the loop at its next boundary; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, _: Any) -> None:
        if wishes.stop:
            raise KeyboardInterrupt
        wishes.stop = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
