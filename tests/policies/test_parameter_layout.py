"""Parameter layout: flat vectors, named arrays, and layer tables without overlaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, vector_obs
from slipstream.errors import CheckpointError
from slipstream.policies.design import Design
from slipstream.policies.parameter_layout import (
    COLUMNS,
    DENSE,
    EXTRA,
    KIND,
    OUT,
    STATE,
    NetworkLayout,
    NetworkSpec,
    UnpaddedLayout,
)
from slipstream.settings import PolicySettings

KINDS = ["discrete", "multi_discrete", "continuous", "masked_binary", "mixed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("hidden", [(), (50, 3), (16,)])
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_named_and_flatten_are_inverse(
    kind: str, shared: bool, hidden: tuple[int, ...], memory: str, make_policy: Callable[..., Any]
) -> None:
    """Every weight returns to its position, and padding stays zero."""
    design, params_and_stats = make_policy(
        kind, 17, hidden, shared=shared, memory=memory, memory_size=5, layer_norm=True
    )
    weights, flat = design.weights, params_and_stats[: design.weights.size]
    named = weights.named(flat)
    assert np.array_equal(weights.flatten(named), flat)
    assert np.count_nonzero(flat) == sum(np.count_nonzero(array) for array in named.values())


def test_names_and_orientation_are_those_of_torch(make_policy: Callable[..., Any]) -> None:
    """Weights are [outputs, inputs] under torch's names, with the gates of recurrent layers stacked."""
    design, params_and_stats = make_policy(
        "continuous", 4, (8,), shared=False, memory="lstm", memory_size=6, memory_layers=2, layer_norm=True
    )
    sizes = {name: array.shape for name, array in design.weights.named(params_and_stats[: design.weights.size]).items()}
    expected: dict[str, tuple[int, ...]] = {}
    for net, outputs in (("policy", 3), ("value", 1)):
        expected |= {f"{net}.layers.0.weight": (8, 4), f"{net}.layers.0.bias": (8,)}
        expected |= {f"{net}.norms.0.weight": (8,), f"{net}.norms.0.bias": (8,)}
        for layer, inputs in ((0, 8), (1, 6)):
            expected |= {f"{net}.memory.weight_ih_l{layer}": (24, inputs), f"{net}.memory.bias_ih_l{layer}": (24,)}
            expected |= {f"{net}.memory.weight_hh_l{layer}": (24, 6), f"{net}.memory.bias_hh_l{layer}": (24,)}
        expected |= {f"{net}.head.weight": (outputs, 6), f"{net}.head.bias": (outputs,)}
    assert sizes == expected | {"log_std": (3,)}


def test_wrong_shapes_raise(make_policy: Callable[..., Any]) -> None:
    """Missing arrays and arrays of another shape raise with the expected shape (exit code 5)."""
    design, params_and_stats = make_policy("discrete", 4, (8,))
    named = design.weights.named(params_and_stats[: design.weights.size])
    named["trunk.layers.0.weight"] = named["trunk.layers.0.weight"].T
    with pytest.raises(CheckpointError) as caught:
        design.weights.flatten(named)
    assert "`trunk.layers.0.weight` should be (8, 4) but is (4, 8)" in caught.value.message
    assert "policy.hidden" in str(caught.value)
    assert caught.value.code == 5
    del named["trunk.layers.0.weight"]
    with pytest.raises(CheckpointError, match=r"`trunk.layers.0.weight` should be \(8, 4\) but is missing"):
        design.weights.flatten(named)


