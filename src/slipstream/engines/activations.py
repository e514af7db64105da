"""Looking at a batch with the network of this moment, without learning."""

from __future__ import annotations

import numpy as np

from slipstream.contracts import Array
from slipstream.policies.distributions import apply_mask, log_prob_and_entropy
from slipstream.policies.fused_network import outputs, run_block, sample_index
from slipstream.policies.parameter_layout import HEAD_LOG_STD, HEAD_VALUE, OUT, UNITS
from slipstream.system.numba_compile import compiled_fused


@compiled_fused
def evaluate_batch(
    params: Array, table: Array, head: Array, layers: tuple[int, int], scratch: Array, probs: Array,
    state: Array | None, episode_start: Array, index: Array, steps: int, rows: int, burn_in: int, obs: Array, mean: Array,
    scale: Array, mask: Array, action: Array, begins: Array, states: Array, log_prob: Array, value: Array, activity: Array,
) -> None:  # fmt: skip
    """Write log-probability and value of every sample, and add up the size of every unit's output."""
    block = episode_start.size
    policy, values = outputs(scratch, block, table, layers[0]), outputs(scratch, block, table, layers[1])
    log_std = params[head[HEAD_LOG_STD] :]
    measured = np.zeros(2, np.float32)
    for first in range(0, index.size, episode_start.shape[1]):
        chosen = index[first : first + episode_start.shape[1]]
        lanes = (chosen.size + 3) // 4 * 4
        run_block(
            params, table, scratch, block, state, episode_start, chosen, lanes, steps, rows, burn_in, obs, mean, scale, begins,
            states,
        )  # fmt: skip
        for step in range(steps):
            for lane in range(chosen.size):
                i = step * lanes + lane
                n = sample_index(chosen[lane], step, steps, rows)
                if mask.shape[1]:
                    apply_mask(policy[i], mask[n], head)
                log_prob_and_entropy(policy[i], log_std, head, action[n], probs, measured)
                log_prob[n], value[n] = measured[0], values[i, head[HEAD_VALUE]]
                for layer in range(table.shape[0]):
                    units, column = outputs(scratch, block, table, layer), table[layer, OUT]
                    for j in range(table[layer, UNITS]):
                        activity[column + j] += abs(units[i, j])
