"""Tokens read by compiled kernels: each kind of token once, then pooled over the rows that have it.

What a token says of itself depends on its three bytes alone, and a game has few kinds: some thousand in a batch of a
million tokens. So the small network of `encoders.TokenReader`, which defines all this, runs over kinds instead of
tokens, and a row costs no more than adding up what its tokens' kinds gave. The way back is the same the other way
round. A row's numbers do not depend on the rows beside it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from slipstream.contracts import Array, ObsField
from slipstream.policies.linear_algebra import ONE, ZERO, add_products, dense, product
from slipstream.policies.parameter_layout import PlainSlot
from slipstream.system.numba_compile import compiled_fused

ABSENT = 255
"""The place of a token that is not there."""
PLACE_SIZE, FEATURE_SIZE, TOKEN_SIZE = 8, 16, 64
POOLED = 2 * TOKEN_SIZE
"""Numbers that a set of tokens is pooled into: the largest of each unit, and its mean."""
AS_IT_IS = np.zeros(POOLED, np.float32), np.ones(POOLED, np.float32)
"""The mean and the scale by which pooled numbers are read."""
INPUTS = 2 * PLACE_SIZE + FEATURE_SIZE + 2
SHAPES = {
    "row.weight": (16, PLACE_SIZE), "column.weight": (16, PLACE_SIZE), "feature.weight": (256, FEATURE_SIZE),
    "each.0.weight": (TOKEN_SIZE, INPUTS), "each.0.bias": (TOKEN_SIZE,),
    "each.2.weight": (TOKEN_SIZE, TOKEN_SIZE), "each.2.bias": (TOKEN_SIZE,),
}  # fmt: skip
"""The weights of a reader up to its pool."""
PLACES = 1 << 24
KNOWN = 1 << 16
"""Kinds beyond which an acting reader forgets them all, and a learner looks at one minibatch at a time."""
BYTE = np.float32(1 / 255)
LOG = np.float32(1 / math.log(256))


def token_slots(chain: str, offset: int) -> tuple[PlainSlot, ...]:
    """The weights of a chain's reader, standing one after another from `offset`."""
    made: list[PlainSlot] = []
    for name, shape in SHAPES.items():
        made.append(PlainSlot(f"{chain}.encoder.readers.0.{name}", shape, offset))
        offset = made[-1].end
    return tuple(made)


ROW, COLUMN, FEATURE, SIZE, TURNED, TABLE = 0, 16, 32, 288, 290, 290 + TOKEN_SIZE
"""Where, in a table [TABLE, units], stands what the first layer makes of each row, column and feature, of a value and
of its logarithm, which are added up; then the second layer's weights as [inputs, outputs]; and how long it is."""


@compiled_fused
def parts(flat: Array) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """The weights in a reader's flat vector, in the order of `SHAPES`."""
    a, b = 16 * PLACE_SIZE, 32 * PLACE_SIZE
    c = b + 256 * FEATURE_SIZE
    d = c + TOKEN_SIZE * INPUTS
    e = d + TOKEN_SIZE
    f = e + TOKEN_SIZE * TOKEN_SIZE
    return (
        flat[:a].reshape(16, PLACE_SIZE), flat[a:b].reshape(16, PLACE_SIZE), flat[b:c].reshape(256, FEATURE_SIZE),
        flat[c:d].reshape(TOKEN_SIZE, INPUTS), flat[d:e], flat[e:f].reshape(TOKEN_SIZE, TOKEN_SIZE),
        flat[f : f + TOKEN_SIZE],
    )  # fmt: skip


@compiled_fused
def tabulate(flat: Array, table: Array) -> None:
    """Work out the table of a reader's weights."""
    row, column, feature, first, bias, second, _ = parts(flat)
    for part, at, start in ((row, ROW, 0), (column, COLUMN, PLACE_SIZE), (feature, FEATURE, 2 * PLACE_SIZE)):
        for i in range(part.shape[0]):
            for j in range(TOKEN_SIZE):
                total = bias[j] if at == ROW else ZERO  # every token has one row
                for k in range(part.shape[1]):
                    total += part[i, k] * first[j, start + k]
                table[at + i, j] = total
    for j in range(TOKEN_SIZE):
        table[SIZE, j], table[SIZE + 1, j] = first[j, INPUTS - 2] * BYTE, first[j, INPUTS - 1] * LOG
        for k in range(TOKEN_SIZE):
            table[TURNED + k, j] = second[j, k]


