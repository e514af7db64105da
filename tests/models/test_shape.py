"""Weights in one flat vector, and back by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slipstream.core.contracts import ActionSpec
from slipstream.core.errors import CheckpointError
from slipstream.models.shape import Shape

KINDS = ["discrete", "multi_discrete", "continuous"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("hidden", [(), (50, 3), (16,)])
def test_named_and_flatten_are_inverse(
    kind: str, shared: bool, hidden: tuple[int, ...], make_policy: Callable[..., Any]
) -> None:
    """Every weight comes back where it stood, and padding stays zero."""
    shape, pack = make_policy(kind, 17, hidden, shared=shared)
    flat = pack[: shape.size]
    named = shape.named(flat)
    assert np.array_equal(shape.flatten(named), flat)
    assert np.count_nonzero(flat) <= sum(array.size for array in named.values())


def test_names_and_orientation_are_those_of_torch(make_policy: Callable[..., Any]) -> None:
    """Weights are [outputs, inputs] under names that a torch module has too."""
    shape, pack = make_policy("continuous", 4, (8,), shared=False)
    sizes = {name: array.shape for name, array in shape.named(pack[: shape.size]).items()}
    assert sizes == {
        "policy.0.weight": (8, 4), "policy.0.bias": (8,), "policy.1.weight": (3, 8), "policy.1.bias": (3,),
        "value.0.weight": (8, 4), "value.0.bias": (8,), "value.1.weight": (1, 8), "value.1.bias": (1,),
        "log_std": (3,),
    }  # fmt: skip


def test_wrong_shapes_are_refused(make_policy: Callable[..., Any]) -> None:
    """Arrays of another shape, or missing ones, are named with what was expected; the exit code is 5."""
    shape, pack = make_policy("discrete", 4, (8,))
    named = shape.named(pack[: shape.size])
    named["trunk.0.weight"] = named["trunk.0.weight"].T
    with pytest.raises(CheckpointError) as caught:
        shape.flatten(named)
    assert str(caught.value) == (
        "The policy's `trunk.0.weight` should be (8, 4) but is (4, 8).\n"
        "hint: the checkpoint was made for another env or another policy.hidden; evaluate it on its own env"
    )
    assert caught.value.code == 5
    del named["trunk.0.weight"]
    with pytest.raises(CheckpointError, match=r"`trunk.0.weight` should be \(8, 4\) but is missing"):
        shape.flatten(named)


def test_first_weights_are_orthogonal_and_follow_the_seed() -> None:
    """Hidden layers have gain sqrt(2), the policy's last layer 0.01, the value's 1, biases are 0."""
    shape = Shape(6, ActionSpec("discrete", (4,)), (6, 6), "tanh", False)
    named = shape.named(shape.initial(3, 0.0))
    for name, gain in (("policy.0", 2**0.5), ("value.1", 2**0.5), ("policy.2", 0.01), ("value.2", 1.0)):
        weight = named[f"{name}.weight"] / gain
        assert np.allclose(weight @ weight.T, np.eye(len(weight)), atol=1e-5)
        assert not named[f"{name}.bias"].any()
    assert np.array_equal(shape.initial(3, 0.0), shape.initial(3, 0.0))
    assert not np.array_equal(shape.initial(3, 0.0), shape.initial(4, 0.0))


def test_first_deviation_of_continuous_actions_is_a_setting() -> None:
    """`policy.log_std` is where the learned deviation starts."""
    shape = Shape(3, ActionSpec("continuous", (), (-1.0,), (1.0,)), (4,), "tanh", True)
    assert shape.named(shape.initial(0, -0.7))["log_std"] == pytest.approx(-0.7)
