"""Limits of this machine: matrix multiplication, memory bandwidth, a line of Python, reading a number from a tensor."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from slipstream.perf.measurements import Limits
from slipstream.system import machine

SIDE = 512
"""Size of the multiplied matrices."""
COPIED = 32 * 2**20
"""Bytes, larger than a CPU cache."""
LINES = 20_000


def best_of(work: Callable[[], object], seconds: float, least: int = 3) -> float:
    """Seconds of the fastest of several repeats."""
    best, began, count = float("inf"), perf_counter(), 0
    while count < least or perf_counter() - began < seconds:
        start = perf_counter()
        work()
        best, count = min(best, perf_counter() - start), count + 1
    return best


def measure_limits(seconds: float = 1.0) -> Limits:
    """Measure all limits, each for a part of the time."""
    share = seconds / 3
    return Limits(
        cores=machine.cores(),
        memory_mib=machine.memory_bytes() / 2**20,
        gemm_gflops=gemm_gflops(share),
        copy_gib_s=copy_gib_s(share),
        line_us=line_us(share),
    )


def gemm_gflops(seconds: float) -> float:
    """Matrix multiplication with NumPy, GFLOP/s."""
    a, b = np.ones((2, SIDE, SIDE), np.float32)
    return 2 * SIDE**3 / best_of(lambda: a @ b, seconds, least=20) * 1e-9


def copy_gib_s(seconds: float) -> float:
    """Memory bandwidth of one core that copies, GiB/s."""
    source = np.ones(COPIED, np.uint8)
    target = np.zeros_like(source)
    return 2 * COPIED / best_of(lambda: np.copyto(target, source), seconds) / 2**30


def line_us(seconds: float) -> float:
    """Microseconds of a simple line of Python; a loop with one addition is two lines."""

    def count() -> float:
        total = 0.0
        for number in range(LINES):
            total += number * 0.5
        return total

    return best_of(count, seconds) / (2 * LINES) * 1e6


def item_us(device: str) -> float:
    """Microseconds of reading one number from a tensor."""
    import torch

    numbers = torch.zeros(256, device=device)
    return best_of(lambda: [numbers[k].item() for k in range(256)], 0.02) / 256 * 1e6