@compiled_fused
def begin_kinds(keys: Array, low: int, high: int, table: Array, hidden: Array) -> None:
    """Write the first layer's outputs of kinds [low, high)."""
    for n in range(low, high):
        place, feature, value = keys[n] >> 16, (keys[n] >> 8) & 255, keys[n] & 255
        linear, logarithm = np.float32(value), np.float32(math.log(1.0 + value))
        row, column, about = table[ROW + (place >> 4)], table[COLUMN + (place & 15)], table[FEATURE + feature]
        by_value, by_logarithm, out = table[SIZE], table[SIZE + 1], hidden[n]
        for j in range(TOKEN_SIZE):
            total = row[j] + column[j] + about[j] + linear * by_value[j] + logarithm * by_logarithm[j]
            out[j] = max(total, ZERO)


@compiled_fused
def tell_kinds(
    keys: Array, low: int, high: int, flat: Array, table: Array, hidden: Array, told: Array
) -> None:  # fmt: skip
    """Write what kinds [low, high) say of themselves; `low` is a multiple of 4, and so is the room behind `high`."""
    begin_kinds(keys, low, high, table, hidden)
    bias, rows = parts(flat)[6], (high - low + 3) // 4 * 4
    dense(hidden[low : low + rows], table[TURNED:TABLE], bias, told[low : low + rows], rows, TOKEN_SIZE)
    for n in range(low, high):
        for j in range(TOKEN_SIZE):
            told[n, j] = max(told[n, j], ZERO)


@compiled_fused
def intern(obs: Array, row: int, start: int, where: Array, keys: Array, known: int, which: Array) -> tuple[int, int]:
    """Write the kinds of a row's tokens, new ones appended to `keys`; return how many tokens and kinds there are."""
    count, seen = 0, obs[row]
    for k in range(which.size):
        at = start + 3 * k
        if seen[at] == ABSENT:
            continue
        key = (np.int32(seen[at]) << 16) | (np.int32(seen[at + 1]) << 8) | np.int32(seen[at + 2])
        kind = where[key]
        if kind == 0:
            keys[known] = key
            known += 1
            where[key] = kind = known
        which[count] = kind - 1
        count += 1
    return count, known


@compiled_fused
def pool(told: Array, which: Array, count: int, out: Array) -> None:
    """Write the largest and the mean over a row's tokens."""
    for j in range(POOLED):
        out[j] = ZERO
    share = ONE / np.float32(max(count, 1))
    best, total = out[:TOKEN_SIZE], out[TOKEN_SIZE:]
    for k in range(count):
        own = told[which[k]]
        for j in range(TOKEN_SIZE):
            best[j] = max(best[j], own[j])
            total[j] += own[j]
    for j in range(TOKEN_SIZE):
        total[j] *= share


@compiled_fused
def unpool(told: Array, which: Array, count: int, pooled: Array, grads: Array, by_kind: Array) -> None:
    """Add to the slopes of kinds what one row's pooled numbers have; the first of equals is the largest."""
    share = ONE / np.float32(max(count, 1))
    best, left = pooled[:TOKEN_SIZE], grads[:TOKEN_SIZE]
    for k in range(count):
        own, out = told[which[k]], by_kind[which[k]]
        for j in range(TOKEN_SIZE):
            largest = own[j] == best[j]
            out[j] += grads[TOKEN_SIZE + j] * share + (left[j] if largest else ZERO)
            left[j] = ZERO if largest else left[j]


@compiled_fused
def read_rows(
    obs: Array, rows: Array, start: int, flat: Array, table: Array, where: Array, keys: Array, known: int,
    hidden: Array, told: Array, which: Array, pooled: Array,
) -> int:  # fmt: skip
    """Pool the tokens of some rows, all arrays indexed by row; return how many kinds are known now."""
    for row in rows:
        count, more = intern(obs, row, start, where, keys, known, which)
        for low in range(known, more):  # one by one: a kind's bits must not depend on what came with it
            begin_kinds(keys[low : low + 1], 0, 1, table, hidden)
            dense(hidden, table[TURNED:TABLE], parts(flat)[6], told[low : low + 4], 4, TOKEN_SIZE)
            for j in range(TOKEN_SIZE):
                told[low, j] = max(told[low, j], ZERO)
        known = more
        pool(told, which, count, pooled[row])
    return known


