"""Token encoder as compiled kernels: each distinct token is encoded once, then pooled over the rows that hold it.

The encoding of a token depends on its three bytes alone, and a game has few distinct tokens (*kinds*): some thousand in
a batch of a million tokens. So the small network of `encoders.TokenEncoder`, the definition, runs over kinds instead of
tokens, and a row costs only the pooling over its tokens' kinds. The backward pass mirrors that. The result of a row
does not depend on the other rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from slipstream.contracts import Array, ObsField
from slipstream.policies.linear_algebra import ONE, ZERO, add_products, dense, product, round_up_to_4
from slipstream.policies.parameter_layout import UnpaddedSlot
from slipstream.system.numba_compile import compiled_fused

ABSENT = 255
"""The location byte of an absent token."""
PLACE_SIZE, FEATURE_SIZE, TOKEN_SIZE = 8, 16, 64
POOLED = 2 * TOKEN_SIZE
"""Width of the pooled encoding: the maximum of each unit, then its mean."""
IDENTITY_STATS = np.zeros(POOLED, np.float32), np.ones(POOLED, np.float32)
"""Mean and scale of the pooled encoding as a network input: it is not normalised."""
INPUTS = 2 * PLACE_SIZE + FEATURE_SIZE + 2
SHAPES = {
    "row.weight": (16, PLACE_SIZE),
    "column.weight": (16, PLACE_SIZE),
    "feature.weight": (256, FEATURE_SIZE),
    "each.0.weight": (TOKEN_SIZE, INPUTS),
    "each.0.bias": (TOKEN_SIZE,),
    "each.2.weight": (TOKEN_SIZE, TOKEN_SIZE),
    "each.2.bias": (TOKEN_SIZE,),
}
"""The shapes of the encoder's weights up to the pooling."""
POSSIBLE_TOKENS = 1 << 24
KNOWN = 1 << 16
"""Kinds beyond which an acting policy clears its cache, and a learner encodes one minibatch at a time."""
BYTE = np.float32(1 / 255)
LOG = np.float32(1 / math.log(256))


def token_slots(network: str, offset: int) -> tuple[UnpaddedSlot, ...]:
    """The arrays of a network's token encoder, one after another from `offset`."""
    slots: list[UnpaddedSlot] = []
    for name, shape in SHAPES.items():
        slots.append(UnpaddedSlot(f"{network}.encoder.readers.0.{name}", shape, offset))
        offset = slots[-1].end
    return tuple(slots)


ROW, COLUMN, FEATURE, SIZE, TRANSPOSED, TABLE = 0, 16, 32, 288, 290, 290 + TOKEN_SIZE
"""First rows of the parts of a lookup table [TABLE, units]: the first layer's contribution of each row, column and
feature, of a value and of its logarithm (the layer is their sum); then the second layer's weights [inputs, outputs]."""


@compiled_fused
def split_weights(flat: Array) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """Views of the encoder's flat weights, in the order of `SHAPES`."""
    a, b = 16 * PLACE_SIZE, 32 * PLACE_SIZE
    c = b + 256 * FEATURE_SIZE
    d = c + TOKEN_SIZE * INPUTS
    e = d + TOKEN_SIZE
    f = e + TOKEN_SIZE * TOKEN_SIZE
    return (
        flat[:a].reshape(16, PLACE_SIZE),
        flat[a:b].reshape(16, PLACE_SIZE),
        flat[b:c].reshape(256, FEATURE_SIZE),
        flat[c:d].reshape(TOKEN_SIZE, INPUTS),
        flat[d:e],
        flat[e:f].reshape(TOKEN_SIZE, TOKEN_SIZE),
        flat[f : f + TOKEN_SIZE],
    )


@compiled_fused
def build_table(flat: Array, table: Array) -> None:
    """Compute the lookup table of the encoder's weights."""
    row, column, feature, first, bias, second, _ = split_weights(flat)
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
            table[TRANSPOSED + k, j] = second[j, k]


@compiled_fused
def first_layer(keys: Array, low: int, high: int, table: Array, hidden: Array) -> None:
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
def encode_range(keys: Array, low: int, high: int, flat: Array, table: Array, hidden: Array, encoded: Array) -> None:
    """Write the encodings of kinds [low, high); `low` is a multiple of 4, and the arrays are padded to one."""
    first_layer(keys, low, high, table, hidden)
    bias, rows = split_weights(flat)[6], round_up_to_4(high - low)
    dense(hidden[low : low + rows], table[TRANSPOSED:TABLE], bias, encoded[low : low + rows], rows, TOKEN_SIZE)
    for n in range(low, high):
        for j in range(TOKEN_SIZE):
            encoded[n, j] = max(encoded[n, j], ZERO)


