"""Matchmaking: weights, bounds and chances by hand, and skill against a known library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from slipstream.confidence import wilson
from slipstream.league.matchmaking import (
    MU,
    SIGMA,
    Opponents,
    bounds,
    pfsp_weights,
    prioritise,
    probabilities,
    update_skill,
    win_rate,
)
from slipstream.settings import LeagueSettings

LEAGUE = LeagueSettings()


def seen(rates: list[float], games: float = 200.0, **more: Any) -> Opponents:
    """A record of so many games at these win rates."""
    count = len(rates)
    facts = {"ancestor": np.zeros(count, bool), "anchor": np.zeros(count, bool), "mu": np.full(count, MU)}
    facts |= {name: np.array(value) if isinstance(value, list) else value for name, value in more.items()}
    return Opponents(np.array(rates) * games, np.zeros(count), np.full(count, games), **facts)


def test_win_rates_begin_at_a_half() -> None:
    """(W + D / 2 + 1) / (N + 2)."""
    rates = win_rate(np.array([0, 3, 0]), np.array([0, 2, 8]), np.array([0, 6, 8]))
    assert rates == pytest.approx([0.5, 5 / 8, 0.5])


def test_bounds_are_those_of_wilson() -> None:
    """The same numbers as for single rates, draws as halves; 0 and 1 without games."""
    low, high = bounds(np.array([14.0, 0, 0.3]), np.array([4.0, 0, 0]), np.array([20.0, 0, 0.9]))
    assert (low[0], high[0]) == pytest.approx(wilson(16, 20))
    assert (low[1], high[1]) == (0, 1)
    assert (low[2], high[2]) == pytest.approx(wilson(0.3, 0.9))


def test_weights_by_hand() -> None:
    """Each weighting at 0.2 and 0.9."""
    rates = np.array([0.2, 0.9])
    assert pfsp_weights(rates, "hard") == pytest.approx([0.64, 0.01])
    assert pfsp_weights(rates, "variance") == pytest.approx([0.16, 0.09])
    assert pfsp_weights(rates, "linear") == pytest.approx([0.8, 0.1])
    assert pfsp_weights(rates, "capped") == pytest.approx([0.5, 0.1])
    assert prioritise(rates, "hard") == pytest.approx([0.64 / 0.65, 0.01 / 0.65])


def test_nothing_left_to_learn_is_uniform() -> None:
    """Where all weights vanish everybody is as likely; nobody at all is an empty array."""
    assert prioritise(np.ones(4), "hard") == pytest.approx([0.25] * 4)
    assert len(prioritise(np.zeros(0), "hard")) == 0


@pytest.mark.parametrize("way", ["league", "prioritised", "near", "latest", "uniform"])
@pytest.mark.parametrize("kind", ["main", "main_exploiter", "league_exploiter"])
def test_chances_sum_to_one(way: str, kind: str) -> None:
    """Whatever the record, also with an empty pool, self-play and players together are certain."""
    settings = LeagueSettings(matchmaking=way)
    for record in (seen([]), seen([0.5]), seen([0.1, 0.9, 0.6], ancestor=[True, True, False]), seen([1.0, 1.0], 1e12)):
        alone, each = probabilities(settings, record, kind)
        assert alone + each.sum() == pytest.approx(1) and (each >= 0).all() and alone >= 0


def test_the_plain_ways() -> None:
    """Uniform, the newest copy (never an anchor), and near in skill."""
    record = seen([0.5, 0.5, 0.5], mu=[20.0, 25.0, 45.0], own_mu=24.0, anchor=[False, False, True])
    assert probabilities(LeagueSettings(matchmaking="uniform"), record)[1] == pytest.approx([1 / 3] * 3)
    assert probabilities(LeagueSettings(matchmaking="latest"), record)[1].tolist() == [0, 1, 0]
    near = probabilities(LeagueSettings(matchmaking="near"), record)[1]
    assert near[1] > near[0] > near[2] and near[2] < 1e-4
    assert probabilities(LeagueSettings(matchmaking="latest"), seen([0.5], anchor=[True])) == (1.0, np.zeros(1))
    hard = probabilities(LeagueSettings(matchmaking="prioritised"), seen([0.2, 0.8]))[1]
    assert hard == pytest.approx(prioritise(win_rate(np.array([40, 160]), 0, 200), "hard"))


def test_the_league_when_all_is_well() -> None:
    """Nobody to verify against: 35 % and 15 % are self-play, 50 % by hard weights."""
    alone, each = probabilities(LEAGUE, seen([0.8, 0.8], ancestor=[True, False]))
    assert alone == pytest.approx(0.5) and each == pytest.approx([0.25, 0.25])


def test_verification_goes_to_those_that_beat_it() -> None:
    """A player whose upper bound is below 0.3 gets the 15 %, on top of its hard share."""
    alone, each = probabilities(LEAGUE, seen([0.1, 0.8]))
    hard = prioritise(win_rate(np.array([20, 160]), 0, 200), "hard")
    assert alone == pytest.approx(0.35)
    assert each == pytest.approx([0.5 * hard[0] + 0.15, 0.5 * hard[1]])


def test_verification_remembers_ancestors() -> None:
    """An own copy that is no longer surely beaten (below 0.7) is looked at; a stranger of the same rate is not."""
    _, each = probabilities(LEAGUE, seen([0.6, 0.6, 0.9], 2000, ancestor=[True, False, True]))
    assert each[0] - each[1] == pytest.approx(0.15)
    few = probabilities(LEAGUE, seen([0.6, 0.6], 4, ancestor=[True, False]))[1]
    assert few[0] == few[1]


def test_a_copy_that_is_too_strong_is_met_through_its_ancestors() -> None:
    """Below 0.3 against the latest own copy, self-play goes to ancestors by variance, not to itself."""
    record = seen([0.5, 0.2], 10, ancestor=[True, True])
    alone, each = probabilities(LEAGUE, record)
    rates = win_rate(record.wins, record.draws, record.games)
    expected = 0.5 * prioritise(rates, "hard") + 0.35 * prioritise(rates, "variance") + [0, 0.15]
    assert alone == 0 and each == pytest.approx(expected)


def test_exploiters_choose_their_own_way() -> None:
    """The main one plays the main agent unless that is hopeless, then its copies; the league's by capped weights."""
    record = seen([0.5, 0.9], ancestor=[True, False], main=0.11)
    assert probabilities(LEAGUE, record, "main_exploiter")[0] == 1
    alone, each = probabilities(LEAGUE, seen([0.5, 0.9], ancestor=[True, False], main=0.05), "main_exploiter")
    assert alone == 0 and each.tolist() == [1, 0]
    assert probabilities(LEAGUE, seen([0.5], main=0.01), "main_exploiter")[0] == 1
    capped = prioritise(win_rate(np.array([20, 180]), 0, 200), "capped")
    assert probabilities(LEAGUE, seen([0.1, 0.9]), "league_exploiter")[1] == pytest.approx(capped)


