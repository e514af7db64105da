"""Matches: who plays whom at what next, and what the games so far have shown.

Tasks come from a curriculum, opponents from whoever chooses them: nobody (plain self-play), one agent, or a league.
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
"""A kind (`curriculum`, `snapshot`, `promotion`, `retired` ...) and a sentence."""
WINDOW = 100
"""Finished games that the means of behaviours are taken over."""


class Roll(Protocol):
    """Where players are entered."""

    players: list[str]

    def enlist(self, name: str) -> int:
        """The number of a player, who may be new."""


class Opponents(Protocol):
    """Who plays the other side."""

    sampled: bool
    """Whether frozen players draw their actions instead of taking the likeliest."""
    promotes: bool
    """Whether they, and not evaluations, say which checkpoint is the best."""
    promotion: dict[str, Any] | None
    """Why the policy is the best so far, if it has just been found to be."""
    events: list[Event]
    """What happened since somebody asked."""

    def join(self, roll: Roll) -> None:
        """Enter the players that are there from the start."""

    def address(self, name: str) -> str:
        """Where to load a player from."""

    def draw(self, count: int, random: np.random.Generator) -> tuple[Array, Array]:
        """The player and the learning side of each of a number of games to come."""

    def see(self, matches: Sequence[FinishedGame], steps: int) -> None:
        """Take in games that ended."""

    def retire(self, player: int, why: str) -> None:
        """Seat a player no more."""

    def advance(self, steps: int, params_and_stats: Array) -> dict[str, Any]:
        """An iteration is done: freeze, rate, promote as is due; return what is to be logged."""

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """All that a resumed run needs."""

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Put back what `snapshot` gave."""

    def close(self) -> None:
        """End everything that was started."""


class FixedOpponent:
    """Always the same: the learner itself, or one agent with the sides alternating from env to env."""

    sampled = promotes = False
    promotion: dict[str, Any] | None = None

    def __init__(self, opponent: str | None, spec: EnvSpec, envs: int) -> None:
        self.events: list[Event] = []
        self._opponent = opponent
        self._seats = fixed_assignments(spec, envs, opponent is not None)

    def join(self, roll: Roll) -> None:
        """Enter the one agent, if there is one."""
        if self._opponent is not None:
            self._seats[:, PLAYER] = roll.enlist(self._opponent)

    def address(self, name: str) -> str:
        """Its name says it."""
        return name

    def draw(self, count: int, random: np.random.Generator) -> tuple[Array, Array]:
        """The same seats as ever."""
        return self._seats[:, PLAYER], self._seats[:, SIDE]

    def see(self, matches: Sequence[FinishedGame], steps: int) -> None:
        """Nothing depends on it."""

    def retire(self, player: int, why: str) -> None:
        """There is nobody else to play against."""
        raise ConfigError(f"The opponent cannot play on: {why}.", "mend it, or choose another --opponent")

    def advance(self, steps: int, params_and_stats: Array) -> dict[str, Any]:
        """Nothing is due."""
        return {}

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Nothing changes."""
        return {}, {}

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Nothing changes."""

    def close(self) -> None:
        """Nothing is held open."""


