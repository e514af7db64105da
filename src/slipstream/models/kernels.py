"""Forward and backward passes of the policy as compiled loops: no BLAS, no allocation, a fixed order per row.

`product` is a register-blocked matrix product, four rows by four terms, vectorised along the outputs. On a CPU it
is as fast as BLAS for the sizes of game policies, and each row's bits do not depend on the rows beside it, so
splitting rows over processes changes nothing. The price is four lines where `@` would be one.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from slipstream.core.compile import Number, compiled_fused
from slipstream.core.contracts import Array
from slipstream.models.layout import (
    ACTIVATION,
    BIAS,
    COLUMNS,
    DENSE,
    EXTRA,
    FLIPPED,
    FLIPPED_RECURRENT,
    GRU,
    IN,
    IN_COLUMNS,
    INPUTS,
    KIND,
    LSTM,
    NORM,
    OUT,
    RECURRENT,
    RECURRENT_BIAS,
    STATE,
    UNITS,
    WEIGHT,
)

CHUNK = 64
"""Rows that go through the network together; a multiple of 4, small enough for the cache."""

ZERO, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
OBS_LIMIT = np.float32(10)
LOG2_E = np.float32(1.44269504)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
EXP_LOW, EXP_HIGH = np.float32(-87.0), np.float32(88.0)
E0, E1, E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E3, E4, E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
TANH_LIMIT = np.float32(9.0)
NORM_EPS = np.float32(1e-5)
BIAS_127, SHIFT_23 = np.int32(127), np.int32(23)


@compiled_fused
def exponential(x: Number) -> Number:
    """exp(x) to float32 accuracy without a library call, so that loops over it vectorise."""
    x = min(max(x, EXP_LOW), EXP_HIGH)
    n = np.floor(x * LOG2_E + HALF)
    x = x - n * LN2_HIGH - n * LN2_LOW
    y = ((((E0 * x + E1) * x + E2) * x + E3) * x + E4) * x + E5
    y = y * (x * x) + x + ONE
    return y * np.int32((np.int32(n) + BIAS_127) << SHIFT_23).view(np.float32)


@compiled_fused
def hyperbolic_tangent(x: Number) -> Number:
    """tanh(x) = 1 - 2 / (exp(2x) + 1) away from zero, its odd series near it."""
    x = min(max(x, -TANH_LIMIT), TANH_LIMIT)
    square = x * x
    series = x * (ONE + square * (np.float32(-1 / 3) + square * (np.float32(2 / 15) + square * np.float32(-17 / 315))))
    exact = ONE - TWO / (exponential(TWO * x) + ONE)
    return series if square < np.float32(0.02) else exact


@compiled_fused
def product(a: Array, b: Array, c: Array, rows: int, terms: int) -> None:
    """c[:rows] += a[:rows, :terms] @ b[:terms]; rows and terms are multiples of 4.

    Saying so again in the bounds of the loops lets the compiler know, and nearly doubles the speed.
    """
    columns = b.shape[1]
    for i in range(0, rows // 4 * 4, 4):
        c0, c1, c2, c3 = c[i], c[i + 1], c[i + 2], c[i + 3]
        for k in range(0, terms // 4 * 4, 4):
            b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
            a00, a01, a02, a03 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
            a10, a11, a12, a13 = a[i + 1, k], a[i + 1, k + 1], a[i + 1, k + 2], a[i + 1, k + 3]
            a20, a21, a22, a23 = a[i + 2, k], a[i + 2, k + 1], a[i + 2, k + 2], a[i + 2, k + 3]
            a30, a31, a32, a33 = a[i + 3, k], a[i + 3, k + 1], a[i + 3, k + 2], a[i + 3, k + 3]
            for j in range(columns):
                w0, w1, w2, w3 = b0[j], b1[j], b2[j], b3[j]
                c0[j] += a00 * w0 + a01 * w1 + a02 * w2 + a03 * w3
                c1[j] += a10 * w0 + a11 * w1 + a12 * w2 + a13 * w3
                c2[j] += a20 * w0 + a21 * w1 + a22 * w2 + a23 * w3
                c3[j] += a30 * w0 + a31 * w1 + a32 * w2 + a33 * w3


@compiled_fused
def logistic(x: Number) -> Number:
    """1 / (1 + exp(-x))."""
    return ONE / (ONE + exponential(-x))


@compiled_fused
def softplus(x: Number) -> Number:
    """log(1 + exp(x)), without overflow."""
    return max(x, ZERO) + np.float32(math.log(ONE + exponential(-abs(x))))


@compiled_fused
def activate(values: Array, kind: int) -> None:
    """Apply an activation in place to a flat array."""
    if kind == 1:
        for i in range(values.size):
            values[i] = hyperbolic_tangent(values[i])
    elif kind == 2:
        for i in range(values.size):
            values[i] = max(values[i], ZERO)
    elif kind == 3:
        for i in range(values.size):
            values[i] = values[i] if values[i] > ZERO else exponential(values[i]) - ONE


@compiled_fused
def deactivate(slopes: Array, values: Array, kind: int) -> None:
    """Turn slopes of an activation's outputs into those of its inputs, in place; `values` are its outputs."""
    if kind == 1:
        for i in range(slopes.size):
            slopes[i] *= ONE - values[i] * values[i]
    elif kind == 2:
        for i in range(slopes.size):
            slopes[i] = slopes[i] if values[i] > ZERO else ZERO
    elif kind == 3:
        for i in range(slopes.size):
            slopes[i] *= ONE if values[i] > ZERO else values[i] + ONE


