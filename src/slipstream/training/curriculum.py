"""The curriculum: which tasks are trained on when, decided by the results of finished games.

All kinds have one interface, `Curriculum`. `Staged` goes from task to task. `Mixture` draws from all of them, by the
weights of a `Judge`: learning progress, prioritised levels, learnability, or all alike. Chance comes from the caller's
generator, so the state that `describe` gives, and the generator's, are all that a resumed run needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from slipstream.confidence import CONFIDENCE, wilson
from slipstream.contracts import Array
from slipstream.errors import CheckpointError, ConfigError
from slipstream.settings import CurriculumSettings
from slipstream.training.tasks import Result, Task, parse_tasks

FORGET = 0.98
"""What is left of a task's old results after each new one, in the success that is shown and in learnability."""
FIRST_RESULTS = 10
"""Results of a task before learnability judges it."""
LESSON = 50
"""Games of a task whose mean success is one measurement of learning progress."""
RATE = 0.1
"""Of the two averages whose difference is learning progress, and of the surprise of levels."""
HARDEST = 0.1
"""Where learning progress is stretched: below this success small differences count most."""
MOST_CHANCE = 0.75
"""The largest success that is put down to chance."""
RANK_POWER = 10.0
STALE = 0.1
"""Share of the levels' weight that goes by how long they were not played."""
CLEAR = 1.1
"""How much larger than the old favourite's a task's share must be for it to be called the new one."""


class Curriculum(Protocol):
    """Chooses tasks, and learns from the games that ended."""

    tasks: tuple[Task, ...]

    def sample(self, count: int, random: np.random.Generator) -> Array:
        """Draw the tasks [count] int32 of the next games."""

    def update(self, results: Sequence[Result], steps: int) -> list[str]:
        """Take in finished games, oldest first, after so many training steps; return what was decided, in words."""

    def metrics(self) -> dict[str, float]:
        """Shares and successes by task, for the log."""

    def describe(self) -> dict[str, Any]:
        """The state as JSON holds it, exactly."""

    def restore(self, told: Mapping[str, Any]) -> None:
        """Put back what was described."""


class Tally:
    """The recent success of every task: counts that forget."""

    def __init__(self, tasks: int) -> None:
        self.won = np.zeros(tasks)
        self.games = np.zeros(tasks)
        self.results = np.zeros(tasks, np.int64)

    def add(self, result: Result) -> None:
        """Take in a game."""
        task = result.task
        self.won[task] = FORGET * self.won[task] + result.success
        self.games[task] = FORGET * self.games[task] + 1
        self.results[task] += 1

    def success(self) -> Array:
        """The mean success [tasks]; 0 where there was no game."""
        return self.won / np.maximum(self.games, 1.0)

    def arrays(self) -> dict[str, Array]:
        """The state by name, as it stands (not copied)."""
        return {"won": self.won, "games": self.games, "results": self.results}


