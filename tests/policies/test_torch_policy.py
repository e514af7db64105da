"""The policy in torch: names and shapes of the layout, sequences with resets, initial weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.policies.design import Design
from slipstream.policies.torch_policy import ActorCritic, initial_weights, split_sequences, state_columns

SEEN = ObsSpec(
    (ObsField("speed", "vector", (3,)), ObsField("eye", "image", (12, 12, 1)), ObsField("map", "tokens", (6, 3)))
)


def test_names_and_shapes_are_those_of_the_layout(make_policy: Callable[..., Any]) -> None:
    """For designs that the kernels run, the module has exactly the layout's arrays."""
    choices = product(
        ("discrete", "continuous", "binary"),
        ((), (9, 5)),
        (True, False),
        (True, False),
        ("none", "gru", "lstm"),
        (1, 3),
        (True, False),
    )
    for kind, hidden, shared, norm, memory, layers, value in choices:
        more = {"layer_norm": norm, "memory": memory, "memory_layers": layers, "value": value}
        design, _ = make_policy(kind, 6, hidden, shared=shared, **more)
        module = {name: tuple(p.shape) for name, p in ActorCritic(design).named_parameters()}
        assert module == {slot.name: slot.shape for slot in design.stack.slots}


def test_building_a_policy_does_not_use_the_global_rng(make_policy: Callable[..., Any]) -> None:
    """Neither a module nor initial weights draw from torch's global RNG."""
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    design, _ = make_policy("discrete", SEEN)
    initial_weights(design, 0)
    ActorCritic(design)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("image", ["nature", "impala"])
def test_initial_weights_of_encoders(image: str, make_policy: Callable[..., Any]) -> None:
    """Convolutions and matrices are orthogonal with gain sqrt(2), embeddings small, biases 0."""
    design, _ = make_policy("continuous", SEEN, image=image, memory="lstm", shared=False, features=16)
    named = initial_weights(design, 5)
    assert {name: array.shape for name, array in named.items()} == {s.name: s.shape for s in design.weights.slots}
    modules = dict(ActorCritic(design).named_modules())
    encoded = [name for name in named if ".encoder." in name]
    assert {name.partition(".")[0] for name in encoded} == {"policy", "value"}
    for name in encoded:
        owner, array = modules[name.rpartition(".")[0]], named[name]
        if array.ndim == 1 or name.endswith(".second.weight"):
            assert not array.any(), "a residual starts at nothing"
        elif isinstance(owner, nn.Embedding):
            assert 0.05 < array.std() < 0.2
        else:
            flat = array.reshape(len(array), -1) / 2**0.5
            flat = flat if len(flat) <= flat.shape[1] else flat.T
            assert np.allclose(flat @ flat.T, np.eye(len(flat)), atol=1e-4), name
    assert named["log_std"] == pytest.approx(-0.3)
    assert np.abs(named["policy.head.weight"]).max() < 0.011
    again, other = initial_weights(design, 5), initial_weights(design, 6)
    assert all(np.array_equal(again[name], named[name]) for name in named)
    assert not np.array_equal(
        other["policy.encoder.readers.0.stages.0.0.weight"], named["policy.encoder.readers.0.stages.0.0.weight"]
    )


def test_initial_weights_of_vector_designs_are_those_of_the_layout(make_policy: Callable[..., Any]) -> None:
    """Without encoders, torch starts from the kernels' weights."""
    design, _ = make_policy("continuous", 6, memory="gru")
    named = design.weights.named(design.initial_weights(2))
    ours = initial_weights(design, 2)
    assert named.keys() == ours.keys() and all(np.array_equal(named[name], ours[name]) for name in named)


