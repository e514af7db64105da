"""The alarm: what is rewarded rises while games are lost, so the rewards are being gamed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.confidence import t_cdf

FEWEST, MOST = 3, 10
"""Points before, and as many after, that are compared."""
SURE = 0.9995
"""How sure each of the two changes must be, one-sided."""
APART = 100
"""Finished episodes between two points of training, whose means are over this many."""
KINDS = {
    "evaluate": ("evaluate/mean_return", "evaluate/win_rate", "evaluate/games"),
    "episode": ("episode/return_mean", "episode/win_rate", "episode/count"),
}
"""Where return, win rate and number of games stand in a row; evaluations go before episodes of training."""


class RewardHackingDetector:
    """Compares the newer half of the last logged points with the older half, and speaks up once.

    Evaluation games are looked at where there are any. Those of training count only if they are alike throughout:
    against one opponent, without a curriculum; say so by `steady`.
    """

    def __init__(self, steady: bool = True) -> None:
        self._steady = steady
        self._kind = ""
        self._points: list[dict[str, Any]] = []
        """The last points: steps, return, win rate, games, and each reward term per step."""
        self._told = False

    def see(self, row: Mapping[str, Any]) -> str:
        """Take in a row of metrics; return what is to be said, or nothing."""
        kind = next((kind for kind, keys in KINDS.items() if all(_number(row.get(key)) for key in keys)), "")
        if self._told or not kind or (kind == "episode" and (self._kind == "evaluate" or not self._steady)):
            return ""
        if kind != self._kind:
            self._kind, self._points = kind, []
        returns, rate, games = (float(row[key]) for key in KINDS[kind])
        if kind == "episode" and games < (self._points[-1]["count"] if self._points else 0) + APART:
            return ""
        terms = {key[7:]: float(value) for key, value in row.items() if key.startswith("reward/") and _number(value)}
        point = {"steps": row.get("steps"), "return": returns, "win_rate": rate, "count": games, "terms": terms}
        self._points = [*self._points, point][-2 * MOST :]
        if len(self._points) < 2 * FEWEST or not self._gamed():
            return ""
        self._told = True
        return self._words()

    def _halves(self, name: str) -> tuple[list[float], list[float]]:
        older, newer = self._split()
        return [float(point[name]) for point in older], [float(point[name]) for point in newer]

    def _split(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The last points in two halves of one size."""
        half = len(self._points) // 2
        return self._points[-2 * half : -half], self._points[-half:]

    def _gamed(self) -> bool:
        """Whether the return rose and the win rate fell, both beyond chance."""
        games = APART if self._kind == "episode" else min(point["count"] for point in self._points)
        old, new = self._halves("win_rate")
        rate = mean(old + new)
        return rose(*self._halves("return")) > SURE and rose(new, old, rate * (1 - rate) / max(games, 1)) > SURE

    def _words(self) -> str:
        """What happened, by how much, through which terms, and what to do."""
        first, last = self._split()[0][0]["steps"], self._points[-1]["steps"]
        when = f"from step {first:,} to {last:,} " if first is not None and last is not None else ""
        (r0, r1), (w0, w1) = ([mean(half) for half in self._halves(name)] for name in ("return", "win_rate"))
        where = "in evaluation" if self._kind == "evaluate" else "in training"
        told = (
            f"The rewards may be gamed: {when}the return {where} rose from {r0:.3g} to {r1:.3g} while the win rate "
            f"fell from {w0:.0%} to {w1:.0%}."
        )
        grown = self._grown()
        if not grown:
            return f"{told} Look at the reward terms: slipstream rewards report RUN."
        named = ", ".join(f"{name} by {gain:.2g} a step" for name, gain in grown)
        weights = " ".join(f"rewards.weights.{name}" for name, _ in grown)
        return f"{told} What grew most: {named}. Lower {weights}, or set rewards.potential=true."

    def _grown(self) -> list[tuple[str, float]]:
        """The terms that grew most from the older to the newer half, three at most."""
        names = self._points[-1]["terms"]
        means = [{name: mean([p["terms"].get(name, 0.0) for p in half]) for name in names} for half in self._split()]
        gains = sorted(((means[1][name] - means[0][name], name) for name in names), reverse=True)
        return [(name, gain) for gain, name in gains[:3] if gain > 0]

    def describe(self) -> dict[str, Any]:
        """The state as JSON holds it."""
        return {"kind": self._kind, "points": self._points, "told": self._told}

    def restore(self, told: Mapping[str, Any]) -> None:
        """Put back what was described."""
        self._kind, self._points, self._told = told["kind"], list(told["points"]), told["told"]


def rose(old: Sequence[float], new: Sequence[float], least: float = 0.0) -> float:
    """How sure it is, from 0 to 1, that the mean went up: Student's t for two samples of one size.

    `least` is the least variance that a single value can have, such as that of a rate over so many games.
    """
    gain = mean(new) - mean(old)
    spread = math.fsum((value - mean(half)) ** 2 for half in (old, new) for value in half)
    degrees = 2 * len(old) - 2
    error = math.sqrt(2 * max(spread / degrees, least) / len(old))
    if error == 0:
        return float(gain > 0)
    return t_cdf(gain / error, degrees)


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return math.fsum(values) / len(values)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
