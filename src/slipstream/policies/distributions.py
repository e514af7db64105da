"""What the policy's outputs mean: probabilities, samples, entropy, and their slopes, row by row.

Outputs of one row are logits (the parts of a choice side by side, one number for a switch) or means (followed by
log deviations where every state has its own); `head` is `layout.head_table`. Ruled-out options get a very low logit, so
that their probability is exactly 0. A squashed action is kept as it was before tanh, where its density is a Gaussian's.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.linear_algebra import HALF, ONE, TWO, ZERO, exponential, hyperbolic_tangent, logistic, softplus
from slipstream.policies.parameter_layout import CHOICES, HEAD_KIND, HEAD_OUTPUTS, HEAD_PARTS, SQUASHED, SQUASHED_OWN
from slipstream.system.numba_compile import Number, compiled_fused
from slipstream.system.rng import uniform

MASKED = np.float32(-1e9)
SURE = np.float32(5e8)
LOWEST = np.float32(-1e6)
HALF_LOG_2PI = np.float32(0.5 * math.log(2 * math.pi))
LOG_2 = np.float32(math.log(2.0))
TWO_PI = np.float32(2 * math.pi)
LOG_STD_LOW, LOG_STD_HIGH = np.float32(-20), np.float32(2)
# Gauss-Hermite points and weights for the mean of a function under a standard normal.
NODES = np.array([0.0, 1.3556262, -1.3556262, 2.8569700, -2.8569700], np.float32)
SHARES = np.array([0.53333333, 0.22207592, 0.22207592, 0.011257411, 0.011257411], np.float32)


@compiled_fused
def apply_mask(logits: Array, mask: Array, head: Array) -> None:
    """Rule out the options whose mask is 0."""
    at, column = 0, 0
    for part in range(head.size - HEAD_PARTS):
        size = head[HEAD_PARTS + part]
        if size < 0:
            if mask[column] == 0:
                logits[at] = -MASKED
            if mask[column + 1] == 0:
                logits[at] = MASKED
            at, column = at + 1, column + 2
            continue
        for j in range(size):
            if mask[column + j] == 0:
                logits[at + j] = MASKED
        at, column = at + size, column + size


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
def switch_on(logit: Number) -> Number:
    """The chance that a switch is on, exactly 0 or 1 where the other is ruled out."""
    if logit > SURE:
        return ONE
    return ZERO if logit < -SURE else logistic(logit)


@compiled_fused
def log_squash(x: Number) -> Number:
    """log(1 - tanh(x)^2), by which squashing thins a density out."""
    return TWO * (LOG_2 - x - softplus(-TWO * x))


@compiled_fused
def log_deviation(outputs: Array, log_std: Array, head: Array, k: int) -> Number:
    """The log standard deviation of one continuous action."""
    if head[HEAD_KIND] == SQUASHED_OWN:
        return min(max(outputs[head[HEAD_OUTPUTS] + k], LOG_STD_LOW), LOG_STD_HIGH)
    return log_std[k]


@compiled_fused
def normal(streams: Array, row: int) -> Number:
    """A standard normal number from a row's own stream."""
    radius = np.float32(math.sqrt(-TWO * np.float32(math.log(uniform(streams, row)))))
    return radius * np.float32(math.cos(TWO_PI * uniform(streams, row)))


@compiled_fused
def sample(
    outputs: Array, log_std: Array, head: Array, streams: Array, row: int, probs: Array, action: Array
) -> Number:
    """Draw an action from the row's own stream, write it, and return its log-probability."""
    log_prob = ZERO
    if head[HEAD_KIND] != CHOICES:
        for k in range(head[HEAD_OUTPUTS]):
            noise, log_dev = normal(streams, row), log_deviation(outputs, log_std, head, k)
            action[k] = outputs[k] + noise * exponential(log_dev)
            log_prob -= HALF * noise * noise + log_dev + HALF_LOG_2PI
            if head[HEAD_KIND] >= SQUASHED:
                log_prob -= log_squash(action[k])
        return log_prob
    start = 0
    for part in range(head.size - HEAD_PARTS):
        size = head[HEAD_PARTS + part]
        mark = uniform(streams, row)
        if size < 0:
            on = mark <= switch_on(outputs[start])
            action[part] = 1 if on else 0
            log_prob -= softplus(-outputs[start]) if on else softplus(outputs[start])
            start += 1
            continue
        normaliser = softmax_part(outputs, start, size, probs)
        choice, seen = -1, ZERO
        for j in range(size):
            seen += probs[start + j]
            if probs[start + j] > ZERO:
                choice = j
                if mark < seen:
                    break
        action[part] = choice
        log_prob += outputs[start + choice] - normaliser
        start += size
    return log_prob


