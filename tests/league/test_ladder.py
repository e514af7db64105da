"""The ladder: a log that survives crashes, and tables that are computed from it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.errors import MachineError
from slipstream.league import charts
from slipstream.league.ladder import GamesLog, count, game_line, ladder, table, write_ladder
from slipstream.runs.layout import RunDir

ONE, OTHER, THIRD = "scripted:rule", "run:a@100", "run:a@200"


def line(one: str = ONE, other: str = OTHER, outcome: int = 1, **more: Any) -> dict[str, Any]:
    """A line of games.jsonl, by default 1v1 and greedy."""
    facts = {"kind": "tournament", "env": "soccer", "mode": "1v1", "play": "greedy"} | more
    rest = {key: facts.pop(key) for key in ("seed", "steps", "score", "length") if key in facts}
    return game_line(**facts, agents=(one, other), outcome=outcome, **rest)


def round_robin(games: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """Paired games between three players of increasing strength."""
    rng, strength, lines = np.random.default_rng(seed), {ONE: 0.0, OTHER: 0.6, THIRD: 1.2}, []
    for one, other in ((ONE, OTHER), (ONE, THIRD), (OTHER, THIRD)):
        for number in range(games // 2):
            for sides in ((one, other), (other, one)):
                probability = 1 / (1 + np.exp(strength[sides[1]] - strength[sides[0]]))
                lines.append(line(*sides, 1 if rng.random() < probability else -1, seed=number))
    return lines


def test_games_are_appended_and_read(tmp_path: Path) -> None:
    """Lines of several writers are read back unchanged."""
    log = GamesLog(RunDir(tmp_path))
    assert log.read() == ([], 0)
    log.append([line(seed=n, score=(2, 1), length=900) for n in range(3)])
    GamesLog(RunDir(tmp_path)).append([line(outcome=0)])
    games, unreadable = log.read()
    assert unreadable == 0 and [game["seed"] for game in games] == [0, 1, 2, None]
    assert games[0] == {
        "kind": "tournament",
        "env": "soccer",
        "mode": "1v1",
        "play": "greedy",
        "agents": [ONE, OTHER],
        "seed": 0,
        "outcome": 1,
        "score": [2, 1],
        "length": 900,
        "steps": None,
    }


def test_incomplete_lines_are_counted(tmp_path: Path) -> None:
    """A crash in the middle of a line loses that line only."""
    log = GamesLog(RunDir(tmp_path))
    log.append([line(seed=1), line(seed=2)])
    data = log.path.read_bytes()
    log.path.write_bytes(data[:-20])
    GamesLog(RunDir(tmp_path)).append([line(seed=3)])
    with open(log.path, "ab") as file:
        file.write(b'{"agents": ["a"], "outcome": 1}\n{"agents": ["a", "b"], "outcome": 7}\nnull\n')
    games, unreadable = log.read()
    assert [game["seed"] for game in games] == [1, 3] and unreadable == 4


def test_rewind_drops_lines_after_a_checkpoint(tmp_path: Path) -> None:
    """Newer games and incomplete lines are dropped; older ones and those without steps stay."""
    log = GamesLog(RunDir(tmp_path))
    assert log.rewind(5) == 0
    log.append([line(steps=10), line(steps=None), line(steps=20), line(steps=30)])
    with open(log.path, "ab") as file:
        file.write(b'{"agents"')
    assert log.rewind(20) == 2
    assert [game["steps"] for game in log.read()[0]] == [10, None, 20]
    assert log.rewind(20) == 0


def test_failed_writes_are_retried(tmp_path: Path) -> None:
    """Games are kept until they can be written; `close` raises if that fails."""
    log = GamesLog(RunDir(tmp_path / "later"))
    log.append([line(seed=1)])
    with pytest.raises(MachineError, match=r"1 games could not be written to .*games\.jsonl: No such file"):
        log.close()
    (tmp_path / "later").mkdir()
    log.append([line(seed=2)])
    assert [game["seed"] for game in log.read()[0]] == [1, 2]


def test_counting_by_hand() -> None:
    """Wins, draws, pairs by points and a repeated game are counted."""
    games = [
        line("a", "b", 1, seed=1),
        line("b", "a", -1, seed=1),
        line("a", "b", 0, seed=2),
        line("b", "a", 1, seed=2),
        line("a", "b", 0, seed=2),
        line("a", "b", -1, seed=None),
        line("a", "b", -1, seed=None),
    ]
    names, wins, draws, pairs, repeats = count(games)
    assert names == ["a", "b"] and repeats == 1
    assert wins.tolist() == [[0, 2], [3, 0]] and draws.tolist() == [[0, 1], [1, 0]]
    assert pairs[0, 1].tolist() == [0, 1, 0, 0, 1] and pairs[1, 0].tolist() == [1, 0, 0, 1, 0]


def test_a_table() -> None:
    """A table has ordered ratings with intervals, a fixed anchor, and consistent scores and payoffs."""
    found = table(round_robin(200))
    players = found["players"]
    assert [player["agent"] for player in players] == [THIRD, OTHER, ONE]
    assert players[2]["rating"] == players[2]["low"] == players[2]["high"] == 1500
    assert all(player["low"] < player["rating"] < player["high"] for player in players[:2])
    assert players[0]["los"] > 0.9 and players[2]["los"] is None and players[0]["nash"] == 1
    assert found["games"] == 600 and all(player["games"] == 400 for player in players)
    assert sum(player["score"] for player in players) == pytest.approx(1.5)
    assert found["payoff"]["agents"] == [THIRD, OTHER, ONE]
    assert found["payoff"]["score"][0][0] is None and found["payoff"]["games"][0][1] == 200
    assert found["payoff"]["score"][0][2] + found["payoff"]["score"][2][0] == pytest.approx(1)
    assert found["payoff"]["beats"][0][2] is True and found["payoff"]["beats"][2][0] is False
    assert found["circles"]["by_chance"] and found["note"] == ""
    json.dumps(found, allow_nan=False)


def test_order_and_repeats_of_the_log_change_nothing() -> None:
    """A shuffled and duplicated log gives the same table."""
    games = round_robin()
    shuffled = [games[i] for i in np.random.default_rng(1).permutation(len(games))]
    twice = table([*shuffled, *games])
    assert twice.pop("repeats") == len(games)
    once = table(games)
    assert once.pop("repeats") == 0
    assert twice == once


def test_tables_are_separate() -> None:
    """There is a table for each mode and way of playing; training games and self-play are not rated."""
    games = [*round_robin(), line(mode="2v2"), line(play="sampled"), line(kind="train", mode="3v3"), line(ONE, ONE)]
    tables = ladder(games)
    assert [(one["mode"], one["play"], one["games"]) for one in tables] == [
        ("1v1", "greedy", 120),
        ("1v1", "sampled", 1),
        ("2v2", "greedy", 1),
    ]
    assert ladder([]) == []


def test_another_anchor_is_found_and_named() -> None:
    """Without games of the anchor, a scripted player is fixed, or the player with most games."""
    scripted = table([line("scripted:chaser", "x"), line("x", "y"), line("x", "y")])
    assert scripted["anchor"] == "scripted:chaser"
    assert scripted["note"] == "scripted:rule has no games here: scripted:chaser is fixed at 1500 instead."
    assert table([line("x", "y"), line("x", "z")])["anchor"] == "x"
    chosen = table([line("x", "y")], anchor="y", anchor_rating=1000)
    assert chosen["anchor"] == "y" and chosen["players"][1]["rating"] == 1000


def test_players_apart_from_the_anchor_have_no_interval() -> None:
    """Two players that met no others are marked as not connected."""
    found = table([line(), line("x", "y"), line("y", "x")])
    apart = [player for player in found["players"] if player["agent"] in ("x", "y")]
    assert all(player["low"] is None and not player["connected"] for player in apart)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("outcome", [1, 0, -1])
def test_one_sided_results_stay_finite(outcome: int) -> None:
    """With only wins, draws or losses every number of the table is finite."""
    found = table([line(*sides, outcome, seed=n) for n in range(50) for sides in ((ONE, OTHER), (ONE, THIRD))])
    json.dumps(found, allow_nan=False)
    assert all(player["low"] <= player["rating"] <= player["high"] for player in found["players"])


def test_a_ladder_on_disk(tmp_path: Path) -> None:
    """ladder.json, ratings.csv with the steps of each version, and charts are written."""
    run = RunDir(tmp_path)
    GamesLog(run).append([*round_robin(), line(kind="train", steps=5)])
    with open(run.games, "ab") as file:
        file.write(b"torn")
    whole = write_ladder(run)
    assert [Path(name).name for name in whole["pictures"]] == ["ladder.png", "payoff.png", "ratings.png"]
    stored = json.loads((tmp_path / "ladder.json").read_text())
    assert stored["format"] == 1 and stored["logged"] == 121 and stored["unreadable"] == 1
    assert stored["tables"] == whole["tables"]
    rows = list(csv.DictReader((tmp_path / "ratings.csv").open()))
    assert [(row["steps"], row["agent"]) for row in rows] == [("", ONE), ("100", OTHER), ("200", THIRD)]
    assert float(rows[1]["low"]) < float(rows[1]["rating"]) < float(rows[1]["high"])
    for name in ("ladder.png", "payoff.png", "ratings.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_an_empty_log_is_an_empty_ladder(tmp_path: Path) -> None:
    """Without games there are no tables, no charts and no error."""
    whole = write_ladder(RunDir(tmp_path))
    assert whole["tables"] == [] and whole["pictures"] == []
    assert (tmp_path / "ratings.csv").read_text() == "steps,agent,mode,play,rating,low,high\n"


def test_charts_need_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The charts of a ladder are drawn without matplotlib."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    run = RunDir(tmp_path)
    GamesLog(run).append(round_robin())
    whole = write_ladder(run)
    assert len(whole["pictures"]) == 3 and (tmp_path / "ladder.json").is_file()
    assert charts.draw_ladder(tmp_path, whole["tables"]) == [Path(name) for name in whole["pictures"]]
