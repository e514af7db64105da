"""Games, really played: the one place where agents meet, for evaluation in training and out of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slipstream.confidence import mean_interval, wilson
from slipstream.contracts import Agent, Array, EnvSpec, Vector, empty_rows, sides_of
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, SlipstreamError, did_you_mean
from slipstream.play.assignments import invalid_action
from slipstream.system.rng import make_streams
from slipstream.vector.make import make_vector

Seat = Callable[[str, EnvSpec, EnvChoice], Agent]
"""Makes the agent that a name stands for."""


@dataclass(frozen=True)
class ScheduledGame:
    """A game to be played."""

    players: tuple[str, ...]
    """A name per side, in the order of the teams."""
    seed: int
    """All chance of the game follows from it."""
    task: str = ""
    """A task of the env; empty: its target."""


@dataclass
class GameResult:
    """A game that was played, or why it was not."""

    fixture: ScheduledGame
    outcome: int = 0
    """For the first side: 1 won, 0 drawn, -1 lost."""
    length: int = 0
    """In decisions."""
    returns: tuple[float, ...] = ()
    """Of each side, the mean over its rows."""
    behaviour: tuple[dict[str, float], ...] = ()
    """Of each side by name, the mean over its rows."""
    actions: Array | None = None
    """[length, agents, parts], where they were asked for."""
    fault: str = ""
    """Why it does not count."""
    culprit: str = ""
    """The player at fault."""


def paired_games(one: str, other: str, games: int, seed: int, task: str = "") -> list[ScheduledGame]:
    """Games 2k and 2k + 1 begin alike, with the sides swapped."""
    sides = ((one, other), (other, one))
    return [ScheduledGame(sides[game % 2], game_seed(seed, game // 2), task) for game in range(games)]


def game_seed(seed: int, number: int) -> int:
    """The seed of one of a number of games."""
    first, second = np.random.SeedSequence([seed, 0x9A3E, number]).generate_state(2, np.uint32).tolist()
    return int(first) << 16 | int(second) & 0xFFFF


def play_scheduled(
    choice: EnvChoice, seat: Seat, fixtures: Sequence[ScheduledGame], *, envs: int = 128, keep_actions: bool = False,
    tolerant: bool = True, on_progress: Callable[[int], None] | None = None,
) -> list[GameResult]:  # fmt: skip
    """Play the games side by side in one batch and return them in their order; no game starts at random.

    Each env plays a fixed share of the games to their end, so that short games are not favoured. Each agent is asked
    once per step for all of its rows. The games of a player that fails are marked, unless failing is not tolerated.
    """
    choice = replace(choice, env=choice.env.model_copy(update={"random_starts": 0.0}))
    with contextlib.closing(make_vector(choice, min(envs, max(1, len(fixtures))))) as vector:
        return _Hall(vector, choice, seat, fixtures, keep_actions, tolerant).play(on_progress)


class _Hall:
    """The envs of a batch, the game that each plays and the agents that sit at them."""

    def __init__(
        self, vector: Vector, choice: EnvChoice, seat: Seat, fixtures: Sequence[ScheduledGame], keep_actions: bool,
        tolerant: bool,
    ) -> None:  # fmt: skip
        spec = self._spec = vector.spec
        self._vector, self._choice, self._seat, self._fixtures = vector, choice, seat, fixtures
        self._tolerant = tolerant
        self._side_of = np.array(sides_of(spec.teams))
        self._tasks = np.array([task_number(fixture, spec) for fixture in fixtures], np.int64)
        rows = vector.envs * spec.agents
        self._rows = empty_rows(spec, vector.envs)
        self._action = np.zeros((rows, spec.action.parts), spec.action.dtype)
        self._streams = np.zeros((rows, 2), np.int64)
        self._returns = np.zeros((vector.envs, spec.agents))
        self._present = np.zeros((vector.envs, spec.agents), bool)
        """Who has acted in the present game: an absent player's rows never do."""
        self._began = np.zeros(vector.envs, np.int64)
        self._steps = 0
        self._games = np.full(vector.envs, -1)
        """The game that each env plays; -1: none is left."""
        self._next = np.arange(vector.envs)
        self._agents: dict[str, Agent] = {}
        self._memory: dict[str, Array] = {}
        self._places: dict[str, Array] = {}
        self._results: list[GameResult | None] = [None] * len(fixtures)
        self._failed: dict[str, str] = {}
        self._tape: list[Array] | None = [] if keep_actions else None
        self._tape_start = 0

    def play(self, on_progress: Callable[[int], None] | None) -> list[GameResult]:
        """Play every game to its end."""
        self._vector.reset(self._rows)
        self._begin(np.arange(self._vector.envs))
        done = 0
        while (self._games >= 0).any():
            acts = self._rows.active.reshape(self._returns.shape) > 0
            self._present |= acts
            self._act()
            self._vector.step(self._action, self._rows)
            self._steps += 1
            self._returns += self._rows.reward.reshape(self._returns.shape)
            if self._tape is not None:
                self._tape.append(self._action.copy())
            over = (self._rows.terminated | self._rows.truncated).reshape(self._returns.shape).any(axis=1)
            ended = np.flatnonzero(over & (self._games >= 0))
            for env in ended.tolist():
                self._finish(env)
            if over.any():
                self._begin(np.flatnonzero(over))
            self._give_up()
            if on_progress is not None and len(ended):
                done += len(ended)
                on_progress(done)
        assert all(result is not None for result in self._results)
        return [result for result in self._results if result is not None]

    def _begin(self, envs: Array) -> None:
        """Start the next game of these envs, each from its own seed."""
        spec, started = self._spec, []
        for env in envs.tolist():
            game = int(self._next[env])
            while game < len(self._fixtures) and self._blamed(game):
                game += self._vector.envs
            self._next[env] = game + self._vector.envs
            self._games[env] = game if game < len(self._fixtures) else -1
            self._returns[env], self._present[env], self._began[env] = 0.0, False, self._steps
            if self._games[env] >= 0:
                started.append(env)
                first = env * spec.agents
                self._streams[first : first + spec.agents] = make_streams(
                    self._fixtures[game].seed, "game", 0, spec.agents
                )
        if started:
            games = self._games[started]
            if spec.tasks:
                tasks = np.full(self._vector.envs, -1, np.int64)
                tasks[self._games >= 0] = self._tasks[self._games[self._games >= 0]]
                self._vector.assign(tasks)
            self._vector.reset_envs(started, self._rows, [self._fixtures[game].seed for game in games.tolist()])
        self._sit(envs)

    def _blamed(self, game: int) -> bool:
        """Whether a game cannot be played because of one of its players, who is then named in its result."""
        for name in self._fixtures[game].players:
            if name not in self._agents and name not in self._failed:
                try:
                    self._agents[name] = self._seat(name, self._spec, self._choice)
                except SlipstreamError as error:
                    if not self._tolerant:
                        raise
                    self._failed[name] = error.message
            if name in self._failed:
                fixture = self._fixtures[game]
                self._results[game] = GameResult(fixture, fault=self._failed[name], culprit=name)
                return True
        return False

    def _sit(self, envs: Array) -> None:
        """Say anew which rows each agent plays; the games of these envs begin, so their memories are empty."""
        spec, names = self._spec, dict[str, list[Array]]()
        agents = np.arange(spec.agents)
        for env in np.flatnonzero(self._games >= 0).tolist():
            for side, name in enumerate(self._fixtures[self._games[env]].players):
                names.setdefault(name, []).append(env * spec.agents + agents[self._side_of == side])
        self._places = {name: np.concatenate(rows) for name, rows in names.items()}
        fresh = (envs[:, None] * spec.agents + agents).reshape(-1)
        for name in self._places:
            if name not in self._memory:
                size = self._agents[name].memory(0).shape[1]
                self._memory[name] = np.zeros((len(self._action), size), np.float32)
        for memory in self._memory.values():
            memory[fresh] = 0

    def _idle(self) -> None:
        """Envs without a game are stepped on with the others: they must do what is allowed, whatever that is."""
        if not self._spec.action.masked or (self._games >= 0).all():
            return
        left, stops = np.repeat(self._games < 0, self._spec.agents), np.cumsum(self._spec.action.sizes)[:-1]
        for part, allowed in enumerate(np.split(self._rows.mask[left], stops, axis=1)):
            self._action[left, part] = allowed.argmax(axis=1)

    def _act(self) -> None:
        """Ask every agent once for all of its rows that act."""
        self._idle()
        rows, whole = self._rows, bool(self._rows.active.all())
        for name, places in self._places.items():
            if name in self._failed:
                continue
            acting = places if whole else places[rows.active[places] > 0]
            try:
                self._agents[name].act_rows(
                    acting, rows.obs, rows.mask, self._streams, self._action, self._memory[name]
                )
                wrong = invalid_action(self._action[acting], self._spec)
            except Exception as error:
                if not self._tolerant:
                    raise
                wrong = f"raised {type(error).__name__}: {error}"
            if wrong:
                if not self._tolerant:
                    raise ConfigError(f"{name} {wrong}.", "mend the agent, or leave it out")
                self._failed[name] = f"{name} {wrong}"
                self._action[places] = 0

    def _give_up(self) -> None:
        """End the games of those that failed, at once."""
        if not self._failed:
            return
        stuck = [env for env in np.flatnonzero(self._games >= 0).tolist() if self._blamed(int(self._games[env]))]
        if stuck:
            self._begin(np.array(stuck))

    def _finish(self, env: int) -> None:
        """Take the game of an env into the results."""
        spec, rows = self._spec, self._rows
        fixture, first = self._fixtures[self._games[env]], env * spec.agents
        if any(name in self._failed for name in fixture.players):
            return
        own = slice(first, first + spec.agents)
        began = int(self._began[env])
        length = self._steps - began
        behaviour, returns = list[dict[str, float]](), list[float]()
        for side in range(self._side_of.max() + 1):
            there = self._rows_of(env, side)
            returns.append(float(self._returns[env][there].mean()))
            means = rows.behaviour[own][there].mean(axis=0).tolist()
            behaviour.append(dict(zip(spec.behaviours, map(float, means), strict=True)))
        outcome = int(rows.outcome[own][self._rows_of(env, 0)][0]) if spec.competitive else 0
        result = GameResult(fixture, outcome, length, tuple(returns), tuple(behaviour))
        if self._tape is not None:
            low = began - self._tape_start
            result.actions = np.stack([step[own] for step in self._tape[low : low + length]])
            oldest = int(self._began[self._games >= 0].min())
            del self._tape[: oldest - self._tape_start]
            self._tape_start = oldest
        self._results[self._games[env]] = result

    def _rows_of(self, env: int, side: int) -> Array:
        """Which agents of an env played on a side in the game that just ended."""
        there: Array = (self._side_of == side) & self._present[env]
        return there if there.any() else self._side_of == side


