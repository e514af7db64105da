"""The replay buffer: a ring of transitions, the samples drawn from it, and recorded ones beside it.

All rows write into one ring in the order in which they act, so it holds exactly as many steps as it is told to, whoever
acts how often. A transition knows the place of its row's next one, which is how rewards of several steps are added up.
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
OUTSIDE = 1e-3
"""How far, as a share of their range, recorded actions may lie outside of the env's bounds."""


class Ring(NamedTuple):
    """Transitions by place; places behind the last one written hold nothing."""

    obs: Array  # [places, obs] float32
    action: Array  # [places, parts] float32: in [-1, 1], or the number of a choice
    reward: Array  # [places] float32
    next_obs: Array  # [places, obs]
    ended: Array  # [places] uint8: 0, TERMINATED or TRUNCATED
    link: Array  # [places] int32: where the same episode goes on, -1 if it does not yet
    mask: Array  # [places, options] uint8, or [places, 0]
    next_mask: Array  # [places, options], all 1 where the episode ended


class Sample(NamedTuple):
    """The batch of one gradient step, and all chance in it."""

    obs: Array  # [batch, obs]
    action: Array  # [batch, parts]
    reward: Array  # [batch]: the discounted rewards of up to n steps
    next_obs: Array  # [batch, obs]: what came after the last of them
    discount: Array  # [batch]: what the value of `next_obs` counts; 0 after a termination
    mask: Array  # [batch, options]
    next_mask: Array  # [batch, options]
    noise: Array  # [2, batch, parts]: standard normal, for the actions in `obs` and in `next_obs`
    places: Array  # [2, batch] int64: where in its ring a row starts, and where the last of its steps stands


@compiled_fused
def pick(streams: Array, row: int, count: int) -> Number:
    """Draw a number below `count` (at most 2**31) and advance the row's counter."""
    counter = streams[row, 1]
    streams[row, 1] = counter + 1
    high = (counter >> np.int64(32)) & MASK32
    bits = mix(mix(streams[row, 0] ^ (counter & MASK32)) ^ high ^ np.int64(0x3C6EF372))
    return (bits * count) >> np.int64(32)


@compiled_fused
def pick_some(streams: Array, row: int, picked: Array, count: int) -> None:
    """Fill `picked` with different numbers below `count`; all of them, in order, if there are no more."""
    for k in range(picked.size):
        picked[k] = k
    if picked.size == count:
        return
    for k in range(picked.size):
        again = True
        while again:
            picked[k] = pick(streams, row, count)
            again = False
            for j in range(k):
                again = again or picked[j] == picked[k]


@compiled_fused
def same(one: Array, other: Array) -> bool:
    """Whether two rows hold the same numbers."""
    equal = True
    for k in range(one.size):
        equal = equal and one[k] == other[k]
    return equal


@compiled_fused
def close(ring: Ring, place: int, reward: Number, terminated: int, truncated: int, following: Array) -> None:
    """An inactive step belongs to the act before it: its reward counts there, and its end is that act's end.

    Where it truncates, the act's next observation stays the one before: the step may be there because its numbers were
    not finite.
    """
    ring.reward[place] += reward
    if terminated:
        ring.ended[place] = TERMINATED
    elif truncated:
        ring.ended[place] = TRUNCATED
    else:
        copy_row(following, ring.next_obs[place])


