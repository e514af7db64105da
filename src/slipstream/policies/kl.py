"""How far a policy is from another: what the other tells, and the slopes of the divergence from it."""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.distributions import SURE, apply_mask, log_deviation, softmax_part
from slipstream.policies.fused_network import forward, load_lanes, outputs
from slipstream.policies.linear_algebra import CHUNK, HALF, ONE, TWO, ZERO, exponential, softplus
from slipstream.policies.parameter_layout import CHOICES, HEAD_KIND, HEAD_OUTPUTS, HEAD_PARTS
from slipstream.policies.recurrent import keep_state
from slipstream.system.numba_compile import Number, compiled_fused


@compiled_fused
def apply_masks(logits: Array, masks: Array, head: Array) -> None:
    """Rule out options row by row."""
    for row in range(logits.shape[0]):
        apply_mask(logits[row], masks[row], head)


@compiled_fused
def policy_outputs(
    params: Array, table: Array, head: Array, layers: tuple[int, int], mean: Array, scale: Array, scratch: Array,
    state: Array | None, episode_start: Array, rows: Array, obs: Array, states: Array, told: Array,
) -> None:  # fmt: skip
    """Write the policy's outputs for the rows, and behind means their log deviations; move their states on."""
    inputs, policy = outputs(scratch, CHUNK, table, -1), outputs(scratch, CHUNK, table, layers[0])
    log_std = params[head[3] :]
    for first in range(0, rows.size, CHUNK):
        count = min(CHUNK, rows.size - first)
        lanes = load_lanes(obs, rows, first, count, mean, scale, states, inputs, state)
        forward(params, table, scratch, CHUNK, lanes, 1, state, episode_start)
        for i in range(count):
            row = rows[first + i]
            for k in range(head[1]):
                told[row, k] = policy[i, k]
            for k in range(told.shape[1] - head[1]):
                told[row, head[1] + k] = log_deviation(policy[i], log_std, head, k)
            if state is not None:
                keep_state(table, scratch, CHUNK, 0, i, states[row])


@compiled_fused
def add_kl_gradient(
    outputs: Array, log_std: Array, head: Array, other: Array, probs: Array, weight: Number, result: Array,
    log_std_result: Array,
) -> Number:  # fmt: skip
    """Return KL(policy || other) of a row and add `weight` times its slopes, after `grads` of the same row.

    `other` holds the other's masked outputs, and behind the means their log deviations.
    """
    divergence = ZERO
    if head[HEAD_KIND] != CHOICES:
        count = head[HEAD_OUTPUTS]
        for k in range(count):
            gap, log_dev, log_other = outputs[k] - other[k], log_std[k], other[count + k]
            inverse = exponential(-TWO * log_other)
            ratio = exponential(TWO * (log_dev - log_other))
            divergence += log_other - log_dev + HALF * (ratio + gap * gap * inverse) - HALF
            result[k] += weight * gap * inverse
            log_std_result[k] += weight * (ratio - ONE)
        return divergence
    start = 0
    for part in range(head.size - HEAD_PARTS):
        size = head[HEAD_PARTS + part]
        if size < 0:
            p, gap = probs[start], outputs[start] - other[start]
            if abs(outputs[start]) < SURE:
                divergence += p * gap + softplus(other[start]) - softplus(outputs[start])
                result[start] += weight * p * (ONE - p) * gap
            start += 1
            continue
        top = other[start]
        for j in range(start + 1, start + size):
            top = max(top, other[j])
        total = ZERO
        for j in range(start, start + size):
            total += exponential(other[j] - top)
        shift, part_sum = top + np.float32(math.log(total)), ZERO
        own = softmax_part(outputs, start, size, probs)
        for j in range(start, start + size):
            if probs[j] > ZERO:
                part_sum += probs[j] * ((outputs[j] - own) - (other[j] - shift))
        for j in range(start, start + size):
            if probs[j] > ZERO:
                result[j] += weight * probs[j] * ((outputs[j] - own) - (other[j] - shift) - part_sum)
        divergence += part_sum
        start += size
    return divergence
