"""From the policy's continuous actions to the env's: bent or cut off at [-1, 1], and stretched onto its bounds."""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.linear_algebra import hyperbolic_tangent
from slipstream.system.numba_compile import compiled_fused


@compiled_fused
def bound_row(row: int, raw: Array, low: Array, high: Array, squash: bool, out: Array) -> None:
    """Map a row of policy actions to the env's: [-1, 1] onto [low, high] where both are finite, unchanged where not.

    A squashed action is bent into [-1, 1] first, any other is cut off there.
    """
    for k in range(raw.shape[1]):
        x = hyperbolic_tangent(raw[row, k]) if squash else raw[row, k]
        if math.isfinite(low[k]) and math.isfinite(high[k]):
            x = min(max(x, np.float32(-1)), np.float32(1))
            x = low[k] + (x + np.float32(1)) * np.float32(0.5) * (high[k] - low[k])
        out[row, k] = x


@compiled_fused
def bound(raw: Array, low: Array, high: Array, squash: bool, out: Array) -> None:
    """Map policy actions to the env's, row by row."""
    for row in range(raw.shape[0]):
        bound_row(row, raw, low, high, squash, out)
