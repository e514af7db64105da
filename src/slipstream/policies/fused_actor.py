"""A policy that acts by compiled kernels: observations in, actions, log-probabilities and values out, in one call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.design import Design, PolicyActor
from slipstream.policies.distributions import apply_mask, greedy, log_std_of, sample
from slipstream.policies.fused_network import Network, forward, load_obs, outputs
from slipstream.policies.linear_algebra import CHUNK, Activations
from slipstream.policies.parameter_layout import HEAD_LOG_STD, HEAD_OUTPUTS, HEAD_VALUE
from slipstream.policies.recurrent import keep_state
from slipstream.policies.token_encoder import IDENTITY_STATS, TokenPooler
from slipstream.system.numba_compile import compiled_fused


class Inputs(NamedTuple):
    """What the policy reads; arrays are indexed by row."""

    rows: Array  # the rows to act for
    obs: Array  # [rows, obs]
    mean: Array
    scale: Array
    states: Array  # [rows, size]


class Actions(NamedTuple):
    """Where the policy's actions are written, by row."""

    action: Array
    log_prob: Array
    value: Array


@compiled_fused
def run_chunk(net: Network, work: Activations, state: Array | None, inputs: Inputs, first: int, count: int) -> None:
    """Run the network on the rows [first, first + count) of `inputs.rows`, one per lane."""
    into = outputs(work.scratch, CHUNK, net.table, -1)
    for i in range(count):
        row = inputs.rows[first + i]
        load_obs(inputs.obs, row, inputs.mean, inputs.scale, into[i])
        if state is not None:
            for k in range(state.shape[1]):
                state[i, k] = inputs.states[row, k]
    forward(net.params, net.table, work, state, (count + 3) // 4 * 4, 1)


@compiled_fused
def act_rows(
    net: Network,
    work: Activations,
    state: Array | None,
    probs: Array,
    inputs: Inputs,
    mask: Array,
    streams: Array,
    sampled: bool,
    result: Actions,
) -> None:
    """Act for `inputs.rows` and advance their states. Everything is indexed by row, so rows may be split at will."""
    policy = outputs(work.scratch, CHUNK, net.table, net.policy_layer)
    values = outputs(work.scratch, CHUNK, net.table, net.value_layer)
    log_std = net.params[net.head[HEAD_LOG_STD] :]
    for first in range(0, inputs.rows.size, CHUNK):
        count = min(CHUNK, inputs.rows.size - first)
        run_chunk(net, work, state, inputs, first, count)
        for i in range(count):
            row = inputs.rows[first + i]
            if mask.shape[1]:
                apply_mask(policy[i], mask[row], net.head)
            if sampled:
                result.log_prob[row] = sample(policy[i], log_std, net.head, streams, row, probs, result.action[row])
            else:
                greedy(policy[i], net.head, result.action[row])
            result.value[row] = values[i, net.head[HEAD_VALUE]]
            if state is not None:
                keep_state(net.table, work.scratch, CHUNK, 0, i, inputs.states[row])


@compiled_fused
def value_rows(net: Network, work: Activations, state: Array | None, inputs: Inputs, value: Array) -> None:
    """Write the value of `inputs.rows`; their states are not advanced."""
    values = outputs(work.scratch, CHUNK, net.table, net.value_layer)
    for first in range(0, inputs.rows.size, CHUNK):
        count = min(CHUNK, inputs.rows.size - first)
        run_chunk(net, work, state, inputs, first, count)
        for i in range(count):
            value[inputs.rows[first + i]] = values[i, net.head[HEAD_VALUE]]


@compiled_fused
def policy_outputs(net: Network, work: Activations, state: Array | None, inputs: Inputs, result: Array) -> None:
    """Write the policy's outputs of `inputs.rows`, means followed by log deviations; advance their states."""
    policy, count_outputs = outputs(work.scratch, CHUNK, net.table, net.policy_layer), net.head[HEAD_OUTPUTS]
    log_std = net.params[net.head[HEAD_LOG_STD] :]
    for first in range(0, inputs.rows.size, CHUNK):
        count = min(CHUNK, inputs.rows.size - first)
        run_chunk(net, work, state, inputs, first, count)
        for i in range(count):
            row = inputs.rows[first + i]
            for k in range(count_outputs):
                result[row, k] = policy[i, k]
            for k in range(result.shape[1] - count_outputs):
                result[row, count_outputs + k] = log_std_of(policy[i], log_std, net.head, k)
            if state is not None:
                keep_state(net.table, work.scratch, CHUNK, 0, i, inputs.states[row])


class FusedActor:
    """Acts by the compiled kernels."""

    def __init__(self, design: Design) -> None:
        self.design = design
        stack = design.stack
        self._work = Activations(
            scratch=np.zeros(CHUNK * stack.scratch_columns, np.float32),
            block=CHUNK,
            episode_start=np.zeros((1, CHUNK), np.uint8),
        )
        self._state = np.zeros((CHUNK, stack.state_size), np.float32) if stack.state_size else None
        self._probs = np.zeros(max(1, design.outputs), np.float32)
        self._reader = TokenPooler(design.tokens, 0) if design.tokens is not None else None
        self.load(np.zeros(design.params_and_stats_size, np.float32))

    def load(self, params_and_stats: Array) -> None:
        """Act with the weights and normaliser of `params_and_stats`, which is not copied."""
        stack = self.design.stack
        params, self._mean, self._scale = self.design.split_params_and_stats(params_and_stats)
        self._net = Network(params, stack.table, stack.head, stack.policy_layer, stack.value_layer)
        if self._reader is not None:
            self._reader.load(params[stack.encoder_offset :])
            self._mean, self._scale = IDENTITY_STATS

    def act(
        self,
        rows: Array,
        obs: Array,
        mask: Array,
        streams: Array,
        sampled: bool,
        action: Array,
        log_prob: Array,
        value: Array,
        states: Array,
    ) -> None:
        """Write action, log-probability and value of `rows` and advance their states."""
        inputs, result = self._inputs(rows, obs, states), Actions(action, log_prob, value)
        act_rows(self._net, self._work, self._state, self._probs, inputs, mask, streams, sampled, result)

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Write the value of `rows`."""
        value_rows(self._net, self._work, self._state, self._inputs(rows, obs, states), value)

    def outputs(self, rows: Array, obs: Array, states: Array, out: Array) -> None:
        """Write the policy's outputs of `rows` and advance their states."""
        policy_outputs(self._net, self._work, self._state, self._inputs(rows, obs, states), out)

    def _inputs(self, rows: Array, obs: Array, states: Array) -> Inputs:
        """What the network reads of the rows: observations, or their pooled tokens."""
        read = obs if self._reader is None else self._reader.read(rows, obs)
        return Inputs(rows, read, self._mean, self._scale, states)


def make_actor(design: Design) -> PolicyActor:
    """The acting copy of a policy: compiled kernels where they support the design, torch otherwise."""
    if design.fused:
        return FusedActor(design)
    from slipstream.policies.torch_actor import TorchActor

    return TorchActor(design)
