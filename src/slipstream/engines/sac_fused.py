"""SAC's gradient steps as one compiled kernel: draw, critics, actor, temperature, target critics.

`oracle.py` says the same in torch; a parity test binds the two. Rows of a batch are shared out over threads, each
with gradients of its own, added up in a fixed order, so that the result depends on the number of threads but never on
chance. What a batch holds does not depend on it either: every row of it draws from a stream of its own.
"""

from __future__ import annotations

import math
import time

import numba
import numpy as np

from slipstream.algorithms.replay_buffer import ReplaySampler, Ring, Sample, draw, pick_some
from slipstream.algorithms.sac_critics import (
    ADAM_EPS,
    FROZEN,
    GAMMA,
    LENGTH,
    LOGP,
    POLICY,
    RATE,
    SUMS,
    TARGET_ENTROPY,
    TAU,
    TEMPERATURE,
    UPDATES,
    Critics,
    Q,
    SACCoefficients,
)
from slipstream.contracts import Array
from slipstream.engines.sac_gradients import (
    Networks,
    Tables,
    Workspace,
    add_actor_gradient,
    add_critic_gradient,
    look_ahead,
    rows_of,
    span,
)
from slipstream.engines.weights_io import strip_prefix
from slipstream.policies.design import Design
from slipstream.policies.linear_algebra import (
    CHUNK,
    ONE,
    ZERO,
    adam,
    add_row,
    product,
    scratch_columns,
    squared_length,
    transpose_rows,
)
from slipstream.policies.parameter_layout import BIAS, COLUMNS, FLIPPED, IN_COLUMNS, INPUTS, OUT, WEIGHT, pad
from slipstream.system.numba_compile import Number, compiled_fused, compiled_threads

CRITICISE, MOVE_CRITICS, ACT, MOVE_ACTOR = range(4)
PHASES = 4
"""The phases of a gradient step; threads wait for each other between them."""
TRIALS = 7


@compiled_fused
def own_rows(table: Array, layer: int, part: int, parts: int, size: int) -> tuple[int, int, int, int]:
    """The inputs of a layer that fall to one of `parts`, and where their weights stand; the last has the biases too."""
    row = table[layer]
    low, high = span(row[INPUTS], 4, part, parts)
    end = table[layer + 1, WEIGHT] if layer + 1 < table.shape[0] else size
    stop = end if part == parts - 1 else row[WEIGHT] + high * row[COLUMNS]
    return low, high, row[WEIGHT] + low * row[COLUMNS], stop


@compiled_fused
def flip_layers(params: Array, table: Array, flipped: Array, part: int, parts: int) -> None:
    """Transpose one part of each weight matrix, for the way back."""
    for layer in range(table.shape[0]):
        row = table[layer]
        if row[FLIPPED] < 0:
            continue
        inputs, columns, width = row[INPUTS], row[COLUMNS], row[IN_COLUMNS]
        matrix = params[row[WEIGHT] : row[BIAS]].reshape(inputs, columns)
        turned = flipped[row[FLIPPED] : row[FLIPPED] + columns * width].reshape(columns, width)
        low, high, _, _ = own_rows(table, layer, part, parts, params.size)
        transpose_rows(matrix, turned, low, high)


@compiled_fused
def flip_critic(nets: Networks, tables: Tables, room: Workspace, obs: int, critic: int, part: int, parts: int) -> None:
    """One part of a critic's transposing: its hidden layers, and what the first one does with the action."""
    params, flipped, width = nets.critics[critic], room.critic_flipped[critic], room.by_action.shape[3]
    start, columns = tables.critic[0, WEIGHT], tables.critic[0, COLUMNS]
    flip_layers(params, tables.critic, flipped, part, parts)
    low, high, _, _ = own_rows(tables.critic, 0, part, parts, params.size)
    turned = flipped[flipped.size - columns * width :].reshape(columns, width)
    for k in range(room.acted.shape[1]):
        if low <= obs + k < high:
            for j in range(columns):
                turned[j, k] = params[start + (obs + k) * columns + j]


@compiled_fused
def clear(room: Workspace, thread: int) -> None:
    """Forget a thread's gradients and sums of the last step."""
    room.sums[thread] = 0.0
    room.critic_gradients[thread] = ZERO
    room.actor_gradients[thread] = ZERO


