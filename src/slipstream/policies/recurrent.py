"""Recurrent layers, GRU and LSTM: forward and backward over all steps of some lanes, reset where episodes begin."""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.policies.linear_algebra import (
    ONE,
    ZERO,
    Activations,
    Gradients,
    activate,
    add_products,
    add_row,
    copy_row,
    dense,
    hyperbolic_tangent,
    logistic,
    product,
    scale_into,
    scratch_columns,
)
from slipstream.policies.parameter_layout import (
    BIAS,
    COLUMNS,
    DENSE,
    EXTRA,
    GRU,
    INPUTS,
    KIND,
    LSTM,
    OUT,
    RECURRENT,
    RECURRENT_BIAS,
    STATE,
    TRANSPOSED_RECURRENT,
    WEIGHT,
)
from slipstream.system.numba_compile import Number, compiled_fused


@compiled_fused
def gates_of(kind: int) -> int:
    """The number of gates of a layer."""
    return 4 if kind == LSTM else 3 if kind == GRU else 1


@compiled_fused
def recurrent_forward(
    params: Array, row: Array, before: Array, work: Activations, state: Array, lanes: int, steps: int
) -> None:
    """Run a recurrent layer: the products with its inputs for all steps at once, those with its state step by step.

    LSTM: i, f, o = logistic, g = tanh of x W + b + h U + d; c' = f c + i g; h' = o tanh(c').
    GRU: r, z = logistic(x W + b + h U + d); n = tanh(x W + b + r (h U + d)); h' = (1 - z) n + z h.
    """
    scratch, block, episode_start = work.scratch, work.block, work.episode_start
    kind, units, rows = row[KIND], row[COLUMNS], lanes * steps
    count = gates_of(kind) * units
    weight, bias, own, own_bias = row[WEIGHT], row[BIAS], row[RECURRENT], row[RECURRENT_BIAS]
    h = scratch_columns(scratch, block, row[OUT], units)
    gates = scratch_columns(scratch, block, row[EXTRA], count)
    inner = gates if kind == LSTM else scratch_columns(scratch, block, row[EXTRA] + count, count)
    last = row[EXTRA] + (count if kind == LSTM else 2 * count)
    c = scratch_columns(scratch, block, last, units)
    past = scratch_columns(scratch, block, last + (units if kind == LSTM else 0), units)
    below = params[weight:bias].reshape(row[INPUTS], count)
    dense(before, below, params[bias : bias + count], gates, rows, row[INPUTS])
    matrix = params[own : own + units * count].reshape(units, count)
    own_biases = params[own_bias : own_bias + count]
    for step in range(steps):
        now, earlier = step * lanes, (step - 1) * lanes
        for lane in range(lanes):
            keep = ZERO if episode_start[step, lane] else ONE
            before_h = state[lane, row[STATE] : row[STATE] + units] if step == 0 else h[earlier + lane]
            scale_into(before_h, keep, past[now + lane])
            if kind == LSTM:
                add_row(own_biases, gates[now + lane])
        if kind == LSTM:
            product(past[now : now + lanes], matrix, gates[now : now + lanes], lanes, units)
            for lane in range(lanes):
                keep = ZERO if episode_start[step, lane] else ONE
                start = row[STATE] + units
                before_c = state[lane, start : start + units] if step == 0 else c[earlier + lane]
                lstm_row(gates[now + lane], before_c, keep, units, c[now + lane], h[now + lane])
        else:
            dense(past[now : now + lanes], matrix, own_biases, inner[now : now + lanes], lanes, units)
            for lane in range(lanes):
                gru_row(gates[now + lane], inner[now + lane], past[now + lane], units, h[now + lane])


@compiled_fused
def logistic_all(values: Array) -> None:
    """Apply `logistic` in place."""
    for j in range(values.size):
        values[j] = logistic(values[j])


@compiled_fused
def lstm_row(gates: Array, before: Array, keep: Number, units: int, c: Array, h: Array) -> None:
    """One row of an LSTM step, from the pre-activations of its gates."""
    logistic_all(gates[: 2 * units])
    activate(gates[2 * units : 3 * units], 1)
    logistic_all(gates[3 * units :])
    input_gate, forget = gates[:units], gates[units : 2 * units]
    candidate, output = gates[2 * units : 3 * units], gates[3 * units : 4 * units]
    for j in range(units):
        c[j] = forget[j] * (keep * before[j]) + input_gate[j] * candidate[j]
        h[j] = output[j] * hyperbolic_tangent(c[j])


@compiled_fused
def gru_row(gates: Array, inner: Array, past: Array, units: int, h: Array) -> None:
    """One row of a GRU step, from the pre-activations of its gates."""
    add_row(inner[: 2 * units], gates[: 2 * units])
    logistic_all(gates[: 2 * units])
    reset, update, candidate = gates[:units], gates[units : 2 * units], gates[2 * units : 3 * units]
    below = inner[2 * units : 3 * units]
    for j in range(units):
        candidate[j] = hyperbolic_tangent(candidate[j] + reset[j] * below[j])
        h[j] = candidate[j] + update[j] * (past[j] - candidate[j])


