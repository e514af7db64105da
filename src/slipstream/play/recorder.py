"""Recording: games are played to the end, and each agent's steps are appended to a shard as whole episodes.

All rows step together and write into an episode buffer, time first, like a rollout. An episode is copied out of the
buffer once, when it ends.
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
from slipstream.play.assignments import IDLE, Assignments, Players, learning_rows
from slipstream.play.engine import AssignedAgents
from slipstream.settings import EnvSettings, RewardSettings
from slipstream.system.machine import memory_bytes
from slipstream.system.rng import env_seeds, make_streams
from slipstream.vector.make import make_vector

MOST_ENVS, MOST_HEAVY_ENVS = 64, 16
"""The most envs that games are spread over; fewer if an observation is larger than HEAVY_BYTES."""
HEAVY_BYTES = 4096
GROUP = 4
"""Python envs in one vector, which is closed when all of its games are recorded."""
BLOCK_BYTES, BLOCK_STEPS = 2**22, 256
ROWS = tuple(field.name for field in fields(Rows))


@dataclass(frozen=True)
class RecordJob:
    """A recording: everything that a process needs to play its share."""

    choice: EnvChoice
    agent: str
    opponent: str | None
    games: int
    envs: int
    """Env i plays games i, i + envs, i + 2 envs, ..., in whichever process it runs."""
    seed: int
    sampled: bool = False
    expert: str | None = None
    """The agent whose actions are written: the first agent plays, the expert labels its observations."""


def spread(games: int, spec: EnvSpec, most: int | None = None) -> int:
    """The number of envs that gives each about the same number of games; it does not depend on the machine."""
    heavy = spec.obs.width * np.dtype(spec.obs.dtype).itemsize > HEAVY_BYTES
    most = most or (MOST_HEAVY_ENVS if heavy else MOST_ENVS)
    rounds = -(-games // most)
    return -(-games // rounds)


def make_vectors(job: RecordJob, first: int, envs: int, progress: Array) -> list[Vector]:
    """Make envs [first, first + envs): one vector of a native game, groups of Python envs that can be closed early."""
    native = parse(job.choice.name)[0] is not None
    size = envs if native else GROUP
    made: list[Vector] = []
    for low in range(0, envs, size):
        progress[2] = low
        count = min(size, envs - low)
        made.append(make_vector(job.choice, count, seed=job.seed, first=first + low, progress=progress[:2]))
    return made


class BufferBlock:
    """Some steps of all rows, one array per column; `obs`, `mask` and `active` have one step more."""

    def __init__(self, spec: EnvSpec, steps: int, rows: int, final_obs: Array) -> None:
        action = spec.action
        self.obs = np.zeros((steps + 1, rows, spec.obs.width), spec.obs.dtype)
        self.mask = np.ones((steps + 1, rows, action.options), np.uint8)
        self.active = np.ones((steps + 1, rows), np.uint8)
        self.action = np.zeros((steps, rows, action.parts), action.dtype)
        self.reward = np.zeros((steps, rows), np.float32)
        self.terms = np.zeros((steps, rows, len(spec.terms)), np.float32)
        self._terminated = np.zeros((steps, rows), np.uint8)
        self._truncated = np.zeros((steps, rows), np.uint8)
        self._outcome = np.zeros((steps, rows), np.int8)
        self._behaviour = np.zeros((rows, len(spec.behaviours)), np.float32)
        self._final_obs = final_obs
        self.first = self._rows(0, 0)
        """Where a reset writes."""
        self.steps = [self._rows(t, t + 1) for t in range(steps)]
        """Where each step writes."""
        arrays = (self.obs, self.mask, self.active, self.action, self.reward, self.terms)
        self.bytes = sum(array.nbytes for array in arrays)

    def _rows(self, step: int, after: int) -> Rows:
        """The results of a step and the observations after it, as views."""
        return Rows(
            obs=self.obs[after],
            reward=self.reward[step],
            terminated=self._terminated[step],
            truncated=self._truncated[step],
            outcome=self._outcome[step],
            final_obs=self._final_obs,
            active=self.active[after],
            mask=self.mask[after],
            terms=self.terms[step],
            behaviour=self._behaviour,
        )


class EpisodeBuffer:
    """The steps of all rows since the oldest running episode began, in blocks that are reused."""

    def __init__(self, spec: EnvSpec, rows: int) -> None:
        self.spec, self.rows = spec, rows
        self.final_obs = np.zeros((rows, spec.obs.width), spec.obs.dtype)
        self._length = int(np.clip(BLOCK_BYTES // max(1, self.final_obs.nbytes), 8, BLOCK_STEPS))
        self._spare: list[BufferBlock] = []
        self._blocks = deque([self._block()])
        self._first = 0
        self._at = 0
        self.step = 0
        """The number of the next step."""

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
        """The observations and masks to act on, where the actions go, and where the step writes its results."""
        block, at = self._blocks[-1], self._at
        return block.obs[at], block.mask[at], block.action[at], block.steps[at]

    def advance(self) -> bool:
        """Move to the next step; return whether a new block was needed."""
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

    def release(self, before: int) -> None:
        """Free the blocks whose steps are all before a step number."""
        while self._first + self._length <= before and len(self._blocks) > 1:
            self._spare.append(self._blocks.popleft())
            self._first += self._length

    def episode(self, row: int, start: int) -> dict[str, Array]:
        """The columns of a row's episode that began at step `start` and has just ended; empty if the row never acted.

        A step in which the row was inactive is not a step of its episode. Its reward is added to the last step in
        which the row acted.
        """
        last = self.final_obs[row][None]
        columns = {name: self._column(name, row, start) for name in ("obs", "action", "reward", "mask", "terms")}
        acted = np.flatnonzero(self._column("active", row, start))
        if len(acted) < self.step - start:
            sums = {name: np.add.reduceat(columns[name], acted, axis=0) for name in ("reward", "terms") if len(acted)}
            columns = {name: array[acted] for name, array in columns.items()} | sums
        terms = columns.pop("terms")
        columns |= {f"terms/{name}": terms[:, k] for k, name in enumerate(self.spec.terms)}
        columns["obs"] = np.concatenate([columns["obs"], last])
        return columns if len(acted) else {}

    def _column(self, name: str, row: int, start: int) -> Array:
        """A row's values from step `start` on."""
        parts = []
        for number, block in enumerate(self._blocks):
            low = self._first + number * self._length
            parts.append(getattr(block, name)[max(0, start - low) : min(self._length, max(0, self.step - low)), row])
        return np.concatenate(parts)

    def _block(self) -> BufferBlock:
        if not self._spare:
            return BufferBlock(self.spec, self._length, self.rows, self.final_obs)
        block = self._spare.pop()
        block.terms[:] = 0
        return block


