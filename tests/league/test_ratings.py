"""Ratings: known maxima, intervals that hold, and results that would break a naive fit."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.league.ratings import ELO, PRIOR, dispersion, rate


def simulate(
    random: np.random.Generator, strength: list[float], nu: float, games: int, alike: float = 0.0
) -> tuple[Array, Array, Array]:
    """Play paired games between every two players; a share of the pairs is equal (or, below 0, opposite)."""
    players = len(strength)
    wins, draws, pairs = np.zeros((players, players)), np.zeros((players, players)), np.zeros((players, players, 5))
    for i in range(players):
        for j in range(i + 1, players):
            half = (strength[i] - strength[j]) / ELO / 2
            odds = np.array([math.exp(-half), nu, math.exp(half)])
            drawn = random.random((2, games // 2))
            bound = random.random(games // 2) < abs(alike)
            drawn[1] = np.where(bound, drawn[0] if alike > 0 else 1 - drawn[0], drawn[1])
            points = np.searchsorted(np.cumsum(odds / odds.sum())[:2], drawn)
            wins[i, j], wins[j, i] = (points == 2).sum(), (points == 0).sum()
            draws[i, j] = draws[j, i] = (points == 1).sum()
            pairs[i, j] = np.bincount(points.sum(axis=0), minlength=5)
            pairs[j, i] = pairs[i, j][::-1]
    return wins, draws, pairs


def test_two_players_without_draws_are_a_logarithm_apart() -> None:
    """30 wins, 10 losses and a prior of 0.1 give 400 log10(30.1 / 10.1) Elo, with the variance of log-odds."""
    fit = rate(np.array([[0, 10], [30, 0]]), np.zeros((2, 2)))
    assert fit.rating[0] == fit.low[0] == fit.high[0] == 1500
    assert fit.rating[1] - 1500 == pytest.approx(400 * math.log10(30.1 / 10.1))
    assert fit.high[1] - fit.rating[1] == pytest.approx(1.959964 * ELO * math.sqrt(1 / 30.1 + 1 / 10.1), rel=0.02)
    assert fit.draw == 0


def test_draws_have_their_share() -> None:
    """With 10 wins, 6 draws and 10 losses the players are equal, and the odds of a draw are 6 to 10.1."""
    fit = rate(np.array([[0, 10], [10, 0]]), np.array([[0, 6], [6, 0]]), anchor_rating=0)
    assert fit.rating == pytest.approx([0, 0])
    assert fit.draw == pytest.approx(6 / (10 + PRIOR))
    assert rate(np.array([[0, 10], [10, 0]]), np.array([[0, 60], [60, 0]])).draw == 2
    assert fit.expected() == pytest.approx(np.full((2, 2), 0.5))


def test_draws_do_not_stretch_the_scale() -> None:
    """A small rating difference means the same score with and without draws."""
    for drawn in (0, 100, 10_000):
        games = np.array([[0.0, 480], [520, 0]]) * 100
        fit = rate(games, np.array([[0, drawn], [drawn, 0]]) * 100.0, prior=0.0)
        points = (52_000 + drawn * 50) / (100_000 + drawn * 100)
        assert fit.rating[1] - 1500 == pytest.approx(-400 * math.log10(1 / points - 1), rel=0.01)


def test_a_player_who_never_loses_but_draws() -> None:
    """90 wins and 10 draws are a score of 95 %, about 500 Elo, not thousands."""
    fit = rate(np.array([[0, 0], [90, 0]]), np.array([[0, 10], [10, 0]]))
    assert 1800 < fit.low[1] < fit.rating[1] < fit.high[1] < 2200
    assert fit.superiority()[1, 0] > 0.999


def test_the_maximum_is_one() -> None:
    """At the maximum, each player's expected points equal its actual points, including the prior."""
    random = np.random.default_rng(3)
    wins, draws, _ = simulate(random, [0, 80, 200, -150], 0.6, 40)
    fit = rate(wins, draws, anchor=2)
    games = wins + wins.T + draws + 2 * PRIOR * (1 - np.eye(4))
    points = (wins + draws / 2 + PRIOR * (1 - np.eye(4))).sum(axis=1)
    assert (games * fit.expected()).sum(axis=1) == pytest.approx(points, abs=1e-6)
    assert fit.rating[2] == 1500


CASES = {
    "two players, 20 games": ([0, 50], 0.3, 20, 0.0),
    "two players, many draws": ([0, 100], 1.5, 100, 0.0),
    "three players, 6 games": ([0, 100, 200], 0.5, 6, 0.0),
    "six players, 20 games": ([0, 50, 100, 150, -100, 30], 0.5, 20, 0.0),
    "mostly draws": ([0, 40, 80], 6.0, 100, 0.0),
    "one-sided with draws": ([0, 900], 2.0, 100, 0.0),
    "one-sided": ([0, 700], 0.1, 50, 0.0),
    "one-sided three": ([0, 700, 900], 0.1, 200, 0.0),
    "every pair the same game twice": ([0, 100, 200, 300], 0.3, 60, 1.0),
    "pairs half alike": ([0, 100, 200, 300], 0.3, 60, 0.5),
    "pairs that are opposite": ([0, 100, 200], 0.3, 60, -0.7),
}