class Staged:
    """One task after the other; a share of the games is of the stages before, so that they are not forgotten.

    The games of a stage are judged `episodes` at a time. Who looks often enough sees any luck once, so the k-th time
    that the success of a stage is itself beyond a threshold, its bound is one of a confidence of 1 - 0.05 / k.
    """

    def __init__(self, tasks: tuple[Task, ...], settings: CurriculumSettings) -> None:
        self.tasks = tasks
        self._settings = settings
        self._stage = (settings.stage or 1) - 1
        self._began = 0
        self._looks = self._games = 0
        self._won = 0.0
        self._tally = Tally(len(tasks))

    def sample(self, count: int, random: np.random.Generator) -> Array:
        """Draw the present stage, or one of those before it."""
        return draw(self.shares(), count, random)

    def shares(self) -> Array:
        """The probability [tasks] of every task."""
        shares = np.zeros(len(self.tasks))
        earlier = self._settings.uniform if self._stage else 0.0
        shares[: self._stage] = earlier / max(1, self._stage)
        shares[self._stage] = 1.0 - earlier
        return shares

    def update(self, results: Sequence[Result], steps: int) -> list[str]:
        """Count the games of the present stage, and move where they say so."""
        told: list[str] = []
        for result in results:
            self._tally.add(result)
            if result.task == self._stage and self._settings.stage is None:
                self._won += float(result.success)
                self._games += 1
                if self._games == self._settings.episodes:
                    told += self._judge(steps)
        taken, longest = steps - self._began, self._settings.max_steps
        if longest and taken >= longest and self._settings.stage is None and self._stage + 1 < len(self.tasks):
            told.append(self._move(1, steps, f"{taken:,} steps"))
        return told

    def _judge(self, steps: int) -> list[str]:
        """Move, or begin the next window."""
        games, rate = self._games, self._won / self._games
        up = rate > self._settings.advance and self._stage + 1 < len(self.tasks)
        down = rate < self._settings.demote and self._stage > 0
        self._looks += int(up or down)
        low, high = wilson(self._won, games, 1 - (1 - CONFIDENCE) / max(1, self._looks))
        if up and low > self._settings.advance:
            return [self._move(1, steps, f"success {rate:.2f}, at least {low:.2f} in {games} games")]
        if down and high < self._settings.demote:
            return [self._move(-1, steps, f"success {rate:.2f}, at most {high:.2f} in {games} games")]
        self._won, self._games = 0.0, 0
        return []

    def _move(self, by: int, steps: int, why: str) -> str:
        left, self._stage = self._stage + 1, self._stage + by
        self._began, self._looks = steps, 0
        self._won, self._games = 0.0, 0
        back = "back to " if by < 0 else ""
        return f"{back}stage {self._stage + 1} of {len(self.tasks)}: {self.tasks[self._stage]} (stage {left}: {why})"

    def metrics(self) -> dict[str, float]:
        """The stage, and shares and successes by task."""
        return {"curriculum/stage": float(self._stage + 1)} | _by_task(self.tasks, self.shares(), self._tally)

    def describe(self) -> dict[str, Any]:
        """The state as JSON holds it, exactly."""
        told: dict[str, Any] = {"stage": self._stage, "began": self._began, "looks": self._looks}
        told |= {"games": self._games, "won": self._won}
        return _named(self.tasks) | {"staged": told, "tally": _lists(self._tally.arrays())}

    def restore(self, told: Mapping[str, Any]) -> None:
        """Put back what was described."""
        _check_same(self.tasks, told, "staged")
        state = told["staged"]
        self._stage, self._began, self._looks = state["stage"], state["began"], state["looks"]
        self._games, self._won = state["games"], state["won"]
        _put_back(self._tally.arrays(), told["tally"])


class Judge(Protocol):
    """Says how much each task is worth training on."""

    def add(self, result: Result) -> None:
        """Take in a game."""

    def weights(self, tally: Tally, age: Array) -> Array:
        """Weights [tasks], NaN where it is too early to say; `age` [tasks] counts games since its last."""

    def arrays(self) -> dict[str, Array]:
        """The state by name, as it stands (not copied)."""


class Mixture:
    """All tasks at once, by the weights of a judge, with a uniform share; each is tried before any is judged."""

    def __init__(self, tasks: tuple[Task, ...], uniform: float, kind: str, judge: Judge) -> None:
        self.tasks = tasks
        self._uniform, self._kind, self._judge = uniform, kind, judge
        self._tally = Tally(len(tasks))
        self._drawn = np.zeros(len(tasks), np.int64)
        self._age = np.zeros(len(tasks), np.int64)
        self._favourite = np.full(1, -1, np.int64)

    def sample(self, count: int, random: np.random.Generator) -> Array:
        """Draw tasks: first those that were never drawn, then by their shares."""
        untried = np.flatnonzero(self._drawn == 0)[:count].astype(np.int32)
        drawn = np.concatenate([untried, draw(self.shares(), count - len(untried), random)])
        self._drawn += np.bincount(drawn, minlength=len(self.tasks))
        return drawn

    def shares(self) -> Array:
        """The probability [tasks] of every task; one that cannot be judged yet is taken for the best."""
        weights = self._judge.weights(self._tally, self._age)
        known = ~np.isnan(weights)
        weights[~known] = weights[known].max() if weights[known].any() else 1.0
        if not weights.any():
            weights[:] = 1.0
        shares: Array = self._uniform / len(weights) + (1 - self._uniform) * weights / weights.sum()
        return shares

    def update(self, results: Sequence[Result], steps: int) -> list[str]:
        """Take in finished games; tell when another task is preferred."""
        for result in results:
            self._tally.add(result)
            self._judge.add(result)
            self._age += 1
            self._age[result.task] = 0
        if not (self._tally.results > 0).all():
            return []
        shares = self.shares()
        best, before = int(shares.argmax()), int(self._favourite[0])
        if best == before or shares[best] < CLEAR * (shares[before] if before >= 0 else 1 / len(shares)):
            return []
        self._favourite[0] = best
        return [f"{self._kind} prefers {self.tasks[best]} now ({shares[best]:.0%} of the games)"]

    def metrics(self) -> dict[str, float]:
        """Shares and successes by task."""
        return _by_task(self.tasks, self.shares(), self._tally)

    def describe(self) -> dict[str, Any]:
        """The state as JSON holds it, exactly."""
        parts = {self._kind: self._judge.arrays(), "tally": self._tally.arrays(), "mixture": self._state()}
        return _named(self.tasks) | {name: _lists(arrays) for name, arrays in parts.items()}

    def restore(self, told: Mapping[str, Any]) -> None:
        """Put back what was described."""
        _check_same(self.tasks, told, self._kind)
        _put_back(self._judge.arrays(), told[self._kind])
        _put_back(self._tally.arrays(), told["tally"])
        _put_back(self._state(), told["mixture"])

    def _state(self) -> dict[str, Array]:
        return {"drawn": self._drawn, "age": self._age, "favourite": self._favourite}


