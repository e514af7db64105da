"""One gradient step of PPO as scalar functions: a sample's loss and slopes, whether the step is taken, and Adam's part.

Written for one sample or one weight, so that a GPU has a thread for each; the loops beside them are what a CPU runs.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.algorithms.engine import CLIPPED, ENTROPY, KL, NORMS, POLICY, SAMPLES, UPDATES, VALUE
from slipstream.contracts import Array
from slipstream.policies.distributions import add_log_prob_gradient, log_prob_and_entropy
from slipstream.policies.fused_network import sample_index
from slipstream.policies.linear_algebra import ONE, TWO, ZERO, exponential
from slipstream.system.numba_compile import Number, compiled, compiled_fused

OLD_LOGP, OLD_VALUE, ADVANTAGE, GOAL, WEIGHT = range(5)
"""Columns of what is known of a sample."""


@compiled_fused
def surrogate(
    log_prob: Number, value: Number, old_log_prob: Number, old_value: Number, gain: Number, value_target: Number, clip: Number,
    clip_value: Number, imitating: bool,
) -> tuple[Number, Number, Number, Number, Number, Number]:  # fmt: skip
    """PPO's loss of one sample: its slopes by log-probability and by value; then what is logged of it.

    That is the policy's loss, the value's, the KL divergence, and 1 where the ratio was clipped.
    """
    difference = ZERO if imitating else log_prob - old_log_prob
    ratio = exponential(difference)
    held = min(max(ratio, ONE - clip), ONE + clip)
    by_logp = ZERO if held * gain < ratio * gain else -gain * ratio
    error = value - value_target
    loss = error * error
    if clip_value > ZERO:
        moved = value - old_value
        near = old_value + min(max(moved, -clip_value), clip_value) - value_target
        if near * near > loss:
            loss = near * near
            error = near if abs(moved) < clip_value else ZERO
    gained = -log_prob * gain if imitating else -min(ratio * gain, held * gain)
    return by_logp, TWO * error, gained, loss, (ratio - ONE) - difference, ONE if abs(ratio - ONE) > clip else ZERO


@compiled_fused
def loss_at(
    i: int, policy: Array, values: Array, column: int, log_std: Array, head: Array, index: Array, action: Array,
    known: Array, stats: Array, coefficients: Array, probs: Array, measured: Array, by_policy: Array, by_value: Array,
    by_log_std: Array, sums: Array,
) -> None:  # fmt: skip
    """The slopes of PPO's loss for one sample of a minibatch, and what it adds to the sums."""
    n = index[i]
    for k in range(by_policy.shape[1]):
        by_policy[i, k] = ZERO
    for k in range(by_log_std.shape[1]):
        by_log_std[i, k] = ZERO
    for k in range(by_value.shape[1]):
        by_value[i, k] = ZERO
    for k in range(sums.shape[1]):
        sums[i, k] = ZERO
    if known[n, WEIGHT] == ZERO:
        return
    share, gain = stats[2], (known[n, ADVANTAGE] - stats[0]) * stats[1] * known[n, WEIGHT]
    log_prob_and_entropy(policy[i], log_std, head, action[n], probs[i], measured[i])
    by_logp, by_error, gained, missed, moved, clipped = surrogate(
        measured[i, 0], values[i, column], known[n, OLD_LOGP], known[n, OLD_VALUE], gain, known[n, GOAL], coefficients[0],
        coefficients[1], False,
    )  # fmt: skip
    add_log_prob_gradient(
        policy[i], log_std, head, action[n], probs[i], share * coefficients[4] * by_logp, -share * coefficients[3], by_policy[i],
        by_log_std[i],
    )  # fmt: skip
    by_value[i, column] = share * coefficients[2] * by_error
    sums[i, POLICY], sums[i, VALUE], sums[i, KL], sums[i, CLIPPED] = gained, missed, moved, clipped
    sums[i, ENTROPY], sums[i, SAMPLES] = measured[i, 1], ONE