@compiled_fused
def load_obs(obs: Array, row: int, mean: Array, scale: Array, into: Array) -> None:
    """Write one normalised observation; the padding behind it stays zero."""
    for k in range(obs.shape[1]):
        into[k] = min(max((obs[row, k] - mean[k]) * scale[k], -OBS_LIMIT), OBS_LIMIT)


@compiled_fused
def columns_of(scratch: Array, block: int, column: int, width: int) -> Array:
    """The array [block, width] that stands at a column of the scratch memory."""
    return scratch[column * block : (column + width) * block].reshape(block, width)


@compiled_fused
def outputs(scratch: Array, block: int, table: Array, layer: int) -> Array:
    """The outputs [block, columns] of a layer in the scratch memory; layer -1 is the input."""
    if layer < 0:
        return columns_of(scratch, block, 0, table[0, IN_COLUMNS])
    return columns_of(scratch, block, table[layer, OUT], table[layer, COLUMNS])


@compiled_fused
def forward(
    params: Array, table: Array, scratch: Array, block: int, lanes: int, steps: int, state: Array, fresh: Array
) -> None:
    """Run the networks on the inputs in the scratch memory.

    Row step * lanes + lane of every array is one step of one lane; lanes are a multiple of 4. `state` [lanes, size] is
    what the memories start from, and `fresh` [steps, lanes] is 1 where an episode begins, which clears them.
    """
    rows = lanes * steps
    for layer in range(table.shape[0]):
        weight, bias, terms, columns = table[layer, WEIGHT], table[layer, BIAS], table[layer, INPUTS], table[layer, COLUMNS]
        before = columns_of(scratch, block, table[layer, IN], table[layer, IN_COLUMNS])
        if table[layer, KIND] != DENSE:
            remember(params, table[layer], before, scratch, block, lanes, steps, state, fresh)
            continue
        after = outputs(scratch, block, table, layer)
        for i in range(rows):
            for j in range(columns):
                after[i, j] = params[bias + j]
        product(before, params[weight:bias].reshape(terms, columns), after, rows, terms)
        if table[layer, NORM] >= 0:
            normalise(params, table[layer], after, scratch, block, rows)
        activate(after[:rows].reshape(rows * columns), table[layer, ACTIVATION])


