"""Beyond ratings: the Nash equilibrium of the payoff matrix, and how much of strength is cyclic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np

from slipstream.contracts import Array

TOLERANCE = 1e-4
"""Accuracy of the shares, and the most that any player gains against them; smaller shares are 0."""
PENALTY = 1e4
CONFIDENT = 0.95


def nash(payoff: Array) -> tuple[Array, Array]:
    """The maximum-entropy Nash equilibrium of an antisymmetric payoff matrix, and each player's payoff against it.

    It is the most even mixture of players that no player beats on average: a third each for rock, paper and scissors,
    0 for a player that loses to all others. Duplicates of a player share its part, so the shares of the other players
    do not depend on them.
    """
    payoff = np.asarray(payoff, float)
    payoff = (payoff - payoff.T) / 2
    share = _max_entropy(payoff)
    share = np.where(share < TOLERANCE, 0.0, share)
    share /= share.sum()
    return share, payoff @ share


def _max_entropy(payoff: Array) -> Array:
    """Minimise PENALTY * (best gain against the mixture) - entropy with an interior-point method."""
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
            point = _line_search(point, step, rows, weight)
    share: Array = point[:players] / point[:players].sum()
    return share


def _newton(point: Array, rows: Array, weight: float) -> tuple[Array, float]:
    """The Newton step that keeps the sum of the shares at 1, and its decrement."""
    players = len(rows)
    share, slack = point[:players], rows @ point
    gradient = -(rows / slack[:, None]).sum(axis=0)
    gradient[:players] += weight * (np.log(share) + 1) - 1 / share
    gradient[players] += weight * PENALTY
    hessian = (rows / slack[:, None] ** 2).T @ rows
    hessian[np.arange(players), np.arange(players)] += weight / share + 1 / share**2
    ones = np.append(np.ones(players), 0.0)
    scale = np.append(share, slack.min())  # shares may differ by many powers of ten
    hessian *= scale[:, None] * scale
    away, along = (np.linalg.solve(hessian, np.stack([gradient, ones], axis=1) * scale[:, None]) * scale[:, None]).T
    step = -away + along * (ones @ away) / (ones @ along)
    return step, float(-gradient @ step)


def _line_search(point: Array, step: Array, rows: Array, weight: float) -> Array:
    """Move along the step as far as the point stays feasible and the cost falls."""
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
class CyclicStrength:
    """The part of strength that no single rating explains."""

    share: float | None
    """Share of the differences between players that ratings do not explain, less noise; None: too few games."""
    by_chance: bool
    """Whether the unexplained part is within noise."""
    cycles: list[tuple[int, int, int]]
    """Triples in which each player beats the next, and the last the first, with 95 % confidence."""
    sentence: str


def cyclic_share(score: Array, games: Array) -> CyclicStrength:
    """Split the log-odds of scores [i, j] into a part that ratings explain and a cyclic part (Hodge decomposition).

    `games` are effective independent games; 0 for players that did not meet.
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
        return CyclicStrength(
            None, True, cycles, "Too few of these players have met to estimate the cyclic part of strength."
        )
    left = float((precision * (odds - edges @ strength) ** 2).sum())
    whole = float((precision * odds**2).sum())
    within_noise = left <= _noise_limit(freedom)
    share = max(0.0, left - freedom) / max(whole - len(one), left - freedom, 1e-12)
    return CyclicStrength(share, within_noise, cycles, _sentence(share, within_noise, len(cycles)))


def _noise_limit(freedom: int) -> float:
    """The 95 % quantile of chi-squared (Wilson and Hilferty)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(CONFIDENT) * math.sqrt(part)) ** 3)


def _cycles(players: int, one: Array, other: Array, deviation: Array) -> list[tuple[int, int, int]]:
    beats = np.zeros((players, players), bool)
    sure = NormalDist().inv_cdf(CONFIDENT)
    beats[one, other], beats[other, one] = deviation > sure, deviation < -sure
    found = []
    for a, b, c in combinations(range(players), 3):
        if beats[a, b] and beats[b, c] and beats[c, a]:
            found.append((a, b, c))
        elif beats[a, c] and beats[c, b] and beats[b, a]:
            found.append((a, c, b))
    return found


def _sentence(share: float, within_noise: bool, cycles: int) -> str:
    loops = f"; {cycles} cycle{'s' * (cycles != 1)} of three players, each beating the next" if cycles else ""
    if within_noise and not cycles:
        return "Ratings explain the results: the rest is within noise."
    if within_noise:
        return f"Ratings explain the results up to noise{loops}."
    return f"Ratings leave {share:.0%} of the differences unexplained, more than noise: see the payoff matrix{loops}."