def task_number(fixture: ScheduledGame, spec: EnvSpec) -> int:
    """The number of a game's task; a pair, which has one seed, has one task."""
    if not fixture.task:
        return spec.tasks.index(spec.target[fixture.seed % len(spec.target)]) if spec.target else -1
    if fixture.task not in spec.tasks:
        hint = f"tasks: {', '.join(spec.tasks)}" if spec.tasks else f"`{spec.name}` has no tasks"
        raise ConfigError(f"`{spec.name}` has no task `{fixture.task}`.{did_you_mean(fixture.task, spec.tasks)}", hint)
    return spec.tasks.index(fixture.task)


@dataclass
class GameSummary:
    """The results of a number of games, from the first agent's side."""

    competitive: bool
    outcomes: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """One of each per game, in the order of their starts, so that the same seed gives the same places to the same."""
    behaviour: list[dict[str, float]] = field(default_factory=list)
    theirs: list[dict[str, float]] = field(default_factory=list)
    """What the other side did."""

    def summary(self) -> dict[str, Any]:
        """Counts, rates and means with their 95 % intervals; games without sides are not won or lost."""
        games = len(self.returns)
        mean, low, high = mean_interval(self.returns)
        result: dict[str, Any] = {"games": games}
        if self.competitive:
            wins, draws = self.outcomes.count(1), self.outcomes.count(0)
            points = wins + draws / 2
            win_low, win_high = wilson(wins, games)
            score_low, score_high = wilson(points, games)
            result |= {"wins": wins, "draws": draws, "losses": games - wins - draws}
            result |= {"win_rate": wins / games, "win_rate_low": win_low, "win_rate_high": win_high}
            result |= {"score": points / games, "score_low": score_low, "score_high": score_high}
        else:
            names = ("wins", "draws", "losses", "win_rate", "win_rate_low", "win_rate_high")
            result |= dict.fromkeys((*names, "score", "score_low", "score_high"))
        result |= {"mean_return": mean, "mean_return_low": low, "mean_return_high": high}
        result |= {"mean_length": float(np.mean(self.lengths))}
        return result | {"behaviour": _means(self.behaviour), "opponent_behaviour": _means(self.theirs)}

    def extend(self, other: GameSummary) -> None:
        """Take in all of some other games."""
        for name in ("outcomes", "returns", "lengths", "behaviour", "theirs"):
            getattr(self, name).extend(getattr(other, name))

    def add(self, played: GameResult, agent: str) -> None:
        """Take in a game of the agent of this name."""
        side = played.fixture.players.index(agent)
        self.outcomes.append(played.outcome if side == 0 else -played.outcome)
        self.returns.append(played.returns[side])
        self.lengths.append(played.length)
        self.behaviour.append(played.behaviour[side])
        if len(played.behaviour) > 1:
            self.theirs.append(played.behaviour[1 - side])


