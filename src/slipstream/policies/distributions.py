"""Action distributions as compiled kernels: samples, log-probabilities, entropies, KL and gradients, row by row.

This is the only compiled implementation; the fused, torch, SAC and device code paths call it. `ActorCritic` in
`torch_policy.py` has the same formulas in torch.

The outputs of one row are logits (the discrete parts side by side, one logit for a binary part), then means (followed
by log standard deviations where these depend on the state). Only mixed actions have both; their parts are independent
given the observation, so log-probabilities, entropies and KL are sums over the parts. `head` is
`parameter_layout.head_table`. Masked options get a very low logit, so that their probability is exactly 0. A squashed
action is stored before tanh, where its density is Gaussian.
"""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.linear_algebra import HALF, ONE, TWO, ZERO, exponential, hyperbolic_tangent, logistic, softplus
from slipstream.policies.parameter_layout import (
    HEAD_KIND,
    HEAD_MEANS,
    HEAD_OUTPUTS,
    HEAD_PARTS,
    SQUASHED,
    SQUASHED_OWN,
)
from slipstream.system.numba_compile import Number, compiled_fused
from slipstream.system.rng import uniform

MASKED = np.float32(-1e9)
"""The logit of a masked option; a binary part whose `off` is masked has the logit -MASKED."""
SURE = np.float32(5e8)
"""Binary logits beyond this are masked: the probability is exactly 0 or 1."""
LOWEST = np.float32(-1e6)
"""The least logit in sums over options, so that masked ones add 0 instead of NaN."""
HALF_LOG_2PI = np.float32(0.5 * math.log(2 * math.pi))
LOG_2 = np.float32(math.log(2.0))
TWO_PI = np.float32(2 * math.pi)
LOG_STD_LOW, LOG_STD_HIGH = np.float32(-20), np.float32(2)
# Gauss-Hermite nodes and weights for the mean of a function under a standard normal distribution.
HERMITE_NODES = np.array([0.0, 1.3556262, -1.3556262, 2.8569700, -2.8569700], np.float32)
HERMITE_WEIGHTS = np.array([0.53333333, 0.22207592, 0.22207592, 0.011257411, 0.011257411], np.float32)


@compiled_fused
def apply_mask(logits: Array, mask: Array, head: Array) -> None:
    """Set the logits of one row so that options whose mask is 0 have probability 0."""
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
def apply_masks(logits: Array, masks: Array, head: Array) -> None:
    """Mask the logits of invalid options, row by row."""
    for row in range(logits.shape[0]):
        apply_mask(logits[row], masks[row], head)


@compiled_fused
def softmax_part(logits: Array, start: int, size: int, probs: Array) -> Number:
    """Write the probabilities of one part of a discrete action and return the log of the normaliser."""
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
def binary_prob(logit: Number) -> Number:
    """The probability that a binary part is 1; exactly 0 or 1 if the other option is masked."""
    if logit > SURE:
        return ONE
    return ZERO if logit < -SURE else logistic(logit)


@compiled_fused
def log_squash(x: Number) -> Number:
    """log(1 - tanh(x)^2), the log-determinant of tanh."""
    return TWO * (LOG_2 - x - softplus(-TWO * x))


@compiled_fused
def log_std_of(outputs: Array, log_std: Array, head: Array, k: int) -> Number:
    """The log standard deviation of continuous part `k`."""
    if head[HEAD_KIND] == SQUASHED_OWN:
        return min(max(outputs[head[HEAD_OUTPUTS] + k], LOG_STD_LOW), LOG_STD_HIGH)
    return log_std[k]


@compiled_fused
def standard_normal(streams: Array, row: int) -> Number:
    """Draw a standard normal number from the RNG stream of a row."""
    radius = np.float32(math.sqrt(-TWO * np.float32(math.log(uniform(streams, row)))))
    return radius * np.float32(math.cos(TWO_PI * uniform(streams, row)))


@compiled_fused
def sample(
    outputs: Array, log_std: Array, head: Array, streams: Array, row: int, probs: Array, action: Array
) -> Number:
    """Sample an action with the RNG stream of `row`, write it to `action`, and return its log-probability."""
    log_prob, start, parts = ZERO, 0, head.size - HEAD_PARTS
    for part in range(parts):
        size = head[HEAD_PARTS + part]
        threshold = uniform(streams, row)
        if size < 0:
            on = threshold <= binary_prob(outputs[start])
            action[part] = 1 if on else 0
            log_prob -= softplus(-outputs[start]) if on else softplus(outputs[start])
            start += 1
            continue
        normaliser = softmax_part(outputs, start, size, probs)
        choice, cumulative = -1, ZERO
        for j in range(size):
            cumulative += probs[start + j]
            if probs[start + j] > ZERO:
                choice = j
                if threshold < cumulative:
                    break
        action[part] = choice
        log_prob += outputs[start + choice] - normaliser
        start += size
    for k in range(head[HEAD_MEANS]):
        noise, log_sigma = standard_normal(streams, row), log_std_of(outputs, log_std, head, k)
        number = outputs[start + k] + noise * exponential(log_sigma)
        action[parts + k] = number
        log_prob -= HALF * noise * noise + log_sigma + HALF_LOG_2PI
        if head[HEAD_KIND] >= SQUASHED:
            log_prob -= log_squash(number)
    return log_prob


