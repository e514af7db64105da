"""Recording: games played to their end, each agent's steps cut into whole episodes and appended to a shard.

Rows step together and write into a tape, time first, as rollouts do; an episode is copied out of it once, when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any

import numpy as np

from slipstream.contracts import Agent, Array, EnvSpec, Rows, Vector
from slipstream.demos.format import TERMINATED, TRUNCATED, Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import DemoError, MachineError
from slipstream.play.assignments import learning_rows
from slipstream.settings import EnvSettings, RewardSettings
from slipstream.system.machine import memory_bytes
from slipstream.system.rng import env_seeds, make_streams
from slipstream.vector.make import make_vector

MOST_ENVS, MOST_HEAVY_ENVS = 64, 16
"""Envs over which games are spread; fewer where an observation takes more than HEAVY_BYTES."""
HEAVY_BYTES = 4096
GROUP = 4
"""Python envs that stop being stepped together, once all of their games are played."""
BLOCK_BYTES, BLOCK_STEPS = 2**22, 256
ROWS = tuple(field.name for field in fields(Rows))


@dataclass(frozen=True)
class RecordJob:
    """What is to be recorded: all that a process needs to play its share."""

    choice: EnvChoice
    agent: str
    opponent: str | None
    games: int
    envs: int
    """Env i of them plays the games i, i + envs, i + 2 envs, ..., whichever process has it."""
    seed: int
    sampled: bool = False
    expert: str | None = None
    """Whose actions are written instead of the agent's: the agent plays, the expert says what it would have done."""


def spread(games: int, spec: EnvSpec, most: int | None = None) -> int:
    """Over how many envs to spread games so that all have about as many; the machine has no say in it."""
    heavy = spec.obs.width * np.dtype(spec.obs.dtype).itemsize > HEAVY_BYTES
    most = most or (MOST_HEAVY_ENVS if heavy else MOST_ENVS)
    rounds = -(-games // most)
    return -(-games // rounds)


def make_vectors(order: RecordJob, first: int, envs: int, progress: Array) -> list[Vector]:
    """Make envs [first, first + envs): a native game steps as one, Python envs in groups that can end early."""
    native = parse(order.choice.name)[0] is not None
    size = envs if native else GROUP
    made: list[Vector] = []
    for low in range(0, envs, size):
        progress[2] = low
        count = min(size, envs - low)
        made.append(make_vector(order.choice, count, seed=order.seed, first=first + low, progress=progress[:2]))
    return made


class Block:
    """Some steps of all rows, one array per column; `obs`, `mask` and `active` have one step more."""

    def __init__(self, spec: EnvSpec, steps: int, rows: int, final_obs: Array) -> None:
        action = spec.action
        self.obs = np.zeros((steps + 1, rows, spec.obs.width), spec.obs.dtype)
        self.mask = np.ones((steps + 1, rows, action.options), np.uint8)
        self.active = np.ones((steps + 1, rows), np.uint8)
        self.action = np.zeros((steps, rows, action.parts), action.dtype)
        self.reward = np.zeros((steps, rows), np.float32)
        self.terms = np.zeros((steps, rows, len(spec.terms)), np.float32)
        ended = np.zeros((2, steps, rows), np.uint8)
        outcome = np.zeros((steps, rows), np.int8)
        behaviour = np.zeros((rows, len(spec.behaviours)), np.float32)
        self.first = Rows(
            self.obs[0], self.reward[0], ended[0, 0], ended[1, 0], outcome[0], final_obs, self.active[0], self.mask[0],
            self.terms[0], behaviour,
        )  # fmt: skip
        """Where a reset writes."""
        self.steps = [
            Rows(
                self.obs[t + 1], self.reward[t], ended[0, t], ended[1, t], outcome[t], final_obs, self.active[t + 1],
                self.mask[t + 1], self.terms[t], behaviour,
            )
            for t in range(steps)
        ]  # fmt: skip
        """Where each step writes."""
        self.bytes = sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))


