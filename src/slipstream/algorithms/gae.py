"""Advantages and returns: what an act was worth."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.system.numba_compile import compiled_fused

ZERO = np.float32(0)


@compiled_fused
def compute_gae_row(
    row: int, reward: Array, value: Array, final_value: Array, terminated: Array, truncated: Array, active: Array,
    coefficients: Array, ratio: Array, advantage: Array,
) -> None:  # fmt: skip
    """Write the generalised advantages of one row, from an agent's act to its next act.

    delta = r + gamma * V' - V, A = delta + gamma * lambda * A'. After a termination V' is 0, after a truncation it
    is `final_value`; both cut the sum. Rewards of inactive steps belong to the act before them. `value` has T + 1
    rows; rewards are multiplied by `scale`, after `centre` was taken off the reward of every act.

    Where `ratio` [T, rows] tells how much likelier the acts have become, V-trace weighs with it:
    delta = min(rho, ratio) (r + gamma * V' - V), A = delta + gamma * lambda * min(c, ratio) * A'.

    `coefficients` are gamma, lambda, scale, centre, rho and c.
    """
    gamma, fading, scale, centre, rho, c = (
        coefficients[0],
        coefficients[0] * coefficients[1],
        coefficients[2],
        coefficients[3],
        coefficients[4],
        coefficients[5],
    )
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
def compute_gae(
    reward: Array, value: Array, final_value: Array, terminated: Array, truncated: Array, active: Array, coefficients: Array,
    ratio: Array, advantage: Array,
) -> None:  # fmt: skip
    """Write generalised advantages [T, rows], row by row."""
    for row in range(reward.shape[1]):
        compute_gae_row(row, reward, value, final_value, terminated, truncated, active, coefficients, ratio, advantage)