@compiled_fused
def greedy(outputs: Array, head: Array, action: Array) -> None:
    """Write the mode of the distribution to `action`."""
    start, parts = 0, head.size - HEAD_PARTS
    for part in range(parts):
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
    for k in range(head[HEAD_MEANS]):
        action[parts + k] = outputs[start + k]


@compiled_fused
def log_prob_and_entropy(
    outputs: Array, log_std: Array, head: Array, action: Array, probs: Array, result: Array
) -> None:
    """Write log-probability and entropy of an action to `result` [2]; `add_log_prob_gradient` reuses `probs`.

    The entropy of a squashed Gaussian is that of the Gaussian plus the mean of `log_squash`, by quadrature.
    """
    log_prob, entropy, start, parts = ZERO, ZERO, 0, head.size - HEAD_PARTS
    for part in range(parts):
        size = head[HEAD_PARTS + part]
        if size < 0:
            logit = outputs[start]
            probs[start] = binary_prob(logit)
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
    for k in range(head[HEAD_MEANS]):
        log_sigma, centre, number = log_std_of(outputs, log_std, head, k), outputs[start + k], action[parts + k]
        noise = (number - centre) * exponential(-log_sigma)
        probs[start + k] = noise
        log_prob -= HALF * noise * noise + log_sigma + HALF_LOG_2PI
        entropy += log_sigma + HALF_LOG_2PI + HALF
        if head[HEAD_KIND] >= SQUASHED:
            log_prob -= log_squash(number)
            for i in range(HERMITE_NODES.size):
                entropy += HERMITE_WEIGHTS[i] * log_squash(centre + exponential(log_sigma) * HERMITE_NODES[i])
    result[0] = log_prob
    result[1] = entropy


@compiled_fused
def add_log_prob_gradient(
    outputs: Array,
    log_std: Array,
    head: Array,
    action: Array,
    probs: Array,
    by_log_prob: Number,
    by_entropy: Number,
    result: Array,
    log_std_result: Array,
) -> None:
    """Write d(loss)/d(outputs), given d(loss)/d(log_prob) and d(loss)/d(entropy).

    Call `log_prob_and_entropy` for the same row first. d(loss)/d(log_std) is added to `log_std_result`.
    """
    start = 0
    for part in range(head.size - HEAD_PARTS):
        size = head[HEAD_PARTS + part]
        if size < 0:
            on = probs[start]
            chosen = ONE if action[part] else ZERO
            entropy_term = ZERO
            if abs(outputs[start]) < SURE:
                entropy_term = outputs[start] * on * (ONE - on)
            result[start] = by_log_prob * (chosen - on) - by_entropy * entropy_term
            start += 1
            continue
        # logits = log p + constant, so H = sum p (c - logit) and dH/dlogit_j = -p_j (logit_j - mean logit).
        mean = ZERO
        for j in range(start, start + size):
            mean += probs[j] * max(outputs[j], LOWEST)
        for j in range(start, start + size):
            result[j] = -probs[j] * (by_log_prob + by_entropy * (max(outputs[j], LOWEST) - mean))
        result[start + np.int64(action[part])] += by_log_prob
        start += size
    for k in range(head[HEAD_MEANS]):
        noise, log_sigma = probs[start + k], log_std_of(outputs, log_std, head, k)
        sigma = exponential(log_sigma)
        by_mean, by_log_sigma = (
            by_log_prob * noise * exponential(-log_sigma),
            by_log_prob * (noise * noise - ONE) + by_entropy,
        )
        if head[HEAD_KIND] >= SQUASHED:
            for i in range(HERMITE_NODES.size):
                squash_term = (
                    -TWO
                    * hyperbolic_tangent(outputs[start + k] + sigma * HERMITE_NODES[i])
                    * HERMITE_WEIGHTS[i]
                    * by_entropy
                )
                by_mean += squash_term
                by_log_sigma += squash_term * sigma * HERMITE_NODES[i]
        result[start + k] = by_mean
        log_std_result[k] += by_log_sigma


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

    `other` holds the masked outputs of the reference, followed by the log deviations of continuous parts. Call it
    after `add_log_prob_gradient` of the same row, which writes `result` and the probabilities of switches.
    """
    divergence, start = ZERO, 0
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
    for k in range(head[HEAD_MEANS]):
        gap, log_dev, log_other = outputs[start + k] - other[start + k], log_std[k], other[head[HEAD_OUTPUTS] + k]
        inverse = exponential(-TWO * log_other)
        ratio = exponential(TWO * (log_dev - log_other))
        divergence += log_other - log_dev + HALF * (ratio + gap * gap * inverse) - HALF
        result[start + k] += weight * gap * inverse
        log_std_result[k] += weight * (ratio - ONE)
    return divergence


@compiled_fused
def select_action(
    outputs: Array,
    log_std: Array,
    head: Array,
    mask: Array,
    masked: bool,
    streams: Array,
    row: int,
    probs: Array,
    sampled: bool,
    action: Array,
    log_prob: Array,
) -> None:
    """Write the action of one row: sampled, with its log-probability, or the mode. `mask` is read if `masked`."""
    if masked:
        apply_mask(outputs, mask, head)
    if sampled:
        log_prob[row] = sample(outputs, log_std, head, streams, row, probs, action)
    else:
        greedy(outputs, head, action)


@compiled_fused
def bound_row(row: int, raw: Array, low: Array, high: Array, squash: bool, out: Array) -> None:
    """Map the continuous parts of a policy action from [-1, 1] to [low, high]; discrete parts are copied.

    With `squash` they pass through tanh first, otherwise they are clipped to [-1, 1]. Parts without finite bounds are
    not scaled.
    """
    discrete = raw.shape[1] - low.size
    for k in range(discrete):
        out[row, k] = raw[row, k]
    for k in range(low.size):
        x = hyperbolic_tangent(raw[row, discrete + k]) if squash else raw[row, discrete + k]
        if math.isfinite(low[k]) and math.isfinite(high[k]):
            x = min(max(x, -ONE), ONE)
            x = low[k] + (x + ONE) * HALF * (high[k] - low[k])
        out[row, discrete + k] = x


@compiled_fused
def bound(raw: Array, low: Array, high: Array, squash: bool, out: Array) -> None:
    """Map policy actions to the env's, row by row."""
    for row in range(raw.shape[0]):
        bound_row(row, raw, low, high, squash, out)