class Progress:
    """Learning progress: how fast the success of a task changes, up or down (Kanitscheider et al., 2021).

    With p a task's success over `LESSON` games, freed of chance and kept in [0, 1]:
    fast <- a p + (1 - a) fast, slow <- a fast + (1 - a) slow, progress = |r(fast) - r(slow)|.
    """

    def __init__(self, tasks: int) -> None:
        self._won, self._games, self._lessons = np.zeros(tasks), np.zeros(tasks, np.int64), np.zeros(tasks, np.int64)
        self._chance, self._fast, self._slow = np.zeros(tasks), np.zeros(tasks), np.zeros(tasks)

    def add(self, result: Result) -> None:
        """Take in a game; every so many of a task are one measurement."""
        task = result.task
        self._won[task] += result.success
        self._games[task] += 1
        if self._games[task] == LESSON:
            self._measure(task, self._won[task] / LESSON)
            self._won[task] = self._games[task] = 0

    def _measure(self, task: int, success: float) -> None:
        """The first measurement of a task is what chance, or the policy that training starts from, gives."""
        if not self._lessons[task]:
            self._chance[task] = min(success, MOST_CHANCE)
        rng = self._chance[task]
        p = max(0.0, success - rng) / (1 - rng)
        if self._lessons[task]:
            self._fast[task] += RATE * (p - self._fast[task])
            self._slow[task] += RATE * (self._fast[task] - self._slow[task])
        else:
            self._fast[task] = self._slow[task] = p
        self._lessons[task] += 1

    def progress(self) -> Array:
        """Learning progress [tasks]."""
        progress: Array = np.abs(stretch(self._fast) - stretch(self._slow))
        return progress

    def weights(self, tally: Tally, age: Array) -> Array:
        """Sigmoids of the standardised progress; 0 for a task that was never better than chance."""
        weights = np.where(self._lessons >= 2, 0.0, np.nan)
        progress = self.progress()
        counted = (self._lessons >= 2) & ((progress > 0) | (self._fast > 0))
        if counted.any():
            chosen = progress[counted]
            weights[counted] = 1 / (1 + np.exp(-(chosen - chosen.mean()) / (chosen.std() or 1.0)))
        return weights

    def arrays(self) -> dict[str, Array]:
        """The state by name, as it stands (not copied)."""
        told = {"won": self._won, "games": self._games, "lessons": self._lessons}
        return told | {"rng": self._chance, "fast": self._fast, "slow": self._slow}


class Levels:
    """Prioritised levels: by the rank of |return - value|, a little by how long a level was not played (PLR)."""

    def __init__(self, tasks: int) -> None:
        self._surprise, self._games = np.zeros(tasks), np.zeros(tasks, np.int64)

    def add(self, result: Result) -> None:
        """Take in a game."""
        task, surprise = result.task, abs(result.gain - result.value)
        rate = RATE if self._games[task] else 1.0
        self._surprise[task] += rate * (surprise - self._surprise[task])
        self._games[task] += 1

    def weights(self, tally: Tally, age: Array) -> Array:
        """(1 / rank)^10 among the levels seen, the largest surprise first; equal surprises share their weights."""
        weights = np.full(len(age), np.nan)
        seen = self._games > 0
        if seen.any():
            scores = -self._surprise[seen]
            ranked = np.arange(1.0, len(scores) + 1) ** -RANK_POWER
            _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
            ends = np.cumsum(counts)
            shared = np.array([ranked[end - n : end].mean() for end, n in zip(ends, counts, strict=True)])
            stale = age[seen] / max(1.0, age[seen].sum())
            weights[seen] = (1 - STALE) * shared[place] / ranked.sum() + STALE * stale
        return weights

    def arrays(self) -> dict[str, Array]:
        """The state by name, as it stands (not copied)."""
        return {"surprise": self._surprise, "games": self._games}


