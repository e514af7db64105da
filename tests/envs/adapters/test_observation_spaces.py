"""Observation spaces as rows: the field of each leaf, its values, and unsupported spaces."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from slipstream.contracts import Array, ObsField, ObsSpec, vector_obs
from slipstream.envs.adapters.observation_spaces import batch_encoder, leaves, list_encoder, obs_encoder, obs_spec
from slipstream.errors import EnvError

UNSUPPORTED = "which is not supported.\nhint: convert it to numbers (gymnasium.wrappers.TransformObservation), "
UNSUPPORTED += "or remove it (FilterObservation)"
NESTED = spaces.Dict(
    OrderedDict(
        frame=spaces.Box(0, 255, (8, 9, 3), np.uint8),
        self=spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-9, 9, (2, 2), np.float64))),
        seen=spaces.Box(0, 255, (2, 3), np.uint8),
        flags=spaces.Dict({"on": spaces.MultiBinary(2), "mode": spaces.MultiDiscrete([2, 3], start=[5, 0])}),
    )
)


def pixels(*shape: int) -> Any:
    """A space of bytes."""
    return spaces.Box(0, 255, shape, np.uint8)


def encoded(space: Any, obs: Any) -> Array:
    """The row of an observation, written over old values."""
    spec = obs_spec(space, "x")
    row = np.full(spec.width, 77, spec.dtype)
    encode = obs_encoder(space)
    if encode is None:
        row[:] = obs
    else:
        encode(obs, row)
    return row


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), 3),
        (spaces.Box(-1, 1, (2, 5), np.float64), 10),
        (spaces.Box(-1, 1, (), np.float16), 1),
        (spaces.Box(0, 9, (2, 2), np.int64), 4),
        (spaces.Box(0, 1, (3,), np.bool_), 3),
        (spaces.Discrete(4), 4),
        (spaces.MultiDiscrete([2, 3]), 5),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), 14),
        (spaces.MultiBinary([2, 3]), 6),
        (pixels(5), 5),
        (pixels(1, 3), 3),
        (pixels(7, 7, 3), 147),
        (pixels(7, 40), 280),
        (pixels(40, 40, 17), 27200),
        (pixels(2, 2, 2, 2, 2), 32),
        (spaces.Box(0, 1, (84, 84, 3), np.float32), 21168),
    ],
)
def test_numbers_and_choices_are_one_vector(space: Any, size: int) -> None:
    """Floats, ints, discrete values (one-hot) and arrays too small for images become flat float32 vectors."""
    assert obs_spec(space, "x") == vector_obs(size)


@pytest.mark.parametrize(
    ("shape", "kind", "as_field"),
    [
        ((84, 84, 3), "image", (84, 84, 3)),
        ((8, 8, 1), "image", (8, 8, 1)),
        ((9, 8), "image", (9, 8, 1)),
        ((84, 90, 16), "image", (84, 90, 16)),
        ((3, 64, 48), "image", (64, 48, 3)),
        ((4, 8, 8), "image", (8, 8, 4)),
        ((12, 64, 48), "image", (64, 48, 12)),
        ((8, 84, 16), "image", (8, 84, 16)),
        ((4, 84, 80, 3), "image", (84, 80, 12)),
        ((2, 3), "tokens", (2, 3)),
        ((200, 3), "tokens", (200, 3)),
    ],
)
def test_bytes_are_images_or_tokens_by_their_shape(shape: tuple[int, ...], kind: Any, as_field: Any) -> None:
    """Images become height, width, channels for any position of the channels; lists of three bytes are tokens."""
    assert obs_spec(pixels(*shape), "x") == ObsSpec((ObsField("", kind, as_field),))


def test_leaves_are_named_by_their_path_and_vectors_stand_first() -> None:
    """Keys and indices are joined by a slash; vectors come first, otherwise in the order of the space."""
    assert obs_spec(NESTED, "x").fields == (
        ObsField("self/0", "vector", (3,)),
        ObsField("self/1", "vector", (4,)),
        ObsField("flags/mode", "vector", (5,)),
        ObsField("flags/on", "vector", (2,)),
        ObsField("frame", "image", (8, 9, 3)),
        ObsField("seen", "tokens", (2, 3)),
    )


def test_a_nested_observation_is_written_field_by_field() -> None:
    """Every leaf is written into its own bytes of the row and overwrites old values."""
    frame = np.arange(216, dtype=np.uint8).reshape(8, 9, 3)
    seen = np.array([[1, 2, 3], [255, 0, 0]], np.uint8)
    obs = {
        "frame": frame,
        "self": (2, np.array([[1.5, -2.0], [3.0, 4.0]])),
        "seen": seen,
        "flags": {"on": np.array([0, 1], np.int8), "mode": np.array([6, 2])},
    }
    row, spec = encoded(NESTED, obs), obs_spec(NESTED, "x")
    assert row.dtype == np.uint8 and row.shape == (288,), "56 + 216 + 6 = 278 bytes, in whole 16s"
    found = spec.split(row)
    assert found["self/0"].tolist() == [0, 1, 0]
    assert found["self/1"].tolist() == [1.5, -2, 3, 4]
    assert found["flags/mode"].tolist() == [0, 1, 0, 0, 1]
    assert found["flags/on"].tolist() == [0, 1]
    assert np.array_equal(found["frame"], frame) and np.array_equal(found["seen"], seen)
    assert spec.vectors(row).tolist() == [0, 1, 0, 1.5, -2, 3, 4, 0, 1, 0, 0, 1, 0, 1]


def test_a_dict_of_vectors_is_a_row_of_floats() -> None:
    """Without images or tokens a row is float32, the fields side by side."""
    space = spaces.Dict({"b": spaces.Box(-9, 9, (2,), np.float64), "a": spaces.Discrete(2)})
    row = encoded(space, {"a": 1, "b": np.array([0.5, -3.0])})
    assert row.dtype == np.float32 and row.tolist() == [0, 1, 0.5, -3.0], "Gymnasium sorts the keys of a dict"


@pytest.mark.parametrize(
    ("shape", "order"),
    [((9, 8), (0, 1)), ((9, 8, 4), (0, 1, 2)), ((4, 9, 8), (1, 2, 0)), ((2, 9, 8, 3), (1, 2, 0, 3))],
)
def test_every_pixel_keeps_its_place(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    """However an image is laid out, [y, x, channel] of the row is the pixel of the env; frames are stacked first."""
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    field = obs_spec(pixels(*shape), "x").split(encoded(pixels(*shape), image))[""]
    assert np.array_equal(field, image.transpose(order).reshape(9, 8, -1))
    if len(shape) == 4:
        assert field[5, 6, 1 * 3 + 2] == image[1, 5, 6, 2]


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (3,), np.float32), spaces.Box(0, 9, (3,), np.int32), spaces.MultiBinary(3)]
)
def test_a_bare_flat_observation_needs_no_encoder(space: Any) -> None:
    """One-dimensional numbers are written by plain assignment, which Serial does for all envs at once."""
    assert obs_encoder(space) is None


def random_space(random: np.random.Generator, depth: int) -> Any:
    """Some space, nested or not."""
    sort = int(random.integers(9 if depth else 7))
    if sort == 0:
        return spaces.Discrete(int(random.integers(1, 5)), start=int(random.integers(-2, 3)))
    if sort == 1:
        return spaces.MultiDiscrete(random.integers(1, 4, 3), start=random.integers(-2, 3, 3))
    if sort == 2:
        return spaces.MultiBinary([2, 2])
    if sort == 3:
        return spaces.Box(-1, 1, tuple(random.integers(1, 4, 2).tolist()), np.float64)
    if sort == 4:
        return pixels(int(random.integers(2, 5)), 3)
    if sort == 5:
        return pixels(int(random.integers(1, 5)), 8, 10)
    if sort == 6:
        return pixels(9, 8, int(random.integers(1, 5)))
    inner = [random_space(random, depth - 1) for _ in range(int(random.integers(1, 4)))]
    return spaces.Tuple(inner) if sort == 7 else spaces.Dict({f"k{k}": part for k, part in enumerate(inner)})


@pytest.mark.parametrize("seed", range(40))
def test_every_leaf_of_any_nesting_can_be_read_back(seed: int) -> None:
    """A row holds the observation: one-hot discrete values, flat numbers, images with channels last."""
    random = np.random.default_rng(seed)
    space = random_space(random, 3)
    space.seed(seed)
    spec, found = obs_spec(space, "x"), leaves(space)
    assert sorted(spec.places) == sorted(leaf.name for leaf in found)
    for _ in range(3):
        obs = space.sample()
        fields = spec.split(encoded(space, obs))
        for leaf in found:
            value, got = leaf.find(obs), fields[leaf.name]
            part: Any = leaf.space
            if isinstance(part, spaces.Discrete):
                assert got.tolist() == [float(k == value - part.start) for k in range(part.n)]
            elif isinstance(part, spaces.MultiDiscrete):
                eyes = zip(value - part.start, part.nvec, strict=True)
                assert got.tolist() == [float(k == choice) for choice, n in eyes for k in range(n)]
            elif got.ndim == 3 and value.shape != got.shape:
                assert np.array_equal(got, value.transpose(1, 2, 0))
            else:
                assert np.array_equal(got.reshape(-1), value.astype(got.dtype).reshape(-1))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), f"The observations of `mine` are a Text, {UNSUPPORTED}"),
        (spaces.Sequence(spaces.Discrete(2)), f"The observations of `mine` are a Sequence, {UNSUPPORTED}"),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Discrete(2), spaces.Text(5)))}),
            f"The observation `b/1` of `mine` is a Text, {UNSUPPORTED}",
        ),
        (
            spaces.Dict({"map": spaces.Graph(spaces.Box(0, 1, (2,)), None)}),
            f"The observation `map` of `mine` is a Graph, {UNSUPPORTED}",
        ),
        (
            spaces.Tuple((spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))), spaces.Text(3))),
            f"The observation `0` of `mine` is a OneOf, {UNSUPPORTED}",
        ),
        (
            spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})}),
            "Two observations of `mine` are named `a/b`.\nhint: rename one of them",
        ),
        (
            spaces.Dict({}),
            "The observation space of `mine` is empty.\nhint: give its observation_space at least one number",
        ),
    ],
)
def test_unsupported_observation_spaces_are_refused(space: Any, message: str) -> None:
    """The error names the first unsupported leaf by its path and kind, with a hint."""
    with pytest.raises(EnvError) as caught:
        obs_spec(space, "mine")
    assert str(caught.value) == message
    assert caught.value.code == 3


def test_a_box_of_a_strange_dtype_is_refused() -> None:
    """Numbers that are not real are named with their dtype."""
    space = spaces.Box(-1, 1, (2,), np.float32)
    space.dtype = np.dtype(np.complex64)  # type: ignore[assignment]
    with pytest.raises(EnvError) as caught:
        obs_spec(spaces.Dict({"phase": space}), "mine")
    assert str(caught.value) == f"The observation `phase` of `mine` is a Box of complex64, {UNSUPPORTED}"


@pytest.mark.parametrize("obs", [{"a": 3, "b": np.zeros(2)}, {"a": -1, "b": np.zeros(2)}])
def test_a_choice_that_does_not_exist_never_reaches_a_neighbour(obs: Any) -> None:
    """A value outside of its Discrete raises instead of marking another field's number."""
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,), np.float32)})
    with pytest.raises(ValueError, match=f"the observation {obs['a']} is not one of 3 from 0"):
        encoded(space, obs)
    with pytest.raises(ValueError, match="is not one of"):
        encoded(spaces.MultiDiscrete([3, 2]), np.array([obs["a"], 0]))