@compiled_fused
def recurrent_backward(row: Array, work: Activations, state: Array, grads: Gradients, lanes: int, steps: int) -> None:
    """The backward pass of `recurrent_forward`: write the gates' gradients and add those of the recurrent weights."""
    scratch, block, episode_start = work.scratch, work.block, work.episode_start
    kind, units = row[KIND], row[COLUMNS]
    count = gates_of(kind) * units
    gates = scratch_columns(scratch, block, row[EXTRA], count)
    last = row[EXTRA] + (count if kind == LSTM else 2 * count)
    c = scratch_columns(scratch, block, last, units)
    past = scratch_columns(scratch, block, last + (units if kind == LSTM else 0), units)
    inner = scratch_columns(scratch, block, row[EXTRA] + (0 if kind == LSTM else count), count)
    by_h = scratch_columns(grads.scratch, block, row[OUT], units)
    by_gates = scratch_columns(grads.scratch, block, row[EXTRA], count)
    by_inner = scratch_columns(grads.scratch, block, row[EXTRA] + (0 if kind == LSTM else count), count)
    place = row[TRANSPOSED_RECURRENT]
    matrix = grads.transposed[place : place + count * units].reshape(count, units)
    from_h = grads.carried[0, : lanes * units].reshape(lanes, units)
    from_c = grads.carried[1, : lanes * units].reshape(lanes, units)
    from_h[:] = ZERO
    from_c[:] = ZERO
    for step in range(steps - 1, -1, -1):
        now, earlier = step * lanes, (step - 1) * lanes
        for lane in range(lanes):
            i, keep = now + lane, ZERO if episode_start[step, lane] else ONE
            if kind == LSTM:
                start = row[STATE] + units
                before_c = state[lane, start : start + units] if step == 0 else c[earlier + lane]
                lstm_backward_row(
                    gates[i], c[i], before_c, keep, units, by_h[i], from_h[lane], from_c[lane], by_gates[i]
                )
            else:
                gru_backward_row(gates[i], inner[i], past[i], units, by_h[i], from_h[lane], by_gates[i], by_inner[i])
        product(by_inner[now : now + lanes], matrix, from_h, lanes, count)
        for lane in range(lanes):
            if episode_start[step, lane]:
                from_h[lane] = ZERO
    own = row[RECURRENT]
    weights = grads.params[own : own + units * count].reshape(units, count)
    add_products(past, by_inner, weights, grads.params[row[RECURRENT_BIAS] :], lanes * steps, units)


@compiled_fused
def lstm_backward_row(
    gates: Array,
    c: Array,
    before: Array,
    keep: Number,
    units: int,
    by_h: Array,
    from_h: Array,
    from_c: Array,
    by_gates: Array,
) -> None:
    """One row of the backward pass of an LSTM step; `from_c` becomes the gradient of the cell before, `from_h` zero."""
    input_gate, forget = gates[:units], gates[units : 2 * units]
    candidate, output = gates[2 * units : 3 * units], gates[3 * units : 4 * units]
    by_input_gate, by_forget = by_gates[:units], by_gates[units : 2 * units]
    by_candidate, by_output = by_gates[2 * units : 3 * units], by_gates[3 * units : 4 * units]
    for j in range(units):
        tanh_c = hyperbolic_tangent(c[j])
        grad = by_h[j] + from_h[j]
        by_c = grad * output[j] * (ONE - tanh_c * tanh_c) + from_c[j]
        by_input_gate[j] = by_c * candidate[j] * input_gate[j] * (ONE - input_gate[j])
        by_forget[j] = by_c * (keep * before[j]) * forget[j] * (ONE - forget[j])
        by_candidate[j] = by_c * input_gate[j] * (ONE - candidate[j] * candidate[j])
        by_output[j] = grad * tanh_c * output[j] * (ONE - output[j])
        from_c[j] = keep * by_c * forget[j]
        from_h[j] = ZERO


@compiled_fused
def gru_backward_row(
    gates: Array, inner: Array, past: Array, units: int, by_h: Array, from_h: Array, by_gates: Array, by_inner: Array
) -> None:
    """One row of the backward pass of a GRU step; `from_h` becomes the gradient through the update gate alone."""
    reset, update, candidate = gates[:units], gates[units : 2 * units], gates[2 * units : 3 * units]
    below = inner[2 * units : 3 * units]
    by_reset, by_update, by_candidate = by_gates[:units], by_gates[units : 2 * units], by_gates[2 * units : 3 * units]
    by_below = by_inner[2 * units : 3 * units]
    for j in range(units):
        grad = by_h[j] + from_h[j]
        by_candidate[j] = grad * (ONE - update[j]) * (ONE - candidate[j] * candidate[j])
        by_reset[j] = by_candidate[j] * below[j] * reset[j] * (ONE - reset[j])
        by_update[j] = grad * (past[j] - candidate[j]) * update[j] * (ONE - update[j])
        by_below[j] = by_candidate[j] * reset[j]
        from_h[j] = grad * update[j]
    copy_row(by_gates[: 2 * units], by_inner)


@compiled_fused
def keep_state(table: Array, scratch: Array, block: int, first: int, lane: int, state: Array) -> None:
    """Copy the recurrent layers' state at row `first + lane` into a row of states."""
    for layer in range(table.shape[0]):
        row = table[layer]
        if row[KIND] == DENSE:
            continue
        units, place, i = row[COLUMNS], row[STATE], first + lane
        h = scratch_columns(scratch, block, row[OUT], units)
        for j in range(units):
            state[place + j] = h[i, j]
        if row[KIND] == LSTM:
            c = scratch_columns(scratch, block, row[EXTRA] + 4 * units, units)
            for j in range(units):
                state[place + units + j] = c[i, j]