def _means(behaviour: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """The mean of each behaviour over games with its 95 % interval."""
    names = behaviour[0] if behaviour else {}
    return {name: list(mean_interval([one[name] for one in behaviour])) for name in names}


def nobody_to_play(spec: EnvSpec) -> ConfigError:
    """What an opponent in a game of one side is answered."""
    return ConfigError(f"`{spec.name}` has one side: there is nobody to play against.", "leave --opponent out")


def play(
    choice: EnvChoice, make_agent: Callable[..., Agent], make_opponent: Callable[..., Agent] | None, games: int, *,
    seed: int, envs: int = 128, keep: list[GameResult] | None = None, on_progress: Callable[[int], None] | None = None,
) -> GameSummary:  # fmt: skip
    """Play exactly `games` games, in pairs of the same start with the sides swapped; `keep` gets them with actions."""
    with contextlib.closing(make_vector(choice, 1)) as vector:
        spec = vector.spec
    if spec.competitive and make_opponent is None:
        raise ConfigError(f"`{spec.name}` has two sides: it needs an opponent.", "add --opponent AGENT")
    if make_opponent is not None and not spec.competitive:
        raise nobody_to_play(spec)

    def seat(name: str, spec: EnvSpec, choice: EnvChoice) -> Agent:
        make = make_agent if name == "agent" else make_opponent
        assert make is not None
        return make(spec, choice)

    fixtures = paired_games("agent", "opponent", games, seed)
    if not spec.competitive:
        fixtures = [ScheduledGame(("agent",), game_seed(seed, game)) for game in range(games)]
    played = play_scheduled(
        choice, seat, fixtures, envs=envs, keep_actions=keep is not None, tolerant=False, on_progress=on_progress
    )
    result = GameSummary(spec.competitive)
    for one in played:
        result.add(one, "agent")
    if keep is not None:
        keep += played
    return result