class Reader:
    """Reads tokens for an acting policy, and remembers what each kind says until its weights change."""

    def __init__(self, field: ObsField, start: int) -> None:
        self._count, self._start = field.shape[0], start
        self._where: Array = np.zeros(PLACES, np.int32)
        """Of every possible token 1 + its kind; most of it is never touched, and so takes no memory."""
        self._keys: Array = np.zeros(0, np.int32)
        self._told: Array = np.zeros((0, TOKEN_SIZE), np.float32)
        self._hidden = np.zeros((4, TOKEN_SIZE), np.float32)
        self._which: Array = np.zeros(self._count, np.int32)
        self._table, self._known = np.zeros((TABLE, TOKEN_SIZE), np.float32), 0
        self._pooled: Array = np.zeros((0, POOLED), np.float32)

    def load(self, flat: Array) -> None:
        """Read with these weights."""
        self._flat = flat
        tabulate(flat, self._table)
        self._forget()

    def read(self, rows: Array, obs: Array) -> Array:
        """The pooled numbers of `rows`, in an array indexed by row that is written over next time."""
        if self._known > KNOWN:
            self._forget()
        need = self._known + len(rows) * self._count + 4
        if need > len(self._keys):
            self._keys = _grown(self._keys, 2 * need)
            self._told = _grown(self._told, 2 * need)
        if len(self._pooled) < len(obs):
            self._pooled = np.zeros((len(obs), POOLED), np.float32)
        self._known = read_rows(
            obs, rows, self._start, self._flat, self._table, self._where, self._keys, self._known, self._hidden,
            self._told, self._which, self._pooled,
        )  # fmt: skip
        return self._pooled

    def _forget(self) -> None:
        self._where[self._keys[: self._known]] = 0
        self._known = 0


