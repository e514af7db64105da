"""SAC's gradient steps as one compiled kernel: sampling, critics, actor, temperature, target critics.

`sac_torch.py` computes the same in torch, and a parity test compares the two. The rows of a minibatch are divided among
threads. Each thread has its own gradients, which are summed in a fixed order, so the result depends on the number of
threads but is deterministic. The minibatch itself does not depend on the number of threads: every row has its own RNG
stream.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numba
import numpy as np

from slipstream.algorithms.engine import FAILED_IN_A_ROW, FAILED_STEPS, MAX_FAILED_IN_A_ROW
from slipstream.algorithms.replay_buffer import (
    ReplayBatch,
    ReplaySampler,
    SamplingState,
    Transitions,
    random_subset,
    sample_batch,
)
from slipstream.algorithms.sac_critics import (
    ACTOR_STEPS,
    ADAM_EPS,
    CRITIC_STEPS,
    GRADIENT_NORM,
    LOG_PROB,
    POLICY_LOSS,
    Q_VALUE,
    SUMS,
    UPDATES,
    CriticEnsemble,
    SACCoefficients,
)
from slipstream.contracts import Array
from slipstream.engines.sac_gradients import (
    Networks,
    Tables,
    Workspace,
    add_actor_gradient,
    add_critic_gradient,
    chunk_rows,
    compute_value_targets,
    thread_range,
)
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
from slipstream.policies.parameter_layout import (
    BIAS,
    COLUMNS,
    IN_COLUMNS,
    INPUTS,
    OUT,
    TRANSPOSED,
    WEIGHT,
    pad,
    strip_prefix,
)
from slipstream.system.numba_compile import Number, compiled_fused, compiled_threads

CRITIC_GRADIENT, CRITIC_UPDATE, ACTOR_GRADIENT, ACTOR_UPDATE = range(4)
PHASES = 4
"""The phases of a gradient step; threads synchronise between them."""
TRIALS = 7


@compiled_fused
def layer_share(table: Array, layer: int, part: int, parts: int, size: int) -> tuple[int, int, int, int]:
    """The range of a layer's inputs, and of its weights, that belongs to one of `parts`; the last includes biases."""
    row = table[layer]
    low, high = thread_range(row[INPUTS], 4, part, parts)
    end = table[layer + 1, WEIGHT] if layer + 1 < table.shape[0] else size
    stop = end if part == parts - 1 else row[WEIGHT] + high * row[COLUMNS]
    return low, high, row[WEIGHT] + low * row[COLUMNS], stop


@compiled_fused
def transpose_layers(params: Array, table: Array, transposed: Array, part: int, parts: int) -> None:
    """Transpose one part of each weight matrix for the backward pass."""
    for layer in range(table.shape[0]):
        row = table[layer]
        if row[TRANSPOSED] < 0:
            continue
        inputs, columns, width = row[INPUTS], row[COLUMNS], row[IN_COLUMNS]
        matrix = params[row[WEIGHT] : row[BIAS]].reshape(inputs, columns)
        result = transposed[row[TRANSPOSED] : row[TRANSPOSED] + columns * width].reshape(columns, width)
        low, high, _, _ = layer_share(table, layer, part, parts, params.size)
        transpose_rows(matrix, result, low, high)


@compiled_fused
def transpose_critic(
    nets: Networks, tables: Tables, work: Workspace, obs: int, critic: int, part: int, parts: int
) -> None:
    """Transpose one part of a critic's hidden layers, and of the first layer's weights of the action."""
    params, transposed = nets.critics[critic], work.critic_transposed[critic]
    width, start, columns = work.action_grads.shape[3], tables.critic[0, WEIGHT], tables.critic[0, COLUMNS]
    transpose_layers(params, tables.critic, transposed, part, parts)
    low, high, _, _ = layer_share(tables.critic, 0, part, parts, params.size)
    result = transposed[transposed.size - columns * width :].reshape(columns, width)
    for k in range(work.actions.shape[1]):
        if low <= obs + k < high:
            for j in range(columns):
                result[j, k] = params[start + (obs + k) * columns + j]


@compiled_fused
def clear(work: Workspace, thread: int) -> None:
    """Zero a thread's gradients and statistics."""
    work.sums[thread] = 0.0
    work.critic_gradients[thread] = ZERO
    work.actor_gradients[thread] = ZERO


class AdamParams(NamedTuple):
    """The parameters [size] of one network with their Adam moments."""

    params: Array
    first: Array
    second: Array


