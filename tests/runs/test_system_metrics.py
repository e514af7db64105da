"""CPU, memory and disk usage of this run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from slipstream.runs.system_metrics import sample


def test_children_count() -> None:
    """A busy child counts in CPU and memory, and all numbers are finite and not negative."""
    sample()
    before = sample()["system/memory_mib"]
    script = "b = bytearray(64 << 20); b[::4096] = b'x' * len(b[::4096]); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            sample()
            time.sleep(0.5)
            now = sample()
        finally:
            child.kill()
    assert set(now) == {f"system/{k}" for k in ("cpu_percent", "memory_mib", "memory_percent", "disk_free_gib")}
    assert now["system/memory_mib"] > before + 50 and now["system/cpu_percent"] > 15
    assert all(value >= 0 for value in now.values())


def test_missing_folder(tmp_path: Path) -> None:
    """For a missing folder, the disk of its nearest parent is reported."""
    assert sample(tmp_path / "gone" / "too")["system/disk_free_gib"] > 0.0


def test_sample_is_cheap() -> None:
    """A sample takes a few milliseconds."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        sample()
        times.append(time.perf_counter() - began)
    assert min(times) < 0.1