class Tape:
    """What all rows saw and did since the oldest running episode began; older blocks are used again."""

    def __init__(self, spec: EnvSpec, rows: int) -> None:
        self.spec, self.rows = spec, rows
        self.final_obs = np.zeros((rows, spec.obs.width), spec.obs.dtype)
        self._length = int(np.clip(BLOCK_BYTES // max(1, self.final_obs.nbytes), 8, BLOCK_STEPS))
        self._spare: list[Block] = []
        self._blocks = deque([self._block()])
        self._first = 0
        self._at = 0
        self.step = 0
        """The number of the step that comes next."""

    @property
    def bytes(self) -> int:
        """Memory in use."""
        return (len(self._blocks) + len(self._spare)) * self._blocks[0].bytes

    @property
    def first(self) -> Rows:
        """Where the reset before the first step writes."""
        return self._blocks[0].first

    @property
    def now(self) -> tuple[Array, Array, Array, Rows]:
        """Observations and masks to act on, where the actions go, and where the step writes its results."""
        block, at = self._blocks[-1], self._at
        return block.obs[at], block.mask[at], block.action[at], block.steps[at]

    def advance(self) -> bool:
        """Go on to the next step; return whether that took another block."""
        self.step += 1
        self._at += 1
        if self._at < self._length:
            return False
        last, block = self._blocks[-1], self._block()
        for name in ("obs", "mask", "active"):
            getattr(block, name)[0] = getattr(last, name)[-1]
        self._blocks.append(block)
        self._at = 0
        return True

    def forget(self, before: int) -> None:
        """Let go of the steps before a number."""
        while self._first + self._length <= before and len(self._blocks) > 1:
            self._spare.append(self._blocks.popleft())
            self._first += self._length

    def cut(self, row: int, start: int) -> dict[str, Array]:
        """The columns of a row's episode that began at a step and has just ended; empty where it never acted.

        A step on which the row did not act is none of its own: what that paid counts for its last act before.
        """
        last = self.final_obs[row][None]
        taken = {name: self._take(name, row, start) for name in ("obs", "action", "reward", "mask", "terms")}
        acts = np.flatnonzero(self._take("active", row, start))
        if len(acts) < self.step - start:
            sums = {name: np.add.reduceat(taken[name], acts, axis=0) for name in ("reward", "terms") if len(acts)}
            taken = {name: array[acts] for name, array in taken.items()} | sums
        terms = taken.pop("terms")
        columns = taken | {f"terms/{name}": terms[:, k] for k, name in enumerate(self.spec.terms)}
        columns["obs"] = np.concatenate([taken["obs"], last])
        return columns if len(acts) else {}

    def _take(self, name: str, row: int, start: int) -> Array:
        """A row's values of the steps from `start` up to now."""
        parts = []
        for number, block in enumerate(self._blocks):
            low = self._first + number * self._length
            parts.append(getattr(block, name)[max(0, start - low) : min(self._length, max(0, self.step - low)), row])
        return np.concatenate(parts)

    def _block(self) -> Block:
        if not self._spare:
            return Block(self.spec, self._length, self.rows, self.final_obs)
        block = self._spare.pop()
        block.terms[:] = 0
        return block


class Seat:
    """An agent, the rows it plays, and their chance."""

    def __init__(self, agent: Agent, rows: Array, streams: Array, spec: EnvSpec) -> None:
        self.agent = agent
        self._rows = slice(None) if len(rows) == len(streams) else rows
        self._streams = streams[rows]
        self._chosen = np.zeros((len(rows), spec.action.parts), spec.action.dtype)

    def act(self, obs: Array, mask: Array, action: Array) -> None:
        """Write the actions of its rows."""
        self.agent.act_into(obs[self._rows], mask[self._rows], self._streams, self._chosen)
        action[self._rows] = self._chosen

    def begin(self, ended: Array) -> None:
        """Forget what ended."""
        self.agent.begin(np.flatnonzero(ended[self._rows]))


@dataclass(frozen=True)
class Part:
    """One of a recorder's vectors, and its envs and rows among all."""

    vector: Vector
    envs: slice
    rows: slice
    whole: bool

    def of(self, rows: Rows) -> Rows:
        """Its share of the rows."""
        if self.whole:
            return rows
        return Rows(*[getattr(rows, name)[self.rows] for name in ROWS])


class Recorder:
    """Plays the games of envs [first, first + n) of an order and appends every recorded row's episodes to a shard."""

    def __init__(
        self, order: RecordJob, vectors: Sequence[Vector], agent: Agent, opponent: Agent | None, shard: Shard, *,
        first: int = 0, recorded: Array | None = None, progress: Array | None = None, limit_bytes: int | None = None,
        expert: Agent | None = None,
    ) -> None:  # fmt: skip
        self.spec = spec = vectors[0].spec
        self.shard = shard
        self.games = self.dropped = 0
        self.seconds = np.zeros(3, np.float64)
        """Time in the environments, in the agents and in writing."""
        self._faults: dict[str, list[int]] = {}
        self._order, self._first, self._agents = order, first, spec.agents
        self._progress = np.zeros(3, np.int64) if progress is None else progress
        self._limit_bytes = limit_bytes or memory_bytes() // 2
        self._parts = _parts(vectors)
        envs = sum(vector.envs for vector in vectors)
        rows = envs * spec.agents
        if recorded is None:
            recorded = learning_rows(spec.teams, envs, opponent is not None, first)
        lead = first * spec.agents
        self._seats = [Seat(agent, np.flatnonzero(recorded), make_streams(order.seed, "agent", lead, rows), spec)]
        if opponent is not None:
            streams = make_streams(order.seed, "opponent", lead, rows)
            self._seats.append(Seat(opponent, np.flatnonzero(~recorded), streams, spec))
        self._expert: Seat | None = None
        if expert is not None:
            streams = make_streams(order.seed, "expert", lead, rows)
            self._expert = Seat(expert, np.flatnonzero(recorded), streams, spec)
        numbers = first + np.arange(envs)
        self._shares = np.repeat((order.games - numbers + order.envs - 1) // order.envs, spec.agents) * recorded
        """Games that each row is recorded in; `_left` of them are still to be played."""
        self._left = self._shares.copy()
        native = parse(order.choice.name)[0] is not None
        self._seeds = [order.seed] * envs if native else env_seeds(order.seed, first, envs)
        self._tape = Tape(spec, rows)
        self._begun = np.zeros(rows, np.int64)
        self._starts: dict[str, Array] = {}

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Play until all games are recorded, or until somebody says stop: then what is unfinished is left out."""
        tape = self._tape
        for part in self._parts:
            self._progress[2] = part.envs.start
            part.vector.reset(part.of(tape.first))
        for seat in self._everyone():
            seat.agent.begin()
        self._keep_starts(np.arange(len(self._left)))
        while self._left.any() and not stopped():
            self._step()

    def _everyone(self) -> list[Seat]:
        return [*self._seats, *([self._expert] if self._expert is not None else [])]

    def told(self) -> list[str]:
        """What was left out, and why: one line for each kind of fault."""
        return [
            f"{what} was not finite in {count} episode{'s' * (count > 1)}, first in env {env} at step {step} of game "
            f"{game}: left out."
            for what, (count, env, step, game) in self._faults.items()
        ]

    def close(self) -> None:
        """Close the environments."""
        for part in self._parts:
            part.vector.close()
        self._parts = []

    def _step(self) -> None:
        began = perf_counter()
        obs, mask, action, rows = self._tape.now
        for seat in self._seats:
            seat.act(obs, mask, action)
        acted = perf_counter()
        self._progress[0] += 1
        for part in self._parts:
            self._progress[2] = part.envs.start
            part.vector.step(action[part.rows], part.of(rows))
        stepped = perf_counter()
        if self._expert is not None:
            self._expert.act(obs, mask, action)
        if self._tape.advance():
            self._check_memory()
        ended = rows.terminated | rows.truncated
        if ended.any():
            self._end(rows, ended)
        self.seconds += stepped - acted, acted - began, perf_counter() - stepped

    def _end(self, rows: Rows, ended: Array) -> None:
        """Write what ended, and begin what follows."""
        over = np.flatnonzero(ended)
        for row in over[self._left[over] > 0].tolist():
            self._write(row, rows)
            self._left[row] -= 1
        self._begun[over] = self._tape.step
        for seat in self._everyone():
            seat.begin(ended)
        played = np.where(self._shares, self._shares - self._left, np.iinfo(np.int64).max)
        played = played.reshape(-1, self._agents).min(axis=1)
        self.games = int(played[played < np.iinfo(np.int64).max].sum())
        going = self._left > 0
        self._retire(going)
        if going.any():
            self._keep_starts(over)
            self._tape.forget(int(self._begun[going].min()))

    def _retire(self, going: Array) -> None:
        """Close the vectors whose games are all played."""
        for part in self._parts:
            if not going[part.rows].any():
                part.vector.close()
        self._parts = [part for part in self._parts if going[part.rows].any()]

    def _write(self, row: int, rows: Rows) -> None:
        env, agent = divmod(row, self._agents)
        game = self._first + env + int(self._shares[row] - self._left[row]) * self._order.envs
        columns = self._tape.cut(row, int(self._begun[row]))
        if not columns:  # nobody sat there
            return
        if self._faulty(columns, env, game):
            self.dropped += 1
            return
        starts = {f"start/{name}": array[env][None] for name, array in self._starts.items()}
        self.shard.add(
            columns | starts, game=game, env=self._first + env, seed=self._seeds[env], agent=agent,
            team=self.spec.teams[agent], outcome=int(rows.outcome[row]),
            ended=TERMINATED if rows.terminated[row] else TRUNCATED,
        )  # fmt: skip

    def _faulty(self, columns: dict[str, Array], env: int, game: int) -> bool:
        """Whether an episode has a number that is not finite; the first is noted."""
        numbers = columns | {"obs": self.spec.obs.vectors(columns["obs"])}
        terms = {f"Reward term `{name}`": f"terms/{name}" for name in self.spec.terms}
        for what, name in (
            {"The observation": "obs", "The action": "action"} | terms | {"The reward": "reward"}
        ).items():
            fine = np.isfinite(numbers[name])
            if not fine.all():
                step = int(np.argmin(fine.reshape(len(fine), -1).all(axis=1)))
                self._faults.setdefault(what, [0, self._first + env, step, game])[0] += 1
                return True
        return False

    def _keep_starts(self, rows: Array) -> None:
        """Keep the states from which the episodes of some rows begin, where there are exact ones."""
        if not self.spec.exact:
            return
        envs = np.unique(rows // self._agents)
        for part in self._parts:
            state = part.vector.snapshot()
            if not self._starts:
                self._starts = {
                    name: np.zeros((len(self._left) // self._agents, *array.shape[1:]), array.dtype)
                    for name, array in state.items()
                }
            mine = envs[(envs >= part.envs.start) & (envs < part.envs.stop)]
            for name, array in state.items():
                self._starts[name][mine] = array[mine - part.envs.start]

    def _check_memory(self) -> None:
        if self._tape.bytes <= self._limit_bytes:
            return
        row = int(np.where(self._left, self._begun, np.iinfo(np.int64).max).argmin())
        raise MachineError(
            f"The running episodes take {self._tape.bytes / 2**30:.1f} GiB of memory: that of env "
            f"{self._first + row // self._agents} has {self._tape.step - self._begun[row]:,} steps and has not ended.",
            "give the env a time limit, or play fewer at a time with --set plan.envs=N",
        )


def _parts(vectors: Sequence[Vector]) -> list[Part]:
    parts, low = [], 0
    for vector in vectors:
        high = low + vector.envs
        agents = vector.spec.agents
        parts.append(Part(vector, slice(low, high), slice(low * agents, high * agents), len(vectors) == 1))
        low = high
    return parts


def resimulate(demos: Demos, episodes: Sequence[int], choice: EnvChoice | None = None) -> list[dict[str, Array]]:
    """Play a recorded game again, from its start state and by the recorded actions of all its agents.

    Takes the numbers of its episodes, one for each agent; returns their columns as the env gives them now. The first
    observation (and mask) is the recorded one, since a state is seen only after a step. `choice` is needed for what a
    recording does not keep: modules to import, and reward terms of your own.
    """
    shard = _whole_game(demos, episodes)
    facts = demos.episodes[list(episodes)]
    played = [demos.episode(number) for number in episodes]
    choice = choice or rechoose(shard.origin)
    vector = make_vector(choice, 1, seed=int(facts["seed"][0]), first=int(facts["env"][0]))
    try:
        if Schema.of(demos.schema.env, vector.spec, vector.snapshot()) != demos.schema:
            raise DemoError(
                f"`{choice.name}` is another game now than the one in {demos.path}.",
                "use the version that recorded it (shard.json names it), or record again",
            )
        tape = Tape(vector.spec, len(played))
        vector.reset(tape.first)
        vector.restore({n[6:]: v for n, v in played[0].items() if n.startswith("start/")})
        for agent, columns in zip(facts["agent"], played, strict=True):
            tape.first.obs[agent] = columns["obs"][0]
            if demos.schema.action.masked:
                tape.first.mask[agent] = columns["mask"][0]
        _repeat(vector, tape, {int(a): columns["action"] for a, columns in zip(facts["agent"], played, strict=True)})
        return [tape.cut(int(agent), 0) for agent in facts["agent"]]
    finally:
        vector.close()


def _repeat(vector: Vector, tape: Tape, actions: dict[int, Array]) -> None:
    """Step an env by recorded actions until they are used up or its game ends."""
    used, active = dict.fromkeys(actions, 0), tape.first.active
    while any(used[agent] < len(actions[agent]) for agent in actions):
        _, _, action, rows = tape.now
        for agent, recorded in actions.items():
            action[agent] = recorded[min(used[agent], len(recorded) - 1)]
            used[agent] += int(active[agent])
        vector.step(action, rows)
        tape.advance()
        active = rows.active
        if (rows.terminated | rows.truncated).any():
            return
    tape.final_obs[:] = rows.obs


def _whole_game(demos: Demos, episodes: Sequence[int]) -> Any:
    """The shard of a game of which all agents are there; says what is missing otherwise."""
    facts = demos.episodes[list(episodes)]
    chosen = demos.chosen[list(episodes)]
    games = {(int(shard), int(game)) for shard, game in zip(chosen[:, 0], facts["game"], strict=True)}
    if len(games) != 1:
        raise DemoError(f"These {len(episodes)} episodes are of {len(games)} games.", "name the episodes of one game")
    ((place, game),) = games
    shard = demos.shards[place]
    if not any(column.name.startswith("start/") for column in demos.schema.columns):
        raise DemoError(
            f"`{demos.schema.env}` has no exact state, so its games cannot be played again.",
            "built-in games can: see `slipstream envs`",
        )
    if sorted(facts["agent"].tolist()) != list(range(demos.schema.agents)):
        raise DemoError(
            f"Game {game} of {shard.name} has {demos.schema.agents} agents, of which {len(episodes)} were given: "
            "without the actions of all it cannot be played again.",
            "name the episodes of all; if an opponent's were not recorded, record again without --opponent",
        )
    return shard


def rechoose(origin: dict[str, Any]) -> EnvChoice:
    """The environment that a shard was recorded in, with its settings."""
    try:
        told = origin["settings"]
        settings = EnvSettings(**told["env"]), RewardSettings(**told["rewards"])
        return EnvChoice(origin["env"], *settings, gamma=told.get("gamma", EnvChoice.gamma))
    except (KeyError, TypeError, ValueError) as error:
        raise DemoError(
            f"The shard does not say in which env it was recorded: {error!r}.", "pass choice=EnvChoice(...)"
        ) from error
