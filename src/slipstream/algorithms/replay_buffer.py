"""The replay buffer: transitions in a ring, minibatches sampled from it, and demonstrations beside it.

All rows write into one ring in the order in which they act, so the buffer holds exactly `sac.buffer_size` transitions,
however often each row acts. Every transition stores the index of the next transition of its row, which n-step returns
follow.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from slipstream.collect.rollout import Rollout
from slipstream.contracts import ActionSpec, Array
from slipstream.demos.format import TERMINATED, TRUNCATED
from slipstream.demos.reader import Demos
from slipstream.errors import CheckpointError, ConfigError, DemoError
from slipstream.policies.design import Design
from slipstream.policies.distributions import TWO_PI
from slipstream.policies.linear_algebra import TWO, ZERO, copy_row, hyperbolic_tangent
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir
from slipstream.system.numba_compile import Number, compiled_fused
from slipstream.system.rng import MASK32, make_streams, mix, uniform

MIB = 2**20
BOUNDS_TOLERANCE = 1e-3
"""How far outside of the env's bounds recorded actions may lie, as a share of the range."""


class Transitions(NamedTuple):
    """The arrays of a replay buffer. The field names are the array names in checkpoints."""

    obs: Array  # [capacity, obs] float32
    action: Array  # [capacity, parts] float32: in [-1, 1], or the index of a discrete action
    reward: Array  # [capacity] float32
    next_obs: Array  # [capacity, obs]
    ended: Array  # [capacity] uint8: 0, TERMINATED or TRUNCATED
    link: Array  # [capacity] int32: index of the next transition of the same episode, -1 if there is none yet
    mask: Array  # [capacity, options] uint8, or [capacity, 0]
    next_mask: Array  # [capacity, options], all 1 where the episode ended


class RolloutColumns(NamedTuple):
    """The arrays of a `Rollout` that transitions are made from."""

    obs: Array  # [T + 1, rows, obs]
    action: Array  # [T, rows, parts]
    reward: Array  # [T, rows]
    terminated: Array  # [T, rows]
    truncated: Array  # [T, rows]
    active: Array  # [T + 1, rows]
    mask: Array  # [T + 1, rows, options]
    final_obs: Array  # [T, rows, obs]


class SamplingState(NamedTuple):
    """Sizes and RNG streams that minibatches are sampled with."""

    buffer_size: int
    """Transitions in the replay buffer."""
    demo_size: int
    """Transitions in the demos."""
    demo_count: int
    """Rows of each minibatch that are sampled from the demos."""
    streams: Array  # [batch + 1, 2] int64: one RNG stream per row of a minibatch, and one that picks target critics


class ReplayBatch(NamedTuple):
    """The minibatch of one gradient step, with its random numbers."""

    obs: Array  # [batch, obs]
    action: Array  # [batch, parts]
    reward: Array  # [batch]: the discounted n-step reward
    next_obs: Array  # [batch, obs]: the observation after the n-th step
    discount: Array  # [batch]: the factor of the value of `next_obs`; 0 after a termination
    mask: Array  # [batch, options]
    next_mask: Array  # [batch, options]
    noise: Array  # [2, batch, parts]: standard normal, for the actions in `obs` and in `next_obs`
    indices: Array  # [2, batch] int64: index of the first and of the last transition of each row
    target_critics: Array  # [target critics] int64: the critics whose minimum is the value target


@compiled_fused
def random_index(streams: Array, row: int, count: int) -> Number:
    """Draw an integer below `count` (at most 2**31) and advance the row's RNG counter."""
    counter = streams[row, 1]
    streams[row, 1] = counter + 1
    high = (counter >> np.int64(32)) & MASK32
    bits = mix(mix(streams[row, 0] ^ (counter & MASK32)) ^ high ^ np.int64(0x3C6EF372))
    return (bits * count) >> np.int64(32)


@compiled_fused
def random_subset(streams: Array, row: int, subset: Array, count: int) -> None:
    """Fill `subset` with distinct integers below `count`; if it holds `count` integers, they are in order."""
    for k in range(subset.size):
        subset[k] = k
    if subset.size == count:
        return
    for k in range(subset.size):
        again = True
        while again:
            subset[k] = random_index(streams, row, count)
            again = False
            for j in range(k):
                again = again or subset[j] == subset[k]


