"""What SAC's engines share: the critics' parameter layout, the coefficients and the statistics of gradient steps."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from slipstream.algorithms.replay_buffer import ReplaySampler
from slipstream.contracts import Array
from slipstream.policies.design import Design
from slipstream.policies.parameter_layout import NetworkLayout, NetworkSpec
from slipstream.settings import SACSettings

ADAM_EPS = 1e-8
CRITIC_STEPS, ACTOR_STEPS = 0, 3
"""Entries of an engine's `counters`; `engine.FAILED_IN_A_ROW` and `FAILED_STEPS` are the others."""
POLICY_LOSS, CRITIC_LOSS, LOG_PROB, Q_VALUE, GRADIENT_NORM, UPDATES = range(6)
"""The entries of the statistics that gradient steps add up: batch means, the actor's gradient norm, steps taken."""
SUMS = 6


class SACCoefficients(NamedTuple):
    """The coefficients of the gradient steps of one iteration, after schedules."""

    learning_rate: float
    gamma: float
    tau: float
    temperature: float
    """The entropy coefficient (alpha); 0: learned."""
    target_entropy: float
    freeze_actor: bool
    """Whether only the critics are updated, and neither the actor nor the temperature."""
    n_step: int


class CriticEnsemble:
    """The layout of several Q-networks of the same shape.

    With continuous actions a critic reads observation and action and has one output. With discrete actions it reads
    the observation and has one output per action.
    """

    def __init__(self, design: Design, settings: SACSettings) -> None:
        self.init = design.policy.init
        policy, action = design.policy, design.action
        continuous = action.kind == "continuous"
        self.count = settings.critics
        self.outputs = 1 if continuous else action.outputs
        inputs = design.obs.floats + (action.parts if continuous else 0)
        self.network = NetworkSpec(
            "critic", inputs, policy.hidden, self.outputs, policy.activation, settings.critic_layer_norm
        )
        self.layout = NetworkLayout((self.network,))

    def initial_weights(self, seed: int) -> Array:
        """The flat weights [critics, size] that a run starts from."""
        gains = {"critic": ((self.outputs, 1.0),)}
        rngs = (np.random.default_rng([seed, 0xC417, number]) for number in range(self.count))
        if self.init == "uniform":
            return np.stack([self.layout.flatten(self.layout.uniform(rng)) for rng in rngs])
        return np.stack([self.layout.flatten(self.layout.initial(rng, gains)) for rng in rngs])

    def named(self, flat: Array) -> dict[str, Array]:
        """Copy flat weights [critics, size] out into named arrays, as in `critic0.head.weight`."""
        return {
            f"critic{number}{name.removeprefix('critic')}": array
            for number in range(self.count)
            for name, array in self.layout.named(flat[number]).items()
        }

    def flatten(self, named: dict[str, Array], out: Array) -> None:
        """The inverse of `named`."""
        for number in range(self.count):
            prefix = f"critic{number}."
            own = {f"critic.{name[len(prefix) :]}": array for name, array in named.items() if name.startswith(prefix)}
            self.layout.flatten(own, out[number])


class SACEngine(Protocol):
    """Takes SAC's gradient steps, by compiled kernels or by torch."""

    params: Array
    """The actor's flat weights, up to date after every `run`."""
    counters: Array
    """[4] int64, see CRITIC_STEPS and the names beside it."""

    def run(self, sampler: ReplaySampler, coefficients: SACCoefficients, updates: int, totals: Array) -> None:
        """Take gradient steps and add their statistics to `totals` [SUMS]; stop after three failures in a row."""

    def temperature(self) -> float:
        """The learned entropy coefficient (alpha)."""

    def products(self) -> float:
        """Seconds that the matrix products of one gradient step take alone; 0 if unknown."""

    def gradient(self) -> Array:
        """The actor's flat gradient of the last step."""

    def activity(self) -> dict[str, Array]:
        """The mean absolute output of each unit on the last batch, by hidden layer of the actor."""

    def snapshot(self) -> dict[str, Array]:
        """Copy everything that training changes, as named arrays."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore the arrays that `snapshot` returned."""
