"""A policy that acts: weights and normaliser in, actions, log-probabilities and values out, in one call."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.design import Design, PolicyActor
from slipstream.policies.distributions import apply_mask, greedy, sample
from slipstream.policies.fused_network import forward, load_lanes, outputs
from slipstream.policies.kl import policy_outputs
from slipstream.policies.linear_algebra import CHUNK
from slipstream.policies.parameter_layout import HEAD_VALUE
from slipstream.policies.recurrent import keep_state
from slipstream.policies.token_encoder import AS_IT_IS, Reader
from slipstream.system.numba_compile import compiled_fused


@compiled_fused
def act_rows(
    params: Array, table: Array, head: Array, layers: tuple[int, int], mean: Array, scale: Array, scratch: Array,
    probs: Array, state: Array | None, episode_start: Array, rows: Array, obs: Array, mask: Array, streams: Array,
    sampled: bool, action: Array, log_prob: Array, value: Array, states: Array,
) -> None:  # fmt: skip
    """Act for the rows named in `rows`; everything is indexed by row, so rows may be split at will."""
    inputs = outputs(scratch, CHUNK, table, -1)
    policy, values = outputs(scratch, CHUNK, table, layers[0]), outputs(scratch, CHUNK, table, layers[1])
    log_std = params[head[3] :]
    for first in range(0, rows.size, CHUNK):
        count = min(CHUNK, rows.size - first)
        lanes = load_lanes(obs, rows, first, count, mean, scale, states, inputs, state)
        forward(params, table, scratch, CHUNK, lanes, 1, state, episode_start)
        for i in range(count):
            row = rows[first + i]
            if mask.shape[1]:
                apply_mask(policy[i], mask[row], head)
            if sampled:
                log_prob[row] = sample(policy[i], log_std, head, streams, row, probs, action[row])
            else:
                greedy(policy[i], head, action[row])
            value[row] = values[i, head[HEAD_VALUE]]
            if state is not None:
                keep_state(table, scratch, CHUNK, 0, i, states[row])


@compiled_fused
def value_rows(
    params: Array, table: Array, head: Array, layers: tuple[int, int], mean: Array, scale: Array, scratch: Array,
    state: Array | None, episode_start: Array, rows: Array, obs: Array, value: Array, states: Array,
) -> None:  # fmt: skip
    """Write the value of the rows named in `rows`; their states stay as they are."""
    inputs, values = outputs(scratch, CHUNK, table, -1), outputs(scratch, CHUNK, table, layers[1])
    for first in range(0, rows.size, CHUNK):
        count = min(CHUNK, rows.size - first)
        lanes = load_lanes(obs, rows, first, count, mean, scale, states, inputs, state)
        forward(params, table, scratch, CHUNK, lanes, 1, state, episode_start)
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
        self._state = np.zeros((CHUNK, stack.state_size), np.float32) if stack.state_size else None
        self._episode_start = np.zeros((1, CHUNK), np.uint8)
        self._reader = Reader(design.tokens, 0) if design.tokens is not None else None
        self.load(np.zeros(design.params_and_stats_size, np.float32))

    def load(self, params_and_stats: Array) -> None:
        """Act with the weights and normaliser of `params_and_stats`, which is used where it stands."""
        self._params, self._mean, self._scale = self.design.split_params_and_stats(params_and_stats)
        if self._reader is not None:
            self._reader.load(self._params[self.design.stack.behind :])
            self._mean, self._scale = AS_IT_IS

    def act(
        self, rows: Array, obs: Array, mask: Array, streams: Array, sampled: bool, action: Array, log_prob: Array,
        value: Array, states: Array,
    ) -> None:  # fmt: skip
        """Write action, log-probability and value of `rows` and move their states on."""
        act_rows(
            *self._network(), self._scratch, self._probs, self._state, self._episode_start, rows, self._see(rows, obs), mask,
            streams, sampled, action, log_prob, value, states,
        )  # fmt: skip

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Write the value of `rows`."""
        value_rows(
            *self._network(), self._scratch, self._state, self._episode_start, rows, self._see(rows, obs), value, states
        )  # fmt: skip

    def outputs(self, rows: Array, obs: Array, states: Array, out: Array) -> None:
        """Write the policy's outputs of `rows`."""
        policy_outputs(
            *self._network(), self._scratch, self._state, self._episode_start, rows, self._see(rows, obs), states, out
        )

    def _see(self, rows: Array, obs: Array) -> Array:
        """What the network reads of the rows: observations, or their pooled tokens."""
        return obs if self._reader is None else self._reader.read(rows, obs)

    def _network(self) -> tuple[Array, Array, Array, tuple[int, int], Array, Array]:
        stack = self.design.stack
        return self._params, stack.table, stack.head, self._layers, self._mean, self._scale


def make_actor(design: Design) -> PolicyActor:
    """The acting copy of a policy: by the compiled kernels where they can, by torch where not."""
    if design.fused:
        return FusedActing(design)
    from slipstream.policies.torch_actor import TorchActor

    return TorchActor(design)
