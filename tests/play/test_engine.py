"""The engine: scheduled games are reproducible, complete, and name the players that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from slipstream.agents.simple import BatchAgent, RandomAgent
from slipstream.agents.specs import load_agent
from slipstream.contracts import Array, EnvSpec
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError
from slipstream.play.engine import GameResult, play_scheduled
from slipstream.play.games import paired_games
from slipstream.settings import EnvSettings


def load(name: str, spec: EnvSpec, choice: EnvChoice) -> BatchAgent:
    """Load an agent; `raises` fails while it plays."""
    if name == "raises":
        return Raises(spec)
    return load_agent(name, spec, choice)


class Raises(RandomAgent):
    """Acts ten times, then raises."""

    calls = 0

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Act, or raise after ten calls."""
        self.calls += 1
        if self.calls > 10:
            raise RuntimeError("no more")
        super().act_into(obs, mask, streams, out)


def short(**more: Any) -> EnvChoice:
    """Soccer games of two seconds."""
    return EnvChoice("soccer", EnvSettings(match_seconds=2.0, **more))


def facts(played: Sequence[GameResult]) -> list[Any]:
    """The results of games, without actions."""
    return [(one.game, one.outcome, one.length, one.returns, one.behaviour) for one in played]


def test_a_game_depends_on_its_schedule_entry_only() -> None:
    """A game has the same result whatever the number of envs and the order of the games."""
    schedule = paired_games("random", "scripted:chaser", 6, 3) + paired_games("random", "scripted:rule", 4, 3)
    alone = play_scheduled(short(), load, schedule, envs=1)
    beside = play_scheduled(short(random_starts=1.0), load, schedule, envs=7)
    backwards = play_scheduled(short(), load, schedule[::-1], envs=4)
    assert facts(alone) == facts(beside) == facts(backwards)[::-1]
    assert [one.game.players for one in alone[:2]] == [("random", "scripted:chaser"), ("scripted:chaser", "random")]
    assert alone[0].game.seed == alone[1].game.seed != alone[2].game.seed


def test_a_pair_is_the_same_game_from_both_sides() -> None:
    """With swapped sides two greedy players mirror the game, so the same player wins."""
    played = play_scheduled(short(), load, paired_games("scripted:rule", "scripted:chaser", 20, 0))
    mirrored = sum(one.outcome == -other.outcome for one, other in zip(played[::2], played[1::2], strict=True))
    assert mirrored >= 8, "nearly always: only the order of simultaneous hits is not symmetric"


def test_actions_are_kept_whole() -> None:
    """Each game has one action per step and behaviours by side; the goals match the outcome."""
    for one in play_scheduled(short(), load, paired_games("scripted:rule", "random", 9, 1), envs=4, keep_actions=True):
        assert one.actions is not None and one.actions.shape == (one.length, 2, 1)
        mine, theirs = one.behaviour
        assert np.sign(mine["goals"] - theirs["goals"]) == one.outcome
        assert mine["conceded"] == theirs["goals"]


def test_a_failed_player_is_named_and_the_others_continue() -> None:
    """A missing player and one that raises during a game are named; all other games are played."""
    schedule = [
        *paired_games("scripted:rule", "run:nowhere", 4, 0),
        *paired_games("raises", "scripted:rule", 4, 0),
        *paired_games("random", "scripted:chaser", 4, 0),
    ]
    played = play_scheduled(short(), load, schedule, envs=3)
    assert [one.culprit for one in played] == ["run:nowhere"] * 4 + ["raises"] * 4 + [""] * 4
    assert played[0].fault.startswith("No run at nowhere")
    assert played[4].fault == "raises raised RuntimeError: no more"
    assert all(one.length > 0 for one in played[8:])
    with pytest.raises(RuntimeError, match="no more"):
        play_scheduled(short(), load, schedule[4:], envs=3, tolerant=False)


def test_unknown_tasks_are_refused() -> None:
    """An unknown task is an error with a suggestion."""
    with pytest.raises(ConfigError) as caught:
        play_scheduled(short(), load, paired_games("random", "random", 2, 0, "1v1 scatered"))
    assert str(caught.value).startswith("`soccer` has no task `1v1 scatered`. Did you mean `1v1 scattered`?")
