"""Scripted players: strength, equality in every kind of action, and frozen behaviour."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from env_checks import evaluate_on_plain_cpu
from slipstream.contracts import Array
from slipstream.envs.native.controls import KINDS
from slipstream.envs.native.kernels import DECISIONS
from slipstream.envs.native.mathematics import COUNTER, GAME, KEY
from slipstream.envs.native.vector import NativeVector
from slipstream.envs.soccer.columns import DRIVING
from slipstream.envs.soccer.game import SOCCER
from slipstream.envs.soccer.game import game as soccer
from slipstream.errors import ConfigError
from soccer_matches import begun, columns

FROZEN = {
    "rule chaser": "576fffb87291062002b2970e3771182a2de29e1c68224378614ec5cb6628f965",
    "rule keeper": "7a5e29989b4658057efbd56eddd727563e623310b23f1b4c0b4fbae1b2a7bad2",
    "keeper chaser": "997b46cff807f7d40f5afc680c1024571a1cf37598f36a9a8852ec2691d26720",
    "rule rule": "68ddd9399927ceb1f9934247105a8f875ff3957f92076183efd6fabcfe6c2a1d",
    "chaser chaser": "d272d80114e1f84dab291d6b97befef749f198804791e47c9b449ecd872c894b",
    "keeper keeper": "3862fb2ad60999a028b5f2dde6ce5d4c2a8c3c480ac64831d597ff69bad3ee3a",
}


def load(path: Path) -> ModuleType:
    """Import a script by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


speed = load(Path(__file__).parents[3] / "benchmarks" / "soccer_speed.py")


def test_chaser_beats_random() -> None:
    """Chaser scores at least 0.80 against random (0.9 over 1,000 games)."""
    assert speed.match("chaser", "random", 300, seed=1)["score"] >= 0.80


def test_rule_beats_chaser() -> None:
    """Rule scores at least 0.80 against chaser (0.87 over 1,000 games)."""
    assert speed.match("rule", "chaser", 300, seed=1)["score"] >= 0.80


def test_keeper_holds() -> None:
    """Keeper scores at least 0.80 against random (0.92 over 1,000 games)."""
    assert speed.match("keeper", "random", 200, seed=1)["score"] >= 0.80


def test_rule_scores_into_an_unguarded_goal() -> None:
    """Rule scores within 10 s from at least 9 of 10 random starts."""
    assert speed.unguarded("rule", 1000, seed=1) >= 0.90


def test_games_have_goals() -> None:
    """Two rule players score 3 to 8 goals a match together."""
    assert 3 <= speed.goals("rule", 200, seed=1) <= 8


@pytest.mark.parametrize("team_size", [2, 3])
def test_rule_beats_chaser_in_teams(team_size: int) -> None:
    """The players are as strong in teams."""
    assert speed.match("rule", "chaser", 100, seed=1, team_size=team_size)["score"] >= 0.75


def test_all_players_are_known() -> None:
    """The players are those whose behaviour is frozen."""
    assert set(SOCCER.scripted) == {name for pair in FROZEN for name in pair.split()}


@pytest.mark.parametrize("name", list(SOCCER.scripted))
def test_every_action_mode_gets_the_same_controls(name: str) -> None:
    """Discrete and multi-discrete actions mean the same, and continuous ones have the same pedals."""
    _, out = begun(500, random_starts=1.0)
    actions = []
    for kind in KINDS:
        spec = soccer.spec(actions=kind).action
        actions.append(np.zeros((1000, spec.parts), spec.dtype))
        soccer.act(name, out.obs, kind, actions[-1])
    table, parts, free = actions
    driving = np.array(DRIVING)[table[:, 0]]
    forward = driving[:, 0] == 1  # the table has no boost or drift without throttle
    assert np.array_equal(driving[:, :2], parts[:, :2] - 1)
    assert np.array_equal(driving[forward], (parts - [1, 1, 0, 0])[forward])
    assert np.array_equal(free[:, 2:] > 0, parts[:, 2:] == 1)
    assert (np.abs(free) <= 1).all() and np.abs(free[:, 1] - driving[:, 1]).max() <= 0.67


def test_unknown_player() -> None:
    """A misspelt player is a ConfigError with the nearest name."""
    with pytest.raises(ConfigError, match=r"Unknown scripted player `chasr`\. Did you mean `chaser`\?"):
        soccer.act("chasr", np.zeros((1, 44), np.float32), "discrete", np.zeros((1, 1), np.int32))


def numbers(game: NativeVector) -> tuple[Array, Array]:
    """The numbers of every match that the hashes were made of: ball, pads and cars; clock, score and random numbers."""
    bodies = game.state[:, : list(soccer.classes().state.names()).index("team_size")]
    clock = columns(game, "ticks_left", "score.0", "score.1", "overtime", "kick_off_due", "over").astype(np.int64)
    return bodies + np.float32(0.0), np.hstack([clock, game.numbers[:, [KEY, COUNTER, GAME, DECISIONS]]])  # one zero


def digest(first: str, second: str) -> str:
    """Hash 100 games, every tenth decision."""
    game, out = begun(100, seed=2024)
    action, other = np.zeros((200, 1), np.int32), np.zeros((200, 1), np.int32)
    sha = hashlib.sha256()
    for step in range(1350):
        soccer.act(first, out.obs, "discrete", action)
        soccer.act(second, out.obs, "discrete", other)
        action[1::2] = other[1::2]
        game.step(action, out)
        if step % 10 == 0:
            for array in numbers(game):
                sha.update(array.tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("pair", FROZEN)
def test_behaviour_is_frozen(pair: str) -> None:
    """100 games of each pairing are bit for bit those of the frozen hash."""
    assert digest(*pair.split()) == FROZEN[pair]


@pytest.mark.slow
def test_another_cpu_plays_the_same_games() -> None:
    """Compiled for a plain CPU without vector extensions, the games are the same to the bit."""
    assert evaluate_on_plain_cpu(__file__, "t.digest('rule', 'chaser')") == FROZEN["rule chaser"]
