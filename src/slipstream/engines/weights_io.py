"""Flat weights and Adam moments to the named arrays of a checkpoint, and back."""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.policies.parameter_layout import ParameterLayout


def arrays_by_name(weights: ParameterLayout, params: Array, moments: Array, counters: Array) -> dict[str, Array]:
    """Copies of flat weights, Adam's moments [2, size] and counters, by the names of a checkpoint."""
    arrays = {f"weight/{name}": array for name, array in weights.named(params).items()}
    for row, kind in enumerate(("first", "second")):
        arrays |= {f"{kind}/{name}": array for name, array in weights.named(moments[row]).items()}
    return arrays | {"counters": counters.copy()}


def read_arrays(
    weights: ParameterLayout, arrays: dict[str, Array], params: Array, moments: Array, counters: Array
) -> None:
    """The inverse of `arrays_by_name`, into existing arrays."""
    weights.flatten(strip_prefix(arrays, "weight/"), params)
    for row, kind in enumerate(("first/", "second/")):
        weights.flatten(strip_prefix(arrays, kind), moments[row])
    counters[:] = arrays["counters"]


def strip_prefix(arrays: dict[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays whose names start with a prefix, without the prefix."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
