"""Gymnasium action spaces: their action spec, and conversion of actions to and from the env's format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.contracts import ActionSpec, Array
from slipstream.envs.adapters.observation_spaces import Leaf, kind_of, leaves
from slipstream.errors import EnvError

Decode = Callable[[Array], list[Any]]
"""Turns actions [rows, parts] into a list of actions for each env's `step`."""


def action_spec(space: spaces.Space[Any], name: str, masked: bool = False) -> ActionSpec:
    """The action spec of a space; the parts of a Dict or Tuple are concatenated."""
    found = leaves(space)
    for leaf in found:
        if not (_is_choice(leaf.space) or _is_continuous(leaf.space)):
            what = f"The action `{leaf.name}` of `{name}` is" if leaf.path else f"The actions of `{name}` are"
            raise EnvError(
                f"{what} a {kind_of(leaf.space)}, which is not supported.",
                "use Discrete, MultiDiscrete, MultiBinary or a Box of floats",
            )
    boxes = [leaf for leaf in found if _is_continuous(leaf.space)]
    if 0 < len(boxes) < len(found):
        choice = next(leaf for leaf in found if _is_choice(leaf.space))
        raise EnvError(
            f"The actions of `{name}` mix continuous and discrete parts: `{boxes[0].name}` is a "
            f"{kind_of(boxes[0].space)}, `{choice.name}` a {kind_of(choice.space)}.",
            "discretise the continuous parts, or use one Box of floats",
        )
    spec = _continuous(boxes) if boxes else _choices(space, found, masked)
    if not spec.parts:
        raise EnvError(f"The action space of `{name}` is empty.", "give its action_space at least one part")
    return spec


def action_decoder(space: spaces.Space[Any]) -> Decode:
    """A function that turns actions [rows, parts] into a list of actions for each env's `step`."""
    if isinstance(space, spaces.Tuple):
        rows = _row_decoder(space.spaces)
        return lambda action: list(rows(action))
    if isinstance(space, spaces.Dict):
        rows, keys = _row_decoder(list(space.spaces.values())), list(space.spaces)
        return lambda action: [dict(zip(keys, chosen, strict=True)) for chosen in rows(action)]
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


def batch_decoder(space: spaces.Space[Any]) -> Callable[[Array], Any]:
    """A function that turns actions [rows, parts] into one batch for a vector env's `step`."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces
        inner = list(parts.values()) if isinstance(parts, dict) else list(parts)
        decoders = [(at, batch_decoder(one)) for at, one in zip(_columns(inner), inner, strict=True)]
        if isinstance(parts, dict):
            keys = list(parts)
            return lambda action: {key: decode(action[:, at]) for key, (at, decode) in zip(keys, decoders, strict=True)}
        return lambda action: tuple(decode(action[:, at]) for at, decode in decoders)
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
    found = leaves(space)
    dtype = np.float32 if _is_continuous(found[0].space) else np.int32

    def encode(actions: Any) -> Array:
        columns = []
        for leaf in found:
            part = np.asarray(leaf.find(actions))
            part = part.reshape(len(part), -1)
            columns.append(part - np.reshape(getattr(leaf.space, "start", 0), -1) if dtype is np.int32 else part)
        return np.concatenate(columns, axis=1).astype(dtype)

    return encode


def action_space(spec: ActionSpec) -> spaces.Space[Any]:
    """The Gymnasium space of an action spec."""
    if spec.kind == "continuous":
        return spaces.Box(np.array(spec.low, np.float32), np.array(spec.high, np.float32), dtype=np.float32)
    if spec.kind == "discrete":
        return spaces.Discrete(spec.sizes[0])
    return (
        spaces.MultiBinary(len(spec.sizes))
        if all(spec.binary) and spec.binary
        else spaces.MultiDiscrete(list(spec.sizes))
    )


def _box_decoder(space: spaces.Box) -> Decode:
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    if space.shape and (low.astype(np.float32) == low).all() and (high.astype(np.float32) == high).all():
        return lambda action: list(_shaped(action, space))

    def clip(action: Array) -> list[Any]:
        """Clip: the float32 nearest to a float64 bound may be outside of it. Scalars are returned as arrays."""
        return [one.reshape(space.shape) for one in action.astype(space.dtype).clip(low, high)]

    return clip


def _row_decoder(inner: Sequence[spaces.Space[Any]]) -> Callable[[Array], Iterable[tuple[Any, ...]]]:
    """A function that decodes the columns of each space and yields the values of all spaces row by row."""
    parts = [(at, action_decoder(space)) for at, space in zip(_columns(inner), inner, strict=True)]
    if not parts:
        return lambda action: [()] * len(action)
    return lambda action: zip(*(decode(action[:, at]) for at, decode in parts), strict=True)


def _columns(inner: Sequence[spaces.Space[Any]]) -> list[slice]:
    """The columns of each space in the concatenated parts."""
    stops = np.cumsum([sum(_parts(leaf.space) for leaf in leaves(space)) for space in inner], dtype=int).tolist()
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def _shaped(action: Array, space: spaces.Space[Any]) -> Array:
    return action.astype(space.dtype).reshape(-1, *(space.shape or ()))


def _is_choice(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def _is_continuous(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


def _parts(space: spaces.Space[Any]) -> int:
    return prod(space.shape or ())


def _choices(space: spaces.Space[Any], found: Sequence[Leaf], masked: bool) -> ActionSpec:
    sizes: list[int] = []
    binary: list[bool] = []
    for leaf in found:
        options: Any = 2
        if isinstance(leaf.space, spaces.Discrete):
            options = leaf.space.n
        elif isinstance(leaf.space, spaces.MultiDiscrete):
            options = leaf.space.nvec
        sizes += np.broadcast_to(options, leaf.space.shape or ()).reshape(-1).tolist()
        binary += [isinstance(leaf.space, spaces.MultiBinary)] * _parts(leaf.space)
    kind = "discrete" if isinstance(space, spaces.Discrete) else "multi_discrete"
    return ActionSpec(kind, tuple(sizes), masked=masked, binary=tuple(binary) if any(binary) else ())  # type: ignore[arg-type]


def _continuous(boxes: Sequence[Leaf]) -> ActionSpec:
    low = np.concatenate([leaf.space.low.reshape(-1) for leaf in boxes])  # type: ignore[attr-defined]
    high = np.concatenate([leaf.space.high.reshape(-1) for leaf in boxes])  # type: ignore[attr-defined]
    return ActionSpec("continuous", (), tuple(map(float, low)), tuple(map(float, high)))
