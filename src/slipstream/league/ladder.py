"""The ladder: a log of all games, and ratings that are computed from the whole log.

games.jsonl has one line per game. `kind` is the purpose of the game. Training games (`train`) are not rated, since the
learner changes during them. ladder.json has a table for each env, mode and way of playing (greedy or sampled).
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.errors import MachineError
from slipstream.league.ladder_text import short_names, steps_of
from slipstream.league.matchmaking import bounds
from slipstream.league.nash import cyclic_share, nash
from slipstream.league.ratings import Ratings, rate
from slipstream.runs.layout import RunDir, write_bytes, write_json, write_text

ANCHOR, ANCHOR_RATING = "scripted:rule", 1500.0
FORMAT = 1
Line = dict[str, Any]


class GamesLog:
    """Appends games to games.jsonl in batches; lines that could not be written are tried again next time."""

    def __init__(self, run: RunDir) -> None:
        self.path = run.games
        self._pending: list[bytes] = []

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append games."""
        self._pending += [json.dumps(line).encode() + b"\n" for line in lines]
        with contextlib.suppress(OSError):
            self._write()

    def close(self) -> None:
        """Write the pending lines; a write that fails is an error here."""
        try:
            self._write()
        except OSError as error:
            raise MachineError(
                f"{len(self._pending)} games could not be written to {self.path}: {error.strerror or error}.",
                "free some disk space, or choose another `--run DIR`",
            ) from error

    def read(self) -> tuple[list[Line], int]:
        """All games, and the number of lines that are incomplete or not a game."""
        data = self._bytes()
        games = [game for line in data.split(b"\n") if line and (game := _parse(line)) is not None]
        return games, sum(1 for line in data.split(b"\n") if line) - len(games)

    def rewind(self, steps: int) -> int:
        """Drop lines newer than a checkpoint and incomplete lines; return how many. Lines without steps stay."""
        lines = [line for line in self._bytes().split(b"\n") if line]
        kept = [line for line in lines if (game := _parse(line)) is not None and (game["steps"] or 0) <= steps]
        self._pending.clear()
        if len(kept) < len(lines):
            write_bytes(self.path, b"".join(line + b"\n" for line in kept))
        return len(lines) - len(kept)

    def _bytes(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""

    def _write(self) -> None:
        """Append after the last line; a line that a crash left incomplete is ended first."""
        if not self._pending:
            return
        with open(self.path, "ab+") as file:
            size = file.seek(0, os.SEEK_END)
            incomplete = False
            if size:
                file.seek(size - 1)
                incomplete = file.read(1) != b"\n"
            file.write(b"\n" * incomplete + b"".join(self._pending))
        self._pending.clear()


def game_line(
    kind: str,
    env: str,
    mode: str,
    play: str,
    agents: Sequence[str],
    outcome: int,
    *,
    seed: int | None = None,
    score: Sequence[float] | None = None,
    length: int | None = None,
    steps: int | None = None,
) -> Line:
    """A line of games.jsonl; the outcome is that of the first agent, which played the first side."""
    return {
        "kind": kind,
        "env": env,
        "mode": mode,
        "play": play,
        "agents": list(agents),
        "seed": seed,
        "outcome": outcome,
        "score": list(score) if score is not None else None,
        "length": length,
        "steps": steps,
    }


def _parse(line: bytes) -> Line | None:
    try:
        game = json.loads(line)
    except ValueError:
        return None
    if not isinstance(game, dict) or game.get("outcome") not in (-1, 0, 1):
        return None
    agents, steps = game.get("agents"), game.setdefault("steps", None)
    named = isinstance(agents, list) and len(agents) == 2 and all(isinstance(name, str) for name in agents)
    return game if named and (steps is None or isinstance(steps, int)) else None


def ladder(games: Iterable[Line], anchor: str = ANCHOR, anchor_rating: float = ANCHOR_RATING) -> list[dict[str, Any]]:
    """A table for each env, mode and way of playing; training games are left out."""
    kinds: dict[tuple[str, str, str], list[Line]] = {}
    for game in games:
        if game.get("kind") != "train" and game["agents"][0] != game["agents"][1]:
            key = tuple(str(game.get(name) or "") for name in ("env", "mode", "play"))
            kinds.setdefault((key[0], key[1], key[2]), []).append(game)
    return [
        {"env": env, "mode": mode, "play": play} | table(kinds[env, mode, play], anchor, anchor_rating)
        for env, mode, play in sorted(kinds)
    ]


def table(games: Sequence[Line], anchor: str = ANCHOR, anchor_rating: float = ANCHOR_RATING) -> dict[str, Any]:
    """Rate the players of games of one env, mode and way of playing.

    `players`, the strongest first, have a `rating` with its 95 % interval `low` to `high` (null if no games connect the
    player to the anchor: `connected` is false), `games`, `wins`, `draws`, `losses`, `score`, `los` (the likelihood of
    superiority over the next player in the table), `nash` (the share in the Nash equilibrium) and `against_nash` (the
    payoff against it, -1 to 1). `payoff` is the payoff matrix: the score and the games of each row's agent against each
    column's, null if they did not meet, and whether the row's agent beats the column's with 95 % confidence. `circles`
    is the part of strength that is cyclic.
    """
    names, wins, draws, pairs, repeats = count(games)
    fixed, note = _choose_anchor(names, wins, draws, anchor, anchor_rating)
    fit = rate(wins, draws, anchor=fixed, anchor_rating=anchor_rating, pairs=pairs)
    order = np.lexsort((np.arange(len(names)), -fit.rating))
    met = wins + wins.T + draws
    score = np.where(met > 0, (wins + draws / 2) / np.maximum(met, 1), np.nan)
    share, against_nash = nash(np.where(met > 0, 2 * score - 1, 2 * fit.expected() - 1) * (1 - np.eye(len(names))))
    found = cyclic_share(np.where(met > 0, score, 0.5), np.where(met > 0, fit.effective, 0.0))
    return {
        "anchor": names[fixed],
        "anchor_rating": anchor_rating,
        "note": note,
        "games": int(met.sum() / 2),
        "repeats": repeats,
        "draw_share": float(draws.sum() / max(met.sum(), 1)),
        "players": _players(names, order, fit, wins, draws, share, against_nash),
        "payoff": {
            "agents": [names[i] for i in order],
            "score": _cells(score, order),
            "games": _cells(met, order, int),
            "beats": _cells(_beats(score, fit.effective, met), order, bool),
        },
        "circles": asdict(found) | {"cycles": [[names[i] for i in cycle] for cycle in found.cycles]},
    }


def count(games: Sequence[Line]) -> tuple[list[str], Array, Array, Array, int]:
    """Names, wins and draws [players, players], pairs [players, players, 5], and the number of repeated games.

    A game is determined by its seed: the same agents on the same sides with the same seed count once.
    """
    names = sorted({name for game in games for name in game["agents"]})
    place = {name: i for i, name in enumerate(names)}
    wins, draws = np.zeros((len(names), len(names))), np.zeros((len(names), len(names)))
    pairs = np.zeros((len(names), len(names), 5))
    seen: dict[tuple[int, int, Any], int] = {}
    repeats = 0
    for game in games:
        (i, j), outcome, seed = (place[name] for name in game["agents"]), game["outcome"], game.get("seed")
        if seed is not None and (i, j, seed) in seen:
            repeats += 1
            continue
        if outcome == 0:
            draws[i, j] += 1
            draws[j, i] += 1
        else:
            wins[(i, j) if outcome == 1 else (j, i)] += 1
        if seed is not None:
            seen[i, j, seed] = outcome
            if (other := seen.get((j, i, seed))) is not None:
                points = outcome - other + 2
                pairs[i, j, points] += 1
                pairs[j, i, 4 - points] += 1
    return names, wins, draws, pairs, repeats


def _choose_anchor(names: list[str], wins: Array, draws: Array, anchor: str, rating: float) -> tuple[int, str]:
    """The player whose rating is fixed: the anchor, else the scripted player with most games, else the player with most
    games; and a note if it is not the anchor.
    """
    if anchor in names:
        return names.index(anchor), ""
    played = (wins + wins.T + draws).sum(axis=1)
    scripted = np.array([name.startswith("scripted:") for name in names])
    chosen = int(np.where(scripted, played + played.sum() + 1, played).argmax())
    return chosen, f"{anchor} has no games here: {names[chosen]} is fixed at {rating:g} instead."


def _players(
    names: list[str], order: Array, fit: Ratings, wins: Array, draws: Array, share: Array, against_nash: Array
) -> list[dict[str, Any]]:
    superiority, shown = fit.superiority(), short_names(names)
    rows = []
    for rank, i in enumerate(order.tolist()):
        won, drawn, lost = int(wins[i].sum()), int(draws[i].sum()), int(wins[:, i].sum())
        games = won + drawn + lost
        los = float(superiority[i, order[rank + 1]]) if rank + 1 < len(order) else np.nan
        rows.append(
            {
                "agent": names[i],
                "short": shown[names[i]],
                "rating": float(fit.rating[i]),
                "low": _number(fit.low[i]),
                "high": _number(fit.high[i]),
                "connected": bool(fit.connected[i]),
                "games": games,
                "wins": won,
                "draws": drawn,
                "losses": lost,
                "score": (won + drawn / 2) / max(games, 1),
                "los": _number(los),
                "nash": float(share[i]),
                "against_nash": float(against_nash[i]),
            }
        )
    return rows


def _beats(score: Array, effective: Array, met: Array) -> Array:
    """Where the lower 95 % bound of a score is above 1/2, from effective games; NaN where players did not meet."""
    low, _ = bounds(np.nan_to_num(score) * effective, np.zeros_like(score), effective)
    return np.where(met > 0, low > 0.5, np.nan)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _cells(values: Array, order: Array, kind: type = float) -> list[list[Any]]:
    return [[None if i == j or np.isnan(values[i, j]) else kind(values[i, j]) for j in order] for i in order]


def write_ladder(
    run: RunDir, anchor: str = ANCHOR, anchor_rating: float = ANCHOR_RATING, pictures: bool = True
) -> dict[str, Any]:
    """Rate all players of games.jsonl: write ladder.json, ratings.csv and charts."""
    games, unreadable = GamesLog(run).read()
    tables = ladder(games, anchor, anchor_rating)
    whole = {"format": FORMAT, "logged": len(games), "unreadable": unreadable, "tables": tables}
    write_json(run.path / "ladder.json", whole)
    write_text(run.path / "ratings.csv", ratings_csv(tables))
    drawn: list[Path] = []
    if pictures and tables:
        from slipstream.league.charts import draw_ladder

        drawn = draw_ladder(run.path, tables)
    return whole | {"pictures": [str(path) for path in drawn]}


def ratings_csv(tables: Sequence[Mapping[str, Any]]) -> str:
    """Ratings by training steps, in order; players without a version have no steps."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["steps", "agent", "mode", "play", "rating", "low", "high"])
    for one in tables:
        rows = [(steps_of(player["agent"]), player) for player in one["players"]]
        for steps, player in sorted(rows, key=lambda row: (-1 if row[0] is None else row[0], row[1]["agent"])):
            numbers = [None if player[key] is None else f"{player[key]:.1f}" for key in ("rating", "low", "high")]
            writer.writerow([steps, player["agent"], one["mode"], one["play"], *numbers])
    return out.getvalue()
