"""SAC's gradient steps as one compiled kernel: draw, targets, critics, actor, temperature, target critics.

`oracle.py` says the same in torch; a parity test binds the two. Rows of a batch are shared out over threads, each
with gradients of its own, added up in a fixed order, so that the result depends on the number of threads but never on
chance. What a batch holds does not depend on it either: every row of it draws from a stream of its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from slipstream.core.compile import Number, compiled_fused, compiled_threads
from slipstream.core.contracts import Array
from slipstream.learn.critics import (
    ADAM_EPS,
    CRITIC,
    GAMMA,
    LENGTH,
    LOGP,
    POLICY,
    RATE,
    SUMS,
    TARGET_ENTROPY,
    TAU,
    TEMPERATURE,
    UPDATES,
    Critics,
    Q,
    SoftKnobs,
)
from slipstream.learn.fused import add_into, under
from slipstream.learn.replay import Feed, Ring, Sample, draw, pick_some
from slipstream.models.design import Design
from slipstream.models.heads import (
    HALF_LOG_2PI,
    LOG_STD_HIGH,
    LOG_STD_LOW,
    apply_mask,
    log_deviation,
    log_squash,
    softmax_part,
)
from slipstream.models.kernels import (
    CHUNK,
    HALF,
    ONE,
    TWO,
    ZERO,
    adam,
    backward,
    columns_of,
    deactivate,
    exponential,
    forward,
    hyperbolic_tangent,
    load_obs,
    outputs,
    product,
    squared_length,
)
from slipstream.models.layout import (
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
    OUT,
    UNITS,
    WEIGHT,
    pad,
)


class Nets(NamedTuple):
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


class Room(NamedTuple):
    """The memory that the kernels work in, thread by thread; a chunk is some rows of a thread's share."""

    actor: Array  # [threads, chunks + 1, floats]: activations on every chunk of obs, and on one of next_obs
    actor_slopes: Array  # [threads, floats]
    actor_flipped: Array  # [floats]
    actor_gradients: Array  # [threads, size]
    critic: Array  # [threads, 2, floats]: activations of the critics whose lesser value counts
    critic_slopes: Array  # [threads, floats]
    critic_flipped: Array  # [critics, floats]: transposed weights, and behind them those that read the action
    critic_gradients: Array  # [threads, critics * size]
    goal: Array  # [batch]: what the critics should say
    acted: Array  # [batch, parts]: the actor's actions in obs
    values: Array  # [threads, 2, CHUNK]
    best: Array  # [threads, CHUNK, outputs]: the value of every choice
    by_action: Array  # [threads, 2, CHUNK, columns]
    index: Array  # [threads, CHUNK] int64
    sums: Array  # [threads, SUMS]
    squares: Array  # [threads]
    state: Array
    fresh: Array
    carried: Array
    stale: Array  # [1]: whether the critics' transposed weights are out of date


@compiled_fused
def span(size: int, unit: int, part: int, parts: int) -> tuple[int, int]:
    """The part of [0, size) that falls to one of `parts`, in whole units."""
    share = (size + unit * parts - 1) // (unit * parts) * unit
    return min(part * share, size), min((part + 1) * share, size)


