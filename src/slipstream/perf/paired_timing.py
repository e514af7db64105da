"""Paired timing: two trainings in one process that are measured in turns, and the ratio of their rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from slipstream.confidence import mean_interval
from slipstream.perf.trial import TrialRun

HOPELESS, LOSING = 0.7, 0.9
"""A mean ratio below this stops the timing after one round, or after two."""
WORTH = 1.02
"""An interval that ends below this stops the timing too."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of rates with its 95 % interval over rounds."""

    mean: float
    low: float
    high: float
    rounds: int

    @property
    def faster(self) -> bool:
        """Whether it is significantly above 1."""
        return self.low > 1.0

    @property
    def slower(self) -> bool:
        """Whether it is significantly below 1, or so low that the timing was stopped early."""
        return self.high < 1.0 or self.mean < (HOPELESS if self.rounds == 1 else LOSING)

    def __str__(self) -> str:
        if self.rounds < 2:
            return f"{self.mean:.2f}x"
        return f"{self.mean:.2f}x [{self.low:.2f}, {self.high:.2f}]"


def compare(rates: list[tuple[float, float]]) -> Ratio:
    """The ratio of the second to the first rate of each pair: geometric mean with Student's interval."""
    logs = [math.log(other / one) for one, other in rates]
    mean, low, high = mean_interval(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), 0.0, math.inf, 1)
    return Ratio(math.exp(mean), math.exp(low), math.exp(high), len(logs))


@dataclass
class PairedTiming:
    """The ratio and the rates of each round."""

    ratio: Ratio
    rates: list[tuple[float, float]]

    @property
    def rate(self) -> float:
        """Median steps per second of the second training."""
        return median([other for _, other in self.rates])


def time_pairs(
    one: TrialRun,
    other: TrialRun,
    *,
    seconds: float,
    rounds: int,
    sure: int = 3,
    enough: Callable[[], bool] = lambda: False,
) -> PairedTiming:
    """Measure two trainings in turns of some seconds, in alternating order.

    It stops early if the second is clearly slower, if after `sure` rounds it is significantly faster or cannot be much
    faster, or if `enough` returns true; it does not stop early if `sure` is the number of rounds.
    """
    rates: list[tuple[float, float]] = []
    while True:
        if len(rates) % 2:
            second = other.measure(seconds).rate
            rates.append((one.measure(seconds).rate, second))
        else:
            first = one.measure(seconds).rate
            rates.append((first, other.measure(seconds).rate))
        ratio = compare(rates)
        lost = ratio.mean < (HOPELESS if len(rates) == 1 else LOSING) and sure < rounds
        decided = len(rates) >= sure and (ratio.faster or ratio.high < WORTH)
        if len(rates) >= rounds or lost or decided or enough():
            return PairedTiming(ratio, rates)