@compiled_fused
def losses(
    policy: Array, values: Array, column: int, log_std: Array, head: Array, index: Array, action: Array, known: Array,
    stats: Array, coefficients: Array, probs: Array, measured: Array, by_policy: Array, by_value: Array, by_log_std: Array,
    sums: Array,
) -> None:  # fmt: skip
    """The slopes of every sample of a minibatch."""
    for i in range(index.size):
        loss_at(
            i, policy, values, column, log_std, head, index, action, known, stats, coefficients, probs, measured, by_policy,
            by_value, by_log_std, sums,
        )  # fmt: skip


@compiled
def judge(i: int, norm: Array, added: Array, counters: Array, totals: Array, go: Array) -> None:
    """Decide whether a gradient step is taken, and count it."""
    fine = math.isfinite(norm[0]) and math.isfinite(added[POLICY] + added[VALUE]) and counters[1] < 3
    go[0] = 1 if fine else 0
    if fine:
        counters[0] += 1
        counters[1] = 0
        for k in range(SAMPLES + 1):
            totals[k] += added[k]
        totals[NORMS] += norm[0]
        totals[UPDATES] += 1.0
    elif counters[1] < 3:
        counters[1] += 1
        counters[2] += 1


@compiled
def judge_all(norm: Array, added: Array, counters: Array, totals: Array, go: Array) -> None:
    """The same, once."""
    judge(0, norm, added, counters, totals, go)


@compiled_fused
def adam_at(
    i: int, params: Array, gradient: Array, first: Array, second: Array, counters: Array, norm: Array, go: Array,
    coefficients: Array,
) -> None:  # fmt: skip
    """Adam's step of one weight, as `kernels.adam` has it; none where the gradient was not finite."""
    if go[0] == 0:
        return
    beta_1, beta_2, rate = np.float32(0.9), np.float32(0.999), np.float64(coefficients[6])
    count = np.float64(counters[0])
    root = np.float32(math.sqrt(1.0 - math.pow(0.999, count)))
    size = np.float32(rate / (1.0 - math.pow(0.9, count))) * root
    grad = gradient[i] * min(ONE, coefficients[5] / (norm[0] + np.float32(1e-6)))
    first[i] = beta_1 * first[i] + (ONE - beta_1) * grad
    second[i] = beta_2 * second[i] + (ONE - beta_2) * (grad * grad)
    kept = ONE - coefficients[6] * coefficients[8]
    params[i] = params[i] * kept - size * first[i] / (np.float32(math.sqrt(second[i])) + coefficients[7] * root)


@compiled_fused
def adam_all(
    params: Array,
    gradient: Array,
    first: Array,
    second: Array,
    counters: Array,
    norm: Array,
    go: Array,
    coefficients: Array,
) -> None:
    """Adam's step of every weight."""
    for i in range(params.size):
        adam_at(i, params, gradient, first, second, counters, norm, go, coefficients)


@compiled_fused
def standardise(
    values: Array, counts: Array, index: Array, steps: int, rows: int, wanted: bool
) -> tuple[Number, Number, Number]:
    """Mean and one over the deviation of the samples that count, and one over their number; 0 and 1 if not wanted."""
    total, squares, number = 0.0, 0.0, 0
    for turn in range(2):
        mean = total / max(1, number)
        for s in index:
            for step in range(steps):
                n = sample_index(s, step, steps, rows)
                if counts[n] > ZERO:
                    if turn == 0:
                        total += values[n]
                        number += 1
                    else:
                        squares += (values[n] - mean) ** 2
    share = np.float32(1.0 / max(1, number))
    if not wanted:
        return ZERO, ONE, share
    deviation = math.sqrt(squares / max(1, number - 1))
    return np.float32(total / max(1, number)), np.float32(1.0 / (deviation + 1e-8)), share
