"""Diagnostics of a network: gradient statistics, dormant units, and the fallback after a divergence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slipstream.algorithms.rollback import Restorable
from slipstream.contracts import Array
from slipstream.policies.parameter_layout import ParameterLayout

DORMANT = 0.025
"""A unit whose mean absolute output is at most this share of its layer's mean is dormant."""


def gradient_statistics(weights: ParameterLayout, gradient: Array, params: Array) -> dict[str, float]:
    """Norm, largest entry, share of zeros, and norm relative to the weights, of each layer's gradient."""
    own, row = weights.named(params), {}
    for name, array in weights.named(gradient).items():
        norm = float(np.linalg.norm(array))
        row[f"gradient/{name}/norm"] = norm
        row[f"gradient/{name}/max_abs"] = float(np.abs(array).max())
        row[f"gradient/{name}/zero_share"] = float((array == 0).mean())
        row[f"gradient/{name}/relative_norm"] = norm / max(1e-12, float(np.linalg.norm(own[name])))
    return row


def dormant(activity: Mapping[str, Array]) -> dict[str, float]:
    """The share of dormant units of each layer, and of all, given the mean absolute output of each unit."""
    row, dormant_units, units = {}, 0, 0
    for name, sizes in activity.items():
        quiet = int((sizes <= DORMANT * sizes.mean()).sum())
        row[f"dormant_units/{name}"] = quiet / len(sizes)
        dormant_units, units = dormant_units + quiet, units + len(sizes)
    return row | {"dormant_units/share": dormant_units / max(1, units)}


def skipped_steps(steps: int) -> str:
    """The notice about gradient steps that were not taken."""
    return f"{steps} gradient steps were not finite and were skipped."


def fall_back(engine: Restorable, good: dict[str, Array], rate_scale: Array) -> str:
    """Restore the last good weights and halve the learning rate; return the notice about it."""
    engine.restore(good)
    rate_scale *= 0.5
    return (
        "Three gradient steps in a row were not finite: the last good weights are restored, and the learning rate is "
        f"halved (now {rate_scale[0]:g} of its setting)."
    )
