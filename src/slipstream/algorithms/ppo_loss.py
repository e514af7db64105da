"""PPO's clipped loss and its gradient, advantage standardisation and Adam as scalar functions for compiled kernels.

`engines.torch_engine.ppo_loss` is the same loss in torch. The scalar functions are written for one sample or weight.
The fused kernel calls them in its loops; on a GPU each thread calls them for its own index (`gpu_kernels.launch`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
    SAMPLES,
    STEPS,
    UPDATES,
    VALUE_LOSS,
    Coefficients,
)
from slipstream.contracts import Array
from slipstream.policies.distributions import add_log_prob_gradient, log_prob_and_entropy
from slipstream.policies.fused_network import sample_index
from slipstream.policies.linear_algebra import ONE, TWO, ZERO, exponential
from slipstream.system.numba_compile import Number, compiled, compiled_fused

DeviceArray = Any
"""A torch tensor outside of kernels, an array inside."""


class RecordedSample(NamedTuple):
    """What the loss reads of one sample of the batch."""

    log_prob: Number
    value: Number
    advantage: Number
    value_target: Number


class SampleLoss(NamedTuple):
    """Loss and gradient of one sample."""

    d_log_prob: Number
    """Gradient of the policy loss by the log-probability."""
    d_value: Number
    """Gradient of the value loss by the value."""
    policy: Number
    value: Number
    kl: Number
    """The estimate (ratio - 1) - log(ratio) of the divergence from the policy that acted."""
    clipped: Number
    """1 where the ratio is outside of the clip range."""


@compiled_fused
def clipped_loss(
    log_prob: Number, value: Number, sample: RecordedSample, clip: Number, clip_value: Number, imitate: bool
) -> SampleLoss:
    """PPO's clipped surrogate and squared value error of one sample; with `imitate`, advantage * log_prob instead."""
    advantage = sample.advantage
    log_ratio = ZERO if imitate else log_prob - sample.log_prob
    ratio = exponential(log_ratio)
    clipped_ratio = min(max(ratio, ONE - clip), ONE + clip)
    d_log_prob = ZERO if clipped_ratio * advantage < ratio * advantage else -advantage * ratio
    error = value - sample.value_target
    value_loss = error * error
    if clip_value > ZERO:
        moved = value - sample.value
        clipped_error = sample.value + min(max(moved, -clip_value), clip_value) - sample.value_target
        if clipped_error * clipped_error > value_loss:
            value_loss = clipped_error * clipped_error
            error = clipped_error if abs(moved) < clip_value else ZERO
    policy_loss = -log_prob * advantage if imitate else -min(ratio * advantage, clipped_ratio * advantage)
    clipped = ONE if abs(ratio - ONE) > clip else ZERO
    return SampleLoss(d_log_prob, TWO * error, policy_loss, value_loss, (ratio - ONE) - log_ratio, clipped)


class Standardisation(NamedTuple):
    """How the advantages of a minibatch are standardised, and the share of one sample in its mean loss."""

    mean: Number
    inverse_std: Number
    share: Number


@compiled_fused
def standardise(advantage: Array, weight: Array, index: Array, steps: int, rows: int, enabled: bool) -> Standardisation:
    """Mean and one over the deviation of the samples of weight above 0 (0 and 1 if not enabled), one over their number.

    `index` names sequences of `steps` samples.
    """
    total, squares, number = 0.0, 0.0, 0
    for turn in range(2):
        mean = total / max(1, number)
        for s in index:
            for step in range(steps):
                n = sample_index(s, step, steps, rows)
                if weight[n] > ZERO:
                    if turn == 0:
                        total += advantage[n]
                        number += 1
                    else:
                        squares += (advantage[n] - mean) ** 2
    share = np.float32(1.0 / max(1, number))
    if not enabled:
        return Standardisation(ZERO, ONE, share)
    deviation = math.sqrt(squares / max(1, number - 1))
    return Standardisation(np.float32(total / max(1, number)), np.float32(1.0 / (deviation + 1e-8)), share)


class DeviceSamples(NamedTuple):
    """The samples of a rollout in device memory."""

    action: DeviceArray  # [samples, parts]
    log_prob: DeviceArray  # [samples]
    value: DeviceArray  # [samples]
    advantage: DeviceArray  # [samples]
    value_target: DeviceArray  # [samples]
    weight: DeviceArray  # [samples]: 0 where the policy did not act


class HeadOutputs(NamedTuple):
    """The outputs of the policy and value heads for a minibatch."""

    policy: DeviceArray  # [minibatch, columns]
    value: DeviceArray  # [minibatch, columns]
    value_column: int
    log_std: DeviceArray
    head: DeviceArray


class HeadGradients(NamedTuple):
    """The gradients of the heads' outputs, and what one sample adds to the sums."""

    policy: DeviceArray  # [minibatch, columns]
    value: DeviceArray  # [minibatch, columns]
    log_std: DeviceArray  # [minibatch, continuous parts]
    sums: DeviceArray  # [minibatch, SAMPLES + 1]
    probs: DeviceArray  # [minibatch, outputs]: workspace
    measured: DeviceArray  # [minibatch, 2]: workspace


