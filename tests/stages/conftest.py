"""Commands in pseudo-terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from terminal_process import TerminalProcess


@pytest.fixture
def start_terminal() -> Iterator[Callable[..., TerminalProcess]]:
    """Start a command in a pseudo-terminal; it is stopped when the test ends."""
    started: list[TerminalProcess] = []

    def start(*words: str, **more: Any) -> TerminalProcess:
        started.append(TerminalProcess(*words, **more))
        return started[-1]

    yield start
    for process in started:
        process.close()