class Uniform:
    """All tasks alike; there is nothing to remember."""

    def add(self, result: Result) -> None:
        """Nothing is taken in: the tally has the results."""

    def weights(self, tally: Tally, age: Array) -> Array:
        """Ones."""
        return np.ones(len(age))

    def arrays(self) -> dict[str, Array]:
        """There is no state."""
        return {}


class Learnability(Uniform):
    """p (1 - p) of the recent success: tasks that are won now and then, not those won always or never."""

    def weights(self, tally: Tally, age: Array) -> Array:
        """p (1 - p), where there were enough games."""
        p = tally.success()
        return np.where(tally.results >= FIRST_RESULTS, p * (1 - p), np.nan)


def _judge(kind: str, tasks: int) -> Judge:
    if kind == "progress":
        return Progress(tasks)
    if kind == "levels":
        return Levels(tasks)
    return Learnability() if kind == "learnability" else Uniform()


def make_curriculum(
    settings: CurriculumSettings, spec_tasks: tuple[str, ...], stages: tuple[str, ...] = ()
) -> Curriculum | None:
    """The curriculum that is asked for, or None for `none`.

    It is over `curriculum.tasks`; unset, over those of the game's stages that this env has tasks for, or all its tasks.
    """
    if settings.kind == "none":
        return None
    if not spec_tasks:
        raise ConfigError(
            f"curriculum.kind = {settings.kind}: this env declares no tasks, so there is nothing to choose from.",
            "leave the curriculum out, or let the env's spec name its `tasks`",
        )
    if settings.kind != "staged":
        if settings.stage is not None:
            raise ConfigError(
                f"curriculum.stage = {settings.stage}, but curriculum.kind = {settings.kind} has no stages.",
                "leave curriculum.stage out, or set curriculum.kind=staged",
            )
        tasks = parse_tasks(settings.tasks or spec_tasks, spec_tasks)
        return Mixture(tasks, settings.uniform, settings.kind, _judge(settings.kind, len(tasks)))
    own = tuple(stage for stage in stages if stage.partition(" vs ")[0] in spec_tasks)
    tasks = parse_tasks(settings.tasks or own or spec_tasks, spec_tasks)
    if settings.stage is not None and settings.stage > len(tasks):
        raise ConfigError(
            f"curriculum.stage = {settings.stage}, but there are {len(tasks)} stages.",
            f"stages: {', '.join(f'{n} {task}' for n, task in enumerate(tasks, 1))}",
        )
    if settings.demote >= settings.advance:
        raise ConfigError(
            f"curriculum.demote = {settings.demote:g} is not below curriculum.advance = {settings.advance:g}.",
            "set it lower, e.g. curriculum.demote=0.2",
        )
    return Staged(tasks, settings)


def draw(shares: Array, count: int, random: np.random.Generator) -> Array:
    """Indices [count] int32 drawn by their shares."""
    edges = np.cumsum(shares)
    found: Array = np.searchsorted(edges, random.random(count) * edges[-1], side="right")
    return found.clip(max=len(shares) - 1).astype(np.int32)


def stretch(p: Array) -> Array:
    """Kanitscheider's r(p) for p in [0, 1]: hard tasks spread out, easy ones pressed together."""
    stretched: Array = p * (1 - HARDEST) / (p + HARDEST * (1 - 2 * p))
    return stretched


def _by_task(tasks: tuple[Task, ...], shares: Array, tally: Tally) -> dict[str, float]:
    row = {f"curriculum/share/{task}": float(share) for task, share in zip(tasks, shares, strict=True)}
    for task, success, games in zip(tasks, tally.success(), tally.games, strict=True):
        if games:
            row[f"curriculum/success/{task}"] = float(success)
    return row


def _named(tasks: tuple[Task, ...]) -> dict[str, Any]:
    return {"tasks": [str(task) for task in tasks]}


def _lists(arrays: Mapping[str, Array]) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in arrays.items()}


def _put_back(arrays: Mapping[str, Array], told: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        array[...] = told[name]


def _check_same(tasks: tuple[Task, ...], told: Mapping[str, Any], kind: str) -> None:
    if kind not in told or told.get("tasks") != [str(task) for task in tasks]:
        raise CheckpointError(
            f"The checkpoint's curriculum is not this one: its tasks are {', '.join(told.get('tasks', ()))}.",
            "go on with the settings that the run was started with",
        )
