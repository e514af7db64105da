"""Gymnasium action spaces: their action spec, and conversion of actions to and from the env's format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array
from slipstream.envs.adapters.observation_spaces import kind_of, leaves
from slipstream.errors import EnvError

Decode = Callable[[Array], list[Any]]
"""Turns actions [rows, parts] into a list of actions for each env's `step`."""


class PartlyBinary(spaces.MultiDiscrete):
    """A MultiDiscrete in which some parts of two options are binary, like those of a MultiBinary."""

    def __init__(self, sizes: Sequence[int], binary: Sequence[bool]) -> None:
        super().__init__(list(sizes))
        self.binary = tuple(binary)


def action_spec(space: spaces.Space[Any], name: str, masked: bool = False) -> ActionSpec:
    """The action spec of a space; the parts of a Dict or Tuple are concatenated, discrete parts first."""
    found = leaves(space)
    for leaf in found:
        if not (_is_choice(leaf.space) or _is_continuous(leaf.space)):
            what = f"The action `{leaf.name}` of `{name}` is" if leaf.path else f"The actions of `{name}` are"
            raise EnvError(
                f"{what} a {kind_of(leaf.space)}, which is not supported.",
                "use Discrete, MultiDiscrete, MultiBinary or a Box of floats",
            )
    sizes, binary = _choices([leaf.space for leaf in found if _is_choice(leaf.space)])
    low, high = _bounds([leaf.space for leaf in found if isinstance(leaf.space, spaces.Box)])
    if not sizes and not low:
        raise EnvError(f"The action space of `{name}` is empty.", "give its action_space at least one part")
    if not sizes:
        return ActionSpec("continuous", (), low, high)
    kind: Any = "mixed" if low else "discrete" if isinstance(space, spaces.Discrete) else "multi_discrete"
    return ActionSpec(kind, sizes, low, high, masked, binary if any(binary) else ())


def action_decoder(space: spaces.Space[Any]) -> Decode:
    """A function that turns actions [rows, parts] into a list of actions for each env's `step`."""
    return _decoder(space, _leaf_decoder, _join_rows)


def batch_decoder(space: spaces.Space[Any]) -> Callable[[Array], Any]:
    """A function that turns actions [rows, parts] into one batch for a vector env's `step`."""
    return _decoder(space, _leaf_batch_decoder, _join_batch)


def _leaf_decoder(space: spaces.Space[Any]) -> Decode:
    """`action_decoder` for a space without inner spaces, given its own columns."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        if start:
            return lambda action: [a + start for a in action[:, 0].tolist()]
        return lambda action: action[:, 0].tolist()
    if isinstance(space, spaces.MultiDiscrete):
        first = np.asarray(space.start).reshape(-1)
        return lambda action: list(_shaped(action + first, space))
    if isinstance(space, spaces.Box):
        return _box_decoder(space)
    return lambda action: list(_shaped(action, space))


def _leaf_batch_decoder(space: spaces.Space[Any]) -> Callable[[Array], Any]:
    """`batch_decoder` for a space without inner spaces, given its own columns."""
    if isinstance(space, spaces.Discrete):
        start, dtype = int(space.start), space.dtype
        return lambda action: action[:, 0].astype(dtype) + start
    if isinstance(space, spaces.MultiDiscrete):
        first = np.asarray(space.start).reshape(-1)
        return lambda action: _shaped(action + first, space)
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        return lambda action: action.astype(space.dtype).clip(low, high).reshape(-1, *space.shape)
    return lambda action: _shaped(action, space)


def action_encoder(space: spaces.Space[Any]) -> Callable[[Any], Array]:
    """The inverse of `action_decoder`: turns a batch of a space's own actions into actions [rows, parts]."""
    found = sorted(leaves(space), key=lambda leaf: _is_continuous(leaf.space))
    dtype = np.float32 if _is_continuous(found[-1].space) else np.int32

    def encode(actions: Any) -> Array:
        columns = []
        for leaf in found:
            part = np.asarray(leaf.find(actions))
            part = part.reshape(len(part), -1)
            first = np.reshape(getattr(leaf.space, "start", 0), -1)
            columns.append(part - first if _is_choice(leaf.space) else part)
        return np.concatenate(columns, axis=1).astype(dtype)

    return encode


