"""Matchmaking: weights, bounds and probabilities by hand, and skill against a known library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from slipstream.confidence import wilson
from slipstream.league.matchmaking import (
    MU,
    SIGMA,
    OpponentRecords,
    bounds,
    pfsp_weights,
    prioritise,
    probabilities,
    update_skill,
    win_rate,
)
from slipstream.settings import LeagueSettings

LEAGUE = LeagueSettings()


def record_of(rates: list[float], games: float = 200.0, **more: Any) -> OpponentRecords:
    """A record of `games` games each with these win rates."""
    count = len(rates)
    facts = {"ancestor": np.zeros(count, bool), "anchor": np.zeros(count, bool), "mu": np.full(count, MU)}
    facts |= {name: np.array(value) if isinstance(value, list) else value for name, value in more.items()}
    return OpponentRecords(np.array(rates) * games, np.zeros(count), np.full(count, games), **facts)


def test_win_rates_start_at_a_half() -> None:
    """The win rate is (W + D / 2 + 1) / (N + 2)."""
    rates = win_rate(np.array([0, 3, 0]), np.array([0, 2, 8]), np.array([0, 6, 8]))
    assert rates == pytest.approx([0.5, 5 / 8, 0.5])


def test_bounds_are_wilson_bounds() -> None:
    """The bounds equal those of single rates, with draws as halves; 0 and 1 without games."""
    low, high = bounds(np.array([14.0, 0, 0.3]), np.array([4.0, 0, 0]), np.array([20.0, 0, 0.9]))
    assert (low[0], high[0]) == pytest.approx(wilson(16, 20))
    assert (low[1], high[1]) == (0, 1)
    assert (low[2], high[2]) == pytest.approx(wilson(0.3, 0.9))


def test_weights_by_hand() -> None:
    """Each weighting at win rates of 0.2 and 0.9 has the value of its formula."""
    rates = np.array([0.2, 0.9])
    assert pfsp_weights(rates, "hard") == pytest.approx([0.64, 0.01])
    assert pfsp_weights(rates, "variance") == pytest.approx([0.16, 0.09])
    assert pfsp_weights(rates, "linear") == pytest.approx([0.8, 0.1])
    assert pfsp_weights(rates, "capped") == pytest.approx([0.5, 0.1])
    assert prioritise(rates, "hard") == pytest.approx([0.64 / 0.65, 0.01 / 0.65])


def test_zero_weights_are_uniform() -> None:
    """If all weights are 0, all players are equally likely; an empty pool gives an empty array."""
    assert prioritise(np.ones(4), "hard") == pytest.approx([0.25] * 4)
    assert len(prioritise(np.zeros(0), "hard")) == 0


@pytest.mark.parametrize("way", ["league", "prioritised", "near", "latest", "uniform"])
@pytest.mark.parametrize("kind", ["main", "main_exploiter", "league_exploiter"])
def test_probabilities_sum_to_one(way: str, kind: str) -> None:
    """The probabilities of self-play and all players sum to 1 for any record, also with an empty pool."""
    settings = LeagueSettings(matchmaking=way)
    for record in (
        record_of([]),
        record_of([0.5]),
        record_of([0.1, 0.9, 0.6], ancestor=[True, True, False]),
        record_of([1.0, 1.0], 1e12),
    ):
        self_play, each = probabilities(settings, record, kind)
        assert self_play + each.sum() == pytest.approx(1) and (each >= 0).all() and self_play >= 0


def test_the_plain_ways() -> None:
    """Uniform, the newest copy (never an anchor), and near in skill."""
    record = record_of([0.5, 0.5, 0.5], mu=[20.0, 25.0, 45.0], own_mu=24.0, anchor=[False, False, True])
    assert probabilities(LeagueSettings(matchmaking="uniform"), record)[1] == pytest.approx([1 / 3] * 3)
    assert probabilities(LeagueSettings(matchmaking="latest"), record)[1].tolist() == [0, 1, 0]
    near = probabilities(LeagueSettings(matchmaking="near"), record)[1]
    assert near[1] > near[0] > near[2] and near[2] < 1e-4
    assert probabilities(LeagueSettings(matchmaking="latest"), record_of([0.5], anchor=[True])) == (1.0, np.zeros(1))
    hard = probabilities(LeagueSettings(matchmaking="prioritised"), record_of([0.2, 0.8]))[1]
    assert hard == pytest.approx(prioritise(win_rate(np.array([40, 160]), 0, 200), "hard"))


def test_league_shares_without_verification() -> None:
    """Without players to verify against, 35 % and 15 % are self-play, and 50 % PFSP with hard weights."""
    self_play, each = probabilities(LEAGUE, record_of([0.8, 0.8], ancestor=[True, False]))
    assert self_play == pytest.approx(0.5) and each == pytest.approx([0.25, 0.25])


def test_verification_games_are_against_players_that_win() -> None:
    """A player with an upper bound below 0.3 gets the 15 %, in addition to its PFSP share."""
    self_play, each = probabilities(LEAGUE, record_of([0.1, 0.8]))
    hard = prioritise(win_rate(np.array([20, 160]), 0, 200), "hard")
    assert self_play == pytest.approx(0.35)
    assert each == pytest.approx([0.5 * hard[0] + 0.15, 0.5 * hard[1]])


def test_verification_includes_ancestors() -> None:
    """An own snapshot with a rate surely below 0.7 is verified; another player with the same rate is not."""
    _, each = probabilities(LEAGUE, record_of([0.6, 0.6, 0.9], 2000, ancestor=[True, False, True]))
    assert each[0] - each[1] == pytest.approx(0.15)
    few = probabilities(LEAGUE, record_of([0.6, 0.6], 4, ancestor=[True, False]))[1]
    assert few[0] == few[1]


def test_a_snapshot_that_is_too_strong_is_replaced_by_its_ancestors() -> None:
    """Below 0.3 against the latest own snapshot, self-play is replaced by ancestors with variance weights."""
    record = record_of([0.5, 0.2], 10, ancestor=[True, True])
    self_play, each = probabilities(LEAGUE, record)
    rates = win_rate(record.wins, record.draws, record.games)
    expected = 0.5 * prioritise(rates, "hard") + 0.35 * prioritise(rates, "variance") + [0, 0.15]
    assert self_play == 0 and each == pytest.approx(expected)


def test_opponents_of_exploiters() -> None:
    """A main exploiter plays the main agent, or its snapshots if it loses; a league exploiter uses capped PFSP."""
    record = record_of([0.5, 0.9], ancestor=[True, False], main=0.11)
    assert probabilities(LEAGUE, record, "main_exploiter")[0] == 1
    self_play, each = probabilities(LEAGUE, record_of([0.5, 0.9], ancestor=[True, False], main=0.05), "main_exploiter")
    assert self_play == 0 and each.tolist() == [1, 0]
    assert probabilities(LEAGUE, record_of([0.5], main=0.01), "main_exploiter")[0] == 1
    capped = prioritise(win_rate(np.array([20, 180]), 0, 200), "capped")
    assert probabilities(LEAGUE, record_of([0.1, 0.9]), "league_exploiter")[1] == pytest.approx(capped)


def test_skill_moves_towards_results() -> None:
    """The winner gains what the loser loses, both deviations shrink, and a draw between equals changes no mean."""
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