@compiled_fused
def transpose_weights(params: Array, table: Array, flipped: Array) -> None:
    """Copy each weight matrix [inputs, columns] as [columns, inputs], as wide as what it reads, for the way back."""
    for layer in range(table.shape[0]):
        row = table[layer]
        columns = row[COLUMNS] * gates_of(row[KIND])
        if row[FLIPPED] >= 0:
            flip(params, row[WEIGHT], row[INPUTS], columns, flipped, row[FLIPPED], row[IN_COLUMNS])
        if row[KIND] != DENSE:
            flip(params, row[RECURRENT], row[COLUMNS], columns, flipped, row[FLIPPED_RECURRENT], row[COLUMNS])


@compiled_fused
def flip(params: Array, start: int, inputs: int, columns: int, flipped: Array, place: int, width: int) -> None:
    """Transpose one matrix."""
    for i in range(inputs):
        for j in range(columns):
            flipped[place + j * width + i] = params[start + i * columns + j]


@compiled_fused
def gates_of(kind: int) -> int:
    """How many gates a layer has."""
    return 4 if kind == LSTM else 3 if kind == GRU else 1


@compiled_fused
def backward(
    params: Array, table: Array, flipped: Array, scratch: Array, slopes: Array, gradient: Array, block: int, lanes: int,
    steps: int, state: Array, fresh: Array, carried: Array,
) -> None:  # fmt: skip
    """Add the gradient of every weight, given in `slopes` the gradient of the last layers' outputs.

    `slopes` has the layout of `scratch` and is overwritten on the way; the inputs' slopes stand in it afterwards where the
    table asks for them. `carried` [2, lanes, columns] is room for what flows back through memories.
    """
    rows = lanes * steps
    for layer in range(table.shape[0] - 1, -1, -1):
        row = table[layer]
        terms, columns = row[INPUTS], row[COLUMNS]
        before = columns_of(scratch, block, row[IN], row[IN_COLUMNS])
        slope = outputs(slopes, block, table, layer)
        if row[KIND] == DENSE:
            values = outputs(scratch, block, table, layer)
            deactivate(slope[:rows].reshape(rows * columns), values[:rows].reshape(rows * columns), row[ACTIVATION])
            if row[NORM] >= 0:
                denormalise(params, row, slope, scratch, gradient, block, rows)
        else:
            recall(table[layer], flipped, scratch, slopes, gradient, block, lanes, steps, state, fresh, carried)
            columns *= gates_of(row[KIND])
            slope = columns_of(slopes, block, row[EXTRA], columns)
        weight, bias = row[WEIGHT], row[BIAS]
        add_products(before, slope, gradient[weight:bias].reshape(terms, columns), gradient[bias:], rows, terms)
        if row[FLIPPED] >= 0:
            width = row[IN_COLUMNS]
            matrix = flipped[row[FLIPPED] : row[FLIPPED] + columns * width].reshape(columns, width)
            below = columns_of(slopes, block, row[IN], width)
            below[:rows] = ZERO
            product(slope, matrix, below, rows, columns)


@compiled_fused
def add_products(before: Array, slope: Array, weights: Array, bias: Array, rows: int, terms: int) -> None:
    """Add a layer's gradient, some rows at a time so that they stay in the cache."""
    for low in range(0, rows, CHUNK):
        count = min(CHUNK, rows - low)
        product(before[low : low + count].T, slope[low : low + count], weights, terms, count)
    for i in range(rows):
        for j in range(slope.shape[1]):
            bias[j] += slope[i, j]


@compiled_fused
def normalise(params: Array, row: Array, values: Array, scratch: Array, block: int, rows: int) -> None:
    """Layer norm in place: to mean 0 and deviation 1 over the units, then gain and shift; keeps what `denormalise` needs."""
    columns, units, gain = row[COLUMNS], row[UNITS], row[NORM]
    kept = columns_of(scratch, block, row[EXTRA], columns)
    inverse = columns_of(scratch, block, row[EXTRA] + columns, 1)
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
def denormalise(params: Array, row: Array, slope: Array, scratch: Array, gradient: Array, block: int, rows: int) -> None:
    """The way back through `normalise`, in place."""
    columns, units, gain = row[COLUMNS], row[UNITS], row[NORM]
    kept = columns_of(scratch, block, row[EXTRA], columns)
    inverse = columns_of(scratch, block, row[EXTRA] + columns, 1)
    share = ONE / np.float32(units)
    for i in range(rows):
        mean, along = ZERO, ZERO
        for j in range(units):
            gradient[gain + j] += slope[i, j] * kept[i, j]
            gradient[gain + columns + j] += slope[i, j]
            slope[i, j] *= params[gain + j]
            mean += slope[i, j]
            along += slope[i, j] * kept[i, j]
        mean, along = mean * share, along * share
        for j in range(units):
            slope[i, j] = inverse[i, 0] * (slope[i, j] - mean - kept[i, j] * along)


