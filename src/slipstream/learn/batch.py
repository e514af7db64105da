"""What goes into an iteration's gradient steps, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slipstream.core.contracts import Array


@dataclass(frozen=True)
class Batch:
    """One rollout as flat samples; `order` picks among them."""

    obs: Array  # [samples, obs]
    mean: Array  # [obs]
    scale: Array  # [obs]
    mask: Array  # [samples, options] or [samples, 0]
    action: Array  # [samples, parts]
    logp: Array  # [samples]
    value: Array  # [samples]
    advantage: Array  # [samples]
    goal: Array  # [samples]: what the value should be


@dataclass(frozen=True)
class Knobs:
    """The settings of an iteration, after schedules."""

    minibatch: int
    clip: float
    clip_value: float
    value: float
    entropy: float
    max_grad_norm: float
    learning_rate: float
    adam_eps: float
    normalise_advantage: bool
    target_kl: float

    def vector(self) -> Array:
        """The numbers in the order that the fused kernel reads them."""
        return np.array(
            [self.clip, self.clip_value, self.value, self.entropy, self.max_grad_norm, self.learning_rate,
             self.adam_eps, float(self.normalise_advantage), self.target_kl],
            np.float64,
        )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Means over the gradient steps of an iteration."""

    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    clip_fraction: float
    gradient_norm: float
    updates: int
    failed: int
    """Steps that were left out because loss or gradient was not finite."""
    diverged: bool
    """Whether three of them came in a row."""

    @classmethod
    def of(cls, totals: Array, failed: int, diverged: bool) -> Outcome:
        """Divide sums (policy, value, entropy, kl, clipped, samples, norms, updates) into means."""
        samples, updates = max(1.0, float(totals[5])), max(1.0, float(totals[7]))
        policy, value, entropy, kl, clipped = (float(total) / samples for total in totals[:5])
        norm = float(totals[6]) / updates
        return cls(policy, value, entropy, kl, clipped, norm, int(totals[7]), failed, diverged)


class Engine(Protocol):
    """What takes gradient steps: the fused kernel, or torch."""

    params: Array
    """The flat weights, current after every `run`."""

    def run(self, batch: Batch, order: Array, knobs: Knobs) -> Outcome:
        """Take the gradient steps of one iteration on the samples in `order` [epochs, samples]."""

    def gradient(self) -> Array:
        """The flat gradient of the last step taken."""

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
