"""Training batches from demos: windows of whole episodes that fit in memory."""

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

SQUASH_LIMIT = 0.999
"""The largest absolute squashed action before the inverse of tanh, which is infinite at 1."""
MIB = 2**20


@compiled_fused
def discounted_returns(reward: Array, ends: Array, gamma: Number, out: Array) -> None:
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
    """Mean and variance of the observations and returns of demos, in the form that PPO keeps."""

    obs: RunningMeanStd
    returns: RunningMeanStd

    def arrays(self) -> dict[str, Array]:
        """The statistics as named arrays, with PPO's names."""
        return self.obs.arrays("obs") | self.returns.arrays("return")


def demo_statistics(demos: Demos, gamma: float) -> DemoStatistics:
    """Compute the statistics of all episodes."""
    spec = demos.schema.obs
    statistics = DemoStatistics(RunningMeanStd(spec.floats), RunningMeanStd(1))
    sums = np.zeros(3, np.float64)
    for number in range(len(demos)):
        episode = demos.episode(number, ("obs", "reward"))
        reward = np.array(episode["reward"], np.float32)[:, None]
        active, never = np.ones(reward.shape, np.uint8), np.zeros(reward.shape, np.uint8)
        if spec.floats:
            statistics.obs.update(np.array(spec.vectors(episode["obs"]))[:, None], active)
        own = np.zeros((1, 3), np.float64)
        sum_returns(reward, never, never, active, gamma, np.zeros(1, np.float64), own)
        sums += own[0]
    count = max(1.0, sums[0])
    mean = sums[1:2] / count
    statistics.returns.merge(sums[0], mean, np.maximum(sums[2:3] / count - mean * mean, 0.0))
    return statistics


def policy_actions(design: Design, recorded: Array) -> Array:
    """Convert recorded actions to the space of the policy's distribution: before squashing and scaling."""
    action = design.action
    if not action.continuous_parts:
        return recorded.astype(np.int32, copy=False)
    unit = action.to_unit(recorded).astype(np.float32)
    numbers = unit[..., action.discrete_parts :]
    if design.squashed:
        numbers[:] = np.arctanh(np.clip(numbers, -SQUASH_LIMIT, SQUASH_LIMIT))
    else:
        bounded = np.isfinite(action.low) & np.isfinite(action.high)
        numbers[:] = np.where(bounded, np.clip(numbers, -1, 1), numbers)
    return unit


@dataclass(frozen=True)
class Window:
    """Some episodes as one batch."""

    batch: Batch
    ordinal: Array
    """The number of each sequence within its episode; those of an episode are adjacent. Empty if not recurrent."""


