"""Tiles of a matrix product: what they write, and that no number depends on its neighbours."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError

from slipstream.contracts import Array
from slipstream.policies.linear_algebra import dense, product
from slipstream.policies.matmul import LANES, ROWS, WIDE, write_narrow


def matrix(rows: int, columns: int, seed: int = 0) -> Array:
    """Random numbers."""
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


@numba.njit
def write_one(a: Array, b: Array, start: Array, c: Array, i: int, j: int, terms: int) -> None:
    """One narrow tile."""
    write_narrow(a, b, start, c, i, j, terms)


def test_a_tile_by_hand() -> None:
    """Rows 4 to 7 of the columns 16 to 31 are the start plus two terms; nothing else is touched."""
    a, b, c = np.zeros((12, 3), np.float32), np.zeros((3, 48), np.float32), np.full((12, 48), 7, np.float32)
    a[:, 0], a[:, 1], a[:, 2] = np.arange(12), 2, 99
    b[0], b[1], b[2] = 10, np.arange(48), 99
    start = np.arange(48, dtype=np.float32) * 100
    write_one(a, b, start, c, 4, 16, 2)
    for row in range(12):
        for column in range(48):
            inside = 4 <= row < 8 and 16 <= column < 32
            assert c[row, column] == (column * 100 + row * 10 + 2 * column if inside else 7)


@pytest.mark.parametrize("columns", [16, 48, 64, 80, 144])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_all_widths(columns: int, turned: bool) -> None:
    """The result is a + b @ c for any number of columns and any memory layout of `a`."""
    a, b, c = matrix(24, 20), matrix(20, columns, 1), matrix(24, columns, 2)
    bias, layer = matrix(1, columns, 3)[0], np.zeros((24, columns), np.float32)
    exact = a.astype(np.float64) @ b
    given = np.asfortranarray(a) if turned else a
    dense(given, b, bias, layer, 24, 20)
    expected = c + exact
    product(given, b, c, 24, 20)
    assert np.allclose(c, expected, atol=2e-5) and np.allclose(layer, bias + exact, atol=2e-5)


def test_a_number_does_not_depend_on_its_neighbours() -> None:
    """A row alone, and a column block alone, have the bits that they have in the whole."""
    columns = WIDE * LANES + LANES
    a, b = matrix(5 * ROWS, 33), matrix(33, columns, 1)
    whole = np.zeros((5 * ROWS, columns), np.float32)
    product(a, b, whole, 5 * ROWS, 33)
    for first in range(0, 5 * ROWS, ROWS):
        part = np.zeros((ROWS, columns), np.float32)
        product(a[first : first + ROWS][::-1].copy(), b, part, ROWS, 33)
        assert part[::-1].tobytes() == whole[first : first + ROWS].tobytes()
    for first in range(0, columns, LANES):
        part = np.zeros((5 * ROWS, LANES), np.float32)
        product(a, b[:, first : first + LANES].copy(), part, 5 * ROWS, 33)
        assert part.tobytes() == whole[:, first : first + LANES].copy().tobytes()


def test_a_tile_of_other_numbers_is_refused() -> None:
    """Only float32 arrays can be tiled as vectors of 16."""
    wide = np.zeros((4, 16))
    with pytest.raises(TypingError, match="A tile is made of float32 arrays, not of array\\(float64"):
        write_one(wide, wide, wide, wide, 0, 0, 4)
