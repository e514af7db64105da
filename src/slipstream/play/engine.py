"""The engine that plays games between agents: it steps a vector of envs with an agent assigned to every row.

Evaluation, tournaments, leagues, replays and watching start games in a `GameEngine`. Recording, which lets the envs
start their own episodes, uses its `AssignedAgents`. All randomness of a game follows from its seed, so a game does
not depend on the env, the process or the other games.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipstream.contracts import Agent, Array, EnvSpec, Vector, empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, NonFiniteGame, did_you_mean
from slipstream.play.assignments import IDLE, Assignments, Players, act_players
from slipstream.system.rng import make_streams
from slipstream.vector.make import make_vector

AgentLoader = Callable[[str, EnvSpec, EnvChoice], Agent]
"""Makes the agent with a name."""


@dataclass(frozen=True)
class ScheduledGame:
    """A game to play."""

    players: tuple[str, ...]
    """A name per side, in the order of the teams. In games of three or more sides, the last of two or more names plays
    all remaining sides."""
    seed: int
    """All randomness of the game follows from it."""
    task: str = ""
    """A task of the env; empty: the env's target."""
    first: int = 0
    """The side of the first player; the others follow in turn."""


@dataclass
class GameResult:
    """The result of a game, or the reason why it does not count."""

    game: ScheduledGame
    outcome: int = 0
    """For the first player: 1 won, 0 drawn, -1 lost."""
    length: int = 0
    """In steps."""
    returns: tuple[float, ...] = ()
    """Of each player, the mean over its rows."""
    behaviour: tuple[dict[str, float], ...] = ()
    """Of each player by name, the mean over its rows."""
    actions: Array | None = None
    """[length, agents, parts], if they were kept."""
    fault: str = ""
    """Why the game does not count."""
    culprit: str = ""
    """The player that failed."""


class AssignedAgents:
    """Agents assigned to the rows of a vector, with their RNG streams and recurrent states."""

    def __init__(self, assignments: Assignments, players: Players, streams: Array | None = None) -> None:
        rows = assignments.player.size
        self.assignments, self.players = assignments, players
        self.streams = np.zeros((rows, 2), np.int64) if streams is None else streams
        self.memory = np.zeros((rows, 0), np.float32)
        """The recurrent states; the largest state fills a row."""

    def act(self, obs: Array, mask: Array, action: Array, active: Array | None = None, check: bool = True) -> list[int]:
        """Write the action of every assigned row, or of those that are active; return the players that have failed."""
        rows = self.assignments.rows
        if active is not None and not active.all():
            rows = {player: own[active[own] > 0] for player, own in rows.items()}
        spec, first = self.assignments.spec, self.assignments.first
        return act_players(self.players, rows, spec, obs, mask, self.streams, action, self.memory, check, first)

    def reset(self, started: Array) -> None:
        """Clear the recurrent states of the rows [rows] bool whose episodes start."""
        rows, players = self.assignments.rows, self.players
        width = max((players.state_size(player) for player in rows), default=0)
        if width > self.memory.shape[1]:
            wider = np.zeros((len(self.memory), width), np.float32)
            wider[:, : self.memory.shape[1]] = self.memory
            self.memory = wider
        if self.memory.size:
            self.memory[started] = 0
        for player, own in rows.items():
            agent = players.get(player)
            if agent is not None and not players.state_size(player) and started[own].any():
                agent.begin()  # without recurrent states this only notifies the agent

    def values(self, active: Array) -> Array:
        """The value estimates [rows] of the last `act`; NaN in inactive rows and where an agent has none."""
        values = np.full(len(self.memory), np.nan, np.float32)
        for player, own in self.assignments.rows.items():
            found: Array | None = getattr(self.players.get(player), "values", None)
            if found is not None:
                acted = own[active[own] > 0]
                values[acted] = found[acted]
        return values


