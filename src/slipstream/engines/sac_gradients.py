"""The gradients of SAC's losses as compiled kernels: what the critics should say, and what the actor should do.

Everything here works on one chunk of a thread's share of a batch. Critics of actions have one output, critics of
choices one for each; the former's heads are read without padding, which would take a tenth of all the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream.algorithms.replay_buffer import Sample
from slipstream.algorithms.sac_critics import CRITIC, LOGP, POLICY, Q
from slipstream.contracts import Array
from slipstream.policies.distributions import (
    HALF_LOG_2PI,
    LOG_STD_HIGH,
    LOG_STD_LOW,
    apply_mask,
    log_deviation,
    log_squash,
    softmax_part,
)
from slipstream.policies.fused_network import backward, forward, load_obs, outputs
from slipstream.policies.layer_norm import layer_norm_backward_row
from slipstream.policies.linear_algebra import (
    CHUNK,
    HALF,
    ONE,
    TWO,
    ZERO,
    Activations,
    Gradients,
    activation_gradient,
    exponential,
    hyperbolic_tangent,
    product,
    scratch_columns,
)
from slipstream.policies.parameter_layout import (
    ACTIVATION,
    BIAS,
    CHOICES,
    COLUMNS,
    EXTRA,
    FLIPPED,
    HEAD_KIND,
    HEAD_OUTPUTS,
    IN,
    IN_COLUMNS,
    INPUTS,
    NORM,
    UNITS,
    WEIGHT,
)
from slipstream.system.numba_compile import Number, compiled_fused, compiled_sum


class Networks(NamedTuple):
    """All that training changes."""

    actor: Array  # [size]
    actor_first: Array
    actor_second: Array
    critics: Array  # [critics, size]
    critics_first: Array
    critics_second: Array
    targets: Array  # [critics, size]
    temperature: Array  # [3]: its logarithm, and Adam's two moments of that


class Tables(NamedTuple):
    """What the kernels need to know of the networks and their inputs."""

    actor: Array
    critic: Array
    head: Array
    mean: Array
    scale: Array


class Workspace(NamedTuple):
    """The memory that the kernels work in, thread by thread; a chunk is some rows of a thread's share."""

    actor: Array  # [threads, chunks + 1, floats]: activations on every chunk of obs, and on one of next_obs
    actor_grads: Array  # [threads, floats]
    actor_flipped: Array  # [floats]
    actor_gradients: Array  # [threads, size]
    critic: Array  # [threads, 2, floats]: activations of the critics whose lesser value counts
    critic_grads: Array  # [threads, floats]
    critic_flipped: Array  # [critics, floats]: transposed weights, and behind them those that read the action
    critic_gradients: Array  # [threads, critics * size]
    value_target: Array  # [batch]: what the critics should say
    acted: Array  # [batch, parts]: the actor's actions in obs
    values: Array  # [threads, 2, CHUNK]
    best: Array  # [threads, CHUNK, outputs]: the value of every choice
    by_action: Array  # [threads, 2, CHUNK, columns]
    chosen: Array  # [threads, CHUNK] int64: some rows of a chunk
    sums: Array  # [threads, SUMS]
    squares: Array  # [threads]
    episode_start: Array
    carried: Array
    stale: Array  # [1]: whether the critics' transposed weights are out of date


@compiled_fused
def span(size: int, unit: int, part: int, parts: int) -> tuple[int, int]:
    """The part of [0, size) that falls to one of `parts`, in whole units."""
    share = (size + unit * parts - 1) // (unit * parts) * unit
    return min(part * share, size), min((part + 1) * share, size)


@compiled_fused
def rows_of(room: Workspace, thread: int, chunk: int) -> tuple[int, int, int]:
    """The first row of a thread's chunk, how many there are, and how many lanes that is in fours."""
    low, high = span(room.value_target.size, 4, thread, room.squares.size)
    first = min(low + chunk * CHUNK, high)
    count = min(CHUNK, high - first)
    return first, count, (count + 3) // 4 * 4


