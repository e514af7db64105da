"""Forward and backward passes over the table of a network's layers, in memory that the caller owns."""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.policies.layer_norm import layer_norm, layer_norm_backward
from slipstream.policies.linear_algebra import (
    OBS_LIMIT,
    ONE,
    ZERO,
    activate,
    activation_gradient,
    add_products,
    dense,
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
    FLIPPED,
    FLIPPED_RECURRENT,
    IN,
    IN_COLUMNS,
    INPUTS,
    KIND,
    NORM,
    OUT,
    RECURRENT,
    RECURRENT_BIAS,
    WEIGHT,
)
from slipstream.policies.recurrent import gates_of, keep_state, recurrent_backward, recurrent_forward
from slipstream.system.numba_compile import compiled_fused


@compiled_fused
def load_obs(obs: Array, row: int, mean: Array, scale: Array, into: Array) -> None:
    """Write one normalised observation; the padding behind it stays zero.

    A scale of exactly 1 says that a number is read as it is; any other is held within the limit.
    """
    for k in range(obs.shape[1]):
        value = (obs[row, k] - mean[k]) * scale[k]
        into[k] = value if scale[k] == ONE else min(max(value, -OBS_LIMIT), OBS_LIMIT)


@compiled_fused
def outputs(scratch: Array, block: int, table: Array, layer: int) -> Array:
    """The outputs [block, columns] of a layer in the scratch memory; layer -1 is the input."""
    if layer < 0:
        return scratch_columns(scratch, block, 0, table[0, IN_COLUMNS])
    return scratch_columns(scratch, block, table[layer, OUT], table[layer, COLUMNS])


@compiled_fused
def forward(
    params: Array,
    table: Array,
    scratch: Array,
    block: int,
    lanes: int,
    steps: int,
    state: Array | None,
    episode_start: Array,
) -> None:
    """Run the networks on the inputs in the scratch memory.

    Row step * lanes + lane of every array is one step of one lane; lanes are a multiple of 4. `state` [lanes, size] is
    what the memories start from, and `episode_start` [steps, lanes] is 1 where an episode begins, which clears them.
    Without memories `state` is best None: then nothing is compiled for them.
    """
    rows = lanes * steps
    for layer in range(table.shape[0]):
        weight, bias = table[layer, WEIGHT], table[layer, BIAS]
        terms, columns = table[layer, INPUTS], table[layer, COLUMNS]
        before = scratch_columns(scratch, block, table[layer, IN], table[layer, IN_COLUMNS])
        if state is not None and table[layer, KIND] != DENSE:
            recurrent_forward(params, table[layer], before, scratch, block, lanes, steps, state, episode_start)
            continue
        after = outputs(scratch, block, table, layer)
        matrix = params[weight:bias].reshape(terms, columns)
        dense(before, matrix, params[bias : bias + columns], after, rows, terms)
        if table[layer, NORM] >= 0:
            layer_norm(params, table[layer], after, scratch, block, rows)
        activate(after[:rows].reshape(rows * columns), table[layer, ACTIVATION])


@compiled_fused
def backward(
    params: Array, table: Array, flipped: Array, scratch: Array, grads: Array, gradient: Array, block: int, lanes: int,
    steps: int, state: Array | None, episode_start: Array, carried: Array,
) -> None:  # fmt: skip
    """Add the gradient of every weight, given in `grads` the gradient of the last layers' outputs.

    `grads` has the layout of `scratch` and is overwritten on the way; the inputs' slopes stand in it afterwards where
    the table asks for them. `carried` [2, lanes, columns] is room for what flows back through memories.
    """
    rows = lanes * steps
    for layer in range(table.shape[0] - 1, -1, -1):
        row = table[layer]
        terms, columns = row[INPUTS], row[COLUMNS]
        before = scratch_columns(scratch, block, row[IN], row[IN_COLUMNS])
        grad = outputs(grads, block, table, layer)
        if state is None or row[KIND] == DENSE:
            values = outputs(scratch, block, table, layer)
            activation_gradient(
                grad[:rows].reshape(rows * columns), values[:rows].reshape(rows * columns), row[ACTIVATION]
            )
            if row[NORM] >= 0:
                layer_norm_backward(params, row, grad, scratch, gradient, block, rows)
        else:
            recurrent_backward(
                table[layer], flipped, scratch, grads, gradient, block, lanes, steps, state, episode_start, carried
            )
            columns *= gates_of(row[KIND])
            grad = scratch_columns(grads, block, row[EXTRA], columns)
        weight, bias = row[WEIGHT], row[BIAS]
        add_products(before, grad, gradient[weight:bias].reshape(terms, columns), gradient[bias:], rows, terms)
        if row[FLIPPED] >= 0:
            width = row[IN_COLUMNS]
            matrix = flipped[row[FLIPPED] : row[FLIPPED] + columns * width].reshape(columns, width)
            below = scratch_columns(grads, block, row[IN], width)
            below[:rows] = ZERO
            product(grad, matrix, below, rows, columns)


