"""How a network fares: what its gradients look like, and which of its units sleep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.parameter_layout import ParameterLayout

DORMANT = 0.025
"""A unit whose mean output is smaller than this share of its layer's mean is dormant."""


def gradient_statistics(weights: ParameterLayout, gradient: Array, params: Array) -> dict[str, float]:
    """Of each layer's gradient: length, largest part, share of zeros, length against the weight's own."""
    own, row = weights.named(params), {}
    for name, array in weights.named(gradient).items():
        length = float(np.linalg.norm(array))
        row[f"gradient/{name}/length"] = length
        row[f"gradient/{name}/largest"] = float(np.abs(array).max())
        row[f"gradient/{name}/zeros"] = float((array == 0).mean())
        row[f"gradient/{name}/relative"] = length / max(1e-12, float(np.linalg.norm(own[name])))
    return row


def dormant(activity: Mapping[str, Array]) -> dict[str, float]:
    """The share of units of each layer, and of all, that hardly move, given the mean size of their outputs."""
    row, sleeping, units = {}, 0, 0
    for name, sizes in activity.items():
        quiet = int((sizes <= DORMANT * sizes.mean()).sum())
        row[f"dormant/{name}"] = quiet / len(sizes)
        sleeping, units = sleeping + quiet, units + len(sizes)
    return row | {"dormant/share": sleeping / max(1, units)}


def left_out(steps: int) -> str:
    """What is said of gradient steps that were not taken."""
    return f"{steps} gradient steps were not finite and were left out."


class Restorable(Protocol):
    """What can be put back."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what a snapshot gave."""


def fall_back(engine: Restorable, good: dict[str, Array], rate_scale: Array) -> str:
    """Put the last good weights back and halve the rate; return what is to be said of it."""
    engine.restore(good)
    rate_scale *= 0.5
    return (
        "Three gradient steps in a row were not finite: the last good weights are back, and the learning rate is "
        f"halved (now {rate_scale[0]:g} of its setting)."
    )
