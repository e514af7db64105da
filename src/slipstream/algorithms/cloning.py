"""Behaviour cloning: trains a policy to imitate demos, with the same engines as PPO."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from slipstream.algorithms.demo_batches import DemoBatches, DemoStatistics, Window
from slipstream.algorithms.engine import FAILED_STEPS, POLICY_LOSS, SAMPLES, SUMS, VALUE_LOSS, Coefficients, Engine
from slipstream.algorithms.running_stats import explained_variance
from slipstream.contracts import Array
from slipstream.demos.reader import Demos
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.distributions import bound
from slipstream.policies.fused_actor import make_actor
from slipstream.settings import CloneSettings

READ_SHARE = 0.05
"""If reading takes more than this share of an epoch, a thread prefetches windows."""
ACT_BATCH = 65_536
"""Samples per call of the actor."""
Progress = Callable[[int, int], None]


class Cloner:
    """A policy, its engine, and the demos for training and validation."""

    def __init__(
        self,
        settings: CloneSettings,
        design: Design,
        params_and_stats: Array,
        engine: Engine,
        statistics: DemoStatistics,
        train: Demos,
        held_out: Demos,
        *,
        gamma: float,
        seed: int,
    ) -> None:
        self.settings = settings
        self.design = design
        self.params_and_stats = params_and_stats
        self.engine = engine
        self.statistics = statistics
        if settings.normalise_obs and design.obs.floats:
            design.write_normaliser(params_and_stats, statistics.obs.mean, statistics.obs.scale)
        scale = float(statistics.returns.scale[0])
        self.train, self.held_out = (
            DemoBatches(demos, design, scale, gamma, settings.window_mib) for demos in (train, held_out)
        )
        self.prefetch = False
        """Whether a thread reads the next window during training."""
        self.round = 0
        """Number of DAgger rounds that have been added."""
        self._seed, self._gamma = seed, gamma
        self._actor = make_actor(design)

    def add(self, train: Demos, held_out: Demos) -> None:
        """Add demos to both sets; the normalisation of observations and returns does not change."""
        scale, mib = float(self.statistics.returns.scale[0]), self.settings.window_mib
        self.train, self.held_out = (
            DemoBatches(old.demos.join(more), self.design, scale, self._gamma, mib)
            for old, more in ((self.train, train), (self.held_out, held_out))
        )
        self.round += 1

    def epoch(self, number: int, on_progress: Progress = lambda done, total: None) -> dict[str, float]:
        """Train on all demos once, in an order that depends only on the seed and the epoch's number; return metrics."""
        rng = np.random.Generator(np.random.PCG64([self._seed, 0xC10, self.round, number]))
        totals, began, done = np.zeros(SUMS, np.float64), perf_counter(), 0
        _, mean, scale = self.design.split_params_and_stats(self.params_and_stats)
        before = dict(self.train.seconds)
        steps = self.train.demos.steps
        for window in self.train.batches(rng, mean.copy(), scale.copy(), self.prefetch):
            self._compute_states(self.train, window)
            order = rng.permutation(window.batch.rows).astype(np.int64)
            share = self.settings.batch_size * 64
            for first in range(0, len(order), max(1, share // window.batch.sequence)):
                chosen = order[first : first + max(1, share // window.batch.sequence)]
                coefficients = self._coefficients(number, (done + first) / max(1, steps))
                totals += self.engine.run_epoch(window.batch, chosen, coefficients)
                on_progress(min(steps, done + (first + len(chosen)) * window.batch.sequence), steps)
            done += int(window.batch.weight.sum())
            del window  # free it before the next is read
        self._clip_log_std()
        seconds = perf_counter() - began
        spent = {name: self.train.seconds[name] - before[name] for name in before}
        samples = max(1.0, totals[SAMPLES])
        return {
            "clone/loss": float(totals[POLICY_LOSS]) / samples,
            "clone/value_loss": float(totals[VALUE_LOSS]) / samples,
            "clone/learning_rate": self._coefficients(number, 1.0).learning_rate,
            "clone/failed_updates": int(self.engine.counters[FAILED_STEPS]),
            "time/samples_per_second": samples / seconds,
            "time/read": min(1.0, spent["read"] / seconds),
            "time/recurrent_state": min(1.0, spent["remember"] / seconds),
            "time/epoch_s": seconds,
        }

    def choose_prefetch(self, row: dict[str, float]) -> str:
        """Decide from an epoch's times whether to prefetch windows; return a message about it."""
        message = f"reading takes {row['time/read']:.1%} of an epoch"
        if self.train.fits_in_memory:
            return f"{message}: all demos fit in memory"
        self.prefetch = row["time/read"] > READ_SHARE
        return f"{message}: windows are {'prefetched by a thread' if self.prefetch else 'read when needed'}"

    def validate(self) -> tuple[dict[str, float], list[Array]]:
        """Metrics on the held-out episodes, and a confusion matrix [recorded, predicted] of each discrete action."""
        design, sizes = self.design, self.design.action.sizes
        action, first = design.action, design.action.discrete_parts  # the first continuous part
        _, mean, scale = design.split_params_and_stats(self.params_and_stats)
        log_prob, values, value_targets, score, count = 0.0, [], [], np.zeros(action.parts), 0.0
        confusion = [np.zeros((size, size), np.int64) for size in sizes]
        for window in self.held_out.batches(None, mean.copy(), scale.copy(), False):
            self._compute_states(self.held_out, window)
            valid = window.batch.weight > 0
            seen = self.engine.evaluate(window.batch)
            log_prob += float(seen.log_prob[valid].sum(dtype=np.float64))
            count += float(valid.sum())
            values.append(seen.value[valid])
            value_targets.append(window.batch.value_target[valid])
            recorded, predicted = window.batch.action[valid], self._predict(window)[valid]
            score[:first] += (recorded == predicted)[:, :first].sum(axis=0)
            for part, matrix in enumerate(confusion):
                np.add.at(matrix, (recorded[:, part].astype(np.int64), predicted[:, part].astype(np.int64)), 1)
            if action.continuous_parts:
                errors = self._env_actions(recorded) - self._env_actions(predicted)
                score[first:] += np.square(errors[:, first:]).sum(axis=0, dtype=np.float64)
            del window, valid, seen, recorded, predicted
        row = {"clone/held_out_loss": -log_prob / count}
        chosen = np.ones(int(count), bool)
        row["clone/explained_variance"] = explained_variance(
            np.concatenate(value_targets), np.concatenate(values), chosen
        )
        if sizes:
            row["clone/accuracy"] = float(score[:first].mean() / count)
            row |= {f"clone/accuracy/{part}": float(score[part] / count) for part in range(first) if len(sizes) > 1}
        if action.continuous_parts:
            row["clone/error"] = float(np.sqrt(score[first:].mean() / count))
            row |= {f"clone/error/{part}": float(np.sqrt(score[part] / count)) for part in range(first, action.parts)}
        return row, confusion

    def _compute_states(self, demos: DemoBatches, window: Window) -> None:
        if self.design.state_size:
            self._actor.load(self.params_and_stats)
            demos.compute_states(window, self._actor)

    def _predict(self, window: Window) -> Array:
        """The most likely action in every state, as the policy outputs it."""
        batch, actor = window.batch, self._actor
        actor.load(self.params_and_stats)
        out = np.zeros(batch.action.shape, batch.action.dtype)
        rows, unused = batch.rows, np.zeros((2, max(batch.rows, 1)), np.float32)
        streams = np.zeros((rows, 2), np.int64)
        states = batch.state.copy()
        for t in range(batch.sequence):
            part = slice(t * rows, (t + 1) * rows)
            for first in range(0, rows, ACT_BATCH):
                chosen = np.arange(first, min(first + ACT_BATCH, rows))
                actor.act(
                    ActInputs(chosen, batch.obs[part], batch.mask[part], states, streams),
                    ActOutputs(out[part], unused[0], unused[1]),
                    False,
                )
        return out

    def _env_actions(self, action: Array) -> Array:
        """Actions after squashing and scaling of continuous parts, as the env takes them."""
        low, high = (np.array(bounds, np.float32) for bounds in (self.design.action.low, self.design.action.high))
        out = np.zeros_like(action)
        bound(np.ascontiguousarray(action), low, high, self.design.squashed, out)
        return out

    def _coefficients(self, epoch: int, progress: float) -> Coefficients:
        """The coefficients of the next gradient steps; the learning rate follows a cosine over all epochs."""
        s = self.settings
        share = min(1.0, (epoch + progress) / s.epochs)
        rate = s.learning_rate * max(0.01, 0.5 * (1.0 + math.cos(math.pi * share)))
        return Coefficients(
            minibatch=s.batch_size,
            clip=1.0,
            clip_value=0.0,
            value=s.value_coef,
            entropy=s.entropy_coef,
            max_grad_norm=s.max_grad_norm,
            learning_rate=rate,
            adam_eps=1e-8,
            weight_decay=s.weight_decay,
            normalise_advantage=False,
            imitate=True,
        )

    def _clip_log_std(self) -> None:
        """Clip the standard deviation of continuous actions from below at `clone.min_std`."""
        if not self.design.action.continuous_parts:
            return
        arrays = self.engine.snapshot()
        arrays["weight/log_std"] = np.maximum(arrays["weight/log_std"], np.float32(math.log(self.settings.min_std)))
        self.engine.restore(arrays)

    def snapshot(self) -> dict[str, Array]:
        """Copy everything that a later epoch, or training from this clone, needs."""
        return self.engine.snapshot() | {name: array.copy() for name, array in self.statistics.arrays().items()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore the arrays that `snapshot` returned."""
        self.engine.restore(arrays)
        for name, array in self.statistics.arrays().items():
            array[:] = arrays[name]


def summarise_epoch(row: dict[str, Any]) -> str:
    """A line about an epoch."""
    agreement = [f"accuracy {row['clone/accuracy']:.1%}"] if "clone/accuracy" in row else []
    agreement += [f"error {row['clone/error']:.4f}"] if "clone/error" in row else []
    return (
        f"loss {row['clone/loss']:.4f}, held out {row['clone/held_out_loss']:.4f}, {', '.join(agreement)}, "
        f"{row['time/samples_per_second']:,.0f} samples/s"
    )
