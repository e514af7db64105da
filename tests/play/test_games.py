"""Scheduled games: exact number, both sides, reproducible, and no bias towards short games."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.agents.simple import BatchAgent, RandomAgent
from slipstream.agents.specs import load_agent
from slipstream.contracts import ActionSpec, Array, EnvSpec, Rows, vector_obs
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError
from slipstream.play import engine, games
from slipstream.play.engine import ScheduledGame, play_scheduled
from slipstream.play.games import GameSummary, paired_games, play
from slipstream.settings import EnvSettings


class Uneven(gymnasium.Env[Any, Any]):
    """Episodes of 20 steps in every second env made, of 1 step in the others; the long ones pay 1."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, number: int = 0) -> None:
        self._length = 20 if number % 2 else 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._left = self._length
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count down."""
        self._left -= 1
        over = self._left == 0
        return np.zeros(1, np.float32), float(over and self._length == 20), over, False, {}


class Duel:
    """Two agents, one step per game: the higher action wins; agent 1 wins ties."""

    spec = EnvSpec("duel", vector_obs(2), ActionSpec("discrete", (3,)), teams=(0, 1))

    def __init__(self, envs: int) -> None:
        self.envs = envs
        self.seen: list[Array] = []

    def reset(self, out: Rows) -> None:
        """Show each agent its number."""
        out.obs[:] = np.tile(np.eye(2, dtype=np.float32), (self.envs, 1))

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Do nothing."""

    def seeds(self) -> Array:
        """Return no seeds."""
        return np.full(self.envs, -1)

    def assign(self, tasks: Array) -> None:
        """Do nothing."""

    def step(self, action: Array, out: Rows) -> None:
        """Finish every game and start the next."""
        self.seen.append(action.copy())
        first, second = action[0::2, 0], action[1::2, 0]
        won = np.where(first > second, 1, -1)
        out.outcome[0::2], out.outcome[1::2] = won, -won
        out.reward[0::2], out.reward[1::2] = won, -won
        out.terminated[:] = 1

    def snapshot(self) -> dict[str, Array]:
        """Do nothing."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Always(BatchAgent):
    """Always plays one action."""

    def __init__(self, number: int) -> None:
        self.name, self.action, self.number = f"always {number}", Duel.spec.action, number

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write the action."""
        out[:] = self.number


def uneven(games: int, envs: int, seed: int = 0) -> GameSummary:
    """Play games of uneven length."""
    numbers = count()
    choice = EnvChoice("python:Uneven", factory=lambda: Uneven(next(numbers)))
    return play(choice, lambda spec, _: RandomAgent(spec), None, games, seed=seed, envs=envs)


@pytest.mark.parametrize(("games", "envs"), [(1, 4), (7, 3), (10, 10), (13, 128)])
def test_exactly_the_requested_number_of_games(games: int, envs: int) -> None:
    """The number of games does not depend on the number of envs."""
    result = uneven(games, envs)
    assert len(result.returns) == len(result.lengths) == games
    assert result.summary()["games"] == games


def test_short_games_are_not_favoured() -> None:
    """Each env plays its share to the end: of 40 games in 2 slow and 2 fast envs, half are long."""
    result = uneven(40, 4)
    assert result.lengths.count(20) == result.lengths.count(1) == 20
    assert result.summary()["mean_return"] == 0.5
    assert result.summary()["mean_length"] == 10.5


def test_one_sided_games_are_not_won_or_lost() -> None:
    """A game of one side has no win rate; its keys are present with the value None."""
    summary = uneven(4, 2).summary()
    assert summary["wins"] is summary["win_rate"] is summary["score_low"] is None
    assert summary["mean_return_low"] <= summary["mean_return"] <= summary["mean_return_high"]


def test_sides_are_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent plays the other side in every second env, and outcomes are from the agent's view."""
    made: list[Duel] = []

    def make(choice: Any, envs: int) -> Duel:
        made.append(Duel(envs))
        return made[-1]

    monkeypatch.setattr(games, "make_vector", make)
    monkeypatch.setattr(engine, "make_vector", make)
    strong = play(EnvChoice("duel"), lambda *_: Always(2), lambda *_: Always(0), 6, seed=0, envs=2)
    assert strong.outcomes == [1] * 6
    assert strong.returns == [1.0] * 6
    assert made[1].seen[0][:, 0].tolist() == [2, 0, 0, 2]
    weak = play(EnvChoice("duel"), lambda *_: Always(0), lambda *_: Always(2), 6, seed=0, envs=2)
    assert weak.outcomes == [-1] * 6
    even = play(EnvChoice("duel"), lambda *_: Always(1), lambda *_: Always(1), 6, seed=0, envs=2)
    assert sorted(even.outcomes) == [-1, -1, -1, 1, 1, 1], "the advantage of a side is shared evenly"


class Trio(Duel):
    """Three agents on three sides, one step per game: the higher action wins."""

    spec = EnvSpec("trio", vector_obs(3), ActionSpec("discrete", (3,)), teams=(0, 1, 2))

    def reset(self, out: Rows) -> None:
        """Show nothing."""

    def step(self, action: Array, out: Rows) -> None:
        """Finish every game and start the next."""
        self.seen.append(action.copy())
        played = action.reshape(-1, 3)
        out.outcome[:] = np.where(played == played.max(axis=1, keepdims=True), 1, -1).reshape(-1)
        out.reward[:] = action[:, 0]
        out.terminated[:] = 1


