"""Action distributions: entropies, squashed densities, binary parts and divergences, against explicit sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.contracts import Array
from slipstream.policies.design import Design
from slipstream.policies.distributions import (
    MASKED,
    add_kl_gradient,
    add_log_prob_gradient,
    apply_mask,
    greedy,
    log_prob_and_entropy,
    log_squash,
    sample,
)
from slipstream.policies.torch_policy import ActorCritic
from slipstream.system.rng import make_streams

KINDS = ["discrete", "multi_discrete", "continuous", "squashed", "masked", "masked_multi", "binary", "masked_binary"]
KINDS += ["mixed", "masked_mixed"]


def measured(design: Design, outputs: Array, log_std: Array, action: Array) -> tuple[float, float]:
    """Log-probability and entropy of one row."""
    result, probs = np.zeros(2, np.float32), np.zeros(design.outputs, np.float32)
    log_prob_and_entropy(outputs, log_std, design.head, action, probs, result)
    return float(result[0]), float(result[1])


def test_a_binary_part_is_bernoulli(make_policy: Callable[..., Any]) -> None:
    """A logit l means probability 1 / (1 + exp(-l)); log-probabilities and entropies of parts add up."""
    design, _ = make_policy("binary")
    outputs = np.array([0.8, 0.1, -0.3, 0.5, -1.2], np.float32)
    on, off = 1 / (1 + math.exp(-0.8)), 1 / (1 + math.exp(1.2))
    middle = np.exp([0.1, -0.3, 0.5]) / np.exp([0.1, -0.3, 0.5]).sum()

    def entropy(*probabilities: float) -> float:
        return -sum(p * math.log(p) for p in probabilities)

    log_prob, spread = measured(design, outputs, np.zeros(0, np.float32), np.array([1, 2, 0], np.int32))
    assert log_prob == pytest.approx(math.log(on) + math.log(middle[2]) + math.log(1 - off), rel=1e-5)
    assert spread == pytest.approx(entropy(on, 1 - on) + entropy(*middle) + entropy(off, 1 - off), rel=1e-5)


def test_a_masked_binary_option_is_never_selected(make_policy: Callable[..., Any]) -> None:
    """With one option allowed it is always selected, with zero entropy."""
    design, _ = make_policy("masked_binary")
    for mask, sides in (([0, 1, 1, 1, 1, 1, 0], (1, 0)), ([1, 0, 1, 1, 1, 0, 1], (0, 1))):
        outputs = np.array([-3.0, 0.0, 0.0, 0.0, 3.0], np.float32)
        apply_mask(outputs, np.array(mask, np.uint8), design.head)
        action, probs = np.zeros(3, np.int32), np.zeros(5, np.float32)
        streams = make_streams(0, "act", 0, 1)
        for _ in range(50):
            log_prob = sample(outputs, np.zeros(0, np.float32), design.head, streams, 0, probs, action)
            assert (action[0], action[2]) == sides
            assert log_prob == pytest.approx(-math.log(3), abs=1e-6)
        greedy(outputs, design.head, action)
        assert (action[0], action[2]) == sides
        assert measured(design, outputs, np.zeros(0, np.float32), action)[1] == pytest.approx(math.log(3), abs=1e-6)


def test_a_squashed_density_integrates_to_one(make_policy: Callable[..., Any]) -> None:
    """exp(log_prob) integrates to 1 over the squashed action in (-1, 1)."""
    design, _ = make_policy("squashed")
    outputs, log_std = np.array([0.4, -0.2, 0.9], np.float32), np.array([-0.5, 0.3, -1.0], np.float32)
    grid = np.linspace(-0.99999, 0.99999, 20001)
    others = measured(design, outputs, log_std, np.zeros(3, np.float32))[0]
    for k in range(3):
        at = np.zeros((len(grid), 3), np.float32)
        at[:, k] = np.arctanh(grid)
        logs = np.array([measured(design, outputs, log_std, row)[0] for row in at])
        noise = outputs[k] / np.exp(log_std[k])
        own = -0.5 * noise**2 - log_std[k] - 0.5 * math.log(2 * math.pi)
        assert np.exp(logs - others + own).sum() * (grid[1] - grid[0]) == pytest.approx(1.0, abs=0.01)


def test_the_entropy_of_a_squashed_action_is_near_that_of_many_draws(make_policy: Callable[..., Any]) -> None:
    """The quadrature is within 0.1 of the mean of -log_prob over 100,000 samples."""
    design, _ = make_policy("squashed")
    random = np.random.default_rng(0)
    for mean, log_dev in ((0.0, -1.0), (0.5, -0.5), (-1.0, 0.0)):
        outputs, log_std = np.full(3, mean, np.float32), np.full(3, log_dev, np.float32)
        raw = mean + math.exp(log_dev) * random.standard_normal(100_000)
        thinned = np.log(1 - np.tanh(raw) ** 2)
        expected = 3 * (log_dev + 0.5 * math.log(2 * math.pi) + 0.5 + thinned.mean())
        assert measured(design, outputs, log_std, np.zeros(3, np.float32))[1] == pytest.approx(expected, abs=0.1)


def test_state_dependent_log_std(make_policy: Callable[..., Any]) -> None:
    """Without a value, the second half of the outputs are log standard deviations, clipped to [-20, 2]."""
    squashed, own = make_policy("squashed")[0], make_policy("squashed", value=False)[0]
    mean, log_std = np.array([0.4, -0.2, 0.9], np.float32), np.array([-0.5, 0.3, 2.0], np.float32)
    action, none = np.array([0.1, 0.2, -0.3], np.float32), np.zeros(0, np.float32)
    expected = measured(squashed, mean, log_std, action)
    assert measured(own, np.concatenate([mean, log_std]), none, action) == expected
    assert measured(own, np.concatenate([mean, log_std + np.array([0, 0, 5], np.float32)]), none, action) == expected
    drawn = []
    for design, outputs, deviations in ((squashed, mean, log_std), (own, np.concatenate([mean, log_std]), none)):
        streams, probs, into = make_streams(3, "act", 0, 1), np.zeros(6, np.float32), np.zeros(3, np.float32)
        drawn.append((sample(outputs, deviations, design.head, streams, 0, probs, into), *into))
    assert drawn[0] == drawn[1]


def test_log_squash_does_not_overflow() -> None:
    """log(1 - tanh(x)^2) is exact near 0 and linear where 1 - tanh(x)^2 underflows in float32."""
    for x in (-3.0, -0.1, 0.0, 1.5):
        assert log_squash(np.float32(x)) == pytest.approx(math.log(1 - math.tanh(x) ** 2), abs=1e-5)
    assert log_squash(np.float32(30)) == pytest.approx(2 * (math.log(2) - 30), rel=1e-6)
    assert log_squash(np.float32(-30)) == pytest.approx(2 * (math.log(2) - 30), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_divergence_equal_autograd(
    kind: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    """Gradients of log-probability, entropy and KL divergence, and the divergence itself, equal torch's."""
    for seed in range(3):
        design, _ = make_policy(kind, seed=seed)
        random = np.random.default_rng(seed)
        _, mask, action = make_samples(design, 30, seed)
        outputs = random.normal(0, 1.5, (30, design.outputs)).astype(np.float32)
        log_std = random.normal(-0.3, 0.3, design.action.continuous_parts).astype(np.float32)
        width = design.outputs + design.action.continuous_parts
        other = random.normal(0, 0.7, (30, width)).astype(np.float32)
        if mask.shape[1]:
            for row, allowed in zip(other, mask, strict=True):
                apply_mask(row, allowed, design.head)
        policy = ActorCritic(design)
        tensor = torch.from_numpy(outputs.copy()).requires_grad_()
        if design.action.continuous_parts:
            policy.log_std.data = torch.from_numpy(log_std.copy())
        masks = torch.from_numpy(mask) if mask.shape[1] else None
        log_prob, entropy = policy.log_prob_and_entropy(tensor, torch.from_numpy(action), masks)
        divergence = policy.kl_divergence(tensor, torch.from_numpy(other), masks)
        (0.7 * log_prob - 0.3 * entropy + 0.4 * divergence).sum().backward()
        log_prob, entropy, divergence = log_prob.detach(), entropy.detach(), divergence.detach()
        by_std = np.zeros_like(log_std)
        for i in range(30):
            row, probs = outputs[i].copy(), np.zeros(design.outputs, np.float32)
            result, found = np.zeros(design.outputs, np.float32), np.zeros(2, np.float32)
            if mask.shape[1]:
                apply_mask(row, mask[i], design.head)
            log_prob_and_entropy(row, log_std, design.head, action[i], probs, found)
            add_log_prob_gradient(
                row, log_std, design.head, action[i], probs, np.float32(0.7), np.float32(-0.3), result, by_std
            )
            near = add_kl_gradient(row, log_std, design.head, other[i], probs, np.float32(0.4), result, by_std)
            assert found == pytest.approx([float(log_prob[i]), float(entropy[i])], abs=2e-5, rel=1e-5)
            assert near == pytest.approx(float(divergence[i]), abs=2e-5, rel=1e-4)
            assert np.isfinite(result).all()
            assert result == pytest.approx(tensor.grad[i].numpy(), abs=2e-5, rel=1e-4)  # type: ignore[index]
        if design.action.continuous_parts:
            assert policy.log_std.grad is not None
            assert by_std == pytest.approx(policy.log_std.grad.numpy(), abs=1e-4, rel=1e-4)


