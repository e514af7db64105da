"""Gymnasium observation spaces: their fields in a row, and conversion of observations to and from rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.errors import EnvError

Write = Callable[[Any, Array], None]
"""Writes an observation, or a part of it, into a row, or a part of it."""
Read = Callable[[Array], Any]
"""Turns rows of observations, or one field of them, back into a batch of observations."""

MIN_SIDE = 8
"""The smallest side of an image in pixels; smaller arrays are vectors."""
MAX_CHANNELS = 16
"""The largest number of channels of an image, including stacked frames."""
SMALL = 4096
"""Leaves of up to this many bytes are gathered from all envs and written in one call, which is faster."""
ORDERS: dict[int, tuple[tuple[int, ...], ...]] = {2: ((0, 1),), 3: ((0, 1, 2), (1, 2, 0)), 4: ((1, 2, 0, 3),)}
"""By number of dimensions: axis orders that give height, width, channels. Two channel axes are a frame stack."""


@dataclass(frozen=True)
class Leaf:
    """A space that is not a Dict or Tuple, and the keys that lead to it; a top-level space has no keys."""

    path: tuple[Any, ...]
    space: spaces.Space[Any]

    @property
    def name(self) -> str:
        """The keys, joined."""
        return "/".join(map(str, self.path))

    def find(self, value: Any) -> Any:
        """The part of a value of the whole space that belongs to this leaf."""
        for key in self.path:
            value = value[key]
        return value


def leaves(space: spaces.Space[Any], path: tuple[Any, ...] = ()) -> list[Leaf]:
    """All leaves, in the order of the space."""
    if isinstance(space, spaces.Dict):
        inner = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        inner = list(enumerate(space.spaces))  # type: ignore[arg-type]
    else:
        return [Leaf(path, space)]
    return [leaf for key, part in inner for leaf in leaves(part, (*path, key))]


def kind_of(space: spaces.Space[Any]) -> str:
    """The name of a space in messages."""
    return f"Box of {space.dtype}" if isinstance(space, spaces.Box) else type(space).__name__


def obs_spec(space: spaces.Space[Any], name: str) -> ObsSpec:
    """The observation spec of a space; raises EnvError for an unsupported leaf."""
    fields: dict[str, ObsField] = {}
    for leaf in leaves(space):
        field = _field(leaf)
        if field is None:
            what = f"The observation `{leaf.name}` of `{name}` is" if leaf.path else f"The observations of `{name}` are"
            raise EnvError(
                f"{what} a {kind_of(leaf.space)}, which is not supported.",
                "convert it to numbers (gymnasium.wrappers.TransformObservation), or remove it (FilterObservation)",
            )
        if leaf.name in fields:
            raise EnvError(f"Two observations of `{name}` are named `{leaf.name}`.", "rename one of them")
        fields[leaf.name] = field
    spec = ObsSpec(tuple(sorted(fields.values(), key=lambda field: field.kind != "vector")))
    if not spec.width:
        raise EnvError(f"The observation space of `{name}` is empty.", "give its observation_space at least one number")
    return spec


def obs_encoder(space: spaces.Space[Any]) -> Write | None:
    """A function that writes an observation into a row; None if plain assignment is enough."""
    found, spec = leaves(space), obs_spec(space, "")
    if not found[0].path and spec.plain:
        flat = isinstance(space, spaces.Box | spaces.MultiBinary) and len(space.shape) == 1
        return None if flat else _writer(space, spec.fields[0])
    return _whole(found, spec, _writer)


def batch_encoder(space: spaces.Space[Any]) -> Write:
    """A function that writes a batch of observations from a vector env into rows."""
    return _whole(leaves(space), obs_spec(space, ""), _batch_writer)


def list_encoder(space: spaces.Space[Any]) -> Callable[[Sequence[Any], Array], None]:
    """A function that writes a list of observations into rows; small leaves are written for all envs at once."""
    spec, plan = obs_spec(space, ""), []
    for leaf in leaves(space):
        field, start = spec.places[leaf.name]
        together = _batch_writer(leaf.space, field) if field.bytes <= SMALL else None
        plan.append((leaf, slice(start, start + field.bytes), field.dtype, together, _writer(leaf.space, field)))

    def encode(seen: Sequence[Any], rows: Array) -> None:
        data = rows.view(np.uint8)
        for leaf, at, dtype, together, write in plan:
            values, part = seen, data[:, at].view(dtype)
            for key in leaf.path:
                values = [value[key] for value in values]
            if together is None:
                for value, row in zip(values, part, strict=True):
                    write(value, row)
            else:
                shape = np.shape(values[0])
                joined = np.concatenate(values).reshape(len(part), *shape) if shape else np.array(values)
                together(joined, part)

    return encode


def _whole(found: list[Leaf], spec: ObsSpec, make: Callable[[spaces.Space[Any], ObsField], Write]) -> Write:
    """A function that writes every leaf into its part of a row or of rows."""
    plan = []
    for leaf in found:
        field, start = spec.places[leaf.name]
        plan.append((leaf.path, start, start + field.bytes, field.dtype, make(leaf.space, field)))

    def encode(obs: Any, into: Array) -> None:
        data = into.view(np.uint8)
        for path, start, stop, dtype, write in plan:
            part = obs
            for key in path:
                part = part[key]
            write(part, data[..., start:stop].view(dtype))

    return encode


def obs_decoder(space: spaces.Space[Any]) -> Read:
    """A function that turns rows into a batch of observations of the space; the result is a copy."""
    spec = obs_spec(space, "")
    readers = {leaf.name: _reader(leaf.space, spec.places[leaf.name][0]) for leaf in leaves(space)}

    def build(part: spaces.Space[Any], path: tuple[Any, ...], named: dict[str, Array]) -> Any:
        if isinstance(part, spaces.Dict):
            return {key: build(inner, (*path, key), named) for key, inner in part.spaces.items()}
        if isinstance(part, spaces.Tuple):
            return tuple(build(inner, (*path, key), named) for key, inner in enumerate(part.spaces))
        name = Leaf(path, part).name
        return readers[name](named[name])

    return lambda rows: build(space, (), spec.split(rows))


def observation_space(spec: ObsSpec) -> spaces.Space[Any]:
    """The Gymnasium space of an observation spec: a Box for each field, in a Dict if the fields have names."""
    boxes = {
        field.name: spaces.Box(-np.inf, np.inf, field.shape, np.float32)
        if field.kind == "vector"
        else spaces.Box(0, 255, field.shape, np.uint8)
        for field in spec.fields
    }
    return boxes[""] if list(boxes) == [""] else spaces.Dict(boxes)  # type: ignore[arg-type]


def _field(leaf: Leaf) -> ObsField | None:
    space, name = leaf.space, leaf.name
    if isinstance(space, spaces.Discrete):
        return ObsField(name, "vector", (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return ObsField(name, "vector", (int(np.sum(space.nvec)),))
    if isinstance(space, spaces.MultiBinary):
        return ObsField(name, "vector", (prod(space.shape),))
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "fiub":
        return None
    if space.dtype == np.uint8:
        if len(space.shape) == 2 and space.shape[0] >= 2 and space.shape[1] == 3:
            return ObsField(name, "tokens", space.shape)
        order = _axes(space.shape)
        if order is not None:
            height, width, *channels = (space.shape[axis] for axis in order)
            return ObsField(name, "image", (height, width, prod(channels)))
    return ObsField(name, "vector", (prod(space.shape),))


def _axes(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axis order that gives height, width, channels; None if the array is not an image."""
    for order in ORDERS.get(len(shape), ()):
        height, width, *channels = (shape[axis] for axis in order)
        if min(height, width) >= MIN_SIDE and 1 <= prod(channels) <= MAX_CHANNELS:
            return order
    return None


