"""Action spaces: their specs, and decoding of every action into the env's format."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from slipstream.contracts import ActionSpec
from slipstream.envs.adapters.action_spaces import (
    action_decoder,
    action_encoder,
    action_space,
    action_spec,
    batch_decoder,
)
from slipstream.envs.adapters.observation_spaces import leaves
from slipstream.errors import EnvError

UNSUPPORTED = "which is not supported.\nhint: use Discrete, MultiDiscrete, MultiBinary or a Box of floats"


def box(*bounds: tuple[float, float], dtype: Any = np.float32) -> Any:
    """A flat Box of so many bounds."""
    low, high = np.array(bounds, dtype).T
    return spaces.Box(low, high, dtype=dtype)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3, start=4), ActionSpec("discrete", (3,))),
        (spaces.MultiDiscrete([3, 2]), ActionSpec("multi_discrete", (3, 2))),
        (spaces.MultiDiscrete([[3, 2], [4, 5]]), ActionSpec("multi_discrete", (3, 2, 4, 5))),
        (spaces.MultiBinary(2), ActionSpec("multi_discrete", (2, 2), binary=(True, True))),
        (spaces.MultiBinary([2, 2]), ActionSpec("multi_discrete", (2,) * 4, binary=(True,) * 4)),
        (box((-1, 1), (0, 5), dtype=np.float64), ActionSpec("continuous", (), (-1, 0), (1, 5))),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), ActionSpec("continuous", (), (-np.inf,), (np.inf,))),
        (spaces.Tuple((spaces.Discrete(3),)), ActionSpec("multi_discrete", (3,))),
        (
            spaces.Dict({"b": spaces.MultiBinary(2), "a": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2)))}),
            ActionSpec("multi_discrete", (3, 2, 2, 2), binary=(False, False, True, True)),
        ),
        (
            spaces.Tuple((box((-1, 1)), spaces.Dict({"x": box((0, 2), (0, 3))}))),
            ActionSpec("continuous", (), (-1, 0, 0), (1, 2, 3)),
        ),
        (
            spaces.Tuple(
                (box((-1, 1)), spaces.MultiBinary(1), spaces.Dict({"x": box((0, 2)), "y": spaces.Discrete(3)}))
            ),
            ActionSpec("mixed", (2, 3), (-1, 0), (1, 2), binary=(True, False)),
        ),
    ],
)
def test_actions_are_read_off_the_space(space: Any, action: ActionSpec) -> None:
    """Each supported space becomes its action spec; the parts of a Dict or Tuple are concatenated."""
    assert action_spec(space, "x") == action


def test_a_switch_is_one_number_and_two_columns_of_a_mask() -> None:
    """Three binary parts have three logits and a mask with off and on of each."""
    spec = action_spec(spaces.MultiBinary(3), "x", masked=True)
    assert (spec.parts, spec.outputs, spec.options) == (3, 3, 6)


def test_masks_are_for_choices() -> None:
    """Discrete parts of any nesting have a concatenated mask; continuous actions are never masked."""
    choices = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.MultiBinary(2)})
    assert action_spec(choices, "x", masked=True).options == 3 + 4
    assert action_spec(box((-1, 1)), "x", masked=True) == ActionSpec("continuous", (), (-1,), (1,))
    both = spaces.Tuple((box((-1, 1)), spaces.Discrete(3)))
    assert action_spec(both, "x", masked=True).options == 3


@pytest.mark.parametrize(
    ("space", "action", "told"),
    [
        (spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2, start=7))), [2, 1], (2, 8)),
        (spaces.Tuple((spaces.Tuple(()), spaces.Discrete(2), spaces.Dict({}))), [1], ((), 1, {})),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiBinary(2)}), [1, 0, 1], {"a": 1, "b": [0, 1]}),
        (
            spaces.Tuple((spaces.Dict({"x": spaces.MultiDiscrete([4, 4], start=[1, -1])}), spaces.Discrete(2))),
            [3, 0, 1],
            ({"x": [4, -1]}, 1),
        ),
        (
            spaces.Dict({"arm": box((-1, 1), (-1, 1)), "leg": spaces.Tuple((box((0, 9), dtype=np.float64),))}),
            [0.25, -0.5, 4.5],
            {"arm": [0.25, -0.5], "leg": ([4.5],)},
        ),
        (
            spaces.Dict(
                {
                    "aim": box((-1, 1), (-2, 2)),
                    "fire": spaces.MultiBinary(2),
                    "move": spaces.Tuple((spaces.Discrete(3, start=5), box((0, 9), dtype=np.float64))),
                }
            ),
            [1, 0, 2, 0.25, -1.5, 4.5],  # fire, move/0, then aim, move/1
            {"aim": [0.25, -1.5], "fire": [1, 0], "move": (7, [4.5])},
        ),
    ],
)
def test_nested_actions_come_back_in_their_own_form(space: Any, action: list[float], told: Any) -> None:
    """Dicts are dicts and tuples tuples, with offsets and dtypes, row by row."""
    spec = action_spec(space, "x")
    other = np.zeros(len(action))
    first, last = action_decoder(space)(np.array([action, other], spec.dtype))
    assert space.contains(first) and space.contains(last)
    assert plain(first) == told


def plain(value: Any) -> Any:
    """Arrays as lists, at any depth."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return np.asarray(value).tolist()