@compiled_fused
def rows_equal(one: Array, other: Array) -> bool:
    """Whether two rows hold the same numbers."""
    equal = True
    for k in range(one.size):
        equal = equal and one[k] == other[k]
    return equal


@compiled_fused
def extend_transition(
    data: Transitions, index: int, reward: Number, terminated: int, truncated: int, next_obs: Array
) -> None:
    """Merge an inactive step into the row's last transition: add the reward, take over the end of the episode.

    If the inactive step truncates the episode, `next_obs` of the transition does not change: the step may be inactive
    because its observation was not finite.
    """
    data.reward[index] += reward
    if terminated:
        data.ended[index] = TERMINATED
    elif truncated:
        data.ended[index] = TRUNCATED
    else:
        copy_row(next_obs, data.next_obs[index])


@compiled_fused
def add_rollout(data: Transitions, last: Array, total: int, rollout: RolloutColumns, squash: bool) -> int:
    """Append the transitions of a rollout, overwriting the oldest; return the new total.

    Transitions are numbered from the start of the run; number n is at index n % capacity. `last` [rows] is the number
    of each row's newest transition. `squash` applies tanh to continuous actions, which rollouts store before tanh.
    """
    capacity = data.reward.size
    for t in range(rollout.reward.shape[0]):
        for row in range(rollout.reward.shape[1]):
            before = last[row] % capacity if last[row] >= max(0, total - capacity) else -1
            continues = before >= 0 and data.ended[before] == 0
            reward, next_obs = rollout.reward[t, row], rollout.obs[t + 1, row]
            terminated, truncated = rollout.terminated[t, row], rollout.truncated[t, row]
            if not rollout.active[t, row]:
                if continues:
                    extend_transition(data, before, reward, terminated, truncated, next_obs)
                continue
            index = total % capacity
            if continues and rows_equal(data.next_obs[before], rollout.obs[t, row]):
                data.link[before] = index
            elif continues:
                data.ended[before] = TRUNCATED
            ended = TERMINATED if terminated else TRUNCATED if truncated else 0
            copy_row(rollout.obs[t, row], data.obs[index])
            copy_row(rollout.final_obs[t, row] if ended else next_obs, data.next_obs[index])
            data.reward[index] = reward
            data.ended[index] = ended
            data.link[index] = -1
            for k in range(rollout.action.shape[2]):
                value = rollout.action[t, row, k]
                data.action[index, k] = hyperbolic_tangent(value) if squash else value
            for k in range(rollout.mask.shape[2]):
                data.mask[index, k] = rollout.mask[t, row, k]
                data.next_mask[index, k] = 1 if ended else rollout.mask[t + 1, row, k]
            last[row] = total
            total += 1
    return total


@compiled_fused
def copy_rows(source: Array, indices: Array, low: int, high: int, into: Array) -> None:
    """Copy rows `indices[low:high]` of `source` to rows [low, high) of `into`."""
    for i in range(low, high):
        for k in range(source.shape[1]):
            into[i, k] = source[indices[i], k]


@compiled_fused
def sample_transitions(
    data: Transitions, size: int, n_step: int, gamma: Number, streams: Array, low: int, high: int, batch: ReplayBatch
) -> None:
    """Sample rows [low, high) of a minibatch uniformly, with returns over up to `n_step` steps of the same episode.

    The copies run column by column, so that the processor can have many memory accesses in flight.
    """
    first, last = batch.indices[0], batch.indices[1]
    for i in range(low, high):
        first[i] = random_index(streams, i, size)
    for i in range(low, high):
        index, discount = first[i], np.float32(gamma)
        total = data.reward[index]
        for _ in range(n_step - 1):
            if data.ended[index] or data.link[index] < 0:
                break
            index = data.link[index]
            total += discount * data.reward[index]
            discount *= np.float32(gamma)
        last[i] = index
        batch.reward[i] = total
        batch.discount[i] = ZERO if data.ended[index] == TERMINATED else discount
    copy_rows(data.obs, first, low, high, batch.obs)
    copy_rows(data.action, first, low, high, batch.action)
    copy_rows(data.mask, first, low, high, batch.mask)
    copy_rows(data.next_obs, last, low, high, batch.next_obs)
    copy_rows(data.next_mask, last, low, high, batch.next_mask)


