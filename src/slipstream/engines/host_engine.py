"""What the engines have in common whose rollouts are NumPy arrays: sums of rewards, advantages, orders, statistics."""

from __future__ import annotations

import numpy as np

from slipstream.algorithms.engine import Batch, BatchEvaluation, BatchStatistics, LossInputs, RewardStatistics
from slipstream.algorithms.gae import GAECoefficients, Transitions, compute_gae
from slipstream.algorithms.minibatches import episode_starts, orders, priorities
from slipstream.algorithms.running_stats import explained_variance, observation_statistics, sum_returns
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array
from slipstream.policies.design import Design
from slipstream.settings import PPOSettings


class HostEngine:
    """Turns rollouts on the host into batches; subclasses take the gradient steps."""

    def __init__(self, design: Design, params: Array) -> None:
        self.design = design
        self.params = params
        self.counters = np.zeros(3, np.int64)
        """Optimiser steps, failed steps in a row, failed steps in total."""
        self.running_return = np.zeros(0, np.float64)
        self._advantage: Array = np.zeros((0, 0), np.float32)

    def reward_statistics(self, rollout: Rollout, gamma: float, *, mean: bool, returns: bool) -> RewardStatistics:
        """Sum up the rewards of a rollout; `returns` also moves `running_return` to its end."""
        active, rows = rollout.active[: rollout.steps], rollout.reward.shape[1]
        samples, sums = int(np.count_nonzero(active)), np.zeros((rows, 3), np.float64)
        if returns and samples:
            if len(self.running_return) != rows:
                self.running_return = np.zeros(rows, np.float64)
            sum_returns(rollout.reward, rollout.terminated, rollout.truncated, active, gamma, self.running_return, sums)
        average = float(rollout.reward[active > 0].mean(dtype=np.float64)) if mean and samples else 0.0
        return RewardStatistics(samples, average, sums.sum(axis=0))

    def load(self, rollout: Rollout, gae: GAECoefficients, inputs: LossInputs) -> Batch:
        """Flat views of the rollout, with its advantages and value targets."""
        steps, samples, design = rollout.steps, rollout.reward.size, self.design
        if self._advantage.shape != rollout.reward.shape:
            self._advantage = np.zeros(rollout.reward.shape, np.float32)
        compute_gae(_transitions(rollout, rollout.value), gae, None, self._advantage)

        def flat(array: Array) -> Array:
            return array[:steps].reshape(samples, *array.shape[2:])

        return Batch(
            obs=flat(rollout.obs if rollout.mirror is None else rollout.mirror),
            mean=inputs.mean.copy(),
            scale=inputs.scale.copy(),
            mask=flat(rollout.mask),
            action=flat(rollout.action),
            log_prob=flat(rollout.log_prob),
            value=flat(rollout.value),
            advantage=flat(self._advantage),
            value_target=flat(self._advantage + rollout.value[:steps]),
            weight=flat(rollout.active).astype(np.float32),
            episode_start=flat(episode_starts(rollout.terminated, rollout.truncated)),
            state=rollout.state.reshape(samples // design.sequence, design.state_size),
            reference=np.zeros((samples, 0), np.float32) if inputs.reference is None else inputs.reference,
            partner=np.zeros(0, np.int64) if inputs.partner is None else inputs.partner,
            rows=rollout.reward.shape[1],
            sequence=design.sequence,
            burn_in=design.policy.burn_in if design.state_size else 0,
        )

    def recompute_advantages(self, rollout: Rollout, batch: Batch, gae: GAECoefficients) -> bool:
        """Recompute advantages and value targets by V-trace with the current weights; false if they are not finite."""
        shape, current = rollout.reward.shape, self.evaluate(batch)
        ratio = np.exp(np.minimum(current.log_prob - batch.log_prob, 20.0)).reshape(shape)
        value = rollout.value.copy()
        value[: rollout.steps] = current.value.reshape(shape)
        if not (np.isfinite(ratio).all() and np.isfinite(value).all()):
            return False
        compute_gae(_transitions(rollout, value), gae, ratio, self._advantage)
        batch.advantage[:] = self._advantage.reshape(-1)
        batch.value_target[:] = batch.advantage + current.value
        return True

    def draw_order(self, rollout: Rollout, batch: Batch, settings: PPOSettings, random: np.random.Generator) -> Array:
        """The sequences of an epoch; with priorities, also write the weights that correct for them."""
        active, segment = rollout.active[: rollout.steps], self.design.policy.sequence
        probabilities = None
        if settings.priority_alpha:
            probabilities, weights = priorities(
                batch.advantage.reshape(active.shape), active, segment, settings.priority_alpha, settings.priority_beta
            )
            batch.weight[:] = weights.reshape(-1)
        return orders(
            random,
            active,
            sequence=batch.sequence,
            segment=segment,
            order=settings.shuffle,
            minibatch=settings.minibatch,
            probabilities=probabilities,
        )

    def finish(self, rollout: Rollout, batch: Batch, shift: Array | None) -> BatchStatistics:
        """The statistics of a batch; `params` are current already."""
        active = rollout.active[: rollout.steps]
        foreseen = explained_variance(batch.value_target, batch.value, active.reshape(-1))
        if shift is None:
            return BatchStatistics(foreseen, (0.0, np.zeros(0), np.zeros(0)))
        return BatchStatistics(foreseen, observation_statistics(self.design.obs.vectors(rollout.obs), active, shift))

    def evaluate(self, batch: Batch) -> BatchEvaluation:
        """Run the network on all samples of a batch without learning."""
        raise NotImplementedError

    def activity(self, batch: Batch) -> dict[str, Array]:
        """The mean absolute output of each unit on a batch, by hidden layer."""
        return self.evaluate(batch).activity


def _transitions(rollout: Rollout, value: Array) -> Transitions:
    return Transitions(
        rollout.reward, value, rollout.final_value, rollout.terminated, rollout.truncated, rollout.active
    )