@pytest.mark.parametrize("case", CASES)
def test_intervals_hold(case: str) -> None:
    """Players of known strength are inside their stated 95 % interval 95 +- 3 % of the time."""
    random = np.random.default_rng(sorted(CASES).index(case))
    strength, nu, games, alike = CASES[case]
    inside = []
    for _ in range(900):
        wins, draws, pairs = simulate(random, strength, nu, games, alike)
        fit = rate(wins, draws, pairs=pairs)
        true = (np.array(strength) - strength[0]) * 2 / (2 + nu) + 1500
        inside.append(((fit.low <= true) & (true <= fit.high))[1:].mean())
    assert 0.92 <= np.mean(inside) <= 0.98, np.mean(inside)


def test_pairs_that_are_alike_widen_the_interval() -> None:
    """If pairs are ignored, games that come twice make the interval too narrow by a factor of sqrt(2)."""
    wins, draws, pairs = simulate(np.random.default_rng(0), [0, 40], 0.3, 2000, 1.0)
    paired, unpaired = rate(wins, draws, pairs=pairs), rate(wins, draws)
    assert (paired.high - paired.low)[1] / (unpaired.high - unpaired.low)[1] == pytest.approx(math.sqrt(2), rel=0.02)
    assert paired.rating[1] == unpaired.rating[1]
    assert paired.effective[0, 1] == pytest.approx(1000, rel=0.03)


def test_dispersion_of_few_games_is_drawn_to_independence() -> None:
    """A single pair, or none, has hardly any effect on the dispersion."""
    one = np.zeros((2, 2, 5))
    one[0, 1, 4] = one[1, 0, 0] = 1
    nothing, even = np.zeros((2, 2)), np.full((2, 2), 0.25)
    assert dispersion(np.array([[0, 2], [0, 0]]), nothing, even, one) == pytest.approx(np.ones((2, 2)), abs=0.2)
    assert (dispersion(nothing, nothing, even, None) == 1).all()


BREAKING = {
    "one win": ([[0, 1], [0, 0]], [[0, 0], [0, 0]]),
    "one draw": ([[0, 0], [0, 0]], [[0, 1], [1, 0]]),
    "only draws": ([[0, 0, 0]] * 3, [[0, 90, 90], [90, 0, 90], [90, 90, 0]]),
    "always won": ([[0, 5000, 5000], [0, 0, 5000], [0, 0, 0]], [[0, 0, 0]] * 3),
    "nothing": ([[0, 0], [0, 0]], [[0, 0], [0, 0]]),
    "nobody else": ([[0]], [[0]]),
}


@pytest.mark.parametrize("case", BREAKING)
def test_one_sided_results_stay_finite(case: str) -> None:
    """Ratings, intervals and likelihoods are finite for all players connected to the anchor."""
    wins, draws = (np.array(table, float) for table in BREAKING[case])
    fit = rate(wins, draws)
    assert np.isfinite(fit.rating).all() and np.isfinite(fit.covariance).all() and math.isfinite(fit.draw)
    assert np.isfinite(fit.low[fit.connected]).all()
    if case == "always won":
        assert fit.rating[0] > fit.rating[1] > fit.rating[2]
        assert fit.superiority()[0, 2] > 0.99


def test_players_that_are_not_connected_to_the_anchor() -> None:
    """Two players that met only each other are rated around the anchor's rating, without an interval."""
    wins = np.zeros((5, 5))
    wins[0, 1] = wins[1, 0] = 10
    wins[2, 3], wins[3, 2] = 30, 10
    fit = rate(wins, np.zeros((5, 5)))
    assert fit.connected.tolist() == [True, True, False, False, False]
    assert np.isnan(fit.low[2:]).all() and np.isnan(fit.high[2:]).all() and np.isfinite(fit.low[:2]).all()
    assert fit.rating[2:4].mean() == pytest.approx(1500) and fit.rating[2] > 1500 > fit.rating[3]
    assert fit.rating[4] == 1500
    likely = fit.superiority()
    assert likely[2, 3] > 0.99 and math.isnan(likely[0, 2]) and math.isnan(likely[4, 0])


def test_likelihood_of_superiority() -> None:
    """For two players it is the probability that a normal difference is above 0; for a player and itself 1/2."""
    fit = rate(np.array([[0, 60], [40, 0]]), np.zeros((2, 2)))
    gap = math.log(60.1 / 40.1) / math.sqrt(1 / 60.1 + 1 / 40.1)
    likely = fit.superiority()
    assert likely[0, 1] == pytest.approx(0.5 * math.erfc(-gap / math.sqrt(2)), abs=1e-3)
    assert likely[0, 1] + likely[1, 0] == pytest.approx(1) and likely[0, 0] == 0.5


def test_many_games_are_rated_at_once() -> None:
    """33 players and 100,000 games take less than 50 ms."""
    random = np.random.default_rng(0)
    wins, draws, pairs = simulate(random, random.normal(0, 200, 33).tolist(), 0.3, 190)
    assert wins.sum() + draws.sum() / 2 > 100_000
    times = []
    for _ in range(3):
        start = time.perf_counter()
        rate(wins, draws, pairs=pairs).superiority()
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05
