"""Arithmetic of native games that gives the same bits in Python, on every CPU and on a GPU.

Only + - * / and square roots are rounded alike everywhere; the library functions for sines and logarithms are not. Ours
are power series in float64, evaluated in a fixed order, and rounded to the precision of the game.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.system.numba_compile import Number, inlined
from slipstream.system.rng import mix

KEY, COUNTER, GAME = 0, 1, 2
"""Columns of the integers of an env: the key of the present game's RNG, and how many numbers were drawn."""
MASK32 = 0xFFFFFFFF
PI_HALF_HIGH, PI_HALF_LOW = 1.5707963267341256, 6.077100506506192e-11
"""pi / 2 in two parts; products of the first with whole numbers below 2**20 are exact."""
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
SINE = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(8, -1, -1))
COSINE = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(8, -1, -1))
EXPONENTIAL = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
LOGARITHM = tuple(1.0 / (2 * k + 1) for k in range(11, -1, -1))
ARCTANGENT = tuple((-1.0) ** k / (2 * k + 1) for k in range(21, -1, -1))
"""Coefficients of power series, the highest power first."""
EIGHTH = math.sqrt(2.0) - 1.0
"""The tangent of pi / 8."""


@inlined
def sqrt(x: float) -> float:
    """The square root; NaN for negative numbers."""
    return math.sqrt(x)


@inlined
def hypot(x: float, y: float) -> float:
    """The length of a vector."""
    return math.sqrt(x * x + y * y)


@inlined
def fabs(x: float) -> float:
    """The absolute value."""
    return abs(x)


@inlined
def floor(x: float) -> int:
    """The largest whole number that is not above `x`."""
    return math.floor(x)


@inlined
def series(x: float, coefficients: tuple[float, ...]) -> float:
    """A polynomial, the coefficient of the highest power first."""
    total = 0.0
    for one in coefficients:
        total = total * x + one
    return total


@inlined
def sine_of(x: float, quarters: int) -> float:
    """The sine of `x` plus some quarter turns."""
    turns = math.floor(x * (2.0 / math.pi) + 0.5)
    rest = (x - turns * PI_HALF_HIGH) - turns * PI_HALF_LOW
    square = rest * rest
    quarter = (int(turns) + quarters) % 4
    value = series(square, COSINE) if quarter % 2 else rest * series(square, SINE)
    return -value if quarter >= 2 else value


@inlined
def sin(x: float) -> float:
    """The sine of an angle in radians."""
    return sine_of(x, 0)


@inlined
def cos(x: float) -> float:
    """The cosine of an angle in radians."""
    return sine_of(x, 1)


@inlined
def exp(x: float) -> float:
    """The exponential function."""
    if x > 709.0:
        return math.inf
    if x < -745.0:
        return 0.0
    turns = math.floor(x / math.log(2.0) + 0.5)
    rest = (x - turns * LN2_HIGH) - turns * LN2_LOW
    return math.ldexp(series(rest, EXPONENTIAL), int(turns))


@inlined
def log(x: float) -> float:
    """The natural logarithm; minus infinity for 0 and NaN below."""
    if x <= 0.0:
        return -math.inf if x == 0.0 else math.nan
    if x == math.inf:
        return x
    part, power = math.frexp(x)
    if part < math.sqrt(0.5):
        part, power = part * 2.0, power - 1
    ratio = (part - 1.0) / (part + 1.0)
    return power * LN2_HIGH + (2.0 * ratio * series(ratio * ratio, LOGARITHM) + power * LN2_LOW)


@inlined
def atan2(y: float, x: float) -> float:
    """The angle of the vector (x, y) in radians, from -pi to pi."""
    ax, ay = abs(x), abs(y)
    high, low = max(ax, ay), min(ax, ay)
    if high == 0.0:
        return 0.0
    ratio, angle = low / high, 0.0
    if ratio > EIGHTH:
        ratio, angle = (ratio - 1.0) / (ratio + 1.0), math.pi / 4.0
    angle += ratio * series(ratio * ratio, ARCTANGENT)
    if ay > ax:
        angle = math.pi / 2.0 - angle
    if x < 0.0:
        angle = math.pi - angle
    return -angle if y < 0.0 else angle


@inlined
def draw(numbers: Array, env: int) -> int:
    """Draw 32 random bits of an env."""
    counter = numbers[env, COUNTER]
    numbers[env, COUNTER] = counter + 1
    return mix(mix(counter) ^ numbers[env, KEY])


@inlined
def integer(numbers: Array, env: int, count: int) -> int:
    """Draw a whole number below `count`."""
    return (draw(numbers, env) * count) >> 32


@inlined
def normal(numbers: Array, env: int) -> float:
    """Draw from the standard normal distribution (Box-Muller)."""
    radius = math.sqrt(-2.0 * log((draw(numbers, env) + 0.5) * 2.0**-32))
    return radius * cos(draw(numbers, env) * (2.0 * math.pi * 2.0**-32))


@inlined
def option(action: Number, count: int) -> int:
    """The number of an option, within its range."""
    return min(max(int(action), 0), count - 1)


@inlined
def clip(x: Number, low: Number, high: Number) -> Number:
    """The nearest number from `low` to `high`."""
    return min(max(x, low), high)


@inlined
def nearest(x: Number, values: Array) -> int:
    """The place of the value that is nearest to `x`."""
    best = 0
    for k in range(1, values.shape[0]):
        if abs(values[k] - x) < abs(values[best] - x):
            best = k
    return best


@inlined
def unit(numbers: Array, env: int) -> float:
    """Draw a number from 0 to 1, without 1, with 24 bits."""
    return (draw(numbers, env) >> 8) * 2.0**-24


@inlined
def between(share: Number, low: Number, high: Number) -> Number:
    """The number at a share of the way from `low` to `high`."""
    return low + (high - low) * share


@inlined
def modulo(x: Number, y: Number) -> Number:
    """The rest of a division of floats, with the sign of `y`."""
    return x - y * np.floor(x / y)


@inlined
def floor_divide(x: Number, y: Number) -> Number:
    """The whole part of a division of floats, rounded down."""
    return np.floor(x / y)


@inlined
def square(x: Number) -> Number:
    """x * x."""
    return x * x


@inlined
def cube(x: Number) -> Number:
    """x * x * x."""
    return x * x * x


def check_index(index: int, size: int) -> int:
    """Return an index if it is in its range."""
    if not 0 <= index < size:
        raise IndexError(f"index {index} is not from 0 to {size - 1}")
    return index


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_integer": integer,
    "_unit": unit,
    "_between": between,
    "_normal": normal,
    "_option": option,
    "_clip": clip,
    "_nearest": nearest,
    "_square": square,
    "_cube": cube,
    "_modulo": modulo,
    "_floor_divide": floor_divide,
    "_sqrt": sqrt,
    "_hypot": hypot,
    "_fabs": fabs,
    "_floor": floor,
    "_sin": sin,
    "_cos": cos,
    "_exp": exp,
    "_log": log,
    "_atan2": atan2,
    "_index": check_index,
    "_double": np.float64,
}
"""What rewritten functions call, by the names that it has there."""
