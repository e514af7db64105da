"""A policy that acts by compiled kernels: observations in, actions, log-probabilities and values out, in one call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.design import ActInputs, ActOutputs, Design, PolicyActor
from slipstream.policies.distributions import apply_mask, greedy, log_std_of, sample
from slipstream.policies.fused_network import Network, forward, load_obs, outputs
from slipstream.policies.linear_algebra import CHUNK, Activations, round_up_to_4
from slipstream.policies.parameter_layout import HEAD_LOG_STD, HEAD_OUTPUTS, HEAD_VALUE
from slipstream.policies.recurrent import keep_state
from slipstream.policies.token_encoder import IDENTITY_STATS, TokenPooler
from slipstream.system.numba_compile import compiled_fused

Fields = tuple[Any, ...]
"""The fields of a NamedTuple as a plain tuple. A kernel that is called in every step takes them like this: reading the
arguments of `act_rows` as NamedTuples takes numba 3 us longer, a third of a step of 32 rows."""


class NetworkInputs(NamedTuple):
    """What the network reads; observations and states are indexed by row."""

    rows: Array  # the rows to run
    obs: Array  # [all rows, obs]
    mean: Array
    scale: Array
    states: Array  # [all rows, size]


@compiled_fused
def run_chunk(
    net: Network, work: Activations, state: Array | None, inputs: NetworkInputs, first: int, count: int
) -> None:
    """Run the network on the rows [first, first + count) of `inputs.rows`, one per lane."""
    rows, obs, mean, scale, states = inputs
    into = outputs(work.scratch, CHUNK, net.table, -1)
    for i in range(count):
        row = rows[first + i]
        load_obs(obs, row, mean, scale, into[i])
        if state is not None:
            for k in range(state.shape[1]):
                state[i, k] = states[row, k]
    forward(net.params, net.table, work, state, round_up_to_4(count), 1)


@compiled_fused
def act_rows(
    net_fields: Fields,
    work_fields: Fields,
    state: Array | None,
    probs: Array,
    input_fields: Fields,
    mask: Array,
    streams: Array,
    sampled: bool,
    out_fields: Fields,
) -> None:
    """Act for `inputs.rows` and advance their states. Everything is indexed by row, so rows may be split at will."""
    net, work = Network(*net_fields), Activations(*work_fields)
    inputs, head = NetworkInputs(*input_fields), net.head
    action, log_prob, value = out_fields
    policy = outputs(work.scratch, CHUNK, net.table, net.policy_layer)
    values = outputs(work.scratch, CHUNK, net.table, net.value_layer)
    log_std = net.params[net.head[HEAD_LOG_STD] :]
    for first in range(0, inputs.rows.size, CHUNK):
        count = min(CHUNK, inputs.rows.size - first)
        run_chunk(net, work, state, inputs, first, count)
        for i in range(count):
            row = inputs.rows[first + i]
            if mask.shape[1]:
                apply_mask(policy[i], mask[row], head)
            if sampled:
                log_prob[row] = sample(policy[i], log_std, head, streams, row, probs, action[row])
            else:
                greedy(policy[i], head, action[row])
            value[row] = values[i, head[HEAD_VALUE]]
            if state is not None:
                keep_state(net.table, work.scratch, CHUNK, 0, i, inputs.states[row])


@compiled_fused
def value_rows(
    net_fields: Fields, work_fields: Fields, state: Array | None, input_fields: Fields, value: Array
) -> None:
    """Write the value of `inputs.rows`; their states are not advanced."""
    net, work, inputs = Network(*net_fields), Activations(*work_fields), NetworkInputs(*input_fields)
    values = outputs(work.scratch, CHUNK, net.table, net.value_layer)
    for first in range(0, inputs.rows.size, CHUNK):
        count = min(CHUNK, inputs.rows.size - first)
        run_chunk(net, work, state, inputs, first, count)
        for i in range(count):
            value[inputs.rows[first + i]] = values[i, net.head[HEAD_VALUE]]


@compiled_fused
def policy_outputs(
    net_fields: Fields, work_fields: Fields, state: Array | None, input_fields: Fields, result: Array
) -> None:
    """Write the policy's outputs of `inputs.rows`, means followed by log deviations; advance their states."""
    net, work, inputs = Network(*net_fields), Activations(*work_fields), NetworkInputs(*input_fields)
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
        work = Activations(
            scratch=np.zeros(CHUNK * stack.scratch_columns, np.float32),
            block=CHUNK,
            episode_start=np.zeros((1, CHUNK), np.uint8),
        )
        self._work = tuple(work)
        self._state = np.zeros((CHUNK, stack.state_size), np.float32) if stack.state_size else None
        self._probs = np.zeros(max(1, design.outputs), np.float32)
        self._reader = TokenPooler(design.tokens, 0) if design.tokens is not None else None
        self.load(np.zeros(design.params_and_stats_size, np.float32))

    def load(self, params_and_stats: Array) -> None:
        """Act with the weights and normaliser of `params_and_stats`, which is not copied."""
        stack = self.design.stack
        params, self._mean, self._scale = self.design.split_params_and_stats(params_and_stats)
        self._net = tuple(Network(params, stack.table, stack.head, stack.policy_layer, stack.value_layer))
        if self._reader is not None:
            self._reader.load(params[stack.encoder_offset :])
            self._mean, self._scale = IDENTITY_STATS

    def act(self, inputs: ActInputs, out: ActOutputs, sampled: bool) -> None:
        """Write action, log-probability and value of the rows and advance their states."""
        rows, obs, mask, states, streams = inputs
        read = self._inputs(rows, obs, states)
        act_rows(self._net, self._work, self._state, self._probs, read, mask, streams, sampled, tuple(out))

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Write the value of `rows`."""
        value_rows(self._net, self._work, self._state, self._inputs(rows, obs, states), value)

    def outputs(self, rows: Array, obs: Array, states: Array, out: Array) -> None:
        """Write the policy's outputs of `rows` and advance their states."""
        policy_outputs(self._net, self._work, self._state, self._inputs(rows, obs, states), out)

    def _inputs(self, rows: Array, obs: Array, states: Array) -> Fields:
        """The fields of `NetworkInputs`: observations, or their pooled tokens."""
        read = obs if self._reader is None else self._reader.read(rows, obs)
        return rows, read, self._mean, self._scale, states


def make_actor(design: Design) -> PolicyActor:
    """The acting copy of a policy: compiled kernels where they support the design, torch otherwise."""
    if design.fused:
        return FusedActor(design)
    from slipstream.policies.torch_actor import TorchActor

    return TorchActor(design)