@compiled_fused
def sample_batch(
    buffer: Transitions,
    demos: Transitions,
    state: SamplingState,
    n_step: int,
    gamma: Number,
    low: int,
    high: int,
    batch: ReplayBatch,
) -> None:
    """Sample rows [low, high) of a minibatch, each from its own RNG stream; demos come first."""
    streams, middle = state.streams, min(max(low, state.demo_count), high)
    sample_transitions(demos, state.demo_size, n_step, gamma, streams, low, middle, batch)
    sample_transitions(buffer, state.buffer_size, n_step, gamma, streams, middle, high, batch)
    for i in range(low, high):
        for k in range(batch.noise.shape[2]):
            radius = np.float32(math.sqrt(-TWO * np.float32(math.log(uniform(streams, i)))))
            angle = TWO_PI * uniform(streams, i)
            batch.noise[0, i, k] = radius * np.float32(math.cos(angle))
            batch.noise[1, i, k] = radius * np.float32(math.sin(angle))


class ReplayBuffer:
    """A ring buffer of transitions."""

    def __init__(self, obs: int, action: ActionSpec, capacity: int, rows: int) -> None:
        options = action.options
        self.data = Transitions(
            obs=np.zeros((capacity, obs), np.float32),
            action=np.zeros((capacity, action.parts), np.float32),
            reward=np.zeros(capacity, np.float32),
            next_obs=np.zeros((capacity, obs), np.float32),
            ended=np.zeros(capacity, np.uint8),
            link=np.full(capacity, -1, np.int32),
            mask=np.zeros((capacity, options), np.uint8),
            next_mask=np.zeros((capacity, options), np.uint8),
        )
        self.capacity = capacity
        self.total = 0
        """Transitions added since the start of the run."""
        self.continuous = action.kind == "continuous"
        self._last = np.full(rows, -1, np.int64)

    @property
    def size(self) -> int:
        """Transitions in the buffer."""
        return min(self.total, self.capacity)

    def add(self, rollout: Rollout) -> int:
        """Append the transitions of a rollout, overwriting the oldest; return how many were added."""
        before = self.total
        columns = RolloutColumns(*(getattr(rollout, name) for name in RolloutColumns._fields))
        self.total = add_rollout(self.data, self._last, before, columns, self.continuous)
        return self.total - before

    def snapshot(self) -> dict[str, Array]:
        """Copy the transitions and the write position, as named arrays."""
        arrays = {
            f"replay/{name}": array[: self.size].copy() for name, array in self.data._asdict().items() if array.size
        }
        return arrays | {"replay/cursor": np.array([self.total, self.capacity]), "replay/last": self._last.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore the arrays that `snapshot` returned."""
        total, capacity = arrays["replay/cursor"].tolist()
        if capacity != self.capacity:
            raise CheckpointError(
                f"The checkpoint's replay buffer holds {capacity:,} transitions; `sac.buffer_size` is "
                f"{self.capacity:,}.",
                f"resume with sac.buffer_size={capacity}",
            )
        self.total = total
        for name, array in self.data._asdict().items():
            if array.size:
                array[: self.size] = arrays[f"replay/{name}"]
        if arrays["replay/last"].shape == self._last.shape:
            self._last[:] = arrays["replay/last"]


class ReplaySampler:
    """Samples minibatches from a replay buffer, and a fixed number of rows of each from demos."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        demos: ReplayBuffer | None,
        batch_size: int,
        demo_count: int,
        target_critics: int,
        seed: int,
    ) -> None:
        data = buffer.data

        def rows_like(array: Array) -> Array:
            return np.zeros((batch_size, *array.shape[1:]), array.dtype)

        self.buffer = buffer
        self.demos = demos or buffer
        self.demo_count = demo_count
        self.batch = ReplayBatch(
            obs=rows_like(data.obs),
            action=rows_like(data.action),
            reward=rows_like(data.reward),
            next_obs=rows_like(data.next_obs),
            discount=rows_like(data.reward),
            mask=rows_like(data.mask),
            next_mask=rows_like(data.next_mask),
            noise=np.zeros((2, batch_size, data.action.shape[1] if buffer.continuous else 0), np.float32),
            indices=np.zeros((2, batch_size), np.int64),
            target_critics=np.zeros(target_critics, np.int64),
        )
        """The last minibatch; `sample` overwrites it."""
        self.streams = make_streams(seed, "replay", 0, batch_size + 1)

    def state(self) -> SamplingState:
        """Current sizes and RNG streams, as the kernels read them."""
        return SamplingState(self.buffer.size, self.demos.size, self.demo_count, self.streams)

    def sample(self, critics: int, n_step: int, gamma: float) -> ReplayBatch:
        """Sample a minibatch and its target critics, out of `critics` of them."""
        rows = len(self.batch.reward)
        random_subset(self.streams, rows, self.batch.target_critics, critics)
        sample_batch(self.buffer.data, self.demos.data, self.state(), n_step, gamma, 0, rows, self.batch)
        return self.batch


