"""The inputs and outputs of an iteration's gradient steps, and the interface of the engines that take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from slipstream.algorithms.gae import GAECoefficients
from slipstream.contracts import Array
from slipstream.settings import PPOSettings

(
    POLICY_LOSS,
    VALUE_LOSS,
    ENTROPY,
    KL,
    CLIPPED,
    REFERENCE_KL,
    CONTRASTIVE_LOSS,
    SAMPLES,
    GRADIENT_NORMS,
    UPDATES,
    SKIPPED,
) = range(11)
SUMS = 11
"""What an epoch adds up: sums over samples, then the number of samples, the gradient norms, the steps taken, and the
steps that fp16 skipped because its loss scale was too large."""
STEPS, FAILED_IN_A_ROW, FAILED_STEPS = range(3)
"""What an engine counts: optimiser steps, failed gradient steps in a row, and all failed gradient steps."""
MAX_FAILED_IN_A_ROW = 3
"""Failed gradient steps in a row that end an update."""


class Batch(NamedTuple):
    """One rollout as flat samples and as sequences of them.

    Sample t * rows + row is one step; sequence k * rows + row is the steps [k * sequence, (k + 1) * sequence) of a row.
    Without memory a sequence is one step.
    """

    obs: Array  # [samples, obs]
    mean: Array  # [floats]
    scale: Array  # [floats]
    mask: Array  # [samples, options] or [samples, 0]
    action: Array  # [samples, parts]
    log_prob: Array  # [samples]: of the policy that acted
    value: Array  # [samples]: of the policy that acted
    advantage: Array  # [samples]
    value_target: Array  # [samples]
    weight: Array  # [samples]: weight in the policy loss; 0 for inactive samples
    episode_start: Array  # [samples] uint8: 1 where an episode begins, except at the first step of the rollout
    state: Array  # [sequences, size]: the recurrent state before each sequence and its burn-in
    reference: Array  # [samples, outputs] of the KL reference (log deviations behind means), or [samples, 0]
    partner: Array  # [samples] int64: the contrastive positive, a later sample of the same sequence, -1: none; or [0]
    rows: int
    sequence: int = 1
    burn_in: int = 0


class Coefficients(NamedTuple):
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
    """Weight of the policy loss; at 0 only the weights of the value function are trained."""
    reference_kl: float = 0.0
    contrast: float = 0.0
    contrast_temperature: float = 0.1
    imitate: bool = False
    """Maximise the log-probability of the given actions, weighted by advantage, instead of PPO's objective."""


class RewardStatistics(NamedTuple):
    """Sums over the rewards of a rollout."""

    samples: int
    """Steps in which the learning policy acted."""
    mean: float
    """The mean reward of those steps; 0 unless requested."""
    returns: Array
    """Count, sum and sum of squares of the discounted returns; zeros unless requested."""


class LossInputs(NamedTuple):
    """What the loss of a rollout needs besides the rollout."""

    mean: Array
    scale: Array
    """The normaliser that the observations were read with."""
    reference: Array | None = None
    """The outputs of the KL reference [samples, outputs], if there is one."""
    partner: Array | None = None
    """The positives of the contrastive loss [samples], if it is used."""


class BatchStatistics(NamedTuple):
    """Statistics of a batch that PPO logs, and those of its observations."""

    explained_variance: float
    obs: tuple[float, Array, Array]
    """Count, mean and variance of the observations that were acted on; a count of 0 where they were not requested."""


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
    """Steps that were skipped because loss or gradient was not finite."""
    diverged: bool
    """Whether three of them came in a row."""
    skipped: int = 0
    """Steps that were skipped because fp16 needed a smaller loss scale."""

    @classmethod
    def of(cls, totals: Array, failed: int, diverged: bool) -> UpdateStats:
        """Divide sums into means."""
        samples, updates = max(1.0, float(totals[SAMPLES])), max(1.0, float(totals[UPDATES]))
        means = [float(total) / samples for total in totals[:SAMPLES]]
        return cls(
            policy_loss=means[POLICY_LOSS],
            value_loss=means[VALUE_LOSS],
            entropy=means[ENTROPY],
            kl=means[KL],
            clip_fraction=means[CLIPPED],
            reference_kl=means[REFERENCE_KL],
            contrast=means[CONTRASTIVE_LOSS],
            gradient_norm=float(totals[GRADIENT_NORMS]) / updates,
            updates=int(totals[UPDATES]),
            failed=failed,
            diverged=diverged,
            skipped=int(totals[SKIPPED]),
        )

    def metrics(self) -> dict[str, float]:
        """The logged means, by metric name."""
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
    """The output of the current network on a batch."""

    log_prob: Array  # [samples]
    value: Array  # [samples]
    activity: dict[str, Array]
    """The mean absolute output of each unit, by hidden layer."""


class Engine(Protocol):
    """Weights, optimiser, and the arithmetic of a PPO update: fused kernels, torch, or all of it on a device.

    `algorithms.ppo.PPO` decides what happens in an update and is the same for every engine. An engine decides where the
    rollout is and how its sums, advantages and gradient steps are computed. The batch that `load` returns and the order
    that `draw_order` returns are only handed back to the same engine.
    """

    params: Array
    """The flat weights, current after `run_epoch` on the host engines and after `finish` on every engine."""
    counters: Array
    """Optimiser steps, failed steps in a row, failed steps in total; current after every `run_epoch`."""
    running_return: Array
    """The discounted return of every row so far; assign to restore it."""

    def reward_statistics(self, rollout: Any, gamma: float, *, mean: bool, returns: bool) -> RewardStatistics:
        """Sum up the rewards of a rollout; `returns` also moves `running_return` to its end."""

    def load(self, rollout: Any, gae: GAECoefficients, inputs: LossInputs) -> Any:
        """Prepare the batch of a rollout, advantages and value targets included."""

    def recompute_advantages(self, rollout: Any, batch: Any, gae: GAECoefficients) -> bool:
        """Recompute advantages and value targets by V-trace with the current weights; false if they are not finite."""

    def draw_order(self, rollout: Any, batch: Any, settings: PPOSettings, random: np.random.Generator) -> Any:
        """The order in which an epoch visits the sequences of a batch."""

    def run_epoch(self, batch: Any, order: Any, coefficients: Coefficients) -> Array:
        """Take the gradient steps of one epoch and return their sums [SUMS]; too many failed steps in a row end it."""

    def finish(self, rollout: Any, batch: Any, shift: Array | None) -> BatchStatistics:
        """Make `params` current after the epochs on a batch, and return its statistics.

        `shift` is the mean that sums over observations are taken around; None: observation statistics are not needed.
        """

    def evaluate(self, batch: Any) -> BatchEvaluation:
        """Run the network on all samples of a batch without learning."""

    def activity(self, batch: Any) -> dict[str, Array]:
        """The mean absolute output of each unit on a batch, by hidden layer."""

    def gradient(self) -> Array:
        """The flat gradient of the last minibatch, before clipping, even if its step was skipped."""

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore what `snapshot` returned."""