@compiled_fused
def remember(
    params: Array, row: Array, before: Array, scratch: Array, block: int, lanes: int, steps: int, state: Array, fresh: Array
) -> None:
    """Run a memory over all steps: what comes from below for all of them at once, what comes from the past one by one.

    LSTM: i, f, o = logistic, g = tanh of x W + b + h U + d; c' = f c + i g; h' = o tanh(c').
    GRU: r, z = logistic(x W + b + h U + d); n = tanh(x W + b + r (h U + d)); h' = (1 - z) n + z h.
    """
    kind, units, rows = row[KIND], row[COLUMNS], lanes * steps
    count = gates_of(kind) * units
    weight, bias, own, own_bias = row[WEIGHT], row[BIAS], row[RECURRENT], row[RECURRENT_BIAS]
    h = columns_of(scratch, block, row[OUT], units)
    gates = columns_of(scratch, block, row[EXTRA], count)
    inner = gates if kind == LSTM else columns_of(scratch, block, row[EXTRA] + count, count)
    last = row[EXTRA] + (count if kind == LSTM else 2 * count)
    c = columns_of(scratch, block, last, units)
    past = columns_of(scratch, block, last + (units if kind == LSTM else 0), units)
    for i in range(rows):
        for j in range(count):
            gates[i, j] = params[bias + j]
    product(before, params[weight:bias].reshape(row[INPUTS], count), gates, rows, row[INPUTS])
    matrix = params[own : own + units * count].reshape(units, count)
    own_biases = params[own_bias : own_bias + count]
    for step in range(steps):
        now, earlier = step * lanes, (step - 1) * lanes
        for lane in range(lanes):
            keep = ZERO if fresh[step, lane] else ONE
            before_h = state[lane, row[STATE] : row[STATE] + units] if step == 0 else h[earlier + lane]
            scale_into(before_h, keep, past[now + lane])
            if kind == LSTM:
                add_row(own_biases, gates[now + lane])
            else:
                inner[now + lane] = own_biases
        if kind == LSTM:
            product(past[now : now + lanes], matrix, gates[now : now + lanes], lanes, units)
            for lane in range(lanes):
                keep = ZERO if fresh[step, lane] else ONE
                start = row[STATE] + units
                before_c = state[lane, start : start + units] if step == 0 else c[earlier + lane]
                lstm_row(gates[now + lane], before_c, keep, units, c[now + lane], h[now + lane])
        else:
            product(past[now : now + lanes], matrix, inner[now : now + lanes], lanes, units)
            for lane in range(lanes):
                gru_row(gates[now + lane], inner[now + lane], past[now + lane], units, h[now + lane])


@compiled_fused
def scale_into(values: Array, factor: Number, out: Array) -> None:
    """out = factor * values."""
    for j in range(values.size):
        out[j] = factor * values[j]