class GameEngine:
    """Plays games in a vector of envs, one at a time in each env; an env without a game is idle.

    Without `players`, the caller of `step` gives all actions.
    """

    def __init__(self, vector: Vector, players: Players | None = None, keep_actions: bool = False) -> None:
        spec = self.spec = vector.spec
        self.vector, self.players = vector, players
        self.assignments = Assignments(spec, vector.envs)
        self.agents = AssignedAgents(self.assignments, players) if players is not None else None
        self.games: list[ScheduledGame | None] = [None] * vector.envs
        """The game in each env."""
        self.rows = empty_rows(spec, vector.envs)
        self.action = np.zeros((len(self.rows.reward), spec.action.parts), spec.action.dtype)
        self.steps = 0
        self._playing = np.zeros(vector.envs, bool)
        self._tasks = np.full(vector.envs, -1, np.int64)
        self._started = np.zeros(vector.envs, np.int64)
        self._returns = np.zeros((vector.envs, spec.agents))
        self._present = np.zeros((vector.envs, spec.agents), bool)
        """Agents that have acted in the running game; in some games a part of the agents is absent."""
        self._history: list[Array] | None = [] if keep_actions else None
        self._history_start = 0
        vector.reset(self.rows)

    @property
    def playing(self) -> bool:
        """Whether any env has a game."""
        return bool(self._playing.any())

    def start(self, envs: Sequence[int], games: Sequence[ScheduledGame | None]) -> None:
        """Start a game in each of these envs, from the game's seed; None makes the env idle."""
        spec, agents = self.spec, self.spec.agents
        rows = np.zeros((self.vector.envs, agents), bool)
        started, seeds = [], []
        for env, game in zip(envs, games, strict=True):
            self.games[env], self._playing[env] = game, game is not None
            self._returns[env], self._present[env], self._started[env] = 0.0, False, self.steps
            self._tasks[env], self.assignments.player[env] = -1, IDLE
            rows[env] = True
            if game is None:
                continue
            started.append(env)
            seeds.append(game.seed)
            self._tasks[env] = task_number(game, spec)
            if self.agents is not None:
                self.assignments.player[env] = self._player_numbers(game)[self.assignments.side_of]
                self.agents.streams[env * agents : (env + 1) * agents] = make_streams(game.seed, "game", 0, agents)
        if started:
            if spec.tasks:
                self.vector.assign(self._tasks)
            self.vector.reset_envs(started, self.rows, seeds)
        self.assignments.update()
        if self.agents is not None:
            self.agents.reset(rows.reshape(-1))

    def act(self) -> list[int]:
        """Write the actions of all agents into `action`; return the players that have failed."""
        assert self.agents is not None
        rows = self.rows
        if self.spec.action.masked and not self._playing.all():
            self._act_idle()
        return self.agents.act(rows.obs, rows.mask, self.action, rows.active)

    def step(self, action: Array | None = None) -> list[int]:
        """Step all envs with `action`, by default what `act` wrote; return the envs whose game ended."""
        rows, shape = self.rows, self._returns.shape
        action = self.action if action is None else action
        self._present |= rows.active.reshape(shape) > 0
        rows.terms[:] = 0
        self.vector.step(action, rows)
        self.steps += 1
        if not (np.isfinite(rows.reward).all() and np.isfinite(self.spec.obs.vectors(rows.obs)).all()):
            self._check_finite()
        self._returns += rows.reward.reshape(shape)
        if self._history is not None:
            self._history.append(action.copy())
        ended = rows.terminated | rows.truncated
        if not ended.any():
            return []
        found: list[int] = np.flatnonzero(ended.reshape(shape).any(axis=1) & self._playing).tolist()
        return found

    def _check_finite(self) -> None:
        """Raise if the game of an env has a number that is not finite."""
        spec, rows, shape = self.spec, self.rows, self._returns.shape
        finite_obs: Array = np.all(np.isfinite(spec.obs.vectors(rows.obs).reshape(self.vector.envs, -1)), axis=1)
        finite = finite_obs & np.isfinite(rows.reward.reshape(shape)).all(axis=1)
        for env in np.flatnonzero(~finite & self._playing).tolist():
            of_env, game = slice(env * spec.agents, (env + 1) * spec.agents), self.games[env]
            terms = [name for k, name in enumerate(spec.terms) if not np.isfinite(rows.terms[of_env, k]).all()]
            what = f"Reward term `{'`, `'.join(terms)}`" if terms else "The reward"
            assert game is not None
            step = self.steps - int(self._started[env])
            raise NonFiniteGame(spec.name, what if finite_obs[env] else "The observation", game.seed, step)

    def result(self, env: int) -> GameResult:
        """The result of the game in an env, which has just ended."""
        spec, rows, game = self.spec, self.rows, self.games[env]
        assert game is not None
        of_env, started = slice(env * spec.agents, (env + 1) * spec.agents), int(self._started[env])
        length = self.steps - started
        behaviour, returns = list[dict[str, float]](), list[float]()
        players = self._player_of_side(game)[self.assignments.side_of]
        for place in range(players.max() + 1):
            present = self._present_in(env, players == place)
            returns.append(float(self._returns[env][present].mean()))
            means = rows.behaviour[of_env][present].mean(axis=0).tolist()
            behaviour.append(dict(zip(spec.behaviours, map(float, means), strict=True)))
        outcome = int(rows.outcome[of_env][self._present_in(env, players == 0)][0]) if spec.competitive else 0
        result = GameResult(game, outcome, length, tuple(returns), tuple(behaviour))
        if self._history is not None:
            low = started - self._history_start
            result.actions = np.stack([step[of_env] for step in self._history[low : low + length]])
            oldest = int(self._started[self._playing].min())
            del self._history[: oldest - self._history_start]
            self._history_start = oldest
        return result

    def _player_numbers(self, game: ScheduledGame) -> Array:
        """The number of the player of each side."""
        assert self.players is not None
        sides = len(set(self.spec.teams))
        if not min(sides, 2) <= len(game.players) <= sides:
            count = "one side" if sides == 1 else f"{sides} sides"
            fewer = " or fewer, at least two: the last one plays all remaining sides" if sides > 2 else ""
            raise ConfigError(
                f"`{self.spec.name}` has {count}, but was given {', '.join(game.players)}.",
                f"name one agent for each side{fewer}",
            )
        return np.array([self.players.number(name) for name in game.players])[self._player_of_side(game)]

    def _player_of_side(self, game: ScheduledGame) -> Array:
        """The place in `players` of the player of each side; at least two, whoever plays."""
        sides = len(set(self.spec.teams))
        players: Array = np.minimum((np.arange(sides) - game.first) % sides, max(2, len(game.players)) - 1)
        return players

    def _present_in(self, env: int, chosen: Array) -> Array:
        """The agents [agents] bool among the chosen ones of an env that have acted, or all of them if none has."""
        present: Array = chosen & self._present[env]
        return present if present.any() else chosen

    def _act_idle(self) -> None:
        """Give idle envs, which are stepped with the others, the first action that their mask allows."""
        idle, stops = np.repeat(~self._playing, self.spec.agents), np.cumsum(self.spec.action.sizes)[:-1]
        for part, allowed in enumerate(np.split(self.rows.mask[idle], stops, axis=1)):
            self.action[idle, part] = allowed.argmax(axis=1)