class Matchmaker:
    """Draws the seats of the games to come; the roll of players only ever grows."""

    def __init__(
        self, spec: EnvSpec, envs: int, seed: int, opponents: Opponents, curriculum: Curriculum | None = None
    ) -> None:
        self.players: list[str] = []
        self.opponents, self.curriculum = opponents, curriculum
        self.events: list[Event] = []
        self._spec, self._envs = spec, envs
        self._random = np.random.Generator(np.random.PCG64([seed, 0x3EA7]))
        self._told = 0
        """How many of the players the collector has heard of."""
        self._retired: set[int] = set()
        self._window = np.zeros((WINDOW, len(spec.behaviours)), np.float64)
        self._games = 0
        opponents.join(self)
        self._tasks, self._rivals = self._lessons()
        self._scores = Scores(len(self._tasks), spec.competitive)
        self.previous = self.seats = self._first()

    def enlist(self, name: str) -> int:
        """The number of a player, who may be new."""
        if name not in self.players:
            self.players.append(name)
        return self.players.index(name)

    def newcomers(self) -> list[str]:
        """Where the collector finds the players whom it has not heard of."""
        since, self._told = self._told, len(self.players)
        return [self.opponents.address(name) for name in self.players[since:]]

    def draw(self) -> Array:
        """The seats [envs, 3] of the games that begin in the next rollout."""
        self.previous, seats = self.seats, np.full((self._envs, 3), -1, np.int64)
        seats[:, PLAYER], seats[:, SIDE] = self.opponents.draw(self._envs, self._random)
        if self.curriculum is not None:
            chosen = self.curriculum.sample(self._envs, self._random)
            seats[:, TASK] = self._tasks[chosen]
            set_by_task = self._rivals[chosen] != SELF
            seats[set_by_task, PLAYER] = self._rivals[chosen][set_by_task]
            if self._spec.competitive:
                sides = self._random.integers(len(set(self._spec.teams)), size=self._envs)
                seats[set_by_task, SIDE] = sides[set_by_task]
        self.seats = seats
        return seats

    def see(self, matches: Sequence[FinishedGame], failed: Mapping[int, str], steps: int) -> None:
        """Take in games that ended and players that failed."""
        for player, why in failed.items():
            if player not in self._retired:
                self._retired.add(player)
                self.opponents.retire(player, why)
        self.opponents.see(matches, steps)
        for match in matches:
            if match.behaviour:
                self._window[self._games % WINDOW] = match.behaviour
                self._games += 1
        if self.curriculum is not None:
            results = [self._result(match, steps) for match in matches]
            said = self.curriculum.update([one for one in results if one is not None], steps)
            self.events += [("curriculum", text) for text in said]

    def advance(self, steps: int, params_and_stats: Array) -> dict[str, Any]:
        """An iteration is done; return what is to be logged."""
        row = self.opponents.advance(steps, params_and_stats)
        seen = self._window[: min(self._games, WINDOW)]
        for column, name in enumerate(self._spec.behaviours if len(seen) else ()):
            row[f"behaviour/{name}"] = mean_interval(seen[:, column].tolist())[0]
        return row | (self.curriculum.metrics() if self.curriculum is not None else {})

    def drain(self) -> list[Event]:
        """What happened since the last call: decisions of the curriculum and of the league."""
        events = [*self.events, *self.opponents.events]
        self.events.clear()
        self.opponents.events.clear()
        return events

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """All that a resumed run needs."""
        arrays, state = self.opponents.snapshot()
        arrays |= {"seats": self.seats, "seats_previous": self.previous, "behaviours": self._window.copy()}
        return arrays, {
            "players": list(self.players), "random": self._random.bit_generator.state, "games": self._games,
            "retired": sorted(self._retired), "opponents": state,
            "curriculum": self.curriculum.describe() if self.curriculum is not None else None,
            "scores": self._scores.describe(),
        }  # fmt: skip

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Put back what `snapshot` gave."""
        self.players[:] = state["players"]
        self.seats, self.previous = arrays["seats"], arrays["seats_previous"]
        self._window[:], self._games = arrays["behaviours"], int(state["games"])
        self._retired = set(state["retired"])
        self._random.bit_generator.state = state["random"]
        self.opponents.restore(arrays, state["opponents"])
        if self.curriculum is not None and state["curriculum"] is not None:
            self.curriculum.restore(state["curriculum"])
            self._scores.restore(state["scores"])

    def _first(self) -> Array:
        seats = fixed_assignments(self._spec, self._envs, False)
        self.seats = seats
        return self.draw()

    def _lessons(self) -> tuple[Array, Array]:
        """The env's task and the opponent of each of the curriculum's tasks."""
        tasks = self.curriculum.tasks if self.curriculum is not None else ()
        numbers = [self._spec.tasks.index(task.name) for task in tasks]
        rivals = [self.enlist(task.opponent) if task.opponent else SELF for task in tasks]
        return np.array(numbers, np.int64), np.array(rivals, np.int64)

    def _result(self, match: FinishedGame, steps: int) -> Result | None:
        """A game as the curriculum sees it; none of its own where the task is not among its."""
        same = self._tasks == match.task
        fits = same & (self._rivals == match.player)
        fits = fits if fits.any() else same & (self._rivals == SELF)
        if not fits.any():
            return None
        task = int(np.flatnonzero(fits)[0])
        success = self._scores.success(task, match.outcome, match.episode_return)
        return Result(task, success, match.episode_return, match.value, steps)
