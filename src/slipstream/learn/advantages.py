"""Advantages and returns: what an act was worth."""

from __future__ import annotations

import numpy as np

from slipstream.core.compile import Number, compiled_fused
from slipstream.core.contracts import Array

ZERO = np.float32(0)


@compiled_fused
def estimate_row(
    row: int, reward: Array, value: Array, final_value: Array, terminated: Array, truncated: Array, active: Array,
    knobs: Array, ratio: Array, advantage: Array,
) -> None:  # fmt: skip
    """Write the generalised advantages of one row, from an agent's act to its next act.

    delta = r + gamma * V' - V, A = delta + gamma * lambda * A'. After a termination V' is 0, after a truncation it
    is `final_value`; both cut the sum. Rewards of inactive steps belong to the act before them. `value` has T + 1
    rows; rewards are multiplied by `scale`, after `centre` was taken off the reward of every act.

    Where `ratio` [T, rows] tells how much likelier the acts have become, V-trace weighs with it:
    delta = min(rho, ratio) (r + gamma * V' - V), A = delta + gamma * lambda * min(c, ratio) * A'.

    `knobs` are gamma, lambda, scale, centre, rho and c.
    """
    gamma, fading, scale, centre, rho, c = knobs[0], knobs[0] * knobs[1], knobs[2], knobs[3], knobs[4], knobs[5]
    steps, weighed = reward.shape[0], ratio.shape[0] > 0
    following, carried, pending = value[steps, row], ZERO, ZERO
    for back in range(steps):
        t = steps - 1 - back
        if terminated[t, row]:
            following, carried, pending = ZERO, ZERO, ZERO
        elif truncated[t, row]:
            following, carried, pending = final_value[t, row], ZERO, ZERO
        pending += reward[t, row] * scale
        if active[t, row]:
            delta = pending - centre * scale + gamma * following - value[t, row]
            if weighed:
                carried = min(rho, ratio[t, row]) * delta + fading * min(c, ratio[t, row]) * carried
            else:
                carried = delta + fading * carried
            advantage[t, row] = carried
            following, pending = value[t, row], ZERO
        else:
            advantage[t, row] = ZERO


@compiled_fused
def estimate_advantages(
    reward: Array, value: Array, final_value: Array, terminated: Array, truncated: Array, active: Array, knobs: Array,
    ratio: Array, advantage: Array,
) -> None:  # fmt: skip
    """Write generalised advantages [T, rows], row by row."""
    for row in range(reward.shape[1]):
        estimate_row(row, reward, value, final_value, terminated, truncated, active, knobs, ratio, advantage)


@compiled_fused
def sum_row(
    row: int, reward: Array, terminated: Array, truncated: Array, active: Array, gamma: Number, running: Array,
    sums: Array,
) -> None:  # fmt: skip
    """Carry the discounted return of one row forward and add up count, sum and squares into its row of `sums`."""
    carried, number, total, squares = running[row], 0.0, 0.0, 0.0
    for t in range(reward.shape[0]):
        carried = carried * gamma + reward[t, row]
        if active[t, row]:
            number += 1.0
            total += carried
            squares += carried * carried
        if terminated[t, row] or truncated[t, row]:
            carried = 0.0
    running[row] = carried
    sums[row, 0], sums[row, 1], sums[row, 2] = number, total, squares


@compiled_fused
def sum_returns(
    reward: Array, terminated: Array, truncated: Array, active: Array, gamma: Number, running: Array, sums: Array
) -> None:
    """Carry each row's discounted return forward and write its count, sum and squares into `sums` [rows, 3]."""
    for row in range(reward.shape[1]):
        sum_row(row, reward, terminated, truncated, active, gamma, running, sums)