@compiled_fused
def move_layers(
    params: Array, first: Array, second: Array, targets: Array, gradients: Array, place: int, table: Array, count: int,
    rate: Number, tau: Number, part: int,
) -> Number:  # fmt: skip
    """One part of Adam's step by the sum of all threads' gradients, and of the targets' after it; the sum's squares.

    `place` is the column of the gradients at which those of this network begin.
    """
    squares, tau, parts = ZERO, np.float32(tau), gradients.shape[0]
    for layer in range(table.shape[0]):
        _, _, low, high = own_rows(table, layer, part, parts, params.size)
        own, target, grad = params[low:high], targets[low:high], gradients[0, place + low : place + high]
        for thread in range(1, parts):
            add_row(gradients[thread, place + low : place + high], grad)
        squares += squared_length(grad)
        adam(own, grad, first[low:high], second[low:high], count, rate, ADAM_EPS, 1.0, 0.0)
        for i in range(own.size if tau > ZERO else 0):
            target[i] = (ONE - tau) * target[i] + tau * own[i]
    return squares


@compiled_fused
def move_critics(
    nets: Networks, tables: Tables, room: Workspace, obs: int, count: int, coefficients: Array, thread: int
) -> None:
    """A thread's part of the critics' step; it transposes the weights it moves, so that nobody has to wait."""
    parts, size = room.squares.size, nets.critics.shape[1]
    for c in range(nets.critics.shape[0]):
        move_layers(
            nets.critics[c], nets.critics_first[c], nets.critics_second[c], nets.targets[c],
            room.critic_gradients, c * size, tables.critic, count, coefficients[RATE], coefficients[TAU], thread,
        )  # fmt: skip
        flip_critic(nets, tables, room, obs, c, thread, parts)
    flip_layers(nets.actor, tables.actor, room.actor_flipped, thread, parts)


@compiled_fused
def move_actor(nets: Networks, tables: Tables, room: Workspace, count: int, coefficients: Array, thread: int) -> None:
    """A thread's part of the actor's step."""
    room.squares[thread] = move_layers(
        nets.actor, nets.actor_first, nets.actor_second, nets.actor, room.actor_gradients, 0, tables.actor, count,
        coefficients[RATE], 0.0, thread,
    )  # fmt: skip


@compiled_fused
def measure(gradients: Array, squares: Array, thread: int) -> None:
    """The squares of a thread's own gradient: if they are finite, so is the sum of all."""
    squares[thread] = squared_length(gradients[thread])


@compiled_fused
def settle(phase: int, room: Workspace, counters: Array) -> bool:
    """Count a step that can be taken; false for one whose loss or gradient is not finite."""
    if phase != CRITICISE and phase != ACT:
        return True
    if not math.isfinite(room.squares.sum() + room.sums.sum()):
        counters[1] += 1
        counters[2] += 1
        return False
    counters[0 if phase == CRITICISE else 3] += 1
    return True


@compiled_fused
def conclude(
    nets: Networks, room: Workspace, counters: Array, coefficients: Array, alpha: Number, batch: int, totals: Array
) -> None:
    """Move the temperature, and add up what is to be told."""
    sums = room.sums.sum(axis=0) / batch
    grad = np.array([-(sums[LOGP] + coefficients[TARGET_ENTROPY])], np.float32)
    if coefficients[TEMPERATURE] <= 0.0 and coefficients[FROZEN] <= 0.0:
        log, first, second = nets.temperature[:1], nets.temperature[1:2], nets.temperature[2:]
        adam(log, grad, first, second, counters[3], coefficients[RATE], ADAM_EPS, 1.0, 0.0)
    sums[POLICY] += alpha * sums[LOGP]
    sums[Q] /= nets.critics.shape[0]
    sums[LENGTH] = math.sqrt(room.squares.sum())
    sums[UPDATES] = 1.0
    totals += sums
    counters[1] = 0


