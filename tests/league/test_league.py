"""A small league: matchmaking, snapshots and ratings, exact resume, and retirement of broken players."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.agents.trained import TrainedAgent
from slipstream.api import Run, compete, evaluate, resume
from slipstream.errors import ConfigError
from slipstream.league.exploiters import SEEDS
from slipstream.league.ladder import ladder
from slipstream.runs.checkpoint import Checkpoint, find, load
from slipstream.runs.layout import RunDir

SMALL: dict[str, Any] = {
    "preset": "smoke",
    "every__evaluate": 0,
    "every__system": 0,
    "every__log": 64,
    "every__checkpoint": 10**9,
    "env__match_seconds": 1.0,
    "league__snapshot": 256,
    "league__rating_games": 4,
    "league__sprt_games": 8,
    "league__rating_opponents": 2,
    "league__pool": 3,
}


@pytest.fixture
def league(tmp_path: Path) -> Callable[..., Run]:
    """Run a small league in a new folder."""

    def make(name: str = "league", env: str = "soccer", **settings: Any) -> Run:
        return compete(env, run=tmp_path / name, **(SMALL | settings))

    return make


def lines(run: Run, name: str = "games.jsonl") -> list[dict[str, Any]]:
    """The lines of a file of the run."""
    return [json.loads(line) for line in (Path(run.path) / name).read_text().splitlines()]


def last(run: Run) -> Checkpoint:
    """The newest checkpoint."""
    return load(find(RunDir.open(Path(run.path))))


CASES: dict[str, dict[str, Any]] = {
    "local": {"plan__collector": "local"},
    "lag 1, lstm": {
        "plan__collector": "actors",
        "plan__workers": 2,
        "plan__lag": 1,
        "policy__memory": "lstm",
        "policy__memory_size": 8,
    },
    "exploiters": {
        "plan__collector": "local",
        "league__main_exploiters": 1,
        "league__league_exploiters": 1,
        "league__exploiter_share": 0.5,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_league_equals_the_uninterrupted_one(case: str, league: Callable[..., Run]) -> None:
    """Weights, pool, results, games, ratings and events are the same bit for bit."""
    whole = league("whole", steps=2400, **CASES[case])
    half = league("half", steps=1200, **CASES[case])
    again = resume(half.path, steps=2400)
    one, other = last(whole), last(again)
    for group, arrays in one.groups.items():
        assert arrays.keys() == other.groups[group].keys()
        for name, array in arrays.items():
            assert np.array_equal(array, other.groups[group][name]), f"{group}/{name} differs"
    assert one.state | {"seconds": 0} == other.state | {"seconds": 0}
    assert lines(whole) == lines(again)
    assert lines(whole, "events.jsonl") == lines(again, "events.jsonl")
    assert whole.facts["ladder"]["tables"] == again.facts["ladder"]["tables"]


def test_every_game_is_logged_and_ratings_come_from_the_log(league: Callable[..., Run]) -> None:
    """Logged games have agents with versions, seeds, scores and lengths; rating games come in pairs."""
    run = league(steps=1500)
    games = lines(run)
    kinds = Counter(game["kind"] for game in games)
    assert kinds["train"] > 30 and kinds["rating"] > 20
    for game in games:
        assert game["mode"] == "1v1"
        first, second = game["score"]
        assert np.sign(first - second) == game["outcome"]
        assert game["length"] > 0 and game["seed"] >= 0
        assert all(name.startswith(("scripted:", "main@")) for name in game["agents"])
    rated = [game for game in games if game["kind"] == "rating"]
    by_pair = Counter((game["seed"], game["play"], *sorted(game["agents"])) for game in rated)
    assert set(by_pair.values()) == {2}, "each start is played from both sides"
    assert ladder(games) == json.loads((Path(run.path) / "ladder.json").read_text())["tables"]
    tables = {table["play"]: table for table in run.facts["ladder"]["tables"]}
    assert set(tables) == {"greedy", "sampled"}
    players = {player["agent"]: player for player in tables["greedy"]["players"]}
    assert players["scripted:rule"]["rating"] == 1500
    assert players["main@0"]["low"] < players["main@0"]["rating"] < players["main@0"]["high"]


def test_only_the_learning_side_counts(league: Callable[..., Run]) -> None:
    """Against frozen players the steps of one side count, in self-play those of both."""
    alone = league("alone", steps=600, league__matchmaking="latest", league__snapshot=10**6)
    every = [row["iteration"] for row in alone.metrics()]
    batch = alone.metrics()[-1]["steps"] / every[-1]
    assert batch < 1.6 * 64, "4 envs x 16 steps, one side of two against the latest snapshot"


def test_a_pool_keeps_its_size_and_snapshots_can_be_played(league: Callable[..., Run]) -> None:
    """Beyond the cap the least useful snapshot is retired; every snapshot has an agent spec."""
    run = league(steps=4000, league__snapshot=200)
    retired = [event for event in lines(run, "events.jsonl") if event["kind"] == "retired"]
    assert retired and "the least useful of 4 players in a pool for 3" in retired[0]["text"]
    assert "main@" in retired[0]["text"]
    frozen = [event["text"].split()[0] for event in lines(run, "events.jsonl") if event["kind"] == "snapshot"]
    assert len(frozen) >= 8
    steps = frozen[-1].partition("@")[2]
    result = evaluate(f"run:{run.path}/pool@{steps}", "soccer", opponent="random", games=4, env__match_seconds=1.0)
    assert result["games"] == 4


def test_a_broken_player_is_retired_and_the_league_continues(league: Callable[..., Run], tmp_path: Path) -> None:
    """A snapshot whose file is damaged before a resume is retired with the reason."""
    run = league(steps=1200)
    state = last(run).state["matches"]["opponents"]
    victims = [p for p in state["pool"]["players"] if p["kind"] == "main" and not p["retired"]]
    for victim in victims:
        file = Path(run.path) / "pool" / "checkpoints" / f"{victim['steps']:012d}" / "policy.safetensors"
        file.write_bytes(file.read_bytes()[:-8] + b"damaged!")
    again = resume(run.path, steps=2400)
    texts = [event["text"] for event in lines(again, "events.jsonl") if event["kind"] == "retired"]
    assert any("main@" in text and ("sha256" in text or "damaged" in text or "changed" in text) for text in texts), (
        texts
    )
    assert all(np.isfinite(p["rating"]) for table in again.facts["ladder"]["tables"] for p in table["players"])


def test_a_league_needs_two_sides_and_no_opponent(tmp_path: Path) -> None:
    """Wrong settings are an error before anything is written."""
    with pytest.raises(ConfigError) as caught:
        compete("soccer", run=tmp_path / "a", opponent="random", **SMALL)
    assert "A league chooses its own opponents" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        compete("kart", run=tmp_path / "b", **SMALL)
    assert "has one side" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        compete("soccer", run=tmp_path / "c", **(SMALL | {"league__anchors": ["scripted:rul"]}))
    assert "league.anchors: `soccer` has no player `scripted:rul`." in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_snapshot_of_an_exploiter_is_taken_before_its_reset(league: Callable[..., Run]) -> None:
    """The snapshot in the pool holds trained weights, not the initial ones."""
    run = league(
        steps=2400, league__main_exploiters=1, league__exploiter_share=0.5, league__snapshot=200, league__pool=9
    )
    texts = [event["text"] for event in lines(run, "events.jsonl")]
    place = next(k for k, text in enumerate(texts) if text == "main-exploiter-1 is reset to its initial weights.")
    frozen = [text.split()[0] for text in texts[:place] if text.startswith("main-exploiter-1@")]
    assert frozen, texts
    agent = TrainedAgent.from_run(Path(run.path) / "main-exploiter-1", frozen[0].partition("@")[2])
    first = agent.design.initial_params_and_stats(SEEDS)
    assert not np.array_equal(
        agent.design.split_params_and_stats(agent.params_and_stats)[0], agent.design.split_params_and_stats(first)[0]
    )
    players = last(run).state["matches"]["opponents"]["pool"]["players"]
    assert frozen[0] in [player["name"] for player in players if player["kind"] == "main_exploiter"]
    met = {name for game in lines(run) if game["kind"] == "train" for name in game["agents"]}
    assert any(name.startswith("sparring@") for name in met) and any(name.startswith("main-exploiter") for name in met)


def test_one_policy_is_rated_in_every_mode(league: Callable[..., Run]) -> None:
    """With several team sizes each has its own ladder, greedy and sampled."""
    run = league(env="soccer:mixed", steps=400)
    tables = {(table["mode"], table["play"]) for table in run.facts["ladder"]["tables"]}
    assert tables == {(mode, play) for mode in ("1v1", "2v2", "3v3") for play in ("greedy", "sampled")}
    assert {game["mode"] for game in lines(run) if game["kind"] == "train"} <= {"any", "1v1", "2v2", "3v3"}


@pytest.mark.parametrize("way", ["prioritised", "near", "uniform", "latest"])
def test_other_kinds_of_matchmaking(way: str, league: Callable[..., Run]) -> None:
    """Each kind completes a league, and none uses self-play once there is a snapshot."""
    run = league(steps=800, league__matchmaking=way)
    games = [game for game in lines(run) if game["kind"] == "train" and game["steps"] > 400]
    assert games and all(game["agents"][0] != game["agents"][1] for game in games)


def test_the_number_of_resident_players(league: Callable[..., Run]) -> None:
    """With one resident player all games of a rollout are against it, although the pool has several."""
    alone = {"league__self_play": 0.0, "league__verification": 0.0, "plan__envs": 16}
    one = last(league("one", steps=600, league__resident=1, **alone)).groups["matches"]["seats"]
    many = last(league("many", steps=600, **alone)).groups["matches"]["seats"]
    assert len(set(one[:, 1].tolist())) == 1 < len(set(many[:, 1].tolist()))
