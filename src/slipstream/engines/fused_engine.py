"""PPO's gradient steps as a compiled kernel: an epoch of forward, loss, backward, clipping and Adam in one call.

`torch_engine` defines the same steps in torch; a parity test compares the two. The sequences of a minibatch are split
over threads. Each thread has its own gradient, and gradients are added in a fixed order, so that results depend on the
number of threads but not on their timing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from slipstream.algorithms.engine import (
    CLIPPED,
    ENTROPY,
    FAILED_IN_A_ROW,
    FAILED_STEPS,
    GRADIENT_NORMS,
    KL,
    MAX_FAILED_IN_A_ROW,
    POLICY_LOSS,
    REFERENCE_KL,
    SAMPLES,
    STEPS,
    SUMS,
    UPDATES,
    VALUE_LOSS,
    Batch,
    BatchEvaluation,
    Coefficients,
)
from slipstream.algorithms.ppo_loss import RecordedSample, Standardisation, clipped_loss, standardise
from slipstream.contracts import Array
from slipstream.engines.host_engine import HostEngine
from slipstream.policies import token_encoder
from slipstream.policies.design import Design
from slipstream.policies.distributions import add_kl_gradient, add_log_prob_gradient, apply_mask, log_prob_and_entropy
from slipstream.policies.fused_network import (
    Network,
    backward,
    outputs,
    run_block,
    sample_index,
    transpose_weights,
)
from slipstream.policies.linear_algebra import (
    CHUNK,
    ZERO,
    Activations,
    Gradients,
    adam,
    add_row,
    copy_row,
    multiply_row,
    round_up_to_4,
    squared_length,
    thread_slice,
)
from slipstream.policies.parameter_layout import (
    DENSE,
    HEAD_LOG_STD,
    HEAD_VALUE,
    OUT,
    UNITS,
    arrays_by_name,
    pad,
    read_arrays,
)
from slipstream.policies.token_encoder import (
    IDENTITY_STATS,
    TokenCache,
    build_token_cache,
    empty_token_cache,
    sample_indices,
)
from slipstream.system.numba_compile import Number, compiled_fused, compiled_threads

RECURRENT_BLOCK = 256
"""Samples that go through a recurrent network together, at most; without memory they are `CHUNK`."""


class EpochWorkspace(NamedTuple):
    """The memory that the kernel works in, for every thread."""

    scratch: Array  # [threads, floats]: activations
    grad_scratch: Array  # [threads, floats]: gradients of activations
    probs: Array  # [threads, outputs]
    episode_start: Array  # [threads, steps, lanes]
    carried: Array  # [threads, 2, floats]: gradients that flow back through recurrent layers
    gradients: Array  # [threads, size]
    sums: Array  # [threads, SUMS]
    transposed: Array  # [floats]: transposed weights, which all threads read


class OptimiserState(NamedTuple):
    """Adam's moments, the counters of steps, and which weights the warm-up of the value function moves."""

    first: Array  # [size]
    second: Array  # [size]
    counters: Array  # [3]: optimiser steps, failed steps in a row, failed steps in total
    value_only_mask: Array  # [size]: 1 for the weights that only the value function reads


