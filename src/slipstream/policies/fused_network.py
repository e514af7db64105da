"""Forward and backward passes over the table of a network's layers, in memory that the caller owns.

Row step * lanes + lane of every array of activations is one step of one lane; lanes are a multiple of 4. The recurrent
state [lanes, size] is an argument of its own: where it is None, no recurrent code is compiled.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.linear_algebra import (
    NORM_EPS,
    ONE,
    ZERO,
    Activations,
    Gradients,
    activate,
    activation_gradient,
    add_products,
    dense,
    normalise,
    product,
    scratch_columns,
    transpose_rows,
)
from slipstream.policies.parameter_layout import (
    ACTIVATION,
    BIAS,
    COLUMNS,
    DENSE,
    EXTRA,
    IN,
    IN_COLUMNS,
    INPUTS,
    KIND,
    NORM,
    OUT,
    RECURRENT,
    RECURRENT_BIAS,
    TRANSPOSED,
    TRANSPOSED_RECURRENT,
    UNITS,
    WEIGHT,
)
from slipstream.policies.recurrent import gates_of, keep_state, recurrent_backward, recurrent_forward
from slipstream.system.numba_compile import Number, compiled_fused


class Network(NamedTuple):
    """Weights and layout of a policy."""

    params: Array
    table: Array  # [layers, columns of parameter_layout]
    head: Array
    policy_layer: int
    value_layer: int


SequenceBatch = Any
"""An `algorithms.engine.Batch`: the columns obs, mean, scale, episode_start and state, and rows, sequence, burn_in."""


@compiled_fused
def load_obs(obs: Array, row: int, mean: Array, scale: Array, into: Array) -> None:
    """Write one normalised observation; the padding behind it stays zero."""
    for k in range(obs.shape[1]):
        into[k] = normalise(obs[row, k], mean[k], scale[k])


@compiled_fused
def outputs(scratch: Array, block: int, table: Array, layer: int) -> Array:
    """The outputs [block, columns] of a layer in the scratch memory; layer -1 is the input."""
    if layer < 0:
        return scratch_columns(scratch, block, 0, table[0, IN_COLUMNS])
    return scratch_columns(scratch, block, table[layer, OUT], table[layer, COLUMNS])


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


@compiled_fused
def forward(params: Array, table: Array, work: Activations, state: Array | None, lanes: int, steps: int) -> None:
    """Run all layers on the inputs in the scratch memory; recurrent layers start from `state`."""
    rows, scratch, block = lanes * steps, work.scratch, work.block
    for layer in range(table.shape[0]):
        weight, bias = table[layer, WEIGHT], table[layer, BIAS]
        terms, columns = table[layer, INPUTS], table[layer, COLUMNS]
        before = scratch_columns(scratch, block, table[layer, IN], table[layer, IN_COLUMNS])
        if state is not None and table[layer, KIND] != DENSE:
            recurrent_forward(params, table[layer], before, work, state, lanes, steps)
            continue
        after = outputs(scratch, block, table, layer)
        matrix = params[weight:bias].reshape(terms, columns)
        dense(before, matrix, params[bias : bias + columns], after, rows, terms)
        if table[layer, NORM] >= 0:
            layer_norm(params, table[layer], after, scratch, block, rows)
        activate(after[:rows].reshape(rows * columns), table[layer, ACTIVATION])


@compiled_fused
def backward(
    params: Array,
    table: Array,
    work: Activations,
    state: Array | None,
    grads: Gradients,
    lanes: int,
    steps: int,
) -> None:
    """Add the gradient of every weight, given in `grads.scratch` the gradients of the heads' outputs.

    `grads.scratch` is overwritten; afterwards it holds the gradients of the inputs where the table requests them.
    """
    rows, scratch, block, gradient = lanes * steps, work.scratch, work.block, grads.params
    for layer in range(table.shape[0] - 1, -1, -1):
        row = table[layer]
        terms, columns = row[INPUTS], row[COLUMNS]
        before = scratch_columns(scratch, block, row[IN], row[IN_COLUMNS])
        grad = outputs(grads.scratch, block, table, layer)
        if state is None or row[KIND] == DENSE:
            values = outputs(scratch, block, table, layer)
            activation_gradient(
                grad[:rows].reshape(rows * columns), values[:rows].reshape(rows * columns), row[ACTIVATION]
            )
            if row[NORM] >= 0:
                layer_norm_backward(params, row, grad, scratch, gradient, block, rows)
        else:
            recurrent_backward(row, work, state, grads, lanes, steps)
            columns *= gates_of(row[KIND])
            grad = scratch_columns(grads.scratch, block, row[EXTRA], columns)
        weight, bias = row[WEIGHT], row[BIAS]
        add_products(before, grad, gradient[weight:bias].reshape(terms, columns), gradient[bias:], rows, terms)
        if row[TRANSPOSED] >= 0:
            width = row[IN_COLUMNS]
            matrix = grads.transposed[row[TRANSPOSED] : row[TRANSPOSED] + columns * width].reshape(columns, width)
            below = scratch_columns(grads.scratch, block, row[IN], width)
            below[:rows] = ZERO
            product(grad, matrix, below, rows, columns)


@compiled_fused
def transpose_weights(params: Array, table: Array, transposed: Array) -> None:
    """Copy each weight matrix [inputs, columns] as [columns, inputs], padded to its inputs, for the backward pass."""
    for layer in range(table.shape[0]):
        row = table[layer]
        columns = row[COLUMNS] * gates_of(row[KIND])
        if row[TRANSPOSED] >= 0:
            matrix, width = params[row[WEIGHT] : row[BIAS]].reshape(row[INPUTS], columns), row[IN_COLUMNS]
            turned = transposed[row[TRANSPOSED] : row[TRANSPOSED] + columns * width].reshape(columns, width)
            transpose_rows(matrix, turned, 0, row[INPUTS])
        if row[KIND] != DENSE:
            matrix = params[row[RECURRENT] : row[RECURRENT_BIAS]].reshape(row[COLUMNS], columns)
            start, width = row[TRANSPOSED_RECURRENT], row[COLUMNS]
            turned = transposed[start : start + columns * width].reshape(columns, width)
            transpose_rows(matrix, turned, 0, row[COLUMNS])


@compiled_fused
def sample_index(sequence: int, step: int, steps: int, rows: int) -> int:
    """The sample of a step of a sequence, in a batch of `rows` rows that is cut into sequences of `steps`."""
    if steps == 1:  # the usual case, without memory: the division below would dominate the time of this function
        return sequence + step * rows
    return (sequence // rows * steps + step) * rows + sequence % rows


@compiled_fused
def run_block(
    net: Network, work: Activations, state: Array | None, batch: SequenceBatch, index: Array, lanes: int
) -> None:
    """Run the sequences in `index`, one per lane, from their recorded states, refreshed by their burn-in."""
    inputs, steps, rows = outputs(work.scratch, work.block, net.table, -1), batch.sequence, batch.rows
    obs, mean, scale, recorded = batch.obs, batch.mean, batch.scale, batch.state
    episode_start, lane_start = batch.episode_start, work.episode_start
    if state is not None:
        for lane in range(index.size):
            for k in range(recorded.shape[1]):
                state[lane, k] = recorded[index[lane], k]
        for ahead in range(batch.burn_in, 0, -1):
            for lane in range(index.size):
                n = sample_index(index[lane], -ahead, steps, rows)
                lane_start[0, lane] = 0 if n < 0 else episode_start[n]
                load_obs(obs, max(n, 0), mean, scale, inputs[lane])
            forward(net.params, net.table, work, state, lanes, 1)
            for lane in range(index.size):
                if index[lane] // rows * steps >= ahead:
                    keep_state(net.table, work.scratch, work.block, 0, lane, state[lane])
    for lane in range(index.size):
        for step in range(steps):
            n = sample_index(index[lane], step, steps, rows)
            load_obs(obs, n, mean, scale, inputs[step * lanes + lane])
            lane_start[step, lane] = episode_start[n]
    forward(net.params, net.table, work, state, lanes, steps)
