"""Gradients of SAC's critic and actor losses as compiled kernels.

Every kernel works on one chunk of a thread's share of the minibatch. Critics of continuous actions have one output,
critics of discrete actions one per action. The head of a critic with one output is computed without padding, which
would take a tenth of the total time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream.algorithms.replay_buffer import ReplayBatch
from slipstream.algorithms.sac_critics import CRITIC_LOSS, LOG_PROB, POLICY_LOSS, Q_VALUE
from slipstream.contracts import Array
from slipstream.policies.distributions import (
    categorical_entropy,
    rsample_gradient,
    rsample_squashed,
    soft_value_gradient,
    softmax_part,
)
from slipstream.policies.fused_network import backward, forward, layer_norm_backward_row, load_obs, outputs
from slipstream.policies.linear_algebra import (
    CHUNK,
    HALF,
    ONE,
    ZERO,
    Activations,
    Gradients,
    activation_gradient,
    product,
    round_up_to_4,
    scratch_columns,
)
from slipstream.policies.parameter_layout import (
    ACTIVATION,
    BIAS,
    COLUMNS,
    DISCRETE,
    EXTRA,
    HEAD_KIND,
    IN,
    IN_COLUMNS,
    INPUTS,
    NORM,
    TRANSPOSED,
    UNITS,
    WEIGHT,
)
from slipstream.system.numba_compile import Number, compiled_fused, compiled_sum


class Networks(NamedTuple):
    """Everything that training changes. It is flat because numba's parallel loops do not take nested tuples."""

    actor: Array  # [size]
    actor_first: Array  # [size]: Adam's first moment
    actor_second: Array  # [size]: Adam's second moment
    critics: Array  # [critics, size]
    critics_first: Array
    critics_second: Array
    targets: Array  # [critics, size]
    temperature: Array  # [3]: log temperature and its two Adam moments


class Tables(NamedTuple):
    """The layouts of the networks, and the normaliser of their observations."""

    actor: Array  # [layers, columns]: see `parameter_layout`
    critic: Array
    head: Array
    mean: Array  # [obs]
    scale: Array


class Workspace(NamedTuple):
    """Scratch memory of the kernels, per thread; a chunk is up to CHUNK rows of a thread's share of the minibatch."""

    actor: Array  # [threads, chunks + 1, floats]: the actor's activations on each chunk of obs, and one of next_obs
    actor_grads: Array  # [threads, floats]: gradients of the activations
    actor_transposed: Array  # [floats]: transposed weights
    actor_gradients: Array  # [threads, size]: gradients of the weights
    critic: Array  # [threads, 2, floats]: activations of the two critics whose minimum is taken
    critic_grads: Array  # [threads, floats]
    critic_transposed: Array  # [critics, floats]: transposed weights, then those of the first layer's action inputs
    critic_gradients: Array  # [threads, critics * size]
    value_target: Array  # [batch]
    actions: Array  # [batch, parts]: the actor's actions in obs
    values: Array  # [threads, 2, CHUNK]: Q-values
    action_values: Array  # [threads, CHUNK, outputs]: Q-values of all discrete actions
    action_grads: Array  # [threads, 2, CHUNK, columns]: gradients by action, packed rows and all rows
    selected: Array  # [threads, CHUNK] int64: indices of some rows of a chunk
    sums: Array  # [threads, SUMS]: statistics
    squared_norm: Array  # [threads]: of the gradient
    episode_start: Array
    carried: Array
    stale: Array  # [1]: whether the critics' transposed weights are out of date


@compiled_fused
def thread_range(size: int, unit: int, part: int, parts: int) -> tuple[int, int]:
    """The range of [0, size) that belongs to one of `parts`, in multiples of `unit`."""
    share = (size + unit * parts - 1) // (unit * parts) * unit
    return min(part * share, size), min((part + 1) * share, size)


