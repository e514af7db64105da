"""The KL divergence of a policy from a reference policy, and its gradient."""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.distributions import SURE, apply_mask, softmax_part
from slipstream.policies.linear_algebra import HALF, ONE, TWO, ZERO, exponential, softplus
from slipstream.policies.parameter_layout import DISCRETE, HEAD_KIND, HEAD_OUTPUTS, HEAD_PARTS
from slipstream.system.numba_compile import Number, compiled_fused


@compiled_fused
def apply_masks(logits: Array, masks: Array, head: Array) -> None:
    """Mask the logits of invalid options, row by row."""
    for row in range(logits.shape[0]):
        apply_mask(logits[row], masks[row], head)


@compiled_fused
def add_kl_gradient(
    outputs: Array,
    log_std: Array,
    head: Array,
    other: Array,
    probs: Array,
    weight: Number,
    result: Array,
    log_std_result: Array,
) -> Number:
    """Return KL(policy || other) of a row and add `weight` times its gradient to `result`.

    `other` holds the masked outputs of the reference, for continuous actions followed by their log deviations. Call it
    after `add_log_prob_gradient` of the same row, which writes `result` and the probabilities of switches.
    """
    divergence = ZERO
    if head[HEAD_KIND] != DISCRETE:
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