@compiled_fused
def add_steps(
    ring: Ring, last: Array, total: int, obs: Array, action: Array, reward: Array, terminated: Array, truncated: Array,
    active: Array, mask: Array, final_obs: Array, bend: bool,
) -> int:  # fmt: skip
    """Write the transitions of a rollout behind those there are; return the new total.

    `last` [rows] is the number of each row's newest transition, counted from the run's start; number n stands in place
    n % places. `bend` says that actions are continuous and still have to be squashed.
    """
    places = ring.reward.size
    for t in range(reward.shape[0]):
        for row in range(reward.shape[1]):
            before = last[row] % places if last[row] >= max(0, total - places) else -1
            goes_on = before >= 0 and ring.ended[before] == 0
            if not active[t, row]:
                if goes_on:
                    close(ring, before, reward[t, row], terminated[t, row], truncated[t, row], obs[t + 1, row])
                continue
            place = total % places
            if goes_on and same(ring.next_obs[before], obs[t, row]):
                ring.link[before] = place
            elif goes_on:
                ring.ended[before] = TRUNCATED
            ended = TERMINATED if terminated[t, row] else TRUNCATED if truncated[t, row] else 0
            copy_row(obs[t, row], ring.obs[place])
            copy_row(final_obs[t, row] if ended else obs[t + 1, row], ring.next_obs[place])
            ring.reward[place] = reward[t, row]
            ring.ended[place] = ended
            ring.link[place] = -1
            for k in range(action.shape[2]):
                ring.action[place, k] = hyperbolic_tangent(action[t, row, k]) if bend else action[t, row, k]
            for k in range(mask.shape[2]):
                ring.mask[place, k] = mask[t, row, k]
                ring.next_mask[place, k] = 1 if ended else mask[t + 1, row, k]
            last[row] = total
            total += 1
    return total


@compiled_fused
def copy_rows(table: Array, places: Array, low: int, high: int, into: Array) -> None:
    """Copy the rows of a table at some places."""
    for i in range(low, high):
        for k in range(table.shape[1]):
            into[i, k] = table[places[i], k]


@compiled_fused
def take(
    ring: Ring, filled: int, n_step: int, gamma: Number, streams: Array, low: int, high: int, sample: Sample
) -> None:
    """Draw rows [low, high) of a sample from a ring, each stretched over up to `n_step` steps of its episode.

    Column by column, so that the processor can wait for many places in memory at once.
    """
    places, ends = sample.places[0], sample.places[1]
    for i in range(low, high):
        places[i] = pick(streams, i, filled)
    for i in range(low, high):
        place, discount = places[i], np.float32(gamma)
        total = ring.reward[place]
        for _ in range(n_step - 1):
            if ring.ended[place] or ring.link[place] < 0:
                break
            place = ring.link[place]
            total += discount * ring.reward[place]
            discount *= np.float32(gamma)
        ends[i] = place
        sample.reward[i] = total
        sample.discount[i] = ZERO if ring.ended[place] == TERMINATED else discount
    copy_rows(ring.obs, places, low, high, sample.obs)
    copy_rows(ring.action, places, low, high, sample.action)
    copy_rows(ring.mask, places, low, high, sample.mask)
    copy_rows(ring.next_obs, ends, low, high, sample.next_obs)
    copy_rows(ring.next_mask, ends, low, high, sample.next_mask)


@compiled_fused
def draw(
    ring: Ring, filled: int, demos: Ring, recorded: int, demo_count: int, n_step: int, gamma: Number, streams: Array,
    low: int, high: int, sample: Sample,
) -> None:  # fmt: skip
    """Draw rows [low, high) of a sample, each from its own stream; the first `demo_count` rows come from the demos."""
    middle = min(max(low, demo_count), high)
    take(demos, recorded, n_step, gamma, streams, low, middle, sample)
    take(ring, filled, n_step, gamma, streams, middle, high, sample)
    for i in range(low, high):
        for k in range(sample.noise.shape[2]):
            radius = np.float32(math.sqrt(-TWO * np.float32(math.log(uniform(streams, i)))))
            angle = TWO_PI * uniform(streams, i)
            sample.noise[0, i, k] = radius * np.float32(math.cos(angle))
            sample.noise[1, i, k] = radius * np.float32(math.sin(angle))


