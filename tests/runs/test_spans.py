"""Timing spans with negligible overhead."""

from __future__ import annotations

import time

import pytest

from slipstream.runs.spans import Spans


def test_totals_add_up() -> None:
    """Time under the same name adds up, by `with` or by start and stop, also when the block raises."""
    spans = Spans()
    with spans("collect"):
        time.sleep(0.01)
    spans.start("collect")
    spans.start("inner")
    time.sleep(0.01)
    spans.stop()
    spans.stop()
    with pytest.raises(ValueError), spans("learn"):
        raise ValueError
    totals = spans.totals()
    assert list(totals) == ["collect", "inner", "learn"]
    assert 0.02 <= totals["collect"] < 0.2 and 0.01 <= totals["inner"] < 0.1
    spans.reset()
    assert set(spans.totals().values()) == {0.0}


def test_shares_add_up() -> None:
    """Env, inference, learning and other sum to the wall time; evaluations are part of other."""
    spans = Spans()
    for name, seconds in (("collect", 0.02), ("learn", 0.01), ("evaluate", 0.01)):
        with spans(name):
            time.sleep(seconds)
    told = spans.shares(sum(spans.totals().values()) * 2, (3.0, 1.0))
    evaluating = told.pop("time/evaluate")
    assert sum(told.values()) == pytest.approx(1.0)
    assert told["time/env"] == pytest.approx(3 * told["time/inference"])
    assert 0.05 < evaluating < told["time/other"]
    assert Spans().shares(1.0, (0.0, 0.0))["time/evaluate"] == 0.0


def test_one_span_costs_little() -> None:
    """A span costs under 1.5 microseconds (best of several rounds, which ignores a busy machine)."""
    spans = Spans()
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(2000):
            with spans("learn"):
                pass
        best = min(best, (time.perf_counter() - began) / 2000)
    assert best < 1.5e-6
