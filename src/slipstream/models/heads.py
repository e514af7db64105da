"""What the policy's outputs mean: probabilities, samples, entropy, and their slopes, row by row.

Outputs of one row are logits (discrete parts side by side) or means; `head` is `Shape.head`.
Masked logits are replaced by a very low number, so that their probability is exactly 0.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.core.compile import Number, compiled_fused
from slipstream.core.contracts import Array
from slipstream.core.streams import uniform
from slipstream.models.kernels import HALF, ONE, TWO, ZERO, exponential

MASKED = np.float32(-1e9)
HALF_LOG_2PI = np.float32(0.5 * math.log(2 * math.pi))
TWO_PI = np.float32(2 * math.pi)


@compiled_fused
def apply_mask(logits: Array, mask: Array) -> None:
    """Rule out the options whose mask is 0."""
    for j in range(mask.size):
        if mask[j] == 0:
            logits[j] = MASKED


@compiled_fused
def softmax_part(logits: Array, start: int, size: int, probs: Array) -> Number:
    """Write the probabilities of one part and return the log of the normaliser."""
    top = logits[start]
    for j in range(start + 1, start + size):
        top = max(top, logits[j])
    for j in range(start, start + size):
        probs[j] = exponential(logits[j] - top) if logits[j] > MASKED else ZERO
    total = ZERO
    for j in range(start, start + size):
        total += probs[j]
    inverse = ONE / total
    for j in range(start, start + size):
        probs[j] *= inverse
    return top + np.float32(math.log(total))


@compiled_fused
def sample(
    outputs: Array, log_std: Array, head: Array, streams: Array, row: int, probs: Array, action: Array
) -> Number:
    """Draw an action from the row's own stream, write it, and return its log-probability."""
    logp = ZERO
    if head[0] == 1:
        for k in range(head[1]):
            radius = np.float32(math.sqrt(-TWO * np.float32(math.log(uniform(streams, row)))))
            noise = radius * np.float32(math.cos(TWO_PI * uniform(streams, row)))
            action[k] = outputs[k] + noise * exponential(log_std[k])
            logp -= HALF * noise * noise + log_std[k] + HALF_LOG_2PI
        return logp
    start = 0
    for part in range(head.size - 4):
        size = head[4 + part]
        normaliser = softmax_part(outputs, start, size, probs)
        mark = uniform(streams, row)
        choice, seen = -1, ZERO
        for j in range(size):
            seen += probs[start + j]
            if probs[start + j] > ZERO:
                choice = j
                if mark < seen:
                    break
        action[part] = choice
        logp += outputs[start + choice] - normaliser
        start += size
    return logp


@compiled_fused
def greedy(outputs: Array, head: Array, action: Array) -> None:
    """Write the likeliest action."""
    if head[0] == 1:
        for k in range(head[1]):
            action[k] = outputs[k]
        return
    start = 0
    for part in range(head.size - 4):
        best = 0
        for j in range(1, head[4 + part]):
            if outputs[start + j] > outputs[start + best]:
                best = j
        action[part] = best
        start += head[4 + part]


@compiled_fused
def measure(outputs: Array, log_std: Array, head: Array, action: Array, probs: Array, result: Array) -> None:
    """Write log-probability and entropy of an action; `probs` keeps what `slopes` needs."""
    logp, entropy = ZERO, ZERO
    if head[0] == 1:
        for k in range(head[1]):
            noise = (action[k] - outputs[k]) * exponential(-log_std[k])
            probs[k] = noise
            logp -= HALF * noise * noise + log_std[k] + HALF_LOG_2PI
            entropy += log_std[k] + HALF_LOG_2PI + HALF
    else:
        start = 0
        for part in range(head.size - 4):
            normaliser = softmax_part(outputs, start, head[4 + part], probs)
            logp += outputs[start + np.int64(action[part])] - normaliser
            mean = ZERO
            for j in range(start, start + head[4 + part]):
                mean += probs[j] * max(outputs[j], np.float32(-1e6))
            entropy += normaliser - mean
            start += head[4 + part]
    result[0] = logp
    result[1] = entropy


@compiled_fused
def slopes(
    outputs: Array, log_std: Array, head: Array, action: Array, probs: Array, by_logp: Number, by_entropy: Number,
    result: Array, log_std_result: Array,
) -> None:  # fmt: skip
    """Write d(loss)/d(outputs), given d(loss)/d(logp) and d(loss)/d(entropy), after `measure` of the same row."""
    if head[0] == 1:
        for k in range(head[1]):
            noise = probs[k]
            result[k] = by_logp * noise * exponential(-log_std[k])
            log_std_result[k] += by_logp * (noise * noise - ONE) + by_entropy
        return
    start = 0
    for part in range(head.size - 4):
        size = head[4 + part]
        # logits = log p + constant, so H = sum p (c - logit) and dH/dlogit_j = -p_j (logit_j - mean logit).
        mean = ZERO
        for j in range(start, start + size):
            mean += probs[j] * max(outputs[j], np.float32(-1e6))
        for j in range(start, start + size):
            result[j] = -probs[j] * (by_logp + by_entropy * (max(outputs[j], np.float32(-1e6)) - mean))
        result[start + np.int64(action[part])] += by_logp
        start += size
