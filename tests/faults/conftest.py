"""Commands in their own processes, identified by a mark in the environment of all their children."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

MARK = "SLIPSTREAM_TEST_MARK"


@pytest.fixture
def launch() -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Start a command; return its process and its mark. It is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, **more: Any) -> tuple[subprocess.Popen[str], str]:
        mark, pipe = uuid.uuid4().hex, subprocess.PIPE
        command = [sys.executable, "-m", "slipstream.cli", *words]
        environment = dict(os.environ, **{MARK: mark})
        started.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, **more))
        return started[-1], mark

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def living() -> Callable[[str], list[psutil.Process]]:
    """Return the live processes with a mark in their environment."""

    def find(mark: str) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    return find


@pytest.fixture
def until() -> Callable[[Callable[[], Any], float], bool]:
    """Wait for a condition for some seconds; return whether it became true."""

    def wait(condition: Callable[[], Any], seconds: float) -> bool:
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                return False
            time.sleep(0.02)
        return True

    return wait