@compiled_fused
def kinds_of_row(
    obs: Array, row: int, start: int, kind_of: Array, keys: Array, known: int, kinds: Array
) -> tuple[int, int]:
    """Write the kinds of a row's tokens and append new ones to `keys`; return the numbers of tokens and of kinds."""
    count, seen = 0, obs[row]
    for k in range(kinds.size):
        at = start + 3 * k
        if seen[at] == ABSENT:
            continue
        key = (np.int32(seen[at]) << 16) | (np.int32(seen[at + 1]) << 8) | np.int32(seen[at + 2])
        kind = kind_of[key]
        if kind == 0:
            keys[known] = key
            known += 1
            kind_of[key] = kind = known
        kinds[count] = kind - 1
        count += 1
    return count, known


@compiled_fused
def pool(encoded: Array, kinds: Array, count: int, out: Array) -> None:
    """Write the maximum and the mean over a row's tokens."""
    for j in range(POOLED):
        out[j] = ZERO
    share = ONE / np.float32(max(count, 1))
    maximum, total = out[:TOKEN_SIZE], out[TOKEN_SIZE:]
    for k in range(count):
        own = encoded[kinds[k]]
        for j in range(TOKEN_SIZE):
            maximum[j] = max(maximum[j], own[j])
            total[j] += own[j]
    for j in range(TOKEN_SIZE):
        total[j] *= share


@compiled_fused
def pool_backward(encoded: Array, kinds: Array, count: int, pooled: Array, grads: Array, by_kind: Array) -> None:
    """Add the gradient of one row's pooled encoding to that of its kinds; of equal maxima the first one counts."""
    share = ONE / np.float32(max(count, 1))
    maximum, left = pooled[:TOKEN_SIZE], grads[:TOKEN_SIZE]
    for k in range(count):
        own, out = encoded[kinds[k]], by_kind[kinds[k]]
        for j in range(TOKEN_SIZE):
            largest = own[j] == maximum[j]
            out[j] += grads[TOKEN_SIZE + j] * share + (left[j] if largest else ZERO)
            left[j] = ZERO if largest else left[j]


@compiled_fused
def read_rows(
    obs: Array,
    rows: Array,
    start: int,
    flat: Array,
    table: Array,
    kind_of: Array,
    keys: Array,
    known: int,
    hidden: Array,
    encoded: Array,
    kinds: Array,
    pooled: Array,
) -> int:
    """Pool the tokens of some rows, all arrays indexed by row; return the new number of kinds."""
    for row in rows:
        count, more = kinds_of_row(obs, row, start, kind_of, keys, known, kinds)
        for low in range(known, more):  # one by one: the bits of an encoding must not depend on the other kinds
            first_layer(keys[low : low + 1], 0, 1, table, hidden)
            dense(hidden, table[TRANSPOSED:TABLE], split_weights(flat)[6], encoded[low : low + 4], 4, TOKEN_SIZE)
            for j in range(TOKEN_SIZE):
                encoded[low, j] = max(encoded[low, j], ZERO)
        known = more
        pool(encoded, kinds, count, pooled[row])
    return known


class TokenPooler:
    """Encodes and pools the tokens of an acting policy; encodings are cached until the weights change."""

    def __init__(self, field: ObsField, start: int) -> None:
        self._count, self._start = field.shape[0], start
        self._kind_of: Array = np.zeros(POSSIBLE_TOKENS, np.int32)
        """1 + the kind of every possible token; most pages are never touched and take no memory."""
        self._keys: Array = np.zeros(0, np.int32)
        self._encoded: Array = np.zeros((0, TOKEN_SIZE), np.float32)
        self._hidden = np.zeros((4, TOKEN_SIZE), np.float32)
        self._kinds: Array = np.zeros(self._count, np.int32)
        self._table, self._known = np.zeros((TABLE, TOKEN_SIZE), np.float32), 0
        self._pooled: Array = np.zeros((0, POOLED), np.float32)

    def load(self, flat: Array) -> None:
        """Use these weights."""
        self._flat = flat
        build_table(flat, self._table)
        self._clear()

    def read(self, rows: Array, obs: Array) -> Array:
        """The pooled encodings of `rows`, in an array indexed by row that the next call overwrites."""
        if self._known > KNOWN:
            self._clear()
        need = self._known + len(rows) * self._count + 4
        if need > len(self._keys):
            self._keys = _grown(self._keys, 2 * need)
            self._encoded = _grown(self._encoded, 2 * need)
        if len(self._pooled) < len(obs):
            self._pooled = np.zeros((len(obs), POOLED), np.float32)
        self._known = read_rows(
            obs,
            rows,
            self._start,
            self._flat,
            self._table,
            self._kind_of,
            self._keys,
            self._known,
            self._hidden,
            self._encoded,
            self._kinds,
            self._pooled,
        )
        return self._pooled

    def _clear(self) -> None:
        self._kind_of[self._keys[: self._known]] = 0
        self._known = 0