@compiled_fused
def chunk_rows(work: Workspace, thread: int, chunk: int) -> tuple[int, int, int]:
    """The first row of a thread's chunk, its number of rows, and that number rounded up to a multiple of 4."""
    low, high = thread_range(work.value_target.size, 4, thread, work.squared_norm.size)
    first = min(low + chunk * CHUNK, high)
    count = min(CHUNK, high - first)
    return first, count, round_up_to_4(count)


@compiled_fused
def load_inputs(
    tables: Tables, scratch: Array, normalised: Array, width: int, action: Array, count: int, lanes: int
) -> None:
    """Write normalised observations and actions [rows, parts or 0] to a critic's inputs; zero the other lanes."""
    inputs = outputs(scratch, CHUNK, tables.critic, -1)
    for i in range(count):
        for k in range(width):
            inputs[i, k] = normalised[i, k]
        for k in range(action.shape[1]):
            inputs[i, width + k] = action[i, k]
    inputs[count:lanes] = ZERO


@compiled_fused
def run_actor(
    nets: Networks, tables: Tables, work: Workspace, scratch: Array, obs: Array, first: int, count: int
) -> Array:
    """Run the actor on some rows of observations; return its outputs [CHUNK, columns]."""
    inputs = outputs(scratch, CHUNK, tables.actor, -1)
    for i in range(count):
        load_obs(obs, first + i, tables.mean, tables.scale, inputs[i])
    forward(nets.actor, tables.actor, Activations(scratch, CHUNK, work.episode_start), None, round_up_to_4(count), 1)
    return outputs(scratch, CHUNK, tables.actor, tables.actor.shape[0] - 1)


@compiled_sum
def dot(a: Array, b: Array) -> Number:
    """The dot product over the length of `b`."""
    total = np.float32(0)
    for k in range(b.size):
        total += a[k] * b[k]
    return total


@compiled_fused
def head_weights(params: Array, table: Array) -> Array:
    """The weights of a head with one output, contiguous."""
    row = table[table.shape[0] - 1]
    weights = np.zeros(row[IN_COLUMNS], np.float32)
    for k in range(row[INPUTS]):
        weights[k] = params[row[WEIGHT] + k * row[COLUMNS]]
    return weights


@compiled_fused
def critic_values(params: Array, table: Array, work: Workspace, scratch: Array, lanes: int, values: Array) -> None:
    """Run a critic with one output on the inputs in `scratch` and write its Q-values."""
    last = table.shape[0] - 1
    forward(params, table[:last], Activations(scratch, CHUNK, work.episode_start), None, lanes, 1)
    row = table[last]
    before, weights = scratch_columns(scratch, CHUNK, row[IN], row[IN_COLUMNS]), head_weights(params, table)
    for i in range(lanes):
        values[i] = params[row[BIAS]] + dot(before[i], weights)