@compiled_fused
def adam_layers(
    own: AdamParams,
    targets: Array,
    gradients: Array,
    offset: int,
    table: Array,
    count: int,
    learning_rate: Number,
    tau: Number,
    part: int,
) -> Number:
    """Sum one part of all threads' gradients, apply Adam and the Polyak update of the targets.

    The network's gradients begin at column `offset` of `gradients` [threads, columns]. With `tau` = 0 there is no
    target update. Return the squared norm of this part of the gradient.
    """
    squares, tau, parts = ZERO, np.float32(tau), gradients.shape[0]
    for layer in range(table.shape[0]):
        _, _, low, high = layer_share(table, layer, part, parts, own.params.size)
        params, target, grad = own.params[low:high], targets[low:high], gradients[0, offset + low : offset + high]
        for thread in range(1, parts):
            add_row(gradients[thread, offset + low : offset + high], grad)
        squares += squared_length(grad)
        adam(params, grad, own.first[low:high], own.second[low:high], count, learning_rate, ADAM_EPS, 1.0, 0.0)
        for i in range(params.size if tau > ZERO else 0):
            target[i] = (ONE - tau) * target[i] + tau * params[i]
    return squares


@compiled_fused
def update_critics(
    nets: Networks, tables: Tables, work: Workspace, obs: int, count: int, coefficients: SACCoefficients, thread: int
) -> None:
    """A thread's part of the critics' step; it transposes the weights that it updates, so no barrier is needed."""
    parts, size = work.squared_norm.size, nets.critics.shape[1]
    for c in range(nets.critics.shape[0]):
        own = AdamParams(nets.critics[c], nets.critics_first[c], nets.critics_second[c])
        adam_layers(
            own,
            nets.targets[c],
            work.critic_gradients,
            c * size,
            tables.critic,
            count,
            coefficients.learning_rate,
            coefficients.tau,
            thread,
        )
        transpose_critic(nets, tables, work, obs, c, thread, parts)
    transpose_layers(nets.actor, tables.actor, work.actor_transposed, thread, parts)


@compiled_fused
def update_actor(
    nets: Networks, tables: Tables, work: Workspace, count: int, coefficients: SACCoefficients, thread: int
) -> None:
    """A thread's part of the actor's step."""
    work.squared_norm[thread] = adam_layers(
        AdamParams(nets.actor, nets.actor_first, nets.actor_second),
        nets.actor,
        work.actor_gradients,
        0,
        tables.actor,
        count,
        coefficients.learning_rate,
        0.0,
        thread,
    )


@compiled_fused
def write_squared_norm(gradients: Array, squared_norm: Array, thread: int) -> None:
    """The squared norm of a thread's own gradient; if all are finite, so is their sum."""
    squared_norm[thread] = squared_length(gradients[thread])


@compiled_fused
def check_finite(phase: int, work: Workspace, counters: Array) -> bool:
    """Count a step, and return False if its loss or gradient is not finite."""
    if phase != CRITIC_GRADIENT and phase != ACTOR_GRADIENT:
        return True
    if not math.isfinite(work.squared_norm.sum() + work.sums.sum()):
        counters[FAILED_IN_A_ROW] += 1
        counters[FAILED_STEPS] += 1
        return False
    counters[CRITIC_STEPS if phase == CRITIC_GRADIENT else ACTOR_STEPS] += 1
    return True


@compiled_fused
def finish_step(
    nets: Networks,
    work: Workspace,
    counters: Array,
    coefficients: SACCoefficients,
    alpha: Number,
    batch: int,
    totals: Array,
) -> None:
    """Update the temperature, and add the statistics of the step to `totals`."""
    sums = work.sums.sum(axis=0) / batch
    grad = np.array([-(sums[LOG_PROB] + coefficients.target_entropy)], np.float32)
    if coefficients.temperature <= 0.0 and not coefficients.freeze_actor:
        log, first, second = nets.temperature[:1], nets.temperature[1:2], nets.temperature[2:]
        adam(log, grad, first, second, counters[ACTOR_STEPS], coefficients.learning_rate, ADAM_EPS, 1.0, 0.0)
    sums[POLICY_LOSS] += alpha * sums[LOG_PROB]
    sums[Q_VALUE] /= nets.critics.shape[0]
    sums[GRADIENT_NORM] = math.sqrt(work.squared_norm.sum())
    sums[UPDATES] = 1.0
    totals += sums
    counters[FAILED_IN_A_ROW] = 0