@compiled_fused
def flip_layers(params: Array, table: Array, flipped: Array, part: int, parts: int) -> None:
    """Transpose one part of each weight matrix, four rows at a time, for the way back."""
    for layer in range(table.shape[0]):
        row = table[layer]
        if row[FLIPPED] < 0:
            continue
        inputs, columns, width = row[INPUTS], row[COLUMNS], row[IN_COLUMNS]
        matrix = params[row[WEIGHT] : row[BIAS]].reshape(inputs, columns)
        turned = flipped[row[FLIPPED] : row[FLIPPED] + columns * width].reshape(columns, width)
        low, high = span(inputs, 4, part, parts)
        for i in range(low, high // 4 * 4, 4):
            r0, r1, r2, r3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
            for j in range(columns):
                into = turned[j]
                into[i], into[i + 1], into[i + 2], into[i + 3] = r0[j], r1[j], r2[j], r3[j]


@compiled_fused
def flip_part(nets: Nets, tables: Tables, room: Room, obs: int, part: int, parts: int) -> None:
    """One part of all transposing: hidden layers, and what the critics' first layers do with the action."""
    flip_layers(nets.actor, tables.actor, room.actor_flipped, part, parts)
    first, width = tables.critic[0], room.by_action.shape[3]
    columns = first[COLUMNS]
    for c in range(nets.critics.shape[0]):
        params, flipped = nets.critics[c], room.critic_flipped[c]
        flip_layers(params, tables.critic, flipped, part, parts)
        if part == 0 and width:
            turned = flipped[flipped.size - columns * width :].reshape(columns, width)
            for k in range(room.acted.shape[1]):
                for j in range(columns):
                    turned[j, k] = params[first[WEIGHT] + (obs + k) * columns + j]


@compiled_fused
def load_inputs(scratch: Array, table: Array, seen: Array, action: Array, first: int, width: int, count: int) -> int:
    """Put normalised observations and actions before a critic; return the lanes, those without a row cleared."""
    inputs = outputs(scratch, CHUNK, table, -1)
    for i in range(count):
        for k in range(width):
            inputs[i, k] = seen[i, k]
        for k in range(action.shape[1]):
            inputs[i, width + k] = action[first + i, k]
    lanes = (count + 3) // 4 * 4
    inputs[count:lanes] = ZERO
    return lanes


@compiled_fused
def run_actor(nets: Nets, tables: Tables, room: Room, scratch: Array, obs: Array, first: int, count: int) -> Array:
    """The actor's outputs for some rows of observations."""
    inputs = outputs(scratch, CHUNK, tables.actor, -1)
    for i in range(count):
        load_obs(obs, first + i, tables.mean, tables.scale, inputs[i])
    forward(nets.actor, tables.actor, scratch, CHUNK, (count + 3) // 4 * 4, 1, room.state, room.fresh)
    return outputs(scratch, CHUNK, tables.actor, tables.actor.shape[0] - 1)


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def dot(a: Array, b: Array) -> Number:
    """The sum of products, in whatever order is fastest on this machine."""
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
def evaluate(params: Array, table: Array, room: Room, scratch: Array, lanes: int, values: Array) -> Array:
    """Write what a critic with one output says of its inputs, and return its head.

    As a product with padded columns the head would take a tenth of the time of all.
    """
    last = table.shape[0] - 1
    forward(params, table[:last], scratch, CHUNK, lanes, 1, room.state, room.fresh)
    row = table[last]
    before, weights = columns_of(scratch, CHUNK, row[IN], row[IN_COLUMNS]), head_weights(params, table)
    for i in range(lanes):
        values[i] = params[row[BIAS]] + dot(before[i], weights)
    return weights


@compiled_fused
def squash(told: Array, head: Array, noise: Array, action: Array) -> Number:
    """Write the squashed action that the noise leads to, and return its log-probability."""
    logp = ZERO
    for k in range(head[HEAD_OUTPUTS]):
        log_dev = log_deviation(told, told, head, k)
        raw = told[k] + noise[k] * exponential(log_dev)
        action[k] = hyperbolic_tangent(raw)
        logp -= HALF * noise[k] * noise[k] + log_dev + HALF_LOG_2PI + log_squash(raw)
    return logp


@compiled_fused
def look_ahead(
    nets: Nets, tables: Tables, room: Room, sample: Sample, picked: Array, alpha: Number, thread: int, chunk: int,
    first: int, count: int,
) -> None:  # fmt: skip
    """Let the actor act in obs and next_obs, and write what the critics should say of the recorded actions."""
    head, critic, best = tables.head, room.critic[thread, 0], room.best[thread]
    after = room.actor[thread, room.actor.shape[1] - 1]
    here = run_actor(nets, tables, room, room.actor[thread, chunk], sample.obs, first, count)
    there = run_actor(nets, tables, room, after, sample.next_obs, first, count)
    seen, width, goal = outputs(after, CHUNK, tables.actor, -1), sample.obs.shape[1], room.goal[first:]
    inputs = outputs(critic, CHUNK, tables.critic, -1)
    lanes = load_inputs(critic, tables.critic, seen, room.acted, first, width, count)
    for i in range(count):
        n = first + i
        if head[HEAD_KIND] == CHOICES:
            room.sums[thread, LOGP] -= entropy(here[i], sample.mask[n], head, best[i])
            goal[i] = alpha * entropy(there[i], sample.next_mask[n], head, best[i])
        else:
            room.sums[thread, LOGP] += squash(here[i], head, sample.noise[0, n], room.acted[n])
            goal[i] = -alpha * squash(there[i], head, sample.noise[1, n], inputs[i, width:])
    for k in range(picked.size):
        if head[HEAD_KIND] == CHOICES:
            forward(nets.targets[picked[k]], tables.critic, critic, CHUNK, lanes, 1, room.state, room.fresh)
            told = outputs(critic, CHUNK, tables.critic, tables.critic.shape[0] - 1)
        else:
            evaluate(nets.targets[picked[k]], tables.critic, room, critic, lanes, room.values[thread, 0])
            told = room.values[thread, 0].reshape(CHUNK, 1)
        for i in range(count):
            for j in range(best.shape[1]):
                best[i, j] = told[i, j] if k == 0 else min(best[i, j], told[i, j])
    for i in range(count):
        value = best[i, 0]
        if head[HEAD_KIND] == CHOICES:
            softmax_part(there[i], 0, best.shape[1], there[i])
            value = dot(there[i], best[i])
        goal[i] = sample.reward[first + i] + sample.discount[first + i] * (value + goal[i])


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
    nets: Nets, tables: Tables, room: Room, sample: Sample, thread: int, chunk: int, first: int, count: int, c: int
) -> None:
    """Add the gradient of half the squared error of critic c on some rows."""
    table, scratch, slopes = tables.critic, room.critic[thread, 0], room.critic_slopes[thread]
    params, size, last = nets.critics[c], nets.critics.shape[1], tables.critic.shape[0] - 1
    gradient = room.critic_gradients[thread, c * size : (c + 1) * size]
    seen = outputs(room.actor[thread, chunk], CHUNK, tables.actor, -1)
    share, discrete = ONE / np.float32(sample.reward.size), tables.head[HEAD_KIND] == CHOICES
    told, by_told = outputs(scratch, CHUNK, table, last), outputs(slopes, CHUNK, table, last)
    if discrete:
        lanes = load_inputs(scratch, table, seen, room.acted, first, sample.obs.shape[1], count)
        forward(params, table, scratch, CHUNK, lanes, 1, room.state, room.fresh)
    else:
        lanes = load_inputs(scratch, table, seen, sample.action, first, sample.obs.shape[1], count)
        evaluate(params, table, room, scratch, lanes, room.values[thread, 0])
    by_told[:lanes] = ZERO
    for i in range(count):
        choice = np.int64(sample.action[first + i, 0]) if discrete else 0
        value = told[i, choice] if discrete else room.values[thread, 0, i]
        error = value - room.goal[first + i]
        by_told[i, choice] = share * error
        room.sums[thread, CRITIC] += HALF * error * error
        room.sums[thread, Q] += value
    layers = table
    if not discrete:
        leave_head(params, table, scratch, slopes, by_told, lanes, gradient)
        layers = table[:last]
    backward(params, layers, room.critic_flipped[c], scratch, slopes, gradient, CHUNK, lanes, 1, room.state, room.fresh,
             room.carried)  # fmt: skip


@compiled_fused
def leave_head(
    params: Array, table: Array, scratch: Array, slopes: Array, by_told: Array, lanes: int, gradient: Array
) -> None:
    """The way back through a head with one output."""
    row, weights = table[table.shape[0] - 1], head_weights(params, table)
    before = columns_of(scratch, CHUNK, row[IN], row[IN_COLUMNS])
    below = columns_of(slopes, CHUNK, row[IN], row[IN_COLUMNS])
    by_weights = np.zeros(weights.size, np.float32)
    for i in range(lanes):
        slope, felt, passed = by_told[i, 0], before[i], below[i]
        gradient[row[BIAS]] += slope
        for k in range(weights.size):
            by_weights[k] += slope * felt[k]
            passed[k] = slope * weights[k]
    for k in range(row[INPUTS]):
        gradient[row[WEIGHT] + k * row[COLUMNS]] += by_weights[k]


@compiled_fused
def add_action_slopes(
    params: Array, table: Array, flipped: Array, scratch: Array, slopes: Array, index: Array, weight: Number, compact: Array,
    by_action: Array, obs: int,
) -> None:  # fmt: skip
    """Add to `by_action` what a critic's value, counted with `weight`, gains by the actions of the rows in `index`.

    No gradient of weights is needed here, and only the chosen rows are: they stand side by side on the way back.
    """
    last, weights, count = table.shape[0] - 1, head_weights(params, table), index.size
    lanes, parts = (count + 3) // 4 * 4, by_action.shape[1]
    below = columns_of(slopes, CHUNK, table[last, IN], table[last, IN_COLUMNS])
    for k in range(lanes):
        for j in range(weights.size):
            below[k, j] = weight * weights[j] if k < count else ZERO
    for layer in range(last - 1, -1, -1):
        row = table[layer]
        values, slope = outputs(scratch, CHUNK, table, layer), outputs(slopes, CHUNK, table, layer)
        for k in range(count):
            deactivate(slope[k], values[index[k]], row[ACTIVATION])
        if row[NORM] >= 0:
            denormalise_rows(params, row, slope, scratch, index)
        columns = row[COLUMNS]
        if layer > 0:
            width = row[IN_COLUMNS]
            below = columns_of(slopes, CHUNK, row[IN], width)
            below[:lanes] = ZERO
            product(slope, flipped[row[FLIPPED] : row[FLIPPED] + columns * width].reshape(columns, width), below, lanes,
                    columns)  # fmt: skip
        else:
            compact[:lanes] = ZERO
            product(slope, flipped[flipped.size - columns * parts :].reshape(columns, parts), compact, lanes, columns)
    for k in range(count):
        for j in range(parts):
            by_action[index[k], j] += compact[k, j] if last else below[k, obs + j]


@compiled_fused
def denormalise_rows(params: Array, row: Array, slope: Array, scratch: Array, index: Array) -> None:
    """The way back through a layer norm for the rows in `index`, without the gradient of its own weights."""
    columns, units, gain = row[COLUMNS], row[UNITS], row[NORM]
    kept = columns_of(scratch, CHUNK, row[EXTRA], columns)
    inverse = columns_of(scratch, CHUNK, row[EXTRA] + columns, 1)
    share = ONE / np.float32(units)
    for k in range(index.size):
        i, mean, along = index[k], ZERO, ZERO
        for j in range(units):
            slope[k, j] *= params[gain + j]
            mean += slope[k, j]
            along += slope[k, j] * kept[i, j]
        mean, along = mean * share, along * share
        for j in range(units):
            slope[k, j] = inverse[i, 0] * (slope[k, j] - mean - kept[i, j] * along)


@compiled_fused
def judge_actions(nets: Nets, tables: Tables, room: Room, thread: int, chunk: int, first: int, count: int, obs: int) -> None:
    """Write the slopes of the actor's loss by its actions: those of the lesser of two values, or of the mean of more."""
    critics, share = nets.critics.shape[0], ONE / np.float32(room.goal.size)
    seen = outputs(room.actor[thread, chunk], CHUNK, tables.actor, -1)
    table, slopes, index = tables.critic, room.critic_slopes[thread], room.index[thread]
    compact, by_action = room.by_action[thread, 0], room.by_action[thread, 1]
    by_action[:count] = ZERO
    for c in range(critics):
        slot = c if critics <= 2 else 0
        scratch, values = room.critic[thread, slot], room.values[thread, slot]
        lanes = load_inputs(scratch, table, seen, room.acted, first, obs, count)
        evaluate(nets.critics[c], table, room, scratch, lanes, values)
        if critics > 2:
            for i in range(count):
                index[i] = i
                room.sums[thread, POLICY] -= values[i] / critics
            add_action_slopes(nets.critics[c], table, room.critic_flipped[c], scratch, slopes, index[:count],
                              -share / np.float32(critics), compact, by_action, obs)  # fmt: skip
    if critics > 2:
        return
    for c in range(critics):
        own, other, chosen = room.values[thread, c], room.values[thread, critics - 1 - c], 0
        for i in range(count):
            if own[i] < other[i] or (own[i] == other[i] and c == 0):
                index[chosen] = i
                chosen += 1
                room.sums[thread, POLICY] -= own[i]
        add_action_slopes(nets.critics[c], table, room.critic_flipped[c], room.critic[thread, c], slopes, index[:chosen],
                          -share, compact, by_action, obs)  # fmt: skip


@compiled_fused
def judge_choices(nets: Nets, tables: Tables, room: Room, thread: int, chunk: int, first: int, count: int, obs: int) -> None:
    """Write what each choice is worth: the lesser of two values, or the mean of more."""
    critics, best, scratch = nets.critics.shape[0], room.best[thread], room.critic[thread, 0]
    seen = outputs(room.actor[thread, chunk], CHUNK, tables.actor, -1)
    told = outputs(scratch, CHUNK, tables.critic, tables.critic.shape[0] - 1)
    lanes = load_inputs(scratch, tables.critic, seen, room.acted, first, obs, count)
    for c in range(critics):
        forward(nets.critics[c], tables.critic, scratch, CHUNK, lanes, 1, room.state, room.fresh)
        for i in range(count):
            for j in range(best.shape[1]):
                value = told[i, j]
                if c > 0:
                    value = min(best[i, j], value) if critics <= 2 else best[i, j] + value
                best[i, j] = value / np.float32(critics) if critics > 2 and c == critics - 1 else value


@compiled_fused
def add_actor_gradient(
    nets: Nets, tables: Tables, room: Room, sample: Sample, alpha: Number, thread: int, chunk: int, first: int, count: int
) -> None:
    """Add the gradient of alpha log p - Q on some rows: of one action each, or over all choices."""
    head, scratch, slopes, obs = tables.head, room.actor[thread, chunk], room.actor_slopes[thread], sample.obs.shape[1]
    last, share = tables.actor.shape[0] - 1, ONE / np.float32(sample.reward.size)
    told, by_told = outputs(scratch, CHUNK, tables.actor, last), outputs(slopes, CHUNK, tables.actor, last)
    lanes = (count + 3) // 4 * 4
    by_told[:lanes] = ZERO
    if head[HEAD_KIND] == CHOICES:
        judge_choices(nets, tables, room, thread, chunk, first, count, obs)
        for i in range(count):
            room.sums[thread, POLICY] -= weigh_choices(told[i], room.best[thread, i], alpha, share, by_told[i])
    else:
        judge_actions(nets, tables, room, thread, chunk, first, count, obs)
        parts = head[HEAD_OUTPUTS]
        for i in range(count):
            for k in range(parts):
                a, log_dev = room.acted[first + i, k], told[i, parts + k]
                by_raw = room.by_action[thread, 1, i, k] * (ONE - a * a) + TWO * share * alpha * a
                by_told[i, k] = by_raw
                if LOG_STD_LOW <= log_dev <= LOG_STD_HIGH:
                    by_told[i, parts + k] = by_raw * sample.noise[0, first + i, k] * exponential(log_dev) - share * alpha
    backward(nets.actor, tables.actor, room.actor_flipped, scratch, slopes, room.actor_gradients[thread], CHUNK, lanes, 1,
             room.state, room.fresh, room.carried)  # fmt: skip


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


@compiled_fused
def gather(gradients: Array, room: Room, part: int) -> None:
    """Add up one part of all threads' gradients, and its squares."""
    low, high = span(gradients.shape[1], 16, part, gradients.shape[0])
    for thread in range(1, gradients.shape[0]):
        add_into(gradients[0, low:high], gradients[thread, low:high])
    room.squares[part] = squared_length(gradients[0, low:high])


@compiled_fused
def move_critics(nets: Nets, room: Room, count: int, rate: Number, tau: Number, part: int) -> None:
    """One part of Adam's step of the critics, and of their targets' after them."""
    low, high = span(nets.critics.size, 16, part, room.squares.size)
    params, targets = nets.critics.reshape(-1)[low:high], nets.targets.reshape(-1)[low:high]
    first, second = nets.critics_first.reshape(-1)[low:high], nets.critics_second.reshape(-1)[low:high]
    adam(params, room.critic_gradients[0, low:high], first, second, count, rate, ADAM_EPS, 1.0, 0.0)
    tau = np.float32(tau)
    kept = ONE - tau
    for i in range(params.size):
        targets[i] = kept * targets[i] + tau * params[i]


@compiled_fused
def move_actor(nets: Nets, room: Room, count: int, rate: Number, part: int) -> None:
    """One part of Adam's step of the actor."""
    low, high = span(nets.actor.size, 16, part, room.squares.size)
    adam(nets.actor[low:high], room.actor_gradients[0, low:high], nets.actor_first[low:high], nets.actor_second[low:high],
         count, rate, ADAM_EPS, 1.0, 0.0)  # fmt: skip


@compiled_fused
def criticise(
    nets: Nets, tables: Tables, room: Room, sample: Sample, ring: Ring, demos: Ring, counts: Array, streams: Array,
    picked: Array, gamma: Number, alpha: Number, thread: int,
) -> None:  # fmt: skip
    """A thread's share of a batch, from drawing it to the critics' gradient."""
    low, high = span(sample.reward.size, 4, thread, room.squares.size)
    room.sums[thread] = 0.0
    room.critic_gradients[thread] = ZERO
    room.actor_gradients[thread] = ZERO
    draw(ring, counts[0], demos, counts[1], counts[2], counts[3], gamma, streams, low, high, sample)
    for first in range(low, high, CHUNK):
        look_ahead(nets, tables, room, sample, picked, alpha, thread, (first - low) // CHUNK, first, min(CHUNK, high - first))
    for c in range(nets.critics.shape[0]):
        for first in range(low, high, CHUNK):
            add_critic_gradient(
                nets, tables, room, sample, thread, (first - low) // CHUNK, first, min(CHUNK, high - first), c
            )  # fmt: skip


@compiled_fused
def work(
    phase: int, nets: Nets, tables: Tables, room: Room, sample: Sample, ring: Ring, demos: Ring, counts: Array,
    streams: Array, picked: Array, counters: Array, knobs: Array, alpha: Number, thread: int,
) -> None:  # fmt: skip
    """A thread's share of one phase of a gradient step."""
    threads, batch, obs = room.squares.size, sample.reward.size, sample.obs.shape[1]
    if phase == 0:
        criticise(nets, tables, room, sample, ring, demos, counts, streams, picked, knobs[GAMMA], alpha, thread)
    elif phase == 1:
        gather(room.critic_gradients, room, thread)
    elif phase == 2:
        move_critics(nets, room, counters[0], knobs[RATE], knobs[TAU], thread)
    elif phase == 3:
        flip_part(nets, tables, room, obs, thread, threads)
    elif phase == 4:
        low, high = span(batch, 4, thread, threads)
        for first in range(low, high, CHUNK):
            add_actor_gradient(
                nets, tables, room, sample, alpha, thread, (first - low) // CHUNK, first, min(CHUNK, high - first)
            )  # fmt: skip
    elif phase == 5:
        gather(room.actor_gradients, room, thread)
    else:
        move_actor(nets, room, counters[3], knobs[RATE], thread)


@compiled_fused
def settle(phase: int, room: Room, counters: Array) -> bool:
    """Count a step that can be taken; false for one whose loss or gradient is not finite."""
    if phase != 1 and phase != 5:
        return True
    if not math.isfinite(room.squares.sum() + room.sums.sum()):
        counters[1] += 1
        counters[2] += 1
        return False
    counters[0 if phase == 1 else 3] += 1
    return True


@compiled_fused
def conclude(nets: Nets, room: Room, counters: Array, knobs: Array, alpha: Number, batch: int, totals: Array) -> None:
    """Move the temperature, and add up what is to be told."""
    sums = room.sums.sum(axis=0) / batch
    slope = np.array([-(sums[LOGP] + knobs[TARGET_ENTROPY])], np.float32)
    if knobs[TEMPERATURE] <= 0.0:
        adam(nets.temperature[:1], slope, nets.temperature[1:2], nets.temperature[2:], counters[3], knobs[RATE], ADAM_EPS,
             1.0, 0.0)  # fmt: skip
    sums[POLICY] += alpha * sums[LOGP]
    sums[Q] /= nets.critics.shape[0]
    sums[LENGTH] = math.sqrt(room.squares.sum())
    sums[UPDATES] = 1.0
    totals += sums
    counters[1] = 0


def take_steps(
    nets: Nets, tables: Tables, room: Room, sample: Sample, ring: Ring, demos: Ring, counts: Array, streams: Array,
    picked: Array, counters: Array, knobs: Array, totals: Array, updates: int,
) -> None:  # fmt: skip
    """Take gradient steps; `counts` are the steps in the buffer and in the demos, the demos in a batch, and n-step's n.

    There is one parallel loop for all phases: two in a row would be fused by numba, which cannot see that they depend.
    """
    threads, batch = room.squares.size, sample.reward.size
    if room.stale[0]:
        flip_part(nets, tables, room, sample.obs.shape[1], 0, 1)
        room.stale[0] = 0
    for _ in range(updates):
        fixed, fine = knobs[TEMPERATURE], True
        alpha = np.float32(fixed if fixed > 0.0 else math.exp(nets.temperature[0]))
        pick_some(streams, batch, picked, nets.critics.shape[0])
        for phase in range(7):
            for thread in numba.prange(threads):
                work(phase, nets, tables, room, sample, ring, demos, counts, streams, picked, counters, knobs, alpha, thread)
            fine = settle(phase, room, counters)
            if not fine:
                break
        if fine:
            conclude(nets, room, counters, knobs, alpha, batch, totals)
        elif counters[1] >= 3:
            return


steps_alone = compiled_fused(take_steps)
steps_together = compiled_threads(take_steps)


class FusedSoft:
    """Weights and Adam state in flat arrays, and the memory that the kernel works in."""

    def __init__(self, design: Design, critics: Critics, pack: Array, batch: int, threads: int, seed: int) -> None:
        self.design, self.critics, self.threads = design, critics, threads
        self.params, mean, scale = design.split_pack(pack)
        first = critics.first(seed)
        self.nets = Nets(
            self.params, *np.zeros((2, self.params.size), np.float32), first, *np.zeros((2, *first.shape), np.float32),
            first.copy(), np.zeros(3, np.float32),
        )  # fmt: skip
        self.counters = np.zeros(4, np.int64)
        self._tables = Tables(design.stack.table, critics.stack.table, design.head, mean, scale)
        self._room = make_room(design, critics, batch, threads)

    def run(self, feed: Feed, knobs: SoftKnobs, updates: int, totals: Array) -> None:
        """Take gradient steps and add up `totals`; three failed ones in a row end it."""
        run = steps_alone
        if self.threads > 1:
            limit: int = getattr(numba.config, "NUMBA_NUM_THREADS")  # noqa: B009 (set at import, unknown to mypy)
            numba.set_num_threads(min(self.threads, limit))
            run = steps_together
        counts = np.array([feed.replay.filled, feed.demos.filled, feed.demo_count, knobs.n_step])
        run(
            self.nets, self._tables, self._room, feed.sample, feed.replay.ring, feed.demos.ring, counts, feed.streams,
            feed.picked, self.counters, knobs.vector(), totals, updates,
        )  # fmt: skip

    def temperature(self) -> float:
        """The weight of the entropy as it is learned."""
        return math.exp(self.nets.temperature[0])

    def gradient(self) -> Array:
        """The actor's flat gradient of the last step."""
        last: Array = self._room.actor_gradients[0]
        return last

    def activity(self) -> dict[str, Array]:
        """The mean size of each unit's output on the last batch, by hidden layer of the actor."""
        stack, room, batch = self.design.stack, self._room, len(self._room.goal)
        sizes = {}
        for number, layer in enumerate(stack.layers[:-1]):
            column, total = stack.table[number, OUT], np.zeros(layer.outputs)
            for thread in range(self.threads):
                low, high = span(batch, 4, thread, self.threads)
                for first in range(low, high, CHUNK):
                    values = columns_of(room.actor[thread, (first - low) // CHUNK], CHUNK, column, layer.columns)
                    total += np.abs(values[: min(CHUNK, high - first), : layer.outputs]).sum(axis=0)
            sizes[layer.name] = total / batch
        return sizes

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""
        nets, actor, critics = self.nets, self.design.weights.named, self.critics.named
        kinds = {"weight": nets.actor, "first": nets.actor_first, "second": nets.actor_second}
        arrays = {f"{kind}/{name}": array for kind, flat in kinds.items() for name, array in actor(flat).items()}
        kinds = {"weight": nets.critics, "first": nets.critics_first, "second": nets.critics_second, "target": nets.targets}
        arrays |= {f"{kind}/{name}": array for kind, flat in kinds.items() for name, array in critics(flat).items()}
        return arrays | {"temperature": nets.temperature.copy(), "counters": self.counters.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        nets = self.nets
        for kind, flat in (("weight/", nets.actor), ("first/", nets.actor_first), ("second/", nets.actor_second)):
            self.design.weights.flatten(under(arrays, kind), flat)
        for kind, flat in (("weight/", nets.critics), ("first/", nets.critics_first), ("second/", nets.critics_second),
                           ("target/", nets.targets)):  # fmt: skip
            self.critics.flatten(under(arrays, kind), flat)
        nets.temperature[:], self.counters[:] = arrays["temperature"], arrays["counters"]
        self._room.stale[0] = 1


def make_room(design: Design, critics: Critics, batch: int, threads: int) -> Room:
    """The memory for batches of this size."""
    actor, critic, parts = design.stack, critics.stack, design.action.parts
    share = -(-batch // (4 * threads)) * 4
    chunks, single = -(-share // CHUNK), critics.outputs == 1 and design.action.kind == "continuous"
    width = pad(parts, 16) if single else 0
    behind = critic.layers[0].columns * width

    def floats(*shape: int) -> Array:
        return np.zeros(shape, np.float32)

    return Room(
        actor=floats(threads, chunks + 1, CHUNK * actor.scratch_columns),
        actor_slopes=floats(threads, CHUNK * actor.scratch_columns),
        actor_flipped=floats(max(1, actor.flipped_size)),
        actor_gradients=floats(threads, actor.size),
        critic=floats(threads, 2, CHUNK * critic.scratch_columns),
        critic_slopes=floats(threads, CHUNK * critic.scratch_columns),
        critic_flipped=floats(critics.count, max(1, critic.flipped_size + behind)),
        critic_gradients=floats(threads, critics.count * critic.size),
        goal=floats(batch),
        acted=floats(batch, parts if single else 0),
        values=floats(threads, 2, CHUNK),
        best=floats(threads, CHUNK, critics.outputs),
        by_action=floats(threads, 2, CHUNK, width),
        index=np.zeros((threads, CHUNK), np.int64),
        sums=np.zeros((threads, SUMS), np.float64),
        squares=np.zeros(threads, np.float64),
        state=floats(CHUNK, 0),
        fresh=np.zeros((1, CHUNK), np.uint8),
        carried=floats(2, 0),
        stale=np.ones(1, np.uint8),
    )
