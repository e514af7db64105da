"""Races: two trainings side by side, measured in turns, and by how much the one is faster."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.confidence import mean_interval
from slipstream.perf.trial import TrialRun

HOPELESS, LOSING = 0.7, 0.9
"""A mean below this ends a race after one round, or after two."""
WORTH = 1.02
"""So does an interval that ends below this: there is nothing to gain."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast, with its 95 % interval over rounds."""

    mean: float
    low: float
    high: float
    rounds: int

    @property
    def faster(self) -> bool:
        """Whether chance can be ruled out."""
        return self.low > 1.0

    @property
    def slower(self) -> bool:
        """The same, the other way round; where a race was lost early, its mean says it."""
        return self.high < 1.0 or self.mean < (HOPELESS if self.rounds == 1 else LOSING)

    def __str__(self) -> str:
        if self.rounds < 2:
            return f"{self.mean:.2f}x"
        return f"{self.mean:.2f}x [{self.low:.2f}, {self.high:.2f}]"


def compare(rates: list[tuple[float, float]]) -> Ratio:
    """How much faster the second of each pair of rates is: the geometric mean, with Student's interval."""
    logs = [math.log(other / one) for one, other in rates]
    mean, low, high = mean_interval(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), 0.0, math.inf, 1)
    return Ratio(math.exp(mean), math.exp(low), math.exp(high), len(logs))


@dataclass
class PairedTiming:
    """What a race showed."""

    ratio: Ratio
    rates: list[tuple[float, float]]

    @property
    def rate(self) -> float:
        """Steps per second of the second training, the median of the rounds."""
        return median([other for _, other in self.rates])


def time_pairs(
    one: TrialRun, other: TrialRun, *, seconds: float, rounds: int, sure: int = 3,
    enough: Callable[[], bool] = lambda: False,
) -> PairedTiming:  # fmt: skip
    """Let two trainings take turns of some seconds, each first in every second round.

    It ends before its last round when the second has lost already, when after `sure` rounds it is faster for sure or
    cannot be by much, or when there has been `enough`; never, if it takes all rounds to be sure.
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


def median(values: list[float]) -> float:
    """The median."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
