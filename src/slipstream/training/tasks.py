"""Tasks as a curriculum sees them: how they are named, what a finished game says, and what counts as success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from slipstream.errors import ConfigError, did_you_mean

FIRST_RETURNS = 100
"""Episodes of a task whose median return later ones are measured by, where the env knows no outcome."""


@dataclass(frozen=True)
class Task:
    """One kind of game to train on."""

    name: str
    """A task of the env."""
    opponent: str = ""
    """Who plays on the other side; empty: the agent itself, or nobody in games of one side."""

    def __str__(self) -> str:
        return f"{self.name} vs {self.opponent}" if self.opponent else self.name


@dataclass(frozen=True)
class Result:
    """One finished game."""

    task: int
    """Its place among the curriculum's tasks."""
    success: float
    """1 won or reached, 0 lost, 0.5 drawn."""
    gain: float
    """The return of the episode."""
    value: float
    """What the value function expected of it at its start."""
    steps: int
    """Training steps when it ended."""


def parse_tasks(words: Sequence[str], known: Sequence[str]) -> tuple[Task, ...]:
    """Read `TASK` and `TASK vs AGENT`; `TASK vs self` is the same as `TASK`."""
    tasks: list[Task] = []
    for word in words:
        name, _, opponent = (part.strip() for part in word.strip().partition(" vs "))
        if name not in known:
            raise ConfigError(
                f"curriculum.tasks: there is no task `{name}`.{did_you_mean(name, known)}",
                f"write TASK or TASK vs AGENT; tasks: {', '.join(known)}",
            )
        task = Task(name, "" if opponent == "self" else opponent)
        if task in tasks:
            raise ConfigError(f"curriculum.tasks: `{task}` is there twice.", "name every task once")
        tasks.append(task)
    return tuple(tasks)


class Scores:
    """What counts as success.

    In games of two sides: 1 won, 0.5 drawn, 0 lost. In games of one side an env may say that the goal was reached by
    the outcome 1; then that is success and everything else is not. As long as an env has never set an outcome, an
    episode succeeds if its return is above the median of the first hundred returns of its task, that is, if it is
    better than it began; until there are a hundred it counts a half.
    """

    def __init__(self, tasks: int, competitive: bool) -> None:
        self._competitive = competitive
        self._reachable = False
        self._first: list[list[float]] = [[] for _ in range(tasks)]

    def success(self, task: int, outcome: int, gain: float) -> float:
        """The success of a game of this task that ended with this outcome and return."""
        if self._competitive:
            return float(1 + outcome) / 2
        self._reachable = self._reachable or bool(outcome)
        if self._reachable:
            return float(outcome > 0)
        first = self._first[task]
        if len(first) < FIRST_RETURNS:
            first.append(float(gain))
            return 0.5
        return float(gain > median(first))

    def describe(self) -> dict[str, Any]:
        """The state as JSON holds it."""
        return {"reachable": self._reachable, "first": self._first}

    def restore(self, told: Mapping[str, Any]) -> None:
        """Put back what was described."""
        self._reachable = told["reachable"]
        self._first = [list(first) for first in told["first"]]