@compiled_fused
def accumulate_gradient(
    net: Network,
    work: EpochWorkspace,
    state: Array | None,
    thread: int,
    batch: Batch,
    index: Array,
    scaling: Standardisation,
    coefficients: Coefficients,
    tokens: TokenCache | None,
) -> None:
    """Write the gradient of the sequences in `index` and their sums into the thread's part of the workspace.

    With tokens, `batch.obs` is what they are pooled into, and its gradient is kept in the token cache.
    """
    clip, clip_value = np.float32(coefficients.clip), np.float32(coefficients.clip_value)
    value_coef, entropy_coef = np.float32(coefficients.value), np.float32(coefficients.entropy)
    policy_coef, reference_coef = np.float32(coefficients.policy), np.float32(coefficients.reference_kl)
    # Arrays are taken out of NamedTuples before the loops: each access there would count references.
    steps, rows, share = batch.sequence, batch.rows, scaling.share
    params, table, head = net.params, net.table, net.head
    mask, action, weight, reference = batch.mask, batch.action, batch.weight, batch.reference
    advantage, value_target = batch.advantage, batch.value_target
    old_log_prob, old_value = batch.log_prob, batch.value
    episode_start, gradient, sums = work.episode_start[thread], work.gradients[thread], work.sums[thread]
    # `block` is the number of samples that run together: up to `most_lanes` sequences side by side, times their steps.
    block, most_lanes = episode_start.size, episode_start.shape[1]
    activations = Activations(work.scratch[thread], block, episode_start)
    grads = Gradients(work.grad_scratch[thread], gradient, work.transposed, work.carried[thread])
    policy = outputs(activations.scratch, block, table, net.policy_layer)
    values = outputs(activations.scratch, block, table, net.value_layer)
    d_policy = outputs(grads.scratch, block, table, net.policy_layer)
    d_value = outputs(grads.scratch, block, table, net.value_layer)
    log_std, d_log_std = params[head[HEAD_LOG_STD] :], gradient[head[HEAD_LOG_STD] :]
    value_column, probs, found = head[HEAD_VALUE], work.probs[thread], np.zeros(2, np.float32)
    gradient[:], sums[:] = ZERO, 0.0
    for first in range(0, index.size, most_lanes):
        chosen = index[first : first + most_lanes]
        lanes = round_up_to_4(chosen.size)
        if tokens is not None:
            for s in chosen:
                for step in range(steps):
                    token_encoder.pool_sample(tokens, sample_index(s, step, steps, rows))
        run_block(net, activations, state, batch, chosen, lanes)
        d_policy[: lanes * steps] = ZERO
        d_value[: lanes * steps] = ZERO
        for step in range(steps):
            for lane in range(chosen.size):
                i = step * lanes + lane
                n = sample_index(chosen[lane], step, steps, rows)
                if weight[n] == ZERO:
                    continue
                if mask.shape[1]:
                    apply_mask(policy[i], mask[n], head)
                log_prob_and_entropy(policy[i], log_std, head, action[n], probs, found)
                log_prob, entropy = found[0], found[1]
                scaled = (advantage[n] - scaling.mean) * scaling.inverse_std * weight[n]
                sample = RecordedSample(old_log_prob[n], old_value[n], scaled, value_target[n])
                loss = clipped_loss(log_prob, values[i, value_column], sample, clip, clip_value, coefficients.imitate)
                add_log_prob_gradient(
                    policy[i],
                    log_std,
                    head,
                    action[n],
                    probs,
                    share * policy_coef * loss.d_log_prob,
                    -share * entropy_coef,
                    d_policy[i],
                    d_log_std,
                )
                if reference.shape[1]:
                    sums[REFERENCE_KL] += add_kl_gradient(
                        policy[i],
                        log_std,
                        head,
                        reference[n],
                        probs,
                        share * reference_coef,
                        d_policy[i],
                        d_log_std,
                    )
                d_value[i, value_column] = share * value_coef * loss.d_value
                sums[POLICY_LOSS] += loss.policy
                sums[VALUE_LOSS] += loss.value
                sums[ENTROPY] += entropy
                sums[KL] += loss.kl
                sums[CLIPPED] += loss.clipped
                sums[SAMPLES] += 1.0
        backward(params, table, activations, state, grads, lanes, steps)
        if tokens is not None:
            below = outputs(grads.scratch, block, table, -1)
            for lane in range(chosen.size):
                for step in range(steps):
                    n = sample_index(chosen[lane], step, steps, rows)
                    copy_row(below[step * lanes + lane], tokens.grads[n])
                    token_encoder.pool_sample_backward(tokens, n, thread)