@compiled_fused
def load_inputs(tables: Tables, scratch: Array, seen: Array, width: int, action: Array, count: int, lanes: int) -> None:
    """Put normalised observations and actions (if it reads any) before a critic; lanes without a row are cleared."""
    inputs = outputs(scratch, CHUNK, tables.critic, -1)
    for i in range(count):
        for k in range(width):
            inputs[i, k] = seen[i, k]
        for k in range(action.shape[1]):
            inputs[i, width + k] = action[i, k]
    inputs[count:lanes] = ZERO


@compiled_fused
def run_actor(
    nets: Networks, tables: Tables, room: Workspace, scratch: Array, obs: Array, first: int, count: int
) -> Array:
    """The actor's outputs for some rows of observations."""
    inputs = outputs(scratch, CHUNK, tables.actor, -1)
    for i in range(count):
        load_obs(obs, first + i, tables.mean, tables.scale, inputs[i])
    forward(nets.actor, tables.actor, Activations(scratch, CHUNK, room.episode_start), None, (count + 3) // 4 * 4, 1)
    return outputs(scratch, CHUNK, tables.actor, tables.actor.shape[0] - 1)


@compiled_sum
def dot(a: Array, b: Array) -> Number:
    """The sum of products."""
    total = np.float32(0)
    for k in range(b.size):
        total += a[k] * b[k]
    return total


@compiled_fused
def head_weights(params: Array, table: Array) -> Array:
    """The weights of a head with one output, side by side."""
    row = table[table.shape[0] - 1]
    weights = np.zeros(row[IN_COLUMNS], np.float32)
    for k in range(row[INPUTS]):
        weights[k] = params[row[WEIGHT] + k * row[COLUMNS]]
    return weights


@compiled_fused
def evaluate(params: Array, table: Array, room: Workspace, scratch: Array, lanes: int, values: Array) -> None:
    """Write what a critic with one output says of its inputs."""
    last = table.shape[0] - 1
    forward(params, table[:last], Activations(scratch, CHUNK, room.episode_start), None, lanes, 1)
    row = table[last]
    before, weights = scratch_columns(scratch, CHUNK, row[IN], row[IN_COLUMNS]), head_weights(params, table)
    for i in range(lanes):
        values[i] = params[row[BIAS]] + dot(before[i], weights)


@compiled_fused
def squash(told: Array, head: Array, noise: Array, action: Array) -> Number:
    """Write the squashed action that the noise leads to, and return its log-probability."""
    log_prob = ZERO
    for k in range(head[HEAD_OUTPUTS]):
        log_dev = log_deviation(told, told, head, k)
        raw = told[k] + noise[k] * exponential(log_dev)
        action[k] = hyperbolic_tangent(raw)
        log_prob -= HALF * noise[k] * noise[k] + log_dev + HALF_LOG_2PI + log_squash(raw)
    return log_prob


@compiled_fused
def look_ahead(
    nets: Networks,
    tables: Tables,
    room: Workspace,
    sample: Sample,
    picked: Array,
    alpha: Number,
    thread: int,
    chunk: int,
) -> None:
    """Let the actor act in obs and next_obs, and write what the critics should say of the recorded actions.

    goal = r + discount * (least of the picked targets' values - alpha log p), which for choices is a mean over them.
    """
    first, count, lanes = rows_of(room, thread, chunk)
    head, critic, values, best = tables.head, room.critic[thread, 0], room.values[thread, 0], room.best[thread]
    after, width = room.actor[thread, room.actor.shape[1] - 1], sample.obs.shape[1]
    choices = head[HEAD_KIND] == CHOICES
    here = run_actor(nets, tables, room, room.actor[thread, chunk], sample.obs, first, count)
    there = run_actor(nets, tables, room, after, sample.next_obs, first, count)
    inputs, value_target = outputs(critic, CHUNK, tables.critic, -1), room.value_target[first:]
    load_inputs(tables, critic, outputs(after, CHUNK, tables.actor, -1), width, room.acted[first:], count, lanes)
    for i in range(count):
        n = first + i
        if choices:
            room.sums[thread, LOGP] -= entropy(here[i], sample.mask[n], head, best[i])
            value_target[i] = alpha * entropy(there[i], sample.next_mask[n], head, best[i])
        else:
            room.sums[thread, LOGP] += squash(here[i], head, sample.noise[0, n], room.acted[n])
            value_target[i] = -alpha * squash(there[i], head, sample.noise[1, n], inputs[i, width:])
    told = outputs(critic, CHUNK, tables.critic, tables.critic.shape[0] - 1)
    for k in range(picked.size):
        params = nets.targets[picked[k]]
        if choices:
            forward(params, tables.critic, Activations(critic, CHUNK, room.episode_start), None, lanes, 1)
        else:
            evaluate(params, tables.critic, room, critic, lanes, values)
        for i in range(count):
            for j in range(best.shape[1]):
                value = told[i, j] if choices else values[i]
                best[i, j] = value if k == 0 else min(best[i, j], value)
    for i in range(count):
        value = best[i, 0]
        if choices:
            softmax_part(there[i], 0, best.shape[1], there[i])
            value = dot(there[i], best[i])
        value_target[i] = sample.reward[first + i] + sample.discount[first + i] * (value + value_target[i])


@compiled_fused
def entropy(logits: Array, mask: Array, head: Array, probs: Array) -> Number:
    """The entropy of a choice; options that the mask rules out lose their logit."""
    if mask.size:
        apply_mask(logits, mask, head)
    normaliser, total = softmax_part(logits, 0, probs.size, probs), ZERO
    for j in range(probs.size):
        if probs[j] > ZERO:
            total += probs[j] * (normaliser - logits[j])
    return total


@compiled_fused
def add_critic_gradient(
    nets: Networks, tables: Tables, room: Workspace, sample: Sample, thread: int, chunk: int, critic: int
) -> None:
    """Add the gradient of half the squared error of one critic."""
    first, count, lanes = rows_of(room, thread, chunk)
    table, scratch, grads = tables.critic, room.critic[thread, 0], room.critic_grads[thread]
    params, size, last, layers = nets.critics[critic], nets.critics.shape[1], table.shape[0] - 1, table
    gradient = room.critic_gradients[thread, critic * size : (critic + 1) * size]
    seen = outputs(room.actor[thread, chunk], CHUNK, tables.actor, -1)
    width, values = sample.obs.shape[1], room.values[thread, 0]
    told, by_told = outputs(scratch, CHUNK, table, last), outputs(grads, CHUNK, table, last)
    share, choices = ONE / np.float32(room.value_target.size), tables.head[HEAD_KIND] == CHOICES
    if choices:
        load_inputs(tables, scratch, seen, width, room.acted[first:], count, lanes)
        forward(params, table, Activations(scratch, CHUNK, room.episode_start), None, lanes, 1)
    else:
        load_inputs(tables, scratch, seen, width, sample.action[first:], count, lanes)
        evaluate(params, table, room, scratch, lanes, values)
    by_told[:lanes] = ZERO
    for i in range(count):
        choice = np.int64(sample.action[first + i, 0]) if choices else 0
        value = told[i, choice] if choices else values[i]
        error = value - room.value_target[first + i]
        by_told[i, choice] = share * error
        room.sums[thread, CRITIC] += HALF * error * error
        room.sums[thread, Q] += value
    if not choices:
        leave_head(params, table, scratch, grads, by_told, lanes, gradient)
        layers = table[:last]
    work = Activations(scratch, CHUNK, room.episode_start)
    backward(
        params, layers, work, None, Gradients(grads, gradient, room.critic_flipped[critic], room.carried), lanes, 1
    )


@compiled_fused
def leave_head(
    params: Array, table: Array, scratch: Array, grads: Array, by_told: Array, lanes: int, gradient: Array
) -> None:
    """The way back through a head with one output."""
    row, weights = table[table.shape[0] - 1], head_weights(params, table)
    before = scratch_columns(scratch, CHUNK, row[IN], row[IN_COLUMNS])
    below = scratch_columns(grads, CHUNK, row[IN], row[IN_COLUMNS])
    by_weights = np.zeros(weights.size, np.float32)
    for i in range(lanes):
        grad, felt, passed = by_told[i, 0], before[i], below[i]
        gradient[row[BIAS]] += grad
        for k in range(weights.size):
            by_weights[k] += grad * felt[k]
            passed[k] = grad * weights[k]
    for k in range(row[INPUTS]):
        gradient[row[WEIGHT] + k * row[COLUMNS]] += by_weights[k]


@compiled_fused
def add_action_slopes(
    nets: Networks,
    tables: Tables,
    room: Workspace,
    width: int,
    thread: int,
    critic: int,
    slot: int,
    count: int,
    weight: Number,
) -> None:
    """Add the slopes of a critic's value, counted with `weight`, by the actions of the first `count` rows in the index.

    No gradient of weights is needed here, and only the chosen rows are: they stand side by side on the way back.
    """
    params, table, flipped = nets.critics[critic], tables.critic, room.critic_flipped[critic]
    scratch, grads, index = room.critic[thread, slot], room.critic_grads[thread], room.chosen[thread]
    compact, by_action = room.by_action[thread, 0], room.by_action[thread, 1]
    last, weights = table.shape[0] - 1, head_weights(params, table)
    lanes, parts = (count + 3) // 4 * 4, by_action.shape[1]
    below = scratch_columns(grads, CHUNK, table[last, IN], table[last, IN_COLUMNS])
    for k in range(lanes):
        for j in range(weights.size):
            below[k, j] = weight * weights[j] if k < count else ZERO
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
            matrix = flipped[row[FLIPPED] : row[FLIPPED] + columns * row[IN_COLUMNS]].reshape(columns, row[IN_COLUMNS])
            below = scratch_columns(grads, CHUNK, row[IN], row[IN_COLUMNS])
            below[:lanes] = ZERO
            product(grad, matrix, below, lanes, columns)
        else:
            compact[:lanes] = ZERO
            product(grad, flipped[flipped.size - columns * parts :].reshape(columns, parts), compact, lanes, columns)
    for k in range(count):
        for j in range(room.acted.shape[1]):
            by_action[index[k], j] += compact[k, j] if last else below[k, width + j]


@compiled_fused
def choose_lesser(own: Array, other: Array, count: int, first: bool, index: Array) -> int:
    """Write the rows in which one value is less than the other (or, for the first, as great); return how many."""
    chosen = 0
    for i in range(count):
        if own[i] < other[i] or (first and own[i] == other[i]):
            index[chosen] = i
            chosen += 1
    return chosen


@compiled_fused
def judge_actions(nets: Networks, tables: Tables, room: Workspace, width: int, thread: int, chunk: int) -> None:
    """Write the slopes of the actor's loss by its actions: those of the lesser of two values, or of the mean of more.

    SAC's two critics hold each other down; of the many that RLPD trains, the mean is what is followed.
    """
    first, count, lanes = rows_of(room, thread, chunk)
    critics, share = nets.critics.shape[0], ONE / np.float32(room.value_target.size)
    seen = outputs(room.actor[thread, chunk], CHUNK, tables.actor, -1)
    index, by_action, mean = room.chosen[thread], room.by_action[thread, 1], critics > 2
    by_action[:count] = ZERO
    for c in range(critics):
        slot = 0 if mean else c
        load_inputs(tables, room.critic[thread, slot], seen, width, room.acted[first:], count, lanes)
        evaluate(nets.critics[c], tables.critic, room, room.critic[thread, slot], lanes, room.values[thread, slot])
        if mean:
            for i in range(count):
                index[i] = i
                room.sums[thread, POLICY] -= room.values[thread, 0, i] / critics
            add_action_slopes(nets, tables, room, width, thread, c, slot, count, -share / np.float32(critics))
    for c in range(0 if mean else critics):
        chosen = choose_lesser(room.values[thread, c], room.values[thread, critics - 1 - c], count, c == 0, index)
        for k in range(chosen):
            room.sums[thread, POLICY] -= room.values[thread, c, index[k]]
        add_action_slopes(nets, tables, room, width, thread, c, c, chosen, -share)


@compiled_fused
def judge_choices(nets: Networks, tables: Tables, room: Workspace, width: int, thread: int, chunk: int) -> None:
    """Write what each choice is worth: the lesser of two values, or the mean of more."""
    first, count, lanes = rows_of(room, thread, chunk)
    critics, best, scratch = nets.critics.shape[0], room.best[thread], room.critic[thread, 0]
    seen = outputs(room.actor[thread, chunk], CHUNK, tables.actor, -1)
    told = outputs(scratch, CHUNK, tables.critic, tables.critic.shape[0] - 1)
    load_inputs(tables, scratch, seen, width, room.acted[first:], count, lanes)
    for c in range(critics):
        forward(nets.critics[c], tables.critic, Activations(scratch, CHUNK, room.episode_start), None, lanes, 1)
        for i in range(count):
            for j in range(best.shape[1]):
                if critics > 2:
                    best[i, j] = told[i, j] / np.float32(critics) + (best[i, j] if c else ZERO)
                else:
                    best[i, j] = min(best[i, j], told[i, j]) if c else told[i, j]


@compiled_fused
def add_actor_gradient(
    nets: Networks, tables: Tables, room: Workspace, sample: Sample, alpha: Number, thread: int, chunk: int
) -> None:
    """Add the gradient of alpha log p - Q: of one action in each row, or over all choices."""
    first, count, lanes = rows_of(room, thread, chunk)
    scratch, grads, width = room.actor[thread, chunk], room.actor_grads[thread], sample.obs.shape[1]
    last, share, parts = tables.actor.shape[0] - 1, ONE / np.float32(room.value_target.size), room.acted.shape[1]
    told, by_told = outputs(scratch, CHUNK, tables.actor, last), outputs(grads, CHUNK, tables.actor, last)
    by_told[:lanes] = ZERO
    if tables.head[HEAD_KIND] == CHOICES:
        judge_choices(nets, tables, room, width, thread, chunk)
        for i in range(count):
            room.sums[thread, POLICY] -= weigh_choices(told[i], room.best[thread, i], alpha, share, by_told[i])
    else:
        judge_actions(nets, tables, room, width, thread, chunk)
        for i in range(count):
            for k in range(parts):
                a, log_dev = room.acted[first + i, k], told[i, parts + k]
                by_raw = room.by_action[thread, 1, i, k] * (ONE - a * a) + TWO * share * alpha * a
                by_told[i, k] = by_raw
                if LOG_STD_LOW <= log_dev <= LOG_STD_HIGH:
                    by_told[i, parts + k] = (
                        by_raw * sample.noise[0, first + i, k] * exponential(log_dev) - share * alpha
                    )
    work = Activations(scratch, CHUNK, room.episode_start)
    by_params = Gradients(grads, room.actor_gradients[thread], room.actor_flipped, room.carried)
    backward(nets.actor, tables.actor, work, None, by_params, lanes, 1)


@compiled_fused
def weigh_choices(logits: Array, worth: Array, alpha: Number, share: Number, by_logits: Array) -> Number:
    """Write the slopes of sum p (alpha log p - Q) by the logits, and return sum p Q; `worth` is Q and is used up."""
    probs = np.zeros(worth.size, np.float32)
    normaliser, mean, value = softmax_part(logits, 0, worth.size, probs), ZERO, ZERO
    for j in range(worth.size):
        if probs[j] > ZERO:
            value += probs[j] * worth[j]
            worth[j] = alpha * (logits[j] - normaliser) - worth[j]
            mean += probs[j] * worth[j]
    for j in range(worth.size):
        if probs[j] > ZERO:
            by_logits[j] = share * probs[j] * (worth[j] - mean)
    return value
