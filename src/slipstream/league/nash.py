"""What a rating cannot say: who is needed against the best mixture of all, and how much of strength goes in circles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np

from slipstream.contracts import Array

TOLERANCE = 1e-4
"""Shares are this near to the true ones, and nobody gains more than this against them; smaller shares are 0."""
PENALTY = 1e4
SURE = 0.95


def nash(payoff: Array) -> tuple[Array, Array]:
    """The maximum-entropy Nash equilibrium of an antisymmetric payoff, and what each player gets against it.

    It is the most even mixture of players that nobody beats on average: a third each for rock, paper and scissors, 0
    for a player who is beaten everywhere. Copies of a player share what the player had, so that nobody else's share
    depends on how often somebody was entered.
    """
    payoff = np.asarray(payoff, float)
    payoff = (payoff - payoff.T) / 2
    share = _most_even(payoff)
    share = np.where(share < TOLERANCE, 0.0, share)
    share /= share.sum()
    return share, payoff @ share


def _most_even(payoff: Array) -> Array:
    """Minimise PENALTY * (best gain against the mixture) - entropy, by Newton steps inside ever sharper barriers."""
    players = len(payoff)
    point = np.append(np.full(players, 1 / players), payoff.mean(axis=1).max() + 1.0)
    rows = np.hstack([-payoff, np.ones((players, 1))])  # the best gain minus each player's: above 0
    weight = 1.0
    while players / weight > 1e-6:
        weight *= 8
        for _ in range(60):
            step, decrement = _newton(point, rows, weight)
            if decrement < 1e-9:
                break
            point = _advance(point, step, rows, weight)
    share: Array = point[:players] / point[:players].sum()
    return share


def _newton(point: Array, rows: Array, weight: float) -> tuple[Array, float]:
    """The Newton step along which shares still sum to 1, and how much it promises."""
    players = len(rows)
    share, slack = point[:players], rows @ point
    gradient = -(rows / slack[:, None]).sum(axis=0)
    gradient[:players] += weight * (np.log(share) + 1) - 1 / share
    gradient[players] += weight * PENALTY
    curved = (rows / slack[:, None] ** 2).T @ rows
    curved[np.arange(players), np.arange(players)] += weight / share + 1 / share**2
    ones = np.append(np.ones(players), 0.0)
    scale = np.append(share, slack.min())  # shares may differ by many powers of ten
    curved *= scale[:, None] * scale
    away, along = (np.linalg.solve(curved, np.stack([gradient, ones], axis=1) * scale[:, None]) * scale[:, None]).T
    step = -away + along * (ones @ away) / (ones @ along)
    return step, float(-gradient @ step)


def _advance(point: Array, step: Array, rows: Array, weight: float) -> Array:
    """As far along the step as stays inside and makes things better."""
    players = len(rows)

    def cost(x: Array) -> float:
        inside = np.append(x[:players], rows @ x)
        if inside.min() <= 0:
            return math.inf
        return float(weight * (PENALTY * x[players] + x[:players] @ np.log(x[:players])) - np.log(inside).sum())

    size, before = 1.0, cost(point)
    while size > 1e-12 and not cost(point + size * step) < before:
        size /= 2
    return point + size * step if size > 1e-12 else point


@dataclass(frozen=True)
class Circles:
    """How far strength is not one number."""

    share: float | None
    """Share of the differences between players that no ratings explain, chance taken off; None: too few met."""
    by_chance: bool
    """Whether what ratings do not explain is no more than chance would leave."""
    cycles: list[tuple[int, int, int]]
    """Players of which each beats the next and the last the first, each surely (95 %)."""
    sentence: str


def cyclic_share(score: Array, games: Array) -> Circles:
    """Split log-odds of scores [i, j] into what ratings explain and what goes in circles (Hodge decomposition).

    `games` are independent ones; pairs who did not meet (0) say nothing.
    """
    one, other = np.triu_indices(len(score), 1)
    met = games[one, other] > 0
    one, other = one[met], other[met]
    count = games[one, other]
    rate = (score[one, other] * count + 0.5) / (count + 1)
    odds = np.log(rate / (1 - rate))
    precision = (count + 1) * rate * (1 - rate)
    edges = np.zeros((len(one), len(score)))
    edges[np.arange(len(one)), one], edges[np.arange(len(one)), other] = 1.0, -1.0
    root = np.sqrt(precision)
    strength, _, rank, _ = np.linalg.lstsq(edges * root[:, None], odds * root, rcond=None)
    freedom = len(one) - int(rank)
    cycles = _cycles(len(score), one, other, odds * root)
    if freedom == 0:
        return Circles(None, True, cycles, "Too few of these players have met to say whether strength goes in circles.")
    left = float((precision * (odds - edges @ strength) ** 2).sum())
    whole = float((precision * odds**2).sum())
    by_chance = left <= _chance_limit(freedom)
    share = max(0.0, left - freedom) / max(whole - len(one), left - freedom, 1e-12)
    return Circles(share, by_chance, cycles, _sentence(share, by_chance, len(cycles)))


def _chance_limit(freedom: int) -> float:
    """The 95 % quantile of chi-squared (Wilson and Hilferty)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(SURE) * math.sqrt(part)) ** 3)


def _cycles(players: int, one: Array, other: Array, surprise: Array) -> list[tuple[int, int, int]]:
    beats = np.zeros((players, players), bool)
    sure = NormalDist().inv_cdf(SURE)
    beats[one, other], beats[other, one] = surprise > sure, surprise < -sure
    found = []
    for a, b, c in combinations(range(players), 3):
        if beats[a, b] and beats[b, c] and beats[c, a]:
            found.append((a, b, c))
        elif beats[a, c] and beats[c, b] and beats[b, a]:
            found.append((a, c, b))
    return found


def _sentence(share: float, by_chance: bool, cycles: int) -> str:
    loops = f"; {cycles} circle{'s' * (cycles != 1)} of three, each surely beating the next" if cycles else ""
    if by_chance and not cycles:
        return "Ratings tell the whole story: what they leave unexplained is no more than chance."
    if by_chance:
        return f"Ratings explain the results up to chance{loops}."
    return f"Ratings leave {share:.0%} of the differences unexplained, more than chance: the payoff tells more{loops}."
