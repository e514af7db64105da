"""Soft actor-critic: stores rollouts in a replay buffer and takes gradient steps on minibatches sampled from it.

Actions are continuous or discrete. With many critics, layer norm, a random pair of target critics and demonstrations in
every minibatch it is RLPD. The actor maximises the minimum of up to two critics, or the mean of more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.algorithms import diagnostics
from slipstream.algorithms.engine import FAILED_IN_A_ROW, FAILED_STEPS, MAX_FAILED_IN_A_ROW
from slipstream.algorithms.replay_buffer import ReplayBuffer, ReplaySampler, check_budget, load_demos
from slipstream.algorithms.running_stats import RunningMeanStd
from slipstream.algorithms.sac_critics import (
    ACTOR_STEPS,
    CRITIC_LOSS,
    GRADIENT_NORM,
    LOG_PROB,
    POLICY_LOSS,
    Q_VALUE,
    SUMS,
    UPDATES,
    SACCoefficients,
    SACEngine,
)
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Array
from slipstream.errors import ConfigError, EnvError
from slipstream.policies.design import Design
from slipstream.settings import SACSettings, Settings

GOOD_EVERY = 1000
"""Gradient steps between the copies of the weights that are restored after a divergence."""
EMPTY_LIMIT = 1000
"""Consecutive rollouts without a transition after which training stops."""


class SAC:
    """The algorithm: replay buffer, engine and observation normaliser.

    `params_and_stats` holds the policy that acts. The engine trains its weights in place.
    """

    section = "sac"

    def __init__(
        self,
        settings: Settings,
        design: Design,
        params_and_stats: Array,
        engine: SACEngine,
        rows: int,
        start: Mapping[str, Array] | None = None,
    ) -> None:
        s = settings.sac
        self.settings: SACSettings = s
        """The current settings; schedules replace them."""
        self.design = design
        self.params_and_stats = params_and_stats
        self.engine = engine
        self.notices: list[str] = []
        floats = design.obs.floats
        check_budget(floats, design.action, s.buffer_size, s.buffer_mib)
        demos = load_demos(s.demos, design) if s.demos else None
        demo_count = min(max(1, round(s.batch_size * s.demo_share)), s.batch_size - 1) if demos else 0
        self.replay = ReplayBuffer(floats, design.action, s.buffer_size, rows)
        self.sampler = ReplaySampler(self.replay, demos, s.batch_size, demo_count, s.target_critics, settings.seed)
        initial = engine.snapshot()
        initial["temperature"][0] = math.log(s.initial_temperature)
        engine.restore(initial)
        self._obs = RunningMeanStd(floats)
        for name, array in self._obs.arrays("obs").items():
            array[:] = (start or {}).get(name, array)
        self._owed = np.zeros(1, np.float64)
        """The fraction of a gradient step that is due but not taken yet."""
        self._taken = np.zeros(2, np.int64)
        """Gradient steps taken, and the env steps that they were due for."""
        self._rate_scale = np.ones(1, np.float64)
        self._warm = np.array([s.actor_warmup == 0], np.int64)
        """Whether `sac.actor_warmup` is over."""
        self._good = engine.snapshot()
        self._good_at = 0
        self._failing = False
        self._empty = 0
        self._write_normaliser()

    def update(self, rollout: Rollout, steps: int) -> tuple[int, dict[str, Any]]:
        """Store a rollout and take the gradient steps due for it; return its transitions and the metrics to log."""
        before = self.replay.total
        samples = self.replay.add(rollout)
        self._check_transitions(samples, rollout.fault)
        if self.settings.normalise_obs:
            self._obs.update(rollout.obs, rollout.active[: rollout.steps])
            self._write_normaliser()
        counted = max(0, self.replay.total - max(self.settings.learning_starts, before))
        if counted and not self._warm[0]:
            self._warm_up_critics()
        self._owed += self.settings.updates_per_step * counted
        due = math.floor(self._owed[0] + 1e-9)
        self._owed -= due
        self._taken[1] += counted
        row = self._take_steps(due) if due else {}
        return samples, row | {
            "sac/updates": int(self._taken[0]),
            "sac/updates_per_step": float(self._taken[0]) / max(1, int(self._taken[1])),
            "sac/buffer": self.replay.size,
            "sac/learning_rate": self.settings.learning_rate * float(self._rate_scale[0]),
            "sac/temperature": self.settings.temperature or self.engine.temperature(),
        }

    def _take_steps(self, due: int) -> dict[str, Any]:
        """Take gradient steps and return their metrics."""
        if self._taken[0] - self._good_at >= GOOD_EVERY and not self._failing:
            self._good, self._good_at = self.engine.snapshot(), int(self._taken[0])
        totals, failed = np.zeros(SUMS, np.float64), int(self.engine.counters[FAILED_STEPS])
        began = time.perf_counter()
        self.engine.run(self.sampler, self._coefficients(), due, totals)
        seconds = time.perf_counter() - began
        failed = int(self.engine.counters[FAILED_STEPS]) - failed
        self._taken[0] += int(totals[UPDATES])
        self._failing = failed > 0
        if failed:
            self.notices.append(diagnostics.skipped_steps(failed))
        if self.engine.counters[FAILED_IN_A_ROW] >= MAX_FAILED_IN_A_ROW:
            self.notices.append(diagnostics.fall_back(self.engine, self._good, self._rate_scale))
        taken = float(totals[UPDATES])
        if not taken:
            return {"sac/failed_updates": failed}
        means = totals / taken
        return {
            "sac/failed_updates": failed,
            "time/matmul": taken * self.engine.products() / seconds,
            "loss/policy": float(means[POLICY_LOSS]),
            "loss/value": float(means[CRITIC_LOSS]),
            "sac/entropy": -float(means[LOG_PROB]),
            "sac/q": float(means[Q_VALUE]),
            "sac/gradient_norm": float(means[GRADIENT_NORM]),
        }

    def _warm_up_critics(self) -> None:
        """Train only the critics for `sac.actor_warmup` steps, so that they fit the actor that training starts from."""
        coefficients = self._coefficients(freeze_actor=True)
        self.engine.run(self.sampler, coefficients, self.settings.actor_warmup, np.zeros(SUMS, np.float64))
        self._warm[0] = 1

    def _coefficients(self, freeze_actor: bool = False) -> SACCoefficients:
        """The coefficients of the next gradient steps: current settings, and the learning rate cut by divergences."""
        s = self.settings
        return SACCoefficients(
            learning_rate=s.learning_rate * float(self._rate_scale[0]),
            gamma=s.gamma,
            tau=s.tau,
            temperature=s.temperature or 0.0,
            target_entropy=target_entropy(s, self.design),
            freeze_actor=freeze_actor,
            n_step=s.n_step,
        )

    def gradient_statistics(self) -> dict[str, float]:
        """Statistics of the last gradient of each layer of the actor."""
        if not self.engine.counters[ACTOR_STEPS]:
            return {}
        return diagnostics.gradient_statistics(self.design.weights, self.engine.gradient(), self.engine.params)

    def dormant(self) -> dict[str, float]:
        """The share of dormant units of each hidden layer of the actor, and of all, on the last minibatch."""
        return diagnostics.dormant(self.engine.activity()) if self.engine.counters[ACTOR_STEPS] else {}

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copy everything that a resumed run needs, including the replay buffer; the second part is empty."""
        own = {name: array.copy() for name, array in self._own_arrays().items()}
        return self.engine.snapshot() | self.replay.snapshot() | own, {}

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Restore what `snapshot` returned."""
        self.engine.restore(arrays)
        self.replay.restore(arrays)
        for name, array in self._own_arrays().items():
            array[:] = arrays[name]
        self._good, self._good_at = self.engine.snapshot(), int(self._taken[0])
        self._write_normaliser()

    def _own_arrays(self) -> dict[str, Array]:
        return self._obs.arrays("obs") | {
            "owed": self._owed,
            "taken": self._taken,
            "rate_scale": self._rate_scale,
            "streams": self.sampler.streams,
            "warm": self._warm,
        }

    def _check_transitions(self, samples: int, fault: str) -> None:
        """Raise after too many rollouts without a transition."""
        self._empty = 0 if samples else self._empty + 1
        if self._empty >= EMPTY_LIMIT:
            raise EnvError(
                f"The last {EMPTY_LIMIT:,} rollouts had no usable transition: every observation or reward was masked, "
                f"or no agent acted. {fault}".rstrip(),
                "fix the env or the reward term",
            )

    def _write_normaliser(self) -> None:
        if self.settings.normalise_obs:
            self.design.write_normaliser(self.params_and_stats, self._obs.mean, self._obs.scale)


def target_entropy(settings: SACSettings, design: Design) -> float:
    """`sac.target_entropy`; by default minus the action dimensions, or half of the maximum entropy if discrete."""
    if settings.target_entropy is not None:
        return settings.target_entropy
    action = design.action
    return -float(action.parts) if action.kind == "continuous" else 0.5 * math.log(action.sizes[0])


def check_supported(settings: Settings, design: Design) -> None:
    """Raise a `ConfigError` if SAC does not support the settings or the env; called before an engine is built."""
    s, action = settings.sac, design.action
    instead = "or use algorithm=ppo"
    if design.policy.memory != "none":
        raise ConfigError(
            f"SAC does not support recurrent policies: `policy.memory` = {design.policy.memory}.",
            f"set policy.memory=none, {instead}",
        )
    if design.state_size:
        raise ConfigError(
            f"SAC does not support recurrent policies: `policy.network` = {design.policy.network} has memory.",
            f"use a network without `state_size`, {instead}",
        )
    if not design.obs.plain:
        field = next(field for field in design.obs.fields if field.kind != "vector")
        name = f" `{field.name}`" if field.name else ""
        raise ConfigError(
            f"SAC supports vector observations only: the observation{name} is of kind {field.kind} {field.shape}.",
            f"choose an env whose observations are vectors, {instead}",
        )
    if action.kind == "mixed":
        raise ConfigError(
            f"SAC needs a Box or a Discrete action space: this env has mixed actions, {action.discrete_parts} discrete "
            f"and {action.continuous_parts} continuous parts.",
            "use algorithm=ppo",
        )
    if action.kind == "multi_discrete" or any(action.binary):
        raise ConfigError(
            f"SAC needs a Box or a Discrete action space: this env has {action.parts} discrete actions per step.",
            f"combine them into one Discrete, {instead}",
        )
    if s.target_critics > s.critics:
        raise ConfigError(
            f"`sac.target_critics` = {s.target_critics} is more than `sac.critics` = {s.critics}.",
            f"use sac.target_critics={s.critics} at most",
        )
    if s.demos and s.batch_size < 2:
        raise ConfigError(
            "`sac.batch_size` = 1 cannot hold both a demo and a transition of the replay buffer.",
            "use sac.batch_size=2 at least",
        )