@compiled_fused
def rsample_squashed(outputs: Array, head: Array, noise: Array, action: Array) -> Number:
    """Write the reparameterised action after tanh, given standard normal noise; return its log-probability."""
    log_prob = ZERO
    for k in range(head[HEAD_OUTPUTS]):
        log_sigma = log_std_of(outputs, outputs, head, k)
        raw = outputs[k] + noise[k] * exponential(log_sigma)
        action[k] = hyperbolic_tangent(raw)
        log_prob -= HALF * noise[k] * noise[k] + log_sigma + HALF_LOG_2PI + log_squash(raw)
    return log_prob


@compiled_fused
def rsample_gradient(
    outputs: Array, action: Array, noise: Array, by_action: Array, by_log_prob: Number, result: Array
) -> None:
    """Write d(loss)/d(outputs) of `rsample_squashed`, given d(loss)/d(action) and d(loss)/d(log_prob)."""
    parts = action.size
    for k in range(parts):
        a, log_sigma = action[k], outputs[parts + k]
        by_raw = by_action[k] * (ONE - a * a) + TWO * by_log_prob * a
        result[k] = by_raw
        if LOG_STD_LOW <= log_sigma <= LOG_STD_HIGH:
            result[parts + k] = by_raw * noise[k] * exponential(log_sigma) - by_log_prob


@compiled_fused
def categorical_entropy(logits: Array, mask: Array, head: Array, probs: Array) -> Number:
    """Mask the logits of a single discrete action, write its probabilities, and return the entropy."""
    if mask.size:
        apply_mask(logits, mask, head)
    normaliser, total = softmax_part(logits, 0, probs.size, probs), ZERO
    for j in range(probs.size):
        if probs[j] > ZERO:
            total += probs[j] * (normaliser - logits[j])
    return total


@compiled_fused
def soft_value_gradient(logits: Array, q: Array, alpha: Number, weight: Number, result: Array) -> Number:
    """Write `weight` * d(sum p (alpha log p - Q))/d(logits) of a discrete action; return sum p Q. Overwrites `q`."""
    probs = np.zeros(q.size, np.float32)
    normaliser, mean, value = softmax_part(logits, 0, q.size, probs), ZERO, ZERO
    for j in range(q.size):
        if probs[j] > ZERO:
            value += probs[j] * q[j]
            q[j] = alpha * (logits[j] - normaliser) - q[j]
            mean += probs[j] * q[j]
    for j in range(q.size):
        if probs[j] > ZERO:
            result[j] = weight * probs[j] * (q[j] - mean)
    return value
