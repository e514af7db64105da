"""Matchmaking of training: assignments from a curriculum and opponents, results for both, and exact state."""

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
    "game",
    vector_obs(1),
    ActionSpec("discrete", (2,)),
    teams=(0, 1),
    behaviours=("goals",),
    tasks=("easy", "hard"),
    target=("hard",),
)


def make(opponent: str | None = None, envs: int = 400, **curriculum: Any) -> Matchmaker:
    """Make the matchmaker of a small game."""
    chosen = make_curriculum(CurriculumSettings(**curriculum), SPEC.tasks, ()) if curriculum else None
    return Matchmaker(SPEC, envs, 5, FixedOpponent(opponent, SPEC, envs), chosen)


def finished(task: int, player: int, outcome: int, goals: float = 1.0) -> FinishedGame:
    """Make a finished game."""
    return FinishedGame(0, task, player, 0, outcome, 10, float(outcome), 0.0, 1, (goals,), (0.0,))


def test_the_default_is_self_play_at_the_target() -> None:
    """By default there is no task and no opponent; a fixed opponent plays alternating sides."""
    assert (make().assignments == (-1, SELF, 0)).all()
    matches = make("scripted:rule", envs=4)
    assert matches.assignments[:, PLAYER].tolist() == [0] * 4 and matches.assignments[:, SIDE].tolist() == [0, 1, 0, 1]
    assert matches.new_players() == ["scripted:rule"] and matches.new_players() == []


def test_a_curriculum_sets_tasks_and_opponents() -> None:
    """A task with an opponent is played against it from either side; other tasks against the drawn opponent."""
    matches = make(kind="uniform", tasks=("easy vs scripted:chaser", "hard"))
    assigned = matches.draw_assignments()
    easy = assigned[:, TASK] == 0
    assert 150 < easy.sum() < 250
    assert (assigned[easy, PLAYER] == matches.players.index("scripted:chaser")).all()
    assert set(assigned[easy, SIDE].tolist()) == {0, 1}
    assert (assigned[~easy, PLAYER] == SELF).all()


def test_results_reach_the_task_they_belong_to() -> None:
    """Success is counted by task and opponent; other games are ignored; a new stage is an event."""
    matches = make(kind="staged", tasks=("easy vs scripted:chaser", "hard"), episodes=20)
    chaser = matches.players.index("scripted:chaser")
    matches.record_games([finished(-1, SELF, 1)] * 50, {}, 100)
    assert matches.drain_events() == []
    matches.record_games([finished(0, chaser, 1)] * 20, {}, 200)
    ((kind, text),) = matches.drain_events()
    assert kind == "curriculum" and text.startswith("stage 2 of 2: hard")
    shares = Counter(matches.draw_assignments()[:, TASK].tolist())
    assert 240 < shares[1] < 360 and 40 < shares[0] < 160, "a quarter of the games repeats earlier stages"


def test_behaviours_are_means_of_the_last_hundred_games() -> None:
    """The means are logged by name."""
    matches = make()
    assert "behaviour/goals" not in matches.advance(0, np.zeros(0))
    matches.record_games([finished(-1, SELF, 0, goals) for goals in [100.0] * 30 + [1.0] * 50 + [3.0] * 50], {}, 10)
    assert matches.advance(0, np.zeros(0))["behaviour/goals"] == 2.0


def test_a_fixed_opponent_that_fails_ends_the_run() -> None:
    """A failing fixed opponent is an error, since there is no other; a league would retire it."""
    with pytest.raises(ConfigError, match="The opponent failed: it raised something"):
        make("scripted:rule").record_games([], {0: "it raised something"}, 0)


def test_a_restored_matchmaker_continues_exactly() -> None:
    """Restored from JSON, the next assignments are the same."""
    one = make("scripted:rule", kind="learnability", tasks=("easy", "hard vs scripted:keeper"))
    one.record_games([finished(0, 0, 1), finished(1, 1, -1)] * 30, {}, 50)
    one.draw_assignments()
    arrays, state = one.snapshot()
    other = make("scripted:rule", kind="learnability", tasks=("easy", "hard vs scripted:keeper"))
    other.restore({name: array.copy() for name, array in arrays.items()}, json.loads(json.dumps(state)))
    assert np.array_equal(one.assignments, other.assignments) and one.players == other.players
    for _ in range(5):
        assert np.array_equal(one.draw_assignments(), other.draw_assignments())
        for matches in (one, other):
            matches.record_games([finished(0, 0, 1)], {}, 60)
    assert one.advance(0, np.zeros(0)) == other.advance(0, np.zeros(0))