@compiled_fused
def compute_value_targets(
    nets: Networks, tables: Tables, work: Workspace, batch: ReplayBatch, alpha: Number, thread: int, chunk: int
) -> None:
    """Run the actor on obs and next_obs, and write the value targets of the recorded actions.

    target = reward + discount * (minimum of the target critics - alpha log p), where discrete actions take the
    expectation over all actions instead of one sample.
    """
    first, count, lanes = chunk_rows(work, thread, chunk)
    head, critic, values, action_values = (
        tables.head,
        work.critic[thread, 0],
        work.values[thread, 0],
        work.action_values[thread],
    )
    after, width = work.actor[thread, work.actor.shape[1] - 1], batch.obs.shape[1]
    discrete = head[HEAD_KIND] == DISCRETE
    outputs_now = run_actor(nets, tables, work, work.actor[thread, chunk], batch.obs, first, count)
    outputs_next = run_actor(nets, tables, work, after, batch.next_obs, first, count)
    inputs, value_target = outputs(critic, CHUNK, tables.critic, -1), work.value_target[first:]
    load_inputs(tables, critic, outputs(after, CHUNK, tables.actor, -1), width, work.actions[first:], count, lanes)
    for i in range(count):
        n = first + i
        if discrete:
            work.sums[thread, LOG_PROB] -= categorical_entropy(outputs_now[i], batch.mask[n], head, action_values[i])
            value_target[i] = alpha * categorical_entropy(outputs_next[i], batch.next_mask[n], head, action_values[i])
        else:
            work.sums[thread, LOG_PROB] += rsample_squashed(outputs_now[i], head, batch.noise[0, n], work.actions[n])
            value_target[i] = -alpha * rsample_squashed(outputs_next[i], head, batch.noise[1, n], inputs[i, width:])
    predicted = outputs(critic, CHUNK, tables.critic, tables.critic.shape[0] - 1)
    for k in range(batch.target_critics.size):
        params = nets.targets[batch.target_critics[k]]
        if discrete:
            forward(params, tables.critic, Activations(critic, CHUNK, work.episode_start), None, lanes, 1)
        else:
            critic_values(params, tables.critic, work, critic, lanes, values)
        for i in range(count):
            for j in range(action_values.shape[1]):
                value = predicted[i, j] if discrete else values[i]
                action_values[i, j] = value if k == 0 else min(action_values[i, j], value)
    for i in range(count):
        value = action_values[i, 0]
        if discrete:
            softmax_part(outputs_next[i], 0, action_values.shape[1], outputs_next[i])
            value = dot(outputs_next[i], action_values[i])
        value_target[i] = batch.reward[first + i] + batch.discount[first + i] * (value + value_target[i])


@compiled_fused
def add_critic_gradient(
    nets: Networks, tables: Tables, work: Workspace, batch: ReplayBatch, thread: int, chunk: int, critic: int
) -> None:
    """Add the gradient of half the squared error between one critic and the value targets."""
    first, count, lanes = chunk_rows(work, thread, chunk)
    table, scratch, grads = tables.critic, work.critic[thread, 0], work.critic_grads[thread]
    params, size, last, layers = nets.critics[critic], nets.critics.shape[1], table.shape[0] - 1, table
    gradient = work.critic_gradients[thread, critic * size : (critic + 1) * size]
    normalised = outputs(work.actor[thread, chunk], CHUNK, tables.actor, -1)
    width, values = batch.obs.shape[1], work.values[thread, 0]
    predicted, output_grads = outputs(scratch, CHUNK, table, last), outputs(grads, CHUNK, table, last)
    share, discrete = ONE / np.float32(work.value_target.size), tables.head[HEAD_KIND] == DISCRETE
    if discrete:
        load_inputs(tables, scratch, normalised, width, work.actions[first:], count, lanes)
        forward(params, table, Activations(scratch, CHUNK, work.episode_start), None, lanes, 1)
    else:
        load_inputs(tables, scratch, normalised, width, batch.action[first:], count, lanes)
        critic_values(params, table, work, scratch, lanes, values)
    output_grads[:lanes] = ZERO
    for i in range(count):
        action = np.int64(batch.action[first + i, 0]) if discrete else 0
        value = predicted[i, action] if discrete else values[i]
        error = value - work.value_target[first + i]
        output_grads[i, action] = share * error
        work.sums[thread, CRITIC_LOSS] += HALF * error * error
        work.sums[thread, Q_VALUE] += value
    if not discrete:
        head_backward(params, table, scratch, grads, output_grads, lanes, gradient)
        layers = table[:last]
    activations = Activations(scratch, CHUNK, work.episode_start)
    by_params = Gradients(grads, gradient, work.critic_transposed[critic], work.carried)
    backward(
        params,
        layers,
        activations,
        None,
        by_params,
        lanes,
        1,
    )