@compiled_fused
def transpose_weights(params: Array, table: Array, flipped: Array) -> None:
    """Copy each weight matrix [inputs, columns] as [columns, inputs], as wide as what it reads, for the way back."""
    for layer in range(table.shape[0]):
        row = table[layer]
        columns = row[COLUMNS] * gates_of(row[KIND])
        if row[FLIPPED] >= 0:
            matrix, width = params[row[WEIGHT] : row[BIAS]].reshape(row[INPUTS], columns), row[IN_COLUMNS]
            turned = flipped[row[FLIPPED] : row[FLIPPED] + columns * width].reshape(columns, width)
            transpose_rows(matrix, turned, 0, row[INPUTS])
        if row[KIND] != DENSE:
            matrix = params[row[RECURRENT] : row[RECURRENT_BIAS]].reshape(row[COLUMNS], columns)
            start, width = row[FLIPPED_RECURRENT], row[COLUMNS]
            turned = flipped[start : start + columns * width].reshape(columns, width)
            transpose_rows(matrix, turned, 0, row[COLUMNS])


@compiled_fused
def load_lanes(
    obs: Array, rows: Array, first: int, count: int, mean: Array, scale: Array, states: Array, inputs: Array,
    state: Array | None,
) -> int:  # fmt: skip
    """Write the observations and states of some rows into the lanes, and return how many lanes that is in fours."""
    for i in range(count):
        load_obs(obs, rows[first + i], mean, scale, inputs[i])
        if state is not None:
            for k in range(state.shape[1]):
                state[i, k] = states[rows[first + i], k]
    return (count + 3) // 4 * 4


@compiled_fused
def sample_index(sequence: int, step: int, steps: int, rows: int) -> int:
    """Where a step of a sequence stands in a batch of `rows` rows, cut into sequences of `steps`."""
    if steps == 1:  # most networks have no memory, and a division takes longer than all else here
        return sequence + step * rows
    return (sequence // rows * steps + step) * rows + sequence % rows


@compiled_fused
def run_block(
    params: Array, table: Array, scratch: Array, block: int, state: Array | None, episode_start: Array, index: Array,
    lanes: int, steps: int, rows: int, burn_in: int, obs: Array, mean: Array, scale: Array, begins: Array, states: Array
) -> None:  # fmt: skip
    """Run some sequences from their first states, freshened by their burn-in."""
    inputs = outputs(scratch, block, table, -1)
    if state is not None:
        for lane in range(index.size):
            for k in range(states.shape[1]):
                state[lane, k] = states[index[lane], k]
        for ahead in range(burn_in, 0, -1):
            for lane in range(index.size):
                n = sample_index(index[lane], -ahead, steps, rows)
                episode_start[0, lane] = 0 if n < 0 else begins[n]
                load_obs(obs, max(n, 0), mean, scale, inputs[lane])
            forward(params, table, scratch, block, lanes, 1, state, episode_start)
            for lane in range(index.size):
                if index[lane] // rows * steps >= ahead:
                    keep_state(table, scratch, block, 0, lane, state[lane])
    for lane in range(index.size):
        for step in range(steps):
            n = sample_index(index[lane], step, steps, rows)
            load_obs(obs, n, mean, scale, inputs[step * lanes + lane])
            episode_start[step, lane] = begins[n]
    forward(params, table, scratch, block, lanes, steps, state, episode_start)