@compiled_fused
def add_row(values: Array, out: Array) -> None:
    """out += values."""
    for j in range(values.size):
        out[j] += values[j]


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
def recall(
    row: Array, flipped: Array, scratch: Array, slopes: Array, gradient: Array, block: int, lanes: int, steps: int,
    state: Array, fresh: Array, carried: Array,
) -> None:  # fmt: skip
    """The way back through `remember`: writes the gates' slopes and adds the gradient of the recurrent weights."""
    kind, units = row[KIND], row[COLUMNS]
    count = gates_of(kind) * units
    gates = columns_of(scratch, block, row[EXTRA], count)
    last = row[EXTRA] + (count if kind == LSTM else 2 * count)
    c = columns_of(scratch, block, last, units)
    past = columns_of(scratch, block, last + (units if kind == LSTM else 0), units)
    inner = columns_of(scratch, block, row[EXTRA] + (0 if kind == LSTM else count), count)
    by_h = columns_of(slopes, block, row[OUT], units)
    by_gates = columns_of(slopes, block, row[EXTRA], count)
    by_inner = columns_of(slopes, block, row[EXTRA] + (0 if kind == LSTM else count), count)
    place = row[FLIPPED_RECURRENT]
    matrix = flipped[place : place + count * units].reshape(count, units)
    from_h = carried[0, : lanes * units].reshape(lanes, units)
    from_c = carried[1, : lanes * units].reshape(lanes, units)
    from_h[:] = ZERO
    from_c[:] = ZERO
    for step in range(steps - 1, -1, -1):
        now, earlier = step * lanes, (step - 1) * lanes
        for lane in range(lanes):
            i, keep = now + lane, ZERO if fresh[step, lane] else ONE
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
            if fresh[step, lane]:
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
        slope = by_h[j] + from_h[j]
        by_c = slope * shown[j] * (ONE - bent * bent) + from_c[j]
        by_gate[j] = by_c * fill[j] * gate[j] * (ONE - gate[j])
        by_forget[j] = by_c * (keep * before[j]) * forget[j] * (ONE - forget[j])
        by_fill[j] = by_c * gate[j] * (ONE - fill[j] * fill[j])
        by_shown[j] = slope * bent * shown[j] * (ONE - shown[j])
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
        slope = by_h[j] + from_h[j]
        by_fill[j] = slope * (ONE - hold[j]) * (ONE - fill[j] * fill[j])
        by_open[j] = by_fill[j] * below[j] * opened[j] * (ONE - opened[j])
        by_hold[j] = slope * (past[j] - fill[j]) * hold[j] * (ONE - hold[j])
        by_below[j] = by_fill[j] * opened[j]
        from_h[j] = slope * hold[j]
    by_inner[: 2 * units] = by_gates[: 2 * units]


@compiled_fused
def keep_state(table: Array, scratch: Array, block: int, first: int, lane: int, state: Array) -> None:
    """Copy what the memories hold at row `first + lane` into a row's state."""
    for layer in range(table.shape[0]):
        row = table[layer]
        if row[KIND] == DENSE:
            continue
        units, place, i = row[COLUMNS], row[STATE], first + lane
        h = columns_of(scratch, block, row[OUT], units)
        for j in range(units):
            state[place + j] = h[i, j]
        if row[KIND] == LSTM:
            c = columns_of(scratch, block, row[EXTRA] + 4 * units, units)
            for j in range(units):
                state[place + units + j] = c[i, j]


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def squared_length(values: Array) -> Number:
    """The sum of squares, in whatever order is fastest on this machine."""
    total = np.float32(0)
    for i in range(values.size):
        total += values[i] * values[i]
    return total


@compiled_fused
def adam(
    params: Array, gradient: Array, first: Array, second: Array, count: int, rate: Number, eps: Number, scale: Number,
    decay: Number,
) -> None:  # fmt: skip
    """One step of Adam with bias correction; `scale` shortens the gradient (clipping), `decay` shrinks the weights."""
    beta_1, beta_2 = np.float32(0.9), np.float32(0.999)
    root = np.float32(math.sqrt(1.0 - 0.999**count))
    size = np.float32(rate / (1.0 - 0.9**count)) * root
    floor = np.float32(eps) * root
    scale = np.float32(scale)
    kept = np.float32(1.0 - rate * decay)
    for i in range(params.size):
        slope = gradient[i] * scale
        first[i] = beta_1 * first[i] + (ONE - beta_1) * slope
        second[i] = beta_2 * second[i] + (ONE - beta_2) * (slope * slope)
        params[i] = params[i] * kept - size * first[i] / (np.sqrt(second[i]) + floor)
