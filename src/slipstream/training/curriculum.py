"""Curricula: which tasks are trained on, decided by the results of finished games.

All kinds have one interface, `Curriculum`. `Staged` moves from task to task. `Mixture` samples from all tasks with the
weights of a `TaskWeights`: learning progress, prioritised levels, learnability, or uniform. The caller owns the random
generator, so its state and that of `describe` restore a curriculum exactly.
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

DECAY = 0.98
"""Decay of a task's old results with each new one, in the logged success and in learnability."""
FIRST_RESULTS = 10
"""Results of a task before learnability weights it."""
WINDOW = 50
"""Games of a task whose mean success is one measurement of learning progress."""
RATE = 0.1
"""Rate of the moving averages of learning progress and of the value error of levels."""
STRETCH = 0.1
"""Below this success, learning progress gives small differences the largest weight."""
MAX_BASELINE = 0.75
"""The largest success that counts as the baseline of a random policy."""
RANK_POWER = 10.0
STALE = 0.1
"""Share of the levels' weight that depends on the time since they were played."""
PREFERRED = 1.1
"""Factor by which a task's share must exceed that of the preferred task to replace it."""


class Curriculum(Protocol):
    """Samples tasks, and adapts to the results of finished games."""

    tasks: tuple[Task, ...]

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Sample the tasks [count] int32 of the next games."""

    def update(self, results: Sequence[Result], steps: int) -> list[str]:
        """Add finished games, oldest first, after `steps` training steps; return messages about decisions."""

    def metrics(self) -> dict[str, float]:
        """Shares and success rates by task."""

    def describe(self) -> dict[str, Any]:
        """The state as JSON values, exactly."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `describe`."""


class SuccessRates:
    """The recent success rate of every task, from decayed counts."""

    def __init__(self, tasks: int) -> None:
        self.won = np.zeros(tasks)
        self.games = np.zeros(tasks)
        self.results = np.zeros(tasks, np.int64)

    def add(self, result: Result) -> None:
        """Add a game."""
        task = result.task
        self.won[task] = DECAY * self.won[task] + result.success
        self.games[task] = DECAY * self.games[task] + 1
        self.results[task] += 1

    def success(self) -> Array:
        """The mean success [tasks]; 0 for tasks without games."""
        return self.won / np.maximum(self.games, 1.0)

    def arrays(self) -> dict[str, Array]:
        """The state by name, not copied."""
        return {"won": self.won, "games": self.games, "results": self.results}


