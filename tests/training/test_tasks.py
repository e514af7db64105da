"""Tasks: parsing, and what counts as success."""

from __future__ import annotations

import json

import numpy as np
import pytest

from slipstream.errors import ConfigError
from slipstream.training.tasks import Scores, Task, parse_tasks

KNOWN = ("1v1", "2v2", "3v3")


def test_tasks_are_parsed_with_and_without_opponents() -> None:
    """`TASK`, `TASK vs AGENT` and `TASK vs self`, which is the task without an opponent, are parsed."""
    tasks = parse_tasks(("1v1", " 2v2 vs scripted:rule", "3v3 vs self"), KNOWN)
    assert tasks == (Task("1v1"), Task("2v2", "scripted:rule"), Task("3v3"))
    assert [str(task) for task in tasks] == ["1v1", "2v2 vs scripted:rule", "3v3"]


def test_an_unknown_task_is_an_error_with_a_suggestion() -> None:
    """A misspelt task is an error that lists all tasks."""
    with pytest.raises(ConfigError, match=r"unknown task `3v33`. Did you mean `3v3`\?\nhint: .*tasks: 1v1, 2v2, 3v3"):
        parse_tasks(("1v1", "3v33 vs scripted:rule"), KNOWN)
    with pytest.raises(ConfigError, match=r"unknown task `2v2 vs`. Did you mean `2v2`"):
        parse_tasks(("2v2 vs ",), KNOWN)


def test_a_task_may_be_named_once() -> None:
    """The same task twice is an error, also as `vs self`."""
    with pytest.raises(ConfigError, match="`1v1` occurs twice"):
        parse_tasks(("1v1", "1v1 vs self"), KNOWN)


def test_success_in_games_of_two_sides() -> None:
    """Wins, draws and losses are 1, 0.5 and 0, whatever the return."""
    scores = Scores(1, competitive=True)
    assert [scores.success(0, outcome, -5.0) for outcome in (1, 0, -1)] == [1.0, 0.5, 0.0]


def test_success_is_the_outcome_if_the_env_sets_it() -> None:
    """In games of one side, the outcome 1 is success once an env has set one."""
    scores = Scores(1, competitive=False)
    outcomes = np.array([0, 1, 0, -1], np.int8)
    assert [scores.success(0, outcome, 9.0) for outcome in outcomes] == [0.5, 1.0, 0.0, 0.0]
    assert json.loads(json.dumps(scores.describe()))["reachable"] is True


def test_success_is_a_return_above_the_first_median_otherwise() -> None:
    """Without outcomes, a return succeeds above the median of the task's first hundred returns."""
    scores = Scores(2, competitive=False)
    assert {scores.success(0, 0, float(n)) for n in range(100)} == {0.5}
    assert scores.success(0, 0, 49.5) == 0.0 and scores.success(0, 0, 50.0) == 1.0
    assert scores.success(1, 0, 50.0) == 0.5
    again = Scores(2, competitive=False)
    again.restore(json.loads(json.dumps(scores.describe())))
    assert again.success(0, 0, 49.0) == 0.0 and again.describe() == scores.describe()
