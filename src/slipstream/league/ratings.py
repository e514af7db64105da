"""Ratings of all players at once: Bradley-Terry maximum likelihood with draws, one anchor, 95 % intervals.

Davidson's model of draws: win, draw and loss of i against j have odds exp(u) : nu : exp(-u), with u half the difference
of their strengths. It is a linear softmax, so the log-likelihood is concave in the strengths and log nu together, and
Newton's method finds its maximum. Strengths are given in Elo: a difference means the same score as without draws,
1 / (1 + 10^(-difference / 400)). Near equality that holds for any nu, and everywhere for nu = 0 and for nu = 2, where a
game is two half games. nu is limited to 2, because above it a few draws among many wins would stretch the scale without
bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from slipstream.confidence import CONFIDENCE
from slipstream.contracts import Array

ELO = 400 / math.log(10)
"""Elo points of one unit of strength, without draws."""
PRIOR = 0.1
"""Wins and losses added to every two players that met, so that no rating is infinite."""
PAIR_POINTS = np.arange(5) / 2
"""Points of a pair of games (same start, sides swapped): LL, LD, LW or DD, DW, WW."""
MAX_DRAW = 2.0
SHRINK = 5.0
"""Variance (of twenty even games) at which one matchup has the same weight as all others together."""
ITERATIONS = 100


@dataclass(frozen=True)
class Ratings:
    """The rating of each player in Elo, with its uncertainty."""

    rating: Array  # [players]
    low: Array  # [players], NaN where not connected
    high: Array  # [players]
    connected: Array  # [players] bool: whether games connect the player to the anchor
    group: Array  # [players] int: players of one group are connected by games
    covariance: Array  # [players, players] in Elo^2, relative to one player of each group
    draw: float
    """nu: the odds of a draw between equals against a win; 0 without draws."""
    effective: Array  # [players, players] effective number of independent games

    def superiority(self) -> Array:
        """The likelihood [i, j] that i is stronger than j; NaN if no games connect them."""
        spread = np.diagonal(self.covariance)
        variance = np.maximum(spread[:, None] + spread[None, :] - 2 * self.covariance, 1e-12)
        gap = (self.rating[:, None] - self.rating[None, :]) / np.sqrt(variance)
        likelihood = np.vectorize(NormalDist().cdf, otypes=[float])(gap)
        np.fill_diagonal(likelihood, 0.5)
        return np.where(self.group[:, None] == self.group[None, :], likelihood, np.nan)

    def expected(self) -> Array:
        """The expected score [i, j] of i against j: wins and half the draws."""
        gap = (self.rating[:, None] - self.rating[None, :]) / (ELO * _elo_scale(self.draw))
        wins, losses, _ = _win_probabilities(gap, self.draw)
        return (1 + wins - losses) / 2


def rate(
    wins: Array,
    draws: Array,
    *,
    anchor: int = 0,
    anchor_rating: float = 1500.0,
    pairs: Array | None = None,
    prior: float = PRIOR,
) -> Ratings:
    """Rate players from `wins[i, j]`, the games that i won against j, and `draws[i, j]` (symmetric).

    `pairs[i, j, k]` counts pairs of games by i's points (see PAIR_POINTS); their games are in `wins` and `draws` too.
    The games of a pair are correlated, which makes the intervals wider or narrower.
    """
    wins, draws = np.asarray(wins, float), np.asarray(draws, float)
    games = wins + wins.T + draws
    met = games > 0
    np.fill_diagonal(met, False)
    group = _groups(met)
    fixed = _fixed(group, games, anchor)
    free = np.flatnonzero(~fixed)
    won, drawn = np.where(met, wins + prior, 0.0), np.where(met, draws, 0.0)
    strength, draw = _maximise(won, drawn, free, 1.0 if drawn.any() else 0.0)
    fitted = 0 < draw < MAX_DRAW
    if draw > MAX_DRAW:
        strength, draw = _maximise(won, drawn, free, MAX_DRAW, held=True)
    win, loss, _ = _win_probabilities(strength[:, None] - strength[None, :], draw)
    spread = dispersion(wins, draws, (win + loss - (win - loss) ** 2) / 4, pairs)
    moving = np.append(free, len(wins)) if fitted else free
    covariance = ELO**2 * _covariance(strength, draw, games + 2 * prior * met, spread, moving)
    rating = ELO * _elo_scale(draw) * strength
    for number in np.unique(group):
        inside = group == number
        rating[inside] += anchor_rating - (rating[anchor] if number == group[anchor] else rating[inside].mean())
    connected = group == group[anchor]
    half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * np.sqrt(np.diagonal(covariance))
    half = np.where(connected, half, np.nan)
    return Ratings(rating, rating - half, rating + half, connected, group, covariance, draw, games / spread)


def dispersion(wins: Array, draws: Array, variance: Array, pairs: Array | None) -> Array:
    """The variance [i, j] of the points of i against j, relative to that of independent games under the model.

    The games of a pair are correlated, and draws may be more or less frequent than under the model. The variance is
    measured within each matchup, around its own mean, and shrunk towards the variance of all matchups.
    """
    players = len(wins)
    pairs = np.zeros((players, players, 5)) if pairs is None else np.asarray(pairs, float)
    games, pair_count = wins + wins.T + draws, pairs.sum(axis=2)
    count, half = np.maximum(games, 1), np.maximum(pair_count, 1)
    mean = (pairs @ PAIR_POINTS) / half
    observed = (pairs * (PAIR_POINTS - mean[..., None]) ** 2).sum(axis=2) * half / np.maximum(half - 1, 1)
    rate = (wins + draws / 2) / count
    single = np.maximum((wins + draws / 4) / count - rate**2, 0.0) * count / np.maximum(count - 1, 1)
    observed += np.maximum(games - 2 * pair_count, 0) * single
    expected = games * variance
    upper = np.triu_indices(players, 1)
    overall = (observed[upper].sum() + SHRINK) / (expected[upper].sum() + SHRINK)
    found: Array = np.clip((observed + SHRINK * overall) / (expected + SHRINK), 0.1, 2.0)
    return (found + found.T) / 2


def _elo_scale(draw: float) -> float:
    """The slope of the expected score at equal strength, relative to that without draws."""
    return 2 / (2 + draw)


def _win_probabilities(gap: Array, draw: float) -> tuple[Array, Array, Array]:
    """Win and loss probability, and the log of the sum of the three odds, for differences of strength."""
    half = gap / 2
    top = np.abs(half)
    total = np.exp(half - top) + np.exp(-half - top) + draw * np.exp(-top)
    return np.exp(half - top) / total, np.exp(-half - top) / total, top + np.log(total)


def _likelihood(strength: Array, log_draw: float, wins: Array, draws: Array) -> float:
    gap = strength[:, None] - strength[None, :]
    _, _, total = _win_probabilities(gap, math.exp(log_draw))
    decided = ((wins - wins.T) * gap / 2 - (wins + wins.T + draws) * total).sum() / 2
    return float(decided + (draws.sum() / 2 * log_draw if draws.any() else 0.0))


def _grads(strength: Array, draw: float, wins: Array, draws: Array) -> tuple[Array, Array]:
    """Gradient and negative Hessian of the log-likelihood in all strengths and, last, log nu."""
    players = len(strength)
    games = wins + wins.T + draws
    win, loss, _ = _win_probabilities(strength[:, None] - strength[None, :], draw)
    drawn = np.maximum(1 - win - loss, 0.0)
    gradient = np.zeros(players + 1)
    gradient[:players] = ((wins - wins.T) - games * (win - loss)).sum(axis=1) / 2
    gradient[players] = (draws - games * drawn).sum() / 2
    return gradient, _information(win, loss, drawn, games)


def _information(win: Array, loss: Array, drawn: Array, games: Array) -> Array:
    """The Fisher information about the strengths and log nu [players + 1, players + 1]."""
    players = len(games)
    found = np.zeros((players + 1, players + 1))
    edge = games * (win + loss - (win - loss) ** 2) / 4
    found[:players, :players] = np.diag(edge.sum(axis=1)) - edge
    cross = -(games * (win - loss) * drawn).sum(axis=1) / 2
    found[:players, players] = found[players, :players] = cross
    found[players, players] = (games * drawn * (1 - drawn)).sum() / 2
    return found


def _maximise(wins: Array, draws: Array, free: Array, draw: float, held: bool = False) -> tuple[Array, float]:
    """Newton's method with step halving; nu is fitted too, unless it is held or 0."""
    players = len(wins)
    strength = np.zeros(players)
    log_draw = math.log(draw) if draw > 0 else -math.inf
    moving = free if held or draw == 0 else np.append(free, players)
    if not len(moving):
        return strength, draw
    best = _likelihood(strength, log_draw, wins, draws)
    for _ in range(ITERATIONS):
        gradient, information = _grads(strength, math.exp(log_draw), wins, draws)
        step = np.zeros(players + 1)
        step[moving] = np.linalg.solve(information[np.ix_(moving, moving)], gradient[moving])
        step *= min(1.0, 4.0 / max(float(np.abs(step).max()), 1e-300))
        share = 1.0
        while share > 1e-9:
            tried = strength + share * step[:players], log_draw + share * step[players]
            reached = _likelihood(*tried, wins, draws)
            if reached >= best:
                break
            share /= 2
        else:
            break
        strength, log_draw, best = *tried, reached
        if np.abs(step).max() * share < 1e-10:
            break
    return strength, math.exp(log_draw)