def play_scheduled(
    choice: EnvChoice,
    load: AgentLoader,
    games: Sequence[ScheduledGame],
    *,
    envs: int = 128,
    keep_actions: bool = False,
    tolerant: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> list[GameResult]:
    """Play games in parallel and return their results in order; no game has a random start.

    Each env plays a fixed share of the games to the end, so short games are not favoured. Each agent acts once per
    step for all of its rows. If an agent fails, its games are marked as faulty, or, unless `tolerant`, the error is
    raised.
    """
    choice = without_random_starts(choice)
    with contextlib.closing(make_vector(choice, min(envs, max(1, len(games))))) as vector:
        players = Players(lambda name: load(name, vector.spec, choice), strict=not tolerant)
        return _Schedule(GameEngine(vector, players, keep_actions), players, games).play(on_progress)


class _Schedule:
    """A list of games, shared out over the envs of an engine: env i plays games i, i + envs, i + 2 envs, ..."""

    def __init__(self, engine: GameEngine, players: Players, games: Sequence[ScheduledGame]) -> None:
        for game in games:
            task_number(game, engine.spec)
        self._engine, self._players, self._games = engine, players, games
        self._current = list(range(engine.vector.envs))
        self._results: list[GameResult | None] = [None] * len(games)

    def play(self, on_progress: Callable[[int], None] | None) -> list[GameResult]:
        """Play all games."""
        engine, done = self._engine, 0
        self._start(range(engine.vector.envs))
        while engine.playing:
            failed = engine.act()
            ended = engine.step()
            for env in ended:
                if not (failed and self._faulty(self._current[env])):
                    self._results[self._current[env]] = engine.result(env)
            stopped = [env for env in self._stopped_by_fault() if env not in ended] if failed else []
            if ended or stopped:
                for env in (*ended, *stopped):
                    self._current[env] += engine.vector.envs
                self._start([*ended, *stopped])
            if on_progress is not None and ended:
                done += len(ended)
                on_progress(done)
        assert all(result is not None for result in self._results)
        return [result for result in self._results if result is not None]

    def _start(self, envs: Sequence[int]) -> None:
        """Start the next playable game of each of these envs."""
        chosen: list[ScheduledGame | None] = []
        for env in envs:
            while self._current[env] < len(self._games) and self._faulty(self._current[env]):
                self._current[env] += self._engine.vector.envs
            chosen.append(self._games[self._current[env]] if self._current[env] < len(self._games) else None)
        self._engine.start(envs, chosen)

    def _stopped_by_fault(self) -> list[int]:
        """Envs whose running game has a player that failed."""
        return [
            env for env, game in enumerate(self._engine.games) if game is not None and self._faulty(self._current[env])
        ]

    def _faulty(self, number: int) -> bool:
        """Whether a player of a game has failed or cannot be loaded; the game's result then names the player."""
        game = self._games[number]
        for name in game.players:
            player = self._players.number(name)
            if self._players.get(player) is None:
                self._results[number] = GameResult(game, fault=self._players.faults[player], culprit=name)
                return True
        return False


def without_random_starts(choice: EnvChoice) -> EnvChoice:
    """The same env, in which no episode has a random start."""
    return replace(choice, env=choice.env.model_copy(update={"random_starts": 0.0}))


def task_number(game: ScheduledGame, spec: EnvSpec) -> int:
    """The number of a game's task; both games of a pair, which share a seed, have the same task."""
    if not game.task:
        return spec.tasks.index(spec.target[game.seed % len(spec.target)]) if spec.target else -1
    if game.task not in spec.tasks:
        hint = f"tasks: {', '.join(spec.tasks)}" if spec.tasks else f"`{spec.name}` has no tasks"
        raise ConfigError(f"`{spec.name}` has no task `{game.task}`.{did_you_mean(game.task, spec.tasks)}", hint)
    return spec.tasks.index(game.task)
