"""Commands that do no work start at once."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest


@pytest.mark.usefixtures("quiet_machine")
def test_help_is_quick() -> None:
    """`slipstream --help` takes less than half a second."""
    taken = []
    for _ in range(4):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "slipstream.cli", "--help"], capture_output=True, check=True)
        taken.append(time.perf_counter() - began)
    assert min(taken) < 0.5
