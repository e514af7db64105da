"""Generalised advantage estimation (GAE), and V-trace's correction of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream.contracts import Array
from slipstream.system.numba_compile import Number, compiled_fused

ZERO = np.float32(0)


class Transitions(NamedTuple):
    """The part of a rollout that advantages are computed from; `value` and `active` have T + 1 steps."""

    reward: Array  # [T, rows]
    value: Array  # [T + 1, rows]
    final_value: Array  # [T, rows]
    terminated: Array  # [T, rows]
    truncated: Array  # [T, rows]
    active: Array  # [T + 1, rows]


class GAECoefficients(NamedTuple):
    """What advantages depend on besides the transitions, as float32."""

    gamma: Number
    gae_lambda: Number
    reward_scale: Number
    reward_centre: Number
    vtrace_rho: Number
    vtrace_c: Number


@compiled_fused
def read_gae_coefficients(vector: Array) -> GAECoefficients:
    """The coefficients from an array [6] in device memory, which a captured graph reads at every replay."""
    return GAECoefficients(vector[0], vector[1], vector[2], vector[3], vector[4], vector[5])


@compiled_fused
def compute_gae_row(
    row: int, transitions: Transitions, coefficients: GAECoefficients, ratio: Array | None, advantage: Array
) -> None:
    """Write the generalised advantages of one row, from an agent's action to its next action.

    delta = r + gamma * V' - V, A = delta + gamma * lambda * A'. After a termination V' is 0, after a truncation it
    is `final_value`; both cut the sum. Rewards of inactive steps belong to the action before them. Rewards are
    multiplied by `reward_scale`, after `reward_centre` is subtracted from the reward of every action.

    With `ratio` [T, rows], the probability of each action under the current policy over that under the policy that
    acted, V-trace weights the terms:
    delta = min(rho, ratio) (r + gamma * V' - V), A = delta + gamma * lambda * min(c, ratio) * A'.
    """
    reward, value, active = transitions.reward, transitions.value, transitions.active
    gamma, scale, centre = coefficients.gamma, coefficients.reward_scale, coefficients.reward_centre
    decay = gamma * coefficients.gae_lambda
    steps = reward.shape[0]
    next_value, carried, pending = value[steps, row], ZERO, ZERO
    for back in range(steps):
        t = steps - 1 - back
        if transitions.terminated[t, row]:
            next_value, carried, pending = ZERO, ZERO, ZERO
        elif transitions.truncated[t, row]:
            next_value, carried, pending = transitions.final_value[t, row], ZERO, ZERO
        pending += reward[t, row] * scale
        if active[t, row]:
            delta = pending - centre * scale + gamma * next_value - value[t, row]
            if ratio is not None:
                rho, c = min(coefficients.vtrace_rho, ratio[t, row]), min(coefficients.vtrace_c, ratio[t, row])
                carried = rho * delta + decay * c * carried
            else:
                carried = delta + decay * carried
            advantage[t, row] = carried
            next_value, pending = value[t, row], ZERO
        else:
            advantage[t, row] = ZERO


@compiled_fused
def compute_gae(transitions: Transitions, coefficients: GAECoefficients, ratio: Array | None, advantage: Array) -> None:
    """Write generalised advantages [T, rows], row by row."""
    for row in range(transitions.reward.shape[1]):
        compute_gae_row(row, transitions, coefficients, ratio, advantage)


@compiled_fused
def compute_gae_row_on_device(row: int, transitions: Transitions, coefficients: Array, advantage: Array) -> None:
    """`compute_gae_row` with coefficients in device memory."""
    compute_gae_row(row, transitions, read_gae_coefficients(coefficients), None, advantage)
