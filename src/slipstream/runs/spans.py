"""Timing spans with negligible overhead.

    with spans("learn"):
        ...

One object per name is made once and reused, so entering a span allocates nothing. Spans may nest; the time of an inner
span counts for both names.
"""

from __future__ import annotations

from time import perf_counter_ns
from types import TracebackType


class _Span:
    """The total time of one name, and the context manager that adds to it."""

    __slots__ = ("_began", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        self._began = 0

    def __enter__(self) -> None:
        self._began = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.total_ns += perf_counter_ns() - self._began


class Spans:
    """Seconds spent in each span since the last reset; for one thread."""

    __slots__ = ("_open", "_spans")

    def __init__(self) -> None:
        self._spans: dict[str, _Span] = {}
        self._open: list[_Span] = []

    def __call__(self, name: str) -> _Span:
        """Return the span of `name`, for a `with` statement."""
        span = self._spans.get(name)
        if span is None:
            span = self._spans[name] = _Span()
        return span

    def start(self, name: str) -> None:
        """Begin a span without a `with` block; `stop` ends the span that was begun last."""
        span = self(name)
        self._open.append(span)
        span._began = perf_counter_ns()

    def stop(self) -> None:
        """End the span that was begun last."""
        now = perf_counter_ns()
        span = self._open.pop()
        span.total_ns += now - span._began

    def totals(self) -> dict[str, float]:
        """Return the seconds per name, of finished spans only."""
        return {name: span.total_ns * 1e-9 for name, span in self._spans.items()}

    def shares(self, wall: float, collecting: tuple[float, float]) -> dict[str, float]:
        """Return the fraction of the wall time per phase.

        The collecting time is split in proportion to `collecting`, the seconds in environments and in inference.
        Evaluations are part of `time/other`, and also listed as `time/evaluate`.
        """
        totals, wall = self.totals(), max(wall, 1e-9)
        waited, learn = totals.get("collect", 0.0), totals.get("learn", 0.0)
        env_seconds, policy_seconds = collecting
        share = env_seconds / max(env_seconds + policy_seconds, 1e-9)
        return {
            "time/env": waited * share / wall,
            "time/inference": waited * (1 - share) / wall,
            "time/learn": learn / wall,
            "time/other": max(0.0, 1.0 - (waited + learn) / wall),
            "time/evaluate": totals.get("evaluate", 0.0) / wall,
        }

    def reset(self) -> None:
        """Set all totals to zero."""
        for span in self._spans.values():
            span.total_ns = 0
