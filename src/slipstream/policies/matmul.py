"""The innermost loop of a matrix product as LLVM vector instructions.

A tile of the result, four rows by some vectors of 16 numbers, stays in registers while all terms are added to it. A
loop over arrays does not compile to that, because the compiler must assume that writing a result may change an input.
Every number is one chain of multiply-adds in the order of the terms, so its bits do not depend on the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from slipstream.contracts import Array

ROWS, LANES = 4, 16
"""Rows of a tile, and numbers of a vector."""
WIDE = 4 if llvm.get_host_cpu_features().get("avx512vl") else 1
"""Vectors of a wide tile: as many as fit into the registers of this machine."""


Tile = Callable[[Array, Array, Array, Array, int, int, int], None]


def make_tile(vectors: int) -> Tile:
    """A function (a, b, start, c, i, j, terms) that writes one tile of c = start + a[:, :terms] @ b[:terms].

    The tile is c[i : i + 4, j : j + 16 * vectors]; `start` is a matrix like c, or one row for all rows. All matrices
    except `a` are C-contiguous along rows.
    """

    @intrinsic
    def tile(_: Any, a: Any, b: Any, start: Any, c: Any, i: Any, j: Any, terms: Any) -> Any:
        for array in (a, b, start, c):
            if not (isinstance(array, types.Array) and array.dtype == types.float32):
                raise TypingError(f"A tile is made of float32 arrays, not of {array}.")
        return types.void(a, b, start, c, types.intp, types.intp, types.intp), generate

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _write_tile(context, builder, signature.args[:4], arguments, vectors)
        return context.get_dummy_value()

    return cast(Tile, tile)


class _Matrix:
    """A float32 matrix in LLVM: an address, and the strides of rows and columns."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._start = builder, array.data
        strides = cgutils.unpack_tuple(builder, array.strides, kind.ndim)  # type: ignore[no-untyped-call]
        self._strides = strides if kind.ndim == 2 else [strides[0].type(0), *strides]

    def address(self, row: Any, column: Any, kind: Any) -> Any:
        """The address of an element as a pointer to `kind`; a single row is broadcast."""
        build, (down, across) = self._builder, self._strides
        offset = build.add(build.mul(row, down), build.mul(column, across))
        start = build.ptrtoint(self._start, offset.type)
        return build.inttoptr(build.add(start, offset), kind.as_pointer())


def _write_tile(context: Any, build: Any, kinds: Any, arguments: Any, vectors: int) -> None:
    """Write the loop over the terms, with the tile as its loop-carried values."""
    a, b, start, c = (_Matrix(context, build, kind, value) for kind, value in zip(kinds, arguments[:4], strict=True))
    i, j, terms = arguments[4:]
    number, whole = ir.FloatType(), terms.type
    vector, fused = ir.VectorType(number, LANES), ("contract",)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    rows = [build.add(i, whole(row)) for row in range(ROWS)]
    columns = [build.add(j, whole(LANES * n)) for n in range(vectors)]
    places = [(row, column, vector) for row in rows for column in columns]
    first = [build.load(start.address(*place), align=4) for place in places]
    before, head = build.block, build.append_basic_block("terms")
    body, after = build.append_basic_block("add"), build.append_basic_block("added")
    build.branch(head)
    build.position_at_end(head)
    k, sums = build.phi(whole), [build.phi(vector) for _ in first]
    for value, initial in zip([k, *sums], [whole(0), *first], strict=True):
        value.add_incoming(initial, before)
    build.cbranch(build.icmp_signed("<", k, terms), body, after)
    build.position_at_end(body)
    weights = [build.load(b.address(k, column, vector), align=4) for column in columns]
    added: list[Any] = []
    for row in rows:
        factor = build.load(a.address(row, k, number), align=4)
        alone = build.insert_element(vector(ir.Undefined), factor, ir.IntType(32)(0))
        factors = build.shuffle_vector(alone, vector(ir.Undefined), everywhere)
        for weight in weights:
            product = build.fmul(factors, weight, flags=fused)
            added.append(build.fadd(sums[len(added)], product, flags=fused))
    for value, moved in zip([k, *sums], [build.add(k, whole(1)), *added], strict=True):
        value.add_incoming(moved, body)
    build.branch(head)
    build.position_at_end(after)
    for place, value in zip(places, sums, strict=True):
        build.store(value, c.address(*place), align=4)


write_wide, write_narrow = make_tile(WIDE), make_tile(1)
