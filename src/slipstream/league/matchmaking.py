"""Who plays whom: chances of every opponent from results, as pure functions of arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from slipstream.confidence import CONFIDENCE
from slipstream.contracts import Array
from slipstream.settings import LeagueSettings

MU, SIGMA = 25.0, 25.0 / 3
"""A new player's skill and how unsure it is."""
BETA, TAU, LEAST = 25.0 / 6, 25.0 / 300, 1e-4
"""Spread of a performance, what a game adds to the doubt, and the least share of the variance that a game leaves."""
BEATEN = 0.3
"""Who holds a learner below this win rate beats it."""
FORGOTTEN = 0.7
"""An earlier copy that a learner may not beat this often may have been forgotten."""
HOPELESS = 0.1
"""Win rate below which playing the main agent teaches an exploiter nothing."""


@dataclass(frozen=True)
class Opponents:
    """A learner's record against the players of the pool, one entry each; counts are decayed."""

    wins: Array
    draws: Array
    games: Array
    ancestor: Array  # bool: a copy of this learner
    anchor: Array  # bool: a pinned player
    mu: Array
    own_mu: float = MU
    main: float = 0.5
    """An exploiter's win rate against the main agent as it is now."""


def win_rate(wins: Array, draws: Array, games: Array) -> Array:
    """The mean of the posterior: one win and one loss are added, so that an unknown player counts as an equal."""
    rate: Array = (wins + draws / 2 + 1) / (games + 2)
    return rate


def bounds(wins: Array, draws: Array, games: Array) -> tuple[Array, Array]:
    """Wilson's 95 % bounds of each win rate; 0 and 1 without games.

    Decayed counts understate what they hold (their weights are unequal), so the bounds err on the wide side.
    """
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    count = np.maximum(games, 1e-12)
    rate = np.clip((wins + draws / 2) / count, 0, 1)
    spread = z * np.sqrt(rate * (1 - rate) / count + (z / (2 * count)) ** 2)
    middle, scale = rate + z * z / (2 * count), 1 + z * z / count
    low, high = np.maximum((middle - spread) / scale, 0), np.minimum((middle + spread) / scale, 1)
    return np.where(games > 0, low, 0.0), np.where(games > 0, high, 1.0)


def prioritise(rate: Array, weighting: str) -> Array:
    """Chances from win rates: `hard` (1 - x)^2, `variance` x (1 - x), `linear` 1 - x, `capped` min(0.5, 1 - x)."""
    weights = pfsp_weights(rate, weighting)
    total = float(weights.sum())
    return weights / total if total >= 1e-10 else np.full(len(weights), 1 / max(len(weights), 1))


def pfsp_weights(rate: Array, weighting: str) -> Array:
    """How much there is to learn from each opponent."""
    found: Array = {
        "hard": (1 - rate) ** 2,
        "variance": rate * (1 - rate),
        "linear": 1 - rate,
        "capped": np.minimum(0.5, 1 - rate),
    }[weighting]
    return found


def probabilities(settings: LeagueSettings, seen: Opponents, kind: str = "main") -> tuple[float, Array]:
    """The chance of self-play, and of every player of the pool; together 1.

    For a main exploiter the first is the chance of the main agent as it is now; without a pool it is always 1.
    """
    nobody = np.zeros(len(seen.games))
    if not len(nobody):
        return 1.0, nobody
    rate = win_rate(seen.wins, seen.draws, seen.games)
    if kind == "main_exploiter":
        mains = among(rate, seen.ancestor, "variance")
        return (1.0, nobody) if seen.main > HOPELESS or mains is None else (0.0, mains)
    if kind == "league_exploiter":
        return 0.0, prioritise(rate, "capped")
    if settings.matchmaking == "uniform":
        return 0.0, np.full(len(nobody), 1 / len(nobody))
    if settings.matchmaking == "prioritised":
        return 0.0, prioritise(rate, settings.weighting)
    if settings.matchmaking == "near":
        apart = (seen.mu - seen.own_mu) / BETA
        weights = np.exp(-(apart**2 - (apart**2).min()) / 2)
        return 0.0, weights / weights.sum()
    if settings.matchmaking == "latest":
        copies = np.flatnonzero(~seen.anchor)
        if not len(copies):
            return 1.0, nobody
        nobody[copies[-1]] = 1.0
        return 0.0, nobody
    return _league(settings, seen, rate)


def _league(settings: LeagueSettings, seen: Opponents, rate: Array) -> tuple[float, Array]:
    """Self-play, prioritised games and verification by their shares."""
    alone = settings.self_play
    checked = min(settings.verification, 1 - alone)
    found = (1 - alone - checked) * prioritise(rate, settings.weighting)
    _, high = bounds(seen.wins, seen.draws, seen.games)
    suspects = (high < BEATEN) | (seen.ancestor & (high < FORGOTTEN))
    verified = among(rate, suspects, "hard")
    if verified is None:
        alone += checked
    else:
        found += checked * verified
    copies = np.flatnonzero(seen.ancestor)
    if len(copies) and rate[copies[-1]] < BEATEN:
        ancestors = among(rate, seen.ancestor, "variance")
        assert ancestors is not None
        return 0.0, found + alone * ancestors
    return alone, found


def among(rate: Array, chosen: Array, weighting: str) -> Array | None:
    """Chances among the chosen players alone; None if nobody is."""
    if not chosen.any():
        return None
    found = np.zeros(len(rate))
    found[chosen] = prioritise(rate[chosen], weighting)
    return found


def update_skill(
    one: tuple[float, float], other: tuple[float, float], outcome: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Skills (mu, sigma) after a game that the first won (1), drew (0) or lost (-1): Plackett-Luce by Weng and Lin."""
    (mu, sigma), (their_mu, their_sigma) = one, other
    variance, their_variance = sigma**2 + TAU**2, their_sigma**2 + TAU**2
    scale = math.sqrt(variance + their_variance + 2 * BETA**2)
    expected = 1 / (1 + math.exp(min(max((their_mu - mu) / scale, -700.0), 700.0)))
    surprise = (outcome + 1) / 2 - expected
    certain = expected * (1 - expected)

    def moved(mean: float, spread: float, sign: int) -> tuple[float, float]:
        shrink = math.sqrt(spread) / scale * spread / scale**2 * certain
        return mean + sign * spread / scale * surprise, math.sqrt(spread * max(1 - shrink, LEAST))

    return moved(mu, variance, 1), moved(their_mu, their_variance, -1)
