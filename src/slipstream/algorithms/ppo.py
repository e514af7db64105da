"""PPO's update: normalise rewards, compute advantages, run the epochs, stop at `target_kl`, recover from divergence.

An `Engine` (compiled kernels, torch, or a GPU) takes the gradient steps; the update is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.algorithms import diagnostics
from slipstream.algorithms.engine import (
    FAILED_IN_A_ROW,
    FAILED_STEPS,
    KL,
    MAX_FAILED_IN_A_ROW,
    SAMPLES,
    SUMS,
    Coefficients,
    Engine,
    LossInputs,
    UpdateStats,
)
from slipstream.algorithms.gae import GAECoefficients
from slipstream.algorithms.imitation_loss import ImitationLoss
from slipstream.algorithms.kl_reference import KLReference
from slipstream.algorithms.minibatches import choose_partners, episode_starts
from slipstream.algorithms.running_stats import RunningMeanStd
from slipstream.algorithms.schedules import tune_epochs
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array
from slipstream.errors import EnvError
from slipstream.policies.design import Design
from slipstream.settings import PPOSettings, Settings

GOOD_EVERY = 16
"""Iterations between the copies of the weights that a divergence falls back to."""


class PPO:
    """Learns from rollouts by proximal policy optimisation; `params_and_stats` is what the acting policy reads."""

    section = "ppo"

    def __init__(
        self,
        settings: Settings,
        design: Design,
        params_and_stats: Array,
        engine: Engine,
        rows: int,
        reference: KLReference | None = None,
        imitation: ImitationLoss | None = None,
        start: Mapping[str, Array] | None = None,
    ) -> None:
        self.settings: PPOSettings = settings.ppo
        """The current settings; schedules replace them."""
        self.design = design
        self.params_and_stats = params_and_stats
        self.engine = engine
        self.reference, self.imitation = reference, imitation
        self.notices: list[str] = []
        self._random = np.random.Generator(np.random.PCG64([settings.seed, 0x5A3]))
        self._obs = RunningMeanStd(design.obs.floats)
        self._return = RunningMeanStd(1)
        for name, array in (self._obs.arrays("obs") | self._return.arrays("return")).items():
            array[:] = (start or {}).get(name, array)
        engine.running_return = np.zeros(rows, np.float64)
        self._rate_scale = np.ones(1, np.float64)
        """Factor of the learning rate; every divergence halves it."""
        self._centre = np.zeros(1, np.float64)
        self._epochs = np.full(1, settings.ppo.epochs, np.int64)
        self._good = engine.snapshot()
        self._failing = False
        self._iterations = np.zeros(1, np.int64)
        self._warmup_left = np.full(1, settings.ppo.value_warmup, np.int64)
        """Iterations left of the value function's warm-up."""
        self._batch: Any = None
        self._write_normaliser()

    def update(self, rollout: Any, steps: int) -> tuple[int, dict[str, Any]]:
        """Learn from a rollout that began at `steps`; return its number of samples and the metrics to log."""
        s, engine = self.settings, self.engine
        rewards = engine.reward_statistics(rollout, s.gamma, mean=bool(s.centre_rewards), returns=s.normalise_return)
        if not rewards.samples:
            raise EnvError(
                f"Every transition of this rollout was masked. {rollout.fault or 'No agent of the policy acted.'}",
                "fix the env or the reward term",
            )
        if s.centre_rewards:
            self._update_centre(rewards.mean)
        scale = self._update_return_scale(rewards.returns) if s.normalise_return else 1.0
        if self._iterations[0] % GOOD_EVERY == 0 and not self._failing:
            self._good = engine.snapshot()
        coefficients = self.coefficients()
        batch = self._batch = self._load(rollout, scale)
        totals, failed = np.zeros(SUMS, np.float64), int(engine.counters[FAILED_STEPS])
        epochs = int(self._epochs[0]) if s.epochs_max else s.epochs
        epochs_run = 0
        for _ in range(epochs):
            # V-trace uses the current weights. It fails only if they give values that are not finite.
            if s.vtrace_rho and not engine.recompute_advantages(rollout, batch, self._gae_coefficients(scale)):
                break
            added = engine.run_epoch(batch, engine.draw_order(rollout, batch, s, self._random), coefficients)
            totals += added
            epochs_run += 1
            if engine.counters[FAILED_IN_A_ROW] >= MAX_FAILED_IN_A_ROW:
                break
            # On the mean over the epoch's samples; Stable-Baselines3 stops within an epoch, at 1.5 times the target.
            if s.target_kl > 0 and added[SAMPLES] and added[KL] / added[SAMPLES] > s.target_kl:
                break
        diverged = bool(engine.counters[FAILED_IN_A_ROW] >= MAX_FAILED_IN_A_ROW)
        stats = UpdateStats.of(totals, int(engine.counters[FAILED_STEPS]) - failed, diverged)
        metrics = stats.metrics() | {
            "ppo/learning_rate": coefficients.learning_rate,
            "ppo/reward_scale": scale,
            "ppo/epochs": epochs_run,
        }
        if self.imitation is not None and not self._warmup_left[0]:
            order = engine.draw_order(rollout, batch, s, self._random)
            metrics |= self.imitation.teach(s, rollout, batch, engine, coefficients, order)
        learn_obs = s.normalise_obs and steps >= s.freeze_obs_stats_steps
        found = engine.finish(rollout, batch, self._obs.mean.copy() if learn_obs else None)
        metrics["ppo/explained_variance"] = found.explained_variance
        self._adapt(stats, metrics)
        if learn_obs:
            self._obs.merge(*found.obs)
            self._write_normaliser()
        self._iterations += 1
        return rewards.samples, metrics

    def _adapt(self, stats: UpdateStats, metrics: dict[str, Any]) -> None:
        """After the epochs: fall back if they diverged, adapt epochs and KL coefficient, count down the warm-up."""
        s = self.settings
        self._failing = stats.failed > 0
        if stats.failed:
            self.notices.append(diagnostics.skipped_steps(stats.failed))
        if stats.diverged:
            self.notices.append(diagnostics.fall_back(self.engine, self._good, self._rate_scale))
        if s.epochs_max:
            self._epochs[0] = tune_epochs(int(self._epochs[0]), stats, s)
        if self.reference is not None:
            metrics["ppo/reference_kl"] = stats.reference_kl
            metrics["ppo/reference_kl_coef"] = s.reference_kl_coef * float(self.reference.coef_factor[0])
            if not self._warmup_left[0]:
                self.reference.adapt(stats.reference_kl, s.reference_target, s.reference_decay)
        if self._warmup_left[0]:
            warm = metrics["ppo/explained_variance"] >= s.value_warmup_explained_variance
            self._warmup_left[0] = 0 if warm else self._warmup_left[0] - 1
        if s.contrastive_coef:
            metrics["loss/contrastive"] = stats.contrast
        if s.centre_rewards:
            metrics["ppo/reward_centre"] = float(self._centre[0])

    def coefficients(self) -> Coefficients:
        """The coefficients of the next gradient steps: current settings, warm-up and halved learning rates included."""
        s, warming = self.settings, self._warmup_left[0] > 0
        reference = float(self.reference.coef_factor[0]) if self.reference is not None else 0.0
        return Coefficients(
            minibatch=s.minibatch,
            clip=s.clip,
            clip_value=s.clip_value,
            value=s.value_coef,
            entropy=s.entropy_coef,
            max_grad_norm=s.max_grad_norm,
            learning_rate=s.learning_rate * float(self._rate_scale[0]),
            adam_eps=s.adam_eps,
            weight_decay=0.0 if s.optimiser == "adam" or warming else s.weight_decay,
            normalise_advantage=s.normalise_advantage,
            policy=0.0 if warming else 1.0,
            reference_kl=s.reference_kl_coef * reference,
            contrast=s.contrastive_coef,
            contrast_temperature=s.contrastive_temperature,
        )

    def gradient_statistics(self) -> dict[str, float]:
        """Statistics of the last gradient of each layer."""
        return diagnostics.gradient_statistics(self.design.weights, self.engine.gradient(), self.engine.params)

    def dormant(self) -> dict[str, float]:
        """The share of dormant units on the last batch, of each hidden layer and of all."""
        assert self._batch is not None
        return diagnostics.dormant(self.engine.activity(self._batch))

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copies of all that a resumed run needs: arrays, and the state of the random generator."""
        arrays = {name: array.copy() for name, array in self._own_arrays().items()}
        arrays["running_return"] = self.engine.running_return.copy()
        imitation = {"mentor": self.imitation.random.bit_generator.state} if self.imitation is not None else {}
        return self.engine.snapshot() | arrays, {"random": self._random.bit_generator.state} | imitation

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Restore what `snapshot` returned."""
        self.engine.restore(arrays)
        for name, array in self._own_arrays().items():
            array[:] = arrays[name]
        self.engine.running_return = arrays["running_return"].copy()
        self._random.bit_generator.state = state["random"]
        if self.imitation is not None:
            self.imitation.random.bit_generator.state = state["mentor"]
        self._good = self.engine.snapshot()
        self._write_normaliser()

    def _own_arrays(self) -> dict[str, Array]:
        own = {
            "rate_scale": self._rate_scale,
            "iterations": self._iterations,
            "reward_centre": self._centre,
            "epochs": self._epochs,
            "warming": self._warmup_left,
        }
        own |= self.reference.arrays() if self.reference is not None else {}
        own |= self.imitation.arrays() if self.imitation is not None else {}
        return self._obs.arrays("obs") | self._return.arrays("return") | own

    def _update_centre(self, mean: float) -> None:
        """Move the reward centre towards the mean reward; the first mean is taken as it is."""
        share = self.settings.centre_rewards if self._iterations[0] else 1.0
        self._centre += share * (mean - self._centre)

    def _update_return_scale(self, sums: Array) -> float:
        """Merge count, sum and squares of discounted returns; return the factor that rewards are multiplied by."""
        count = max(1.0, sums[0])
        mean = sums[1:2] / count
        self._return.merge(sums[0], mean, np.maximum(sums[2:3] / count - mean * mean, 0.0))
        return float(self._return.scale[0])

    def _gae_coefficients(self, scale: float) -> GAECoefficients:
        s = self.settings
        numbers = (s.gamma, s.gae_lambda, scale, self._centre[0], s.vtrace_rho, s.vtrace_c)
        return GAECoefficients(*(np.float32(number) for number in numbers))

    def _load(self, rollout: Any, scale: float) -> Any:
        """The engine's batch of a rollout, with what the KL reference and the contrastive loss need."""
        _, mean, scale_obs = self.design.split_params_and_stats(self.params_and_stats)
        reference = partner = None
        if self.reference is not None and self.reference.is_active(self.settings.reference_target):
            reference = self.reference.evaluate(rollout, episode_starts(rollout.terminated, rollout.truncated))
        if self.settings.contrastive_coef:
            partner = self._choose_partners(rollout)
        return self.engine.load(rollout, self._gae_coefficients(scale), LossInputs(mean, scale_obs, reference, partner))

    def _choose_partners(self, rollout: Rollout) -> Array:
        """A later sample of the same episode for each sample, at a geometric distance: the contrastive positives."""
        starts = episode_starts(rollout.terminated, rollout.truncated)
        partner = np.zeros(starts.size, np.int64)
        draws = np.asarray(self._random.geometric(1.0 / self.settings.contrastive_steps, starts.shape))
        length = self.design.sequence if self.design.state_size else rollout.steps
        choose_partners(draws, starts, rollout.active[: rollout.steps], length, partner)
        return partner

    def _write_normaliser(self) -> None:
        if self.settings.normalise_obs:
            self.design.write_normaliser(self.params_and_stats, self._obs.mean, self._obs.scale)
