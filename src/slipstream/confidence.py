"""Confidence intervals: Wilson for rates, Student's t for means, order statistics for medians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, median

CONFIDENCE = 0.95


def wilson(successes: float, trials: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the Wilson score interval of a rate; (0, 1) when there were no trials."""
    if trials <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return mean, low and high by Student's t; NaN where there are too few values."""
    if not values:
        return math.nan, math.nan, math.nan
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, math.nan, math.nan
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_quantile(0.5 + confidence / 2, count - 1) * deviation / math.sqrt(count)
    return mean, mean - half, mean + half


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float, float]:
    """Return median, low, high and the interval's coverage, for any distribution of the values; NaN without values.

    The interval goes from the k-th smallest to the k-th largest value, for the largest k with enough coverage. The
    median is outside if fewer than k of n values are below it, or fewer than k above it (binomial with p = 1/2).
    With fewer than six values even the smallest and largest have less than 95 % coverage; they are returned with it.
    """
    if not values:
        return math.nan, math.nan, math.nan, 0.0
    ranked, count = sorted(values), len(values)
    outside, cut = 2 * 0.5**count, 0
    for k in range(1, (count + 1) // 2):
        more = outside + 2 * math.comb(count, k) * 0.5**count
        if more > 1 - confidence:
            break
        outside, cut = more, k
    return median(ranked), ranked[cut], ranked[-1 - cut], max(0.0, 1 - outside)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t, by bisection on its distribution function."""
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        if t_cdf(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_cdf(t: float, degrees: int) -> float:
    """Return the distribution function of Student's t, in closed form for integer degrees of freedom."""
    theta = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(theta), math.sin(theta)
    if degrees % 2:
        total, factor = 0.0, cosine
        for k in range(1, (degrees - 1) // 2 + 1):
            total += factor
            factor *= cosine * cosine * 2 * k / (2 * k + 1)
        return 0.5 + (theta + sine * total) / math.pi
    total, factor = 0.0, 1.0
    for k in range(1, degrees // 2 + 1):
        total += factor
        factor *= cosine * cosine * (2 * k - 1) / (2 * k)
    return 0.5 + sine * total / 2