@compiled_fused
def head_backward(
    params: Array, table: Array, scratch: Array, grads: Array, output_grads: Array, lanes: int, gradient: Array
) -> None:
    """The backward pass through a head with one output: add its gradient and write that of its inputs."""
    row, weights = table[table.shape[0] - 1], head_weights(params, table)
    before = scratch_columns(scratch, CHUNK, row[IN], row[IN_COLUMNS])
    input_grads = scratch_columns(grads, CHUNK, row[IN], row[IN_COLUMNS])
    weight_grads = np.zeros(weights.size, np.float32)
    for i in range(lanes):
        grad, activation, input_grad = output_grads[i, 0], before[i], input_grads[i]
        gradient[row[BIAS]] += grad
        for k in range(weights.size):
            weight_grads[k] += grad * activation[k]
            input_grad[k] = grad * weights[k]
    for k in range(row[INPUTS]):
        gradient[row[WEIGHT] + k * row[COLUMNS]] += weight_grads[k]


@compiled_fused
def add_action_gradient(
    nets: Networks,
    tables: Tables,
    work: Workspace,
    width: int,
    thread: int,
    critic: int,
    slot: int,
    count: int,
    weight: Number,
) -> None:
    """Add `weight` * dQ/d(action) of a critic for the first `count` rows of `work.selected`.

    Gradients of weights are not needed, and the backward pass runs on the selected rows only, packed together.
    """
    params, table, transposed = nets.critics[critic], tables.critic, work.critic_transposed[critic]
    scratch, grads, index = work.critic[thread, slot], work.critic_grads[thread], work.selected[thread]
    packed, action_grads = work.action_grads[thread, 0], work.action_grads[thread, 1]
    last, weights = table.shape[0] - 1, head_weights(params, table)
    lanes, parts = round_up_to_4(count), action_grads.shape[1]
    input_grads = scratch_columns(grads, CHUNK, table[last, IN], table[last, IN_COLUMNS])
    for k in range(lanes):
        for j in range(weights.size):
            input_grads[k, j] = weight * weights[j] if k < count else ZERO
    for layer in range(last - 1, -1, -1):
        row = table[layer]
        values, grad = outputs(scratch, CHUNK, table, layer), outputs(grads, CHUNK, table, layer)
        for k in range(count):
            activation_gradient(grad[k], values[index[k]], row[ACTIVATION])
        if row[NORM] >= 0:
            kept = scratch_columns(scratch, CHUNK, row[EXTRA], row[COLUMNS])
            inverse = scratch_columns(scratch, CHUNK, row[EXTRA] + row[COLUMNS], 1)
            for k in range(count):
                layer_norm_backward_row(grad[k], params[row[NORM] :], kept[index[k]], inverse[index[k], 0], row[UNITS])
        columns = row[COLUMNS]
        if layer > 0:
            matrix = transposed[row[TRANSPOSED] : row[TRANSPOSED] + columns * row[IN_COLUMNS]].reshape(
                columns, row[IN_COLUMNS]
            )
            input_grads = scratch_columns(grads, CHUNK, row[IN], row[IN_COLUMNS])
            input_grads[:lanes] = ZERO
            product(grad, matrix, input_grads, lanes, columns)
        else:
            packed[:lanes] = ZERO
            product(
                grad, transposed[transposed.size - columns * parts :].reshape(columns, parts), packed, lanes, columns
            )
    for k in range(count):
        for j in range(work.actions.shape[1]):
            action_grads[index[k], j] += packed[k, j] if last else input_grads[k, width + j]


@compiled_fused
def rows_with_lower_q(own: Array, other: Array, count: int, first: bool, index: Array) -> int:
    """Write the rows in which `own` is less than `other` (or equal, if `first`); return how many there are."""
    selected = 0
    for i in range(count):
        if own[i] < other[i] or (first and own[i] == other[i]):
            index[selected] = i
            selected += 1
    return selected


