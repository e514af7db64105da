"""Compiled arithmetic against NumPy: exponential, tangent, products and networks of odd sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.models.acting import split_pack
from slipstream.models.kernels import OBS_LIMIT, exponential, hyperbolic_tangent, product
from slipstream.models.reference import ActorCritic

SIZES = [(1, (50, 3)), (17, (50, 3)), (17, ()), (8, (16,)), (33, (5, 7, 9))]


def test_exponential_is_accurate_to_float32() -> None:
    """Within a few units in the last place over the whole range, and saturated, not infinite, outside."""
    xs = np.linspace(-87, 88, 5001).astype(np.float32)
    ours = np.array([exponential(x) for x in xs], np.float64)
    assert np.abs(ours / np.exp(xs.astype(np.float64)) - 1).max() < 5e-7
    assert exponential(np.float32(0)) == 1.0
    assert 0 <= exponential(np.float32(-1000)) < 1e-37
    assert np.isfinite(exponential(np.float32(1000)))


def test_hyperbolic_tangent_is_accurate_to_float32() -> None:
    """Absolute error below 5e-7 everywhere, relative below 1e-5 near zero, odd, and within [-1, 1]."""
    xs = np.concatenate([np.linspace(-12, 12, 4001), np.linspace(-0.2, 0.2, 2001)]).astype(np.float32)
    ours = np.array([hyperbolic_tangent(x) for x in xs], np.float64)
    exact = np.tanh(xs.astype(np.float64))
    assert np.abs(ours - exact).max() < 5e-7
    near = (np.abs(xs) < 0.2) & (xs != 0)
    assert np.abs(ours[near] / exact[near] - 1).max() < 1e-5
    assert np.abs(ours).max() <= 1
    assert hyperbolic_tangent(np.float32(0)) == 0


def test_product_adds_onto_what_is_there() -> None:
    """c += a @ b on the named rows and terms, and nothing else is touched."""
    random = np.random.default_rng(0)
    a, b = random.normal(size=(12, 8)).astype(np.float32), random.normal(size=(8, 16)).astype(np.float32)
    c = np.ones((12, 16), np.float32)
    product(a, b, c, 8, 4)
    assert np.allclose(c[:8], 1 + a[:8, :4] @ b[:4], atol=1e-5)
    assert (c[8:] == 1).all()


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "continuous", "masked", "masked_multi"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_network_and_heads_equal_the_torch_definition(
    kind: str, shared: bool, activation: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any],
    kernel_measure: Callable[..., Any],
) -> None:  # fmt: skip
    """Outputs, values, log-probabilities and entropies are the module's to 1e-5, whatever the sizes."""
    for seed, (obs_size, hidden) in enumerate(SIZES):
        shape, pack = make_policy(kind, obs_size, hidden, activation, shared, seed)
        obs, mask, action = make_samples(shape, 40, seed)
        params, mean, scale = split_pack(shape, pack)
        policy = ActorCritic(shape)
        policy.load_state_dict({name: torch.from_numpy(array) for name, array in shape.named(params).items()})
        limit = float(OBS_LIMIT)
        with torch.no_grad():
            outputs, value = policy(torch.from_numpy((obs - mean) * scale).clamp(-limit, limit))
            allowed = torch.from_numpy(mask) if mask.shape[1] else None
            logp, entropy = policy.measure(outputs, torch.from_numpy(action), allowed)
        ours = kernel_measure(shape, pack, obs, mask, action)
        names, theirs = ("outputs", "value", "logp", "entropy"), (outputs, value, logp, entropy)
        for name, one, other in zip(names, ours, theirs, strict=True):
            assert np.allclose(one, other.numpy(), atol=1e-5, rtol=1e-5), f"{name} at {obs_size}, {hidden}"


def test_far_observations_are_held_at_the_limit(
    make_policy: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> None:
    """A normalised observation is never larger than the limit, so one outlier cannot blow the network up."""
    shape, pack = make_policy("discrete", 2, (16,))
    _, mean, scale = split_pack(shape, pack)
    mean[:], scale[:] = 0, 1
    action, mask = np.zeros((2, 1), np.int32), np.zeros((2, 0), np.uint8)
    far = np.array([[10.0, -10.0], [1e9, -1e9]], np.float32)
    outputs = kernel_measure(shape, pack, far, mask, action)[0]
    assert np.array_equal(outputs[0], outputs[1])