def step_bytes(obs: int, action: ActionSpec) -> int:
    """Bytes of one transition in a replay buffer."""
    return 2 * 4 * obs + 4 * action.parts + 2 * action.options + 4 + 1 + 4


def check_budget(obs: int, action: ActionSpec, capacity: int, limit_mib: int) -> None:
    """Raise if a buffer would take more memory than `sac.buffer_mib`; called before it is allocated."""
    each = step_bytes(obs, action)
    if each * capacity > limit_mib * MIB:
        fits, needed = limit_mib * MIB // each, -(-each * capacity // MIB)
        raise ConfigError(
            f"A replay buffer of `sac.buffer_size` = {capacity:,} steps of {each:,} bytes takes "
            f"{each * capacity / MIB:,.1f} MiB; `sac.buffer_mib` allows {limit_mib:,} MiB.",
            f"use sac.buffer_size={fits} at most, or sac.buffer_mib={needed} if the machine has the memory",
        )


def load_demos(path: str, design: Design) -> ReplayBuffer:
    """Load recorded transitions from a demos folder, a .safetensors file, or the newest checkpoint of a SAC run.

    A file holds `obs`, `action` (as the env takes it), `reward`, `next_obs` and `terminated`, optionally `truncated`,
    and `mask` and `next_mask` if actions are masked. A row continues an episode if its `obs` equals the `next_obs` of
    the row before.
    """
    if (Path(path) / "demos.json").exists():
        arrays = _to_transitions(path, _read_folder(path, design), design)
    elif path.endswith(".safetensors"):
        arrays = _to_transitions(path, _read_file(path), design)
    else:
        arrays = _read_run(path)
    obs, action = design.obs.floats, design.action
    count = len(arrays["obs"]) if "obs" in arrays and arrays["obs"].ndim else 0
    if not count:
        raise DemoError(f"The demos {path} hold no transitions.", "choose a file or a run with transitions")
    buffer = ReplayBuffer(obs, action, count, 0)
    for name, array in buffer.data._asdict().items():
        if array.size:
            _check_array(path, name, arrays, array.shape)
            array[:] = arrays[name]
    buffer.total = count
    return buffer


def _check_array(path: str, name: str, arrays: dict[str, Array], shape: tuple[int, ...]) -> None:
    if name not in arrays:
        raise DemoError(
            f"The demos {path} lack `{name}`; they hold {', '.join(sorted(arrays))}.", f"record `{name}` too"
        )
    array = arrays[name]
    if array.shape != shape:
        raise DemoError(
            f"`{name}` of the demos {path} should be {shape} but is {array.shape}.",
            "record them on the env of this run",
        )
    if not np.isfinite(array).all():
        raise DemoError(f"`{name}` of the demos {path} contains numbers that are not finite.", "remove those steps")