def _writer(space: spaces.Space[Any], field: ObsField) -> Write:
    """A function that writes a value of a leaf into its flat part of a row."""
    if isinstance(space, spaces.Discrete):
        return _one_hot(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hots(np.asarray(space.nvec).reshape(-1), np.asarray(space.start).reshape(-1))
    order = _axes(space.shape or ()) if field.kind == "image" else None
    if order is not None:
        return _pixels(space.shape or (), order)

    def flat(value: Any, out: Array) -> None:
        out[:] = np.asarray(value).reshape(-1)

    return flat


def _batch_writer(space: spaces.Space[Any], field: ObsField) -> Write:
    """A function that writes the values of a leaf, one per row, into its part of all rows."""
    order = _axes(space.shape or ()) if field.kind == "image" else None
    if order is not None:
        return _pixels(space.shape or (), order)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _hot_rows(
            np.asarray(getattr(space, "nvec", getattr(space, "n", 0))).reshape(-1), np.reshape(space.start, -1)
        )

    def flat(values: Any, out: Array) -> None:
        out[:] = np.asarray(values).reshape(out.shape)

    return flat


def _reader(space: spaces.Space[Any], field: ObsField) -> Read:
    """The inverse of `_writer`, for the values [rows, *field.shape] of a leaf."""
    if isinstance(space, spaces.Discrete):
        return lambda values: values.argmax(axis=1) + int(space.start)
    shape = space.shape or ()
    if isinstance(space, spaces.MultiDiscrete):
        stops = np.cumsum(np.asarray(space.nvec).reshape(-1))[:-1]

        def choices(values: Array) -> Array:
            found = [part.argmax(axis=1) for part in np.split(values, stops, axis=1)]
            return (np.stack(found, axis=1).reshape(-1, *shape) + space.start).astype(space.dtype)

        return choices
    order = _axes(shape) if field.kind == "image" else None
    if order is not None:
        turned = tuple(shape[axis] for axis in order)
        back = (0, *(1 + order.index(axis) for axis in range(len(order))))
        return lambda values: values.reshape(-1, *turned).transpose(back).copy()
    return lambda values: values.reshape(-1, *shape).astype(space.dtype)


def _one_hot(options: int, first: int) -> Write:
    def write(value: Any, out: Array) -> None:
        choice = int(value) - first
        if not 0 <= choice < options:
            raise ValueError(f"the observation {value} is not one of {options} from {first}")
        out[:] = 0.0
        out[choice] = 1.0

    return write


def _one_hots(options: Array, first: Array) -> Write:
    offsets = np.cumsum(options) - options

    def write(value: Any, out: Array) -> None:
        choices = np.asarray(value).reshape(-1) - first
        if (choices < 0).any() or (choices >= options).any():
            raise ValueError(f"the observation {value} is not one of {options} from {first}")
        out[:] = 0.0
        out[offsets + choices] = 1.0

    return write


def _hot_rows(options: Array, first: Array) -> Write:
    offsets = np.cumsum(options) - options

    def write(values: Any, out: Array) -> None:
        choices = np.asarray(values).reshape(len(out), -1) - first
        if (choices < 0).any() or (choices >= options).any():
            raise ValueError(f"one of the observations {values} is not one of {options} from {first}")
        out[:] = 0.0
        np.put_along_axis(out, offsets + choices, 1.0, axis=1)

    return write


def _pixels(shape: tuple[int, ...], order: tuple[int, ...]) -> Write:
    """A function that writes an image through a transposed view of the row or of rows."""
    turned = tuple(shape[axis] for axis in order)
    places = [order.index(axis) for axis in range(len(order))]
    back = [(*range(lead), *(lead + place for place in places)) for lead in range(2)]

    def write(value: Any, out: Array) -> None:
        lead = out.shape[:-1]
        out.reshape(lead + turned).transpose(back[len(lead)])[...] = value

    return write
