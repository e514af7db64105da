"""What agents of other libraries share: recurrent states per row, and the choice of actions from a network's outputs.

Their networks give logits, or means and standard deviations; actions are chosen from them by our own kernels, so that
masks apply and sampled actions depend on nothing but the RNG stream of their row.
"""

from __future__ import annotations

import numpy as np

from slipstream.agents.guarded import GuardedAgent, WrongAction, short_text
from slipstream.contracts import Array, EnvSpec
from slipstream.envs.adapters.observation_spaces import obs_decoder, observation_space
from slipstream.policies.distributions import apply_mask, greedy, sample, standard_normal
from slipstream.policies.linear_algebra import ZERO
from slipstream.policies.parameter_layout import DISCRETE, HEAD_KIND
from slipstream.system.numba_compile import compiled_fused
from slipstream.system.rng import uniform


@compiled_fused
def choose_actions(
    rows: Array,
    outputs: Array,
    std: Array,
    head: Array,
    mask: Array,
    streams: Array,
    sampled: bool,
    probs: Array,
    out: Array,
) -> None:
    """Write the action of each of `rows` from its logits, or from its means and standard deviations.

    `outputs` and `std` are indexed by position in `rows`; `mask`, `streams` and `out` by row.
    """
    for i in range(rows.size):
        row = rows[i]
        if head[HEAD_KIND] == DISCRETE:
            if mask.shape[1]:
                apply_mask(outputs[i], mask[row], head)
            if sampled:
                sample(outputs[i], std[i], head, streams, row, probs, out[row])
            else:
                greedy(outputs[i], head, out[row])
        else:
            for k in range(outputs.shape[1]):
                noise = standard_normal(streams, row) if sampled else ZERO
                out[row, k] = outputs[i, k] + std[i, k] * noise


@compiled_fused
def draw_uniforms(rows: Array, streams: Array, out: Array) -> None:
    """Fill `out` [positions in rows, numbers] with uniform numbers from the RNG stream of each row."""
    for i in range(rows.size):
        for k in range(out.shape[1]):
            out[i, k] = uniform(streams, rows[i])


class ForeignAgent(GuardedAgent):
    """An agent whose network belongs to another library; its recurrent states are kept per row."""

    def __init__(self, name: str, spec: EnvSpec, sampled: bool, state_size: int = 0) -> None:
        super().__init__(name, spec, obs_decoder(observation_space(spec.obs)), state_size)
        self.sampled = sampled
        self._low, self._high = np.array(spec.action.low, np.float32), np.array(spec.action.high, np.float32)

    def select(
        self, rows: Array, head: Array, outputs: Array, std: Array, mask: Array, streams: Array, out: Array
    ) -> None:
        """Write the actions of `rows` from the network's outputs, which must be finite."""
        outputs = self.check_finite(np.array(outputs, np.float32))
        std = np.ascontiguousarray(np.broadcast_to(np.asarray(std, np.float32), outputs.shape))
        probs = np.zeros(outputs.shape[1], np.float32)
        choose_actions(rows, outputs, std, head, mask, streams, self.sampled, probs, out)

    def check_finite(self, outputs: Array) -> Array:
        """Return `outputs`; raise if one of them is not a finite number."""
        wrong = ~np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise WrongAction(f"gave {short_text(outputs[place])}: not all are finite numbers", place)
        return outputs
