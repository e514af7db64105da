"""Tracing of running code: lines of Python, numbers read from tensors, memory that is not freed."""

from __future__ import annotations

import contextlib
import gc
import sys
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

SYNCS = ("item", "cpu", "numpy", "tolist", "__bool__", "__float__", "__int__", "__index__", "__array__")
"""Methods of a tensor that return a number or an array; on a GPU each of them synchronises."""
CONSTANT = 0.3
"""Ratio of the smaller to the larger of two growths above which growth is steady."""


class LineCounts:
    """Counts of each line of Python."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()

    @property
    def total(self) -> int:
        """Total count."""
        return sum(self.counts.values())

    def hottest(self) -> tuple[str, int]:
        """The most frequent line as `file.py:12`, and its count."""
        if not self.counts:
            return "", 0
        (name, line), times = self.counts.most_common(1)[0]
        return place(name, line), times


def place(file: str, line: int) -> str:
    """A line by its file name and number, with its text if readable."""
    try:
        text = Path(file).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        text = ""
    return f"{Path(file).name}:{line}" + (f" `{text[:60]}`" if text else "")


@contextlib.contextmanager
def counting_lines() -> Iterator[LineCounts]:
    """Count the lines that run inside; this is many times slower."""
    lines, before = LineCounts(), sys.gettrace()
    counts = lines.counts

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            counts[frame.f_code.co_filename, frame.f_lineno] += 1
        return on_line

    sys.settrace(lambda frame, event, _: on_line)
    try:
        yield lines
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def counting_syncs() -> Iterator[Counter[str]]:
    """Count how often a number or an array is read from a tensor inside; nothing without torch."""
    counts: Counter[str] = Counter()
    torch = sys.modules.get("torch")
    if torch is None:
        yield counts
        return
    tensor, own = torch.Tensor, dict(vars(torch.Tensor))

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            counts[name] += 1
            return method(*args, **more)

        return call

    found = [name for name in SYNCS if hasattr(tensor, name)]
    for name in found:
        setattr(tensor, name, counted(name, getattr(tensor, name)))
    try:
        with _counting_waits(torch, counts):
            yield counts
    finally:
        for name in found:
            if name in own:
                setattr(tensor, name, own[name])
            else:
                delattr(tensor, name)


@contextlib.contextmanager
def _counting_waits(torch: Any, counts: Counter[str]) -> Iterator[None]:
    """Count further synchronisations with the GPU, if there is one."""
    if not torch.cuda.is_available():
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchronizing CUDA operation" in str(one.message) for one in caught)
    if waits > sum(counts.values()):
        counts["wait"] = waits - sum(counts.values())


def kept_bytes(work: Callable[[int], None], times: int) -> tuple[float, str]:
    """Bytes that each repeat of some work never frees, and the line that allocates them.

    `work(times)` runs four times: growth of the first may be initialisation, similar growth of all others is a leak.
    """
    skipped = [tracemalloc.Filter(False, name) for name in (tracemalloc.__file__, __file__)]
    snapshots = []
    tracemalloc.start()
    try:
        for _ in range(4):
            work(times)
            gc.collect()
            snapshots.append(tracemalloc.take_snapshot().filter_traces(skipped))
    finally:
        tracemalloc.stop()
    sizes = [sum(one.size for one in snapshot.statistics("filename")) for snapshot in snapshots]
    grown = [after - before for before, after in pairwise(sizes)]
    if min(grown) <= 0 or min(grown) < CONSTANT * max(grown):
        return 0.0, ""
    largest = max(snapshots[-1].compare_to(snapshots[0], "lineno"), key=lambda one: one.size_diff)
    return sum(grown) / (len(grown) * times), place(largest.traceback[0].filename, largest.traceback[0].lineno)
