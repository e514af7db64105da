"""Ratings of all players at once: Bradley-Terry maximum likelihood with draws, one anchor, 95 % intervals.

Davidson's model of draws: win, draw and loss of i against j have odds exp(u) : nu : exp(-u), with u half the difference
of their strengths. It is a linear softmax, so its logarithm is concave in the strengths and log nu together: Newton's
method finds the one maximum. Wins are to losses as 10^(difference / 400), and a player's points are all that counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from slipstream.core.contracts import Array
from slipstream.core.stats import CONFIDENCE

ELO = 400 / math.log(10)
"""Elo points of one unit of strength."""
PRIOR = 0.1
"""Wins and losses that every two players who met are taken to have had besides, so that nobody is infinitely strong."""
PAIR_POINTS = np.arange(5) / 2
"""Points of a pair of games (same start, sides swapped): LL, LD, LW or DD, DW, WW."""
SHRINK = 5.0
"""How much variance (twenty even games) one matchup must show to be believed half against all others together."""
ITERATIONS = 100


@dataclass(frozen=True)
class Ratings:
    """How strong each player is, in Elo, and how sure that is."""

    rating: Array  # [players]
    low: Array  # [players], NaN where not connected
    high: Array  # [players]
    connected: Array  # [players] bool: whether games lead from the anchor to this player
    group: Array  # [players] int: players of one group are joined by games
    covariance: Array  # [players, players] in Elo^2, relative to one player of each group
    draw: float
    """Odds of a draw against win and loss together between equals, times two; 0 where nothing was drawn."""
    effective: Array  # [players, players] games of each two, counted as independent ones

    def superiority(self) -> Array:
        """The likelihood [i, j] that i is stronger than j; NaN where no games lead from one to the other."""
        spread = np.diagonal(self.covariance)
        variance = np.maximum(spread[:, None] + spread[None, :] - 2 * self.covariance, 1e-12)
        gap = (self.rating[:, None] - self.rating[None, :]) / np.sqrt(variance)
        likely = np.vectorize(NormalDist().cdf, otypes=[float])(gap)
        np.fill_diagonal(likely, 0.5)
        return np.where(self.group[:, None] == self.group[None, :], likely, np.nan)

    def expected(self) -> Array:
        """The score [i, j] that i is expected to reach against j: wins and half the draws."""
        wins, losses, _ = _chances((self.rating[:, None] - self.rating[None, :]) / ELO, self.draw)
        return (1 + wins - losses) / 2


def rate(
    wins: Array, draws: Array, *, anchor: int = 0, anchor_rating: float = 1500.0, pairs: Array | None = None,
    prior: float = PRIOR,
) -> Ratings:  # fmt: skip
    """Rate players from `wins[i, j]`, games that i won against j, and `draws[i, j]` (symmetric).

    `pairs[i, j, k]` counts pairs of games by i's points (see PAIR_POINTS), as far as games came in pairs; their games
    are in `wins` and `draws` too. Games of a pair are alike or opposite, which widens or narrows the intervals.
    """
    wins, draws = np.asarray(wins, float), np.asarray(draws, float)
    games = wins + wins.T + draws
    met = games > 0
    np.fill_diagonal(met, False)
    group = _groups(met)
    fixed = _fixed(group, games, anchor)
    free = np.flatnonzero(~fixed)
    drawn = bool(draws[met].sum() > 0)
    wins, draws = np.where(met, wins + prior, 0.0), np.where(met, draws, 0.0)
    strength, log_draw = _maximise(wins, draws, free, drawn)
    draw = math.exp(log_draw) if drawn else 0.0
    spread = dispersion(wins - prior * met, draws, pairs)
    covariance = ELO**2 * _covariance(strength, draw, wins + wins.T + draws, spread, free)
    rating = ELO * strength
    for number in np.unique(group):
        inside = group == number
        rating[inside] += anchor_rating - (rating[anchor] if number == group[anchor] else rating[inside].mean())
    connected = group == group[anchor]
    half = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * np.sqrt(np.diagonal(covariance))
    half = np.where(connected, half, np.nan)
    return Ratings(rating, rating - half, rating + half, connected, group, covariance, draw, games / spread)


def dispersion(wins: Array, draws: Array, pairs: Array | None) -> Array:
    """The variance [i, j] of the points of i against j as a multiple of what independent games would have.

    1 + the correlation of the games of a pair: estimated within each matchup, drawn towards that of all matchups.
    """
    players = len(wins)
    if pairs is None:
        return np.ones((players, players))
    pairs = np.asarray(pairs, float)
    count = pairs.sum(axis=2)
    safe = np.maximum(count, 1)
    mean = (pairs @ PAIR_POINTS) / safe
    between = (pairs * (PAIR_POINTS - mean[..., None]) ** 2).sum(axis=2) * safe / np.maximum(safe - 1, 1)
    games = np.maximum(wins + wins.T + draws, 1)
    rate = (wins + draws / 2) / games
    single = np.maximum((wins + draws / 4) / games - rate**2, 0.0)
    within = 2 * count * single * games / np.maximum(games - 1, 1)
    upper = np.triu_indices(players, 1)
    everywhere = (between[upper].sum() + SHRINK) / (within[upper].sum() + SHRINK)
    spread = np.clip((between + SHRINK * everywhere) / (within + SHRINK), 0.1, 2.0)
    share = 2 * count / games
    symmetric: Array = 1 + np.clip(share, 0, 1) * (spread - 1)
    return (symmetric + symmetric.T) / 2


def _chances(gap: Array, draw: float) -> tuple[Array, Array, Array]:
    """Win, loss and log of the sum of the three odds, for differences of strength."""
    half = gap / 2
    top = np.abs(half)
    total = np.exp(half - top) + np.exp(-half - top) + draw * np.exp(-top)
    return np.exp(half - top) / total, np.exp(-half - top) / total, top + np.log(total)


def _likelihood(strength: Array, log_draw: float, wins: Array, draws: Array) -> float:
    gap = strength[:, None] - strength[None, :]
    _, _, total = _chances(gap, math.exp(log_draw))
    decided = ((wins - wins.T) * gap / 2 - (wins + wins.T + draws) * total).sum() / 2
    return float(decided + (draws.sum() / 2 * log_draw if draws.any() else 0.0))


def _slopes(strength: Array, draw: float, wins: Array, draws: Array) -> tuple[Array, Array]:
    """Gradient and negative Hessian of the log-likelihood in all strengths and, last, log nu."""
    players = len(strength)
    games = wins + wins.T + draws
    win, loss, _ = _chances(strength[:, None] - strength[None, :], draw)
    drawn = np.maximum(1 - win - loss, 0.0)
    gradient = np.zeros(players + 1)
    gradient[:players] = ((wins - wins.T) - games * (win - loss)).sum(axis=1) / 2
    gradient[players] = (draws - games * drawn).sum() / 2
    return gradient, _information(win, loss, drawn, games)


def _information(win: Array, loss: Array, drawn: Array, games: Array) -> Array:
    """What games tell about the strengths and log nu [players + 1, players + 1]."""
    players = len(games)
    found = np.zeros((players + 1, players + 1))
    edge = games * (win + loss - (win - loss) ** 2) / 4
    found[:players, :players] = np.diag(edge.sum(axis=1)) - edge
    cross = -(games * (win - loss) * drawn).sum(axis=1) / 2
    found[:players, players] = found[players, :players] = cross
    found[players, players] = (games * drawn * (1 - drawn)).sum() / 2
    return found


def _maximise(wins: Array, draws: Array, free: Array, drawn: bool) -> tuple[Array, float]:
    """Newton's method, with steps halved until the likelihood grows."""
    players = len(wins)
    strength = np.zeros(players)
    log_draw = 0.0 if drawn else -math.inf
    moving = np.append(free, players) if drawn else free
    if not len(moving):
        return strength, log_draw
    best = _likelihood(strength, log_draw, wins, draws)
    for _ in range(ITERATIONS):
        gradient, information = _slopes(strength, math.exp(log_draw), wins, draws)
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
    return strength, log_draw