class Staged:
    """One task after another; a share of the games repeats earlier stages, against forgetting.

    A stage is tested after every `episodes` games. To correct for repeated tests, the k-th test in which the success
    rate is beyond a threshold uses a confidence of 1 - 0.05 / k.
    """

    def __init__(self, tasks: tuple[Task, ...], settings: CurriculumSettings) -> None:
        self.tasks = tasks
        self._settings = settings
        self._stage = (settings.stage or 1) - 1
        self._started_at = 0
        self._tests = self._games = 0
        self._won = 0.0
        self._rates = SuccessRates(len(tasks))

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Sample the current stage, or one of the earlier ones."""
        return draw(self.shares(), count, rng)

    def shares(self) -> Array:
        """The probability [tasks] of every task."""
        shares = np.zeros(len(self.tasks))
        earlier = self._settings.uniform if self._stage else 0.0
        shares[: self._stage] = earlier / max(1, self._stage)
        shares[self._stage] = 1.0 - earlier
        return shares

    def update(self, results: Sequence[Result], steps: int) -> list[str]:
        """Count the games of the current stage, and change the stage when a test passes."""
        messages: list[str] = []
        for result in results:
            self._rates.add(result)
            if result.task == self._stage and self._settings.stage is None:
                self._won += float(result.success)
                self._games += 1
                if self._games == self._settings.episodes:
                    messages += self._test(steps)
        taken, longest = steps - self._started_at, self._settings.max_steps
        if longest and taken >= longest and self._settings.stage is None and self._stage + 1 < len(self.tasks):
            messages.append(self._move(1, steps, f"{taken:,} steps"))
        return messages

    def _test(self, steps: int) -> list[str]:
        """Change the stage, or start the next window of games."""
        games, rate = self._games, self._won / self._games
        up = rate > self._settings.advance and self._stage + 1 < len(self.tasks)
        down = rate < self._settings.demote and self._stage > 0
        self._tests += int(up or down)
        low, high = wilson(self._won, games, 1 - (1 - CONFIDENCE) / max(1, self._tests))
        if up and low > self._settings.advance:
            return [self._move(1, steps, f"success {rate:.2f}, at least {low:.2f} in {games} games")]
        if down and high < self._settings.demote:
            return [self._move(-1, steps, f"success {rate:.2f}, at most {high:.2f} in {games} games")]
        self._won, self._games = 0.0, 0
        return []

    def _move(self, by: int, steps: int, why: str) -> str:
        left, self._stage = self._stage + 1, self._stage + by
        self._started_at, self._tests = steps, 0
        self._won, self._games = 0.0, 0
        back = "back to " if by < 0 else ""
        return f"{back}stage {self._stage + 1} of {len(self.tasks)}: {self.tasks[self._stage]} (stage {left}: {why})"

    def metrics(self) -> dict[str, float]:
        """The stage, and shares and success rates by task."""
        return {"curriculum/stage": float(self._stage + 1)} | _by_task(self.tasks, self.shares(), self._rates)

    def describe(self) -> dict[str, Any]:
        """The state as JSON values, exactly."""
        staged: dict[str, Any] = {"stage": self._stage, "began": self._started_at, "looks": self._tests}
        staged |= {"games": self._games, "won": self._won}
        return _named(self.tasks) | {"staged": staged, "tally": _lists(self._rates.arrays())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `describe`."""
        _check_same(self.tasks, state, "staged")
        staged = state["staged"]
        self._stage, self._started_at, self._tests = staged["stage"], staged["began"], staged["looks"]
        self._games, self._won = staged["games"], staged["won"]
        _restore_arrays(self._rates.arrays(), state["tally"])


class TaskWeights(Protocol):
    """Weights the tasks by how much training on them is worth."""

    def add(self, result: Result) -> None:
        """Add a game."""

    def weights(self, rates: SuccessRates, age: Array) -> Array:
        """Weights [tasks], NaN for a task with too few games; `age` [tasks] is the number of games since its last."""

    def arrays(self) -> dict[str, Array]:
        """The state by name, not copied."""


class Mixture:
    """All tasks at once, sampled by weight plus a uniform share; every task is tried once first."""

    def __init__(self, tasks: tuple[Task, ...], uniform: float, kind: str, weighting: TaskWeights) -> None:
        self.tasks = tasks
        self._uniform, self._kind, self._weighting = uniform, kind, weighting
        self._rates = SuccessRates(len(tasks))
        self._drawn = np.zeros(len(tasks), np.int64)
        self._age = np.zeros(len(tasks), np.int64)
        self._preferred = np.full(1, -1, np.int64)

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Sample tasks: first those that were never drawn, then by their shares."""
        untried = np.flatnonzero(self._drawn == 0)[:count].astype(np.int32)
        drawn = np.concatenate([untried, draw(self.shares(), count - len(untried), rng)])
        self._drawn += np.bincount(drawn, minlength=len(self.tasks))
        return drawn

    def shares(self) -> Array:
        """The probability [tasks] of every task; one without a weight yet gets the largest weight."""
        weights = self._weighting.weights(self._rates, self._age)
        known = ~np.isnan(weights)
        weights[~known] = weights[known].max() if weights[known].any() else 1.0
        if not weights.any():
            weights[:] = 1.0
        shares: Array = self._uniform / len(weights) + (1 - self._uniform) * weights / weights.sum()
        return shares

    def update(self, results: Sequence[Result], steps: int) -> list[str]:
        """Add finished games; report when another task is preferred."""
        for result in results:
            self._rates.add(result)
            self._weighting.add(result)
            self._age += 1
            self._age[result.task] = 0
        if not (self._rates.results > 0).all():
            return []
        shares = self.shares()
        best, before = int(shares.argmax()), int(self._preferred[0])
        if best == before or shares[best] < PREFERRED * (shares[before] if before >= 0 else 1 / len(shares)):
            return []
        self._preferred[0] = best
        return [f"{self._kind} prefers {self.tasks[best]} now ({shares[best]:.0%} of the games)"]

    def metrics(self) -> dict[str, float]:
        """Shares and success rates by task."""
        return _by_task(self.tasks, self.shares(), self._rates)

    def describe(self) -> dict[str, Any]:
        """The state as JSON values, exactly."""
        parts = {self._kind: self._weighting.arrays(), "tally": self._rates.arrays(), "mixture": self._state()}
        return _named(self.tasks) | {name: _lists(arrays) for name, arrays in parts.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `describe`."""
        _check_same(self.tasks, state, self._kind)
        _restore_arrays(self._weighting.arrays(), state[self._kind])
        _restore_arrays(self._rates.arrays(), state["tally"])
        _restore_arrays(self._state(), state["mixture"])

    def _state(self) -> dict[str, Array]:
        return {"drawn": self._drawn, "age": self._age, "favourite": self._preferred}


