"""Paired timing: the ratio and its interval computed by hand, and when a comparison ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from slipstream.perf.paired_timing import PairedTiming, Ratio, compare, time_pairs
from slipstream.perf.trial import TrialRun


@dataclass
class Runner:
    """A fake training with known rates."""

    rates: list[float]
    log: list[str] = field(default_factory=list)
    name: str = ""

    @property
    def rate(self) -> float:
        """The next rate."""
        return self.rates.pop(0)

    def measure(self, seconds: float) -> Any:
        """Return some seconds at the next rate."""
        self.log.append(self.name)
        return self


def run(one: list[float], other: list[float], rounds: int = 6, **more: Any) -> Any:
    """A comparison with known rates."""
    log: list[str] = []
    runners = [cast(TrialRun, Runner(rates, log, name)) for rates, name in ((one, "A"), (other, "B"))]
    return time_pairs(*runners, seconds=0.1, rounds=rounds, **more), "".join(log)


def test_the_ratio_is_a_geometric_mean_with_students_interval() -> None:
    """Alternating ratios of 2 and 1/2 are no difference; logs 0.1 and 0.3 give 0.2 +- 12.706 * 0.1."""
    assert compare([(1.0, 2.0), (2.0, 1.0)]).mean == pytest.approx(1.0)
    ratio = compare([(1.0, math.exp(0.1)), (1.0, math.exp(0.3))])
    assert math.log(ratio.mean) == pytest.approx(0.2)
    assert math.log(ratio.high) == pytest.approx(0.2 + 12.706 * 0.1, rel=1e-3)
    assert not ratio.faster and not ratio.slower and str(compare([(2.0, 3.0)])) == "1.50x"


def test_rounds_alternate_and_end_when_sure() -> None:
    """The order alternates, and three clear rounds are enough."""
    result, log = run([10.0] * 6, [12.0, 12.1, 11.9, 0.1])
    assert log == "ABBAAB" and result.ratio.faster and result.rate == 12.0
    assert str(result.ratio).startswith("1.20x [1.1")


def test_a_race_that_is_lost_ends() -> None:
    """Half the speed ends after one round, an eighth less after two; the final comparison runs all rounds."""
    result, log = run([10.0] * 6, [5.0] * 6)
    assert log == "AB" and result.ratio.slower and str(result.ratio) == "0.50x"
    result, log = run([10.0] * 6, [8.8, 8.6, 20.0])
    assert log == "ABBA" and result.ratio.slower
    result, log = run([10.0] * 5, [5.0] * 5, rounds=5, sure=5)
    assert result.ratio.rounds == 5


def test_noise_runs_to_the_end() -> None:
    """Without a significant difference, all rounds are run and the result is no difference."""
    result, _ = run([10.0] * 6, [9.0, 12.0, 9.5, 11.0, 10.5, 12.0])
    assert result.ratio.rounds == 6 and not result.ratio.faster and not result.ratio.slower
    result, _ = run([10.0] * 6, [9.0, 12.0, 9.5], enough=lambda: True)
    assert result.ratio.rounds == 1


def test_the_middle() -> None:
    """The median of odd and even numbers of values."""
    ratio = Ratio(1.0, 1.0, 1.0, 3)
    for rates, middle in (((3.0, 1.0, 2.0), 2.0), ((4.0, 1.0, 2.0, 3.0), 2.5)):
        assert PairedTiming(ratio, [(1.0, rate) for rate in rates]).rate == middle
