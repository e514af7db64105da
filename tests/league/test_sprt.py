"""SPRT: ratios by hand, error rates, and an unbiased estimate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.errors import ConfigError
from slipstream.league.sprt import SCORES, Sprt, log_likelihood_ratio, to_elo, to_score


def test_scores_and_elo() -> None:
    """0 Elo is a score of 1/2, 400 Elo is ten to one, and the inverse holds."""
    assert to_score(0) == 0.5
    assert to_score(400) == pytest.approx(10 / 11)
    assert to_elo(to_score(-123.0)) == pytest.approx(-123)
    assert to_elo(1.0) == math.inf and to_elo(0.0) == -math.inf


def test_the_ratio_by_hand() -> None:
    """20 pairs won and 10 lost are tosses of a coin: 20 log(s1 / s0) + 10 log((1 - s1) / (1 - s0))."""
    low, high = 0.5, to_score(35)
    by_hand = 20 * math.log(high / low) + 10 * math.log((1 - high) / (1 - low))
    assert float(log_likelihood_ratio(np.array([10, 0, 0, 0, 20]), low, high)) == pytest.approx(by_hand, abs=1e-3)


def test_the_ratio_is_near_its_normal_approximation() -> None:
    """With many games of all kinds, the ratio is near N (s1 - s0) (2 s - s0 - s1) / (2 var)."""
    counts = np.array([100, 40, 300, 50, 130])
    low, high = 0.5, to_score(35)
    mean = (counts * SCORES).sum() / counts.sum()
    variance = (counts * (SCORES - mean) ** 2).sum() / counts.sum()
    nearly = counts.sum() * (high - low) * (2 * mean - low - high) / (2 * variance)
    assert float(log_likelihood_ratio(counts, low, high)) == pytest.approx(nearly, rel=0.03)


def test_bounds_and_verdicts() -> None:
    """The bounds are +-2.944; wins alone pass after 31 pairs, not after one; a verdict is final."""
    test = Sprt()
    assert test.bounds == pytest.approx((-2.944, 2.944), abs=1e-3)
    assert test.add(1, 1) == "INCONCLUSIVE" and test.games == 2
    for _ in range(29):
        assert test.add(1, 1) == "INCONCLUSIVE"
    assert test.add(1, 1) == "PASS" and test.games == 62
    before = test.describe()
    assert test.add(-1, -1) == "PASS" and test.describe() == before
    losing = Sprt()
    while losing.add(-1, 0) == "INCONCLUSIVE":
        pass
    assert losing.verdict == "FAIL" and losing.counts.tolist() == [0, losing.games // 2, 0, 0, 0]


def test_equal_hypotheses_are_an_error() -> None:
    """The second Elo must be the larger one."""
    with pytest.raises(ConfigError, match=r"between 5 and 5 Elo"):
        Sprt(5, 5)


def test_an_estimate_without_games() -> None:
    """Without games the interval of the estimate is infinite."""
    assert Sprt().estimate() == (0.0, -math.inf, math.inf)
    assert Sprt().describe()["verdict"] == "INCONCLUSIVE"


def outcomes(random: np.random.Generator, elo: float, draws: float, runs: int, pairs: int) -> Array:
    """Points [runs, pairs] of pairs, 0 to 4, between players with this Elo difference."""
    score = to_score(elo)
    drawn = draws * 4 * score * (1 - score)
    thrown = random.random((runs, pairs, 2))
    points: Array = ((thrown < score - drawn / 2).astype(int) + (thrown < score + drawn / 2)).sum(axis=2)
    return points


def run_tests(points: Array) -> tuple[Array, Array]:
    """Verdicts (1, 0, -1) and numbers of pairs of many tests at once."""
    counts = (points[..., None] == np.arange(5)).cumsum(axis=1)
    ratio = log_likelihood_ratio(counts, 0.5, to_score(35))
    ended = np.abs(ratio) >= -math.log(0.05 / 0.95)
    last = np.where(ended.any(axis=1), ended.argmax(axis=1), points.shape[1] - 1)
    rows = np.arange(len(points))
    return np.where(ended[rows, last], np.sign(ratio[rows, last]), 0), last + 1


@pytest.mark.parametrize(
    ("elo", "draws", "least", "most", "games"),
    [(0, 0.0, 0.0, 0.09, 480), (17.5, 0.0, 0.3, 0.7, 900), (35, 0.0, 0.9, 1.0, 509), (70, 0.0, 0.98, 1.0, 188),
     (0, 0.4, 0.0, 0.09, 320), (35, 0.4, 0.9, 1.0, 320)],
)  # fmt: skip
def test_error_rates(elo: float, draws: float, least: float, most: float, games: float) -> None:
    """About 5 % of equal players pass, 5 % of those 35 Elo stronger fail, and the number of games is as expected."""
    random = np.random.default_rng(int(elo * 10 + draws * 100))
    verdicts, pairs = run_tests(outcomes(random, elo, draws, 200, 1000))
    assert least <= (verdicts == 1).mean() <= most
    assert 2 * pairs.mean() == pytest.approx(games, rel=0.25)
    if elo in (0, 35):
        assert (verdicts == (1 if elo == 0 else -1)).mean() <= 0.09


def test_the_estimate_is_unbiased_by_stopping() -> None:
    """The estimate is median-unbiased and its interval holds, while the plain score of a passed test is too high."""
    random, better, flattered, inside = np.random.default_rng(5), [], [], []
    points = outcomes(random, 50, 0.2, 200, 1000)
    _, pairs = run_tests(points)
    for played, count in zip(points, pairs, strict=True):
        test = Sprt()
        test.counts = np.bincount(played[:count], minlength=5).astype(float)
        test.llr = float(log_likelihood_ratio(test.counts, 0.5, to_score(35)))
        test.verdict = "PASS" if test.llr > 2.944 else "FAIL" if test.llr < -2.944 else "INCONCLUSIVE"
        elo, low, high = test.estimate()
        better.append(elo > 50)
        inside.append(low <= 50 <= high)
        flattered.append(to_elo(test.score()) > 50)
    assert 0.4 <= np.mean(better) <= 0.6
    assert np.mean(flattered) > 0.6
    assert 0.91 <= np.mean(inside) <= 0.99


@pytest.mark.parametrize("pair", [(1, 1), (1, -1), (0, 0), (-1, -1)])
@pytest.mark.parametrize("bounds", [(0, 1), (0, 35), (-5, 300)])
def test_estimates_lie_in_their_interval(pair: tuple[int, int], bounds: tuple[float, float]) -> None:
    """The estimate lies in its interval, for any result and any length."""
    test = Sprt(*bounds)
    for _ in range(5):
        test.add(*pair)
    elo, low, high = test.estimate()
    assert low < elo < high and math.isfinite(elo)
