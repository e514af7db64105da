"""Matches: seats drawn from a curriculum and from opponents, results that reach both, and exact state."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, EnvSpec, vector_obs
from slipstream.errors import ConfigError
from slipstream.play.assignments import PLAYER, SELF, SIDE, TASK, FinishedGame
from slipstream.settings import CurriculumSettings
from slipstream.training.curriculum import make_curriculum
from slipstream.training.opponents import FixedOpponent, Matchmaker

SPEC = EnvSpec(
    "game", vector_obs(1), ActionSpec("discrete", (2,)), teams=(0, 1), behaviours=("value_targets",), tasks=("easy", "hard"),
    target=("hard",),
)  # fmt: skip


def make(opponent: str | None = None, envs: int = 400, **curriculum: Any) -> Matchmaker:
    """Matches of a small game."""
    wanted = make_curriculum(CurriculumSettings(**curriculum), SPEC.tasks, ()) if curriculum else None
    return Matchmaker(SPEC, envs, 5, FixedOpponent(opponent, SPEC, envs), wanted)


def match(task: int, player: int, outcome: int, value_targets: float = 1.0) -> FinishedGame:
    """A game that ended."""
    return FinishedGame(0, task, player, 0, outcome, 10, float(outcome), 0.0, 1, (value_targets,), (0.0,))


def test_without_anything_everybody_plays_itself_at_the_target() -> None:
    """Plain self-play: no task, no opponent; an opponent takes every second side."""
    assert (make().seats == (-1, SELF, 0)).all()
    matches = make("scripted:rule", envs=4)
    assert matches.seats[:, PLAYER].tolist() == [0] * 4 and matches.seats[:, SIDE].tolist() == [0, 1, 0, 1]
    assert matches.newcomers() == ["scripted:rule"] and matches.newcomers() == []


def test_a_curriculum_sets_tasks_and_opponents() -> None:
    """A task that names its opponent is played against it, from either side; others against whoever is drawn."""
    matches = make(kind="uniform", tasks=("easy vs scripted:chaser", "hard"))
    seats = matches.draw()
    easy = seats[:, TASK] == 0
    assert 150 < easy.sum() < 250
    assert (seats[easy, PLAYER] == matches.players.index("scripted:chaser")).all()
    assert set(seats[easy, SIDE].tolist()) == {0, 1}
    assert (seats[~easy, PLAYER] == SELF).all()


def test_results_reach_the_task_they_belong_to() -> None:
    """Success is counted by task and opponent; a game of no task of the curriculum is nobody's; stages are said."""
    matches = make(kind="staged", tasks=("easy vs scripted:chaser", "hard"), episodes=20)
    chaser = matches.players.index("scripted:chaser")
    matches.see([match(-1, SELF, 1)] * 50, {}, 100)
    assert matches.drain() == []
    matches.see([match(0, chaser, 1)] * 20, {}, 200)
    ((kind, text),) = matches.drain()
    assert kind == "curriculum" and text.startswith("stage 2 of 2: hard")
    shares = Counter(matches.draw()[:, TASK].tolist())
    assert 240 < shares[1] < 360 and 40 < shares[0] < 160, "a quarter of the games stays with the stages before"


def test_behaviours_are_means_of_the_last_hundred_games() -> None:
    """By name, in what is logged."""
    matches = make()
    assert "behaviour/goals" not in matches.advance(0, np.zeros(0))
    matches.see([match(-1, SELF, 0, value_targets) for value_targets in [100.0] * 30 + [1.0] * 50 + [3.0] * 50], {}, 10)
    assert matches.advance(0, np.zeros(0))["behaviour/goals"] == 2.0


def test_a_fixed_opponent_that_fails_ends_the_run() -> None:
    """There is nobody else; a league would retire it."""
    with pytest.raises(ConfigError, match="The opponent cannot play on: it raised something"):
        make("scripted:rule").see([], {0: "it raised something"}, 0)


def test_the_state_goes_on_elsewhere() -> None:
    """Through JSON, the next seats are the same."""
    one = make("scripted:rule", kind="learnability", tasks=("easy", "hard vs scripted:keeper"))
    one.see([match(0, 0, 1), match(1, 1, -1)] * 30, {}, 50)
    one.draw()
    arrays, state = one.snapshot()
    other = make("scripted:rule", kind="learnability", tasks=("easy", "hard vs scripted:keeper"))
    other.restore({name: array.copy() for name, array in arrays.items()}, json.loads(json.dumps(state)))
    assert np.array_equal(one.seats, other.seats) and one.players == other.players
    for _ in range(5):
        assert np.array_equal(one.draw(), other.draw())
        for matches in (one, other):
            matches.see([match(0, 0, 1)], {}, 60)
    assert one.advance(0, np.zeros(0)) == other.advance(0, np.zeros(0))
