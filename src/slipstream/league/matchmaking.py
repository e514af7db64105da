"""Matchmaking: the probability of every opponent from results (PFSP and others), as pure functions of arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from slipstream.confidence import CONFIDENCE
from slipstream.contracts import Array
from slipstream.settings import LeagueSettings

MU, SIGMA = 25.0, 25.0 / 3
"""The skill of a new player and its standard deviation."""
BETA, TAU, MIN_SHRINK = 25.0 / 6, 25.0 / 300, 1e-4
"""Deviation of a performance, deviation that a game adds, and the least factor by which a game shrinks variance."""
BEATEN = 0.3
"""A player against which the learner's win rate is below this beats the learner."""
FORGOTTEN = 0.7
"""An earlier snapshot against which the win rate is below this may have been forgotten."""
HOPELESS = 0.1
"""Win rate below which an exploiter learns nothing from the current main agent."""


@dataclass(frozen=True)
class OpponentRecords:
    """A learner's decayed record against the players of the pool, one entry each."""

    wins: Array
    draws: Array
    games: Array
    ancestor: Array  # bool: a snapshot of this learner
    anchor: Array  # bool: a fixed player
    mu: Array
    own_mu: float = MU
    main: float = 0.5
    """An exploiter's win rate against the current main agent."""


def win_rate(wins: Array, draws: Array, games: Array) -> Array:
    """The posterior mean: one win and one loss are added, so that an unknown player counts as equal."""
    rate: Array = (wins + draws / 2 + 1) / (games + 2)
    return rate


def bounds(wins: Array, draws: Array, games: Array) -> tuple[Array, Array]:
    """Wilson's 95 % bounds of each win rate; 0 and 1 without games.

    Decayed counts understate the effective number of games, so the bounds are rather too wide.
    """
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    count = np.maximum(games, 1e-12)
    rate = np.clip((wins + draws / 2) / count, 0, 1)
    spread = z * np.sqrt(rate * (1 - rate) / count + (z / (2 * count)) ** 2)
    middle, scale = rate + z * z / (2 * count), 1 + z * z / count
    low, high = np.maximum((middle - spread) / scale, 0), np.minimum((middle + spread) / scale, 1)
    return np.where(games > 0, low, 0.0), np.where(games > 0, high, 1.0)


def prioritise(rate: Array, weighting: str) -> Array:
    """PFSP probabilities from win rates x: `hard` (1 - x)^2, `variance` x (1 - x), `linear` 1 - x, `capped`
    min(0.5, 1 - x).
    """
    weights = pfsp_weights(rate, weighting)
    total = float(weights.sum())
    return weights / total if total >= 1e-10 else np.full(len(weights), 1 / max(len(weights), 1))


def pfsp_weights(rate: Array, weighting: str) -> Array:
    """The PFSP weight of each opponent."""
    found: Array = {
        "hard": (1 - rate) ** 2,
        "variance": rate * (1 - rate),
        "linear": 1 - rate,
        "capped": np.minimum(0.5, 1 - rate),
    }[weighting]
    return found


def probabilities(settings: LeagueSettings, seen: OpponentRecords, kind: str = "main") -> tuple[float, Array]:
    """The probability of self-play, and of every player of the pool; they sum to 1.

    For a main exploiter the first is the probability of the current main agent; with an empty pool it is 1.
    """
    zeros = np.zeros(len(seen.games))
    if not len(zeros):
        return 1.0, zeros
    rate = win_rate(seen.wins, seen.draws, seen.games)
    if kind == "main_exploiter":
        mains = among(rate, seen.ancestor, "variance")
        return (1.0, zeros) if seen.main > HOPELESS or mains is None else (0.0, mains)
    if kind == "league_exploiter":
        return 0.0, prioritise(rate, "capped")
    if settings.matchmaking == "uniform":
        return 0.0, np.full(len(zeros), 1 / len(zeros))
    if settings.matchmaking == "prioritised":
        return 0.0, prioritise(rate, settings.weighting)
    if settings.matchmaking == "near":
        apart = (seen.mu - seen.own_mu) / BETA
        weights = np.exp(-(apart**2 - (apart**2).min()) / 2)
        return 0.0, weights / weights.sum()
    if settings.matchmaking == "latest":
        snapshots = np.flatnonzero(~seen.anchor)
        if not len(snapshots):
            return 1.0, zeros
        zeros[snapshots[-1]] = 1.0
        return 0.0, zeros
    return _league(settings, seen, rate)


def _league(settings: LeagueSettings, seen: OpponentRecords, rate: Array) -> tuple[float, Array]:
    """Self-play, PFSP games and verification games (against players that may have been forgotten) by their shares."""
    self_play = settings.self_play
    checked = min(settings.verification, 1 - self_play)
    found = (1 - self_play - checked) * prioritise(rate, settings.weighting)
    _, high = bounds(seen.wins, seen.draws, seen.games)
    suspects = (high < BEATEN) | (seen.ancestor & (high < FORGOTTEN))
    verified = among(rate, suspects, "hard")
    if verified is None:
        self_play += checked
    else:
        found += checked * verified
    snapshots = np.flatnonzero(seen.ancestor)
    if len(snapshots) and rate[snapshots[-1]] < BEATEN:
        ancestors = among(rate, seen.ancestor, "variance")
        assert ancestors is not None
        return 0.0, found + self_play * ancestors
    return self_play, found


def among(rate: Array, chosen: Array, weighting: str) -> Array | None:
    """PFSP probabilities among the chosen players; None if there are none."""
    if not chosen.any():
        return None
    found = np.zeros(len(rate))
    found[chosen] = prioritise(rate[chosen], weighting)
    return found


def update_skill(
    one: tuple[float, float], other: tuple[float, float], outcome: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Skills (mu, sigma) after a game that the first player won (1), drew (0) or lost (-1) (Weng and Lin, 2011)."""
    (mu, sigma), (their_mu, their_sigma) = one, other
    variance, their_variance = sigma**2 + TAU**2, their_sigma**2 + TAU**2
    scale = math.sqrt(variance + their_variance + 2 * BETA**2)
    expected = 1 / (1 + math.exp(min(max((their_mu - mu) / scale, -700.0), 700.0)))
    surprise = (outcome + 1) / 2 - expected
    certain = expected * (1 - expected)

    def moved(mean: float, spread: float, sign: int) -> tuple[float, float]:
        shrink = math.sqrt(spread) / scale * spread / scale**2 * certain
        return mean + sign * spread / scale * surprise, math.sqrt(spread * max(1 - shrink, MIN_SHRINK))

    return moved(mu, variance, 1), moved(their_mu, their_variance, -1)
