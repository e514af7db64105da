"""SPRT: a sequential probability ratio test on pairs of games of whether one player is stronger than another.

It is the generalised SPRT on the five results of a pair of games (same start, sides swapped). The likelihoods are
exact: those of the maximum-likelihood distributions with the mean score of each hypothesis. (The usual normal
approximation passes after a single pair of wins.) A sequential test overestimates the winner, so the Elo estimate
corrects for the stopping rule, with the exit times of Brownian motion between two bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from slipstream.contracts import Array
from slipstream.errors import ConfigError

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
SCORES = np.arange(5) / 4
"""Score per game of a pair: LL, LD, LW or DD, DW, WW."""
EMPTY = 1e-3
"""The count of a result that did not occur."""
TERMS = 60
SHORT_TIME = 0.01
"""Below this time, in squared widths, the series does not converge and the farther bound does not matter."""


def to_score(elo: float) -> float:
    """The expected score of a player that is `elo` points stronger."""
    return 1 / (1 + 10 ** (-elo / 400))


def to_elo(score: float) -> float:
    """The Elo difference of a score; infinite for 0 and 1."""
    if score <= 0 or score >= 1:
        return math.inf if score >= 1 else -math.inf
    return -400 * math.log10(1 / score - 1)


def log_likelihood_ratio(counts: Array, low: float, high: float) -> Array:
    """The log-likelihood ratio [...] of pairs [..., 5] for a mean score of `high` against `low`."""
    counts = np.where(np.asarray(counts) > 0, counts, EMPTY)
    ratio = np.log1p(_tilt(counts, low) * (SCORES - low)) - np.log1p(_tilt(counts, high) * (SCORES - high))
    found: Array = (counts * ratio).sum(axis=-1)
    return found


def _tilt(counts: Array, score: float) -> Array:
    """The multiplier of the maximum-likelihood distribution counts / total / (1 + multiplier * (SCORES - score)).

    Newton's method with bisection where a step would leave the bracket.
    """
    shares, gaps = counts / counts.sum(axis=-1, keepdims=True), SCORES - score
    found = np.zeros((*counts.shape[:-1], 1))
    below, above = np.full_like(found, -1 / gaps.max()), np.full_like(found, -1 / gaps.min())
    for _ in range(60):
        pull = gaps / (1 + found * gaps)
        excess = (shares * pull).sum(axis=-1, keepdims=True)
        below, above = np.where(excess > 0, found, below), np.where(excess > 0, above, found)
        tried = found + excess / (shares * pull**2).sum(axis=-1, keepdims=True)
        tried = np.where((tried > below) & (tried < above), tried, (below + above) / 2)
        moved, found = np.abs(tried - found).max(initial=0.0), tried
        if moved < 1e-13:
            break
    return found


@dataclass
class Sprt:
    """A test of "at least `high` Elo stronger" against "at most `low` Elo stronger", updated pair by pair."""

    low: float = 0.0
    high: float = 35.0
    alpha: float = 0.05
    """The probability that a player that is `low` stronger passes."""
    beta: float = 0.05
    """The probability that a player that is `high` stronger fails."""
    counts: Array = field(default_factory=lambda: np.zeros(5))
    llr: float = 0.0
    verdict: Verdict = "INCONCLUSIVE"

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(
                f"An SPRT between {self.low:g} and {self.high:g} Elo is impossible.",
                "the second must be larger than the first",
            )

    @property
    def bounds(self) -> tuple[float, float]:
        """The log-likelihood ratios at which the test fails and passes."""
        return math.log(self.beta / (1 - self.alpha)), math.log((1 - self.beta) / self.alpha)

    @property
    def games(self) -> int:
        """Games of the test."""
        return 2 * int(self.counts.sum())

    def add(self, first: int, second: int) -> Verdict:
        """Add the outcomes (1, 0, -1) of the two games of a pair; a verdict is final."""
        if self.verdict == "INCONCLUSIVE":
            self.counts[first + second + 2] += 1
            self.llr = float(log_likelihood_ratio(self.counts, to_score(self.low), to_score(self.high)))
            fail, passed = self.bounds
            self.verdict = "PASS" if self.llr >= passed else "FAIL" if self.llr <= fail else "INCONCLUSIVE"
        return self.verdict

    def score(self) -> float:
        """Points per game so far; after a verdict it is biased towards the winner."""
        return float(self.counts @ SCORES / max(self.counts.sum(), 1))

    def estimate(self) -> tuple[float, float, float]:
        """The median-unbiased Elo difference with its 95 % interval, corrected for the stopping rule."""
        if not self.games:
            return 0.0, -math.inf, math.inf
        low, high = to_score(self.low), to_score(self.high)
        time = self._time(low, high)
        fail, passed = self.bounds
        stop = {"PASS": passed, "FAIL": fail, "INCONCLUSIVE": min(max(self.llr, fail), passed)}[self.verdict]

        def beyond(score: float) -> float:
            drift = (score - (low + high) / 2) / (high - low)
            return _beyond(drift, time, stop, fail, passed)

        middle, least, most = (to_elo(_solve(beyond, quantile)) for quantile in (0.5, 0.025, 0.975))
        return middle, least, most

    def _time(self, low: float, high: float) -> float:
        """The time of a Brownian motion of variance 1 whose observed drift, times this, is the ratio reached."""
        counts = np.where(self.counts > 0, self.counts, EMPTY)
        shares = counts / counts.sum()
        mean = float(shares @ SCORES)
        drift = (mean - (low + high) / 2) / (high - low)
        if abs(drift) > 0.02 and self.llr / drift > 0:
            return self.llr / drift
        variance = float(shares @ (SCORES - mean) ** 2)
        return float(counts.sum()) * (high - low) ** 2 / variance

    def describe(self) -> dict[str, object]:
        """The result as JSON values."""
        elo, least, most = self.estimate()
        return {
            "verdict": self.verdict,
            "llr": self.llr,
            "bounds": list(self.bounds),
            "test": [self.low, self.high],
            "games": self.games,
            "pairs": [int(count) for count in self.counts],
            "score": self.score(),
            "elo": elo,
            "elo_low": least,
            "elo_high": most,
        }


def _solve(beyond: Callable[[float], float], probability: float) -> float:
    """The score at which a result at least as good as the observed one has this probability."""
    below, above = 0.0, 1.0
    for _ in range(60):
        middle = (below + above) / 2
        if beyond(middle) < probability:
            below = middle
        else:
            above = middle
    return (below + above) / 2


def _beyond(drift: float, time: float, stop: float, fail: float, passed: float) -> float:
    """The probability of a result at least as good: passed sooner or, below the upper bound, ended higher.

    A result is better the sooner it passes, and worse the sooner it fails.
    """
    if stop >= passed:
        return _exit_before(drift, time, -fail, passed)
    if stop <= fail:
        return 1 - _exit_before(-drift, time, passed, -fail)
    return _exit_before(drift, time, -fail, passed) + _inside_above(drift, time, stop, fail, passed)


def _exit_before(drift: float, time: float, down: float, up: float) -> float:
    """The probability that Brownian motion with drift passes `up` within the time, before it passes `-down`."""
    width = down + up
    if time < SHORT_TIME * width**2:
        root = math.sqrt(time)
        mirrored = 2 * drift * up + _log_tail((up + drift * time) / root)
        return min(math.exp(_log_tail((up - drift * time) / root)) + math.exp(min(mirrored, 0.0)), 1.0)
    n = np.arange(1, TERMS + 1)
    decay = drift**2 / 2 + (n * math.pi / width) ** 2 / 2
    sign = np.where(n % 2 == 1, 1.0, -1.0)
    # The series for exits after `time` is subtracted from the probability of ever passing.
    later = math.pi / width**2 * (n * sign * np.sin(n * math.pi * down / width) * np.exp(-decay * time) / decay).sum()
    if abs(drift) < 1e-9:
        ever = down / width
    elif drift > 0:
        ever = -math.expm1(-2 * drift * down) / -math.expm1(-2 * drift * width)
    else:
        ever = math.exp(2 * drift * up) * math.expm1(2 * drift * down) / math.expm1(2 * drift * width)
    return min(max(ever - math.exp(min(drift * up, 700.0)) * float(later), 0.0), 1.0)


def _log_tail(z: float) -> float:
    """The logarithm of the normal distribution's upper tail."""
    if z < 30:
        return math.log(math.erfc(z / math.sqrt(2)) / 2)
    return -z * z / 2 - math.log(z * math.sqrt(2 * math.pi))


def _inside_above(drift: float, time: float, floor: float, fail: float, passed: float) -> float:
    """The probability that the motion has passed neither bound by then and is above `floor`."""
    width = passed - fail
    if time < SHORT_TIME * width**2:
        return math.exp(_log_tail((floor - drift * time) / math.sqrt(time)))
    c = np.arange(1, TERMS + 1) * math.pi / width
    weight = 2 / width * np.sin(-c * fail) * np.exp(-(drift**2 + c**2) * time / 2)

    def integral(y: float) -> Array:
        turn = c * (y - fail)
        found: Array = math.exp(min(drift * y, 700.0)) * (drift * np.sin(turn) - c * np.cos(turn)) / (drift**2 + c**2)
        return found

    return min(max(float((weight * (integral(passed) - integral(floor))).sum()), 0.0), 1.0)
