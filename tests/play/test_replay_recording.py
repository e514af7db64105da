"""Replay recording: games are replayed bit for bit; which games are kept, and their file names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.agents.simple import BatchAgent
from slipstream.agents.specs import load_agent
from slipstream.agents.trained import TrainedAgent
from slipstream.api import Run
from slipstream.contracts import Array, EnvSpec, empty_rows
from slipstream.envs.native.kernels import GIVEN
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, DemoError
from slipstream.play.engine import GameResult, ScheduledGame, play_scheduled
from slipstream.play.games import game_seed, paired_games
from slipstream.play.replay_recording import (
    SingleGame,
    choose,
    file_name,
    margin,
    record_replays,
    verify,
    write_replay,
)
from slipstream.runs.replays import Replay, ReplayFacts, write
from slipstream.settings import EnvSettings
from slipstream.vector.make import make_vector

GAMES = {
    "soccer": EnvChoice("soccer", EnvSettings(match_seconds=12)),
    "soccer:2v2": EnvChoice("soccer:2v2", EnvSettings(match_seconds=12, actions="continuous")),
    "kart": EnvChoice("kart", EnvSettings(match_seconds=12, actions="continuous")),
    "cartpole": EnvChoice("gymnasium:CartPole-v1"),
}


def load(name: str, spec: EnvSpec, choice: EnvChoice) -> BatchAgent:
    """Load scripted and random agents."""
    return load_agent(name, spec, choice)


def played(name: str, games: int = 6) -> list[GameResult]:
    """Play games in a vector of three envs and keep their actions."""
    sides = {"kart": ("scripted:expert",), "cartpole": ("random",)}.get(name, ("scripted:rule", "random"))
    schedule = [ScheduledGame(sides, game_seed(3, game)) for game in range(games)]
    return play_scheduled(GAMES[name], load, schedule, envs=3, keep_actions=True)


@pytest.mark.parametrize("name", list(GAMES))
def test_played_again_it_is_the_same(name: str, tmp_path: Path) -> None:
    """A replay of a game from the middle of a vector is verified and has the same length and returns."""
    one = played(name)[4]
    write_replay(GAMES[name], one, tmp_path / "x.replay", load=load)
    replay = Replay.open(tmp_path / "x.replay")
    verify(replay)
    assert replay.facts.length == one.length and replay.facts.seed == one.game.seed
    assert replay.read("action").tobytes() == np.ascontiguousarray(one.actions).tobytes()
    reward = replay.read("reward").astype(np.float64).sum(axis=0)
    sides = sorted(set(replay.facts.teams))
    for side, total in zip(sides, one.returns, strict=True):
        assert reward[np.array(replay.facts.teams) == side].mean() == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("name", ["soccer", "soccer:2v2", "kart"])
def test_the_states_are_those_of_the_vector(name: str, tmp_path: Path) -> None:
    """Every bit of a replay equals the state of the env in the middle of a vector while the game was played."""
    one, middle = played(name, 1)[0], 2
    write_replay(GAMES[name], one, tmp_path / "x.replay")
    replay = Replay.open(tmp_path / "x.replay")
    vector = make_vector(GAMES[name], 5, seed=99)
    spec, rows = vector.spec, empty_rows(vector.spec, 5)
    vector.reset(rows)
    action = np.zeros((5 * spec.agents, spec.action.parts), spec.action.dtype)
    for _ in range(7):
        vector.step(action, rows)
    vector.reset_envs([middle], rows, [one.game.seed])
    assert one.actions is not None
    parts = ("state", "numbers", *(["world"] if name == "kart" else []))
    assert {f"env/{part}" for part in (*parts, "behaviour")} == {one for one in replay.names if one.startswith("env/")}
    for step, chosen in enumerate(one.actions):
        snapshot = vector.snapshot()
        snapshot["numbers"][middle, GIVEN] = replay.read("env/numbers", step, step + 1)[0, GIVEN]  # not of this game
        for part in parts:
            assert replay.read(f"env/{part}", step, step + 1)[0].tobytes() == snapshot[part][middle].tobytes()
        action[:] = 0
        action[middle * spec.agents : (middle + 1) * spec.agents] = chosen
        vector.step(action, rows)


def test_a_changed_replay_is_caught(tmp_path: Path) -> None:
    """A changed action or a changed bit of a state is reported with its step and column."""
    one = played("soccer", 1)[0]
    write_replay(GAMES["soccer"], one, tmp_path / "x.replay")
    replay = Replay.open(tmp_path / "x.replay")
    arrays = {name: np.array(replay.read(name)) for name in replay.names}
    labels = {name: replay.labels(name) for name in replay.names}

    def changed(name: str, step: int, column: int) -> Replay:
        mine = {other: array.copy() for other, array in arrays.items()}
        flat = mine[name].reshape(len(mine[name]), -1)
        flat.view(f"u{flat.itemsize}")[step, column] ^= 1
        write(tmp_path / "y.replay", replay.facts, mine, labels)
        return Replay.open(tmp_path / "y.replay")

    with pytest.raises(
        DemoError, match=r"env/state ball.vx is .*, and was .*, at step 50 of \d+.\nhint: it was written"
    ):
        verify(changed("env/state", 50, 2))
    with pytest.raises(DemoError, match=r"y.replay differs from the same game played again: env/state cars.0."):
        verify(changed("action", 20, 0))


def test_what_cannot_be_played_again(tmp_path: Path) -> None:
    """A Python env of another program, a replay with missing arrays and truncated actions are errors."""
    facts = {"seed": 1, "players": ("a",), "teams": (0,), "outcome": 0, "length": 1}
    arrays = {"action": np.zeros((1, 1, 1), np.int32)}
    write(tmp_path / "x.replay", ReplayFacts.model_validate(facts | {"env": "python:Mine"}), arrays, {})
    with pytest.raises(ConfigError, match=r"of `python:Mine`, which a Python function made"):
        verify(Replay.open(tmp_path / "x.replay"))
    write(tmp_path / "x.replay", ReplayFacts.model_validate(facts | {"env": "soccer", "teams": (0, 1)}), arrays, {})
    with pytest.raises(DemoError, match=r"x.replay does not hold active, .*env/state"):
        verify(Replay.open(tmp_path / "x.replay"))
    one = played("soccer", 1)[0]
    assert one.actions is not None
    one.actions = one.actions[:-3]
    with pytest.raises(DemoError, match="ended differently when it was played again"):
        write_replay(GAMES["soccer"], one, tmp_path / "x.replay")


def test_goals_and_touches_are_events(tmp_path: Path) -> None:
    """Goals add up to the score, events to the behaviours, and each goal belongs to a car of the scoring side."""
    for one in played("soccer:2v2", 4):
        write_replay(GAMES["soccer:2v2"], one, tmp_path / "x.replay")
        facts = Replay.open(tmp_path / "x.replay").facts
        goals = [sum(e.kind == "goal" and facts.teams[e.agent] == side for e in facts.events) for side in (0, 1)]
        assert facts.score == tuple(goals) == tuple(side["goals"] for side in one.behaviour)
        for kind, name in (("touch", "touches"), ("save", "saves"), ("shot", "shots")):
            for side in (0, 1):
                count = sum(e.kind == kind and facts.teams[e.agent] == side for e in facts.events)
                assert count == pytest.approx(2 * one.behaviour[side][name])
        assert [e.step for e in facts.events] == sorted(e.step for e in facts.events)
    assert any(e.kind == "touch" for e in facts.events)


def test_values_are_those_of_the_agent(trained: Run, tmp_path: Path) -> None:
    """A replay holds the value estimates of a trained agent, and NaN for a scripted one."""
    agent = trained.agent()
    sides = ("scripted:rule", "mine")

    def both(name: str, spec: EnvSpec, choice: EnvChoice) -> BatchAgent:
        return agent if name == "mine" else load(name, spec, choice)

    choice = EnvChoice("soccer", EnvSettings(match_seconds=2))
    (one,) = play_scheduled(choice, both, [ScheduledGame(sides, 8)], keep_actions=True)
    write_replay(choice, one, tmp_path / "x.replay", load=both, names={"mine": "run:x@5"})
    replay = Replay.open(tmp_path / "x.replay")
    value = replay.read("value")
    assert np.isnan(value[:, 0]).all() and replay.facts.players == ("scripted:rule", "run:x@5")
    with_values = SingleGame(choice, one.game)
    assert isinstance(agent, TrainedAgent) and one.actions is not None
    for step, action in enumerate(one.actions):
        estimate = np.zeros(2, np.float32)
        agent.acting.value(np.array([1]), with_values.rows.obs, estimate, agent.memory(2))
        assert value[step, 1] == pytest.approx(estimate[1], abs=1e-6)
        with_values.step(action)
    write_replay(choice, one, tmp_path / "y.replay")
    assert "value" not in Replay.open(tmp_path / "y.replay").names


def made(
    outcome: int, length: int, goals: tuple[int, int] | None = None, players: tuple[str, ...] = ("a", "b")
) -> GameResult:
    """Make a result without playing a game."""
    counted = tuple({"goals": float(number)} for number in goals) if goals else ({}, {})
    actions: Array = np.zeros((length, 2, 1), np.int32)
    return GameResult(ScheduledGame(players, length), outcome, length, (1.0, -1.0), counted, actions)


def test_the_choice() -> None:
    """Best, worst, closest and lost are chosen by goals, then by length; no game twice, and no faulty one."""
    games = {
        "small win": made(1, 90, (2, 1)),
        "quick big win": made(1, 80, (5, 1)),
        "big win": made(1, 90, (5, 1)),
        "draw": made(0, 90, (1, 1)),
        "long draw": made(0, 120, (2, 2)),
        "near loss": made(-1, 90, (1, 2)),
        "loss": made(1, 90, (3, 0), ("b", "a")),
        "worse loss": made(-1, 90, (0, 4)),
        "faulty": made(-1, 1, (0, 9)),
        "not mine": made(1, 2, (9, 0), ("b", "c")),
    }
    games["faulty"].fault = "b raised"
    names = {id(game): name for name, game in games.items()}
    chosen = {kind: names[id(game)] for kind, game in choose(list(games.values()), "a").items()}
    assert chosen == {
        "best": "quick big win",
        "worst": "worse loss",
        "closest": "long draw",
        "lost": "near loss",
        "lost2": "loss",
    }
    assert margin(games["loss"], "a") == -3 and margin(games["loss"], "b") == 3
    assert choose([], "a") == {} and choose([games["faulty"]], "a") == {}
    assert list(choose([games["draw"]], "a")) == ["best"]


def test_choices_without_goals_or_sides() -> None:
    """Without goals the outcome decides; with one side the return, and there are only best and worst."""
    won, lost = made(1, 50), made(-1, 60)
    assert choose([lost, won], "a")["best"] is won and choose([lost, won], "b")["best"] is lost
    laps = [
        GameResult(ScheduledGame(("a",), 1), 0, n, (r,), ({},), np.zeros((n, 1, 1)))
        for n, r in ((9, 1.0), (8, 3.0), (7, 2.0))
    ]
    chosen = choose(laps, "a")
    assert {kind: game.returns[0] for kind, game in chosen.items()} == {"best": 3.0, "worst": 1.0}


def test_file_names() -> None:
    """A file name has the steps, kind, result and opponent; in tournaments also the agent."""
    game = made(-1, 90, (0, 3), ("scripted:rule", "run:runs/My Run@20"))
    mine = "run:runs/My Run@20"
    assert file_name(game, mine, "best", 20_000_000, {}) == "000020000000-best-3-0-vs-scripted-rule"
    assert file_name(game, mine, "lost", None, {}) == "lost-run-runs-my-run-20-3-0-vs-scripted-rule"
    assert file_name(made(1, 5), "a", "best", 7, {"b": "run:x/../y"}) == "000000000007-best-won-vs-run-x-..-y"
    lap = GameResult(ScheduledGame(("a",), 1), 0, 77, (1.0,), ({},))
    assert file_name(lap, "a", "best", 7, {}) == "000000000007-best-77-steps"


def test_the_limit_of_kept_replays(tmp_path: Path) -> None:
    """The newest replays of each kind stay; other files in the folder are not touched."""
    games = play_scheduled(GAMES["soccer"], load, paired_games("scripted:rule", "random", 4, 1), keep_actions=True)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "mine.replay").write_text("not one of ours")
    for steps in (10, 20, 30):
        written = record_replays(GAMES["soccer"], games, "scripted:rule", tmp_path, steps=steps, limit=2)
        assert all(path.exists() for path in written)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert {"notes.txt", "mine.replay"} <= set(left)
    best = [name for name in left if "-best-" in name]
    assert [int(name[:12]) for name in best] == [20, 30]
    replay = Replay.open(tmp_path / best[-1])
    assert (replay.facts.kind, replay.facts.steps) == ("best", 30)
    assert (tmp_path / best[-1]).stat().st_size < 40_000


def test_a_game_needs_one_player_for_each_side() -> None:
    """Too few or too many names are an error."""
    for sides in (("random",), ("random", "random", "random")):
        with pytest.raises(
            ConfigError, match=rf"`soccer` has 2 sides, but was given {', '.join(sides)}.\nhint: name one agent"
        ):
            SingleGame(GAMES["soccer"], ScheduledGame(sides, 1), load)
