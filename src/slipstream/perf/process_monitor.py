"""A monitor of this process and its workers: memory, waiting for a core, and the GPU."""

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
    """Samples in a thread while it is entered."""

    def __init__(self, gpu: bool = False) -> None:
        self.memory: list[tuple[float, float]] = []
        """Seconds, and MiB of this process and its workers."""
        self.utilisation: list[float] = []
        """Utilisation of the GPU, 0 to 1."""
        self.waiting_share = -1.0
        """Share of their runnable time that workers waited for a core; below 0: unknown on this system."""
        self._gpu = _nvml() if gpu else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

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

    def _sample(self) -> None:
        while True:
            self.memory.append((perf_counter() - self._began, memory_mib()))
            if self._gpu is not None:
                with contextlib.suppress(Exception):  # a driver may fail once
                    self.utilisation.append(self._gpu() / 100.0)
            if self._over.wait(EVERY_S):
                return


def core_times() -> dict[int, tuple[float, float]]:
    """Seconds that each worker of this process ran and waited for a core; empty if the system has no such counters."""
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
    """A function that returns the utilisation of the first GPU in percent; None without pynvml."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # not installed, or an unknown driver
        return None
    return lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
