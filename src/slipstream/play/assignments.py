"""Assignments: which player controls each agent of each env, and the games that training plays under them.

Players are numbers into a list of names. Training, evaluation, recording, replays and watching share these types, so
there is one rule for who acts in which row and for what happens when a player fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from slipstream.contracts import Agent, Array, EnvSpec, Rows, sides_of
from slipstream.errors import AgentFault, ConfigError, SlipstreamError

TASK, PLAYER, SIDE = range(3)
"""Columns of a training assignment: the task (-1: the env's target), the opponent, and the side that learns."""
SELF = -1
"""The player number of the policy being trained: as the opponent it means self-play, so both sides learn."""
IDLE = -2
"""The player number of rows that no agent controls."""


class Assignments:
    """Which player controls each agent of each env."""

    first = 0
    """The global index of the first env, for messages."""

    def __init__(self, spec: EnvSpec, envs: int, player: int = IDLE) -> None:
        self.spec, self.envs = spec, envs
        self.side_of = np.array(sides_of(spec.teams))
        self.player = np.full((envs, spec.agents), player, np.int64)
        self.rows: dict[int, Array] = {}
        """The rows that each player controls; SELF and IDLE are left out."""
        self.update()

    def update(self) -> None:
        """Compute `rows` from `player`."""
        flat = self.player.reshape(-1)
        self.rows = {player: np.flatnonzero(flat == player) for player in np.unique(flat).tolist() if player >= 0}


class Players:
    """The agents that play, by number. An agent is loaded on first use and dropped after a failure.

    With `strict`, a failure is raised instead of stored in `faults`.
    """

    def __init__(self, load: Callable[[str], Agent], strict: bool = False) -> None:
        self.names: list[str] = []
        self.faults: dict[int, str] = {}
        """The error message of each player that failed."""
        self.strict = strict
        self._load = load
        self._agents: dict[int, Agent] = {}
        self._sizes: dict[int, int] = {}

    @classmethod
    def of(cls, agents: Sequence[Agent]) -> Players:
        """Players that are already loaded; failures are raised."""
        players = cls(lambda name: agents[int(name)], strict=True)
        players.names = [agent.name for agent in agents]
        for number, agent in enumerate(agents):
            players._enter(number, agent)
        return players

    def add(self, names: Sequence[str]) -> None:
        """Add players."""
        self.names += names

    def number(self, name: str) -> int:
        """The number of a player, which is added if it is new."""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def get(self, number: int) -> Agent | None:
        """The agent of a player; None after a failure."""
        if number in self.faults:
            return None
        if number not in self._agents:
            try:
                self._enter(number, self._load(self.names[number]))
            except SlipstreamError as error:
                if self.strict:
                    raise
                self.faults[number] = error.message
                return None
        return self._agents[number]

    def state_size(self, number: int) -> int:
        """The size of a player's recurrent state; 0 for one without memory or after a failure."""
        return self._sizes[number] if self.get(number) is not None else 0

    def keep(self, numbers: set[int]) -> None:
        """Unload every player that is not among these."""
        for number in [number for number in self._agents if number not in numbers]:
            del self._agents[number]

    def blame(self, number: int, fault: str) -> None:
        """Mark a player as failed."""
        if self.strict:
            raise ConfigError(f"{self.names[number]} {fault}.", "fix the agent, or leave it out")
        self.faults[number] = f"{self.names[number]} {fault}"

    def _enter(self, number: int, agent: Agent) -> None:
        self._agents[number], self._sizes[number] = agent, agent.memory(0).shape[1]


def act_players(
    players: Players,
    rows_of: Mapping[int, Array],
    spec: EnvSpec,
    obs: Array,
    mask: Array,
    streams: Array,
    action: Array,
    memory: Array,
    check: bool,
    first: int = 0,
) -> list[int]:
    """Let each player act once for all of its rows; return the players that have failed.

    `memory` [rows, size] holds the recurrent states; its width is that of the largest. With `check`, actions that do
    not exist are a failure. The actions of a failed player are 0. `first` is the global index of the first env.
    """
    for player, rows in rows_of.items():
        agent = players.get(player)
        if agent is None:
            continue
        size = players.state_size(player)
        states = memory if size == memory.shape[1] else np.ascontiguousarray(memory[:, :size])
        try:
            if len(rows) == len(obs) and not size:
                agent.act_into(obs, mask, streams, action)
            else:
                agent.act_rows(rows, obs, mask, streams, action, states)
        except AgentFault as failure:
            failure.locate(first + failure.row // spec.agents, spec.agents)
            if players.strict:
                raise
            players.blame(player, failure.brief)
        except Exception as error:  # the other players continue
            if players.strict:
                raise
            players.blame(player, f"raised {type(error).__name__}: {error}")
        if states is not memory:
            memory[:, :size] = states
        if check and player not in players.faults and (fault := invalid_action(action[rows], spec)):
            players.blame(player, fault)
    failed = [player for player in rows_of if player in players.faults] if players.faults else []
    for player in failed:
        action[rows_of[player]] = 0
    return failed


def invalid_action(action: Array, spec: EnvSpec) -> str:
    """What is wrong with actions [rows, parts]; empty if they are valid."""
    if spec.action.continuous_parts and not np.isfinite(action).all():
        return "gave an action that is not a number"
    options = action[:, : spec.action.discrete_parts]
    valid = ((options >= 0) & (options < np.array(spec.action.sizes)) & (options % 1 == 0)).all()
    return "" if valid else "gave an action that does not exist"


def learning_rows(teams: tuple[int, ...], envs: int, opponent: bool, first: int = 0) -> Array:
    """The rows [rows] bool of the policy: all, or, against an opponent, one side of each env, sides alternating."""
    mask = np.ones((envs, len(teams)), bool)
    if opponent:
        sides = sorted(set(teams))
        for env in range(envs):
            mask[env] = np.array(teams) == sides[(first + env) % len(sides)]
    return mask.reshape(-1)


def fixed_assignments(spec: EnvSpec, envs: int, opponent: bool) -> Array:
    """Training assignments [envs, 3] that never change: self-play, or one opponent with the sides alternating."""
    assigned = np.full((envs, 3), -1, np.int64)
    assigned[:, SIDE] = np.arange(envs) % len(set(spec.teams)) if opponent else 0
    assigned[:, PLAYER] = 0 if opponent else SELF
    return assigned


@dataclass(frozen=True)
class FinishedGame:
    """A finished training game, from the view of the side that learns."""

    env: int
    task: int
    player: int
    """The opponent's number, or SELF."""
    side: int
    outcome: int
    length: int
    episode_return: float
    """The mean over the rows that learn."""
    value: float
    """The policy's value estimate at the start of the game."""
    seed: int
    behaviour: tuple[float, ...] = ()
    opponent_behaviour: tuple[float, ...] = ()
    """The env's behaviour counts of each side, the mean over its rows."""

    def to_json(self) -> list[Any]:
        """The fields as a JSON list."""
        return list(astuple(self))

    @classmethod
    def from_json(cls, fields: Sequence[Any]) -> FinishedGame:
        """The inverse of `to_json`."""
        parts: list[Any] = [tuple(part) if isinstance(part, list) else part for part in fields]
        return cls(*parts)


class TrainingGames(Assignments):
    """The assignments of the envs that training collects from, and the games that run in them.

    `assigned` [envs, 3] has the columns TASK, PLAYER and SIDE.
    """

    def __init__(self, spec: EnvSpec, envs: int, first: int) -> None:
        self.first = first
        self.follows = spec.competitive or bool(spec.tasks or spec.behaviours)
        """Whether finished games are reported one by one."""
        self.assigned = fixed_assignments(spec, envs, False)
        self.length = np.zeros(envs, np.int64)
        self.episode_return = np.zeros(envs, np.float64)
        self.value = np.zeros(envs, np.float64)
        self.seed = np.zeros(envs, np.int64)
        self.void = np.zeros(envs, np.uint8)
        """Games that do not count because a player failed."""
        self._new = np.zeros(0, np.int64)
        super().__init__(spec, envs, SELF)

    def update(self) -> None:
        """Compute from `assigned` which rows learn and which rows each opponent controls."""
        opponent, side = self.assigned[:, PLAYER, None], self.assigned[:, SIDE, None]
        self.learning = (opponent == SELF) | (self.side_of[None, :] == side)  # [envs, agents]
        self.player[:] = np.where(self.learning, SELF, opponent)
        super().update()
        self.own = np.flatnonzero(self.learning)
        self.frozen = np.concatenate([np.zeros(0, np.int64), *self.rows.values()])

    def begin(self, envs: Array, requested: Array, seeds: Array) -> None:
        """Start new games in these envs with the requested assignments."""
        self.length[envs], self.episode_return[envs], self.value[envs], self.void[envs] = 0, 0.0, 0.0, 0
        self.seed[envs] = seeds[envs]
        self._new = envs
        if (self.assigned[envs] != requested[envs]).any():
            self.assigned[envs] = requested[envs]
            self.update()

    def expect(self, value: Array, active: Array) -> None:
        """Store the policy's value estimates for the games that have just started."""
        if len(self._new):
            acts = (active.reshape(self.learning.shape) * self.learning)[self._new]
            values = value.reshape(self.learning.shape)[self._new]
            self.value[self._new] = (values * acts).sum(axis=1) / np.maximum(1, acts.sum(axis=1))
            self._new = self._new[:0]

    def follow(self, reward: Array, active: Array) -> None:
        """Count one step of every game; `active` marks the rows that acted."""
        rewards = reward.reshape(self.learning.shape) * self.learning
        present = np.maximum(1, (active.reshape(self.learning.shape) * self.learning).sum(axis=1))
        self.episode_return += rewards.sum(axis=1) / present
        self.length += 1

    def cancel(self, players: Iterable[int]) -> None:
        """Do not count the games of players that have failed."""
        for player in players:
            self.void[self.rows[player] // self.spec.agents] = 1

    def result(self, env: int, rows: Rows, active: Array) -> FinishedGame:
        """The game of an env that has just ended."""
        agents = self.spec.agents
        of_env, learning = slice(env * agents, (env + 1) * agents), self.learning[env]
        present = active[of_env] > 0
        task, player, side = self.assigned[env].tolist()
        behaviour = rows.behaviour[of_env]
        own = learning & (self.side_of == side)

        def mean(chosen: Array) -> tuple[float, ...]:
            found = behaviour[chosen & present] if (chosen & present).any() else behaviour[chosen]
            return tuple(float(x) for x in found.mean(axis=0)) if found.size else ()

        return FinishedGame(
            env=self.first + env,
            task=task,
            player=player,
            side=side,
            outcome=int(rows.outcome[of_env][own][0]),
            length=int(self.length[env]),
            episode_return=float(self.episode_return[env]),
            value=float(self.value[env]),
            seed=int(self.seed[env]),
            behaviour=mean(own),
            opponent_behaviour=mean(self.side_of != side),
        )

    def arrays(self) -> dict[str, Array]:
        """The state by its name in a checkpoint, envs first, not copied."""
        return {
            "seat": self.assigned,
            "length": self.length,
            "gain": self.episode_return,
            "value": self.value,
            "seed": self.seed,
            "void": self.void,
        }
