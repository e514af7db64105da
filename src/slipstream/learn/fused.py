"""One PPO iteration as a compiled kernel: gather, forward, loss, backward, clip and Adam, for all epochs.

`reference.py` says the same in torch; a parity test binds the two. Rows of a minibatch are shared out over threads,
each with a gradient of its own, added up in a fixed order, so that the result depends on the number of threads
but never on chance.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numba
import numpy as np

from slipstream.core.compile import Number, compiled_fused, compiled_threads
from slipstream.core.contracts import Array
from slipstream.learn.batch import Batch, Knobs, Outcome
from slipstream.models.heads import apply_mask, measure, slopes
from slipstream.models.kernels import (
    CHUNK,
    adam,
    backward,
    exponential,
    forward,
    load_obs,
    outputs,
    squared_length,
    transpose_weights,
)
from slipstream.models.shape import Shape

ZERO, ONE, TWO = np.float32(0), np.float32(1), np.float32(2)
SUMS = 6  # policy loss, value loss, entropy, kl, clipped, samples


@compiled_fused
def add_gradient(
    params: Array, table: Array, head: Array, transposed: Array, scratch: Array, slope_memory: Array, probs: Array,
    gradient: Array, sums: Array, index: Array, obs: Array, mean: Array, scale: Array, mask: Array, action: Array,
    old_logp: Array, old_value: Array, advantage: Array, goal: Array, shift: Number, factor: Number,
    weight: Number, clip: Number, clip_value: Number, value_weight: Number, entropy_weight: Number,
) -> None:  # fmt: skip
    """Add the gradient of the samples in `index`, each counted with `weight`, and their sums."""
    inputs = outputs(scratch, table, -1)
    last = table.shape[0] - 1
    last_policy = last if table[last, 6] == 0 else table.shape[0] // 2 - 1
    policy, values = outputs(scratch, table, last_policy), outputs(scratch, table, last)
    policy_slopes, value_slopes = outputs(slope_memory, table, last_policy), outputs(slope_memory, table, last)
    log_std, log_std_gradient = params[head[3] :], gradient[head[3] :]
    measured = np.zeros(2, np.float32)
    for first in range(0, index.size, CHUNK):
        count = min(CHUNK, index.size - first)
        padded = (count + 3) // 4 * 4
        for i in range(count):
            load_obs(obs, index[first + i], mean, scale, inputs[i])
        forward(params, table, scratch, padded)
        policy_slopes[:padded] = ZERO
        value_slopes[:padded] = ZERO
        for i in range(count):
            n = index[first + i]
            if mask.shape[1]:
                apply_mask(policy[i], mask[n])
            measure(policy[i], log_std, head, action[n], probs, measured)
            difference = measured[0] - old_logp[n]
            ratio = exponential(difference)
            gain = (advantage[n] - shift) * factor
            held = min(max(ratio, ONE - clip), ONE + clip)
            clipped = held * gain < ratio * gain
            by_logp = ZERO if clipped else -weight * gain * ratio
            slopes(policy[i], log_std, head, action[n], probs, by_logp, -weight * entropy_weight,
                   policy_slopes[i], log_std_gradient)  # fmt: skip
            error = values[i, head[2]] - goal[n]
            loss = error * error
            if clip_value > ZERO:
                moved = values[i, head[2]] - old_value[n]
                near = old_value[n] + min(max(moved, -clip_value), clip_value) - goal[n]
                if near * near > loss:
                    loss = near * near
                    error = near if abs(moved) < clip_value else ZERO
            value_slopes[i, head[2]] = weight * value_weight * TWO * error
            sums[0] -= min(ratio * gain, held * gain)
            sums[1] += loss
            sums[2] += measured[1]
            sums[3] += (ratio - ONE) - difference
            sums[4] += 1.0 if abs(ratio - ONE) > clip else 0.0
            sums[5] += 1.0
        backward(table, transposed, scratch, slope_memory, gradient, padded)


@compiled_fused
def standardise(values: Array, index: Array) -> tuple[Number, Number]:
    """Mean and one over the deviation of the named values."""
    total, squares = 0.0, 0.0
    for i in index:
        total += values[i]
    mean = total / index.size
    for i in index:
        squares += (values[i] - mean) ** 2
    deviation = math.sqrt(squares / max(1, index.size - 1))
    return np.float32(mean), np.float32(1.0 / (deviation + 1e-8))


@compiled_fused
def add_into(total: Array, part: Array) -> None:
    """total += part, element by element."""
    for i in range(total.size):
        total[i] += part[i]


def run_epochs(
    params: Array, first: Array, second: Array, counters: Array, table: Array, head: Array, transposed: Array,
    scratch: Array, slope_memory: Array, probs: Array, gradients: Array, sums: Array, totals: Array, order: Array,
    minibatch: int, obs: Array, mean: Array, scale: Array, mask: Array, action: Array, old_logp: Array,
    old_value: Array, advantage: Array, goal: Array, knobs: Array,
) -> None:  # fmt: skip
    """Take every gradient step of one iteration; `totals` gets the sums over its minibatches."""
    threads = gradients.shape[0]
    clip, clip_value = np.float32(knobs[0]), np.float32(knobs[1])
    value_weight, entropy_weight = np.float32(knobs[2]), np.float32(knobs[3])
    for epoch in range(order.shape[0]):
        before = totals[3], totals[5]
        for start in range(0, order.shape[1], minibatch):
            index = order[epoch, start : start + minibatch]
            shift, factor = ZERO, ONE
            if knobs[7] > 0:
                shift, factor = standardise(advantage, index)
            weight = np.float32(1.0 / index.size)
            share = (index.size + 4 * threads - 1) // (4 * threads) * 4
            transpose_weights(params, table, transposed)
            for thread in numba.prange(threads):
                gradients[thread, :] = ZERO
                sums[thread, :] = 0.0
                low, high = min(thread * share, index.size), min((thread + 1) * share, index.size)
                add_gradient(
                    params, table, head, transposed, scratch[thread], slope_memory[thread], probs[thread],
                    gradients[thread], sums[thread], index[low:high], obs, mean, scale, mask, action, old_logp,
                    old_value, advantage, goal, shift, factor, weight, clip, clip_value, value_weight, entropy_weight,
                )  # fmt: skip
            gradient = gradients[0]
            for thread in range(1, threads):
                add_into(gradient, gradients[thread])
                sums[0] += sums[thread]
            length = math.sqrt(squared_length(gradient))
            if math.isfinite(length) and math.isfinite(sums[0, 0] + sums[0, 1]):
                counters[0] += 1
                counters[1] = 0
                totals[:6] += sums[0, :6]
                totals[6] += length
                totals[7] += 1.0
                adam(params, gradient, first, second, counters[0], knobs[5], knobs[6],
                     min(1.0, knobs[4] / (length + 1e-6)))  # fmt: skip
            else:
                counters[1] += 1
                counters[2] += 1
                if counters[1] >= 3:
                    return
        samples = totals[5] - before[1]
        if knobs[8] > 0 and samples > 0 and (totals[3] - before[0]) / samples > knobs[8]:
            return


run_alone = compiled_fused(run_epochs)
run_together = compiled_threads(run_epochs)


class FusedEngine:
    """Weights and Adam state in flat arrays, and the memory that the kernel works in."""

    def __init__(self, shape: Shape, params: Array, threads: int) -> None:
        self.shape = shape
        self.params = params
        self.threads = threads
        self.moments = np.zeros((2, shape.size), np.float32)
        self.counters = np.zeros(3, np.int64)
        """Adam steps, failed steps in a row, failed steps in all."""
        self._scratch = np.zeros((threads, CHUNK * shape.scratch_columns), np.float32)
        self._slopes = np.zeros_like(self._scratch)
        self._probs = np.zeros((threads, max(1, shape.action.outputs)), np.float32)
        self._gradients: Array = np.zeros((threads, shape.size), np.float32)
        self._sums = np.zeros((threads, SUMS), np.float64)
        widths = [b.columns * a.columns for net in shape.nets for a, b in pairwise(net)]
        self._transposed = np.zeros(max(1, sum(widths)), np.float32)

    def run(self, batch: Batch, order: Array, knobs: Knobs) -> Outcome:
        """Take the gradient steps of one iteration on the samples in `order` [epochs, samples]."""
        run = run_alone
        if self.threads > 1:
            limit: int = getattr(numba.config, "NUMBA_NUM_THREADS")  # noqa: B009 (set at import, unknown to mypy)
            numba.set_num_threads(min(self.threads, limit))
            run = run_together
        totals = np.zeros(8, np.float64)
        failed = int(self.counters[2])
        run(
            self.params, self.moments[0], self.moments[1], self.counters, self.shape.table, self.shape.head,
            self._transposed, self._scratch, self._slopes, self._probs, self._gradients, self._sums, totals, order,
            knobs.minibatch, batch.obs, batch.mean, batch.scale, batch.mask, batch.action, batch.logp, batch.value,
            batch.advantage, batch.goal, knobs.vector(),
        )  # fmt: skip
        return Outcome.of(totals, int(self.counters[2]) - failed, diverged=bool(self.counters[1] >= 3))

    def gradient(self) -> Array:
        """The gradient of the last step taken."""
        last: Array = self._gradients[0]
        return last

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""
        arrays = {f"weight/{name}": array for name, array in self.shape.named(self.params).items()}
        for row, kind in enumerate(("first", "second")):
            arrays |= {f"{kind}/{name}": array for name, array in self.shape.named(self.moments[row]).items()}
        return arrays | {"counters": self.counters.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        self.shape.flatten(_under(arrays, "weight/"), self.params)
        for row, kind in enumerate(("first/", "second/")):
            self.shape.flatten(_under(arrays, kind), self.moments[row])
        self.counters[:] = arrays["counters"]


def _under(arrays: dict[str, Array], prefix: str) -> dict[str, Array]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
