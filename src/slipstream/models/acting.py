"""A policy that acts: weights and normaliser in, actions, log-probabilities and values out, in one call."""

from __future__ import annotations

import math

import numpy as np

from slipstream.core.compile import compiled_fused
from slipstream.core.contracts import Array
from slipstream.models.design import Acting, Design
from slipstream.models.heads import apply_mask, greedy, sample
from slipstream.models.kernels import CHUNK, hyperbolic_tangent
from slipstream.models.layout import HEAD_VALUE
from slipstream.models.memory import keep_state
from slipstream.models.nearness import tell_rows
from slipstream.models.networks import forward, load_lanes, outputs


@compiled_fused
def act_rows(
    params: Array, table: Array, head: Array, layers: tuple[int, int], mean: Array, scale: Array, scratch: Array,
    probs: Array, state: Array, fresh: Array, rows: Array, obs: Array, mask: Array, streams: Array, sampled: bool,
    action: Array, logp: Array, value: Array, states: Array,
) -> None:  # fmt: skip
    """Act for the rows named in `rows`; everything is indexed by row, so rows may be split at will."""
    inputs = outputs(scratch, CHUNK, table, -1)
    policy, values = outputs(scratch, CHUNK, table, layers[0]), outputs(scratch, CHUNK, table, layers[1])
    log_std = params[head[3] :]
    for first in range(0, rows.size, CHUNK):
        count = min(CHUNK, rows.size - first)
        lanes = load_lanes(obs, rows, first, count, mean, scale, states, inputs, state)
        forward(params, table, scratch, CHUNK, lanes, 1, state, fresh)
        for i in range(count):
            row = rows[first + i]
            if mask.shape[1]:
                apply_mask(policy[i], mask[row], head)
            if sampled:
                logp[row] = sample(policy[i], log_std, head, streams, row, probs, action[row])
            else:
                greedy(policy[i], head, action[row])
            value[row] = values[i, head[HEAD_VALUE]]
            if state.shape[1]:
                keep_state(table, scratch, CHUNK, 0, i, states[row])


@compiled_fused
def value_rows(
    params: Array, table: Array, head: Array, layers: tuple[int, int], mean: Array, scale: Array, scratch: Array,
    state: Array, fresh: Array, rows: Array, obs: Array, value: Array, states: Array,
) -> None:  # fmt: skip
    """Write the value of the rows named in `rows`; their states stay as they are."""
    inputs, values = outputs(scratch, CHUNK, table, -1), outputs(scratch, CHUNK, table, layers[1])
    for first in range(0, rows.size, CHUNK):
        count = min(CHUNK, rows.size - first)
        lanes = load_lanes(obs, rows, first, count, mean, scale, states, inputs, state)
        forward(params, table, scratch, CHUNK, lanes, 1, state, fresh)
        for i in range(count):
            value[rows[first + i]] = values[i, head[HEAD_VALUE]]


class FusedActing:
    """Acts by the compiled kernels."""

    def __init__(self, design: Design) -> None:
        self.design = design
        stack = design.stack
        self._layers = stack.policy_layer, stack.value_layer
        self._scratch = np.zeros(CHUNK * stack.scratch_columns, np.float32)
        self._probs = np.zeros(max(1, design.outputs), np.float32)
        self._state = np.zeros((CHUNK, stack.state_size), np.float32)
        self._fresh = np.zeros((1, CHUNK), np.uint8)
        self.load(np.zeros(design.pack_size, np.float32))

    def load(self, pack: Array) -> None:
        """Act with the weights and normaliser of `pack`, which is used where it stands."""
        self._params, self._mean, self._scale = self.design.split_pack(pack)

    def act(
        self, rows: Array, obs: Array, mask: Array, streams: Array, sampled: bool, action: Array, logp: Array,
        value: Array, states: Array,
    ) -> None:  # fmt: skip
        """Write action, log-probability and value of `rows` and move their states on."""
        act_rows(
            *self._network(), self._scratch, self._probs, self._state, self._fresh, rows, obs, mask, streams, sampled,
            action, logp, value, states,
        )  # fmt: skip

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Write the value of `rows`."""
        value_rows(*self._network(), self._scratch, self._state, self._fresh, rows, obs, value, states)

    def tell(self, rows: Array, obs: Array, states: Array, told: Array) -> None:
        """Write the policy's outputs of `rows`."""
        tell_rows(*self._network(), self._scratch, self._state, self._fresh, rows, obs, states, told)

    def _network(self) -> tuple[Array, Array, Array, tuple[int, int], Array, Array]:
        stack = self.design.stack
        return self._params, stack.table, stack.head, self._layers, self._mean, self._scale


def make_acting(design: Design) -> Acting:
    """The acting copy of a policy: by the compiled kernels where they can, by torch where not."""
    if design.fused:
        return FusedActing(design)
    from slipstream.models.torched import TorchActing

    return TorchActing(design)


@compiled_fused
def bound_row(row: int, raw: Array, low: Array, high: Array, squash: bool, out: Array) -> None:
    """Map a row of policy actions to the env's: [-1, 1] onto [low, high] where both are finite, unchanged where not.

    A squashed action is bent into [-1, 1] first, any other is cut off there.
    """
    for k in range(raw.shape[1]):
        x = hyperbolic_tangent(raw[row, k]) if squash else raw[row, k]
        if math.isfinite(low[k]) and math.isfinite(high[k]):
            x = min(max(x, np.float32(-1)), np.float32(1))
            x = low[k] + (x + np.float32(1)) * np.float32(0.5) * (high[k] - low[k])
        out[row, k] = x


@compiled_fused
def bound(raw: Array, low: Array, high: Array, squash: bool, out: Array) -> None:
    """Map policy actions to the env's, row by row."""
    for row in range(raw.shape[0]):
        bound_row(row, raw, low, high, squash, out)
