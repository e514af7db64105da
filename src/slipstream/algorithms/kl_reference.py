"""The KL reference: a trained agent that PPO penalises the divergence from.

`policies.distributions.add_kl_gradient` computes the divergence and its gradient.
"""

from __future__ import annotations

import numpy as np

from slipstream.agents.specs import load_trained
from slipstream.agents.trained import TrainedAgent
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array, EnvSpec
from slipstream.errors import ConfigError
from slipstream.policies.design import Design
from slipstream.policies.distributions import apply_masks

STEP = 1.5
"""The factor by which the weight follows `ppo.reference_target`."""
LEAST = 0.01
"""The factor of the coefficient below which the reference is no longer evaluated, unless a target may raise it."""


class KLReference:
    """A trained agent that is evaluated on the learner's rollouts, with its own recurrent states."""

    def __init__(self, agent: TrainedAgent, rows: int) -> None:
        self.agent = agent
        self.coef_factor = np.ones(1, np.float64)
        """The factor of `ppo.reference_kl_coef`."""
        self._states = np.zeros((rows, agent.design.state_size), np.float32)

    def evaluate(self, rollout: Rollout, episode_start: Array) -> Array:
        """Its masked outputs [samples, outputs], followed by the log deviations of continuous parts."""
        steps, rows = rollout.reward.shape
        action, acting = self.agent.action, self.agent.acting
        width = action.outputs + action.continuous_parts
        outputs, everyone = np.zeros((steps, rows, width), np.float32), np.arange(rows)
        for t in range(steps):
            self._states[episode_start[t] > 0] = 0
            acting.outputs(everyone, rollout.obs[t], self._states, outputs[t])
        self._states[(rollout.terminated[-1] | rollout.truncated[-1]) > 0] = 0
        flat = outputs.reshape(steps * rows, width)
        if action.masked:
            apply_masks(flat, rollout.mask[:steps].reshape(steps * rows, -1), self.agent.design.head)
        return flat

    def is_active(self, target: float) -> bool:
        """Whether the coefficient is large enough to evaluate the reference."""
        return bool(target or self.coef_factor[0] > LEAST)

    def adapt(self, divergence: float, target: float, decay: float) -> None:
        """Decay the coefficient, or, with a target, raise or lower it towards that divergence."""
        if target and not 0.5 * target <= divergence <= 2.0 * target:
            self.coef_factor *= STEP if divergence > target else 1.0 / STEP
        else:
            self.coef_factor *= decay

    def arrays(self) -> dict[str, Array]:
        """The state by name (not copied)."""
        return {"anchor.pull": self.coef_factor, "anchor.states": self._states}


def make_kl_reference(text: str, spec: EnvSpec, design: Design, rows: int) -> KLReference:
    """Load the agent `run:DIR`; its observations and actions must be those of this run."""
    agent = load_trained(text)
    agent.check_fits(spec)
    if agent.design.squashed != design.squashed:
        raise ConfigError(
            f"`ppo.reference` = {text}: only one of {agent.name} and this policy squashes its actions, so their KL "
            "divergence is not defined.",
            f"set policy.squash={str(agent.design.squashed).lower()}",
        )
    return KLReference(agent, rows)
