"""The compiled token encoder against the torch module: acting, caching and absent tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.policies import token_encoder
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.fused_actor import FusedActor, make_actor
from slipstream.policies.torch_actor import TorchActor
from slipstream.policies.torch_policy import ActorCritic, state_columns
from slipstream.system.rng import make_streams

TOKENS = ObsSpec((ObsField("", "tokens", (16, 3)),))
ROWS = 70


def few_tokens(count: int, seed: int = 0) -> Array:
    """Token sets of few kinds, some empty, with gaps anywhere."""
    random = np.random.default_rng(seed)
    found = np.stack([random.integers(0, 200, (count, 16)) for _ in range(3)], axis=-1)
    found[..., 1] %= 5
    found[random.random((count, 16)) < 0.4, 0] = token_encoder.ABSENT
    found[:3, :, 0] = token_encoder.ABSENT
    return TOKENS.join({"": found})


def torch_outputs(design: Design, params_and_stats: Array, obs: Array, states: Array) -> tuple[Array, Array, Array]:
    """Outputs, values and states of the torch module."""
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    policy = ActorCritic(design)
    policy.load_state_dict({name: torch.from_numpy(array) for name, array in design.weights.named(params).items()})
    with torch.no_grad():
        result = policy(*(torch.from_numpy(array) for array in (obs, mean, scale, states)))
    return result.outputs.numpy(), result.value.numpy(), result.state.numpy()


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("hidden", [(), (24,)], ids=["bare", "hidden"])
def test_acting_equals_torch(memory: str, hidden: tuple[int, ...], make_policy: Callable[..., Any]) -> None:
    """Outputs, values and states agree for rows with many, few and no tokens, uncached and cached."""
    design, params_and_stats = make_policy("discrete", TOKENS, hidden, memory=memory, features=24)
    assert design.fused
    acting, obs = FusedActor(design), few_tokens(ROWS)
    acting.load(params_and_stats)
    rows, states = np.arange(ROWS), np.zeros((ROWS, design.state_size), np.float32)
    columns = state_columns(design, 1).reshape(-1)  # what the kernels pad stays zero
    states[:, columns] = np.random.default_rng(1).normal(0, 0.5, (ROWS, len(columns)))
    for _ in range(2):
        start = states.copy()
        outputs, values, after = torch_outputs(design, params_and_stats, obs, start)
        written, value = np.zeros((ROWS, design.outputs), np.float32), np.zeros(ROWS, np.float32)
        acting.value(rows, obs, value, states)
        acting.outputs(rows, obs, states, written)
        assert np.allclose(written, outputs, atol=2e-6) and np.allclose(value, values, atol=2e-6)
        assert np.allclose(states, after, atol=2e-6)


def test_a_row_does_not_depend_on_others(make_policy: Callable[..., Any]) -> None:
    """A row's result is equal bit for bit, whatever rows were encoded before or with it."""
    design, params_and_stats = make_policy("discrete", TOKENS, (), memory="lstm", features=24)
    obs, every = few_tokens(ROWS), np.arange(ROWS)

    def act(parts: list[Array]) -> tuple[Array, Array]:
        acting = make_actor(design)
        acting.load(params_and_stats)
        states = np.zeros((ROWS, design.state_size), np.float32)
        action, log_prob, value = np.zeros((ROWS, 1), np.int32), np.zeros(ROWS, np.float32), np.zeros(ROWS, np.float32)
        mask, streams = np.zeros((ROWS, 0), np.uint8), make_streams(0, "act", 0, ROWS)
        for rows in parts:
            acting.act(ActInputs(rows, obs, mask, states, streams), ActOutputs(action, log_prob, value), True)
        return value, states

    whole = act([every])
    for parts in ([every[40:], every[:40]], list(every[::-1].reshape(-1, 1))):
        assert all(np.array_equal(one, other) for one, other in zip(whole, act(parts), strict=True))


def test_the_cache_is_cleared(make_policy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached encodings are cleared when weights change, and when there are too many kinds."""
    design, params_and_stats = make_policy("discrete", TOKENS, (), features=24)
    obs, rows, states = few_tokens(ROWS), np.arange(ROWS), np.zeros((ROWS, 0), np.float32)
    acting, value = FusedActor(design), np.zeros(ROWS, np.float32)
    acting.load(params_and_stats)
    acting.value(rows, obs, value, states)
    other = params_and_stats * np.float32(1.1)
    acting.load(other)
    acting.value(rows, obs, value, states)
    assert np.allclose(value, torch_outputs(design, other, obs, states)[1], atol=2e-6)
    monkeypatch.setattr(token_encoder, "KNOWN", 50)
    for seed in range(1, 4):
        more = few_tokens(ROWS, seed)
        acting.value(rows, more, value, states)
        assert np.allclose(value, torch_outputs(design, other, more, states)[1], atol=2e-6)


def test_other_token_designs_use_torch(make_policy: Callable[..., Any]) -> None:
    """The kernels support tokens as the only field of a single network."""
    mixed = ObsSpec((ObsField("speed", "vector", (3,)), ObsField("map", "tokens", (16, 3))))
    for obs, shared in ((TOKENS, False), (mixed, True)):
        design, _ = make_policy("discrete", obs, (16,), shared=shared)
        assert not design.fused and isinstance(make_actor(design), TorchActor)