def _grown(array: Array, size: int) -> Array:
    grown: Array = np.zeros((size, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


class TokenCache(NamedTuple):
    """The tokens of a batch for the learner, and the memory that its kernels work in; empty without tokens."""

    where: Array  # [every token there can be]: 1 + its kind
    keys: Array  # [kinds]
    which: Array  # [samples, tokens]: the kinds of each sample's tokens
    counts: Array  # [samples]
    table: Array  # [TABLE, units]
    by_table: Array  # [TABLE, units]: slopes
    hidden: Array  # [kinds in fours, units]
    told: Array  # [kinds in fours, units]
    by_kind: Array  # [threads, kinds in fours, units]: slopes
    below: Array  # [kinds in fours, units]: slopes of the first layer
    pooled: Array  # [samples, pooled]: what the network reads
    grads: Array  # [samples, pooled]
    offset: int
    """Where the reader's weights stand among all."""


def empty_token_cache() -> TokenCache:
    """No tokens at all."""
    ids, floats = np.zeros(0, np.int32), np.zeros((0, TOKEN_SIZE), np.float32)
    which, pooled = np.zeros((0, 0), np.int32), np.zeros((0, POOLED), np.float32)
    by_kind = np.zeros((0, 0, TOKEN_SIZE), np.float32)
    return TokenCache(
        ids, ids, which, ids, floats, floats, floats, floats, by_kind, floats, pooled, pooled, 0
    )  # fmt: skip


@compiled_fused
def intern_all(
    obs: Array, samples: Array, start: int, where: Array, keys: Array, which: Array, counts: Array
) -> int:  # fmt: skip
    """Write the kinds of these samples' tokens; return how many kinds there are."""
    known = 0
    for row in samples:
        counts[row], known = intern(obs, row, start, where, keys, known, which[row])
    return known


@compiled_fused
def forget_all(where: Array, keys: Array) -> None:
    """Clear what `intern_all` wrote."""
    for key in keys:
        where[key] = 0


def samples_of(order: Array, steps: int, rows: int) -> Array:
    """Where the samples of some sequences stand in a batch, as `networks.place` says."""
    first = order // rows * (steps * rows) + order % rows
    places: Array = (first[:, None] + np.arange(steps) * rows).reshape(-1)
    return places


def build_token_cache(
    book: TokenCache, obs: Array, some: Array, field: ObsField, start: int, threads: int, offset: int
) -> TokenCache:
    """Look through the tokens of some of a batch's samples; memory of the book before is used where it suffices."""
    samples, tokens = len(obs), field.shape[0]
    where = book.where if book.where.size else np.zeros(PLACES, np.int32)
    forget_all(where, book.keys)
    fits = book.which.shape == (samples, tokens)
    which = book.which if fits else np.zeros((samples, tokens), np.int32)
    counts = book.counts if fits else np.zeros(samples, np.int32)
    keys: Array = np.zeros(min(len(some) * tokens, PLACES), np.int32)
    known = intern_all(obs, some, start, where, keys, which, counts)
    room = -(-known // 4) * 4
    hidden, told, below, by_kind = book.hidden, book.told, book.below, book.by_kind
    if len(hidden) < room or len(by_kind) != threads:
        more = room + room // 4
        hidden, told, below = (np.zeros((more, TOKEN_SIZE), np.float32) for _ in range(3))
        by_kind = np.zeros((threads, more, TOKEN_SIZE), np.float32)
    pooled = book.pooled if fits else np.zeros((samples, POOLED), np.float32)
    grads = book.grads if fits else np.zeros((samples, POOLED), np.float32)
    table, by_table = book.table, book.by_table
    if not table.size:
        table, by_table = np.zeros((2, TABLE, TOKEN_SIZE), np.float32)
    return TokenCache(
        where, keys[:known].copy(), which, counts, table, by_table, hidden, told, by_kind, below, pooled, grads, offset
    )


@compiled_fused
def spans(size: int, part: int, count: int) -> tuple[int, int]:
    """The part of [0, size) that falls to one of `count`, in whole fours."""
    share = (size + 4 * count - 1) // (4 * count) * 4
    return min(part * share, size), min((part + 1) * share, size)


@compiled_fused
def read_book(params: Array, book: TokenCache, part: int, count: int) -> None:
    """What some of the batch's kinds say of themselves, by a table that is there."""
    low, high = spans(book.keys.size, part, count)
    tell_kinds(book.keys, low, high, params[book.offset :], book.table, book.hidden, book.told)


@compiled_fused
def clear_kinds(book: TokenCache, part: int) -> None:
    """Forget the slopes that one thread has added up."""
    book.by_kind[part, : book.keys.size] = ZERO


@compiled_fused
def pool_sample(book: TokenCache, sample: int) -> None:
    """Pool the tokens of one sample."""
    pool(book.told, book.which[sample], book.counts[sample], book.pooled[sample])


@compiled_fused
def pool_all(params: Array, book: TokenCache, samples: Array) -> None:
    """Pool the tokens of these samples."""
    tabulate(params[book.offset :], book.table)
    read_book(params, book, 0, 1)
    for sample in samples:
        pool_sample(book, sample)


@compiled_fused
def unpool_sample(book: TokenCache, sample: int, part: int) -> None:
    """Add one sample's slopes to those of its kinds."""
    unpool(
        book.told, book.which[sample], book.counts[sample], book.pooled[sample], book.grads[sample], book.by_kind[part]
    )


@compiled_fused
def learn_kinds(params: Array, book: TokenCache, gradient: Array) -> None:
    """Add the gradient of the reader's weights, given the slopes of what kinds said."""
    flat, by_flat, kinds = params[book.offset :], gradient[book.offset :], book.keys.size
    rows = (kinds + 3) // 4 * 4
    grad, below, by = book.by_kind[0], book.below, book.by_table
    for part in range(1, book.by_kind.shape[0]):
        for n in range(kinds):
            for j in range(TOKEN_SIZE):
                grad[n, j] += book.by_kind[part, n, j]
    for n in range(rows):
        for j in range(TOKEN_SIZE):
            grad[n, j] = grad[n, j] if n < kinds and book.told[n, j] > ZERO else ZERO
            below[n, j] = ZERO
            if n >= kinds:
                book.hidden[n, j] = ZERO
    _, _, _, _, _, second, _ = parts(flat)
    _, _, _, _, by_bias, by_second, by_second_bias = parts(by_flat)
    by[:] = ZERO
    turned = by[TURNED:TABLE]
    add_products(book.hidden, grad, turned, by_second_bias, rows, TOKEN_SIZE)
    for j in range(TOKEN_SIZE):
        for k in range(TOKEN_SIZE):
            by_second[j, k] += turned[k, j]
    product(grad, second, below, rows, TOKEN_SIZE)
    for n in range(kinds):
        key = book.keys[n]
        place, feature, value = key >> 16, (key >> 8) & 255, key & 255
        linear, logarithm = np.float32(value), np.float32(math.log(1.0 + value))
        row, column, about = by[ROW + (place >> 4)], by[COLUMN + (place & 15)], by[FEATURE + feature]
        by_value, by_logarithm = by[SIZE], by[SIZE + 1]
        for j in range(TOKEN_SIZE):
            own = below[n, j] if book.hidden[n, j] > ZERO else ZERO
            row[j] += own
            column[j] += own
            about[j] += own
            by_value[j] += own * linear
            by_logarithm[j] += own * logarithm
    for i in range(16):
        for j in range(TOKEN_SIZE):
            by_bias[j] += by[ROW + i, j]
    learn_table(flat, by, by_flat)


@compiled_fused
def learn_table(flat: Array, by: Array, by_flat: Array) -> None:
    """Add the gradient of embeddings and the first layer, given that of the table made of them."""
    row, column, feature, first, _, _, _ = parts(flat)
    by_row, by_column, by_feature, by_first, _, _, _ = parts(by_flat)
    for part, by_part, at, start in (
        (row, by_row, ROW, 0), (column, by_column, COLUMN, PLACE_SIZE), (feature, by_feature, FEATURE, 2 * PLACE_SIZE)
    ):  # fmt: skip
        for i in range(part.shape[0]):
            for j in range(TOKEN_SIZE):
                grad = by[at + i, j]
                if grad != ZERO:
                    for k in range(part.shape[1]):
                        by_part[i, k] += grad * first[j, start + k]
                        by_first[j, start + k] += grad * part[i, k]
    for j in range(TOKEN_SIZE):
        by_first[j, INPUTS - 2] += by[SIZE, j] * BYTE
        by_first[j, INPUTS - 1] += by[SIZE + 1, j] * LOG
