"""Opponents of training: which opponent and task the next games have, and the results of the finished games.

Tasks come from a curriculum. Opponents come from self-play, one fixed agent, or a league.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from slipstream.confidence import mean_interval
from slipstream.contracts import Array, EnvSpec
from slipstream.errors import ConfigError
from slipstream.play.assignments import PLAYER, SELF, SIDE, TASK, FinishedGame, fixed_assignments
from slipstream.training.curriculum import Curriculum
from slipstream.training.tasks import Result, Scores

Event = tuple[str, str]
"""A kind (`curriculum`, `snapshot`, `promotion`, `retired` ...) and a message."""
WINDOW = 100
"""Finished games over which the mean behaviours are computed."""


class PlayerRegistry(Protocol):
    """Numbers the players by name."""

    players: list[str]

    def register(self, name: str) -> int:
        """The number of a player, which is added if it is new."""


class Opponents(Protocol):
    """Chooses who plays the other side."""

    sampled: bool
    """Whether opponents sample their actions instead of taking the most likely one."""
    promotes: bool
    """Whether promotions, instead of evaluations, decide which checkpoint is the best."""
    promotion: dict[str, Any] | None
    """The test that made the policy the best so far, directly after it was passed."""
    events: list[Event]
    """Events that were not reported yet."""

    def register_players(self, registry: PlayerRegistry) -> None:
        """Register the players that exist from the start."""

    def agent_spec(self, name: str) -> str:
        """The agent spec from which a player is loaded."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sample the opponent and the learning side of each of the next `count` games."""

    def record_games(self, games: Sequence[FinishedGame], steps: int) -> None:
        """Record finished games."""

    def retire(self, player: int, why: str) -> None:
        """Do not play against this player again."""

    def advance(self, steps: int, params_and_stats: Array) -> dict[str, Any]:
        """After an iteration: take a snapshot, rate and promote when due; return metrics."""

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The state for a checkpoint."""

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Restore the state of `snapshot`."""

    def close(self) -> None:
        """Close what was started."""


