"""Ladders as text for the terminal: ratings with intervals, and the payoff matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

WIDE = 14
"""The most players whose payoff matrix is printed; the file has all."""


def short_names(names: Sequence[str]) -> dict[str, str]:
    """The shortest path suffixes that are unique: run:/a/b/c@best is `c@best`, unless another name ends the same."""
    parts = {name: _parts(name) for name in names}
    shown = dict.fromkeys(names, 1)
    while True:
        texts = {name: "/".join(parts[name][-shown[name] :]) for name in names}
        taken = list(texts.values())
        longer = [name for name in names if taken.count(texts[name]) > 1 and shown[name] < len(parts[name])]
        if not longer:
            return {name: name if taken.count(texts[name]) > 1 else texts[name] for name in names}
        for name in longer:
            shown[name] += 1


def _parts(name: str) -> list[str]:
    """The folders of the path after `run:`; other names are one part."""
    head, _, rest = name.partition(":")
    return [part for part in PurePath(rest).parts if part != "/"] or [name] if head == "run" else [name]


def steps_of(agent: str) -> int | None:
    """The steps in `run:DIR@STEPS` or `main@STEPS`; None for an agent without a version."""
    _, at, steps = agent.rpartition("@")
    return int(steps) if at and steps.isdigit() else None


def ladder_text(tables: Sequence[Mapping[str, Any]]) -> str:
    """All tables as text."""
    return "\n\n".join(table_text(one) for one in tables) if tables else "There are no games to rate."


def table_text(one: Mapping[str, Any]) -> str:
    """One table: ratings with intervals, the payoff matrix, which players beat which, and cycles."""
    players = one["players"]
    where = " ".join(part for part in (one["env"], one["mode"], one["play"]) if part)
    lines = [f"{where}: {one['games']:,} games, {one['draw_share']:.0%} drawn; {_fixed(one)}"]
    width = max(5, *(len(player["short"]) for player in players))
    head = (
        f"{'':>3} {'agent':<{width}} {'rating':>6} {'95 %':^13} {'games':>6} {'score':>6} {'stronger':>9} {'Nash':>5}"
    )
    lines += [head, *(_row(rank, player, width) for rank, player in enumerate(players, 1))]
    if any(not player["connected"] for player in players):
        lines.append("no interval: no games connect this player to the anchor")
    lines += ["stronger: likelihood of superiority over the next player; Nash: share in the Nash equilibrium"]
    lines += ["", *_payoff(one)] if len(players) <= WIDE else []
    lines += ["", *_beats(one), one["circles"]["sentence"]]
    lines += [" > ".join([*_short(one, cycle), *_short(one, cycle[:1])]) for cycle in one["circles"]["cycles"][:5]]
    return "\n".join(lines)


def _fixed(one: Mapping[str, Any]) -> str:
    return one["note"] or f"{one['anchor']} is fixed at {one['anchor_rating']:g}"


def _row(rank: int, player: Mapping[str, Any], width: int) -> str:
    if player["low"] is None:
        span = ""
    else:
        span = f"{player['low']:.0f} to {player['high']:.0f}" if player["high"] > player["low"] else "fixed"
    los = "" if player["los"] is None else _percent(player["los"])
    return (
        f"{rank:>3} {player['short']:<{width}} {player['rating']:>6.0f} {span:^13} {player['games']:>6,} "
        f"{player['score']:>6.1%} {los:>9} {player['nash']:>5.0%}"
    )


def _percent(share: float) -> str:
    """A likelihood, never printed as 0 or 100 %."""
    return ">99.9%" if share > 0.999 else "<0.1%" if share < 0.001 else f"{share:.1%}"


def _payoff(one: Mapping[str, Any]) -> list[str]:
    """The payoff matrix: each row's score in per cent against each column's player."""
    shown = [player["short"] for player in one["players"]]
    width = max(14, *(len(name) for name in shown))
    lines = [f"{'score in % against':<{width + 4}}" + "".join(f"{rank:>5}" for rank in range(1, len(shown) + 1))]
    for rank, (name, row) in enumerate(zip(shown, one["payoff"]["score"], strict=True), 1):
        cells = "".join(f"{'.' if cell is None else f'{100 * cell:.0f}':>5}" for cell in row)
        lines.append(f"{rank:>3} {name:<{width}}" + cells)
    return lines


def _beats(one: Mapping[str, Any]) -> list[str]:
    """The players that each player beats with 95 % confidence."""
    lines = []
    shown = [player["short"] for player in one["players"]]
    for name, beats in zip(shown, one["payoff"]["beats"], strict=True):
        beaten = [other for other, beaten in zip(shown, beats, strict=True) if beaten]
        if beaten:
            lines.append(f"{name} beats {', '.join(beaten)}")
    return lines


def _short(one: Mapping[str, Any], agents: Sequence[str]) -> list[str]:
    shown = {player["agent"]: player["short"] for player in one["players"]}
    return [shown[agent] for agent in agents]