def test_unpadded_layout() -> None:
    """Arrays of any shape are consecutive, without padding."""
    weights = UnpaddedLayout({"a": (2, 3, 1), "b": (4,), "c": ()})
    assert weights.size == 11
    flat = np.arange(11, dtype=np.float32)
    named = weights.named(flat)
    assert named["a"].shape == (2, 3, 1) and named["b"].tolist() == [6, 7, 8, 9] and named["c"] == 10
    assert np.array_equal(weights.flatten(named), flat)


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_initial_weights_are_orthogonal_and_seeded(memory: str) -> None:
    """Gain sqrt(2) in hidden layers, 1 in gates, 0.01 in the policy head, 1 in the value head; zero biases."""
    policy = PolicySettings(hidden=(6, 6), shared=False, memory=memory, memory_size=6)  # type: ignore[arg-type]
    design = Design(vector_obs(6), ActionSpec("discrete", (4,)), policy)
    named = design.weights.named(design.initial_weights(3))
    gains = {"policy.layers.0": 2**0.5, "value.layers.1": 2**0.5, "policy.head": 0.01, "value.head": 1.0}
    for name, gain in gains.items():
        weight = named[f"{name}.weight"] / gain
        assert np.allclose(weight @ weight.T, np.eye(len(weight)), atol=1e-5)
        assert not named[f"{name}.bias"].any()
    for name in ("weight_ih", "weight_hh") if memory != "none" else ():
        for gate in named[f"policy.memory.{name}_l0"].reshape(-1, 6, 6):
            assert np.allclose(gate @ gate.T, np.eye(6), atol=1e-5)
    if memory == "lstm":
        assert named["value.memory.bias_ih_l0"].reshape(4, 6).sum(axis=1).tolist() == [0, 6, 0, 0]
    assert np.array_equal(design.initial_weights(3), design.initial_weights(3))
    assert not np.array_equal(design.initial_weights(3), design.initial_weights(4))


def test_initial_log_std_is_a_setting() -> None:
    """`policy.log_std` is the initial log standard deviation."""
    policy = PolicySettings(hidden=(4,), log_std=-0.7)
    design = Design(vector_obs(3), ActionSpec("continuous", (), (-1.0,), (1.0,)), policy)
    assert design.weights.named(design.initial_weights(0))["log_std"] == pytest.approx(-0.7)


@pytest.mark.parametrize("memory", [0, 1, 2])
def test_nothing_overlaps(memory: int) -> None:
    """Weights, scratch columns and states of different layers do not overlap and fill the given sizes."""
    chains = (
        NetworkSpec("one", 5, (20, 3), 4, "tanh", True, memory, 7, 2),
        NetworkSpec("two", 5, (9,), 1, "relu", False, memory, 33),
    )
    stack = NetworkLayout(chains)
    owner = np.zeros(stack.size, int)
    for slot in stack.slots:
        owner[slot.offset : slot.end] += 1  # type: ignore[union-attr]
    assert (owner == 1).all()
    columns, states = np.zeros(stack.scratch_columns, int), np.zeros(stack.state_size, int)
    columns[:16] = 1
    for layer, row in zip(stack.layers, stack.table, strict=True):
        columns[row[OUT] : row[OUT] + row[COLUMNS]] += 1
        columns[row[EXTRA] : row[EXTRA] + layer.extra] += 1
        if row[KIND] != DENSE:
            states[row[STATE] : row[STATE] + memory * row[COLUMNS]] += 1
    assert (columns == 1).all() and (states == 1).all()


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_uniform_initial_weights(memory: str, make_policy: Callable[..., Any]) -> None:
    """`policy.init=uniform` draws within 1 / sqrt(inputs), or 1 / sqrt(units) in recurrent layers."""
    design, _ = make_policy("continuous", 7, (50, 30), init="uniform", memory=memory, layer_norm=True, shared=False)
    named = design.weights.named(design.initial_weights(3))
    limits = {"policy.layers.0": 7, "value.layers.1": 50, "policy.head": 20 if memory == "lstm" else 30}
    for name, inputs in limits.items():
        drawn = np.concatenate([named[f"{name}.weight"].reshape(-1), named[f"{name}.bias"]])
        assert 0.85 < np.abs(drawn).max() * inputs**0.5 <= 1
        assert abs(drawn.mean()) * inputs**0.5 < 0.2
    if memory == "lstm":
        assert 0.9 < np.abs(named["policy.memory.weight_ih_l0"]).max() * 20**0.5 <= 1
    assert (named["policy.norms.0.weight"] == 1).all() and not named["policy.norms.0.bias"].any()
    assert named["log_std"] == pytest.approx(-0.3)
