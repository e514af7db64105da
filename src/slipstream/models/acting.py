"""A policy that acts: flat weights and normaliser in, actions, log-probabilities and values out, in one call."""

from __future__ import annotations

import numpy as np

from slipstream.core.compile import compiled_fused
from slipstream.core.contracts import Array
from slipstream.models.heads import apply_mask, greedy, sample
from slipstream.models.kernels import CHUNK, forward, load_obs, outputs
from slipstream.models.shape import Shape


@compiled_fused
def act_rows(
    params: Array, table: Array, head: Array, mean: Array, scale: Array, scratch: Array, probs: Array,
    rows: Array, obs: Array, mask: Array, streams: Array, sampled: bool,
    action: Array, logp: Array, value: Array,
) -> None:  # fmt: skip
    """Act for the rows named in `rows`; everything is indexed by row, so rows may be split at will."""
    inputs = outputs(scratch, table, -1)
    last_policy = table.shape[0] - 1 if table[-1, 6] == 0 else (table.shape[0] // 2) - 1
    log_std = params[head[3] :]
    for first in range(0, rows.size, CHUNK):
        count = min(CHUNK, rows.size - first)
        for i in range(count):
            load_obs(obs, rows[first + i], mean, scale, inputs[i])
        forward(params, table, scratch, (count + 3) // 4 * 4)
        policy = outputs(scratch, table, last_policy)
        values = outputs(scratch, table, table.shape[0] - 1)
        for i in range(count):
            row = rows[first + i]
            if mask.shape[1]:
                apply_mask(policy[i], mask[row])
            if sampled:
                logp[row] = sample(policy[i], log_std, head, streams, row, probs, action[row])
            else:
                greedy(policy[i], head, action[row])
            value[row] = values[i, head[2]]


@compiled_fused
def value_rows(
    params: Array, table: Array, head: Array, mean: Array, scale: Array, scratch: Array, rows: Array, obs: Array,
    value: Array,
) -> None:  # fmt: skip
    """Write the value of the rows named in `rows`."""
    inputs = outputs(scratch, table, -1)
    for first in range(0, rows.size, CHUNK):
        count = min(CHUNK, rows.size - first)
        for i in range(count):
            load_obs(obs, rows[first + i], mean, scale, inputs[i])
        forward(params, table, scratch, (count + 3) // 4 * 4)
        values = outputs(scratch, table, table.shape[0] - 1)
        for i in range(count):
            value[rows[first + i]] = values[i, head[2]]


class Acting:
    """The acting copy of a policy: a pack of weights and normaliser, and the memory to run it in."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.pack = np.zeros(pack_size(shape), np.float32)
        self._scratch = np.zeros(CHUNK * shape.scratch_columns, np.float32)
        self._probs = np.zeros(max(1, shape.action.outputs), np.float32)
        self.load(self.pack)

    def load(self, pack: Array) -> None:
        """Act with the weights and normaliser of `pack`, which is used where it stands."""
        self.pack = pack
        self._params, self._mean, self._scale = split_pack(self.shape, pack)

    def act(
        self, rows: Array, obs: Array, mask: Array, streams: Array, sampled: bool, action: Array, logp: Array,
        value: Array,
    ) -> None:  # fmt: skip
        """Write action, log-probability and value of `rows`, all arrays indexed by row."""
        shape = self.shape
        act_rows(
            self._params, shape.table, shape.head, self._mean, self._scale, self._scratch, self._probs,
            rows, obs, mask, streams, sampled, action, logp, value,
        )  # fmt: skip

    def value(self, rows: Array, obs: Array, value: Array) -> None:
        """Write the value of `rows`."""
        shape = self.shape
        value_rows(
            self._params, shape.table, shape.head, self._mean, self._scale, self._scratch, rows, obs, value
        )  # fmt: skip


def pack_size(shape: Shape) -> int:
    """Length of a pack: the weights, then mean and scale of the observation."""
    return shape.size + 2 * shape.obs


def split_pack(shape: Shape, pack: Array) -> tuple[Array, Array, Array]:
    """Views of the weights, the mean and the scale in a pack."""
    return pack[: shape.size], pack[shape.size : shape.size + shape.obs], pack[shape.size + shape.obs :]


@compiled_fused
def bound(raw: Array, low: Array, high: Array, out: Array) -> None:
    """Map policy actions to the env's: [-1, 1] onto [low, high] where both are finite, unchanged where not."""
    for row in range(raw.shape[0]):
        for k in range(raw.shape[1]):
            x = raw[row, k]
            if np.isfinite(low[k]) and np.isfinite(high[k]):
                x = min(max(x, np.float32(-1)), np.float32(1))
                x = low[k] + (x + np.float32(1)) * np.float32(0.5) * (high[k] - low[k])
            out[row, k] = x
