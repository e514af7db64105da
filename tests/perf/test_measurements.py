"""Times and trends, against numbers computed by hand."""

from __future__ import annotations

import pytest

from slipstream.perf.measurements import Times, Trend


def test_times_are_means_and_percentiles() -> None:
    """1 to 100 microseconds have a mean and a median of 50.5 and a 99 % quantile of 99.01."""
    times = Times.of([n * 1e-6 for n in range(1, 101)])
    assert times.count == 100
    assert (times.mean_us, times.p50_us) == pytest.approx((50.5, 50.5))
    assert (times.p95_us, times.p99_us) == pytest.approx((95.05, 99.01))


def test_a_line_is_a_trend() -> None:
    """A fall from 100 to 80 in ten equal steps is a significant loss of a fifth."""
    trend = Trend.of(range(11), [100.0 - 2 * n for n in range(11)])
    assert trend.sure and trend.change == pytest.approx(-0.2)
    assert (trend.first, trend.last) == pytest.approx((100.0, 80.0))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [5.0, 9.0],
        [100.0, 99.0, 101.0, 100.0, 99.0, 101.0, 100.0, 100.0],
        [100.0] * 8,
        [10.0, 60.0, 90.0, 99.0, 100.0, 100.0, 100.0, 100.0, 100.0, 100.0],
    ],
    ids=["nothing", "two points", "noise", "flat", "filled up"],
)
def test_no_trend(values: list[float]) -> None:
    """Noise, too few points, and a single rise are no trend."""
    assert not Trend.of(range(len(values)), values).sure
