"""Layer normalisation, forward and backward."""

from __future__ import annotations

import math

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.linear_algebra import NORM_EPS, ONE, ZERO, scratch_columns
from slipstream.policies.parameter_layout import COLUMNS, EXTRA, NORM, UNITS
from slipstream.system.numba_compile import Number, compiled_fused


@compiled_fused
def layer_norm(params: Array, row: Array, values: Array, scratch: Array, block: int, rows: int) -> None:
    """Normalise over the units, then apply gain and shift, in place; keep what `layer_norm_backward` needs."""
    columns, units, gain = row[COLUMNS], row[UNITS], row[NORM]
    kept = scratch_columns(scratch, block, row[EXTRA], columns)
    inverse = scratch_columns(scratch, block, row[EXTRA] + columns, 1)
    for i in range(rows):
        mean = ZERO
        for j in range(units):
            mean += values[i, j]
        mean /= np.float32(units)
        square = ZERO
        for j in range(units):
            square += (values[i, j] - mean) * (values[i, j] - mean)
        factor = ONE / np.float32(math.sqrt(square / np.float32(units) + NORM_EPS))
        inverse[i, 0] = factor
        for j in range(units):
            kept[i, j] = (values[i, j] - mean) * factor
            values[i, j] = kept[i, j] * params[gain + j] + params[gain + columns + j]


@compiled_fused
def layer_norm_backward(
    params: Array, row: Array, grad: Array, scratch: Array, gradient: Array, block: int, rows: int
) -> None:
    """The backward pass of `layer_norm`, in place."""
    columns, units, gain = row[COLUMNS], row[UNITS], row[NORM]
    kept = scratch_columns(scratch, block, row[EXTRA], columns)
    inverse = scratch_columns(scratch, block, row[EXTRA] + columns, 1)
    for i in range(rows):
        for j in range(units):
            gradient[gain + j] += grad[i, j] * kept[i, j]
            gradient[gain + columns + j] += grad[i, j]
        layer_norm_backward_row(grad[i], params[gain:], kept[i], inverse[i, 0], units)


@compiled_fused
def layer_norm_backward_row(grad: Array, gains: Array, kept: Array, inverse: Number, units: int) -> None:
    """One row of the backward pass, without the gradient of gain and shift."""
    mean, along, share = ZERO, ZERO, ONE / np.float32(units)
    for j in range(units):
        grad[j] *= gains[j]
        mean += grad[j]
        along += grad[j] * kept[j]
    mean, along = mean * share, along * share
    for j in range(units):
        grad[j] = inverse * (grad[j] - mean - kept[j] * along)