def _covariance(strength: Array, draw: float, games: Array, spread: Array, free: Array) -> Array:
    """The inverse Hessian on both sides of the gradient's variance; it alone, where games are independent."""
    players = len(strength)
    win, loss, _ = _chances(strength[:, None] - strength[None, :], draw)
    drawn = np.maximum(1 - win - loss, 0.0)
    moving = np.append(free, players) if draw > 0 else free
    found = np.zeros((players, players))
    if not len(free):
        return found
    keep = np.ix_(moving, moving)
    inverse = np.linalg.inv(_information(win, loss, drawn, games)[keep])
    whole = inverse @ _information(win, loss, drawn, games * spread)[keep] @ inverse
    found[np.ix_(free, free)] = whole[: len(free), : len(free)]
    return found


def _groups(met: Array) -> Array:
    """Number the players by who is joined to whom by games."""
    group = np.arange(len(met))
    for _ in range(len(met)):
        least = np.where(met, group[None, :], len(met)).min(axis=1, initial=len(met))
        lower = np.minimum(group, least)
        if (lower == group).all():
            break
        group = lower
    return group


def _fixed(group: Array, games: Array, anchor: int) -> Array:
    """One player of each group whose strength stands still: the anchor, or who played most."""
    fixed = np.zeros(len(group), bool)
    played = games.sum(axis=1)
    for number in np.unique(group):
        inside = np.flatnonzero(group == number)
        fixed[anchor if group[anchor] == number else inside[played[inside].argmax()]] = True
    return fixed