def test_a_batch_is_written_as_its_observations_are_one_by_one() -> None:
    """All leaves, nested, as a vector env batches them."""
    space = spaces.Dict(
        {
            "pick": spaces.Discrete(5, start=-2),
            "picks": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 5]]),
            "on": spaces.MultiBinary((2, 2)),
            "pair": spaces.Tuple((spaces.Box(-1, 1, (2, 3), np.float64), spaces.Box(0, 255, (2, 12, 9), np.uint8))),
            "grey": spaces.Box(0, 255, (9, 10), np.uint8),
            "tokens": spaces.Box(0, 255, (6, 3), np.uint8),
        }
    )
    space.seed(3)
    samples = [space.sample() for _ in range(4)]
    batch = concatenate(space, samples, create_empty_array(space, 4))
    one, spec = obs_encoder(space), obs_spec(space, "x")
    rows, expected = np.zeros((4, spec.width), spec.dtype), np.zeros((4, spec.width), spec.dtype)
    batch_encoder(space)(batch, rows)
    assert one is not None
    for sample, row in zip(samples, expected, strict=True):
        one(sample, row)
    assert np.array_equal(rows, expected) and rows.any(axis=1).all()
    wide = np.zeros((4, spec.width + 16), spec.dtype)  # as part of a wider array, whose rows are further apart
    list_encoder(space)(samples, wide[:, : spec.width])
    assert np.array_equal(wide[:, : spec.width], expected) and not wide[:, spec.width :].any()
    large = spaces.Dict({"eye": spaces.Box(0, 255, (3, 64, 64), np.uint8), "speed": spaces.Box(-1, 1, (), np.float32)})
    seen = [large.sample() for _ in range(3)]
    spec, one = obs_spec(large, "x"), obs_encoder(large)
    rows, expected = np.zeros((3, spec.width), spec.dtype), np.zeros((3, spec.width), spec.dtype)
    list_encoder(large)(seen, rows)
    assert one is not None
    for sample, row in zip(seen, expected, strict=True):
        one(sample, row)
    assert np.array_equal(rows, expected) and rows.any()
    with pytest.raises(ValueError, match="is not one of"):
        batch_encoder(spaces.Discrete(3))(np.array([0, 3]), np.zeros((2, 3), np.float32))