def action_space(spec: ActionSpec) -> spaces.Space[Any]:
    """The Gymnasium space of an action spec; mixed actions are a Tuple of the discrete and the continuous parts."""
    box = spaces.Box(np.array(spec.low, np.float32), np.array(spec.high, np.float32), dtype=np.float32)
    if spec.kind == "continuous":
        return box
    if spec.kind == "discrete":
        return spaces.Discrete(spec.sizes[0])
    choices: spaces.Space[Any]
    if all(spec.binary) and spec.binary:
        choices = spaces.MultiBinary(len(spec.sizes))
    elif any(spec.binary):
        choices = PartlyBinary(spec.sizes, spec.binary)
    else:
        choices = spaces.MultiDiscrete(list(spec.sizes))
    return spaces.Tuple((choices, box)) if spec.kind == "mixed" else choices


def _box_decoder(space: spaces.Box) -> Decode:
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    if space.shape and (low.astype(np.float32) == low).all() and (high.astype(np.float32) == high).all():
        return lambda action: list(_shaped(action, space))

    def clip(action: Array) -> list[Any]:
        """Clip: the float32 nearest to a float64 bound may be outside of it. Scalars are returned as arrays."""
        return [one.reshape(space.shape) for one in action.astype(space.dtype).clip(low, high)]

    return clip


def _decoder(
    space: spaces.Space[Any],
    decode_leaf: Callable[[spaces.Space[Any]], Callable[[Array], Any]],
    join: Callable[[list[Any] | None, list[Any], int], Any],
) -> Callable[[Array], Any]:
    """A function that decodes the columns of each leaf and joins the values as the spaces are nested.

    `join` gets the keys of a Dict or None for a Tuple, the values of each inner space, and the number of rows.
    """
    if not isinstance(space, spaces.Tuple | spaces.Dict):
        return decode_leaf(space)
    columns = iter(_columns(space))

    def build(part: spaces.Space[Any]) -> Callable[[Array], Any]:
        if isinstance(part, spaces.Tuple | spaces.Dict):
            keys = list(part.spaces) if isinstance(part, spaces.Dict) else None
            inner = [build(one) for one in (part.spaces.values() if isinstance(part, spaces.Dict) else part.spaces)]
            return lambda action: join(keys, [decode(action) for decode in inner], len(action))
        at, decode = next(columns), decode_leaf(part)
        if _is_choice(part):  # mixed actions are floats
            return lambda action: decode(action[:, at].astype(np.int32, copy=False))
        return lambda action: decode(action[:, at])

    return build(space)


def _join_rows(keys: list[Any] | None, values: list[Any], rows: int) -> list[Any]:
    """A dict or tuple for each row, given a list with one value per row from each inner space."""
    together: Any = zip(*values, strict=True) if values else [()] * rows
    return list(together) if keys is None else [dict(zip(keys, one, strict=True)) for one in together]


def _join_batch(keys: list[Any] | None, values: list[Any], rows: int) -> Any:
    """One dict or tuple of batches."""
    return tuple(values) if keys is None else dict(zip(keys, values, strict=True))


def _columns(space: spaces.Space[Any]) -> list[slice]:
    """The columns of each leaf in an action array, which has the discrete parts first."""
    inner = [leaf.space for leaf in leaves(space)]
    starts = [0, sum(_parts(one) for one in inner if _is_choice(one))]  # of the next discrete and continuous leaf
    found = []
    for one in inner:
        kind = int(_is_continuous(one))
        found.append(slice(starts[kind], starts[kind] + _parts(one)))
        starts[kind] = found[-1].stop
    return found


def _shaped(action: Array, space: spaces.Space[Any]) -> Array:
    return action.astype(space.dtype).reshape(-1, *(space.shape or ()))


def _is_choice(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def _is_continuous(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


def _parts(space: spaces.Space[Any]) -> int:
    return prod(space.shape or ())


def _choices(inner: Sequence[spaces.Space[Any]]) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """The number of options of each discrete part, and whether it is binary."""
    sizes: list[int] = []
    binary: list[bool] = []
    for space in inner:
        options: Any = 2
        if isinstance(space, spaces.Discrete):
            options = space.n
        elif isinstance(space, spaces.MultiDiscrete):
            options = space.nvec
        sizes += np.broadcast_to(options, space.shape or ()).reshape(-1).tolist()
        same = [isinstance(space, spaces.MultiBinary)] * _parts(space)
        binary += space.binary if isinstance(space, PartlyBinary) else same
    return tuple(sizes), tuple(binary)


def _bounds(boxes: Sequence[spaces.Box]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The bounds of each continuous part."""
    low = tuple(float(x) for box in boxes for x in box.low.reshape(-1))
    return low, tuple(float(x) for box in boxes for x in box.high.reshape(-1))
