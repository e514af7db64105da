"""Maps the policy's continuous actions to the env's: squashed or clipped to [-1, 1], then scaled to the bounds."""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.linear_algebra import hyperbolic_tangent
from slipstream.system.numba_compile import compiled_fused


@compiled_fused
def bound_row(row: int, raw: Array, low: Array, high: Array, squash: bool, out: Array) -> None:
    """Map a row of policy actions from [-1, 1] to [low, high]; dimensions without finite bounds are unchanged.

    With `squash` actions pass through tanh first, otherwise they are clipped to [-1, 1].
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