class FixedOpponent:
    """Self-play, or one fixed agent, with the sides alternating from env to env."""

    sampled = promotes = False
    promotion: dict[str, Any] | None = None

    def __init__(self, opponent: str | None, spec: EnvSpec, envs: int) -> None:
        self.events: list[Event] = []
        self._opponent = opponent
        self._assigned = fixed_assignments(spec, envs, opponent is not None)

    def register_players(self, registry: PlayerRegistry) -> None:
        """Register the opponent, if there is one."""
        if self._opponent is not None:
            self._assigned[:, PLAYER] = registry.register(self._opponent)

    def agent_spec(self, name: str) -> str:
        """The name itself."""
        return name

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """The same opponent and sides every time."""
        return self._assigned[:, PLAYER], self._assigned[:, SIDE]

    def record_games(self, games: Sequence[FinishedGame], steps: int) -> None:
        """Do nothing."""

    def retire(self, player: int, why: str) -> None:
        """Raise an error, since there is no other opponent."""
        raise ConfigError(f"The opponent failed: {why}.", "fix it, or choose another --opponent")

    def advance(self, steps: int, params_and_stats: Array) -> dict[str, Any]:
        """Do nothing."""
        return {}

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """No state."""
        return {}, {}

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Matchmaker:
    """Samples the assignments of the next games, from the opponents and the curriculum.

    Players are numbered in the order of their registration and are never removed.
    """

    def __init__(
        self, spec: EnvSpec, envs: int, seed: int, opponents: Opponents, curriculum: Curriculum | None = None
    ) -> None:
        self.players: list[str] = []
        self.opponents, self.curriculum = opponents, curriculum
        self.events: list[Event] = []
        self._spec, self._envs = spec, envs
        self._rng = np.random.Generator(np.random.PCG64([seed, 0x3EA7]))
        self._published = 0
        """The number of players that the collector has received."""
        self._retired: set[int] = set()
        self._window = np.zeros((WINDOW, len(spec.behaviours)), np.float64)
        self._games = 0
        opponents.register_players(self)
        self._tasks, self._task_opponents = self._curriculum_tasks()
        self._scores = Scores(len(self._tasks), spec.competitive)
        self.assignments = fixed_assignments(spec, envs, False)
        self.previous_assignments = self.draw_assignments()

    def register(self, name: str) -> int:
        """The number of a player, which is added if it is new."""
        if name not in self.players:
            self.players.append(name)
        return self.players.index(name)

    def new_players(self) -> list[str]:
        """The agent specs of the players that were registered since the last call."""
        since, self._published = self._published, len(self.players)
        return [self.opponents.agent_spec(name) for name in self.players[since:]]

    def draw_assignments(self) -> Array:
        """Sample the assignments [envs, 3] of the games that begin in the next rollout."""
        assigned = np.full((self._envs, 3), -1, np.int64)
        assigned[:, PLAYER], assigned[:, SIDE] = self.opponents.draw(self._envs, self._rng)
        if self.curriculum is not None:
            chosen = self.curriculum.sample(self._envs, self._rng)
            assigned[:, TASK] = self._tasks[chosen]
            set_by_task = self._task_opponents[chosen] != SELF
            assigned[set_by_task, PLAYER] = self._task_opponents[chosen][set_by_task]
            if self._spec.competitive:
                sides = self._rng.integers(len(set(self._spec.teams)), size=self._envs)
                assigned[set_by_task, SIDE] = sides[set_by_task]
        self.previous_assignments, self.assignments = self.assignments, assigned
        return assigned

    def record_games(self, games: Sequence[FinishedGame], failed: Mapping[int, str], steps: int) -> None:
        """Record finished games, and retire the players that failed."""
        for player, why in failed.items():
            if player not in self._retired:
                self._retired.add(player)
                self.opponents.retire(player, why)
        self.opponents.record_games(games, steps)
        for game in games:
            if game.behaviour:
                self._window[self._games % WINDOW] = game.behaviour
                self._games += 1
        if self.curriculum is not None:
            results = [self._task_result(game, steps) for game in games]
            messages = self.curriculum.update([result for result in results if result is not None], steps)
            self.events += [("curriculum", text) for text in messages]

    def advance(self, steps: int, params_and_stats: Array) -> dict[str, Any]:
        """Update the opponents after an iteration; return metrics."""
        row = self.opponents.advance(steps, params_and_stats)
        recent = self._window[: min(self._games, WINDOW)]
        for column, name in enumerate(self._spec.behaviours if len(recent) else ()):
            row[f"behaviour/{name}"] = mean_interval(recent[:, column].tolist())[0]
        return row | (self.curriculum.metrics() if self.curriculum is not None else {})

    def drain_events(self) -> list[Event]:
        """The events of the curriculum and the opponents since the last call."""
        events = [*self.events, *self.opponents.events]
        self.events.clear()
        self.opponents.events.clear()
        return events

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The state for a checkpoint."""
        arrays, state = self.opponents.snapshot()
        arrays |= {
            "seats": self.assignments,
            "seats_previous": self.previous_assignments,
            "behaviours": self._window.copy(),
        }
        return arrays, {
            "players": list(self.players),
            "random": self._rng.bit_generator.state,
            "games": self._games,
            "retired": sorted(self._retired),
            "opponents": state,
            "curriculum": self.curriculum.describe() if self.curriculum is not None else None,
            "scores": self._scores.describe(),
        }

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Restore the state of `snapshot`."""
        self.players[:] = state["players"]
        self.assignments, self.previous_assignments = arrays["seats"], arrays["seats_previous"]
        self._window[:], self._games = arrays["behaviours"], int(state["games"])
        self._retired = set(state["retired"])
        self._rng.bit_generator.state = state["random"]
        self.opponents.restore(arrays, state["opponents"])
        if self.curriculum is not None and state["curriculum"] is not None:
            self.curriculum.restore(state["curriculum"])
            self._scores.restore(state["scores"])

    def _curriculum_tasks(self) -> tuple[Array, Array]:
        """The env's task number and the opponent of each task of the curriculum."""
        tasks = self.curriculum.tasks if self.curriculum is not None else ()
        numbers = [self._spec.tasks.index(task.name) for task in tasks]
        opponents = [self.register(task.opponent) if task.opponent else SELF for task in tasks]
        return np.array(numbers, np.int64), np.array(opponents, np.int64)

    def _task_result(self, game: FinishedGame, steps: int) -> Result | None:
        """A game's result for the curriculum; None if the game's task is not in the curriculum."""
        same_task = self._tasks == game.task
        matching = same_task & (self._task_opponents == game.player)
        matching = matching if matching.any() else same_task & (self._task_opponents == SELF)
        if not matching.any():
            return None
        task = int(np.flatnonzero(matching)[0])
        success = self._scores.success(task, game.outcome, game.episode_return)
        return Result(task, success, game.episode_return, game.value, steps)
