"""PPO: from a rollout to better weights, by an engine that takes the gradient steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.algorithms import diagnostics
from slipstream.algorithms.engine import KL, SAMPLES, SUMS, Batch, Coefficients, Engine, UpdateStats
from slipstream.algorithms.gae import compute_gae
from slipstream.algorithms.imitation_loss import ImitationLoss
from slipstream.algorithms.kl_reference import KLReference
from slipstream.algorithms.minibatches import choose_partners, episode_starts, orders, priorities
from slipstream.algorithms.running_stats import RunningMeanStd, explained_variance, sum_returns
from slipstream.algorithms.schedules import tune_epochs
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array
from slipstream.errors import EnvError
from slipstream.policies.design import Design
from slipstream.settings import PPOSettings, Settings

GOOD_EVERY = 16
"""Iterations between the copies of the weights that a divergence falls back to."""


class PPO:
    """Weights, optimiser and normalisers; `params_and_stats` is what acts."""

    section = "ppo"

    def __init__(
        self, settings: Settings, design: Design, params_and_stats: Array, engine: Engine, rows: int,
        anchor: KLReference | None = None, mentor: ImitationLoss | None = None, start: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        self.now: PPOSettings = settings.ppo
        """The settings of this moment; schedules replace them."""
        self.design = design
        self.params_and_stats = params_and_stats
        self.engine = engine
        self.anchor, self.mentor = anchor, mentor
        self.notices: list[str] = []
        self._random = np.random.Generator(np.random.PCG64([settings.seed, 0x5A3]))
        self._obs = RunningMeanStd(design.obs.floats)
        self._return = RunningMeanStd(1)
        for name, array in (self._obs.arrays("obs") | self._return.arrays("return")).items():
            array[:] = (start or {}).get(name, array)
        self._running = np.zeros(rows, np.float64)
        self._rate_scale = np.ones(1, np.float64)
        self._centre = np.zeros(1, np.float64)
        self._epochs = np.full(1, settings.ppo.epochs, np.int64)
        self._advantage: Array = np.zeros((0, 0), np.float32)
        self._good = engine.snapshot()
        self._failing = False
        self._iterations = np.zeros(1, np.int64)
        self._warming = np.full(1, settings.ppo.value_warmup, np.int64)
        """Iterations that are left of the value's warm-up."""
        self._batch: Batch | None = None
        self._write_normaliser()

    def update(self, rollout: Rollout, steps: int) -> tuple[int, dict[str, Any]]:
        """Learn from a rollout that began at `steps`; return its number of samples and what is to be logged."""
        s, active = self.now, rollout.active[: rollout.steps]
        samples = int(np.count_nonzero(active))
        if not samples:
            raise EnvError(
                "Not one transition of this rollout could be used: every observation or reward was masked.",
                "the messages above name the env and the reward term; mend them",
            )
        coefficients, scale = self._knobs(), self._learn_rewards(rollout)
        if self._iterations[0] % GOOD_EVERY == 0 and not self._failing:
            self._good = self.engine.snapshot()
        self._estimate(rollout, scale)
        batch = self._batch = self._prepare(rollout)
        totals, failed = np.zeros(SUMS, np.float64), int(self.engine.counters[2])
        epochs = int(self._epochs[0]) if s.epochs_max else s.epochs
        for epoch in range(epochs):  # noqa: B007 (how many there were is told below)
            if s.vtrace_rho and not self._weigh(rollout, scale, batch):
                break
            before = totals.copy()
            self.engine.run(batch, self._order(rollout, batch), coefficients, totals)
            added = totals - before
            if self.engine.counters[1] >= 3:
                break
            if s.target_kl > 0 and added[SAMPLES] and added[KL] / added[SAMPLES] > s.target_kl:
                break
        outcome = UpdateStats.of(totals, int(self.engine.counters[2]) - failed, bool(self.engine.counters[1] >= 3))
        metrics = outcome.metrics() | {
            "ppo/explained_variance": explained_variance(batch.value_target, batch.value, active.reshape(-1)),
            "ppo/learning_rate": coefficients.learning_rate, "ppo/reward_scale": scale, "ppo/epochs": epoch + 1,
        }  # fmt: skip
        if self.mentor is not None and not self._warming[0]:
            metrics |= self.mentor.teach(s, rollout, batch, self.engine, coefficients, self._order(rollout, batch))
        self._settle(outcome, metrics)
        if s.normalise_obs and steps >= s.freeze_obs_stats_steps:
            self._obs.see(self.design.obs.vectors(rollout.obs), active)
            self._write_normaliser()
        self._iterations += 1
        return samples, metrics

    def _settle(self, outcome: UpdateStats, metrics: dict[str, Any]) -> None:
        """What an iteration's outcome changes for the next."""
        s = self.now
        self._failing = outcome.failed > 0
        if outcome.failed:
            self.notices.append(diagnostics.left_out(outcome.failed))
        if outcome.diverged:
            self.notices.append(diagnostics.fall_back(self.engine, self._good, self._rate_scale))
        if s.epochs_max:
            self._epochs[0] = tune_epochs(int(self._epochs[0]), outcome, s)
        if self.anchor is not None:
            metrics["ppo/reference_kl"] = outcome.reference_kl
            metrics["ppo/reference_weight"] = s.reference_kl_coef * float(self.anchor.pull[0])
            if not self._warming[0]:
                self.anchor.move(outcome.reference_kl, s.reference_target, s.reference_decay)
        if self._warming[0]:
            warm = metrics["ppo/explained_variance"] >= s.value_warmup_explained_variance
            self._warming[0] = 0 if warm else self._warming[0] - 1
        if s.contrastive_coef:
            metrics["loss/contrast"] = outcome.contrast
        if s.centre_rewards:
            metrics["ppo/reward_centre"] = float(self._centre[0])

    def _knobs(self) -> Coefficients:
        """What the gradient steps of this moment follow: settings, and what a divergence has taken off the rate."""
        s, warming = self.now, self._warming[0] > 0
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
            reference_kl=s.reference_kl_coef * float(self.anchor.pull[0]) if self.anchor is not None else 0.0,
            contrast=s.contrastive_coef,
            contrast_temperature=s.contrastive_temperature,
        )

    def gradient_statistics(self) -> dict[str, float]:
        """Facts about the last gradient of each layer."""
        return diagnostics.gradient_statistics(self.design.weights, self.engine.gradient(), self.engine.params)

    def dormant(self) -> dict[str, float]:
        """The share of units of each hidden layer, and of all, that hardly move on the last batch."""
        assert self._batch is not None
        return diagnostics.dormant(self.engine.survey(self._batch).activity)

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copies of all that a resumed run needs: arrays, and the state of the random generator."""
        arrays = {name: array.copy() for name, array in self._own_arrays().items()}
        mentor = {"mentor": self.mentor.random.bit_generator.state} if self.mentor is not None else {}
        return self.engine.snapshot() | arrays, {"random": self._random.bit_generator.state} | mentor

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Put back what `snapshot` gave."""
        self.engine.restore(arrays)
        for name, array in self._own_arrays().items():
            array[:] = arrays[name]
        self._random.bit_generator.state = state["random"]
        if self.mentor is not None:
            self.mentor.random.bit_generator.state = state["mentor"]
        self._good = self.engine.snapshot()
        self._write_normaliser()

    def _own_arrays(self) -> dict[str, Array]:
        own = {
            "running_return": self._running, "rate_scale": self._rate_scale, "iterations": self._iterations,
            "reward_centre": self._centre, "epochs": self._epochs, "warming": self._warming,
        }  # fmt: skip
        own |= self.anchor.arrays() if self.anchor is not None else {}
        own |= self.mentor.arrays() if self.mentor is not None else {}
        return self._obs.arrays("obs") | self._return.arrays("return") | own

    def _learn_rewards(self, rollout: Rollout) -> float:
        """Move the statistics of rewards on; return the factor that rewards are multiplied by."""
        s, active = self.now, rollout.active[: rollout.steps]
        if s.centre_rewards:
            self._move_centre(float(rollout.reward[active > 0].mean(dtype=np.float64)))
        if not s.normalise_return:
            return 1.0
        sums = np.zeros((len(self._running), 3), np.float64)
        sum_returns(rollout.reward, rollout.terminated, rollout.truncated, active, s.gamma, self._running, sums)
        return self._merge_returns(sums.sum(axis=0))

    def _move_centre(self, mean: float) -> None:
        """Follow the mean reward; the first one is taken as it is."""
        share = self.now.centre_rewards if self._iterations[0] else 1.0
        self._centre += share * (mean - self._centre)

    def _merge_returns(self, sums: Array) -> float:
        """Take in count, sum and squares of discounted returns; return the factor for rewards."""
        count = max(1.0, sums[0])
        mean = sums[1:2] / count
        self._return.merge(sums[0], mean, np.maximum(sums[2:3] / count - mean * mean, 0.0))
        return float(self._return.scale[0])

    def _estimate(self, rollout: Rollout, scale: float, ratio: Array | None = None, value: Array | None = None) -> None:
        """Advantages [T, rows], weighed by V-trace where ratios are given."""
        if self._advantage.shape != rollout.reward.shape:
            self._advantage = np.zeros(rollout.reward.shape, np.float32)
        compute_gae(
            rollout.reward, rollout.value if value is None else value, rollout.final_value, rollout.terminated,
            rollout.truncated, rollout.active, self._gae_knobs(scale),
            np.zeros((0, 0), np.float32) if ratio is None else ratio, self._advantage,
        )  # fmt: skip

    def _gae_knobs(self, scale: float) -> Array:
        """What `estimate_row` goes by."""
        s = self.now
        return np.array([s.gamma, s.gae_lambda, scale, self._centre[0], s.vtrace_rho, s.vtrace_c], np.float32)

    def _weigh(self, rollout: Rollout, scale: float, batch: Batch) -> bool:
        """V-trace: advantages and value targets anew, by what the network has become; false if not finite."""
        seen = self.engine.survey(batch)
        ratio = np.exp(np.minimum(seen.log_prob - batch.log_prob, 20.0)).reshape(rollout.reward.shape)
        value = rollout.value.copy()
        value[: rollout.steps] = seen.value.reshape(rollout.reward.shape)
        if not (np.isfinite(ratio).all() and np.isfinite(value).all()):
            return False
        self._estimate(rollout, scale, ratio, value)
        batch.advantage[:] = self._advantage.reshape(-1)
        batch.value_target[:] = batch.advantage + seen.value
        return True

    def _prepare(self, rollout: Rollout) -> Batch:
        """Flat views of the rollout, with its value targets."""
        steps, samples = rollout.steps, rollout.reward.size
        _, mean, scale = self.design.split_params_and_stats(self.params_and_stats)
        episode_start = episode_starts(rollout.terminated, rollout.truncated)

        def flat(array: Array) -> Array:
            return array[:steps].reshape(samples, *array.shape[2:])

        return Batch(
            obs=flat(rollout.obs if rollout.mirror is None else rollout.mirror),
            mean=mean.copy(),
            scale=scale.copy(),
            mask=flat(rollout.mask),
            action=flat(rollout.action),
            log_prob=flat(rollout.log_prob),
            value=flat(rollout.value),
            advantage=flat(self._advantage),
            value_target=flat(self._advantage + rollout.value[:steps]),
            weight=flat(rollout.active).astype(np.float32),
            episode_start=flat(episode_start),
            state=rollout.state.reshape(samples // self.design.sequence, self.design.state_size),
            reference=self.anchor.tell(rollout, episode_start)
            if self.anchor is not None and self.anchor.holds(self.now.reference_target)
            else np.zeros((samples, 0), np.float32),
            partner=self._choose_partners(rollout, episode_start),
            rows=rollout.reward.shape[1],
            sequence=self.design.sequence,
            burn_in=self.design.policy.burn_in if self.design.state_size else 0,
        )

    def _choose_partners(self, rollout: Rollout, episode_start: Array) -> Array:
        """A later sample for each, at a geometric distance, for the contrastive loss."""
        if not self.now.contrastive_coef:
            return np.zeros(0, np.int64)
        partner = np.zeros(episode_start.size, np.int64)
        draws = np.asarray(self._random.geometric(1.0 / self.now.contrastive_steps, episode_start.shape))
        length = self.design.sequence if self.design.state_size else rollout.steps
        choose_partners(draws, episode_start, rollout.active[: rollout.steps], length, partner)
        return partner

    def _order(self, rollout: Rollout, batch: Batch) -> Array:
        """The sequences of an epoch; by priority, if asked for, with the weights that make up for it."""
        s, active, segment = self.now, rollout.active[: rollout.steps], self.design.policy.sequence
        probabilities = None
        if s.priority_alpha:
            probabilities, weights = priorities(
                batch.advantage.reshape(active.shape), active, segment, s.priority_alpha, s.priority_beta
            )  # fmt: skip
            batch.weight[:] = weights.reshape(-1)
        return orders(
            self._random, active, sequence=batch.sequence, segment=segment, order=s.shuffle, minibatch=s.minibatch,
            probabilities=probabilities,
        )  # fmt: skip

    def _write_normaliser(self) -> None:
        if self.now.normalise_obs:
            self.design.write_normaliser(self.params_and_stats, self._obs.mean, self._obs.scale)