def epoch_steps(
    net: Network,
    optimiser: OptimiserState,
    work: EpochWorkspace,
    state: Array | None,
    batch: Batch,
    order: Array,
    coefficients: Coefficients,
    tokens: TokenCache | None,
    totals: Array,
) -> None:
    """Take every gradient step of one epoch; `totals` gets the sums over its minibatches.

    With a policy coefficient of 0, only the value function's own weights move. Arithmetic on whole arrays is in
    separate functions: inline, numba would turn each into a parallel loop, which takes seconds to compile.
    """
    threads, counters = work.gradients.shape[0], optimiser.counters
    minibatch = max(1, coefficients.minibatch // batch.sequence)
    for start in range(0, order.size, minibatch):
        index = order[start : start + minibatch]
        mean, inverse_std, sample_share = standardise(
            batch.advantage, batch.weight, index, batch.sequence, batch.rows, coefficients.normalise_advantage
        )
        per_thread = (index.size + 4 * threads - 1) // (4 * threads) * 4
        transpose_weights(net.params, net.table, work.transposed)
        if tokens is not None:
            token_encoder.build_table(net.params[tokens.offset :], tokens.table)
            for number in numba.prange(threads):
                thread: Number = np.int64(number)
                token_encoder.encode_kinds(net.params, tokens, thread, threads)
                token_encoder.clear_kind_grads(tokens, thread)
        for number in numba.prange(threads):
            thread = np.int64(number)
            low, high = min(thread * per_thread, index.size), min((thread + 1) * per_thread, index.size)
            accumulate_gradient(
                net,
                work,
                thread_slice(state, thread),
                thread,
                batch,
                index[low:high],
                Standardisation(mean, inverse_std, sample_share),  # prange takes no NamedTuple from outside
                coefficients,
                tokens,
            )
        gradient, sums = work.gradients[0], work.sums[0]
        for thread in range(1, threads):
            add_row(work.gradients[thread], gradient)
            add_row(work.sums[thread], sums)
        if tokens is not None:
            token_encoder.add_token_gradient(net.params, tokens, gradient)
        if coefficients.policy == 0.0:
            multiply_row(optimiser.value_only_mask, gradient)
        norm = math.sqrt(squared_length(gradient))
        if math.isfinite(norm) and math.isfinite(sums[POLICY_LOSS] + sums[VALUE_LOSS]):
            counters[STEPS] += 1
            counters[FAILED_IN_A_ROW] = 0
            add_row(sums, totals)
            totals[GRADIENT_NORMS] += norm
            totals[UPDATES] += 1.0
            adam(
                net.params,
                gradient,
                optimiser.first,
                optimiser.second,
                counters[STEPS],
                coefficients.learning_rate,
                coefficients.adam_eps,
                min(1.0, coefficients.max_grad_norm / (norm + 1e-6)),
                coefficients.weight_decay,
            )
        else:
            counters[FAILED_IN_A_ROW] += 1
            counters[FAILED_STEPS] += 1
            if counters[FAILED_IN_A_ROW] >= MAX_FAILED_IN_A_ROW:
                return


epoch_on_one_thread = compiled_fused(epoch_steps)
epoch_on_threads = compiled_threads(epoch_steps)


@compiled_fused
def evaluate_batch(
    net: Network,
    work: EpochWorkspace,
    state: Array | None,
    batch: Batch,
    index: Array,
    log_prob: Array,
    value: Array,
    activity: Array,
) -> None:
    """Write log-probability and value of every sample, and add up the absolute output of every unit."""
    steps, rows, episode_start, scratch = batch.sequence, batch.rows, work.episode_start[0], work.scratch[0]
    block, most_lanes = episode_start.size, episode_start.shape[1]
    activations = Activations(scratch, block, episode_start)
    policy = outputs(scratch, block, net.table, net.policy_layer)
    values = outputs(scratch, block, net.table, net.value_layer)
    log_std, found = net.params[net.head[HEAD_LOG_STD] :], np.zeros(2, np.float32)
    for first in range(0, index.size, most_lanes):
        chosen = index[first : first + most_lanes]
        lanes = round_up_to_4(chosen.size)
        run_block(net, activations, state, batch, chosen, lanes)
        for step in range(steps):
            for lane in range(chosen.size):
                i = step * lanes + lane
                n = sample_index(chosen[lane], step, steps, rows)
                if batch.mask.shape[1]:
                    apply_mask(policy[i], batch.mask[n], net.head)
                log_prob_and_entropy(policy[i], log_std, net.head, batch.action[n], work.probs[0], found)
                log_prob[n], value[n] = found[0], values[i, net.head[HEAD_VALUE]]
                for layer in range(net.table.shape[0]):
                    units, column = outputs(scratch, block, net.table, layer), net.table[layer, OUT]
                    for j in range(net.table[layer, UNITS]):
                        activity[column + j] += abs(units[i, j])


class FusedEngine(HostEngine):
    """Weights and Adam state in flat arrays, and the memory that the kernel works in."""

    def __init__(self, design: Design, params: Array, threads: int) -> None:
        super().__init__(design, params)
        stack, steps = design.stack, design.sequence
        lanes = CHUNK if steps == 1 else max(4, RECURRENT_BLOCK // steps // 4 * 4)
        self.threads = threads
        self.moments = np.zeros((2, stack.size), np.float32)
        self._net = Network(params, stack.table, stack.head, stack.policy_layer, stack.value_layer)
        self._optimiser = OptimiserState(self.moments[0], self.moments[1], self.counters, design.of_value())
        floats = lanes * steps * stack.scratch_columns
        self._work = EpochWorkspace(
            scratch=np.zeros((threads, floats), np.float32),
            grad_scratch=np.zeros((threads, floats), np.float32),
            probs=np.zeros((threads, max(1, design.outputs)), np.float32),
            episode_start=np.zeros((threads, steps, lanes), np.uint8),
            carried=np.zeros((threads, 2, lanes * pad(design.policy.memory_size, 16)), np.float32),
            gradients=np.zeros((threads, stack.size), np.float32),
            sums=np.zeros((threads, SUMS), np.float64),
            transposed=np.zeros(max(1, stack.transposed_size), np.float32),
        )
        memory = (threads, lanes, stack.state_size)
        self._state = np.zeros(memory, np.float32) if stack.state_size else None
        self._tokens = empty_token_cache() if design.tokens is not None else None

    def run_epoch(self, batch: Batch, order: Array, coefficients: Coefficients) -> Array:
        """Take the gradient steps of one epoch on the sequences in `order`."""
        run, totals = epoch_on_one_thread, np.zeros(SUMS, np.float64)
        if self.threads > 1:
            limit: int = getattr(numba.config, "NUMBA_NUM_THREADS")  # noqa: B009 (set at import, unknown to mypy)
            numba.set_num_threads(min(self.threads, limit))
            run = epoch_on_threads
        parts, inputs = [order], self._inputs(batch, order)
        if self._tokens is not None and len(self._tokens.keys) > token_encoder.KNOWN:
            # Too many kinds of tokens for a cache of the whole epoch: one minibatch at a time.
            size = max(1, coefficients.minibatch // batch.sequence)
            parts = [order[low : low + size] for low in range(0, len(order), size)]
        for part in parts:
            inputs = inputs if len(parts) == 1 else self._inputs(batch, part)
            run(self._net, self._optimiser, self._work, self._state, inputs, part, coefficients, self._tokens, totals)
            if self.counters[FAILED_IN_A_ROW] >= MAX_FAILED_IN_A_ROW:
                break
        return totals

    def _inputs(self, batch: Batch, order: Array) -> Batch:
        """The batch as the network reads it: with memory for pooled tokens in place of token observations."""
        field = self.design.tokens
        if field is None or self._tokens is None:
            return batch
        samples = sample_indices(order, batch.sequence, batch.rows)
        self._tokens = build_token_cache(
            self._tokens, batch.obs, samples, field, 0, self.threads, self.design.stack.encoder_offset
        )
        return batch._replace(obs=self._tokens.pooled, mean=IDENTITY_STATS[0], scale=IDENTITY_STATS[1])

    def evaluate(self, batch: Batch) -> BatchEvaluation:
        """Run the network on all samples of a batch without learning."""
        stack, samples = self.design.stack, len(batch.log_prob)
        order = np.arange(samples // batch.sequence)
        inputs = self._inputs(batch, order)
        if self._tokens is not None:
            token_encoder.pool_all(self.params, self._tokens, np.arange(samples))
        log_prob, value = np.zeros(samples, np.float32), np.zeros(samples, np.float32)
        activity = np.zeros(stack.scratch_columns, np.float64)
        state = thread_slice(self._state, 0)
        evaluate_batch(self._net, self._work, state, inputs, order, log_prob, value, activity)
        mean_activity = {}
        for number, layer in enumerate(stack.layers):
            if number not in stack.heads:
                column, name = stack.table[number, OUT], layer.name + (".memory" if layer.kind != DENSE else "")
                mean_activity[name] = activity[column : column + layer.outputs] / samples
        return BatchEvaluation(log_prob, value, mean_activity)

    def gradient(self) -> Array:
        """The flat gradient of the last minibatch, before clipping, even if its step was skipped."""
        last: Array = self._work.gradients[0]
        return last

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""
        return arrays_by_name(self.design.weights, self.params, self.moments, self.counters)

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore what `snapshot` returned."""
        read_arrays(self.design.weights, arrays, self.params, self.moments, self.counters)
