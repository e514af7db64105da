"""PettingZoo games as rows: turns, masks, rewards, ends and teams, compared with the games themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slipstream as ss
from env_checks import check_same_in_processes
from slipstream.contracts import Array, Rows, Vector, empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, EnvError, EnvFault
from slipstream.settings import EnvSettings
from slipstream.vector.make import make_vector

pytest.importorskip("pettingzoo", reason='needs pettingzoo (pip install "slipstream[pettingzoo]")')
pytest.importorskip("mpe2", reason='needs mpe2 (pip install "slipstream[pettingzoo]")')

from slipstream.envs.adapters.pettingzoo import find_module


def begin(name: str, envs: int = 1, **more: Any) -> tuple[Vector, Rows]:
    """Games at their first position."""
    vector = make_vector(EnvChoice(f"pettingzoo:{name}", **more), envs)
    rows = empty_rows(vector.spec, envs)
    vector.reset(rows)
    return vector, rows


def put(vector: Vector, rows: Rows, column: int) -> None:
    """Let the player to move play a column; the other actions are ignored."""
    action = np.full((len(rows.reward), 1), 99, np.int32)
    action[rows.active > 0] = column
    vector.step(action, rows)


def test_players_take_turns() -> None:
    """One row is active at a time, sees its own stones first, and may not play a full column."""
    vector, rows = begin("connect_four")
    assert vector.spec.teams == (0, 1) and vector.spec.action.masked and vector.spec.obs.width == 84
    assert rows.active.tolist() == [1, 0] and rows.mask[0].all()
    for turn in range(6):
        put(vector, rows, 3)
        assert rows.active.tolist() == ([0, 1] if turn % 2 == 0 else [1, 0])
    now = int(rows.active.argmax())
    assert rows.mask[now].tolist() == [1, 1, 1, 0, 1, 1, 1]
    planes = rows.obs[now].reshape(6, 7, 2)
    assert planes[:, 3, 0].tolist() == [0, 1, 0, 1, 0, 1] and planes[:, 3, 1].tolist() == [1, 0, 1, 0, 1, 0]
    vector.close()


def test_a_game_is_won() -> None:
    """Both rows end together, each with its own reward and outcome, and the next game starts in the same step."""
    vector, rows = begin("connect_four")
    for column in (0, 6, 0, 6, 0, 6):
        put(vector, rows, column)
        assert not rows.terminated.any() and not rows.reward.any()
    put(vector, rows, 0)
    assert rows.terminated.tolist() == [1, 1] and not rows.truncated.any()
    assert rows.reward.tolist() == [1, -1] and rows.outcome.tolist() == [1, -1]
    assert rows.active.tolist() == [1, 0] and not rows.obs[0].any()
    vector.close()


def test_a_game_is_drawn() -> None:
    """A full board without a winner is a draw."""
    vector, rows = begin("tictactoe")
    for square in (0, 1, 2, 4, 3, 5, 7, 6, 8):
        assert not rows.terminated.any()
        put(vector, rows, square)
    assert rows.terminated.all() and rows.outcome.tolist() == [0, 0] and not rows.reward.any()
    vector.close()


def test_all_at_once() -> None:
    """simple_tag has two teams, observations of different lengths in one layout, and a one-hot of the player type."""
    vector, rows = begin("simple_tag", 2)
    module = find_module("simple_tag")
    game = module.parallel_env()
    seeds = vector.seeds()
    seen, _ = game.reset(seed=int(seeds[0]))
    names, spec = list(game.possible_agents), vector.spec
    assert spec.teams == (0, 0, 0, 1) and spec.competitive and not spec.action.masked
    widths = [game.observation_space(name).shape[0] for name in names]
    assert spec.obs.width == max(widths) + 2
    action = np.arange(8, dtype=np.int32)[:, None] % 5
    for _ in range(5):
        for agent, name in enumerate(names):
            own = rows.obs[agent]
            assert np.array_equal(own[: widths[agent]], seen[name].astype(np.float32))
            assert not own[widths[agent] : -2].any() and own[-2:].sum() == 1
        assert rows.active.all()
        assert np.array_equal(rows.obs[0][-2:], rows.obs[1][-2:]) and rows.obs[0][-1] != rows.obs[3][-1]
        seen, paid, *_ = game.step({name: int(action[agent, 0]) for agent, name in enumerate(names)})
        vector.step(action, rows)
        assert np.allclose(rows.reward[:4], [paid[name] for name in names])
    for _ in range(40):
        vector.step(action, rows)
        if rows.truncated.any():
            break
    assert rows.truncated.all() and not rows.terminated.any() and rows.final_obs.any()
    assert set(rows.outcome.tolist()) <= {-1, 0, 1} and rows.outcome[0] == -rows.outcome[3]
    vector.close()


def test_processes_change_nothing() -> None:
    """Seeds, turns and rows are the same however games are shared out."""
    random = np.random.default_rng(0)

    def choose(rows: Rows) -> Array:
        return (random.random(rows.mask.shape) * rows.mask).argmax(axis=1).astype(np.int32)[:, None]

    names = ("obs", "reward", "terminated", "active", "mask", "outcome")
    check_same_in_processes("pettingzoo:connect_four", 5, 2, 60, choose, names)


def test_what_is_refused() -> None:
    """Unknown games, wrong options and illegal moves are errors that name the game."""
    with pytest.raises(EnvError, match=r"has no variant `connect_fore`.*Did you mean `connect_four`"):
        begin("connect_fore")
    with pytest.raises(ConfigError, match=r"`env.options` of pettingzoo:tictactoe: .*colour"):
        make_vector(EnvChoice("pettingzoo:tictactoe", env=EnvSettings(options={"colour": 1})), 1)
    vector, rows = begin("tictactoe", 2)
    put(vector, rows, 0)
    with pytest.raises(EnvFault, match=re.escape("Env 0 ")):
        put(vector, rows, 0)
    vector.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["connect_four", "tictactoe", "simple_tag"])
def test_self_play_and_league(name: str, tmp_path: Path) -> None:
    """Self-play in worker processes, a league from its result, and games between agents work."""
    env, small = f"pettingzoo:{name}", {"preset": "smoke", "plan__envs": 4, "plan__workers": 2, "ppo__rollout": 32}
    first = ss.train(env, steps=512, run=tmp_path / "first", **small)
    league = ss.compete(env, steps=1024, run=tmp_path / "league", league__snapshot=512, **small)
    assert first.facts["steps"] >= 512 and league.facts["steps"] >= 1024
    told = ss.evaluate(f"run:{first.path}", env, opponent="random", games=20)
    assert told["games"] == 20 and told["wins"] + told["draws"] + told["losses"] == 20
    resumed = ss.resume(first.path, steps=1024)
    assert resumed.facts["steps"] >= 1024