class DemoBatches:
    """Demos split into windows that fit in memory, each of which becomes a batch."""

    def __init__(self, demos: Demos, design: Design, scale: float, gamma: float, window_mib: int) -> None:
        if not len(demos):
            raise DemoError(f"{demos.path} holds no episode to train on.", "record more episodes")
        self.demos = demos
        self.design = design
        self.seconds = {"read": 0.0, "remember": 0.0}
        """Seconds spent reading, and computing recurrent states."""
        self._scale, self._gamma = scale, gamma
        steps = demos.episodes["steps"]
        column: Column = demos.schema.column("obs")
        self._window_steps = max(int(steps.max()), window_mib * MIB // max(1, column.bytes))
        self._only_window: Window | None = None

    @property
    def fits_in_memory(self) -> bool:
        """Whether one window holds all demos."""
        return self.demos.steps <= self._window_steps

    def windows(self, rng: np.random.Generator | None) -> list[Array]:
        """The episodes of each window; with an RNG they are shuffled, so that windows differ between epochs."""
        order = np.arange(len(self.demos)) if rng is None else rng.permutation(len(self.demos))
        if self.fits_in_memory:
            return [np.arange(len(self.demos))]
        filled = np.cumsum(self.demos.episodes["steps"][order]) - self.demos.episodes["steps"][order]
        return np.split(order, np.flatnonzero(np.diff(filled // self._window_steps)) + 1)

    def batches(self, rng: np.random.Generator | None, mean: Array, scale: Array, prefetch: bool) -> Iterator[Window]:
        """The windows of an epoch as batches; with `prefetch` a thread reads the next one during training."""
        windows = self.windows(rng)
        if self.fits_in_memory:
            self._only_window = self._only_window or self._read(windows[0], mean, scale)
            yield self._only_window
            return
        if not prefetch:
            for episodes in windows:
                yield self._read(episodes, mean, scale)
            return
        queue: Queue[Window | BaseException | None] = Queue()
        slots, closed = Semaphore(1), Event()  # at most one window is read while another is in use

        def fetch() -> None:
            try:
                for episodes in windows:
                    slots.acquire()
                    if closed.is_set():
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
                slots.release()
                yield window
                del window
        finally:
            closed.set()
            slots.release()

    def _read(self, episodes: Array, mean: Array, scale: Array) -> Window:
        """Read the episodes of a window; for recurrent policies as sequences of `policy.sequence` steps."""
        began = perf_counter()
        part, design = self.demos.pick(episodes), self.design
        names = ["obs", "action", "reward", *(["mask"] if design.action.masked else [])]
        columns = part.load(names)
        value_target = np.zeros(part.steps, np.float32)
        discounted_returns(columns["reward"], part.offsets[1:], self._gamma, value_target)
        columns["value_target"] = value_target * np.float32(self._scale)
        weight, rows, ordinal = np.ones(part.steps, np.float32), part.steps, np.zeros(0, np.int64)
        if design.state_size:
            index, weight, ordinal = sequence_index(part.offsets, design.sequence)
            columns = {name: array[index] for name, array in columns.items()}
            rows = len(ordinal)
        batch = imitation_batch(design, columns, mean, scale, rows, weight)
        self.seconds["read"] += perf_counter() - began
        return Window(batch, ordinal)

    def compute_states(self, window: Window, actor: PolicyActor) -> None:
        """Run the actor along all episodes and write the recurrent state at the start of every sequence."""
        began, batch = perf_counter(), window.batch
        states, outputs = np.zeros_like(batch.state), np.zeros((batch.rows, self.design.outputs), np.float32)
        obs = batch.obs.reshape(batch.sequence, batch.rows, -1)
        for k in range(int(window.ordinal.max()) + 1):
            rows = np.flatnonzero(window.ordinal == k)
            if k:
                states[rows] = states[rows - 1]
            batch.state[rows] = states[rows]
            for t in range(batch.sequence):
                actor.outputs(rows, obs[t], states, outputs)
        self.seconds["remember"] += perf_counter() - began


def imitation_batch(
    design: Design, columns: Mapping[str, Array], mean: Array, scale: Array, rows: int, weight: Array | None = None
) -> Batch:
    """Recorded samples as a batch for the imitation loss, with equal weights and zero recurrent states."""
    samples = len(columns["obs"])
    zeros, ones = np.zeros(samples, np.float32), np.ones(samples, np.float32)
    return Batch(
        obs=columns["obs"],
        mean=mean,
        scale=scale,
        mask=columns.get("mask", np.zeros((samples, 0), np.uint8)),
        action=policy_actions(design, columns["action"]),
        log_prob=zeros,
        value=zeros,
        advantage=ones,
        value_target=columns.get("value_target", zeros),
        weight=ones if weight is None else weight,
        episode_start=np.zeros(samples, np.uint8),
        state=np.zeros((samples // design.sequence, design.state_size), np.float32),
        reference=np.zeros((samples, 0), np.float32),
        partner=np.zeros(0, np.int64),
        rows=rows,
        sequence=design.sequence,
    )


def sequence_index(offsets: Array, length: int) -> tuple[Array, Array, Array]:
    """Split episodes into sequences of `length` steps.

    Return the step index of every sample [length * sequences], time first, its weight (0 for padding after the end of
    an episode), and the number of each sequence within its episode.
    """
    firsts = [np.arange(low, high, length) for low, high in pairwise(offsets)]
    ends = np.concatenate([np.full(len(first), high) for first, high in zip(firsts, offsets[1:], strict=True)])
    index = np.concatenate(firsts)[None, :] + np.arange(length)[:, None]
    valid = index < ends
    ordinal = np.concatenate([np.arange(len(first)) for first in firsts])
    return np.where(valid, index, ends - 1).reshape(-1), valid.reshape(-1).astype(np.float32), ordinal
