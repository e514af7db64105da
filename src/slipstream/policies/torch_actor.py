"""A policy that acts by torch: for images and tokens, which the compiled kernels cannot read."""

from __future__ import annotations

import numpy as np
import torch

from slipstream.contracts import Array
from slipstream.policies.design import Design
from slipstream.policies.distributions import apply_mask, greedy, sample
from slipstream.policies.linear_algebra import CHUNK
from slipstream.policies.parameter_layout import PlainSlot
from slipstream.policies.torch_policy import ActorCritic, torch_threads
from slipstream.system.numba_compile import compiled_fused


@compiled_fused
def choose_rows(
    outputs: Array, values: Array, log_std: Array, head: Array, rows: Array, mask: Array, streams: Array, probs: Array,
    sampled: bool, action: Array, log_prob: Array, value: Array,
) -> None:  # fmt: skip
    """Choose actions by the outputs [rows, outputs] of the rows named in `rows`, as `acting.act_rows` does."""
    for i in range(rows.size):
        row = rows[i]
        if mask.shape[1]:
            apply_mask(outputs[i], mask[row], head)
        if sampled:
            log_prob[row] = sample(outputs[i], log_std, head, streams, row, probs, action[row])
        else:
            greedy(outputs[i], head, action[row])
        value[row] = values[i]


def blocks_of(rows: Array) -> list[Array]:
    """Split rows by the block of 64 in which they stand.

    A matrix product's last bits depend on how many rows it has. Blocks go by the rows' numbers, so that a process with
    some of the blocks, all of them whole, gets the same bits as one with all of them.
    """
    return np.split(rows, np.flatnonzero(np.diff(rows // CHUNK)) + 1) if rows.size else []


class TorchActor:
    """Acts by torch, with the weights where they stand in the pack."""

    def __init__(self, design: Design, threads: int | None = 1) -> None:
        self.design = design
        self.policy = ActorCritic(design)
        self.threads = threads
        """Threads that torch may use for acting; None: as many as it does for the rest."""
        self._probs = np.zeros(max(1, design.outputs), np.float32)
        self.load(np.zeros(design.params_and_stats_size, np.float32))

    def load(self, params_and_stats: Array) -> None:
        """Act with the weights and normaliser of `params_and_stats`, which is used where it stands."""
        params, mean, scale = self.design.split_params_and_stats(params_and_stats)
        self._mean, self._scale = torch.from_numpy(mean), torch.from_numpy(scale)
        self._log_std = np.zeros(0, np.float32)
        weights, parameters = torch.from_numpy(params), dict(self.policy.named_parameters())
        for slot in self.design.weights.slots:
            assert isinstance(slot, PlainSlot)
            parameters[slot.name].data = weights[slot.offset : slot.end].view(slot.shape)
            if slot.name == "log_std":
                self._log_std = params[slot.offset : slot.end]

    def act(
        self, rows: Array, obs: Array, mask: Array, streams: Array, sampled: bool, action: Array, log_prob: Array,
        value: Array, states: Array,
    ) -> None:  # fmt: skip
        """Write action, log-probability and value of `rows` and move their states on."""
        outputs, values = self._run(rows, obs, states, moved=True)
        choose_rows(
            outputs, values, self._log_std, self.design.head, rows, mask, streams, self._probs, sampled, action, log_prob,
            value,
        )  # fmt: skip

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Write the value of `rows`."""
        value[rows] = self._run(rows, obs, states, moved=False)[1]

    def tell(self, rows: Array, obs: Array, states: Array, told: Array) -> None:
        """Write the policy's outputs of `rows`."""
        outputs = self._run(rows, obs, states, moved=True)[0]
        told[rows, : outputs.shape[1]] = outputs
        told[rows, outputs.shape[1] :] = self._log_std[: told.shape[1] - outputs.shape[1]]

    def _run(self, rows: Array, obs: Array, states: Array, moved: bool) -> tuple[Array, Array]:
        """Outputs and values of the rows, one under the other; `moved`: their states move on."""
        outputs, values = np.zeros((len(rows), self.design.outputs), np.float32), np.zeros(len(rows), np.float32)
        low = 0
        with torch.inference_mode(), torch_threads(self.threads):
            for block in blocks_of(rows):
                seen, state = torch.from_numpy(obs[block]), torch.from_numpy(states[block])
                told = self.policy(seen, self._mean, self._scale, state)
                high = low + len(block)
                outputs[low:high], values[low:high] = told.outputs.numpy(), told.value.numpy()
                if moved and states.shape[1]:
                    states[block] = told.state.numpy()
                low = high
        return outputs, values
