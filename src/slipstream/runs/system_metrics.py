"""CPU, memory and disk usage of this run."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from slipstream.system.machine import disk_free_bytes, memory_bytes

_before: dict[int, float] = {}  # pid -> CPU seconds at the last sample
_sampled_at = 0.0  # 0: not yet


def sample(path: Path = Path(".")) -> dict[str, float]:
    """Return the usage of this process and its children since the last sample; `path` selects the disk.

    `system/cpu_percent`: 100 is one core fully used (the first sample: the average since this process started).
    `system/memory_mib`: pages that children share with this process, such as the slab, count once.
    `system/memory_percent`: of the machine's memory, used by all processes, or of a container's limit, by this run.
    """
    global _before, _sampled_at
    me = psutil.Process()
    now = time.monotonic()
    cpu, memory = _usage(me)
    elapsed = now - _sampled_at if _sampled_at else time.time() - me.create_time()
    # A new child process started at zero, after the last sample.
    used = sum(max(seconds - _before.get(pid, 0.0), 0.0) for pid, seconds in cpu.items())
    _before, _sampled_at = cpu, now
    return {
        "system/cpu_percent": 100.0 * used / elapsed if elapsed > 0 else 0.0,
        "system/memory_mib": memory / 2**20,
        "system/memory_percent": max(float(psutil.virtual_memory().percent), 100.0 * memory / memory_bytes()),
        "system/disk_free_gib": disk_free_bytes(path) / 2**30,
    }


def memory_mib() -> float:
    """Return the memory of this process and its children; shared pages count once."""
    return _usage(psutil.Process())[1] / 2**20


def _usage(me: psutil.Process) -> tuple[dict[int, float], int]:
    """Return the CPU seconds per process and the total bytes, without processes that end meanwhile."""
    cpu: dict[int, float] = {}
    memory = 0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            with process.oneshot():
                times, used = process.cpu_times(), process.memory_info()
            cpu[process.pid] = times.user + times.system
            memory += used.rss if process.pid == me.pid else used.rss - getattr(used, "shared", 0)
    return cpu, memory