def test_three_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent plays each of three sides in turn, and its opponent both others, from the same start."""
    made: list[Trio] = []
    monkeypatch.setattr(games, "make_vector", lambda choice, envs: Trio(envs))
    monkeypatch.setattr(engine, "make_vector", lambda choice, envs: made.append(Trio(envs)) or made[-1])
    kept: list[Any] = []
    strong = play(EnvChoice("trio"), lambda *_: Always(2), lambda *_: Always(1), 5, seed=0, envs=5, keep=kept)
    assert made[0].seen[0].reshape(5, 3).tolist() == [[2, 1, 1], [1, 2, 1], [1, 1, 2], [2, 1, 1], [1, 2, 1]]
    assert strong.outcomes == [1] * 5 and strong.returns == [2.0] * 5
    assert [one.returns for one in kept] == [(2.0, 1.0)] * 5 and len(strong.opponent_behaviour) == 5
    seeds = [one.game.seed for one in kept]
    assert seeds[0] == seeds[1] == seeds[2] != seeds[3] == seeds[4]
    weak = play(EnvChoice("trio"), lambda *_: Always(0), lambda *_: Always(2), 3, seed=0, envs=2)
    assert weak.outcomes == [-1] * 3 and weak.returns == [0.0] * 3


def test_players_of_three_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of two players plays two sides, three play one each, and one or four are refused."""
    monkeypatch.setattr(engine, "make_vector", lambda choice, envs: Trio(envs))

    def returns(*players: str) -> tuple[float, ...]:
        choice, schedule = EnvChoice("trio"), [ScheduledGame(players, 0)]
        (result,) = play_scheduled(choice, lambda name, *_: Always(int(name)), schedule, tolerant=False)
        return result.returns

    assert returns("2", "1") == (2.0, 1.0) and returns("0", "1", "2") == (0.0, 1.0, 2.0)
    for players in (["1"], ["1"] * 4):
        with pytest.raises(ConfigError, match=r"`trio` has 3 sides, but was given 1") as caught:
            returns(*players)
        assert "the last one plays all remaining sides" in (caught.value.hint or "")


def test_rates_by_hand() -> None:
    """2 wins, 1 draw and 1 loss have a win rate of 1/2 and a score of 5/8."""
    played = GameSummary(
        competitive=True, outcomes=[1, 1, 0, -1], returns=[1.0, 2.0, 0.0, -1.0], lengths=[10, 20, 30, 40]
    )
    summary = played.summary()
    assert (summary["wins"], summary["draws"], summary["losses"]) == (2, 1, 1)
    assert (summary["win_rate"], summary["score"]) == (0.5, 0.625)
    assert summary["win_rate_low"] < 0.5 < summary["win_rate_high"]
    assert summary["score_low"] < 0.625 < summary["score_high"]
    assert (summary["mean_return"], summary["mean_length"]) == (0.5, 25.0)


def soccer(seed: int, random_starts: float = 0.0) -> GameSummary:
    """Play a few short soccer games of a scripted agent against a random one."""
    choice = EnvChoice("soccer", EnvSettings(match_seconds=3.0, random_starts=random_starts))

    def loader(text: str) -> Any:
        return lambda spec, where: load_agent(text, spec, where)

    return play(choice, loader("scripted:chaser"), loader("random"), 12, seed=seed, envs=4)


def test_a_seed_plays_the_same_games() -> None:
    """The same seed gives the same games, another seed gives others, and training's random starts are off."""
    first = soccer(1)
    assert (first.returns, first.lengths) == (soccer(1).returns, soccer(1).lengths)
    assert first.returns != soccer(2).returns
    assert first.returns == soccer(1, random_starts=1.0).returns


def test_progress() -> None:
    """`on_progress` receives the number of finished games, up to all of them."""
    seen: list[int] = []
    choice = EnvChoice("python:Uneven", factory=Uneven)
    play(choice, lambda spec, _: RandomAgent(spec), None, 5, seed=0, envs=2, on_progress=seen.append)
    assert seen[-1] == 5
    assert seen == sorted(seen)


def test_opponents_must_fit_the_game() -> None:
    """A game of two sides needs an opponent, and a game of one side takes none."""
    with pytest.raises(ConfigError) as caught:
        play(EnvChoice("soccer"), lambda *_: Always(0), None, 1, seed=0)
    assert str(caught.value) == "`soccer` has two sides: it needs an opponent.\nhint: add --opponent AGENT"
    with pytest.raises(ConfigError) as caught:
        play(EnvChoice("python:Uneven", factory=Uneven), lambda *_: Always(0), lambda *_: Always(0), 1, seed=0)
    assert str(caught.value) == ("`python:Uneven` has one side and takes no opponent.\nhint: leave --opponent out")


class Fails(Always):
    """Raises on every call."""

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Raise."""
        raise RuntimeError("no action")


def test_a_failure_in_the_last_step_of_a_game_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A player that fails in the step that ends its game is named in the result, and the other games count."""
    monkeypatch.setattr(engine, "make_vector", lambda choice, envs: Duel(envs))
    schedule = paired_games("bad", "good", 2, 0) + paired_games("good", "other", 2, 0)
    played = play_scheduled(
        EnvChoice("duel"), lambda name, *_: Fails(0) if name == "bad" else Always(1), schedule, envs=2
    )
    assert [one.culprit for one in played] == ["bad", "bad", "", ""]
    assert [one.length for one in played] == [0, 0, 1, 1]
