"""Reward hacking detection: the return rises while the win rate falls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.confidence import t_cdf
from slipstream.envs.python_terms import ENV

FEWEST, MOST = 3, 10
"""Points before, and as many after, that are compared."""
SURE = 0.9995
"""The one-sided confidence that each of the two changes must have."""
APART = 100
"""Finished episodes between two points of training; their means are over this many."""
KINDS = {
    "evaluate": ("evaluate/mean_return", "evaluate/win_rate", "evaluate/games"),
    "episode": ("episode/return_mean", "episode/win_rate", "episode/count"),
}
"""The metrics of return, win rate and number of games; evaluations take precedence over training episodes."""


class RewardHackingDetector:
    """Compares the newer half of the last logged points with the older half, and warns once.

    Evaluation games are used where there are any. Training games are used only with `steady`: against one opponent and
    without a curriculum, so that they are comparable throughout.
    """

    def __init__(self, steady: bool = True) -> None:
        self._steady = steady
        self._kind = ""
        self._points: list[dict[str, Any]] = []
        """The last points: steps, return, win rate, games, and each reward term per step."""
        self._warned = False

    def see(self, row: Mapping[str, Any]) -> str:
        """Add a row of metrics; return a warning, or nothing."""
        kind = next((kind for kind, keys in KINDS.items() if all(_number(row.get(key)) for key in keys)), "")
        if self._warned or not kind or (kind == "episode" and (self._kind == "evaluate" or not self._steady)):
            return ""
        if kind != self._kind:
            self._kind, self._points = kind, []
        returns, rate, games = (float(row[key]) for key in KINDS[kind])
        if kind == "episode" and games < (self._points[-1]["count"] if self._points else 0) + APART:
            return ""
        terms = {key[7:]: float(value) for key, value in row.items() if key.startswith("reward/") and _number(value)}
        point = {"steps": row.get("steps"), "return": returns, "win_rate": rate, "count": games, "terms": terms}
        self._points = [*self._points, point][-2 * MOST :]
        if len(self._points) < 2 * FEWEST or not self._is_hacked():
            return ""
        self._warned = True
        return self._warning()

    def _halves(self, name: str) -> tuple[list[float], list[float]]:
        older, newer = self._split()
        return [float(point[name]) for point in older], [float(point[name]) for point in newer]

    def _split(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The last points in two halves of one size."""
        half = len(self._points) // 2
        return self._points[-2 * half : -half], self._points[-half:]

    def _is_hacked(self) -> bool:
        """Whether the return rose and the win rate fell, both significantly."""
        games = APART if self._kind == "episode" else min(point["count"] for point in self._points)
        old, new = self._halves("win_rate")
        rate = mean(old + new)
        return rose(*self._halves("return")) > SURE and rose(new, old, rate * (1 - rate) / max(games, 1)) > SURE

    def _warning(self) -> str:
        """The warning: what changed, by how much, through which terms, and what to do."""
        first, last = self._split()[0][0]["steps"], self._points[-1]["steps"]
        when = f"from step {first:,} to {last:,} " if first is not None and last is not None else ""
        (r0, r1), (w0, w1) = ([mean(half) for half in self._halves(name)] for name in ("return", "win_rate"))
        where = "in evaluation" if self._kind == "evaluate" else "in training"
        text = (
            f"Possible reward hacking: {when}the return {where} rose from {r0:.3g} to {r1:.3g} while the win rate "
            f"fell from {w0:.0%} to {w1:.0%}."
        )
        grown = self._grown()
        if not grown:
            return f"{text} Inspect the reward terms: slipstream rewards report RUN."
        named = ", ".join(f"{name} by {gain:.2g} per step" for name, gain in grown)
        weights = " ".join(f"rewards.weights.{name}" for name, _ in grown)
        potential = "" if ENV in self._points[-1]["terms"] else ", or set rewards.potential=true"  # own terms have none
        return f"{text} Terms that grew most: {named}. Lower {weights}{potential}."

    def _grown(self) -> list[tuple[str, float]]:
        """The terms that grew most from the older to the newer half, three at most."""
        names = self._points[-1]["terms"]
        means = [{name: mean([p["terms"].get(name, 0.0) for p in half]) for name in names} for half in self._split()]
        gains = sorted(((means[1][name] - means[0][name], name) for name in names), reverse=True)
        return [(name, gain) for gain, name in gains[:3] if gain > 0]

    def describe(self) -> dict[str, Any]:
        """The state as JSON."""
        return {"kind": self._kind, "points": self._points, "told": self._warned}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `describe` returned."""
        self._kind, self._points, self._warned = state["kind"], list(state["points"]), state["told"]


def rose(old: Sequence[float], new: Sequence[float], least: float = 0.0) -> float:
    """The confidence, from 0 to 1, that the mean rose: Student's t for two samples of equal size.

    `least` is a lower bound of the variance of a single value, such as that of a rate over a number of games.
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
