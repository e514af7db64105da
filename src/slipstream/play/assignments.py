"""Seats: who plays each side of each game, which rows learn, and what became of the games that ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from slipstream.contracts import Agent, Array, EnvSpec, Rows, sides_of
from slipstream.errors import SlipstreamError

TASK, PLAYER, SIDE = range(3)
"""Columns of a seat: the task of the env (-1: its target), who plays the other side, and the side that learns."""
SELF = -1
"""The player that is the learner itself: then both sides learn."""


def learning_rows(teams: tuple[int, ...], envs: int, opponent: bool, first: int = 0) -> Array:
    """Which rows the policy plays: all, or, against an opponent, one side of each env, sides alternating."""
    mask = np.ones((envs, len(teams)), bool)
    if opponent:
        sides = sorted(set(teams))
        for env in range(envs):
            mask[env] = np.array(teams) == sides[(first + env) % len(sides)]
    return mask.reshape(-1)


@dataclass(frozen=True)
class FinishedGame:
    """A game that ended in training, told from the side that learns."""

    env: int
    task: int
    player: int
    side: int
    outcome: int
    length: int
    gain: float
    """The return, mean over the rows that learn."""
    value: float
    """What the policy expected of it at its start, as its value says."""
    seed: int
    own: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    """What was counted about either side, mean over its rows."""

    def tell(self) -> list[Any]:
        """As a line of JSON holds it."""
        return list(astuple(self))

    @classmethod
    def hear(cls, told: Sequence[Any]) -> FinishedGame:
        """The inverse of `tell`."""
        parts: list[Any] = [tuple(part) if isinstance(part, list) else part for part in told]
        return cls(*parts)


def fixed_assignments(spec: EnvSpec, envs: int, opponent: bool) -> Array:
    """Seats that never change: plain self-play, or one opponent with the sides alternating."""
    seats = np.full((envs, 3), -1, np.int64)
    seats[:, SIDE] = np.arange(envs) % len(set(spec.teams)) if opponent else 0
    seats[:, PLAYER] = 0 if opponent else SELF
    return seats


class OpponentRoster:
    """The frozen players by number; each is loaded when it first sits down, and one that fails is not asked again."""

    def __init__(self, load: Callable[[str], Agent]) -> None:
        self.names: list[str] = []
        self.faults: dict[int, str] = {}
        """Who failed, and how."""
        self._load = load
        self._agents: dict[int, Agent] = {}

    def add(self, names: Sequence[str]) -> None:
        """Let more players in."""
        self.names += names

    def get(self, number: int) -> Agent | None:
        """The agent of a player; nobody where it failed."""
        if number not in self._agents and number not in self.faults:
            try:
                self._agents[number] = self._load(self.names[number])
            except SlipstreamError as error:
                self.faults[number] = error.message
        return None if number in self.faults else self._agents[number]

    def keep(self, numbers: set[int]) -> None:
        """Let go of all that do not play."""
        for number in [number for number in self._agents if number not in numbers]:
            del self._agents[number]

    def blame(self, number: int, fault: str) -> None:
        """A player failed."""
        self.faults[number] = f"{self.names[number]} {fault}"


def invalid_action(action: Array, spec: EnvSpec) -> str:
    """What is wrong with actions [rows, parts]; empty: nothing."""
    if spec.action.kind == "continuous":
        return "" if np.isfinite(action).all() else "gave an action that is not a number"
    return (
        "" if ((action >= 0) & (action < np.array(spec.action.sizes))).all() else "gave an action that does not exist"
    )


class Assignments:
    """The seats of a number of envs and the games that are played there."""

    def __init__(self, spec: EnvSpec, envs: int, first: int) -> None:
        self.spec, self.envs, self.first = spec, envs, first
        self.follows = spec.competitive or bool(spec.tasks or spec.behaviours)
        """Whether games are told one by one."""
        self.seat = fixed_assignments(spec, envs, False)
        self.length = np.zeros(envs, np.int64)
        self.gain = np.zeros(envs, np.float64)
        self.value = np.zeros(envs, np.float64)
        self.seed = np.zeros(envs, np.int64)
        self.void = np.zeros(envs, np.uint8)
        """Games that do not count, because a player failed in them."""
        self._side_of = np.array(sides_of(spec.teams))
        self._fresh = np.zeros(0, np.int64)
        self.arrange()

    def arrange(self) -> None:
        """Read from the seats which rows learn and which a frozen player has."""
        own = (self.seat[:, PLAYER, None] == SELF) | (self._side_of[None, :] == self.seat[:, SIDE, None])
        self.learning = own  # [envs, agents]
        self.own = np.flatnonzero(own)
        self.others: dict[int, Array] = {}
        players = np.repeat(self.seat[:, PLAYER], self.spec.agents)
        for player in np.unique(self.seat[:, PLAYER]).tolist():
            if player != SELF:
                self.others[player] = np.flatnonzero(~own.reshape(-1) & (players == player))
        self.frozen = np.concatenate([np.zeros(0, np.int64), *self.others.values()])

    def begin(self, envs: Array, wanted: Array, seeds: Array) -> None:
        """New games in these envs, from these seeds: those that are wanted now."""
        self.length[envs], self.gain[envs], self.value[envs], self.void[envs] = 0, 0.0, 0.0, 0
        self.seed[envs] = seeds[envs]
        self._fresh = envs
        if (self.seat[envs] != wanted[envs]).any():
            self.seat[envs] = wanted[envs]
            self.arrange()

    def expect(self, value: Array, active: Array) -> None:
        """Note what the policy expects of the games that have just begun."""
        if len(self._fresh):
            acts = (active.reshape(self.learning.shape) * self.learning)[self._fresh]
            values = value.reshape(self.learning.shape)[self._fresh]
            self.value[self._fresh] = (values * acts).sum(axis=1) / np.maximum(1, acts.sum(axis=1))
            self._fresh = self._fresh[:0]

    def follow(self, reward: Array, active: Array) -> None:
        """Count a step of every game; `active` is who acted in it."""
        rewards = reward.reshape(self.learning.shape) * self.learning
        present = np.maximum(1, (active.reshape(self.learning.shape) * self.learning).sum(axis=1))
        self.gain += rewards.sum(axis=1) / present
        self.length += 1

    def result(self, env: int, rows: Rows, active: Array) -> FinishedGame:
        """The game of an env that has just ended."""
        agents = self.spec.agents
        rows_of, learning = slice(env * agents, (env + 1) * agents), self.learning[env]
        there = active[rows_of] > 0
        task, player, side = self.seat[env].tolist()
        told = rows.behaviour[rows_of]
        mine = learning & (self._side_of == side)

        def mean(chosen: Array) -> tuple[float, ...]:
            found = told[chosen & there] if (chosen & there).any() else told[chosen]
            return tuple(float(x) for x in found.mean(axis=0)) if found.size else ()

        return FinishedGame(
            env=self.first + env, task=task, player=player, side=side,
            outcome=int(rows.outcome[rows_of][mine][0]), length=int(self.length[env]), gain=float(self.gain[env]),
            value=float(self.value[env]), seed=int(self.seed[env]), own=mean(mine), theirs=mean(self._side_of != side),
        )  # fmt: skip

    def arrays(self) -> dict[str, Array]:
        """The state by name, envs first, as it stands."""
        return {
            "seat": self.seat, "length": self.length, "gain": self.gain, "value": self.value, "seed": self.seed,
            "void": self.void,
        }  # fmt: skip


def act_opponents(
    table: Assignments,
    roster: OpponentRoster,
    obs: Array,
    mask: Array,
    streams: Array,
    action: Array,
    memory: Array,
    check: bool,
) -> None:
    """Let every frozen player choose for all of its rows at once; where one fails, its games do not count.

    `memory` [rows, size] is what they remember, the widest of them filling a row.
    """
    for player, rows in table.others.items():
        agent = roster.get(player)
        if agent is not None:
            size = agent.memory(0).shape[1]
            states = memory if size == memory.shape[1] else np.ascontiguousarray(memory[:, :size])
            try:
                agent.act_rows(rows, obs, mask, streams, action, states)
            except Exception as error:  # whatever a player does, the others play on
                roster.blame(player, f"raised {type(error).__name__}: {error}")
            if states is not memory:
                memory[:, :size] = states
            if check and (wrong := invalid_action(action[rows], table.spec)):
                roster.blame(player, wrong)
        if player in roster.faults:
            action[rows] = 0
            table.void[rows // table.spec.agents] = 1
