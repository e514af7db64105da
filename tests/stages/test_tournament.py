"""Tournaments: games in pairs, the log, retirement of broken agents, and adding games to a log."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.api import Run
from slipstream.contracts import Array
from slipstream.envs import registry
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError
from slipstream.league.ladder import GamesLog
from slipstream.runs.layout import RunDir
from slipstream.settings import EnvSettings
from slipstream.stages.tournament import tournament

SOCCER = EnvChoice("soccer", EnvSettings(match_seconds=4.0))
SCRIPTED = ("scripted:rule", "scripted:chaser", "scripted:keeper")


def games_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of the log."""
    return GamesLog(RunDir(folder)).read()[0]


def hold(agents: tuple[str, ...], folder: Path, games: int = 4, choice: EnvChoice = SOCCER, **more: Any) -> Any:
    """Play a small tournament; return its facts and notices."""
    notices: list[str] = []
    facts = tournament(choice, agents, games, run=folder, on_notice=notices.append, **({"replays": False} | more))
    return facts, notices


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soccer with two more scripted agents: one that raises after a while, one whose actions are NaN."""
    calls = [0]

    def raises(obs: Array, kind: str, out: Array) -> None:
        calls[0] += 1
        if calls[0] > 3:
            raise ValueError("tired")
        out[:] = 0

    def nan(obs: Array, kind: str, out: Array) -> None:
        out[:] = np.nan

    scripted = {**registry.BUILT_IN["soccer"].scripted, "raises": raises, "nan": nan}
    monkeypatch.setitem(registry.BUILT_IN, "soccer", replace(registry.BUILT_IN["soccer"], scripted=scripted))


def test_a_round_robin_in_pairs(tmp_path: Path) -> None:
    """All pairs play every start twice with the sides swapped; log, ladder and facts agree."""
    facts, notices = hold(SCRIPTED, tmp_path, 6)
    games = games_of(tmp_path)
    assert len(games) == facts["games"] == facts["logged"] == 18 and not notices
    for one, other in (SCRIPTED[:2], SCRIPTED[1:], SCRIPTED[::2]):
        first = sorted(game["seed"] for game in games if game["agents"] == [one, other])
        second = sorted(game["seed"] for game in games if game["agents"] == [other, one])
        assert first == second and len(set(first)) == 3
    assert {(game["kind"], game["env"], game["play"]) for game in games} == {("tournament", "soccer", "greedy")}
    assert all(game["length"] > 0 for game in games)
    (table,) = facts["tables"]
    assert table["games"] == 18 and {player["agent"] for player in table["players"]} == set(SCRIPTED)
    assert json.loads((tmp_path / "ladder.json").read_text())["tables"] == facts["tables"]
    assert (tmp_path / "ratings.csv").is_file()
    assert facts["winner"] == table["players"][0]["agent"]


def test_the_same_seed_gives_the_same_tournament(tmp_path: Path) -> None:
    """Games and results do not depend on threads and chunks."""

    def results(folder: Path) -> list[Any]:
        hold(("scripted:rule", "random", "scripted:chaser"), folder, 4, sampled=True, seed=5)
        return sorted((game["agents"], game["seed"], game["outcome"], game["length"]) for game in games_of(folder))

    assert results(tmp_path / "a") == results(tmp_path / "b")


def test_more_games_are_added_to_the_log(tmp_path: Path) -> None:
    """The same command again plays other starts; no game counts twice."""
    hold(SCRIPTED[:2], tmp_path, 4)
    facts, _ = hold(SCRIPTED[:2], tmp_path, 4)
    games = games_of(tmp_path)
    assert facts["games"] == 4 and facts["logged"] == len(games) == 8
    assert len({(*game["agents"], game["seed"]) for game in games}) == 8
    (table,) = facts["tables"]
    assert table["games"] == 8 and table["repeats"] == 0


def test_a_pair_cut_in_half_is_completed(tmp_path: Path) -> None:
    """If a log ends in the middle of a pair, the other game of the pair is played."""
    hold(SCRIPTED[:2], tmp_path, 4)
    log = RunDir(tmp_path).games
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3]))
    hold(SCRIPTED[:2], tmp_path, 2)
    games = games_of(tmp_path)
    seeds = [game["seed"] for game in games]
    assert len(games) == 6 and all(seeds.count(seed) == 2 for seed in seeds)


def test_a_gauntlet(tmp_path: Path) -> None:
    """Only the first agent plays against the others."""
    hold(SCRIPTED, tmp_path, 2, format="gauntlet")
    games = games_of(tmp_path)
    assert len(games) == 4 and all("scripted:rule" in game["agents"] for game in games)


def test_a_knockout_has_one_winner(tmp_path: Path) -> None:
    """Five agents play one preliminary match, two semi-finals and the final; ties have extra pairs."""
    agents = ("scripted:rule", "scripted:chaser", "scripted:keeper", "random", "scripted:still")
    still = {**registry.BUILT_IN["soccer"].scripted, "still": lambda obs, kind, out: out.fill(0)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BUILT_IN, "soccer", replace(registry.BUILT_IN["soccer"], scripted=still))
        facts, _ = hold(agents, tmp_path, 2, format="knockout")
    assert [len(matches) for matches in facts["rounds"]] == [1, 2, 1]
    assert facts["rounds"][0][0]["agents"] == ["random", "scripted:still"]
    assert facts["rounds"][1][0]["agents"][0] == "scripted:rule"
    for matches in facts["rounds"]:
        for match in matches:
            assert sum(match["points"]) == 2 + 2 * match["replayed_pairs"]
            assert match["winner"] in match["agents"] and not match["walkover"]
            loser = next(agent for agent in match["agents"] if agent != match["winner"])
            scored = dict(zip(match["agents"], match["points"], strict=True))
            assert scored[match["winner"]] >= scored[loser]
    finalists = {match["winner"] for match in facts["rounds"][1]}
    assert set(facts["rounds"][2][0]["agents"]) == finalists


def test_a_drawn_match_is_decided_by_the_seed(tmp_path: Path) -> None:
    """After twenty extra pairs the better seed advances."""
    idle = {"one": lambda obs, kind, out: out.fill(0), "two": lambda obs, kind, out: out.fill(0)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BUILT_IN, "soccer", replace(registry.BUILT_IN["soccer"], scripted=idle))
        facts, _ = hold(("scripted:two", "scripted:one"), tmp_path, 2, format="knockout")
    (match,) = facts["rounds"][0]
    assert match["points"] == [21, 21] and match["replayed_pairs"] == 20 and match["winner"] == "scripted:two"


@pytest.mark.usefixtures("breaking")
def test_agents_that_break_are_retired(tmp_path: Path) -> None:
    """An agent that raises and one that returns NaN are retired with the reason; other games count."""
    choice = replace(SOCCER, env=EnvSettings(match_seconds=4.0, actions="continuous"))
    facts, notices = hold((*SCRIPTED[:2], "scripted:raises", "scripted:nan"), tmp_path, 4, choice)
    assert facts["agents"] == list(SCRIPTED[:2]) and facts["games"] == 4
    assert facts["retired"]["scripted:raises"] == "raised ValueError: tired"
    assert "scripted:nan" in facts["retired"] and len(notices) == 2
    assert "scripted:raises is retired: raised ValueError: tired" in notices
    (table,) = facts["tables"]
    assert {player["agent"] for player in table["players"]} <= {*SCRIPTED[:2], "scripted:raises"}


@pytest.mark.usefixtures("breaking")
def test_a_knockout_continues_without_a_broken_agent(tmp_path: Path) -> None:
    """The opponent of a broken agent wins by walkover."""
    facts, _ = hold((*SCRIPTED, "scripted:raises"), tmp_path, 2, format="knockout")
    walkovers = [match for matches in facts["rounds"] for match in matches if match["walkover"]]
    assert [match["winner"] for match in walkovers] == ["scripted:rule"]
    assert facts["winner"] != "scripted:raises"


@pytest.mark.usefixtures("breaking")
def test_fewer_than_two_agents_is_an_error(tmp_path: Path) -> None:
    """If all other agents fail, the error names the reasons."""
    with pytest.raises(ConfigError, match=r"Fewer than two agents are left.*scripted:raises: raised ValueError: tired"):
        hold(("scripted:rule", "scripted:raises"), tmp_path)


def test_trained_agents_play_under_their_version(tmp_path: Path, trained: Run) -> None:
    """A run is logged with its steps; missing, damaged and incompatible runs are retired; duplicates play once."""
    damaged = tmp_path / "damaged"
    shutil.copytree(trained.path, damaged)
    for file in damaged.rglob("policy.safetensors"):
        file.write_bytes(file.read_bytes()[:-100])
    steps = trained.facts["steps"]
    agents = (
        "scripted:rule",
        f"run:{trained.path}",
        f"run:{trained.path}/@{steps}",
        f"run:{damaged}",
        "run:nowhere",
    )
    facts, notices = hold(agents, tmp_path / "t", 2)
    name = f"run:{trained.path}@{steps}"
    assert facts["agents"] == ["scripted:rule", name]
    assert facts["retired"]["run:nowhere"] == "No run at nowhere: no such folder."
    assert f"run:{damaged}" in facts["retired"]
    assert any("which is entered already: it plays once" in notice for notice in notices)
    assert {name for game in games_of(tmp_path / "t") for name in game["agents"]} == {"scripted:rule", name}


def test_agents_of_another_game_are_retired(tmp_path: Path, trained: Run) -> None:
    """An agent with other observations or actions is retired with the reason."""
    other = replace(SOCCER, env=EnvSettings(match_seconds=4.0, actions="continuous"))
    facts, _ = hold((*SCRIPTED[:2], f"run:{trained.path}"), tmp_path, 2, other)
    assert "continuous actions" in facts["retired"][f"run:{trained.path}"]


def test_replays_of_the_winner(tmp_path: Path) -> None:
    """The best, worst, closest and lost games of the winner are written as replays."""
    facts, _ = hold(SCRIPTED, tmp_path, 6, replays=True)
    names = [Path(path).name for path in facts["replays"]]
    assert any(name.startswith("best-") for name in names) and all(Path(path).is_file() for path in facts["replays"])


@pytest.mark.parametrize(
    ("agents", "games", "says"),
    [
        (("scripted:rule", "random"), 3, "3 games cannot be played in pairs"),
        (("scripted:rule",), 2, "1 agent cannot play a tournament"),
        (("scripted:rule", "scripted:rule"), 2, "All of these are one agent, scripted:rule"),
        (("scripted:rule", "scripted:ruel"), 2, r"no player `scripted:ruel`. Did you mean `rule`"),
    ],
)
def test_invalid_tournaments_are_errors(tmp_path: Path, agents: tuple[str, ...], games: int, says: str) -> None:
    """An odd number of games, a single agent and unknown names are errors."""
    with pytest.raises(ConfigError, match=says):
        hold(agents, tmp_path, games)


def test_games_of_one_side_have_no_tournament(tmp_path: Path) -> None:
    """The hint names --beside."""
    with pytest.raises(ConfigError, match=r"`kart` has one side.*\n.*--beside"):
        hold(("scripted:expert", "random"), tmp_path, 2, EnvChoice("kart"))