def random_space(random: np.random.Generator, depth: int, continuous: bool | None) -> Any:
    """A random action space, nested or not; None: discrete and continuous parts in any order."""
    continuous = bool(random.integers(2)) if continuous is None and not depth else continuous
    sort = int(random.integers(5 if depth else 3))
    if sort >= 3:
        inner = [random_space(random, depth - 1, continuous) for _ in range(int(random.integers(1, 4)))]
        return spaces.Tuple(inner) if sort == 3 else spaces.Dict({f"k{k}": part for k, part in enumerate(inner)})
    if continuous:
        shape = tuple(random.integers(1, 4, sort).tolist())
        low, dtype = random.normal(size=shape), random.choice([np.float32, np.float64])
        return spaces.Box(low.astype(dtype), (low + 0.7).astype(dtype), shape, dtype)
    if sort == 0:
        return spaces.Discrete(int(random.integers(1, 5)), start=int(random.integers(-2, 3)))
    if sort == 1:
        return spaces.MultiDiscrete(random.integers(1, 4, (2, 2)), start=random.integers(-2, 3, (2, 2)))
    return spaces.MultiBinary(int(random.integers(1, 4)))


@pytest.mark.parametrize("seed", range(30))
def test_every_option_of_every_part_is_reached(seed: int) -> None:
    """All actions decode into the space, and over all options each leaf takes each of its values."""
    space = random_space(np.random.default_rng(seed), 3, continuous=False)
    spec, decode = action_spec(space, "x"), action_decoder(space)
    rows = np.array([[k % size for size in spec.sizes] for k in range(max(spec.sizes))], np.int32)
    told = decode(rows)
    assert len(told) == len(rows) and all(space.contains(one) for one in told)
    columns = iter(spec.sizes)
    for leaf in leaves(space):
        heard = np.array([np.asarray(leaf.find(one)).reshape(-1) for one in told])
        start: Any = getattr(leaf.space, "start", 0)
        for column, first in zip(heard.T, np.broadcast_to(start, leaf.space.shape or (1,)).reshape(-1), strict=True):
            assert set(column.tolist()) == {first + k for k in range(next(columns))}
    assert not list(columns)


@pytest.mark.parametrize("seed", range(30))
def test_every_continuous_action_within_the_bounds_is_in_the_space(seed: int) -> None:
    """Bounds included, though the float32 next to a float64 bound may lie outside of it."""
    random = np.random.default_rng(seed)
    space = random_space(random, 3, continuous=True)
    spec = action_spec(space, "x")
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    rows = np.stack([low, high, low + (high - low) * random.random(spec.parts).astype(np.float32)])
    told = action_decoder(space)(rows)
    assert all(space.contains(one) for one in told)
    flat = [np.concatenate([np.ravel(leaf.find(one)) for leaf in leaves(space)]) for one in told]
    assert np.allclose(flat, rows, atol=1e-6)