@compiled_fused
def greedy(outputs: Array, head: Array, action: Array) -> None:
    """Write the likeliest action."""
    if head[HEAD_KIND] != CHOICES:
        for k in range(head[HEAD_OUTPUTS]):
            action[k] = outputs[k]
        return
    start = 0
    for part in range(head.size - HEAD_PARTS):
        size = head[HEAD_PARTS + part]
        if size < 0:
            action[part] = 1 if outputs[start] > ZERO else 0
            start += 1
            continue
        best = 0
        for j in range(1, size):
            if outputs[start + j] > outputs[start + best]:
                best = j
        action[part] = best
        start += size


@compiled_fused
def log_prob_and_entropy(
    outputs: Array, log_std: Array, head: Array, action: Array, probs: Array, result: Array
) -> None:
    """Write log-probability and entropy of an action; `probs` keeps what `add_log_prob_gradient` needs.

    The entropy of a squashed Gaussian is its Gaussian's plus the mean of `log_squash`, by five points of quadrature.
    """
    log_prob, entropy = ZERO, ZERO
    if head[HEAD_KIND] != CHOICES:
        for k in range(head[HEAD_OUTPUTS]):
            log_dev = log_deviation(outputs, log_std, head, k)
            noise = (action[k] - outputs[k]) * exponential(-log_dev)
            probs[k] = noise
            log_prob -= HALF * noise * noise + log_dev + HALF_LOG_2PI
            entropy += log_dev + HALF_LOG_2PI + HALF
            if head[HEAD_KIND] >= SQUASHED:
                log_prob -= log_squash(action[k])
                for i in range(NODES.size):
                    entropy += SHARES[i] * log_squash(outputs[k] + exponential(log_dev) * NODES[i])
    else:
        start = 0
        for part in range(head.size - HEAD_PARTS):
            size = head[HEAD_PARTS + part]
            if size < 0:
                logit = outputs[start]
                probs[start] = switch_on(logit)
                log_prob -= softplus(-logit) if action[part] else softplus(logit)
                if abs(logit) < SURE:
                    entropy += softplus(logit) - logit * probs[start]
                start += 1
                continue
            normaliser = softmax_part(outputs, start, size, probs)
            log_prob += outputs[start + np.int64(action[part])] - normaliser
            mean = ZERO
            for j in range(start, start + size):
                mean += probs[j] * max(outputs[j], LOWEST)
            entropy += normaliser - mean
            start += size
    result[0] = log_prob
    result[1] = entropy


@compiled_fused
def add_log_prob_gradient(
    outputs: Array, log_std: Array, head: Array, action: Array, probs: Array, by_logp: Number, by_entropy: Number,
    result: Array, log_std_result: Array,
) -> None:  # fmt: skip
    """Write d(loss)/d(outputs), given d(loss)/d(logp) and d(loss)/d(entropy), after `log_prob_and_entropy` of the same row."""
    if head[HEAD_KIND] != CHOICES:
        for k in range(head[HEAD_OUTPUTS]):
            noise, log_dev = probs[k], log_deviation(outputs, log_std, head, k)
            deviation = exponential(log_dev)
            by_mean, by_deviation = (
                by_logp * noise * exponential(-log_dev),
                by_logp * (noise * noise - ONE) + by_entropy,
            )
            if head[HEAD_KIND] >= SQUASHED:
                for i in range(NODES.size):
                    bent = -TWO * hyperbolic_tangent(outputs[k] + deviation * NODES[i]) * SHARES[i] * by_entropy
                    by_mean += bent
                    by_deviation += bent * deviation * NODES[i]
            result[k] = by_mean
            log_std_result[k] += by_deviation
        return
    start = 0
    for part in range(head.size - HEAD_PARTS):
        size = head[HEAD_PARTS + part]
        if size < 0:
            on = probs[start]
            chosen = ONE if action[part] else ZERO
            bent = ZERO
            if abs(outputs[start]) < SURE:
                bent = outputs[start] * on * (ONE - on)
            result[start] = by_logp * (chosen - on) - by_entropy * bent
            start += 1
            continue
        # logits = log p + constant, so H = sum p (c - logit) and dH/dlogit_j = -p_j (logit_j - mean logit).
        mean = ZERO
        for j in range(start, start + size):
            mean += probs[j] * max(outputs[j], LOWEST)
        for j in range(start, start + size):
            result[j] = -probs[j] * (by_logp + by_entropy * (max(outputs[j], LOWEST) - mean))
        result[start + np.int64(action[part])] += by_logp
        start += size