def take_steps(
    nets: Networks, tables: Tables, room: Workspace, sample: Sample, ring: Ring, demos: Ring, counts: Array, streams: Array,
    picked: Array, counters: Array, coefficients: Array, totals: Array, updates: int,
) -> None:  # fmt: skip
    """Take gradient steps; `counts` are the steps in the buffer and in the demos, the demos in a batch, and n-step's n.

    There is one parallel loop for all phases: two in a row would be fused by numba, which cannot see that they depend.
    """
    threads, batch, critics = room.squares.size, sample.reward.size, nets.critics.shape[0]
    chunks, obs, gamma = room.actor.shape[1] - 1, sample.obs.shape[1], coefficients[GAMMA]
    filled, recorded, demo_count, n_step = counts[0], counts[1], counts[2], counts[3]
    for turn in range(critics * threads if room.stale[0] else 0):
        flip_critic(nets, tables, room, obs, turn // threads, turn % threads, threads)
    room.stale[0] = 0
    for _ in range(updates):
        fixed, fine = coefficients[TEMPERATURE], True
        alpha = np.float32(fixed if fixed > 0.0 else math.exp(nets.temperature[0]))
        pick_some(streams, batch, picked, critics)
        for phase in range(ACT if coefficients[FROZEN] > 0.0 else PHASES):
            for number in numba.prange(threads):
                thread: Number = np.int64(number)
                if phase == CRITICISE:
                    low, high = span(batch, 4, thread, threads)
                    clear(room, thread)
                    draw(ring, filled, demos, recorded, demo_count, n_step, gamma, streams, low, high, sample)
                    for chunk in range(chunks):
                        look_ahead(nets, tables, room, sample, picked, alpha, thread, chunk)
                    for turn in range(critics * chunks):
                        add_critic_gradient(nets, tables, room, sample, thread, turn % chunks, turn // chunks)
                    measure(room.critic_gradients, room.squares, thread)
                elif phase == MOVE_CRITICS:
                    move_critics(nets, tables, room, obs, counters[0], coefficients, thread)
                elif phase == ACT:
                    for chunk in range(chunks):
                        add_actor_gradient(nets, tables, room, sample, alpha, thread, chunk)
                    measure(room.actor_gradients, room.squares, thread)
                else:
                    move_actor(nets, tables, room, counters[3], coefficients, thread)
            fine = settle(phase, room, counters)
            if not fine:
                break
        if fine:
            conclude(nets, room, counters, coefficients, alpha, batch, totals)
        elif counters[1] >= 3:
            return


steps_alone = compiled_fused(take_steps)
steps_together = compiled_threads(take_steps)


class FusedSAC:
    """Weights and Adam state in flat arrays, and the memory that the kernel works in."""

    def __init__(
        self, design: Design, critics: Critics, params_and_stats: Array, batch: int, threads: int, seed: int
    ) -> None:
        self.design, self.critics, self.threads = design, critics, threads
        self.params, mean, scale = design.split_params_and_stats(params_and_stats)
        first, zero = critics.first(seed), np.zeros_like
        self.nets = Networks(
            self.params, zero(self.params), zero(self.params), first, zero(first), zero(first), first.copy(),
            np.zeros(3, np.float32),
        )  # fmt: skip
        self.counters = np.zeros(4, np.int64)
        self._tables = Tables(design.stack.table, critics.stack.table, design.head, mean, scale)
        self._room = make_room(design, critics, batch, threads)
        self._targets = 0
        self._products_s = 0.0

    def run(self, feed: ReplaySampler, coefficients: SACCoefficients, updates: int, totals: Array) -> None:
        """Take gradient steps and add up `totals`; three failed ones in a row end it."""
        self._targets = feed.picked.size
        run = steps_alone
        if self.threads > 1:
            limit: int = getattr(numba.config, "NUMBA_NUM_THREADS")  # noqa: B009 (set at import, unknown to mypy)
            numba.set_num_threads(min(self.threads, limit))
            run = steps_together
        counts = np.array([feed.replay.filled, feed.demos.filled, feed.demo_count, coefficients.n_step])
        run(
            self.nets, self._tables, self._room, feed.sample, feed.replay.ring, feed.demos.ring, counts, feed.streams,
            feed.picked, self.counters, coefficients.vector(), totals, updates,
        )  # fmt: skip

    def temperature(self) -> float:
        """The weight of the entropy as it is learned."""
        return math.exp(self.nets.temperature[0])

    def products(self) -> float:
        """Seconds that the matrix products of a gradient step take by themselves, measured once."""
        if not self._products_s:
            count, batch, critic = self.critics.count, len(self._room.value_target), self.critics.stack.table
            single = self._room.acted.shape[1] > 0
            back = (1 if count <= 2 else count) if single else 0
            layers = critic[:-1] if single else critic
            seconds = time_products(self.design.stack.table, 2, 1, 1)
            seconds += time_products(layers, 2 * count + self._targets, count, count + back)
            self._products_s = seconds * batch / CHUNK / self.threads
        return self._products_s

    def gradient(self) -> Array:
        """The actor's flat gradient of the last step."""
        last: Array = self._room.actor_gradients[0]
        return last

    def activity(self) -> dict[str, Array]:
        """The mean size of each unit's output on the last batch, by hidden layer of the actor."""
        stack, room, batch = self.design.stack, self._room, len(self._room.value_target)
        sizes = {}
        for number, layer in enumerate(stack.layers[:-1]):
            column, total = stack.table[number, OUT], np.zeros(layer.outputs)
            for thread, chunk in np.ndindex(self.threads, room.actor.shape[1] - 1):
                values = scratch_columns(room.actor[thread, chunk], CHUNK, column, layer.columns)
                total += np.abs(values[: rows_of(room, thread, chunk)[1], : layer.outputs]).sum(axis=0)
            sizes[layer.name] = total / batch
        return sizes

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""
        nets, actor, critics = self.nets, self.design.weights.named, self.critics.named
        kinds = {"weight": nets.actor, "first": nets.actor_first, "second": nets.actor_second}
        arrays = {f"{kind}/{name}": array for kind, flat in kinds.items() for name, array in actor(flat).items()}
        kinds = {
            "weight": nets.critics,
            "first": nets.critics_first,
            "second": nets.critics_second,
            "target": nets.targets,
        }
        arrays |= {f"{kind}/{name}": array for kind, flat in kinds.items() for name, array in critics(flat).items()}
        return arrays | {"temperature": nets.temperature.copy(), "counters": self.counters.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        nets = self.nets
        for kind, flat in (("weight/", nets.actor), ("first/", nets.actor_first), ("second/", nets.actor_second)):
            self.design.weights.flatten(strip_prefix(arrays, kind), flat)
        for kind, flat in (("weight/", nets.critics), ("first/", nets.critics_first), ("second/", nets.critics_second),
                           ("target/", nets.targets)):  # fmt: skip
            self.critics.flatten(strip_prefix(arrays, kind), flat)
        nets.temperature[:], self.counters[:] = arrays["temperature"], arrays["counters"]
        self._room.stale[0] = 1


def make_room(design: Design, critics: Critics, batch: int, threads: int) -> Workspace:
    """The memory for batches of this size."""
    actor, critic, parts = design.stack, critics.stack, design.action.parts
    share = -(-batch // (4 * threads)) * 4
    chunks, single = -(-share // CHUNK), critics.outputs == 1 and design.action.kind == "continuous"
    width = pad(parts, 16) if single else 0
    behind = critic.layers[0].columns * width

    def floats(*shape: int) -> Array:
        return np.zeros(shape, np.float32)

    return Workspace(
        actor=floats(threads, chunks + 1, CHUNK * actor.scratch_columns),
        actor_grads=floats(threads, CHUNK * actor.scratch_columns),
        actor_flipped=floats(max(1, actor.flipped_size)),
        actor_gradients=floats(threads, actor.size),
        critic=floats(threads, 2, CHUNK * critic.scratch_columns),
        critic_grads=floats(threads, CHUNK * critic.scratch_columns),
        critic_flipped=floats(critics.count, max(1, critic.flipped_size + behind)),
        critic_gradients=floats(threads, critics.count * critic.size),
        value_target=floats(batch),
        acted=floats(batch, parts if single else 0),
        values=floats(threads, 2, CHUNK),
        best=floats(threads, CHUNK, critics.outputs),
        by_action=floats(threads, 2, CHUNK, width),
        chosen=np.zeros((threads, CHUNK), np.int64),
        sums=np.zeros((threads, SUMS), np.float64),
        squares=np.zeros(threads, np.float64),
        episode_start=np.zeros((1, CHUNK), np.uint8),
        carried=floats(2, 0),
        stale=np.ones(1, np.uint8),
    )


def time_products(table: Array, forwards: int, gradients: int, grads: int) -> float:
    """Seconds for a chunk's products: so many on the way forward, for gradients of weights, and on the way back."""
    total = 0.0
    for row in table.tolist():
        values, told = np.zeros((CHUNK, row[IN_COLUMNS]), np.float32), np.zeros((CHUNK, row[COLUMNS]), np.float32)
        weights = np.zeros((row[INPUTS], row[COLUMNS]), np.float32)
        turned = np.zeros((row[COLUMNS], row[IN_COLUMNS]), np.float32)
        for times, call in (
            (forwards, (values, weights, told, CHUNK, row[INPUTS])),
            (gradients, (values.T, told, weights, row[INPUTS], CHUNK)),
            (grads if row[FLIPPED] >= 0 else 0, (told, turned, values, CHUNK, row[COLUMNS])),
        ):
            began = [time.perf_counter()]
            for _ in range(TRIALS if times else 0):
                product(*call)
                began.append(time.perf_counter())
            total += times * min(np.diff(began), default=0.0)
    return total