@pytest.mark.parametrize("seed", range(30))
def test_mixed_actions_are_encoded_as_they_are_decoded(seed: int) -> None:
    """Whatever the nesting, the batch that rows decode to is encoded to the same rows, and its actions are valid."""
    random = np.random.default_rng(seed)
    space = spaces.Tuple([random_space(random, 1, None), spaces.Discrete(3, start=1), box((-1, 1), (0, 4))])
    spec = action_spec(space, "x")
    assert spec.kind == "mixed" and spec.dtype is np.float32
    options = random.integers(0, spec.sizes, (6, spec.discrete_parts))
    rows = np.concatenate([options, random.uniform(spec.low, spec.high, (6, spec.continuous_parts))], 1)
    rows = rows.astype(np.float32)
    assert np.allclose(action_encoder(space)(batch_decoder(space)(rows)), rows, atol=1e-6)
    assert all(space.contains(one) for one in action_decoder(space)(rows))
    described = action_space(spec)
    assert action_spec(described, "x").sizes == spec.sizes
    assert np.array_equal(action_encoder(described)(batch_decoder(described)(rows)), rows)


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "continuous", "mixed"])
@pytest.mark.parametrize("binary", [(), (True, True), (True, False), (False, True)])
def test_the_space_of_a_spec_has_this_spec(kind: Any, binary: tuple[bool, ...]) -> None:
    """Binary parts stay binary, alone or among others, and after pickling."""
    bounds = ((-1.0,), (1.0,)) if kind in ("continuous", "mixed") else ((), ())
    sizes = {"discrete": (4,), "continuous": ()}.get(kind, tuple(2 if one else 3 for one in binary) or (3, 3))
    spec = ActionSpec(kind, sizes, *bounds, binary=binary if kind.startswith("m") else ())
    space = action_space(spec)
    for one in (space, pickle.loads(pickle.dumps(space))):
        assert action_spec(one, "x") == spec and one == space
    rows = np.zeros((2, spec.parts), spec.dtype)
    assert all(space.contains(one) for one in action_decoder(space)(rows))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), f"The actions of `mine` are a Text, {UNSUPPORTED}"),
        (spaces.Sequence(spaces.Discrete(2)), f"The actions of `mine` are a Sequence, {UNSUPPORTED}"),
        (spaces.Graph(spaces.Discrete(2), None), f"The actions of `mine` are a Graph, {UNSUPPORTED}"),
        (spaces.Box(0, 5, (2,), np.int32), f"The actions of `mine` are a Box of int32, {UNSUPPORTED}"),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Text(5),))}),
            f"The action `b/0` of `mine` is a Text, {UNSUPPORTED}",
        ),
        (
            spaces.Dict({"jump": spaces.Discrete(2), "turn": spaces.Box(-1, 1, (2,)), "say": spaces.Text(5)}),
            f"The action `say` of `mine` is a Text, {UNSUPPORTED}",
        ),
        (spaces.Tuple(()), "The action space of `mine` is empty.\nhint: give its action_space at least one part"),
    ],
)
def test_unsupported_action_spaces_are_refused(space: Any, message: str) -> None:
    """The error names the leaf by its path and kind, and lists the supported spaces."""
    with pytest.raises(EnvError) as caught:
        action_spec(space, "mine")
    assert message in str(caught.value)


def test_a_batch_of_actions_is_what_the_envs_take_one_by_one() -> None:
    """Dicts and tuples of batches, with the numbers that single envs are given."""
    space = spaces.Dict(
        {
            "pick": spaces.Discrete(4, start=3),
            "pair": spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[0, 7]), spaces.MultiBinary(2))),
        }
    )
    action = np.array([[1, 1, 2, 0, 1], [3, 0, 1, 1, 1]], np.int32)
    each, batch = action_decoder(space)(action), batch_decoder(space)(action)
    for row, one in enumerate(each):
        assert batch["pick"][row] == one["pick"]
        assert all(np.array_equal(part[row], own) for part, own in zip(batch["pair"], one["pair"], strict=True))
    box = spaces.Box(np.array([[-1.0], [0.1]]), np.array([[1.0], [0.3]]), dtype=np.float64)
    moves = np.array([[0.5, 0.3], [-1.0, 0.1]], np.float32)
    found = batch_decoder(box)(moves)
    assert found.shape == (2, 2, 1) and box.contains(found[0]) and box.contains(found[1])
    assert np.array_equal(found, np.stack(action_decoder(box)(moves)))