class ReplayBuffer:
    """A ring with its cursor."""

    def __init__(self, obs: int, action: ActionSpec, capacity: int, rows: int) -> None:
        options = action.options
        self.ring = Ring(
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
        """Transitions ever added."""
        self.continuous = action.kind == "continuous"
        self._last = np.full(rows, -1, np.int64)

    @property
    def filled(self) -> int:
        """Transitions that it holds."""
        return min(self.total, self.capacity)

    def add(self, rollout: Rollout) -> int:
        """Copy a rollout's transitions in, over the oldest; return how many there were."""
        before = self.total
        self.total = add_steps(
            self.ring, self._last, before, rollout.obs, rollout.action, rollout.reward, rollout.terminated,
            rollout.truncated, rollout.active, rollout.mask, rollout.final_obs, self.continuous,
        )  # fmt: skip
        return self.total - before

    def snapshot(self) -> dict[str, Array]:
        """Copies of the filled part and of the cursor, by name."""
        filled = {
            f"replay/{name}": array[: self.filled].copy() for name, array in self.ring._asdict().items() if array.size
        }
        return filled | {"replay/cursor": np.array([self.total, self.capacity]), "replay/last": self._last.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        total, capacity = arrays["replay/cursor"].tolist()
        if capacity != self.capacity:
            raise CheckpointError(
                f"The checkpoint's replay buffer has {capacity:,} places, `sac.buffer_size` is {self.capacity:,}.",
                f"go on with sac.buffer_size={capacity}",
            )
        self.total = total
        for name, array in self.ring._asdict().items():
            if array.size:
                array[: self.filled] = arrays[f"replay/{name}"]
        if arrays["replay/last"].shape == self._last.shape:
            self._last[:] = arrays["replay/last"]


class ReplaySampler:
    """Where batches come from: the buffer, the demos, and the chance that picks among them."""

    def __init__(
        self, replay: ReplayBuffer, demos: ReplayBuffer | None, batch: int, demo_count: int, targets: int, seed: int
    ) -> None:
        ring = replay.ring

        def room(array: Array) -> Array:
            return np.zeros((batch, *array.shape[1:]), array.dtype)

        self.replay = replay
        self.demos = demos or replay
        self.demo_count = demo_count
        noise = (2, batch, ring.action.shape[1] if replay.continuous else 0)
        self.sample = Sample(
            room(ring.obs), room(ring.action), room(ring.reward), room(ring.next_obs), room(ring.reward),
            room(ring.mask), room(ring.next_mask), np.zeros(noise, np.float32), np.zeros((2, batch), np.int64),
        )  # fmt: skip
        self.streams = make_streams(seed, "replay", 0, batch + 1)
        """One for each row of a batch, and one that picks critics."""
        self.picked = np.zeros(targets, np.int64)
        """The target critics of the last batch."""

    def draw(self, critics: int, n_step: int, gamma: float) -> None:
        """Draw a whole batch and its target critics."""
        batch = len(self.sample.reward)
        pick_some(self.streams, batch, self.picked, critics)
        draw(
            self.replay.ring, self.replay.filled, self.demos.ring, self.demos.filled, self.demo_count, n_step, gamma,
            self.streams, 0, batch, self.sample,
        )  # fmt: skip


def step_bytes(obs: int, action: ActionSpec) -> int:
    """Bytes of one transition in a buffer."""
    return 2 * 4 * obs + 4 * action.parts + 2 * action.options + 4 + 1 + 4


def check_budget(obs: int, action: ActionSpec, capacity: int, limit_mib: int) -> None:
    """Refuse a buffer that would take more memory than `sac.buffer_mib`, before it is made."""
    each = step_bytes(obs, action)
    if each * capacity > limit_mib * MIB:
        fits, needed = limit_mib * MIB // each, -(-each * capacity // MIB)
        raise ConfigError(
            f"A replay buffer of `sac.buffer_size` = {capacity:,} steps of {each:,} bytes takes "
            f"{each * capacity / MIB:,.1f} MiB; `sac.buffer_mib` allows {limit_mib:,} MiB.",
            f"use sac.buffer_size={fits} at most, or sac.buffer_mib={needed} if the machine has the memory",
        )


def load_demos(path: str, design: Design) -> ReplayBuffer:
    """A full buffer of recorded transitions: of a demos folder, a .safetensors file, or a run's newest checkpoint.

    A file holds `obs`, `action` (as the env takes it), `reward`, `next_obs` and `terminated`; it may hold `truncated`,
    and needs `mask` and `next_mask` where actions are masked. A row whose `obs` is the `next_obs` before it goes on.
    """
    if (Path(path) / "demos.json").exists():
        arrays = _as_ring(path, _read_folder(path, design), design)
    elif path.endswith(".safetensors"):
        arrays = _as_ring(path, _read_file(path), design)
    else:
        arrays = _read_run(path)
    obs, action = design.obs.floats, design.action
    count = len(arrays["obs"]) if "obs" in arrays and arrays["obs"].ndim else 0
    if not count:
        raise DemoError(f"The demos {path} hold no transition.", "name a file or a run that holds some")
    replay = ReplayBuffer(obs, action, count, 0)
    for name, array in replay.ring._asdict().items():
        if array.size:
            _expect(path, name, arrays, array.shape)
            array[:] = arrays[name]
    replay.total = count
    return replay


def _expect(path: str, name: str, arrays: dict[str, Array], shape: tuple[int, ...]) -> None:
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
        raise DemoError(f"`{name}` of the demos {path} holds numbers that are not finite.", "leave those steps out")


def _read_run(path: str) -> dict[str, Array]:
    arrays = load(find(RunDir(Path(path.removeprefix("run:")))), groups=["learner"]).groups["learner"]
    found = {name[7:]: array for name, array in arrays.items() if name.startswith("replay/")}
    if not found:
        raise DemoError(
            f"The run {path} has no replay buffer: it was not trained with SAC.", "name a run of algorithm=sac"
        )
    return found


def _read_folder(path: str, design: Design) -> dict[str, Array]:
    """The transitions of a demos folder."""
    demos = Demos.open(path)
    if (demos.schema.obs, demos.schema.action) != (design.obs, design.action):
        raise DemoError(f"The demos {path} are of another kind of env.", "record them on the env of this run")
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
    """The arrays of a file."""
    try:
        arrays: dict[str, Any] = safetensors.numpy.load_file(path)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DemoError(
            f"The demos {path} cannot be read: {error}.", "sac.demos names a demos folder, a .safetensors file or a run"
        ) from error
    return arrays


def _as_ring(path: str, arrays: dict[str, Array], design: Design) -> dict[str, Array]:
    """The columns of a ring, made of transitions."""
    action, obs = design.action, design.obs.floats
    count = len(arrays["obs"]) if "obs" in arrays and arrays["obs"].ndim else 0
    shapes = {"obs": (count, obs), "next_obs": (count, obs), "reward": (count,), "terminated": (count,)}
    shapes |= {"action": (count, action.parts)} | ({"truncated": (count,)} if "truncated" in arrays else {})
    if "action" in arrays and arrays["action"].shape == (count,):
        arrays["action"] = arrays["action"][:, None]
    for name, shape in shapes.items():
        _expect(path, name, arrays, shape)
    truncated = arrays.get("truncated", np.zeros(count)) != 0
    ended = np.where(arrays["terminated"] != 0, TERMINATED, np.where(truncated, TRUNCATED, 0))
    follows = np.zeros(count, bool)
    follows[:-1] = (ended[:-1] == 0) & (arrays["next_obs"][:-1] == arrays["obs"][1:]).all(axis=1)
    arrays["ended"], arrays["link"] = ended, np.where(follows, np.arange(1, count + 1), -1)
    arrays["action"] = _policy_action(path, arrays["action"], action)
    return arrays


def _policy_action(path: str, given: Array, action: ActionSpec) -> Array:
    """Recorded actions as the policy gives them: choices as they are, [low, high] onto [-1, 1]."""
    if action.kind != "continuous":
        low, high = np.zeros(1), np.array([action.sizes[0] - 1])
        width = np.ones(1)
    else:
        low, high = np.array(action.low), np.array(action.high)
        bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        width = high - low
    outside = (given < low - OUTSIDE * width) | (given > high + OUTSIDE * width)
    if outside.any():
        raise DemoError(
            f"{int(outside.any(axis=1).sum()):,} of {len(given):,} actions of the demos {path} lie outside of "
            f"{low.tolist()} to {high.tolist()}.",
            "record the actions that the env is given",
        )
    if action.kind != "continuous":
        return given
    return np.clip(action.to_unit(given), -1.0, 1.0)
