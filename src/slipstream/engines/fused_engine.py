"""An epoch of PPO as a compiled kernel: gather, forward, loss, backward, clip and Adam.

`reference.py` says the same in torch; a parity test binds the two. Sequences of a minibatch are shared out over
threads, each with a gradient of its own, added up in a fixed order, so that the result depends on the number of threads
but never on chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np

from slipstream.algorithms.engine import (
    CLIPPED,
    ENTROPY,
    KL,
    NORMS,
    POLICY,
    REFERENCE,
    SAMPLES,
    SUMS,
    UPDATES,
    VALUE,
    Batch,
    BatchEvaluation,
    Coefficients,
)
from slipstream.algorithms.ppo_loss import standardise, surrogate
from slipstream.contracts import Array
from slipstream.engines.activations import evaluate_batch
from slipstream.engines.weights_io import arrays_by_name, read_arrays
from slipstream.policies import token_encoder
from slipstream.policies.design import Design
from slipstream.policies.distributions import add_log_prob_gradient, apply_mask, log_prob_and_entropy
from slipstream.policies.fused_network import backward, outputs, run_block, sample_index, transpose_weights
from slipstream.policies.kl import add_kl_gradient
from slipstream.policies.linear_algebra import (
    CHUNK,
    ZERO,
    adam,
    add_row,
    copy_row,
    multiply_row,
    squared_length,
    thread_slice,
)
from slipstream.policies.parameter_layout import DENSE, HEAD_LOG_STD, HEAD_VALUE, OUT, pad
from slipstream.policies.token_encoder import AS_IT_IS, TokenCache, build_token_cache, empty_token_cache, samples_of
from slipstream.system.numba_compile import Number, compiled_fused, compiled_threads

FAILED = 3
"""Failed steps in a row that end an epoch."""
BLOCK = 256
"""Samples that go through a network with memory together."""


@compiled_fused
def write_gradient(
    params: Array, table: Array, head: Array, layers: tuple[int, int], flipped: Array, scratch: Array,
    grad_scratch: Array, probs: Array, state: Array | None, episode_start: Array, carried: Array, gradient: Array, sums: Array,
    index: Array, steps: int, rows: int, burn_in: int, obs: Array, mean: Array, scale: Array, mask: Array,
    action: Array, old_log_prob: Array, old_value: Array, advantage: Array, value_target: Array, counts: Array, begins: Array,
    states: Array, reference: Array, shift: Number, factor: Number, share: Number, coefficients: Array, book: TokenCache | None,
    thread: int,
) -> None:  # fmt: skip
    """Write the gradient of the sequences in `index`, each sample counted with `share`, and their sums.

    With tokens, `obs` is what they are pooled into, and its slopes are kept.
    """
    clip, clip_value = np.float32(coefficients[0]), np.float32(coefficients[1])
    value_weight, entropy_weight = np.float32(coefficients[2]), np.float32(coefficients[3])
    policy_weight, reference_weight, imitating = (
        np.float32(coefficients[9]),
        np.float32(coefficients[10]),
        coefficients[13] > 0.0,
    )
    block = episode_start.size
    policy, values = outputs(scratch, block, table, layers[0]), outputs(scratch, block, table, layers[1])
    policy_grads = outputs(grad_scratch, block, table, layers[0])
    value_grads = outputs(grad_scratch, block, table, layers[1])
    log_std, log_std_gradient = params[head[HEAD_LOG_STD] :], gradient[head[HEAD_LOG_STD] :]
    value_column = head[HEAD_VALUE]
    measured = np.zeros(2, np.float32)
    gradient[:], sums[:] = ZERO, 0.0
    for first in range(0, index.size, episode_start.shape[1]):
        chosen = index[first : first + episode_start.shape[1]]
        lanes = (chosen.size + 3) // 4 * 4
        if book is not None:
            for s in chosen:
                for step in range(steps):
                    token_encoder.pool_sample(book, sample_index(s, step, steps, rows))
        run_block(
            params, table, scratch, block, state, episode_start, chosen, lanes, steps, rows, burn_in, obs, mean, scale, begins,
            states,
        )  # fmt: skip
        policy_grads[: lanes * steps] = ZERO
        value_grads[: lanes * steps] = ZERO
        for step in range(steps):
            for lane in range(chosen.size):
                i = step * lanes + lane
                n = sample_index(chosen[lane], step, steps, rows)
                if counts[n] == ZERO:
                    continue
                if mask.shape[1]:
                    apply_mask(policy[i], mask[n], head)
                log_prob_and_entropy(policy[i], log_std, head, action[n], probs, measured)
                gain = (advantage[n] - shift) * factor * counts[n]
                by_logp, by_error, gained, missed, moved, clipped = surrogate(
                    measured[0], values[i, value_column], old_log_prob[n], old_value[n], gain, value_target[n], clip, clip_value,
                    imitating,
                )  # fmt: skip
                add_log_prob_gradient(policy[i], log_std, head, action[n], probs, share * policy_weight * by_logp,
                       -share * entropy_weight, policy_grads[i], log_std_gradient)  # fmt: skip
                if reference.shape[1]:
                    sums[REFERENCE] += add_kl_gradient(
                        policy[i], log_std, head, reference[n], probs, share * reference_weight, policy_grads[i],
                        log_std_gradient,
                    )  # fmt: skip
                value_grads[i, value_column] = share * value_weight * by_error
                sums[POLICY] += gained
                sums[VALUE] += missed
                sums[ENTROPY] += measured[1]
                sums[KL] += moved
                sums[CLIPPED] += clipped
                sums[SAMPLES] += 1.0
        backward(
            params, table, flipped, scratch, grad_scratch, gradient, block, lanes, steps, state, episode_start, carried
        )
        if book is not None:
            below = outputs(grad_scratch, block, table, -1)
            for lane in range(chosen.size):
                for step in range(steps):
                    n = sample_index(chosen[lane], step, steps, rows)
                    copy_row(below[step * lanes + lane], book.grads[n])
                    token_encoder.unpool_sample(book, n, thread)


def run_epoch(
    params: Array, first: Array, second: Array, counters: Array, table: Array, head: Array, layers: tuple[int, int],
    flipped: Array, scratch: Array, grad_scratch: Array, probs: Array, state: Array | None, episode_start: Array,
    carried: Array, gradients: Array, sums: Array, totals: Array, order: Array, minibatch: int, steps: int, rows: int,
    burn_in: int, obs: Array, mean: Array, scale: Array, mask: Array, action: Array, old_log_prob: Array, old_value: Array,
    advantage: Array, value_target: Array, counts: Array, begins: Array, states: Array, reference: Array, of_value: Array,
    coefficients: Array, book: TokenCache | None,
) -> None:  # fmt: skip
    """Take every gradient step of one epoch; `totals` gets the sums over its minibatches.

    Without weight on the policy, only the value's own weights (`of_value`) move. Arithmetic on whole arrays stands in
    functions of its own: here each would become a parallel loop, which takes seconds to compile.
    """
    threads = gradients.shape[0]
    for start in range(0, order.size, minibatch):
        index = order[start : start + minibatch]
        shift, factor, weight = standardise(advantage, counts, index, steps, rows, coefficients[8] > 0)
        share = (index.size + 4 * threads - 1) // (4 * threads) * 4
        transpose_weights(params, table, flipped)
        if book is not None:
            token_encoder.tabulate(params[book.offset :], book.table)
            for number in numba.prange(threads):
                thread: Number = np.int64(number)
                token_encoder.read_book(params, book, thread, threads)
                token_encoder.clear_kinds(book, thread)
        for number in numba.prange(threads):
            thread = np.int64(number)
            low, high = min(thread * share, index.size), min((thread + 1) * share, index.size)
            write_gradient(
                params, table, head, layers, flipped, scratch[thread], grad_scratch[thread], probs[thread],
                thread_slice(state, thread), episode_start[thread], carried[thread], gradients[thread], sums[thread],
                index[low:high], steps, rows, burn_in, obs, mean, scale, mask, action, old_log_prob, old_value, advantage,
                value_target, counts, begins, states, reference, shift, factor, weight, coefficients, book, thread,
            )  # fmt: skip
        gradient = gradients[0]
        for thread in range(1, threads):
            add_row(gradients[thread], gradient)
            add_row(sums[thread], sums[0])
        if book is not None:
            token_encoder.learn_kinds(params, book, gradient)
        if coefficients[9] == 0.0:
            multiply_row(of_value, gradient)
        length = math.sqrt(squared_length(gradient))
        if math.isfinite(length) and math.isfinite(sums[0, POLICY] + sums[0, VALUE]):
            counters[0] += 1
            counters[1] = 0
            add_row(sums[0], totals)
            totals[NORMS] += length
            totals[UPDATES] += 1.0
            adam(params, gradient, first, second, counters[0], coefficients[5], coefficients[6],
                 min(1.0, coefficients[4] / (length + 1e-6)), coefficients[7])  # fmt: skip
        else:
            counters[1] += 1
            counters[2] += 1
            if counters[1] >= FAILED:
                return


run_alone = compiled_fused(run_epoch)
run_together = compiled_threads(run_epoch)


class FusedEngine:
    """Weights and Adam state in flat arrays, and the memory that the kernel works in."""

    def __init__(self, design: Design, params: Array, threads: int) -> None:
        stack = design.stack
        self.design = design
        self.params = params
        self.threads = threads
        self.moments = np.zeros((2, stack.size), np.float32)
        self.counters = np.zeros(3, np.int64)
        """Adam steps, failed steps in a row, failed steps in all."""
        steps = design.sequence
        lanes = CHUNK if steps == 1 else max(4, BLOCK // steps // 4 * 4)
        self._of_value = design.of_value()
        self._layers = stack.policy_layer, stack.value_layer
        self._scratch: Array = np.zeros((threads, lanes * steps * stack.scratch_columns), np.float32)
        self._grads = np.zeros_like(self._scratch)
        self._probs: Array = np.zeros((threads, max(1, design.outputs)), np.float32)
        memory = (threads, lanes, stack.state_size)
        self._state = np.zeros(memory, np.float32) if stack.state_size else None
        self._episode_start: Array = np.zeros((threads, steps, lanes), np.uint8)
        self._carried = np.zeros((threads, 2, lanes * pad(design.policy.memory_size, 16)), np.float32)
        self._gradients: Array = np.zeros((threads, stack.size), np.float32)
        self._sums = np.zeros((threads, SUMS), np.float64)
        self._flipped = np.zeros(max(1, stack.flipped_size), np.float32)
        self._book = empty_token_cache() if design.tokens is not None else None

    def run(self, batch: Batch, order: Array, coefficients: Coefficients, totals: Array) -> None:
        """Take the gradient steps of one epoch on the sequences in `order`."""
        run = run_alone
        if self.threads > 1:
            limit: int = getattr(numba.config, "NUMBA_NUM_THREADS")  # noqa: B009 (set at import, unknown to mypy)
            numba.set_num_threads(min(self.threads, limit))
            run = run_together
        size = max(1, coefficients.minibatch // batch.sequence)
        parts, seen = [order], self._see(batch, order)
        if self._book is not None and len(self._book.keys) > token_encoder.KNOWN:  # too many for all samples at once
            parts = [order[low : low + size] for low in range(0, len(order), size)]
        for part in parts:
            seen = seen if len(parts) == 1 else self._see(batch, part)
            self._descend(run, batch, part, size, seen, coefficients, totals)
            if self.counters[1] >= FAILED:
                return

    def _descend(
        self, run: Callable[..., None], batch: Batch, order: Array, size: int, seen: tuple[Array, Array, Array],
        coefficients: Coefficients, totals: Array,
    ) -> None:  # fmt: skip
        """Take the gradient steps of some minibatches, whose tokens the book holds."""
        stack, (obs, mean, scale) = self.design.stack, seen
        run(
            self.params, self.moments[0], self.moments[1], self.counters, stack.table, stack.head, self._layers,
            self._flipped, self._scratch, self._grads, self._probs, self._state, self._episode_start, self._carried,
            self._gradients, self._sums, totals, order, size, batch.sequence, batch.rows, batch.burn_in, obs, mean,
            scale, batch.mask, batch.action, batch.log_prob, batch.value, batch.advantage, batch.value_target, batch.weight,
            batch.episode_start, batch.state, batch.reference, self._of_value, coefficients.vector(), self._book,
        )  # fmt: skip

    def _see(self, batch: Batch, order: Array) -> tuple[Array, Array, Array]:
        """What the network reads of some sequences, with mean and scale: observations, or room for pooled tokens."""
        field = self.design.tokens
        if field is None or self._book is None:
            return batch.obs, batch.mean, batch.scale
        offset = self.design.stack.behind
        samples = samples_of(order, batch.sequence, batch.rows)
        self._book = build_token_cache(self._book, batch.obs, samples, field, 0, self.threads, offset)
        return self._book.pooled, *AS_IT_IS

    def survey(self, batch: Batch) -> BatchEvaluation:
        """Look at all samples without learning."""
        stack, samples = self.design.stack, len(batch.log_prob)
        order = np.arange(samples // batch.sequence)
        obs, mean, scale = self._see(batch, order)
        if self._book is not None:
            token_encoder.pool_all(self.params, self._book, np.arange(samples))
        log_prob, value = np.zeros(samples, np.float32), np.zeros(samples, np.float32)
        activity = np.zeros(stack.scratch_columns, np.float64)
        evaluate_batch(
            self.params, stack.table, stack.head, self._layers, self._scratch[0], self._probs[0],
            thread_slice(self._state, 0), self._episode_start[0], order, batch.sequence, batch.rows, batch.burn_in, obs, mean,
            scale, batch.mask, batch.action, batch.episode_start, batch.state, log_prob, value, activity,
        )  # fmt: skip
        sizes = {}
        for number, layer in enumerate(stack.layers):
            if number not in stack.heads:
                column, name = stack.table[number, OUT], layer.name + (".memory" if layer.kind != DENSE else "")
                sizes[name] = activity[column : column + layer.outputs] / samples
        return BatchEvaluation(log_prob, value, sizes)

    def gradient(self) -> Array:
        """The gradient of the last step taken."""
        last: Array = self._gradients[0]
        return last

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""
        return arrays_by_name(self.design.weights, self.params, self.moments, self.counters)

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        read_arrays(self.design.weights, arrays, self.params, self.moments, self.counters)