def _read_run(path: str) -> dict[str, Array]:
    arrays = load(find(RunDir(Path(path.removeprefix("run:")))), groups=["learner"]).groups["learner"]
    found = {name[7:]: array for name, array in arrays.items() if name.startswith("replay/")}
    if not found:
        raise DemoError(
            f"The run {path} has no replay buffer: it was not trained with SAC.", "choose a run of algorithm=sac"
        )
    return found


def _read_folder(path: str, design: Design) -> dict[str, Array]:
    """Read the transitions of a demos folder."""
    demos = Demos.open(path)
    if (demos.schema.obs, demos.schema.action) != (design.obs, design.action):
        raise DemoError(
            f"The demos {path} have other observation or action spaces than this env.",
            "record them on the env of this run",
        )
    every = np.arange(demos.steps)
    masked = ["mask"] if design.action.masked else []
    arrays = demos.load(["obs", "action", "reward", *masked]) | {"next_obs": demos.take("obs", every, ahead=1)}
    if masked:
        arrays["next_mask"] = np.concatenate([arrays["mask"][1:], np.ones_like(arrays["mask"][:1])])
    last, ended = demos.offsets[1:] - 1, demos.episodes["ended"]
    for name, kind in (("terminated", TERMINATED), ("truncated", TRUNCATED)):
        arrays[name] = np.zeros(demos.steps, np.uint8)
        arrays[name][last] = (ended == kind) | ((kind == TRUNCATED) & (ended == 0))
        if masked:
            arrays["next_mask"][last] = 1
    return arrays


def _read_file(path: str) -> dict[str, Array]:
    """Read the arrays of a .safetensors file."""
    try:
        arrays: dict[str, Any] = safetensors.numpy.load_file(path)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DemoError(
            f"The demos {path} cannot be read: {error}.",
            "set sac.demos to a demos folder, a .safetensors file or a run",
        ) from error
    return arrays


def _to_transitions(path: str, arrays: dict[str, Array], design: Design) -> dict[str, Array]:
    """Check the recorded columns and convert them to the arrays of `Transitions`."""
    action, obs = design.action, design.obs.floats
    count = len(arrays["obs"]) if "obs" in arrays and arrays["obs"].ndim else 0
    shapes = {"obs": (count, obs), "next_obs": (count, obs), "reward": (count,), "terminated": (count,)}
    shapes |= {"action": (count, action.parts)} | ({"truncated": (count,)} if "truncated" in arrays else {})
    if "action" in arrays and arrays["action"].shape == (count,):
        arrays["action"] = arrays["action"][:, None]
    for name, shape in shapes.items():
        _check_array(path, name, arrays, shape)
    truncated = arrays.get("truncated", np.zeros(count)) != 0
    ended = np.where(arrays["terminated"] != 0, TERMINATED, np.where(truncated, TRUNCATED, 0))
    continues = np.zeros(count, bool)
    continues[:-1] = (ended[:-1] == 0) & (arrays["next_obs"][:-1] == arrays["obs"][1:]).all(axis=1)
    arrays["ended"], arrays["link"] = ended, np.where(continues, np.arange(1, count + 1), -1)
    arrays["action"] = _policy_action(path, arrays["action"], action)
    return arrays


def _policy_action(path: str, recorded: Array, action: ActionSpec) -> Array:
    """Convert recorded actions to the policy's: discrete unchanged, continuous from [low, high] to [-1, 1]."""
    if action.kind != "continuous":
        low, high = np.zeros(1), np.array([action.sizes[0] - 1])
        width = np.ones(1)
    else:
        low, high = np.array(action.low), np.array(action.high)
        bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        width = high - low
    outside = (recorded < low - BOUNDS_TOLERANCE * width) | (recorded > high + BOUNDS_TOLERANCE * width)
    if outside.any():
        raise DemoError(
            f"{int(outside.any(axis=1).sum()):,} of {len(recorded):,} actions of the demos {path} are outside "
            f"the bounds {low.tolist()} to {high.tolist()}.",
            "record actions as the env takes them",
        )
    if action.kind != "continuous":
        return recorded
    return np.clip(action.to_unit(recorded), -1.0, 1.0)
