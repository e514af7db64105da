"""Nash shares of known games, and strength that goes in circles."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.league.nash import cyclic_share, nash

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def test_rock_paper_scissors_are_a_third_each() -> None:
    """Nobody gains against the even mixture, however little is at stake."""
    for stake in (1.0, 0.01):
        share, skill = nash(stake * ROCK_PAPER_SCISSORS)
        assert share == pytest.approx([1 / 3] * 3) and skill == pytest.approx([0, 0, 0], abs=1e-9)


def test_a_dominated_player_has_no_share() -> None:
    """A fourth who loses to all three is not needed, and is worth what it gets against them."""
    payoff = np.zeros((4, 4))
    payoff[:3, :3] = ROCK_PAPER_SCISSORS
    payoff[3, :3], payoff[:3, 3] = -0.5, 0.5
    share, skill = nash(payoff)
    assert share == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0]) and share[3] == 0
    assert skill[3] == pytest.approx(-0.5)


def test_copies_share_what_one_had() -> None:
    """Entered twice, rock has a sixth each time and the others keep their third."""
    twice = [0, 0, 1, 2]
    share, _ = nash(ROCK_PAPER_SCISSORS[np.ix_(twice, twice)])
    assert share == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3], abs=1e-4)


def test_uneven_stakes() -> None:
    """With payoffs a, b, c between the three, each one's share is the stake between the two others."""
    payoff = np.array([[0, 0.2, -0.5], [-0.2, 0, 0.3], [0.5, -0.3, 0]])
    share, _ = nash(payoff)
    assert share == pytest.approx([0.3, 0.5, 0.2], abs=1e-4)


def test_equals_and_a_better_one() -> None:
    """Equals share evenly; a little better is enough for all of it; alone one has all."""
    assert nash(np.zeros((5, 5)))[0] == pytest.approx([0.2] * 5)
    assert nash(np.array([[0, 0.02], [-0.02, 0]]))[0].tolist() == [1, 0]
    assert nash(np.zeros((1, 1)))[0].tolist() == [1]


def test_nobody_gains_against_it() -> None:
    """In random games of many players the best reply to the shares gains nothing."""
    random = np.random.default_rng(0)
    for players in (2, 7, 33):
        payoff = np.tanh(random.normal(size=(players, players)))
        share, skill = nash(payoff)
        assert share.sum() == pytest.approx(1) and (share >= 0).all()
        assert skill.max() < 1e-4


def test_circles_are_told_from_ratings() -> None:
    """Rock, paper and scissors are all circle; players of plain strength are none beyond chance."""
    found = cyclic_share((1 + 0.6 * ROCK_PAPER_SCISSORS) / 2, np.full((3, 3), 100.0))
    assert found.share == pytest.approx(1) and not found.by_chance and found.cycles == [(0, 2, 1)]
    assert found.sentence == (
        "Ratings leave 100% of the differences unexplained, more than chance: the payoff tells more; "
        "1 circle of three, each surely beating the next."
    )
    random = np.random.default_rng(1)
    strength = random.normal(size=8)
    rng = 1 / (1 + np.exp(strength[None, :] - strength[:, None]))
    seen = np.triu(random.binomial(200, rng) / 200, 1)
    seen += np.tril(1 - seen.T, -1)
    plain = cyclic_share(seen, np.full((8, 8), 200.0))
    assert plain.by_chance and plain.share is not None and plain.share < 0.02 and not plain.cycles
    assert plain.sentence == "Ratings tell the whole story: what they leave unexplained is no more than chance."


def test_too_few_meetings_say_nothing() -> None:
    """Two players, or a chain of them, cannot go in circles."""
    games = np.array([[0, 10, 0], [10, 0, 10], [0, 10, 0]])
    found = cyclic_share(np.full((3, 3), 0.5), games)
    assert found.share is None and "Too few" in found.sentence