@compiled_fused
def compute_action_gradient(
    nets: Networks, tables: Tables, work: Workspace, width: int, thread: int, chunk: int
) -> None:
    """Write d(actor loss)/d(action), where Q is the minimum of up to two critics (SAC) or the mean of more (RLPD)."""
    first, count, lanes = chunk_rows(work, thread, chunk)
    critics, share = nets.critics.shape[0], ONE / np.float32(work.value_target.size)
    normalised = outputs(work.actor[thread, chunk], CHUNK, tables.actor, -1)
    index, action_grads, mean = work.selected[thread], work.action_grads[thread, 1], critics > 2
    action_grads[:count] = ZERO
    for c in range(critics):
        slot = 0 if mean else c
        load_inputs(tables, work.critic[thread, slot], normalised, width, work.actions[first:], count, lanes)
        critic_values(nets.critics[c], tables.critic, work, work.critic[thread, slot], lanes, work.values[thread, slot])
        if mean:
            for i in range(count):
                index[i] = i
                work.sums[thread, POLICY_LOSS] -= work.values[thread, 0, i] / critics
            add_action_gradient(nets, tables, work, width, thread, c, slot, count, -share / np.float32(critics))
    for c in range(0 if mean else critics):
        selected = rows_with_lower_q(work.values[thread, c], work.values[thread, critics - 1 - c], count, c == 0, index)
        for k in range(selected):
            work.sums[thread, POLICY_LOSS] -= work.values[thread, c, index[k]]
        add_action_gradient(nets, tables, work, width, thread, c, c, selected, -share)


@compiled_fused
def compute_action_values(nets: Networks, tables: Tables, work: Workspace, width: int, thread: int, chunk: int) -> None:
    """Write the Q-value of every discrete action: the minimum of up to two critics, or the mean of more."""
    first, count, lanes = chunk_rows(work, thread, chunk)
    critics, action_values, scratch = nets.critics.shape[0], work.action_values[thread], work.critic[thread, 0]
    normalised = outputs(work.actor[thread, chunk], CHUNK, tables.actor, -1)
    predicted = outputs(scratch, CHUNK, tables.critic, tables.critic.shape[0] - 1)
    load_inputs(tables, scratch, normalised, width, work.actions[first:], count, lanes)
    for c in range(critics):
        forward(nets.critics[c], tables.critic, Activations(scratch, CHUNK, work.episode_start), None, lanes, 1)
        for i in range(count):
            for j in range(action_values.shape[1]):
                if critics > 2:
                    action_values[i, j] = predicted[i, j] / np.float32(critics) + (action_values[i, j] if c else ZERO)
                else:
                    action_values[i, j] = min(action_values[i, j], predicted[i, j]) if c else predicted[i, j]


@compiled_fused
def add_actor_gradient(
    nets: Networks, tables: Tables, work: Workspace, batch: ReplayBatch, alpha: Number, thread: int, chunk: int
) -> None:
    """Add the gradient of alpha log p - Q: of one action per row, or in expectation over all discrete actions."""
    first, count, lanes = chunk_rows(work, thread, chunk)
    scratch, grads, width = work.actor[thread, chunk], work.actor_grads[thread], batch.obs.shape[1]
    last, share = tables.actor.shape[0] - 1, ONE / np.float32(work.value_target.size)
    predicted, output_grads = outputs(scratch, CHUNK, tables.actor, last), outputs(grads, CHUNK, tables.actor, last)
    output_grads[:lanes] = ZERO
    if tables.head[HEAD_KIND] == DISCRETE:
        compute_action_values(nets, tables, work, width, thread, chunk)
        for i in range(count):
            q = work.action_values[thread, i]
            work.sums[thread, POLICY_LOSS] -= soft_value_gradient(predicted[i], q, alpha, share, output_grads[i])
    else:
        compute_action_gradient(nets, tables, work, width, thread, chunk)
        for i in range(count):
            n, by_action = first + i, work.action_grads[thread, 1, i]
            rsample_gradient(
                predicted[i], work.actions[n], batch.noise[0, n], by_action, share * alpha, output_grads[i]
            )
    activations = Activations(scratch, CHUNK, work.episode_start)
    by_params = Gradients(grads, work.actor_gradients[thread], work.actor_transposed, work.carried)
    backward(nets.actor, tables.actor, activations, None, by_params, lanes, 1)
