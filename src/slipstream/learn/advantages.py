"""Advantages and returns: what an act was worth."""

from __future__ import annotations

import numpy as np

from slipstream.core.compile import Number, compiled_fused
from slipstream.core.contracts import Array

ZERO = np.float32(0)


@compiled_fused
def estimate_advantages(
    reward: Array, value: Array, final_value: Array, terminated: Array, truncated: Array, active: Array,
    gamma: Number, gae_lambda: Number, scale: Number, centre: Number, ratio: Array, rho: Number, c: Number,
    advantage: Array,
) -> None:  # fmt: skip
    """Write generalised advantages [T, rows], from an agent's act to its next act.

    delta = r + gamma * V' - V, A = delta + gamma * lambda * A'. After a termination V' is 0, after a truncation it
    is `final_value`; both cut the sum. Rewards of inactive steps belong to the act before them. `value` has T + 1
    rows; rewards are multiplied by `scale`, after `centre` was taken off the reward of every act.

    Where `ratio` [T, rows] tells how much likelier the acts have become, V-trace weighs with it:
    delta = min(rho, ratio) (r + gamma * V' - V), A = delta + gamma * lambda * min(c, ratio) * A'.
    """
    steps, rows = reward.shape
    gamma, gae_lambda, scale = np.float32(gamma), np.float32(gae_lambda), np.float32(scale)
    centre, rho, c = np.float32(centre), np.float32(rho), np.float32(c)
    weighed = ratio.shape[0] > 0
    following = value[steps].copy()
    carried = np.zeros(rows, np.float32)
    pending = np.zeros(rows, np.float32)
    for t in range(steps - 1, -1, -1):
        for row in range(rows):
            if terminated[t, row]:
                following[row], carried[row], pending[row] = ZERO, ZERO, ZERO
            elif truncated[t, row]:
                following[row], carried[row], pending[row] = final_value[t, row], ZERO, ZERO
            pending[row] += reward[t, row] * scale
            if active[t, row]:
                delta = pending[row] - centre * scale + gamma * following[row] - value[t, row]
                if weighed:
                    carried[row] = (
                        min(rho, ratio[t, row]) * delta + gamma * gae_lambda * min(c, ratio[t, row]) * carried[row]
                    )
                else:
                    carried[row] = delta + gamma * gae_lambda * carried[row]
                advantage[t, row] = carried[row]
                following[row] = value[t, row]
                pending[row] = ZERO
            else:
                advantage[t, row] = ZERO


@compiled_fused
def sum_returns(
    reward: Array, terminated: Array, truncated: Array, active: Array, gamma: Number, running: Array, sums: Array
) -> None:
    """Carry each row's discounted return forward and add up count, sum and squares of all of them."""
    for t in range(reward.shape[0]):
        for row in range(reward.shape[1]):
            running[row] = running[row] * gamma + reward[t, row]
            if active[t, row]:
                sums[0] += 1.0
                sums[1] += running[row]
                sums[2] += running[row] * running[row]
            if terminated[t, row] or truncated[t, row]:
                running[row] = 0.0