class LearningProgress:
    """Learning progress: how fast the success rate of a task changes, up or down (Kanitscheider et al., 2021).

    With p a task's success over `WINDOW` games, minus the baseline and rescaled to [0, 1]:
    fast <- a p + (1 - a) fast, slow <- a fast + (1 - a) slow, progress = |r(fast) - r(slow)|.
    """

    def __init__(self, tasks: int) -> None:
        self._won, self._games, self._windows = np.zeros(tasks), np.zeros(tasks, np.int64), np.zeros(tasks, np.int64)
        self._baseline, self._fast, self._slow = np.zeros(tasks), np.zeros(tasks), np.zeros(tasks)

    def add(self, result: Result) -> None:
        """Add a game; every `WINDOW` games of a task are one measurement."""
        task = result.task
        self._won[task] += result.success
        self._games[task] += 1
        if self._games[task] == WINDOW:
            self._measure(task, self._won[task] / WINDOW)
            self._won[task] = self._games[task] = 0

    def _measure(self, task: int, success: float) -> None:
        """Update the averages; the first measurement of a task is its baseline, the success of the initial policy."""
        if not self._windows[task]:
            self._baseline[task] = min(success, MAX_BASELINE)
        baseline = self._baseline[task]
        p = max(0.0, success - baseline) / (1 - baseline)
        if self._windows[task]:
            self._fast[task] += RATE * (p - self._fast[task])
            self._slow[task] += RATE * (self._fast[task] - self._slow[task])
        else:
            self._fast[task] = self._slow[task] = p
        self._windows[task] += 1

    def progress(self) -> Array:
        """Learning progress [tasks]."""
        progress: Array = np.abs(stretch(self._fast) - stretch(self._slow))
        return progress

    def weights(self, rates: SuccessRates, age: Array) -> Array:
        """Sigmoids of the standardised progress; 0 for a task that was never better than its baseline."""
        weights = np.where(self._windows >= 2, 0.0, np.nan)
        progress = self.progress()
        counted = (self._windows >= 2) & ((progress > 0) | (self._fast > 0))
        if counted.any():
            chosen = progress[counted]
            weights[counted] = 1 / (1 + np.exp(-(chosen - chosen.mean()) / (chosen.std() or 1.0)))
        return weights

    def arrays(self) -> dict[str, Array]:
        """The state by name, not copied."""
        counts = {"won": self._won, "games": self._games, "lessons": self._windows}
        return counts | {"chance": self._baseline, "fast": self._fast, "slow": self._slow}


class PrioritisedLevels:
    """Prioritised level replay (PLR): by the rank of |return - value|, and by the time since a level was played."""

    def __init__(self, tasks: int) -> None:
        self._error, self._games = np.zeros(tasks), np.zeros(tasks, np.int64)

    def add(self, result: Result) -> None:
        """Add a game."""
        task, error = result.task, abs(result.episode_return - result.value)
        rate = RATE if self._games[task] else 1.0
        self._error[task] += rate * (error - self._error[task])
        self._games[task] += 1

    def weights(self, rates: SuccessRates, age: Array) -> Array:
        """(1 / rank)^10 among the levels seen, the largest error first; equal errors share their weights."""
        weights = np.full(len(age), np.nan)
        seen = self._games > 0
        if seen.any():
            scores = -self._error[seen]
            ranked = np.arange(1.0, len(scores) + 1) ** -RANK_POWER
            _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
            ends = np.cumsum(counts)
            shared = np.array([ranked[end - n : end].mean() for end, n in zip(ends, counts, strict=True)])
            stale = age[seen] / max(1.0, age[seen].sum())
            weights[seen] = (1 - STALE) * shared[place] / ranked.sum() + STALE * stale
        return weights

    def arrays(self) -> dict[str, Array]:
        """The state by name, not copied."""
        return {"surprise": self._error, "games": self._games}


