"""Nash shares of known games, and cyclic strength."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.league.nash import cyclic_share, nash

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def test_rock_paper_scissors_are_a_third_each() -> None:
    """No player gains against the even mixture, for large and small payoffs."""
    for stake in (1.0, 0.01):
        share, skill = nash(stake * ROCK_PAPER_SCISSORS)
        assert share == pytest.approx([1 / 3] * 3) and skill == pytest.approx([0, 0, 0], abs=1e-9)


def test_a_dominated_player_has_no_share() -> None:
    """A fourth player that loses to all three has no share, and a negative payoff."""
    payoff = np.zeros((4, 4))
    payoff[:3, :3] = ROCK_PAPER_SCISSORS
    payoff[3, :3], payoff[:3, 3] = -0.5, 0.5
    share, skill = nash(payoff)
    assert share == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0]) and share[3] == 0
    assert skill[3] == pytest.approx(-0.5)


def test_duplicates_share_their_part() -> None:
    """With two rocks, each has a sixth, and the other players keep their third."""
    twice = [0, 0, 1, 2]
    share, _ = nash(ROCK_PAPER_SCISSORS[np.ix_(twice, twice)])
    assert share == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3], abs=1e-4)


def test_uneven_stakes() -> None:
    """With payoffs a, b, c between the three, each player's share is the payoff between the two others."""
    payoff = np.array([[0, 0.2, -0.5], [-0.2, 0, 0.3], [0.5, -0.3, 0]])
    share, _ = nash(payoff)
    assert share == pytest.approx([0.3, 0.5, 0.2], abs=1e-4)


def test_equal_players_and_a_stronger_one() -> None:
    """Equal players share evenly; a slightly stronger player has the whole share; so has a single player."""
    assert nash(np.zeros((5, 5)))[0] == pytest.approx([0.2] * 5)
    assert nash(np.array([[0, 0.02], [-0.02, 0]]))[0].tolist() == [1, 0]
    assert nash(np.zeros((1, 1)))[0].tolist() == [1]


def test_no_player_gains_against_the_equilibrium() -> None:
    """In random games of many players the best response to the shares gains nothing."""
    random = np.random.default_rng(0)
    for players in (2, 7, 33):
        payoff = np.tanh(random.normal(size=(players, players)))
        share, skill = nash(payoff)
        assert share.sum() == pytest.approx(1) and (share >= 0).all()
        assert skill.max() < 1e-4


def test_cycles_are_separated_from_ratings() -> None:
    """Rock, paper and scissors are fully cyclic; players with plain strengths are not, up to noise."""
    found = cyclic_share((1 + 0.6 * ROCK_PAPER_SCISSORS) / 2, np.full((3, 3), 100.0))
    assert found.share == pytest.approx(1) and not found.by_chance and found.cycles == [(0, 2, 1)]
    assert found.sentence == (
        "Ratings leave 100% of the differences unexplained, more than noise: see the payoff matrix; "
        "1 cycle of three players, each beating the next."
    )
    random = np.random.default_rng(1)
    strength = random.normal(size=8)
    probability = 1 / (1 + np.exp(strength[None, :] - strength[:, None]))
    seen = np.triu(random.binomial(200, probability) / 200, 1)
    seen += np.tril(1 - seen.T, -1)
    plain = cyclic_share(seen, np.full((8, 8), 200.0))
    assert plain.by_chance and plain.share is not None and plain.share < 0.02 and not plain.cycles
    assert plain.sentence == "Ratings explain the results: the rest is within noise."


def test_too_few_pairings() -> None:
    """Two players, or a chain of players, cannot form a cycle."""
    games = np.array([[0, 10, 0], [10, 0, 10], [0, 10, 0]])
    found = cyclic_share(np.full((3, 3), 0.5), games)
    assert found.share is None and "Too few" in found.sentence
