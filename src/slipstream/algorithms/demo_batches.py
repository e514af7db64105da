"""Demos as lessons: windows of whole episodes in memory, as batches to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from queue import Queue
from threading import Event, Semaphore, Thread
from time import perf_counter

import numpy as np

from slipstream.algorithms.engine import Batch
from slipstream.algorithms.running_stats import RunningMeanStd, sum_returns
from slipstream.contracts import Array
from slipstream.demos.format import Column
from slipstream.demos.reader import Demos
from slipstream.errors import DemoError
from slipstream.policies.design import Design, PolicyActor
from slipstream.system.numba_compile import Number, compiled_fused

EDGE = 0.999
"""A squashed action at its bound would be infinitely far out before it was bent; it is taken as this."""
MIB = 2**20


@compiled_fused
def discount(reward: Array, ends: Array, gamma: Number, out: Array) -> None:
    """Write the discounted return of every step; episodes end before the steps in `ends`."""
    start = 0
    for end in ends:
        total = np.float32(0)
        for t in range(end - 1, start - 1, -1):
            total = reward[t] + np.float32(gamma) * total
            out[t] = total
        start = end


@dataclass
class DemoStatistics:
    """What demos say about the scale of observations and returns, as a learner keeps it."""

    obs: RunningMeanStd
    returns: RunningMeanStd

    def arrays(self) -> dict[str, Array]:
        """The state by name, as PPO names it."""
        return self.obs.arrays("obs") | self.returns.arrays("return")


def measure(demos: Demos, gamma: float) -> DemoStatistics:
    """Go through all episodes once."""
    spec = demos.schema.obs
    found = DemoStatistics(RunningMeanStd(spec.floats), RunningMeanStd(1))
    sums = np.zeros(3, np.float64)
    for number in range(len(demos)):
        episode = demos.episode(number, ("obs", "reward"))
        reward = np.array(episode["reward"], np.float32)[:, None]
        everyone, nobody = np.ones(reward.shape, np.uint8), np.zeros(reward.shape, np.uint8)
        if spec.floats:
            found.obs.see(np.array(spec.vectors(episode["obs"]))[:, None], everyone)
        own = np.zeros((1, 3), np.float64)
        sum_returns(reward, nobody, nobody, everyone, gamma, np.zeros(1, np.float64), own)
        sums += own[0]
    count = max(1.0, sums[0])
    mean = sums[1:2] / count
    found.returns.merge(sums[0], mean, np.maximum(sums[2:3] / count - mean * mean, 0.0))
    return found


def policy_actions(design: Design, given: Array) -> Array:
    """Recorded actions as the policy's own distribution is over: before they are bent and stretched."""
    if design.action.kind != "continuous":
        return given.astype(np.int32, copy=False)
    unit = design.action.to_unit(given).astype(np.float32)
    if design.squashed:
        return np.arctanh(np.clip(unit, -EDGE, EDGE))
    bounded = np.isfinite(design.action.low) & np.isfinite(design.action.high)
    return np.where(bounded, np.clip(unit, -1, 1), unit)


@dataclass(frozen=True)
class Window:
    """Some episodes as a batch."""

    batch: Batch
    ordinal: Array
    """Which sequence of its episode each is, those of one episode behind one another; empty without memory."""


