"""Tasks of a curriculum: their spelling in the settings, the result of a game, and what counts as success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from slipstream.errors import ConfigError, did_you_mean

FIRST_RETURNS = 100
"""Episodes of a task whose median return is the bar for later ones, if the env has no outcomes."""


@dataclass(frozen=True)
class Task:
    """One kind of game to train on."""

    name: str
    """A task of the env."""
    opponent: str = ""
    """The agent on the other side; empty: self-play, or a game of one side."""

    def __str__(self) -> str:
        return f"{self.name} vs {self.opponent}" if self.opponent else self.name


@dataclass(frozen=True)
class Result:
    """The result of a game."""

    task: int
    """Index into the tasks of the curriculum."""
    success: float
    """1 for a win or success, 0.5 for a draw, 0 for a loss or failure."""
    episode_return: float
    value: float
    """The value estimate at the start of the game."""
    steps: int
    """Training steps at the end of the game."""


def parse_tasks(words: Sequence[str], known: Sequence[str]) -> tuple[Task, ...]:
    """Parse `TASK` and `TASK vs AGENT`; `TASK vs self` is the same as `TASK`."""
    tasks: list[Task] = []
    for word in words:
        name, _, opponent = (part.strip() for part in word.strip().partition(" vs "))
        if name not in known:
            raise ConfigError(
                f"curriculum.tasks: unknown task `{name}`.{did_you_mean(name, known)}",
                f"write TASK or TASK vs AGENT; tasks: {', '.join(known)}",
            )
        task = Task(name, "" if opponent == "self" else opponent)
        if task in tasks:
            raise ConfigError(f"curriculum.tasks: `{task}` occurs twice.", "name every task once")
        tasks.append(task)
    return tuple(tasks)


class Scores:
    """Computes the success of a game, 0 to 1.

    In games of two sides: 1 for a win, 0.5 for a draw, 0 for a loss. In games of one side the outcome 1 is success, if
    the env sets outcomes. As long as the env has never set one, an episode succeeds if its return is above the median
    of the first hundred returns of its task; those first hundred count as 0.5.
    """

    def __init__(self, tasks: int, competitive: bool) -> None:
        self._competitive = competitive
        self._reachable = False
        self._first: list[list[float]] = [[] for _ in range(tasks)]

    def success(self, task: int, outcome: int, episode_return: float) -> float:
        """The success of a game of this task with this outcome and return."""
        if self._competitive:
            return float(1 + outcome) / 2
        self._reachable = self._reachable or bool(outcome)
        if self._reachable:
            return float(outcome > 0)
        first = self._first[task]
        if len(first) < FIRST_RETURNS:
            first.append(float(episode_return))
            return 0.5
        return float(episode_return > median(first))

    def describe(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {"reachable": self._reachable, "first": self._first}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `describe`."""
        self._reachable = state["reachable"]
        self._first = [list(first) for first in state["first"]]
