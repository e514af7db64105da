"""Memories, GRU and LSTM: over all steps of some lanes, forth and back, with resets where episodes begin."""

from __future__ import annotations

from slipstream.contracts import Array
from slipstream.policies.linear_algebra import (
    ONE,
    ZERO,
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
    FLIPPED_RECURRENT,
    GRU,
    INPUTS,
    KIND,
    LSTM,
    OUT,
    RECURRENT,
    RECURRENT_BIAS,
    STATE,
    WEIGHT,
)
from slipstream.system.numba_compile import Number, compiled_fused


@compiled_fused
def gates_of(kind: int) -> int:
    """How many gates a layer has."""
    return 4 if kind == LSTM else 3 if kind == GRU else 1


@compiled_fused
def recurrent_forward(
    params: Array,
    row: Array,
    before: Array,
    scratch: Array,
    block: int,
    lanes: int,
    steps: int,
    state: Array,
    episode_start: Array,
) -> None:
    """Run a memory over all steps: what comes from below for all of them at once, what comes from the past one by one.

    LSTM: i, f, o = logistic, g = tanh of x W + b + h U + d; c' = f c + i g; h' = o tanh(c').
    GRU: r, z = logistic(x W + b + h U + d); n = tanh(x W + b + r (h U + d)); h' = (1 - z) n + z h.
    """
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
    """One row of an LSTM's step, from its gates' sums."""
    logistic_all(gates[: 2 * units])
    activate(gates[2 * units : 3 * units], 1)
    logistic_all(gates[3 * units :])
    gate, forget, fill, shown = (
        gates[:units], gates[units : 2 * units], gates[2 * units : 3 * units], gates[3 * units : 4 * units]
    )  # fmt: skip
    for j in range(units):
        c[j] = forget[j] * (keep * before[j]) + gate[j] * fill[j]
        h[j] = shown[j] * hyperbolic_tangent(c[j])


@compiled_fused
def gru_row(gates: Array, inner: Array, past: Array, units: int, h: Array) -> None:
    """One row of a GRU's step, from its gates' sums."""
    add_row(inner[: 2 * units], gates[: 2 * units])
    logistic_all(gates[: 2 * units])
    opened, hold, fill = gates[:units], gates[units : 2 * units], gates[2 * units : 3 * units]
    below = inner[2 * units : 3 * units]
    for j in range(units):
        fill[j] = hyperbolic_tangent(fill[j] + opened[j] * below[j])
        h[j] = fill[j] + hold[j] * (past[j] - fill[j])


@compiled_fused
def recurrent_backward(
    row: Array, flipped: Array, scratch: Array, grads: Array, gradient: Array, block: int, lanes: int, steps: int,
    state: Array, episode_start: Array, carried: Array,
) -> None:  # fmt: skip
    """The way back through `recurrent_forward`: writes the gates' slopes and adds the gradient of the recurrent weights."""
    kind, units = row[KIND], row[COLUMNS]
    count = gates_of(kind) * units
    gates = scratch_columns(scratch, block, row[EXTRA], count)
    last = row[EXTRA] + (count if kind == LSTM else 2 * count)
    c = scratch_columns(scratch, block, last, units)
    past = scratch_columns(scratch, block, last + (units if kind == LSTM else 0), units)
    inner = scratch_columns(scratch, block, row[EXTRA] + (0 if kind == LSTM else count), count)
    by_h = scratch_columns(grads, block, row[OUT], units)
    by_gates = scratch_columns(grads, block, row[EXTRA], count)
    by_inner = scratch_columns(grads, block, row[EXTRA] + (0 if kind == LSTM else count), count)
    place = row[FLIPPED_RECURRENT]
    matrix = flipped[place : place + count * units].reshape(count, units)
    from_h = carried[0, : lanes * units].reshape(lanes, units)
    from_c = carried[1, : lanes * units].reshape(lanes, units)
    from_h[:] = ZERO
    from_c[:] = ZERO
    for step in range(steps - 1, -1, -1):
        now, earlier = step * lanes, (step - 1) * lanes
        for lane in range(lanes):
            i, keep = now + lane, ZERO if episode_start[step, lane] else ONE
            if kind == LSTM:
                start = row[STATE] + units
                before_c = state[lane, start : start + units] if step == 0 else c[earlier + lane]
                lstm_slopes(
                    gates[i], c[i], before_c, keep, units, by_h[i], from_h[lane], from_c[lane], by_gates[i]
                )  # fmt: skip
            else:
                gru_slopes(gates[i], inner[i], past[i], units, by_h[i], from_h[lane], by_gates[i], by_inner[i])
        product(by_inner[now : now + lanes], matrix, from_h, lanes, count)
        for lane in range(lanes):
            if episode_start[step, lane]:
                from_h[lane] = ZERO
    own = row[RECURRENT]
    weights = gradient[own : own + units * count].reshape(units, count)
    add_products(past, by_inner, weights, gradient[row[RECURRENT_BIAS] :], lanes * steps, units)


