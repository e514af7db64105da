"""PNG charts of a ladder: ratings with intervals, ratings over steps, and the payoff matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.league.ladder_text import steps_of
from slipstream.runs.figures import (
    PANEL,
    Chart,
    Line,
    Player,
    Point,
    ladder_chart,
    payoff_chart,
    save_png,
    xy_chart,
)

MAX_PLAYERS = 40
"""Players in a chart; ladder.json has all."""


def draw_ladder(folder: Path, tables: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write ladder.png, payoff.png and, if versions of an agent were rated, ratings.png."""
    charts = {
        "ladder.png": [(f"{_title(one)}: rating, 95 % interval", _ratings(one)) for one in tables],
        "payoff.png": [(f"{_title(one)}: score of the row against the column", _payoff(one)) for one in tables],
        "ratings.png": [(f"{_title(one)}: rating", _over_steps(one)) for one in tables if len(_versions(one)) > 1],
    }
    drawn = {name: parts for name, parts in charts.items() if parts}
    for name, parts in drawn.items():
        save_png(folder / name, parts)
    return [folder / name for name in drawn]


def _title(one: Mapping[str, Any]) -> str:
    return " ".join(part for part in (one["env"], one["mode"], one["play"]) if part)


def _ratings(one: Mapping[str, Any]) -> Chart:
    players = [
        Player(player["short"], player["rating"], player["low"], player["high"])
        for player in one["players"][:MAX_PLAYERS]
    ]
    return ladder_chart(players, [], one["anchor_rating"])


def _versions(one: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Players that are versions of an agent, by training steps."""
    found = [(steps, player) for player in one["players"] if (steps := steps_of(player["agent"])) is not None]
    return sorted(found, key=lambda pair: pair[0])


def _over_steps(one: Mapping[str, Any]) -> Chart:
    lines: dict[str, list[Point]] = {}
    for steps, player in _versions(one):
        name = player["short"].rpartition("@")[0]
        lines.setdefault(name, []).append((steps, player["rating"], player["low"], player["high"]))
    return xy_chart([Line(name, points) for name, points in lines.items()], size=PANEL, most=2 * PANEL.width)


def _payoff(one: Mapping[str, Any]) -> Chart:
    names = [player["short"] for player in one["players"][:MAX_PLAYERS]]
    return payoff_chart(names, one["payoff"]["score"], one["payoff"]["games"])
