"""Compiled arithmetic against NumPy and torch: exponential, tangent, products, networks of odd sizes, memories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.contracts import Array
from slipstream.policies.design import Design
from slipstream.policies.fused_network import forward, load_obs, outputs
from slipstream.policies.linear_algebra import (
    OBS_LIMIT,
    Activations,
    adam,
    exponential,
    hyperbolic_tangent,
    logistic,
    product,
    softplus,
)
from slipstream.policies.recurrent import keep_state
from slipstream.policies.torch_policy import ActorCritic, state_columns

SIZES = [(1, (50, 3)), (17, (50, 3)), (17, ()), (8, (16,)), (33, (5, 7, 9))]
KINDS = ["discrete", "multi_discrete", "continuous", "squashed", "masked", "masked_multi", "binary", "masked_binary"]
KINDS += ["mixed", "masked_mixed"]


def module_of(design: Design, params_and_stats: Array) -> tuple[ActorCritic, torch.Tensor, torch.Tensor]:
    """The torch module with the weights of a pack, and its normaliser."""
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    policy = ActorCritic(design)
    policy.load_state_dict({name: torch.from_numpy(array) for name, array in design.weights.named(params).items()})
    return policy, torch.from_numpy(mean), torch.from_numpy(scale)


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


def test_logistic_and_softplus_are_accurate_and_do_not_overflow() -> None:
    """They follow NumPy to float32 accuracy, and far out they are 0, 1 or the number itself."""
    xs = np.linspace(-30, 30, 1201).astype(np.float32)
    exact = xs.astype(np.float64)
    assert np.abs([logistic(x) for x in xs] - 1 / (1 + np.exp(-exact))).max() < 1e-6
    assert np.allclose([softplus(x) for x in xs], np.logaddexp(0, exact), rtol=1e-6, atol=1e-6)
    assert softplus(np.float32(1e9)) == 1e9 and softplus(np.float32(-1e9)) == 0
    assert logistic(np.float32(1e9)) == 1 and 0 <= logistic(np.float32(-1e9)) < 1e-37


def test_product_adds_onto_what_is_there() -> None:
    """c += a @ b on the named rows and terms, and nothing else is touched."""
    random = np.random.default_rng(0)
    a, b = random.normal(size=(12, 8)).astype(np.float32), random.normal(size=(8, 16)).astype(np.float32)
    c = np.ones((12, 16), np.float32)
    product(a, b, c, 8, 4)
    assert np.allclose(c[:8], 1 + a[:8, :4] @ b[:4], atol=1e-5)
    assert (c[8:] == 1).all()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_is_that_of_torch(decay: float) -> None:
    """Five steps with clipping and decoupled decay give AdamW's weights."""
    random = np.random.default_rng(0)
    params = random.normal(size=20).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(params.copy()))
    optimizer = torch.optim.AdamW([theirs], lr=1e-2, eps=1e-5, weight_decay=decay)
    first, second = np.zeros((2, 20), np.float32)
    for count in range(1, 6):
        gradient = random.normal(size=20).astype(np.float32)
        adam(params, gradient, first, second, count, 1e-2, 1e-5, 0.5, decay)
        theirs.grad = torch.from_numpy(0.5 * gradient)
        optimizer.step()
    assert np.allclose(params, theirs.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
def test_network_and_heads_equal_the_torch_definition(
    kind: str,
    shared: bool,
    activation: str,
    make_policy: Callable[..., Any],
    make_samples: Callable[..., Any],
    kernel_measure: Callable[..., Any],
) -> None:
    """Outputs, values, log-probabilities and entropies are the module's to 1e-5, whatever the sizes."""
    for seed, (obs_size, hidden) in enumerate(SIZES):
        memory = ("none", "gru", "lstm")[seed % 3]
        more = {"layer_norm": seed % 2 == 1, "memory": memory, "memory_layers": 1 + seed // 3}
        design, params_and_stats = make_policy(kind, obs_size, hidden, activation, shared, seed, **more)
        obs, mask, action = make_samples(design, 40, seed)
        policy, mean, scale = module_of(design, params_and_stats)
        with torch.no_grad():
            told = policy(torch.from_numpy(obs), mean, scale, torch.zeros(40, design.state_size))
            allowed = torch.from_numpy(mask) if mask.shape[1] else None
            log_prob, entropy = policy.log_prob_and_entropy(told.outputs, torch.from_numpy(action), allowed)
        ours = kernel_measure(design, params_and_stats, obs, mask, action)
        names, theirs = ("outputs", "value", "log_prob", "entropy"), (told.outputs, told.value, log_prob, entropy)
        for name, one, other in zip(names, ours, theirs, strict=True):
            assert np.allclose(one, other.numpy(), atol=2e-5, rtol=1e-5), f"{name} at {obs_size}, {hidden}, {memory}"


def test_far_observations_are_held_at_the_limit(
    make_policy: Callable[..., Any], kernel_measure: Callable[..., Any]
) -> None:
    """A normalised observation is never larger than the limit, so one outlier cannot blow the network up.

    One that is not normalised (scale 1) is read as it is.
    """
    design, params_and_stats = make_policy("discrete", 2, (16,))
    _, mean, scale = design.split_params_and_stats(params_and_stats)
    mean[:], scale[:] = 0, 0.5
    action, mask = np.zeros((2, 1), np.int32), np.zeros((2, 0), np.uint8)
    far = np.array([[2 * OBS_LIMIT, -2 * OBS_LIMIT], [1e9, -1e9]], np.float32)
    told = kernel_measure(design, params_and_stats, far, mask, action)[0]
    assert np.array_equal(told[0], told[1])
    scale[:] = 1
    near = np.array([[0.1, 0.2], [12.0, -15.0]], np.float32)
    before = kernel_measure(design, params_and_stats, near, mask, action)[0]
    scale[:] = 1 - 6e-8
    after = kernel_measure(design, params_and_stats, near, mask, action)[0]
    assert np.allclose(before[0], after[0], atol=1e-5) and not np.allclose(before[1], after[1], atol=1e-4)


def run_steps(
    design: Design, params_and_stats: Array, obs: Array, state: Array, episode_start: Array
) -> tuple[Array, Array]:
    """Run the kernels over [steps, lanes] observations at once: outputs [steps, lanes], and the states they end in."""
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    steps, lanes = episode_start.shape
    stack = design.stack
    scratch = np.zeros(steps * lanes * stack.scratch_columns, np.float32)
    inputs = outputs(scratch, steps * lanes, stack.table, -1)
    for row in range(steps * lanes):
        load_obs(obs.reshape(steps * lanes, -1), row, mean, scale, inputs[row])
    forward(params, stack.table, Activations(scratch, steps * lanes, episode_start), state, lanes, steps)
    told = outputs(scratch, steps * lanes, stack.table, stack.policy_layer)[:, : design.outputs]
    after = np.zeros_like(state)
    for lane in range(lanes):
        keep_state(stack.table, scratch, steps * lanes, (steps - 1) * lanes, lane, after[lane])
    return told.reshape(steps, lanes, -1).copy(), after


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_sequence_is_its_steps(memory: str, shared: bool, make_policy: Callable[..., Any]) -> None:
    """A sequence with resets inside gives the bits of step after step, in kernels; and torch gives the same numbers."""
    for seed in range(3):
        design, params_and_stats = make_policy(
            "discrete", 5, (12,), shared=shared, memory=memory, memory_layers=2, seed=seed
        )
        random = np.random.default_rng(seed)
        steps, lanes = 7, 8
        obs = random.normal(0, 1, (steps, lanes, 5)).astype(np.float32)
        episode_start = (random.random((steps, lanes)) < 0.25).astype(np.uint8)
        state = np.zeros((lanes, design.state_size), np.float32)
        columns = state_columns(design, 1 if shared else 2).reshape(-1)
        state[:, columns] = random.normal(0, 0.5, (lanes, len(columns)))
        whole, ended = run_steps(design, params_and_stats, obs, state, episode_start)
        held = state
        for t in range(steps):
            told, held = run_steps(design, params_and_stats, obs[t : t + 1], held, episode_start[t : t + 1])
            assert np.array_equal(told[0], whole[t])
        assert np.array_equal(held, ended)
        policy, mean, scale = module_of(design, params_and_stats)
        with torch.no_grad():
            theirs = policy(
                torch.from_numpy(obs.reshape(-1, 5)),
                mean,
                scale,
                torch.from_numpy(state),
                torch.from_numpy(episode_start),
            )
        assert np.allclose(theirs.outputs.numpy(), whole.reshape(steps * lanes, -1), atol=1e-5)
        assert np.allclose(theirs.state.numpy(), ended, atol=1e-5)