def take_steps(
    nets: Networks,
    tables: Tables,
    work: Workspace,
    batch: ReplayBatch,
    buffer: Transitions,
    demos: Transitions,
    sampling: SamplingState,
    coefficients: SACCoefficients,
    counters: Array,
    totals: Array,
    updates: int,
) -> None:
    """Take `updates` gradient steps.

    All phases share one parallel loop: numba would fuse two loops in a row, because it cannot see their dependency.
    """
    threads, rows, critics = work.squared_norm.size, batch.reward.size, nets.critics.shape[0]
    chunks, obs, gamma, n_step = work.actor.shape[1] - 1, batch.obs.shape[1], coefficients.gamma, coefficients.n_step
    for turn in range(critics * threads if work.stale[0] else 0):
        transpose_critic(nets, tables, work, obs, turn // threads, turn % threads, threads)
    work.stale[0] = 0
    for _ in range(updates):
        fixed, finite = coefficients.temperature, True
        alpha = np.float32(fixed if fixed > 0.0 else math.exp(nets.temperature[0]))
        random_subset(sampling.streams, rows, batch.target_critics, critics)
        for phase in range(ACTOR_GRADIENT if coefficients.freeze_actor else PHASES):
            for number in numba.prange(threads):
                thread: Number = np.int64(number)
                if phase == CRITIC_GRADIENT:
                    low, high = thread_range(rows, 4, thread, threads)
                    clear(work, thread)
                    sample_batch(buffer, demos, sampling, n_step, gamma, low, high, batch)
                    for chunk in range(chunks):
                        compute_value_targets(nets, tables, work, batch, alpha, thread, chunk)
                    for turn in range(critics * chunks):
                        add_critic_gradient(nets, tables, work, batch, thread, turn % chunks, turn // chunks)
                    write_squared_norm(work.critic_gradients, work.squared_norm, thread)
                elif phase == CRITIC_UPDATE:
                    update_critics(nets, tables, work, obs, counters[CRITIC_STEPS], coefficients, thread)
                elif phase == ACTOR_GRADIENT:
                    for chunk in range(chunks):
                        add_actor_gradient(nets, tables, work, batch, alpha, thread, chunk)
                    write_squared_norm(work.actor_gradients, work.squared_norm, thread)
                else:
                    update_actor(nets, tables, work, counters[ACTOR_STEPS], coefficients, thread)
            finite = check_finite(phase, work, counters)
            if not finite:
                break
        if finite:
            finish_step(nets, work, counters, coefficients, alpha, rows, totals)
        elif counters[FAILED_IN_A_ROW] >= MAX_FAILED_IN_A_ROW:
            return


take_steps_serial = compiled_fused(take_steps)
take_steps_parallel = compiled_threads(take_steps)


class FusedSAC:
    """Weights and Adam moments in flat arrays, and the scratch memory of the kernels."""

    def __init__(
        self, design: Design, critics: CriticEnsemble, params_and_stats: Array, batch: int, threads: int, seed: int
    ) -> None:
        self.design, self.ensemble, self.threads = design, critics, threads
        self.params, mean, scale = design.split_params_and_stats(params_and_stats)
        initial = critics.initial_weights(seed)
        self.nets = Networks(
            actor=self.params,
            actor_first=np.zeros_like(self.params),
            actor_second=np.zeros_like(self.params),
            critics=initial,
            critics_first=np.zeros_like(initial),
            critics_second=np.zeros_like(initial),
            targets=initial.copy(),
            temperature=np.zeros(3, np.float32),
        )
        self.counters = np.zeros(4, np.int64)
        self._tables = Tables(design.stack.table, critics.layout.table, design.head, mean, scale)
        self._work = make_workspace(design, critics, batch, threads)
        self._target_critics = 0
        self._products_s = 0.0

    def run(self, sampler: ReplaySampler, coefficients: SACCoefficients, updates: int, totals: Array) -> None:
        """Take gradient steps and add their statistics to `totals`; stop after three failures in a row."""
        self._target_critics = sampler.batch.target_critics.size
        run = take_steps_serial
        if self.threads > 1:
            limit: int = getattr(numba.config, "NUMBA_NUM_THREADS")  # noqa: B009 (set at import, unknown to mypy)
            numba.set_num_threads(min(self.threads, limit))
            run = take_steps_parallel
        run(
            self.nets,
            self._tables,
            self._work,
            sampler.batch,
            sampler.buffer.data,
            sampler.demos.data,
            sampler.state(),
            coefficients,
            self.counters,
            totals,
            updates,
        )

    def temperature(self) -> float:
        """The learned entropy coefficient (alpha)."""
        return math.exp(self.nets.temperature[0])

    def products(self) -> float:
        """Seconds that the matrix products of one gradient step take alone, measured once."""
        if not self._products_s:
            count, batch, critic = self.ensemble.count, len(self._work.value_target), self.ensemble.layout.table
            continuous = self._work.actions.shape[1] > 0
            action_passes = (1 if count <= 2 else count) if continuous else 0
            layers = critic[:-1] if continuous else critic
            seconds = time_products(self.design.stack.table, 2, 1, 1)
            seconds += time_products(layers, 2 * count + self._target_critics, count, count + action_passes)
            self._products_s = seconds * batch / CHUNK / self.threads
        return self._products_s

    def gradient(self) -> Array:
        """The actor's flat gradient of the last step."""
        last: Array = self._work.actor_gradients[0]
        return last

    def activity(self) -> dict[str, Array]:
        """The mean absolute output of each unit on the last batch, by hidden layer of the actor."""
        stack, work, batch = self.design.stack, self._work, len(self._work.value_target)
        means = {}
        for number, layer in enumerate(stack.layers[:-1]):
            column, total = stack.table[number, OUT], np.zeros(layer.outputs)
            for thread, chunk in np.ndindex(self.threads, work.actor.shape[1] - 1):
                values = scratch_columns(work.actor[thread, chunk], CHUNK, column, layer.columns)
                total += np.abs(values[: chunk_rows(work, thread, chunk)[1], : layer.outputs]).sum(axis=0)
            means[layer.name] = total / batch
        return means

    def _flat_arrays(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The flat arrays of the actor and of the critics, by kind as checkpoints name it."""
        nets = self.nets
        return {"weight": nets.actor, "first": nets.actor_first, "second": nets.actor_second}, {
            "weight": nets.critics,
            "first": nets.critics_first,
            "second": nets.critics_second,
            "target": nets.targets,
        }

    def snapshot(self) -> dict[str, Array]:
        """Copy everything that training changes, as named arrays."""
        arrays: dict[str, Array] = {}
        for layout, kinds in zip((self.design.weights, self.ensemble), self._flat_arrays(), strict=True):
            for kind, flat in kinds.items():
                arrays |= {f"{kind}/{name}": array for name, array in layout.named(flat).items()}
        return arrays | {"temperature": self.nets.temperature.copy(), "counters": self.counters.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore the arrays that `snapshot` returned."""
        for layout, kinds in zip((self.design.weights, self.ensemble), self._flat_arrays(), strict=True):
            for kind, flat in kinds.items():
                layout.flatten(strip_prefix(arrays, f"{kind}/"), flat)
        self.nets.temperature[:], self.counters[:] = arrays["temperature"], arrays["counters"]
        self._work.stale[0] = 1


def make_workspace(design: Design, critics: CriticEnsemble, batch: int, threads: int) -> Workspace:
    """Allocate the scratch memory for minibatches of this size."""
    actor, critic, parts = design.stack, critics.layout, design.action.parts
    share = -(-batch // (4 * threads)) * 4
    chunks, continuous = -(-share // CHUNK), design.action.kind == "continuous"
    width = pad(parts, 16) if continuous else 0
    action_weights = critic.layers[0].columns * width

    def floats(*shape: int) -> Array:
        return np.zeros(shape, np.float32)

    return Workspace(
        actor=floats(threads, chunks + 1, CHUNK * actor.scratch_columns),
        actor_grads=floats(threads, CHUNK * actor.scratch_columns),
        actor_transposed=floats(max(1, actor.transposed_size)),
        actor_gradients=floats(threads, actor.size),
        critic=floats(threads, 2, CHUNK * critic.scratch_columns),
        critic_grads=floats(threads, CHUNK * critic.scratch_columns),
        critic_transposed=floats(critics.count, max(1, critic.transposed_size + action_weights)),
        critic_gradients=floats(threads, critics.count * critic.size),
        value_target=floats(batch),
        actions=floats(batch, parts if continuous else 0),
        values=floats(threads, 2, CHUNK),
        action_values=floats(threads, CHUNK, critics.outputs),
        action_grads=floats(threads, 2, CHUNK, width),
        selected=np.zeros((threads, CHUNK), np.int64),
        sums=np.zeros((threads, SUMS), np.float64),
        squared_norm=np.zeros(threads, np.float64),
        episode_start=np.zeros((1, CHUNK), np.uint8),
        carried=floats(2, 0),
        stale=np.ones(1, np.uint8),
    )


def time_products(table: Array, forwards: int, weight_gradients: int, input_gradients: int) -> float:
    """Seconds that so many forward, weight gradient and input gradient products take on one chunk."""
    total = 0.0
    for row in table.tolist():
        inputs, outputs = np.zeros((CHUNK, row[IN_COLUMNS]), np.float32), np.zeros((CHUNK, row[COLUMNS]), np.float32)
        weights = np.zeros((row[INPUTS], row[COLUMNS]), np.float32)
        transposed = np.zeros((row[COLUMNS], row[IN_COLUMNS]), np.float32)
        for times, call in (
            (forwards, (inputs, weights, outputs, CHUNK, row[INPUTS])),
            (weight_gradients, (inputs.T, outputs, weights, row[INPUTS], CHUNK)),
            (input_gradients if row[TRANSPOSED] >= 0 else 0, (outputs, transposed, inputs, CHUNK, row[COLUMNS])),
        ):
            began = [time.perf_counter()]
            for _ in range(TRIALS if times else 0):
                product(*call)
                began.append(time.perf_counter())
            total += times * min(np.diff(began), default=0.0)
    return total
