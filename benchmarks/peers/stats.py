"""The few statistics of the benchmark: medians with bootstrap intervals, means and differences with t intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Any

RESAMPLES = 10_000


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, range and the 95 % bootstrap interval of the median."""
    if not values:
        return {"n": 0}
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return {
        "n": len(values),
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "low": medians[int(0.025 * RESAMPLES)],
        "high": medians[int(0.975 * RESAMPLES) - 1],
    }


def told(values: dict[str, Any], digits: int) -> tuple[str, str, str]:
    """Median, range and interval of a spread as text."""
    if not values["n"]:
        return ("-", "-", "-")
    shown = {key: f"{values[key]:,.{digits}f}" for key in ("median", "min", "max", "low", "high")}
    return (shown["median"], f"{shown['min']}..{shown['max']}", f"{shown['low']}..{shown['high']}")


def mean_interval(values: Sequence[float]) -> dict[str, float]:
    """Mean with its 95 % t interval; the interval is infinite below two values."""
    half = t95(len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return {"n": len(values), "mean": fmean(values), "low": fmean(values) - half, "high": fmean(values) + half}


def difference(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Mean of `second` minus mean of `first`, with Welch's 95 % t interval."""
    gap = fmean(second) - fmean(first)
    if min(len(first), len(second)) < 2:
        return {"difference": gap, "low": -math.inf, "high": math.inf}
    parts = [stdev(values) ** 2 / len(values) for values in (first, second)]
    weights = [part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)]
    freedom = sum(parts) ** 2 / sum(weights) if sum(weights) > 0 else 1.0
    half = t95(freedom) * math.sqrt(sum(parts))
    return {"difference": gap, "low": gap - half, "high": gap + half}


def t95(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, by bisection on the integral of its density (Simpson)."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def mass(end: float, pieces: int = 2000) -> float:
        step = end / pieces
        heights = [math.pow(1 + (i * step) ** 2 / freedom, -(freedom + 1) / 2) for i in range(pieces + 1)]
        return scale * step / 3 * (heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]))

    low, high = 0.0, 700.0 if freedom < 2 else 50.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) < 0.475 else (low, middle)
    return middle


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