class Uniform:
    """Equal weights; there is no state."""

    def add(self, result: Result) -> None:
        """Do nothing."""

    def weights(self, rates: SuccessRates, age: Array) -> Array:
        """All ones."""
        return np.ones(len(age))

    def arrays(self) -> dict[str, Array]:
        """No state."""
        return {}


class Learnability(Uniform):
    """p (1 - p) of the recent success rate p: prefers tasks that are neither always nor never won."""

    def weights(self, rates: SuccessRates, age: Array) -> Array:
        """p (1 - p) for tasks with enough games."""
        p = rates.success()
        return np.where(rates.results >= FIRST_RESULTS, p * (1 - p), np.nan)


def _make_weights(kind: str, tasks: int) -> TaskWeights:
    if kind == "progress":
        return LearningProgress(tasks)
    if kind == "levels":
        return PrioritisedLevels(tasks)
    return Learnability() if kind == "learnability" else Uniform()


def make_curriculum(
    settings: CurriculumSettings, spec_tasks: tuple[str, ...], stages: tuple[str, ...] = ()
) -> Curriculum | None:
    """Make the curriculum of the settings; None for the kind `none`.

    Its tasks are `curriculum.tasks`. If those are not set, they are the game's stages for which this env has tasks, or
    all tasks of the env.
    """
    if settings.kind == "none":
        return None
    if not spec_tasks:
        raise ConfigError(
            f"curriculum.kind = {settings.kind}: this env declares no tasks.",
            "leave the curriculum out, or declare `tasks` in the env's spec",
        )
    if settings.kind != "staged":
        if settings.stage is not None:
            raise ConfigError(
                f"curriculum.stage = {settings.stage}, but curriculum.kind = {settings.kind} has no stages.",
                "leave curriculum.stage out, or set curriculum.kind=staged",
            )
        tasks = parse_tasks(settings.tasks or spec_tasks, spec_tasks)
        return Mixture(tasks, settings.uniform, settings.kind, _make_weights(settings.kind, len(tasks)))
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


def draw(shares: Array, count: int, rng: np.random.Generator) -> Array:
    """Sample indices [count] int32 by their shares."""
    edges = np.cumsum(shares)
    found: Array = np.searchsorted(edges, rng.random(count) * edges[-1], side="right")
    return found.clip(max=len(shares) - 1).astype(np.int32)


def stretch(p: Array) -> Array:
    """Kanitscheider's r(p) for p in [0, 1]: stretches differences between hard tasks and compresses easy ones."""
    stretched: Array = p * (1 - STRETCH) / (p + STRETCH * (1 - 2 * p))
    return stretched


def _by_task(tasks: tuple[Task, ...], shares: Array, rates: SuccessRates) -> dict[str, float]:
    row = {f"curriculum/share/{task}": float(share) for task, share in zip(tasks, shares, strict=True)}
    for task, success, games in zip(tasks, rates.success(), rates.games, strict=True):
        if games:
            row[f"curriculum/success/{task}"] = float(success)
    return row


def _named(tasks: tuple[Task, ...]) -> dict[str, Any]:
    return {"tasks": [str(task) for task in tasks]}


def _lists(arrays: Mapping[str, Array]) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in arrays.items()}


def _restore_arrays(arrays: Mapping[str, Array], state: Mapping[str, Any]) -> None:
    for name, array in arrays.items():
        array[...] = state[name]


def _check_same(tasks: tuple[Task, ...], state: Mapping[str, Any], kind: str) -> None:
    if kind not in state or state.get("tasks") != [str(task) for task in tasks]:
        raise CheckpointError(
            f"The checkpoint has another curriculum, with the tasks {', '.join(state.get('tasks', ()))}.",
            "resume with the settings of the run",
        )