def test_a_mixed_action_by_hand(make_policy: Callable[..., Any]) -> None:
    """Log-probability, entropy and KL are those of a softmax, a Bernoulli and two Gaussians, added up."""
    design, _ = make_policy("mixed")
    outputs = np.array([math.log(2), 0.0, 0.0, math.log(3), 0.5, -1.0], np.float32)
    log_std = np.array([0.0, math.log(2)], np.float32)
    action = np.array([0, 1, 1.5, 1.0], np.float32)
    # Probabilities (1/2, 1/4, 1/4) and 3/4. The first number is one std from its mean, the second also: 1.0 - -1.0 = 2.
    gaussians = -2 * (0.5 + 0.5 * math.log(2 * math.pi)) - math.log(2)
    entropies = 1.5 * math.log(2) + (0.75 * math.log(4 / 3) + 0.25 * math.log(4)) + math.log(2)
    entropies += 2 * (0.5 * math.log(2 * math.pi) + 0.5)
    expected = math.log(0.5) + math.log(0.75) + gaussians, entropies
    assert measured(design, outputs, log_std, action) == pytest.approx(expected, rel=1e-5)
    policy, rows = ActorCritic(design), torch.from_numpy(outputs[None])
    policy.log_std.data = torch.from_numpy(log_std)
    in_torch = policy.log_prob_and_entropy(rows, torch.from_numpy(action[None]), None)
    assert [float(one[0].detach()) for one in in_torch] == pytest.approx(expected, rel=1e-5)
    # The reference: (1/3, 1/3, 1/3), 1/2, N(0.5, 2) and N(1, 2).
    other = np.array([0, 0, 0, 0, 0.5, 1.0, math.log(2), math.log(2)], np.float32)
    divergence = (0.5 * math.log(1.5) + 0.5 * math.log(0.75)) + (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    divergence += (math.log(2) + 1 / 8 - 1 / 2) + 0.5
    found = policy.kl_divergence(rows, torch.from_numpy(other[None]), None)
    assert float(found[0].detach()) == pytest.approx(divergence, rel=1e-5)
    taken = np.zeros(4, np.float32)
    greedy(outputs, design.head, taken)
    assert taken.tolist() == [0, 1, 0.5, -1.0]


def test_divergence_by_hand(make_policy: Callable[..., Any]) -> None:
    """KL of (1/2, 1/2) from (3/4, 1/4), of a policy from itself, and of shifted Gaussians."""
    design, _ = make_policy("masked")
    rest = [MASKED] * 3
    ours = np.array([0.0, 0.0, *rest], np.float32)
    theirs = np.array([math.log(3), 0.0, *rest], np.float32)

    def divergence(design: Design, one: Array, log_std: Array, two: Array) -> float:
        probs, result = np.zeros(design.outputs, np.float32), np.zeros(design.outputs, np.float32)
        action = np.zeros(design.action.parts, design.action.dtype)
        log_prob_and_entropy(one, log_std, design.head, action, probs, np.zeros(2, np.float32))
        return float(add_kl_gradient(one, log_std, design.head, two, probs, np.float32(0), result, log_std.copy()))

    none = np.zeros(0, np.float32)
    assert divergence(design, ours, none, theirs) == pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2), abs=1e-6)
    assert divergence(design, ours, none, ours.copy()) == 0
    design, _ = make_policy("continuous")
    two = np.array([1.0, 0.0, 0.0, 0.0, math.log(2), 0.0], np.float32)
    # Means that differ by one std: 1/2. Stds 1 and 2: log 2 + 1/8 - 1/2.
    expected = 0.5 + math.log(2) + 1 / 8 - 1 / 2
    assert divergence(design, np.zeros(3, np.float32), np.zeros(3, np.float32), two) == pytest.approx(
        expected, abs=1e-6
    )