def test_split_sequences_by_hand() -> None:
    """Three lanes of four steps: one whole, one split before its third step, one that starts an episode."""
    episode_start = torch.tensor([[0, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=torch.uint8)
    pieces = split_sequences(episode_start, 3)
    # Pieces, longest first: lane 0 (4 steps), lane 2 (4), lane 1 (2), lane 1 again (2). Row = step * 3 + lane.
    assert pieces.sizes.tolist() == [4, 4, 2, 2]
    assert pieces.lanes.tolist() == [0, 2, 1, 1]
    assert pieces.carried is not None and pieces.carried.reshape(-1).tolist() == [1, 0, 1, 0]
    assert pieces.order.tolist() == [0, 2, 1, 7, 3, 5, 4, 10, 6, 8, 9, 11]
    assert pieces.ends.tolist() == [0, 3, 1]
    assert pieces.order[pieces.inverse].tolist() == list(range(12))


def random_policy(design: Design, params_and_stats: Array) -> tuple[ActorCritic, torch.Tensor, torch.Tensor]:
    """The module with random weights, and its normaliser."""
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    policy = ActorCritic(design)
    policy.load_state_dict({name: torch.from_numpy(array) for name, array in design.weights.named(params).items()})
    return policy, torch.from_numpy(mean), torch.from_numpy(scale)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("obs", [5, SEEN], ids=["plain", "mixed"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_sequence_equals_its_steps(
    memory: str, obs: Any, layers: int, make_policy: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    """Sequences with resets give the outputs, values and last states of single steps."""
    for seed, shared in enumerate((True, False)):
        design, params_and_stats = make_policy(
            "discrete", obs, (12,), shared=shared, memory=memory, memory_layers=layers, seed=seed
        )
        steps, lanes, random = 9, 5, np.random.default_rng(seed)
        rows = torch.from_numpy(make_samples(design, steps * lanes, seed)[0])
        episode_start = torch.from_numpy((random.random((steps, lanes)) < 0.3).astype(np.uint8))
        columns = state_columns(design, 1 if shared else 2).reshape(-1)
        start = torch.zeros(lanes, design.state_size)
        start[:, columns] = torch.from_numpy(random.normal(0, 0.5, (lanes, len(columns))).astype(np.float32))
        policy, mean, scale = random_policy(design, params_and_stats)
        with torch.no_grad():
            whole = policy(rows, mean, scale, start, episode_start)
            state = start
            for t in range(steps):
                state = state * (1 - episode_start[t].float())[:, None]
                result = policy(rows[t * lanes : (t + 1) * lanes], mean, scale, state)
                state = result.state
                now = slice(t * lanes, (t + 1) * lanes)
                assert torch.allclose(whole.outputs[now], result.outputs, atol=1e-5)
                assert torch.allclose(whole.value[now], result.value, atol=1e-5)
                assert torch.allclose(whole.features[now], result.features, atol=1e-5)
        assert torch.allclose(whole.state, state, atol=1e-5)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_recurrent_layers_equal_torch_modules(
    memory: str, make_policy: Callable[..., Any], make_samples: Callable[..., Any]
) -> None:
    """Without resets, features equal those of nn.GRU or nn.LSTM from the same state."""
    design, params_and_stats = make_policy("discrete", 5, (), memory=memory, memory_layers=2, memory_size=20)
    policy, mean, scale = random_policy(design, params_and_stats)
    rows = torch.from_numpy(make_samples(design, 24)[0])
    start = torch.zeros(4, design.state_size)
    # Padded to 32: for each layer the hidden state, then for LSTM the cell.
    parts = 2 if memory == "lstm" else 1
    held = torch.from_numpy(np.random.default_rng(0).normal(0, 1, (2, parts, 4, 20)).astype(np.float32))
    for layer, part in product(range(2), range(parts)):
        place = (layer * parts + part) * 32
        start[:, place : place + 20] = held[layer, part]
    inputs = policy.networks()[0].encoder(rows, mean, scale).reshape(6, 4, 5)
    first = tuple(held[:, part].contiguous() for part in range(parts))
    module = policy.networks()[0].memory
    assert module is not None
    expected, _ = module(inputs, first if memory == "lstm" else first[0])
    result = policy(rows, mean, scale, start, torch.zeros(6, 4, dtype=torch.uint8))
    assert torch.allclose(result.features, expected.reshape(24, 20), atol=1e-6)


def test_states_keep_their_padding_zero(make_policy: Callable[..., Any], make_samples: Callable[..., Any]) -> None:
    """States have the kernels' layout, with zeros in the padding."""
    design, params_and_stats = make_policy("discrete", 5, shared=False, memory="lstm", memory_size=5, memory_layers=2)
    policy, mean, scale = random_policy(design, params_and_stats)
    rows = torch.from_numpy(make_samples(design, 3)[0])
    columns = state_columns(design, 2)
    assert columns.shape == (2, 2, 2, 5)
    assert columns[:, :, :, 0].reshape(-1).tolist() == [0, 16, 32, 48, 64, 80, 96, 112]
    with torch.no_grad():
        state = policy(rows, mean, scale, torch.zeros(3, design.state_size)).state
    outside = np.setdiff1d(np.arange(design.state_size), columns)
    assert not state[:, outside].any()
    assert bool((state[:, columns.reshape(-1)] != 0).all())


def test_states_without_kernels_have_no_padding(make_policy: Callable[..., Any]) -> None:
    """Without kernels, states are ordered by network, layer, and hidden before cell."""
    design, _ = make_policy("discrete", SEEN, shared=False, memory="lstm", memory_size=5, memory_layers=2)
    assert state_columns(design, 2).reshape(-1).tolist() == list(range(design.state_size)) == list(range(40))


def test_a_policy_without_value_returns_zero(make_policy: Callable[..., Any], make_samples: Callable[..., Any]) -> None:
    """It has one network, and its value is 0."""
    design, params_and_stats = make_policy("continuous", 5, shared=True, value=False)
    policy, mean, scale = random_policy(design, params_and_stats)
    assert policy.names == ["policy"]
    rows = torch.from_numpy(make_samples(design, 3)[0])
    result = policy(rows, mean, scale, torch.zeros(3, 0))
    assert result.outputs.shape == (3, 6) and not result.value.any()


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("learns", [False, True])
def test_recurrent_layers_meet_cudnn_requirements(
    memory: str, learns: bool, make_policy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """States and weights are contiguous, lengths are on the host, and the training flag is set."""
    run, seen = getattr(torch, memory), list[bool]()

    def strict(x: Any, sizes: Any, state: Any, weights: Any, *rest: Any) -> Any:
        states = state if isinstance(state, list) else [state]
        assert all(part.is_contiguous() for part in [*states, *weights]) and sizes.device.type == "cpu"
        seen.append(rest[3])
        return run(x, sizes, state, weights, *rest)

    monkeypatch.setattr(torch, memory, strict)
    design, params_and_stats = make_policy("discrete", memory=memory, memory_layers=2, shared=False)
    policy, (_, mean, scale) = ActorCritic(design), design.split_params_and_stats(params_and_stats)
    state, episode_start = torch.zeros(4, design.state_size), torch.zeros(3, 4, dtype=torch.uint8)
    episode_start[1, 2] = 1
    given = torch.from_numpy(mean), torch.from_numpy(scale), state
    with torch.set_grad_enabled(learns):
        policy(torch.zeros(12, design.obs.width), *given, episode_start)
        policy(torch.zeros(4, design.obs.width), *given)
    assert seen == [learns] * 8
