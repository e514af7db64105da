"""A look at this process and its workers while they train: memory, waiting for a core, the GPU."""

from __future__ import annotations

import contextlib
import importlib
import threading
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

import psutil

from slipstream.runs.system_metrics import memory_mib

EVERY_S = 0.1


class ProcessMonitor:
    """Samples in a thread, between `with` and its end."""

    def __init__(self, gpu: bool = False) -> None:
        self.memory: list[tuple[float, float]] = []
        """Seconds, and MiB of this process and its workers."""
        self.utilisation: list[float] = []
        """Of the GPU, 0 to 1."""
        self.waiting_share = -1.0
        """Of the time that workers wanted to run, how much they waited for a core; below 0: this system cannot tell."""
        self._gpu = _nvml() if gpu else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> ProcessMonitor:
        self._began = perf_counter()
        self._before = core_times()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        after = core_times()
        self._over.set()
        self._thread.join()
        ran = waited = 0.0
        for pid, (running, waiting) in after.items():
            before = self._before.get(pid, (0.0, 0.0))
            ran, waited = ran + running - before[0], waited + waiting - before[1]
        if after and ran + waited > 0:
            self.waiting_share = waited / (ran + waited)

    def _look(self) -> None:
        while True:
            self.memory.append((perf_counter() - self._began, memory_mib()))
            if self._gpu is not None:
                with contextlib.suppress(Exception):  # a driver that says nothing now may do so later
                    self.utilisation.append(self._gpu() / 100.0)
            if self._over.wait(EVERY_S):
                return


def core_times() -> dict[int, tuple[float, float]]:
    """Seconds that each worker of this process ran and waited for a core; empty where the system does not tell."""
    found: dict[int, tuple[float, float]] = {}
    for child in psutil.Process().children():
        ran = waited = 0.0
        with contextlib.suppress(OSError, ValueError):
            for task in Path(f"/proc/{child.pid}/task").iterdir():
                on, off, _ = (task / "schedstat").read_text().split()
                ran, waited = ran + int(on) * 1e-9, waited + int(off) * 1e-9
            found[child.pid] = ran, waited
    return found


def _nvml() -> Any:
    """What tells how busy the first GPU is, in percent, where that package is installed."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # not installed, or a driver that it does not know
        return None
    return lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