class DeviceCoefficients(NamedTuple):
    """The coefficients of a step in device memory, in this order: a captured graph reads them at every replay."""

    clip: Number
    clip_value: Number
    value: Number
    entropy: Number
    policy: Number
    max_grad_norm: Number
    learning_rate: Number
    adam_eps: Number
    weight_decay: Number


def device_vector(coefficients: Coefficients) -> Array:
    """The coefficients in the order of `DeviceCoefficients`."""
    return np.array([float(getattr(coefficients, name)) for name in DeviceCoefficients._fields], np.float32)


@compiled_fused
def read_coefficients(vector: Array) -> DeviceCoefficients:
    """The coefficients from device memory."""
    return DeviceCoefficients(
        vector[0], vector[1], vector[2], vector[3], vector[4], vector[5], vector[6], vector[7], vector[8]
    )


@compiled_fused
def clear_row(array: Array, row: int) -> None:
    """Set a row to zero."""
    for k in range(array.shape[1]):
        array[row, k] = ZERO


@compiled_fused
def loss_at(
    i: int,
    outputs: HeadOutputs,
    samples: DeviceSamples,
    index: Array,
    standardisation: Array,
    coefficients: Array,
    gradients: HeadGradients,
) -> None:
    """Write the gradient of PPO's loss for sample `index[i]` of a minibatch, and what it adds to the sums."""
    n, c = index[i], read_coefficients(coefficients)
    clear_row(gradients.policy, i)
    clear_row(gradients.log_std, i)
    clear_row(gradients.value, i)
    clear_row(gradients.sums, i)
    if samples.weight[n] == ZERO:
        return
    share = standardisation[2]
    advantage = (samples.advantage[n] - standardisation[0]) * standardisation[1] * samples.weight[n]
    policy, probs, measured = outputs.policy[i], gradients.probs[i], gradients.measured[i]
    log_prob_and_entropy(policy, outputs.log_std, outputs.head, samples.action[n], probs, measured)
    loss = clipped_loss(
        measured[0],
        outputs.value[i, outputs.value_column],
        RecordedSample(samples.log_prob[n], samples.value[n], advantage, samples.value_target[n]),
        c.clip,
        c.clip_value,
        False,
    )
    add_log_prob_gradient(
        policy,
        outputs.log_std,
        outputs.head,
        samples.action[n],
        probs,
        share * c.policy * loss.d_log_prob,
        -share * c.entropy,
        gradients.policy[i],
        gradients.log_std[i],
    )
    gradients.value[i, outputs.value_column] = share * c.value * loss.d_value
    sums = gradients.sums[i]
    sums[POLICY_LOSS], sums[VALUE_LOSS], sums[KL], sums[CLIPPED] = loss.policy, loss.value, loss.kl, loss.clipped
    sums[ENTROPY], sums[SAMPLES] = measured[1], ONE


@compiled
def count_step(i: int, norm: Array, added: Array, counters: Array, totals: Array, accepted: Array) -> None:
    """Decide whether a gradient step is taken, and count it: `accepted` is 1 where gradient and loss are finite."""
    ended = counters[FAILED_IN_A_ROW] >= MAX_FAILED_IN_A_ROW
    fine = math.isfinite(norm[0]) and math.isfinite(added[POLICY_LOSS] + added[VALUE_LOSS]) and not ended
    accepted[0] = 1 if fine else 0
    if fine:
        counters[STEPS] += 1
        counters[FAILED_IN_A_ROW] = 0
        for k in range(SAMPLES + 1):
            totals[k] += added[k]
        totals[GRADIENT_NORMS] += norm[0]
        totals[UPDATES] += 1.0
    elif not ended:
        counters[FAILED_IN_A_ROW] += 1
        counters[FAILED_STEPS] += 1


class AdamState(NamedTuple):
    """Weights, gradient and moments of Adam in device memory."""

    params: DeviceArray
    gradient: DeviceArray
    first: DeviceArray
    second: DeviceArray


@compiled_fused
def adam_at(i: int, state: AdamState, counters: Array, norm: Array, accepted: Array, coefficients: Array) -> None:
    """Adam's step of one weight; none where the gradient step was not accepted."""
    if accepted[0] == 0:
        return
    c = read_coefficients(coefficients)
    beta_1, beta_2, rate = np.float32(0.9), np.float32(0.999), np.float64(c.learning_rate)
    count = np.float64(counters[STEPS])
    root = np.float32(math.sqrt(1.0 - math.pow(0.999, count)))
    size = np.float32(rate / (1.0 - math.pow(0.9, count))) * root
    grad = state.gradient[i] * min(ONE, c.max_grad_norm / (norm[0] + np.float32(1e-6)))
    first = beta_1 * state.first[i] + (ONE - beta_1) * grad
    second = beta_2 * state.second[i] + (ONE - beta_2) * (grad * grad)
    state.first[i], state.second[i] = first, second
    kept = ONE - c.learning_rate * c.weight_decay
    state.params[i] = state.params[i] * kept - size * first / (np.float32(math.sqrt(second)) + c.adam_eps * root)
