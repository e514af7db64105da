"""SAC: from rollouts to a replay buffer, and from there to better weights, by an engine that takes the gradient steps.

Soft actor-critic, for continuous actions and for choices; with many critics under layer norm, a random pair of targets
and demos in every batch it is RLPD. The actor follows the lesser of two critics' values, and the mean of more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.algorithms import diagnostics
from slipstream.algorithms.replay_buffer import ReplayBuffer, ReplaySampler, check_budget, load_demos
from slipstream.algorithms.running_stats import RunningMeanStd
from slipstream.algorithms.sac_critics import (
    CRITIC,
    LENGTH,
    LOGP,
    POLICY,
    SUMS,
    UPDATES,
    Critics,
    Q,
    SACCoefficients,
    SACEngine,
)
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array
from slipstream.errors import ConfigError, EnvError
from slipstream.policies.design import Design
from slipstream.settings import SACSettings, Settings

GOOD_EVERY = 1000
"""Gradient steps between the copies of the weights that a divergence falls back to."""
EMPTY_LIMIT = 1000
"""Rollouts without a transition, one after another, after which a run gives up."""


class SAC:
    """Buffer, weights, optimiser and normaliser; `params_and_stats` is what acts."""

    section = "sac"

    def __init__(
        self, settings: Settings, design: Design, params_and_stats: Array, rows: int, threads: int, learner: str,
        start: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        s = settings.sac
        refuse(settings, design)
        self.now: SACSettings = s
        """The settings of this moment; schedules replace them."""
        self.design = design
        self.params_and_stats = params_and_stats
        self.notices: list[str] = []
        floats = design.obs.floats
        check_budget(floats, design.action, s.buffer_size, s.buffer_mib)
        demos = load_demos(s.demos, design) if s.demos else None
        demo_count = min(max(1, round(s.batch_size * s.demo_share)), s.batch_size - 1) if demos else 0
        self.replay = ReplayBuffer(floats, design.action, s.buffer_size, rows)
        self.feed = ReplaySampler(self.replay, demos, s.batch_size, demo_count, s.target_critics, settings.seed)
        self.engine = make_engine(
            learner, design, Critics(design, s), params_and_stats, s.batch_size, threads, settings.seed
        )
        first = self.engine.snapshot()
        first["temperature"][0] = math.log(s.initial_temperature)
        self.engine.restore(first)
        self._obs = RunningMeanStd(floats)
        for name, array in self._obs.arrays("obs").items():
            array[:] = (start or {}).get(name, array)
        self._owed = np.zeros(1, np.float64)
        """The part of a gradient step that is due but not yet taken."""
        self._taken = np.zeros(2, np.int64)
        """Gradient steps so far, and the steps of experience that they were due for."""
        self._rate_scale = np.ones(1, np.float64)
        self._warm = np.array([s.actor_warmup == 0], np.int64)
        """Whether the critics have had their start."""
        self._good = self.engine.snapshot()
        self._good_at = 0
        self._failing = False
        self._empty = 0
        self._write_normaliser()

    def update(self, rollout: Rollout, steps: int) -> tuple[int, dict[str, Any]]:
        """Take in a rollout and take the gradient steps due for it; return its samples and what is to be logged."""
        before = self.replay.total
        samples = self.replay.add(rollout)
        self._watch(samples)
        if self.now.normalise_obs:
            self._obs.update(rollout.obs, rollout.active[: rollout.steps])
            self._write_normaliser()
        episode_start = max(0, self.replay.total - max(self.now.learning_starts, before))
        if episode_start and not self._warm[0]:
            self._warm_up()
        self._owed += self.now.updates_per_step * episode_start
        due = math.floor(self._owed[0] + 1e-9)
        self._owed -= due
        self._taken[1] += episode_start
        row = self._learn(due) if due else {}
        return samples, row | {
            "sac/updates": int(self._taken[0]),
            "sac/updates_per_step": float(self._taken[0]) / max(1, int(self._taken[1])),
            "sac/buffer": self.replay.filled,
            "sac/learning_rate": self.now.learning_rate * float(self._rate_scale[0]),
            "sac/temperature": self.now.temperature or self.engine.temperature(),
        }

    def _learn(self, due: int) -> dict[str, Any]:
        """Take gradient steps, and say how they went."""
        if self._taken[0] - self._good_at >= GOOD_EVERY and not self._failing:
            self._good, self._good_at = self.engine.snapshot(), int(self._taken[0])
        totals, failed = np.zeros(SUMS, np.float64), int(self.engine.counters[2])
        began = time.perf_counter()
        self.engine.run(self.feed, self._knobs(), due, totals)
        seconds = time.perf_counter() - began
        failed = int(self.engine.counters[2]) - failed
        self._taken[0] += int(totals[UPDATES])
        self._failing = failed > 0
        if failed:
            self.notices.append(diagnostics.skipped_steps(failed))
        if self.engine.counters[1] >= 3:
            self.notices.append(diagnostics.fall_back(self.engine, self._good, self._rate_scale))
        taken = float(totals[UPDATES])
        if not taken:
            return {"sac/failed_updates": failed}
        means = totals / taken
        return {
            "sac/failed_updates": failed,
            "time/products": taken * self.engine.products() / seconds,
            "loss/policy": float(means[POLICY]),
            "loss/value": float(means[CRITIC]),
            "sac/entropy": -float(means[LOGP]),
            "sac/q": float(means[Q]),
            "sac/gradient_norm": float(means[LENGTH]),
        }

    def _warm_up(self) -> None:
        """Let the critics learn what the actor is worth, at once, while it stays as it is."""
        self.engine.run(self.feed, self._knobs(frozen=True), self.now.actor_warmup, np.zeros(SUMS, np.float64))
        self._warm[0] = 1

    def _knobs(self, frozen: bool = False) -> SACCoefficients:
        """What the gradient steps of this moment follow: settings, and what a divergence has taken off the rate."""
        s = self.now
        return SACCoefficients(
            learning_rate=s.learning_rate * float(self._rate_scale[0]),
            gamma=s.gamma,
            tau=s.tau,
            temperature=s.temperature or 0.0,
            target_entropy=entropy_to_keep(s, self.design),
            frozen=frozen,
            n_step=s.n_step,
        )

    def gradient_statistics(self) -> dict[str, float]:
        """Facts about the last gradient of each layer of the actor."""
        if not self.engine.counters[3]:
            return {}
        return diagnostics.gradient_statistics(self.design.weights, self.engine.gradient(), self.engine.params)

    def dormant(self) -> dict[str, float]:
        """The share of units of each hidden layer of the actor, and of all, that hardly move on the last batch."""
        return diagnostics.dormant(self.engine.activity()) if self.engine.counters[3] else {}

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copies of all that a resumed run needs, the buffer among them; nothing has to stand beside the arrays."""
        own = {name: array.copy() for name, array in self._own_arrays().items()}
        return self.engine.snapshot() | self.replay.snapshot() | own, {}

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Put back what `snapshot` gave."""
        self.engine.restore(arrays)
        self.replay.restore(arrays)
        for name, array in self._own_arrays().items():
            array[:] = arrays[name]
        self._good, self._good_at = self.engine.snapshot(), int(self._taken[0])
        self._write_normaliser()

    def _own_arrays(self) -> dict[str, Array]:
        own = {"owed": self._owed, "taken": self._taken, "rate_scale": self._rate_scale, "streams": self.feed.streams}
        own |= {"warm": self._warm}
        return self._obs.arrays("obs") | own

    def _watch(self, samples: int) -> None:
        """Give up on an env that never gives a transition."""
        self._empty = 0 if samples else self._empty + 1
        if self._empty >= EMPTY_LIMIT:
            raise EnvError(
                f"Not one transition of the last {EMPTY_LIMIT:,} rollouts could be used: every observation or reward "
                "was masked, or nobody acted.",
                "the messages above name the env and the reward term; mend them",
            )

    def _write_normaliser(self) -> None:
        if self.now.normalise_obs:
            self.design.write_normaliser(self.params_and_stats, self._obs.mean, self._obs.scale)


def make_engine(
    learner: str, design: Design, critics: Critics, params_and_stats: Array, batch: int, threads: int, seed: int
) -> SACEngine:  # fmt: skip
    """What takes the gradient steps."""
    if learner == "torch":
        from slipstream.engines.sac_torch import TorchSAC

        return TorchSAC(design, critics, params_and_stats, threads, seed)
    from slipstream.engines.sac_fused import FusedSAC

    return FusedSAC(design, critics, params_and_stats, batch, threads, seed)


def entropy_to_keep(settings: SACSettings, design: Design) -> float:
    """The entropy that the temperature aims at."""
    if settings.target_entropy is not None:
        return settings.target_entropy
    action = design.action
    return -float(action.parts) if action.kind == "continuous" else 0.5 * math.log(action.sizes[0])


def refuse(settings: Settings, design: Design) -> None:
    """Say what SAC cannot do with these settings or this env."""
    s, action = settings.sac, design.action
    instead = "or use algorithm=ppo"
    if design.policy.memory != "none":
        raise ConfigError(
            f"SAC learns from single steps: `policy.memory` = {design.policy.memory} cannot be used with it.",
            f"set policy.memory=none, {instead}",
        )
    if not design.obs.plain:
        field = next(field for field in design.obs.fields if field.kind != "vector")
        name = f" `{field.name}`" if field.name else ""
        raise ConfigError(
            f"SAC learns from vectors: the observation{name} is of kind {field.kind} {field.shape}.",
            f"choose an env whose observations are vectors, {instead}",
        )
    if action.kind == "multi_discrete" or any(action.binary):
        raise ConfigError(
            f"SAC needs a Box or a Discrete action space: this env has {action.parts} choices side by side.",
            f"offer them as one Discrete, {instead}",
        )
    if s.target_critics > s.critics:
        raise ConfigError(
            f"`sac.target_critics` = {s.target_critics} cannot be picked among `sac.critics` = {s.critics}.",
            f"use sac.target_critics={s.critics} at most",
        )
    if s.demos and s.batch_size < 2:
        raise ConfigError(
            "`sac.batch_size` = 1 has no room for both demos and experience.", "use sac.batch_size=2 at least"
        )