@compiled_fused
def lstm_slopes(
    gates: Array, c: Array, before: Array, keep: Number, units: int, by_h: Array, from_h: Array, from_c: Array,
    by_gates: Array,
) -> None:  # fmt: skip
    """One row of the way back through an LSTM's step; `from_c` goes on to the step before, `from_h` is used up."""
    gate, forget, fill, shown = (
        gates[:units], gates[units : 2 * units], gates[2 * units : 3 * units], gates[3 * units : 4 * units]
    )  # fmt: skip
    by_gate, by_forget, by_fill, by_shown = (
        by_gates[:units], by_gates[units : 2 * units], by_gates[2 * units : 3 * units], by_gates[3 * units : 4 * units]
    )  # fmt: skip
    for j in range(units):
        bent = hyperbolic_tangent(c[j])
        grad = by_h[j] + from_h[j]
        by_c = grad * shown[j] * (ONE - bent * bent) + from_c[j]
        by_gate[j] = by_c * fill[j] * gate[j] * (ONE - gate[j])
        by_forget[j] = by_c * (keep * before[j]) * forget[j] * (ONE - forget[j])
        by_fill[j] = by_c * gate[j] * (ONE - fill[j] * fill[j])
        by_shown[j] = grad * bent * shown[j] * (ONE - shown[j])
        from_c[j] = keep * by_c * forget[j]
        from_h[j] = ZERO


@compiled_fused
def gru_slopes(
    gates: Array, inner: Array, past: Array, units: int, by_h: Array, from_h: Array, by_gates: Array, by_inner: Array
) -> None:
    """One row of the way back through a GRU's step; `from_h` gets what flows on by the hold gate alone."""
    opened, hold, fill = gates[:units], gates[units : 2 * units], gates[2 * units : 3 * units]
    below = inner[2 * units : 3 * units]
    by_open, by_hold, by_fill = by_gates[:units], by_gates[units : 2 * units], by_gates[2 * units : 3 * units]
    by_below = by_inner[2 * units : 3 * units]
    for j in range(units):
        grad = by_h[j] + from_h[j]
        by_fill[j] = grad * (ONE - hold[j]) * (ONE - fill[j] * fill[j])
        by_open[j] = by_fill[j] * below[j] * opened[j] * (ONE - opened[j])
        by_hold[j] = grad * (past[j] - fill[j]) * hold[j] * (ONE - hold[j])
        by_below[j] = by_fill[j] * opened[j]
        from_h[j] = grad * hold[j]
    copy_row(by_gates[: 2 * units], by_inner)


@compiled_fused
def keep_state(table: Array, scratch: Array, block: int, first: int, lane: int, state: Array) -> None:
    """Copy what the memories hold at row `first + lane` into a row's state."""
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
