"""What SAC's two engines share: the critics' layout, the numbers of a gradient step, and what it adds up."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Protocol

import numpy as np

from slipstream.algorithms.replay_buffer import ReplaySampler
from slipstream.contracts import Array
from slipstream.policies.design import Design
from slipstream.policies.parameter_layout import Chain, Stack
from slipstream.settings import SACSettings

ADAM_EPS = 1e-8
RATE, GAMMA, TAU, TEMPERATURE, TARGET_ENTROPY, FROZEN = range(6)
POLICY, CRITIC, LOGP, Q, LENGTH, UPDATES = range(6)
SUMS = 6
"""What gradient steps add up: means over their batches, the length of the actor's gradient, and the steps taken."""


@dataclass(frozen=True)
class SACCoefficients:
    """The settings of an iteration, after schedules."""

    learning_rate: float
    gamma: float
    tau: float
    temperature: float
    """The weight of the entropy; 0: it is learned."""
    target_entropy: float
    frozen: bool
    """Whether only the critics move, while actor and temperature stay as they are."""
    n_step: int

    def vector(self) -> Array:
        """The numbers in the order that the fused kernel reads them (without the steps)."""
        return np.array(astuple(self)[:-1], np.float64)


class Critics:
    """A number of networks of one layout: they tell the value of an action, or of every choice."""

    def __init__(self, design: Design, settings: SACSettings) -> None:
        self.init = design.policy.init
        policy, action = design.policy, design.action
        single = action.kind == "continuous"
        self.count = settings.critics
        self.outputs = 1 if single else action.outputs
        inputs = design.obs.floats + (action.parts if single else 0)
        self.chain = Chain("critic", inputs, policy.hidden, self.outputs, policy.activation, settings.critic_layer_norm)
        self.stack = Stack((self.chain,))

    def first(self, seed: int) -> Array:
        """The flat weights [critics, size] that a run starts from."""
        gains = {"critic": ((self.outputs, 1.0),)}
        randoms = (np.random.default_rng([seed, 0xC417, number]) for number in range(self.count))
        if self.init == "uniform":
            return np.stack([self.stack.flatten(self.stack.uniform(random)) for random in randoms])
        return np.stack([self.stack.flatten(self.stack.initial(random, gains)) for random in randoms])

    def named(self, flat: Array) -> dict[str, Array]:
        """Copy flat weights out into arrays by name."""
        return {
            f"critic{number}{name.removeprefix('critic')}": array
            for number in range(self.count)
            for name, array in self.stack.named(flat[number]).items()
        }

    def flatten(self, named: dict[str, Array], out: Array) -> None:
        """The inverse of `named`."""
        for number in range(self.count):
            prefix = f"critic{number}."
            own = {f"critic.{name[len(prefix) :]}": array for name, array in named.items() if name.startswith(prefix)}
            self.stack.flatten(own, out[number])


class SACEngine(Protocol):
    """What takes SAC's gradient steps: the fused kernel, or torch."""

    params: Array
    """The actor's flat weights, current after every `run`."""
    counters: Array
    """Steps of the critics, failed steps in a row, failed steps in all, steps of the actor."""

    def run(self, feed: ReplaySampler, coefficients: SACCoefficients, updates: int, totals: Array) -> None:
        """Take gradient steps and add up `totals` [SUMS]; three failed ones in a row end it."""

    def temperature(self) -> float:
        """The weight of the entropy as it is learned."""

    def products(self) -> float:
        """Seconds that the matrix products of a gradient step take by themselves; 0 if unknown."""

    def gradient(self) -> Array:
        """The actor's flat gradient of the last step."""

    def activity(self) -> dict[str, Array]:
        """The mean size of each unit's output on the last batch, by hidden layer of the actor."""

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
