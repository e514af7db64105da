"""Behaviour cloning: from demos to a policy that does as they do, by the engines that PPO learns with."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from slipstream.algorithms.demo_batches import DemoBatches, DemoStatistics, Window
from slipstream.algorithms.engine import POLICY, SAMPLES, SUMS, VALUE, Coefficients, Engine
from slipstream.algorithms.running_stats import explained_variance
from slipstream.contracts import Array
from slipstream.demos.reader import Demos
from slipstream.policies.action_bounds import bound
from slipstream.policies.design import Design
from slipstream.policies.fused_actor import make_actor
from slipstream.settings import CloneSettings

READ_SHARE = 0.05
"""Reading that takes more than this share of an epoch is done ahead, by a thread."""
ACTED = 65_536
"""Samples that are acted on together."""
Progress = Callable[[int, int], None]


class Cloner:
    """A policy, its engine, and the demos that it learns from and is measured by."""

    def __init__(
        self, settings: CloneSettings, design: Design, params_and_stats: Array, engine: Engine, statistics: DemoStatistics,
        train: Demos, held_out: Demos, *, gamma: float, seed: int,
    ) -> None:  # fmt: skip
        self.now = settings
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
        self.ahead = False
        """Whether windows are read ahead of their use."""
        self.round = 0
        """How often demos have been added."""
        self._seed, self._gamma = seed, gamma
        self._acting = make_actor(design)

    def add(self, train: Demos, held_out: Demos) -> None:
        """Learn from more demos too; the scale of observations and returns stays."""
        scale, mib = float(self.statistics.returns.scale[0]), self.now.window_mib
        self.train, self.held_out = (
            DemoBatches(old.demos.join(more), self.design, scale, self._gamma, mib)
            for old, more in ((self.train, train), (self.held_out, held_out))
        )
        self.round += 1

    def epoch(self, number: int, tell: Progress = lambda done, total: None) -> dict[str, float]:
        """Learn from all demos once, in an order that depends on the seed and the epoch's number alone."""
        random = np.random.Generator(np.random.PCG64([self._seed, 0xC10, self.round, number]))
        totals, began, done = np.zeros(SUMS, np.float64), perf_counter(), 0
        _, mean, scale = self.design.split_params_and_stats(self.params_and_stats)
        before = dict(self.train.seconds)
        steps = self.train.demos.steps
        for window in self.train.batches(random, mean.copy(), scale.copy(), self.ahead):
            self._recall(self.train, window)
            order = random.permutation(window.batch.rows).astype(np.int64)
            share = self.now.batch_size * 64
            for first in range(0, len(order), max(1, share // window.batch.sequence)):
                some = order[first : first + max(1, share // window.batch.sequence)]
                totals += self.engine.run_epoch(window.batch, some, self._knobs(number, (done + first) / max(1, steps)))
                tell(min(steps, done + (first + len(some)) * window.batch.sequence), steps)
            done += int(window.batch.weight.sum())
            del window  # or it would stay while the next is read
        self._widen()
        seconds = perf_counter() - began
        spent = {name: self.train.seconds[name] - before[name] for name in before}
        samples = max(1.0, totals[SAMPLES])
        return {
            "clone/loss": float(totals[POLICY]) / samples,
            "clone/value_loss": float(totals[VALUE]) / samples,
            "clone/learning_rate": self._knobs(number, 1.0).learning_rate,
            "clone/failed_updates": int(self.engine.counters[2]),
            "time/samples_per_second": samples / seconds,
            "time/read": min(1.0, spent["read"] / seconds),
            "time/remember": min(1.0, spent["remember"] / seconds),
            "time/epoch_s": seconds,
        }

    def judge_reading(self, row: dict[str, float]) -> str:
        """Decide by an epoch's times whether to read ahead; return the decision in words."""
        told = f"reading takes {row['time/read']:.1%} of an epoch"
        if self.train.whole:
            return f"{told}: all demos fit in memory, and are indexed there"
        self.ahead = row["time/read"] > READ_SHARE
        return f"{told}: windows are read {'ahead by a thread' if self.ahead else 'as they are needed'}"

    def validate(self) -> tuple[dict[str, float], list[Array]]:
        """Loss and likeness on the held-out games, and a confusion matrix [asked, answered] of each choice."""
        design, sizes = self.design, self.design.action.sizes
        _, mean, scale = design.split_params_and_stats(self.params_and_stats)
        log_prob, values, value_targets, right, count = 0.0, [], [], np.zeros(max(1, design.action.parts)), 0.0
        confusion = [np.zeros((size, size), np.int64) for size in sizes]
        for window in self.held_out.batches(None, mean.copy(), scale.copy(), False):
            self._recall(self.held_out, window)
            there = window.batch.weight > 0
            seen = self.engine.evaluate(window.batch)
            log_prob += float(seen.log_prob[there].sum(dtype=np.float64))
            count += float(there.sum())
            values.append(seen.value[there])
            value_targets.append(window.batch.value_target[there])
            asked, answered = window.batch.action[there], self._answer(window)[there]
            if sizes:
                right += (asked == answered).sum(axis=0)
                for part, matrix in enumerate(confusion):
                    np.add.at(matrix, (asked[:, part], answered[:, part]), 1)
            else:
                right += np.square(self._played(asked) - self._played(answered)).sum(axis=0, dtype=np.float64)
            del window, there, seen, asked, answered
        row = {"clone/held_out_loss": -log_prob / count}
        chosen = np.ones(int(count), bool)
        row["clone/explained_variance"] = explained_variance(
            np.concatenate(value_targets), np.concatenate(values), chosen
        )
        named = range(design.action.parts)
        if sizes:
            row["clone/accuracy"] = float(right.mean() / count)
            row |= {f"clone/accuracy/{part}": float(right[part] / count) for part in named if len(sizes) > 1}
        else:
            row["clone/error"] = float(np.sqrt(right.mean() / count))
            row |= {f"clone/error/{part}": float(np.sqrt(right[part] / count)) for part in named}
        return row, confusion

    def _recall(self, lessons: DemoBatches, window: Window) -> None:
        if self.design.state_size:
            self._acting.load(self.params_and_stats)
            lessons.remember(window, self._acting)

    def _answer(self, window: Window) -> Array:
        """The likeliest action in every state, as the policy gives it."""
        batch, acting = window.batch, self._acting
        acting.load(self.params_and_stats)
        out = np.zeros(batch.action.shape, batch.action.dtype)
        rows, unused = batch.rows, np.zeros((2, max(batch.rows, 1)), np.float32)
        streams = np.zeros((rows, 2), np.int64)
        states = batch.state.copy()
        for t in range(batch.sequence):
            part = slice(t * rows, (t + 1) * rows)
            for first in range(0, rows, ACTED):
                some = np.arange(first, min(first + ACTED, rows))
                acting.act(
                    some, batch.obs[part], batch.mask[part], streams, False, out[part], unused[0], unused[1], states
                )
        return out

    def _played(self, action: Array) -> Array:
        """Continuous actions as the env takes them."""
        low, high = (np.array(side, np.float32) for side in (self.design.action.low, self.design.action.high))
        out = np.zeros_like(action)
        bound(np.ascontiguousarray(action), low, high, self.design.squashed, out)
        return out

    def _knobs(self, epoch: int, progress: float) -> Coefficients:
        """The rate falls along a cosine over all epochs."""
        s = self.now
        share = min(1.0, (epoch + progress) / s.epochs)
        rate = s.learning_rate * max(0.01, 0.5 * (1.0 + math.cos(math.pi * share)))
        return Coefficients(
            minibatch=s.batch_size, clip=1.0, clip_value=0.0, value=s.value_coef, entropy=s.entropy_coef,
            max_grad_norm=s.max_grad_norm, learning_rate=rate, adam_eps=1e-8, weight_decay=s.weight_decay,
            normalise_advantage=False, imitate=True,
        )  # fmt: skip

    def _widen(self) -> None:
        """Keep the deviation of continuous actions at its least or above."""
        if self.design.action.kind != "continuous":
            return
        arrays = self.engine.snapshot()
        arrays["weight/log_std"] = np.maximum(arrays["weight/log_std"], np.float32(math.log(self.now.min_std)))
        self.engine.restore(arrays)

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that a later epoch, or a training that starts from this, needs."""
        return self.engine.snapshot() | {name: array.copy() for name, array in self.statistics.arrays().items()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        self.engine.restore(arrays)
        for name, array in self.statistics.arrays().items():
            array[:] = arrays[name]


def facts_of(row: dict[str, Any]) -> str:
    """An epoch in one line."""
    like = f"accuracy {row['clone/accuracy']:.1%}" if "clone/accuracy" in row else f"error {row['clone/error']:.4f}"
    return (
        f"loss {row['clone/loss']:.4f}, held out {row['clone/held_out_loss']:.4f}, {like}, "
        f"{row['time/samples_per_second']:,.0f} samples/s"
    )