def test_skill_moves_towards_results() -> None:
    """The winner gains what its doubt allows, both are less unsure, and a draw between equals moves nothing."""
    (mu, sigma), (theirs, unsure) = update_skill((MU, SIGMA), (MU, SIGMA), 1)
    assert mu - MU == pytest.approx(MU - theirs) and mu > MU and sigma < SIGMA and unsure == sigma
    assert update_skill((MU, SIGMA), (MU, SIGMA), 0)[0][0] == MU
    assert all(math.isfinite(x) for side in update_skill((9000, 1), (0, 8), -1) for x in side)


def test_skill_is_that_of_openskill() -> None:
    """For two sides the package `openskill` gives the same numbers."""
    models = pytest.importorskip("openskill.models")
    model, random = models.PlackettLuce(), np.random.default_rng(0)
    for _ in range(50):
        one, other = ((random.uniform(10, 40), random.uniform(1, 9)) for _ in range(2))
        outcome = int(random.integers(-1, 2))
        teams = [[model.rating(mu=mu, sigma=sigma)] for mu, sigma in (one, other)]
        rated = model.rate(teams, ranks=[-outcome, 0])
        expected = [x for team in rated for x in (team[0].mu, team[0].sigma)]
        assert [x for side in update_skill(one, other, outcome) for x in side] == pytest.approx(expected, rel=1e-9)
