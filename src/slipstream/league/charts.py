"""Pictures of a ladder: ratings with intervals, ratings over time, and who scores how much against whom."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.errors import MachineError
from slipstream.league.ladder_text import steps_of
from slipstream.runs.layout import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, GREY = "#0072B2", "#5B6875"
MOST = 40
"""Players in a picture; the file has all."""


def draw_ladder(folder: Path, tables: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Write ladder.png, payoff.png and, where versions of an agent were rated, ratings.png."""
    made = {
        "ladder.png": _figure(tables, _ratings, lambda one: 1.2 + 0.28 * min(len(one["players"]), MOST)),
        "payoff.png": _figure(tables, _payoff, lambda one: 1.6 + 0.42 * min(len(one["players"]), MOST)),
    }
    versions = [one for one in tables if len(_versions(one)) > 1]
    if versions:
        made["ratings.png"] = _figure(versions, _over_time, lambda one: 3.4)
    for name, figure in made.items():
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=110)
        write_bytes(folder / name, data.getvalue())
    return [folder / name for name in made]


def _figure(tables: Sequence[Mapping[str, Any]], draw: Any, height: Any) -> Figure:
    """One plot below the other, a title on each."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MachineError(
            "Pictures need matplotlib, which is not installed.", 'pip install "slipstream[view]"'
        ) from error
    heights = [height(one) for one in tables]
    figure = Figure(figsize=(9.0, sum(heights)), layout="constrained")
    axes = figure.subplots(len(tables), 1, squeeze=False, height_ratios=heights)[:, 0]
    for one, ax in zip(tables, axes, strict=True):
        draw(ax, one)
        ax.set_title(" ".join(part for part in (one["env"], one["mode"], one["play"]) if part), loc="left", fontsize=11)
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _ratings(ax: Axes, one: Mapping[str, Any]) -> None:
    players = one["players"][:MOST]
    for place, player in enumerate(players):
        sure = player["low"] is not None
        low, high = (player["low"], player["high"]) if sure else (player["rating"], player["rating"])
        ax.plot([low, high], [place, place], color=BLUE if sure else GREY, linewidth=2, alpha=0.5)
        ax.plot(player["rating"], place, "o" if sure else "x", color=BLUE if sure else GREY, markersize=5)
    ax.axvline(one["anchor_rating"], color=GREY, linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(players)), [player["short"] for player in players], fontsize=9)
    ax.invert_yaxis()
    ax.set_xlabel(f"rating with 95 % interval; {one['anchor']} = {one['anchor_rating']:g}", fontsize=9)
    ax.grid(axis="x", alpha=0.3)


def _versions(one: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Players that are versions of an agent, by its steps."""
    found = [(steps, player) for player in one["players"] if (steps := steps_of(player["agent"])) is not None]
    return sorted(found, key=lambda pair: pair[0])


def _over_time(ax: Axes, one: Mapping[str, Any]) -> None:
    lines: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for steps, player in _versions(one):
        lines.setdefault(player["short"].rpartition("@")[0], []).append((steps, player))
    for name, rows in lines.items():
        (line,) = ax.plot([at for at, _ in rows], [row["rating"] for _, row in rows], "o-", markersize=3, label=name)
        sure = np.array([(at, row["low"], row["high"]) for at, row in rows if row["low"] is not None]).reshape(-1, 3)
        ax.fill_between(sure[:, 0], sure[:, 1], sure[:, 2], color=line.get_color(), alpha=0.2)
    ax.axhline(one["anchor_rating"], color=GREY, linewidth=0.8, linestyle=":")
    ax.set_xlabel(f"steps; dotted: {one['anchor']}", fontsize=9)
    ax.set_ylabel("rating", fontsize=9)
    ax.legend(frameon=False, fontsize=9)
    ax.grid(alpha=0.3)


def _payoff(ax: Axes, one: Mapping[str, Any]) -> None:
    shown = [player["short"] for player in one["players"][:MOST]]
    size = len(shown)
    cells = np.array([[np.nan if x is None else x for x in row[:size]] for row in one["payoff"]["score"][:size]], float)
    ax.imshow(cells, vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    for i, j in zip(*np.nonzero(~np.isnan(cells)), strict=True):
        dark = abs(cells[i, j] - 0.5) > 0.3
        ax.text(j, i, f"{100 * cells[i, j]:.0f}", ha="center", va="center", fontsize=8, color="w" if dark else "k")
    ax.set_xticks(range(size), [str(rank) for rank in range(1, size + 1)], fontsize=9)
    ax.set_yticks(range(size), [f"{name}  {rank}" for rank, name in enumerate(shown, 1)], fontsize=9)
    ax.set_xlabel("score of the row's player against the column's, in %", fontsize=9)
