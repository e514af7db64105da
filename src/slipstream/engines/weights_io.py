"""Flat weights and moments as named arrays, as a checkpoint holds them, and back."""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.policies.parameter_layout import ParameterLayout


def arrays_by_name(weights: ParameterLayout, params: Array, moments: Array, counters: Array) -> dict[str, Array]:
    """Flat weights, Adam's moments [2, size] and counters, copied out as a checkpoint names them."""
    arrays = {f"weight/{name}": array for name, array in weights.named(params).items()}
    for row, kind in enumerate(("first", "second")):
        arrays |= {f"{kind}/{name}": array for name, array in weights.named(moments[row]).items()}
    return arrays | {"counters": counters.copy()}


def read_arrays(weights: ParameterLayout, arrays: dict[str, Array], params: Array, moments: Array, counters: Array) -> None:
    """The inverse of `arrays_by_name`, into arrays that are there."""
    weights.flatten(strip_prefix(arrays, "weight/"), params)
    for row, kind in enumerate(("first/", "second/")):
        weights.flatten(strip_prefix(arrays, kind), moments[row])
    counters[:] = arrays["counters"]


def strip_prefix(arrays: dict[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays whose names start so, by what is left of their names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
