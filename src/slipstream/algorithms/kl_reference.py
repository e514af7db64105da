"""The agent that a policy is held near while it learns: what it would do in every state of a rollout."""

from __future__ import annotations

import numpy as np

from slipstream.agents.specs import load_trained
from slipstream.agents.trained import TrainedAgent
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array, EnvSpec
from slipstream.errors import ConfigError
from slipstream.policies.design import Design
from slipstream.policies.kl import apply_masks

STEP = 1.5
"""How fast the weight follows a target."""
LEAST = 0.01
"""The share of the weight below which nobody is asked any more, unless a target may raise it again."""


class KLReference:
    """A trained agent that watches the learner's rollouts, with a memory of its own."""

    def __init__(self, agent: TrainedAgent, rows: int) -> None:
        self.agent = agent
        self.pull = np.ones(1, np.float64)
        """What is left of the weight that holds the policy near."""
        self._states = np.zeros((rows, agent.design.state_size), np.float32)

    def tell(self, rollout: Rollout, episode_start: Array) -> Array:
        """Its outputs [samples, outputs], ruled-out options marked, and behind means their log deviations."""
        steps, rows = rollout.reward.shape
        action, acting = self.agent.action, self.agent.acting
        width = action.outputs * (2 if action.kind == "continuous" else 1)
        told, everyone = np.zeros((steps, rows, width), np.float32), np.arange(rows)
        for t in range(steps):
            self._states[episode_start[t] > 0] = 0
            acting.outputs(everyone, rollout.obs[t], self._states, told[t])
        self._states[(rollout.terminated[-1] | rollout.truncated[-1]) > 0] = 0
        flat = told.reshape(steps * rows, width)
        if action.masked:
            apply_masks(flat, rollout.mask[:steps].reshape(steps * rows, -1), self.agent.design.head)
        return flat

    def holds(self, target: float) -> bool:
        """Whether the policy is still held near."""
        return bool(target or self.pull[0] > LEAST)

    def move(self, divergence: float, target: float, decay: float) -> None:
        """Let the weight fall by its decay, or, with a target, follow how far from it the divergence is."""
        if target and not 0.5 * target <= divergence <= 2.0 * target:
            self.pull *= STEP if divergence > target else 1.0 / STEP
        else:
            self.pull *= decay

    def arrays(self) -> dict[str, Array]:
        """The state by name, as it stands (not copied)."""
        return {"anchor.pull": self.pull, "anchor.states": self._states}


def make_kl_reference(text: str, spec: EnvSpec, design: Design, rows: int) -> KLReference:
    """Load the agent that `run:DIR` names; it must play the same game in the same way."""
    agent = load_trained(text)
    agent.check_fits(spec)
    if agent.design.squashed != design.squashed:
        raise ConfigError(
            f"{agent.name} bends its actions by tanh and this policy does not, or the other way round: they cannot be "
            "compared.",
            f"set policy.squash={str(agent.design.squashed).lower()}",
        )
    return KLReference(agent, rows)