def _grown(array: Array, size: int) -> Array:
    grown: Array = np.zeros((size, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown


class TokenCache(NamedTuple):
    """The tokens of a training batch and the scratch memory of the kernels; empty without tokens."""

    kind_of: Array  # [possible tokens]: 1 + the kind of each token
    keys: Array  # [kinds]
    kinds: Array  # [samples, tokens]: the kinds of each sample's tokens
    counts: Array  # [samples]
    table: Array  # [TABLE, units]
    by_table: Array  # [TABLE, units]: gradient
    hidden: Array  # [padded kinds, units]
    encoded: Array  # [padded kinds, units]
    by_kind: Array  # [threads, padded kinds, units]: gradient
    below: Array  # [padded kinds, units]: gradient of the first layer's output
    pooled: Array  # [samples, pooled]: the input of the network
    grads: Array  # [samples, pooled]
    offset: int
    """Offset of the encoder's weights in the flat weights."""


def empty_token_cache() -> TokenCache:
    """A cache without tokens."""
    ids, floats = np.zeros(0, np.int32), np.zeros((0, TOKEN_SIZE), np.float32)
    kinds, pooled = np.zeros((0, 0), np.int32), np.zeros((0, POOLED), np.float32)
    by_kind = np.zeros((0, 0, TOKEN_SIZE), np.float32)
    return TokenCache(ids, ids, kinds, ids, floats, floats, floats, floats, by_kind, floats, pooled, pooled, 0)


@compiled_fused
def kinds_of_samples(
    obs: Array, samples: Array, start: int, kind_of: Array, keys: Array, kinds: Array, counts: Array
) -> int:
    """Write the kinds of these samples' tokens; return the number of kinds."""
    known = 0
    for row in samples:
        counts[row], known = kinds_of_row(obs, row, start, kind_of, keys, known, kinds[row])
    return known


@compiled_fused
def clear_kinds_of(kind_of: Array, keys: Array) -> None:
    """Reset what `kinds_of_samples` wrote."""
    for key in keys:
        kind_of[key] = 0


def sample_indices(order: Array, steps: int, rows: int) -> Array:
    """The indices in a batch of the samples of some sequences; see `fused_network.sample_index`."""
    first = order // rows * (steps * rows) + order % rows
    indices: Array = (first[:, None] + np.arange(steps) * rows).reshape(-1)
    return indices


def build_token_cache(
    cache: TokenCache, obs: Array, chosen: Array, field: ObsField, start: int, threads: int, offset: int
) -> TokenCache:
    """Find the kinds of the tokens of some samples of a batch; memory of the previous cache is reused if it fits."""
    samples, tokens = len(obs), field.shape[0]
    kind_of = cache.kind_of if cache.kind_of.size else np.zeros(POSSIBLE_TOKENS, np.int32)
    clear_kinds_of(kind_of, cache.keys)
    reuse = cache.kinds.shape == (samples, tokens)
    kinds = cache.kinds if reuse else np.zeros((samples, tokens), np.int32)
    counts = cache.counts if reuse else np.zeros(samples, np.int32)
    keys: Array = np.zeros(min(len(chosen) * tokens, POSSIBLE_TOKENS), np.int32)
    known = kinds_of_samples(obs, chosen, start, kind_of, keys, kinds, counts)
    padded = -(-known // 4) * 4
    hidden, encoded, below, by_kind = cache.hidden, cache.encoded, cache.below, cache.by_kind
    if len(hidden) < padded or len(by_kind) != threads:
        more = padded + padded // 4
        hidden, encoded, below = (np.zeros((more, TOKEN_SIZE), np.float32) for _ in range(3))
        by_kind = np.zeros((threads, more, TOKEN_SIZE), np.float32)
    pooled = cache.pooled if reuse else np.zeros((samples, POOLED), np.float32)
    grads = cache.grads if reuse else np.zeros((samples, POOLED), np.float32)
    table, by_table = cache.table, cache.by_table
    if not table.size:
        table, by_table = np.zeros((2, TABLE, TOKEN_SIZE), np.float32)
    return TokenCache(
        kind_of,
        keys[:known].copy(),
        kinds,
        counts,
        table,
        by_table,
        hidden,
        encoded,
        by_kind,
        below,
        pooled,
        grads,
        offset,
    )


@compiled_fused
def part_range(size: int, part: int, count: int) -> tuple[int, int]:
    """The range of [0, size) that belongs to one of `count` parts, in multiples of 4."""
    share = (size + 4 * count - 1) // (4 * count) * 4
    return min(part * share, size), min((part + 1) * share, size)


@compiled_fused
def encode_kinds(params: Array, cache: TokenCache, part: int, count: int) -> None:
    """Encode one part of the batch's kinds; the table must be up to date."""
    low, high = part_range(cache.keys.size, part, count)
    encode_range(cache.keys, low, high, params[cache.offset :], cache.table, cache.hidden, cache.encoded)


@compiled_fused
def clear_kind_grads(cache: TokenCache, part: int) -> None:
    """Zero the gradients of kinds of one thread."""
    cache.by_kind[part, : cache.keys.size] = ZERO


@compiled_fused
def pool_sample(cache: TokenCache, sample: int) -> None:
    """Pool the tokens of one sample."""
    pool(cache.encoded, cache.kinds[sample], cache.counts[sample], cache.pooled[sample])


@compiled_fused
def pool_all(params: Array, cache: TokenCache, samples: Array) -> None:
    """Pool the tokens of these samples."""
    build_table(params[cache.offset :], cache.table)
    encode_kinds(params, cache, 0, 1)
    for sample in samples:
        pool_sample(cache, sample)


@compiled_fused
def pool_sample_backward(cache: TokenCache, sample: int, part: int) -> None:
    """Add the gradient of one sample's pooled encoding to that of its kinds."""
    pool_backward(
        cache.encoded,
        cache.kinds[sample],
        cache.counts[sample],
        cache.pooled[sample],
        cache.grads[sample],
        cache.by_kind[part],
    )


@compiled_fused
def add_token_gradient(params: Array, cache: TokenCache, gradient: Array) -> None:
    """Add the gradient of the encoder's weights, given that of the kinds' encodings."""
    flat, by_flat, count = params[cache.offset :], gradient[cache.offset :], cache.keys.size
    rows = round_up_to_4(count)
    grad, below, by = cache.by_kind[0], cache.below, cache.by_table
    for part in range(1, cache.by_kind.shape[0]):
        for n in range(count):
            for j in range(TOKEN_SIZE):
                grad[n, j] += cache.by_kind[part, n, j]
    for n in range(rows):
        for j in range(TOKEN_SIZE):
            grad[n, j] = grad[n, j] if n < count and cache.encoded[n, j] > ZERO else ZERO
            below[n, j] = ZERO
            if n >= count:
                cache.hidden[n, j] = ZERO
    _, _, _, _, _, second, _ = split_weights(flat)
    _, _, _, _, by_bias, by_second, by_second_bias = split_weights(by_flat)
    by[:] = ZERO
    transposed = by[TRANSPOSED:TABLE]
    add_products(cache.hidden, grad, transposed, by_second_bias, rows, TOKEN_SIZE)
    for j in range(TOKEN_SIZE):
        for k in range(TOKEN_SIZE):
            by_second[j, k] += transposed[k, j]
    product(grad, second, below, rows, TOKEN_SIZE)
    for n in range(count):
        key = cache.keys[n]
        place, feature, value = key >> 16, (key >> 8) & 255, key & 255
        linear, logarithm = np.float32(value), np.float32(math.log(1.0 + value))
        row, column, about = by[ROW + (place >> 4)], by[COLUMN + (place & 15)], by[FEATURE + feature]
        by_value, by_logarithm = by[SIZE], by[SIZE + 1]
        for j in range(TOKEN_SIZE):
            own = below[n, j] if cache.hidden[n, j] > ZERO else ZERO
            row[j] += own
            column[j] += own
            about[j] += own
            by_value[j] += own * linear
            by_logarithm[j] += own * logarithm
    for i in range(16):
        for j in range(TOKEN_SIZE):
            by_bias[j] += by[ROW + i, j]
    add_table_gradient(flat, by, by_flat)


@compiled_fused
def add_table_gradient(flat: Array, by: Array, by_flat: Array) -> None:
    """Add the gradient of embeddings and the first layer, given that of the lookup table."""
    row, column, feature, first, _, _, _ = split_weights(flat)
    by_row, by_column, by_feature, by_first, _, _, _ = split_weights(by_flat)
    for part, by_part, at, start in (
        (row, by_row, ROW, 0),
        (column, by_column, COLUMN, PLACE_SIZE),
        (feature, by_feature, FEATURE, 2 * PLACE_SIZE),
    ):
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
