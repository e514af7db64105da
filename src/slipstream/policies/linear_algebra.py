"""Linear algebra, activations and Adam as compiled loops: no BLAS, no allocation, a fixed order of sums per row.

`product` is a tiled matrix product whose tiles stay in registers, vectorised along the outputs. On a CPU it is as fast
as BLAS for the sizes of game policies. The bits of a row do not depend on the other rows, so splitting rows over
processes changes nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.matmul import LANES, ROWS, WIDE, write_narrow, write_wide
from slipstream.system.numba_compile import Number, compiled_fused, compiled_sum

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


class Activations(NamedTuple):
    """The memory of a forward pass: the outputs of every layer for up to `block` rows."""

    scratch: Array  # [block * columns]
    block: int
    episode_start: Array  # [steps, lanes]: 1 where an episode begins, which clears the recurrent state


class Gradients(NamedTuple):
    """The memory of a backward pass."""

    scratch: Array  # the layout of the activations: gradients of the layers' outputs
    params: Array  # the flat gradient, which is added to
    transposed: Array  # transposed weights, see `transpose_weights`
    carried: Array  # [2, lanes, columns]: what flows back through recurrent layers


@compiled_fused
def round_up_to_4(rows: int) -> int:
    """The number of rows that is computed for so many: `product` has tiles of 4 rows."""
    return (rows + 3) // 4 * 4


@compiled_fused
def exponential(x: Number) -> Number:
    """exp(x) to float32 accuracy without a library call, so that loops over it are vectorised."""
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
def activation_gradient(grads: Array, values: Array, kind: int) -> None:
    """Turn gradients of an activation's outputs into gradients of its inputs, in place; `values` are its outputs."""
    if kind == 1:
        for i in range(grads.size):
            grads[i] *= ONE - values[i] * values[i]
    elif kind == 2:
        for i in range(grads.size):
            grads[i] = grads[i] if values[i] > ZERO else ZERO
    elif kind == 3:
        for i in range(grads.size):
            grads[i] *= ONE if values[i] > ZERO else values[i] + ONE


@compiled_fused
def product(a: Array, b: Array, c: Array, rows: int, terms: int) -> None:
    """c[:rows] += a[:rows, :terms] @ b[:terms]; rows are a multiple of 4, columns of 16."""
    _multiply(a, b, c, c, rows, terms)


@compiled_fused
def dense(a: Array, b: Array, bias: Array, c: Array, rows: int, terms: int) -> None:
    """c[:rows] = bias + a[:rows, :terms] @ b[:terms]; rows are a multiple of 4, columns of 16."""
    _multiply(a, b, bias, c, rows, terms)


@compiled_fused
def _multiply(a: Array, b: Array, start: Array, c: Array, rows: int, terms: int) -> None:
    columns = b.shape[1]
    whole = columns // (WIDE * LANES) * (WIDE * LANES)
    for i in range(0, rows // ROWS * ROWS, ROWS):
        for j in range(0, whole, WIDE * LANES):
            write_wide(a, b, start, c, i, j, terms)
        for j in range(whole, columns // LANES * LANES, LANES):
            write_narrow(a, b, start, c, i, j, terms)


@compiled_fused
def add_products(before: Array, grad: Array, weights: Array, bias: Array, rows: int, terms: int) -> None:
    """Add a layer's gradient, a chunk of rows at a time so that they stay in the cache."""
    for low in range(0, rows, CHUNK):
        count = min(CHUNK, rows - low)
        product(before[low : low + count].T, grad[low : low + count], weights, terms, count)
    for i in range(rows):
        for j in range(grad.shape[1]):
            bias[j] += grad[i, j]


@compiled_fused
def transpose_rows(matrix: Array, turned: Array, low: int, high: int) -> None:
    """Transpose rows [low, high) of a matrix into columns of another, four at a time; both are multiples of 4."""
    for i in range(low, high // 4 * 4, 4):
        r0, r1, r2, r3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
        for j in range(matrix.shape[1]):
            into = turned[j]
            into[i], into[i + 1], into[i + 2], into[i + 3] = r0[j], r1[j], r2[j], r3[j]


@compiled_fused
def scratch_columns(scratch: Array, block: int, column: int, width: int) -> Array:
    """The array [block, width] at a column of the scratch memory."""
    return scratch[column * block : (column + width) * block].reshape(block, width)


@compiled_fused
def scale_into(values: Array, factor: Number, out: Array) -> None:
    """out = factor * values."""
    for j in range(values.size):
        out[j] = factor * values[j]


@compiled_fused
def copy_row(values: Array, out: Array) -> None:
    """out = values; numba takes two seconds to compile `out[:] = values`, because of its error message."""
    for j in range(values.size):
        out[j] = values[j]


@compiled_fused
def add_row(values: Array, out: Array) -> None:
    """out += values."""
    for j in range(values.size):
        out[j] += values[j]


@compiled_fused
def multiply_row(values: Array, out: Array) -> None:
    """out *= values."""
    for j in range(values.size):
        out[j] *= values[j]


@compiled_fused
def thread_slice(arrays: Array | None, thread: int) -> Array | None:
    """The part of some memory that belongs to a thread; None where there is none."""
    if arrays is None:
        return None
    part: Array = arrays[thread]
    return part


@compiled_sum
def squared_length(values: Array) -> Number:
    """The sum of squares."""
    total = np.float32(0)
    for i in range(values.size):
        total += values[i] * values[i]
    return total


@compiled_fused
def normalise(x: Number, mean: Number, scale: Number) -> Number:
    """A normalised observation, clipped to the limit; a scale of exactly 1 marks a number that is not normalised."""
    value = (x - mean) * scale
    return value if scale == ONE else min(max(value, -OBS_LIMIT), OBS_LIMIT)


@compiled_fused
def adam(
    params: Array,
    gradient: Array,
    first: Array,
    second: Array,
    count: int,
    rate: Number,
    eps: Number,
    scale: Number,
    decay: Number,
) -> None:
    """One step of Adam with bias correction; `scale` clips the gradient, `decay` is the decoupled weight decay."""
    beta_1, beta_2 = np.float32(0.9), np.float32(0.999)
    root = np.float32(math.sqrt(1.0 - 0.999**count))
    size = np.float32(rate / (1.0 - 0.9**count)) * root
    floor = np.float32(eps) * root
    scale = np.float32(scale)
    kept = np.float32(1.0 - rate * decay)
    for i in range(params.size):
        grad = gradient[i] * scale
        mean = beta_1 * first[i] + (ONE - beta_1) * grad
        square = beta_2 * second[i] + (ONE - beta_2) * (grad * grad)
        first[i], second[i] = mean, square
        params[i] = params[i] * kept - size * mean / (np.sqrt(square) + floor)
