"""A policy that acts with torch: for observations with images or tokens, which the compiled kernels cannot read."""

from __future__ import annotations

import numpy as np
import torch

from slipstream.contracts import Array
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.distributions import select_action
from slipstream.policies.linear_algebra import CHUNK
from slipstream.policies.parameter_layout import UnpaddedSlot
from slipstream.policies.torch_policy import ActorCritic, torch_threads
from slipstream.policies.user_network import check_finite
from slipstream.system.numba_compile import compiled_fused


@compiled_fused
def select_actions(
    outputs: Array,
    values: Array,
    log_std: Array,
    head: Array,
    inputs: ActInputs,
    probs: Array,
    sampled: bool,
    out: ActOutputs,
) -> None:
    """Select the actions of `inputs.rows`, given their outputs and values [len(rows)]."""
    mask, masked = inputs.mask, inputs.mask.shape[1] > 0
    for i in range(inputs.rows.size):
        row = inputs.rows[i]
        select_action(
            outputs[i],
            log_std,
            head,
            mask[row],
            masked,
            inputs.streams,
            row,
            probs,
            sampled,
            out.action[row],
            out.log_prob,
        )
        out.value[row] = values[i]


def split_blocks(rows: Array) -> list[Array]:
    """Split row numbers by the block of 64 that they belong to.

    The last bits of a matrix product depend on its number of rows. Blocks depend on the row numbers only, so a process
    that owns some whole blocks computes the same bits as a process that owns all of them.
    """
    return np.split(rows, np.flatnonzero(np.diff(rows // CHUNK)) + 1) if rows.size else []


class TorchActor:
    """Acts with torch. The module's parameters are views of `params_and_stats`."""

    def __init__(self, design: Design, threads: int | None = 1) -> None:
        self.design = design
        self.policy = ActorCritic(design)
        self.threads = threads
        """Torch threads while acting; None: unchanged."""
        self._probs = np.zeros(max(1, design.outputs), np.float32)
        self.load(np.zeros(design.params_and_stats_size, np.float32))

    def load(self, params_and_stats: Array) -> None:
        """Act with the weights and normaliser of `params_and_stats`, without a copy."""
        params, mean, scale = self.design.split_params_and_stats(params_and_stats)
        self._mean, self._scale = torch.from_numpy(mean), torch.from_numpy(scale)
        self._log_std = np.zeros(0, np.float32)
        weights, parameters = torch.from_numpy(params), dict(self.policy.named_parameters())
        for slot in self.design.weights.slots:
            assert isinstance(slot, UnpaddedSlot)
            parameters[slot.name].data = weights[slot.offset : slot.end].view(slot.shape)
            if slot.name == "log_std":
                self._log_std = params[slot.offset : slot.end]

    def act(self, inputs: ActInputs, out: ActOutputs, sampled: bool) -> None:
        """Write action, log-probability and value of the rows and advance their recurrent states."""
        outputs, values = self._forward(inputs.rows, inputs.obs, inputs.states, advance=True)
        select_actions(outputs, values, self._log_std, self.design.head, inputs, self._probs, sampled, out)

    def value(self, rows: Array, obs: Array, value: Array, states: Array) -> None:
        """Write the value of `rows`."""
        value[rows] = self._forward(rows, obs, states, advance=False)[1]

    def outputs(self, rows: Array, obs: Array, states: Array, out: Array) -> None:
        """Write the policy's outputs of `rows` (and log standard deviations) and advance their recurrent states."""
        outputs = self._forward(rows, obs, states, advance=True)[0]
        out[rows, : outputs.shape[1]] = outputs
        out[rows, outputs.shape[1] :] = self._log_std[: out.shape[1] - outputs.shape[1]]

    def _forward(self, rows: Array, obs: Array, states: Array, advance: bool) -> tuple[Array, Array]:
        """Outputs [len(rows), outputs] and values [len(rows)]; `advance` writes the new recurrent states."""
        outputs, values = np.zeros((len(rows), self.design.outputs), np.float32), np.zeros(len(rows), np.float32)
        low = 0
        with torch.inference_mode(), torch_threads(self.threads):
            for block in split_blocks(rows):
                block_obs, state = torch.from_numpy(obs[block]), torch.from_numpy(states[block])
                result = self.policy(block_obs, self._mean, self._scale, state)
                high = low + len(block)
                outputs[low:high], values[low:high] = result.outputs.numpy(), result.value.numpy()
                if advance and states.shape[1]:
                    states[block] = result.state.numpy()
                low = high
        check_finite(self.design.policy.network, outputs, values)
        return outputs, values
