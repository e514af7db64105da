"""Intervals against the numbers in printed tables."""

from __future__ import annotations

import math

import pytest

from slipstream.confidence import mean_interval, median_interval, t_cdf, t_quantile, wilson


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [
        (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 3, 3.182), (0.975, 5, 2.571), (0.975, 10, 2.228),
        (0.975, 30, 2.042), (0.975, 99, 1.984), (0.95, 4, 2.132), (0.995, 7, 3.499), (0.9, 20, 1.325),
    ],
)  # fmt: skip
def test_t_quantiles_are_those_of_the_tables(probability: float, degrees: int, quantile: float) -> None:
    """Three decimals, as printed."""
    assert t_quantile(probability, degrees) == pytest.approx(quantile, abs=5.1e-4)


def test_t_is_symmetric_and_ends_at_the_normal() -> None:
    """F(0) = 1/2, F(-t) = 1 - F(t), and many degrees of freedom give 1.960."""
    for degrees in (1, 2, 7, 12):
        assert t_cdf(0.0, degrees) == pytest.approx(0.5)
        assert t_cdf(-1.3, degrees) == pytest.approx(1 - t_cdf(1.3, degrees))
    assert t_quantile(0.975, 10_000) == pytest.approx(1.9602, abs=1e-3)


@pytest.mark.parametrize(
    ("wins", "games", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962),
     (1, 100, 0.0018, 0.0545), (81, 263, 0.2553, 0.3662)],
)  # fmt: skip
def test_wilson_is_that_of_the_tables(wins: int, games: int, low: float, high: float) -> None:
    """Known intervals, four decimals; 81 of 263 is Newcombe's example."""
    assert wilson(wins, games) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_wilson_of_nothing_knows_nothing() -> None:
    """No games say nothing, rather than divide by zero."""
    assert wilson(0, 0) == (0.0, 1.0)


def test_mean_interval_by_hand() -> None:
    """Of 1, 2, 3: mean 2, deviation 1, t(2) = 4.303, half-width 4.303 / sqrt(3)."""
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert high - mean == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert mean - low == pytest.approx(high - mean)


def test_too_few_values_have_no_interval() -> None:
    """One value has a mean and no interval, none has neither."""
    assert mean_interval([4.0])[0] == 4.0
    assert math.isnan(mean_interval([4.0])[1])
    assert all(math.isnan(x) for x in mean_interval([]))


@pytest.mark.parametrize(
    ("count", "low", "high", "sure"),
    [(1, 1, 1, 0.0), (2, 1, 2, 0.5), (5, 1, 5, 0.9375), (6, 1, 6, 0.96875), (9, 2, 8, 0.9609375), (20, 6, 15, 0.9586)],
)
def test_medians_lie_between_order_statistics(count: int, low: int, high: int, sure: float) -> None:
    """The ranks and coverages of the sign test's tables; the values' distribution does not matter."""
    median, least, most, found = median_interval(list(range(count, 0, -1)))
    assert (median, least, most) == ((count + 1) / 2, low, high)
    assert found == pytest.approx(sure, abs=1e-4)


def test_no_values_have_no_median() -> None:
    """Nothing is said about nothing."""
    assert all(math.isnan(value) for value in median_interval([])[:3])
