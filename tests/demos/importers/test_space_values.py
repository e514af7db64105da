"""Values of spaces as rows and actions, exactly as environments' own adapters read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from slipstream.demos.importers.space_values import Codec
from slipstream.envs.adapters.action_spaces import action_decoder
from slipstream.envs.adapters.observation_spaces import obs_encoder
from slipstream.errors import DemoError
from slipstream.stages.import_export import RULES

ACTIONS = [
    spaces.Discrete(5),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [1, 1]]),
    spaces.MultiBinary(3),
    spaces.Box(-1, 1, (2, 2), np.float32),
    spaces.Dict({"b": spaces.Discrete(3), "a": spaces.MultiBinary(2)}),
    spaces.Tuple([spaces.Discrete(3), spaces.MultiDiscrete([2, 2])]),
]
OBSERVATIONS = [
    spaces.Box(-1, 1, (3,), np.float64),
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Discrete(6, start=2),
    spaces.MultiDiscrete([3, 4]),
    spaces.Box(0, 255, (12, 10, 3), np.uint8),
    spaces.Box(0, 255, (3, 12, 10), np.uint8),
    spaces.Dict({"eye": spaces.Box(0, 255, (12, 10), np.uint8), "in": spaces.Dict({"x": spaces.Box(0, 9, (2,))})}),
    spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
]


def drawn(space: Any, count: int) -> tuple[Any, list[Any]]:
    """Values of a space as a tree of arrays, and one by one."""
    space.seed(0)
    each = [space.sample() for _ in range(count)]
    return joined(space, each), each


def joined(space: Any, each: list[Any]) -> Any:
    """Values one by one as a tree of arrays."""
    if isinstance(space, spaces.Dict):
        return {key: joined(inner, [one[key] for one in each]) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(joined(inner, [one[n] for one in each]) for n, inner in enumerate(space.spaces))
    return np.array(each)


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_actions_are_undone_by_the_environments_decoder(space: Any) -> None:
    """What the env's adapter decodes from an encoded action is the action."""
    tree, each = drawn(space, 7)
    found = Codec(spaces.Box(-1, 1, (2,)), space, "x", RULES).encode_actions(tree, 7)
    assert found.ndim == 2
    for one, two in zip(action_decoder(space)(found), each, strict=True):
        np.testing.assert_equal(one, two)


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_rows_are_those_of_the_environments_encoder(space: Any) -> None:
    """Every row is bit by bit what the env's adapter would have written."""
    tree, each = drawn(space, 5)
    codec = Codec(space, spaces.Discrete(2), "x", RULES)
    rows, write = codec.encode_obs(tree, 5), obs_encoder(space)
    for number, one in enumerate(each):
        row = np.zeros(codec.obs.width, codec.obs.dtype)
        if write is None:
            row[:] = one
        else:
            write(one, row)
        np.testing.assert_array_equal(rows[number], row)


MIXED = spaces.Dict(
    {"steer": spaces.Box(-2, 2, (2,)), "gear": spaces.Discrete(3, start=1), "horn": spaces.MultiBinary(2)}
)


@pytest.mark.parametrize("space", [MIXED, spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 4])])])
def test_actions_of_parts_in_one_array(space: Any) -> None:
    """One array for a Dict or Tuple has the columns of the rows already, as exported demos do."""
    codec = Codec(spaces.Box(-1, 1, (2,)), space, "x", RULES)
    rows = codec.encode_actions(drawn(space, 7)[0], 7)
    again = codec.encode_actions(rows, 7)
    assert again.dtype == rows.dtype and np.array_equal(again, rows)
    with pytest.raises(DemoError, match=f"Actions have 3 parts, not {rows.shape[1]}"):
        codec.encode_actions(np.zeros((7, 3)), 7)
    rows[4, 0] = 0.5
    with pytest.raises(DemoError, match=r"The action 0\.5 at step 4 is not one of"):
        codec.encode_actions(rows, 7)
    with pytest.raises(DemoError, match="Actions are object, not"):
        codec.encode_actions(np.array([{}] * 7, object), 7)


def test_values_that_do_not_fit_are_errors() -> None:
    """Actions out of range, wrong counts and unsupported spaces raise errors."""
    codec = Codec(spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]), "x", RULES)
    with pytest.raises(DemoError, match="The action 3 at step 1 is not one of 3 options"):
        codec.encode_actions(np.array([[1, 2], [1, 3]]), 2)
    with pytest.raises(DemoError, match="Actions have 3 parts, not 2"):
        Codec(spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2), "x", RULES).encode_actions(np.zeros((2, 3), int), 2)
    with pytest.raises(DemoError, match="There are 4 observations, not 3"):
        codec.encode_obs(np.zeros((4, 2)), 3)
    with pytest.raises(DemoError, match="The observations of `x` are a Text, which is not supported"):
        Codec(spaces.Text(5), spaces.Discrete(2), "x", RULES)