@dataclass(frozen=True)
class VectorSlice:
    """One of a recorder's vectors, with the range of its envs and rows among all."""

    vector: Vector
    envs: slice
    rows: slice
    whole: bool

    def of(self, rows: Rows) -> Rows:
        """The part of the rows that belongs to this vector."""
        if self.whole:
            return rows
        return Rows(*[getattr(rows, name)[self.rows] for name in ROWS])


class Recorder:
    """Plays the games of envs [first, first + n) of a job and appends the episode of every recorded row to a shard.

    `recorded` [rows] bool marks the rows of the agent; all other rows are the opponent's. By default the agent plays
    one side of each env, alternating, or all rows if there is no opponent.
    """

    def __init__(
        self,
        job: RecordJob,
        vectors: Sequence[Vector],
        agent: Agent,
        opponent: Agent | None,
        shard: Shard,
        *,
        first: int = 0,
        recorded: Array | None = None,
        progress: Array | None = None,
        limit_bytes: int | None = None,
        expert: Agent | None = None,
    ) -> None:
        self.spec = spec = vectors[0].spec
        self.shard = shard
        self.games = self.dropped = 0
        self.seconds = np.zeros(3, np.float64)
        """Time in the envs, in the agents and in writing."""
        self._faults: dict[str, list[int]] = {}
        self._job, self._first, self._agents = job, first, spec.agents
        self._progress = np.zeros(3, np.int64) if progress is None else progress
        self._limit_bytes = limit_bytes or memory_bytes() // 2
        self._vectors = _slices(vectors)
        envs = sum(vector.envs for vector in vectors)
        rows = envs * spec.agents
        if recorded is None:
            recorded = learning_rows(spec.teams, envs, opponent is not None, first)
        streams = make_streams(job.seed, "agent", first * spec.agents, rows)
        if opponent is not None:
            others = make_streams(job.seed, "opponent", first * spec.agents, rows)
            streams = np.where(recorded[:, None], streams, others)
        players = [agent] if opponent is None else [agent, opponent]
        self._players = _assigned(spec, recorded, players, streams, first)
        self._expert: AssignedAgents | None = None
        if expert is not None:
            streams = make_streams(job.seed, "expert", first * spec.agents, rows)
            self._expert = _assigned(spec, recorded, [expert], streams, first)
        numbers = first + np.arange(envs)
        self._shares = np.repeat((job.games - numbers + job.envs - 1) // job.envs, spec.agents) * recorded
        """Games to record in each row; `_left` of them have not ended."""
        self._left = self._shares.copy()
        native = parse(job.choice.name)[0] is not None
        self._seeds = [job.seed] * envs if native else env_seeds(job.seed, first, envs)
        self._buffer = EpisodeBuffer(spec, rows)
        self._started = np.zeros(rows, np.int64)
        self._starts: dict[str, Array] = {}

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Play until all games are recorded or `stopped` returns True; unfinished games are then left out."""
        for part in self._vectors:
            self._progress[2] = part.envs.start
            part.vector.reset(part.of(self._buffer.first))
        self._reset_agents(np.ones(len(self._left), bool))
        self._store_starts(np.arange(len(self._left)))
        while self._left.any() and not stopped():
            self._step()

    def fault_messages(self) -> list[str]:
        """One line for each kind of fault for which episodes were dropped."""
        return [
            f"{what} was not finite in {count} episode{'s' * (count > 1)}, first in env {env} at step {step} of game "
            f"{game}: left out."
            for what, (count, env, step, game) in self._faults.items()
        ]

    def close(self) -> None:
        """Close the envs."""
        for part in self._vectors:
            part.vector.close()
        self._vectors = []

    def _reset_agents(self, started: Array) -> None:
        self._players.reset(started)
        if self._expert is not None:
            self._expert.reset(started)

    def _step(self) -> None:
        began = perf_counter()
        obs, mask, action, rows = self._buffer.now
        self._players.act(obs, mask, action, check=False)
        acted = perf_counter()
        self._progress[0] += 1
        for part in self._vectors:
            self._progress[2] = part.envs.start
            part.vector.step(action[part.rows], part.of(rows))
        stepped = perf_counter()
        if self._expert is not None:
            self._expert.act(obs, mask, action, check=False)
        if self._buffer.advance():
            self._check_memory()
        ended = rows.terminated | rows.truncated
        if ended.any():
            self._end(rows, ended)
        self.seconds += stepped - acted, acted - began, perf_counter() - stepped

    def _end(self, rows: Rows, ended: Array) -> None:
        """Write the episodes that ended and start the next ones."""
        over = np.flatnonzero(ended)
        for row in over[self._left[over] > 0].tolist():
            self._write(row, rows)
            self._left[row] -= 1
        self._started[over] = self._buffer.step
        self._reset_agents(ended > 0)
        played = np.where(self._shares, self._shares - self._left, np.iinfo(np.int64).max)
        played = played.reshape(-1, self._agents).min(axis=1)
        self.games = int(played[played < np.iinfo(np.int64).max].sum())
        running = self._left > 0
        self._close_finished(running)
        if running.any():
            self._store_starts(over)
            self._buffer.release(int(self._started[running].min()))

    def _close_finished(self, running: Array) -> None:
        """Close the vectors whose games are all recorded."""
        for part in self._vectors:
            if not running[part.rows].any():
                part.vector.close()
        self._vectors = [part for part in self._vectors if running[part.rows].any()]

    def _write(self, row: int, rows: Rows) -> None:
        env, agent = divmod(row, self._agents)
        game = self._first + env + int(self._shares[row] - self._left[row]) * self._job.envs
        columns = self._buffer.episode(row, int(self._started[row]))
        if not columns:  # an absent agent
            return
        if self._faulty(columns, env, game):
            self.dropped += 1
            return
        starts = {f"start/{name}": array[env][None] for name, array in self._starts.items()}
        self.shard.add(
            columns | starts,
            game=game,
            env=self._first + env,
            seed=self._seeds[env],
            agent=agent,
            team=self.spec.teams[agent],
            outcome=int(rows.outcome[row]),
            ended=TERMINATED if rows.terminated[row] else TRUNCATED,
        )

    def _faulty(self, columns: dict[str, Array], env: int, game: int) -> bool:
        """Whether an episode has a number that is not finite; the first of each kind is stored."""
        numbers = columns | {"obs": self.spec.obs.vectors(columns["obs"])}
        checked = {"The observation": "obs", "The action": "action"}
        checked |= {f"Reward term `{name}`": f"terms/{name}" for name in self.spec.terms} | {"The reward": "reward"}
        for what, name in checked.items():
            finite = np.isfinite(numbers[name])
            if not finite.all():
                step = int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
                self._faults.setdefault(what, [0, self._first + env, step, game])[0] += 1
                return True
        return False

    def _store_starts(self, rows: Array) -> None:
        """Store the states in which the episodes of these rows start, if the env's snapshots are exact."""
        if not self.spec.exact:
            return
        envs = np.unique(rows // self._agents)
        for part in self._vectors:
            state = part.vector.snapshot()
            if not self._starts:
                self._starts = {
                    name: np.zeros((len(self._left) // self._agents, *array.shape[1:]), array.dtype)
                    for name, array in state.items()
                }
            own = envs[(envs >= part.envs.start) & (envs < part.envs.stop)]
            for name, array in state.items():
                self._starts[name][own] = array[own - part.envs.start]

    def _check_memory(self) -> None:
        if self._buffer.bytes <= self._limit_bytes:
            return
        row = int(np.where(self._left, self._started, np.iinfo(np.int64).max).argmin())
        raise MachineError(
            f"The running episodes take {self._buffer.bytes / 2**30:.1f} GiB of memory: that of env "
            f"{self._first + row // self._agents} has {self._buffer.step - self._started[row]:,} steps and has not "
            "ended.",
            "give the env a time limit, or play fewer at a time with --set plan.envs=N",
        )


def _assigned(spec: EnvSpec, recorded: Array, players: Sequence[Agent], streams: Array, first: int) -> AssignedAgents:
    """Assign the recorded rows to the first player, and the others to the second, if there is one."""
    assignments = Assignments(spec, len(recorded) // spec.agents)
    assignments.first = first
    assignments.player.reshape(-1)[:] = np.where(recorded, 0, 1 if len(players) > 1 else IDLE)
    assignments.update()
    return AssignedAgents(assignments, Players.of(players), streams)


def _slices(vectors: Sequence[Vector]) -> list[VectorSlice]:
    slices, low = [], 0
    for vector in vectors:
        high = low + vector.envs
        agents = vector.spec.agents
        slices.append(VectorSlice(vector, slice(low, high), slice(low * agents, high * agents), len(vectors) == 1))
        low = high
    return slices


def resimulate(demos: Demos, episodes: Sequence[int], choice: EnvChoice | None = None) -> list[dict[str, Array]]:
    """Play a recorded game again, from its start state and with the recorded actions of all its agents.

    `episodes` are the numbers of the game's episodes, one for each agent. Returns their columns as the env gives them
    now. The first observation and mask are the recorded ones, since an env shows a restored state only after a step.
    `choice` is needed for what a recording does not store: modules to import, and your own reward terms.
    """
    shard = _whole_game(demos, episodes)
    records = demos.episodes[list(episodes)]
    recorded = [demos.episode(number) for number in episodes]
    choice = choice or rechoose(shard.origin)
    vector = make_vector(choice, 1, seed=int(records["seed"][0]), first=int(records["env"][0]))
    try:
        if Schema.of(demos.schema.env, vector.spec, vector.snapshot()) != demos.schema:
            raise DemoError(
                f"`{choice.name}` is not the same game as the one in {demos.path}.",
                "use the version that recorded it (shard.json names it), or record again",
            )
        buffer = EpisodeBuffer(vector.spec, len(recorded))
        vector.reset(buffer.first)
        vector.restore({n[6:]: v for n, v in recorded[0].items() if n.startswith("start/")})
        for agent, columns in zip(records["agent"], recorded, strict=True):
            buffer.first.obs[agent] = columns["obs"][0]
            if demos.schema.action.masked:
                buffer.first.mask[agent] = columns["mask"][0]
        actions = {int(a): columns["action"] for a, columns in zip(records["agent"], recorded, strict=True)}
        _step_recorded(vector, buffer, actions)
        return [buffer.episode(int(agent), 0) for agent in records["agent"]]
    finally:
        vector.close()


def _step_recorded(vector: Vector, buffer: EpisodeBuffer, actions: dict[int, Array]) -> None:
    """Step an env with recorded actions until they are used up or its game ends."""
    used, active = dict.fromkeys(actions, 0), buffer.first.active
    while any(used[agent] < len(actions[agent]) for agent in actions):
        _, _, action, rows = buffer.now
        for agent, recorded in actions.items():
            action[agent] = recorded[min(used[agent], len(recorded) - 1)]
            used[agent] += int(active[agent])
        vector.step(action, rows)
        buffer.advance()
        active = rows.active
        if (rows.terminated | rows.truncated).any():
            return
    buffer.final_obs[:] = rows.obs


def _whole_game(demos: Demos, episodes: Sequence[int]) -> Any:
    """The shard of a game whose agents are all among `episodes`; an error names what is missing."""
    records = demos.episodes[list(episodes)]
    chosen = demos.chosen[list(episodes)]
    games = {(int(shard), int(game)) for shard, game in zip(chosen[:, 0], records["game"], strict=True)}
    if len(games) != 1:
        raise DemoError(f"These {len(episodes)} episodes are of {len(games)} games.", "name the episodes of one game")
    ((place, game),) = games
    shard = demos.shards[place]
    if not any(column.name.startswith("start/") for column in demos.schema.columns):
        raise DemoError(
            f"`{demos.schema.env}` has no exact state, so its games cannot be played again.",
            "built-in games can: see `slipstream envs`",
        )
    if sorted(records["agent"].tolist()) != list(range(demos.schema.agents)):
        raise DemoError(
            f"Game {game} of {shard.name} has {demos.schema.agents} agents, but {len(episodes)} episodes were given; "
            "playing it again needs the actions of all agents.",
            "name the episodes of all agents; if the opponent was not recorded, record again without --opponent",
        )
    return shard


def rechoose(origin: dict[str, Any]) -> EnvChoice:
    """The env in which a shard was recorded, with its settings."""
    try:
        stored = origin["settings"]
        settings = EnvSettings(**stored["env"]), RewardSettings(**stored["rewards"])
        return EnvChoice(origin["env"], *settings, gamma=stored.get("gamma", EnvChoice.gamma))
    except (KeyError, TypeError, ValueError) as error:
        raise DemoError(
            f"The shard does not name the env in which it was recorded: {error!r}.", "pass choice=EnvChoice(...)"
        ) from error
