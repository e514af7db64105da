"""What goes into an iteration's gradient steps, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from slipstream.contracts import Array

POLICY, VALUE, ENTROPY, KL, CLIPPED, REFERENCE, CONTRAST, SAMPLES, NORMS, UPDATES, SKIPPED = range(11)
SUMS = 11
"""What an epoch adds up: sums over samples, then their number, the lengths of gradients, the steps taken, and those
that fp16 left out because its factor was too large."""


@dataclass(frozen=True)
class Batch:
    """One rollout as flat samples and as sequences of them.

    Sample t * rows + row is one step; sequence k * rows + row is the steps [k * sequence, (k + 1) * sequence) of a row.
    Without memory a sequence is one step.
    """

    obs: Array  # [samples, obs]
    mean: Array  # [floats]
    scale: Array  # [floats]
    mask: Array  # [samples, options] or [samples, 0]
    action: Array  # [samples, parts]
    log_prob: Array  # [samples]
    value: Array  # [samples]
    advantage: Array  # [samples]
    value_target: Array  # [samples]: what the value should be
    weight: Array  # [samples]: what each counts for the policy; 0 where it did not act
    episode_start: Array  # [samples] uint8: 1 where an episode begins, the first step of the rollout aside
    state: Array  # [sequences, size]: what the memory held before each sequence and its burn-in
    reference: Array  # [samples, outputs] of the policy to stay near (log deviations behind means), or [samples, 0]
    partner: Array  # [samples] int64: a later sample of the same sequence to be told from others, -1: none; or [0]
    rows: int
    sequence: int = 1
    burn_in: int = 0


@dataclass(frozen=True)
class Coefficients:
    """The settings of an iteration, after schedules."""

    minibatch: int
    clip: float
    clip_value: float
    value: float
    entropy: float
    max_grad_norm: float
    learning_rate: float
    adam_eps: float
    weight_decay: float
    normalise_advantage: bool
    policy: float = 1.0
    """Weight of the policy's loss; 0 while only the value is trained: then nothing but its own weights moves."""
    reference_kl: float = 0.0
    contrast: float = 0.0
    contrast_temperature: float = 0.1
    imitate: bool = False
    """Raise the log-probability of the actions given, each counted with its advantage, instead of PPO's loss."""

    def vector(self) -> Array:
        """The numbers in the order that the fused kernel reads them (without the minibatch)."""
        return np.array([float(getattr(self, field.name)) for field in fields(self)[1:]], np.float64)


@dataclass(frozen=True)
class UpdateStats:
    """Means over the gradient steps of an iteration."""

    policy_loss: float
    value_loss: float
    entropy: float
    kl: float
    clip_fraction: float
    reference_kl: float
    contrast: float
    gradient_norm: float
    updates: int
    failed: int
    """Steps that were left out because loss or gradient was not finite."""
    diverged: bool
    """Whether three of them came in a row."""
    skipped: int = 0
    """Steps that were left out because fp16 needed a smaller factor."""

    @classmethod
    def of(cls, totals: Array, failed: int, diverged: bool) -> UpdateStats:
        """Divide sums into means."""
        samples, updates = max(1.0, float(totals[SAMPLES])), max(1.0, float(totals[UPDATES]))
        policy, value, entropy, kl, clipped, reference, contrast = (
            float(total) / samples for total in totals[:SAMPLES]
        )
        norm = float(totals[NORMS]) / updates
        return cls(
            policy, value, entropy, kl, clipped, reference, contrast, norm, int(totals[UPDATES]), failed, diverged,
            int(totals[SKIPPED]),
        )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """As they stand in the log."""
        return {
            "loss/policy": self.policy_loss,
            "loss/value": self.value_loss,
            "ppo/entropy": self.entropy,
            "ppo/kl": self.kl,
            "ppo/clip_fraction": self.clip_fraction,
            "ppo/gradient_norm": self.gradient_norm,
            "ppo/updates": self.updates,
            "ppo/failed_updates": self.failed,
            **({"ppo/skipped_updates": self.skipped} if self.skipped else {}),
        }


@dataclass(frozen=True)
class BatchEvaluation:
    """What the network of this moment makes of a batch."""

    log_prob: Array  # [samples]
    value: Array  # [samples]
    activity: dict[str, Array]
    """The mean size of each unit's output, by hidden layer."""


class Engine(Protocol):
    """What takes gradient steps: the fused kernel, or torch."""

    params: Array
    """The flat weights, current after every `run`."""
    counters: Array
    """Optimiser steps, failed steps in a row, failed steps in all."""

    def run(self, batch: Batch, order: Array, coefficients: Coefficients, totals: Array) -> None:
        """Take the gradient steps of one epoch on the sequences in `order`, and add up `totals` [SUMS].

        Three failed steps in a row end it.
        """

    def survey(self, batch: Batch) -> BatchEvaluation:
        """Look at all samples without learning."""

    def gradient(self) -> Array:
        """The flat gradient of the last step taken."""

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