def _covariance(strength: Array, draw: float, games: Array, spread: Array, moving: Array) -> Array:
    """The covariance of the strengths in units of Elo: the inverse Hessian on both sides of the gradient's variance.

    If games vary as under the model, that is the inverse Hessian. If nu was fitted (the last of `moving`), its
    uncertainty adds to the scale of Elo.
    """
    players = len(strength)
    win, loss, _ = _win_probabilities(strength[:, None] - strength[None, :], draw)
    drawn = np.maximum(1 - win - loss, 0.0)
    if not len(moving):
        return np.zeros((players, players))
    keep = np.ix_(moving, moving)
    inverse = np.linalg.inv(_information(win, loss, drawn, games)[keep])
    whole = np.zeros((players + 1, players + 1))
    whole[keep] = inverse @ _information(win, loss, drawn, games * spread)[keep] @ inverse
    turn = np.hstack([np.eye(players), -strength[:, None] * draw / (2 + draw)]) * _elo_scale(draw)
    found: Array = turn @ whole @ turn.T
    return found


def _groups(met: Array) -> Array:
    """Number the connected groups of players."""
    group = np.arange(len(met))
    for _ in range(len(met)):
        least = np.where(met, group[None, :], len(met)).min(axis=1, initial=len(met))
        lower = np.minimum(group, least)
        if (lower == group).all():
            break
        group = lower
    return group


def _fixed(group: Array, games: Array, anchor: int) -> Array:
    """The player of each group whose strength is fixed: the anchor, or the player with most games."""
    fixed = np.zeros(len(group), bool)
    played = games.sum(axis=1)
    for number in np.unique(group):
        inside = np.flatnonzero(group == number)
        fixed[anchor if group[anchor] == number else inside[played[inside].argmax()]] = True
    return fixed