class DemoBatches:
    """Some demos, cut into windows that fit in memory, and each window made a batch."""

    def __init__(self, demos: Demos, design: Design, scale: float, gamma: float, window_mib: int) -> None:
        if not len(demos):
            raise DemoError(f"There is no episode to learn from in {demos.path}.", "record some more")
        self.demos = demos
        self.design = design
        self.seconds = {"read": 0.0, "remember": 0.0}
        """Time spent on reading, and on running the memory along."""
        self._scale, self._gamma = scale, gamma
        steps = demos.episodes["steps"]
        column: Column = demos.schema.column("obs")
        self._most = max(int(steps.max()), window_mib * MIB // max(1, column.bytes))
        self._kept: Window | None = None

    @property
    def whole(self) -> bool:
        """Whether one window holds everything."""
        return self.demos.steps <= self._most

    def windows(self, random: np.random.Generator | None) -> list[Array]:
        """The episodes of each window; shuffled, if there is chance, so that windows differ from epoch to epoch."""
        order = np.arange(len(self.demos)) if random is None else random.permutation(len(self.demos))
        if self.whole:
            return [np.arange(len(self.demos))]
        filled = np.cumsum(self.demos.episodes["steps"][order]) - self.demos.episodes["steps"][order]
        return np.split(order, np.flatnonzero(np.diff(filled // self._most)) + 1)

    def batches(self, random: np.random.Generator | None, mean: Array, scale: Array, ahead: bool) -> Iterator[Window]:
        """The windows of an epoch as batches; `ahead`: the next is read while this one is learned from."""
        windows = self.windows(random)
        if self.whole:
            self._kept = self._kept or self._read(windows[0], mean, scale)
            yield self._kept
            return
        if not ahead:
            for episodes in windows:
                yield self._read(episodes, mean, scale)
            return
        queue: Queue[Window | BaseException | None] = Queue()
        room, left = Semaphore(1), Event()  # one window is read while one is in use, and never a third

        def fetch() -> None:
            try:
                for episodes in windows:
                    room.acquire()
                    if left.is_set():
                        return
                    queue.put(self._read(episodes, mean, scale))
                queue.put(None)
            except BaseException as error:
                queue.put(error)

        Thread(target=fetch, daemon=True).start()
        try:
            while (window := queue.get()) is not None:
                if isinstance(window, BaseException):
                    raise window
                room.release()
                yield window
                del window
        finally:
            left.set()
            room.release()

    def _read(self, episodes: Array, mean: Array, scale: Array) -> Window:
        """Bring the episodes of a window in; with memory, as sequences of `policy.sequence` steps side by side."""
        began = perf_counter()
        part, design = self.demos.pick(episodes), self.design
        names = ["obs", "action", "reward", *(["mask"] if design.action.masked else [])]
        columns = part.load(names)
        value_target = np.zeros(part.steps, np.float32)
        discount(columns["reward"], part.offsets[1:], self._gamma, value_target)
        columns["value_target"] = value_target * np.float32(self._scale)
        weight, rows, ordinal = np.ones(part.steps, np.float32), part.steps, np.zeros(0, np.int64)
        if design.state_size:
            index, weight, ordinal = sequence_index(part.offsets, design.sequence)
            columns = {name: array[index] for name, array in columns.items()}
            rows = len(ordinal)
        batch = plain_batch(design, columns, mean, scale, rows, weight)
        self.seconds["read"] += perf_counter() - began
        return Window(batch, ordinal)

    def remember(self, window: Window, acting: PolicyActor) -> None:
        """Run the memory of this moment along all episodes and keep what it holds before every sequence."""
        began, batch = perf_counter(), window.batch
        states, told = np.zeros_like(batch.state), np.zeros((batch.rows, self.design.outputs), np.float32)
        obs = batch.obs.reshape(batch.sequence, batch.rows, -1)
        for k in range(int(window.ordinal.max()) + 1):
            rows = np.flatnonzero(window.ordinal == k)
            if k:
                states[rows] = states[rows - 1]
            batch.state[rows] = states[rows]
            for t in range(batch.sequence):
                acting.outputs(rows, obs[t], states, told)
        self.seconds["remember"] += perf_counter() - began


def plain_batch(
    design: Design, columns: Mapping[str, Array], mean: Array, scale: Array, rows: int, weight: Array | None = None
) -> Batch:
    """Recorded samples as a batch to imitate: all count alike, and no memory has been run along yet."""
    samples = len(columns["obs"])
    zeros, ones = np.zeros(samples, np.float32), np.ones(samples, np.float32)
    return Batch(
        obs=columns["obs"], mean=mean, scale=scale, mask=columns.get("mask", np.zeros((samples, 0), np.uint8)),
        action=policy_actions(design, columns["action"]), log_prob=zeros, value=zeros, advantage=ones,
        value_target=columns.get("value_target", zeros), weight=ones if weight is None else weight, episode_start=np.zeros(samples, np.uint8),
        state=np.zeros((samples // design.sequence, design.state_size), np.float32),
        reference=np.zeros((samples, 0), np.float32), partner=np.zeros(0, np.int64), rows=rows,
        sequence=design.sequence,
    )  # fmt: skip


def sequence_index(offsets: Array, length: int) -> tuple[Array, Array, Array]:
    """Where the steps of all sequences stand [length * sequences], time first; 1 for each that is there; ordinals."""
    firsts = [np.arange(low, high, length) for low, high in pairwise(offsets)]
    ends = np.concatenate([np.full(len(some), high) for some, high in zip(firsts, offsets[1:], strict=True)])
    index = np.concatenate(firsts)[None, :] + np.arange(length)[:, None]
    there = index < ends
    ordinal = np.concatenate([np.arange(len(some)) for some in firsts])
    return np.where(there, index, ends - 1).reshape(-1), there.reshape(-1).astype(np.float32), ordinal
