"""PPO: from a rollout to better weights, by an engine that takes the gradient steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slipstream.collect.rollout import Rollout
from slipstream.core.contracts import Array
from slipstream.core.errors import EnvError
from slipstream.learn.advantages import Moments, estimate_advantages, sum_obs, sum_returns
from slipstream.learn.batch import Batch, Engine, Knobs, Outcome
from slipstream.models.acting import split_pack
from slipstream.models.shape import Shape
from slipstream.settings import PPOSettings

GOOD_EVERY = 16
"""Iterations between the copies of the weights that a divergence falls back to."""


class PPO:
    """Weights, optimiser and normalisers; `pack` is what acts."""

    def __init__(self, settings: PPOSettings, shape: Shape, pack: Array, engine: Engine, rows: int, seed: int) -> None:
        self.settings = settings
        self.shape = shape
        self.pack = pack
        self.engine = engine
        self.notices: list[str] = []
        self._random = np.random.Generator(np.random.PCG64([seed, 0x5A3]))
        self._obs = Moments(shape.obs)
        self._return = Moments(1)
        self._running = np.zeros(rows, np.float64)
        self._rate_scale = np.ones(1, np.float64)
        self._advantage: Array = np.zeros((0, 0), np.float32)
        self._good = engine.snapshot()
        self._failing = False
        self._iterations = np.zeros(1, np.int64)
        _, mean, scale = split_pack(shape, pack)
        mean[:], scale[:] = 0.0, 1.0

    def update(self, rollout: Rollout, steps: int) -> tuple[int, dict[str, Any]]:
        """Learn from a rollout that began at `steps`; return its number of samples and what is to be logged."""
        knobs = self.knobs(steps)
        batch, reward_scale = self._prepare(rollout)
        chosen = np.flatnonzero(rollout.active[: rollout.steps].reshape(-1))
        if not chosen.size:
            raise EnvError(
                "Not one transition of this rollout could be used: every observation or reward was masked.",
                "the messages above name the env and the reward term; mend them",
            )
        if self._iterations[0] % GOOD_EVERY == 0 and not self._failing:
            self._good = self.engine.snapshot()
        outcome = self.engine.run(batch, self._order(chosen, knobs.minibatch), knobs)
        metrics = _metrics(outcome, knobs, batch, chosen) | {"ppo/reward_scale": reward_scale}
        self._failing = outcome.failed > 0
        if outcome.failed:
            self.notices.append(f"{outcome.failed} gradient steps were not finite and were left out.")
        if outcome.diverged:
            self._fall_back()
        self._learn_obs(rollout)
        self._iterations += 1
        return len(chosen), metrics

    def knobs(self, steps: int) -> Knobs:
        """The settings of this moment: schedules, and what a divergence has taken off the learning rate."""
        s = self.settings
        names = ("learning_rate", "clip", "entropy")
        left = {name: schedule(s, steps) if name in s.scheduled else 1.0 for name in names}
        return Knobs(
            minibatch=s.minibatch,
            clip=s.clip * left["clip"],
            clip_value=s.clip_value,
            value=s.value,
            entropy=s.entropy * left["entropy"],
            max_grad_norm=s.max_grad_norm,
            learning_rate=s.learning_rate * left["learning_rate"] * float(self._rate_scale[0]),
            adam_eps=s.adam_eps,
            normalise_advantage=s.normalise_advantage,
            target_kl=s.target_kl,
        )

    def gradient_norms(self) -> dict[str, float]:
        """The length of each layer's last gradient."""
        named = self.shape.named(self.engine.gradient())
        return {f"gradient/{name}": float(np.linalg.norm(array)) for name, array in named.items()}

    def snapshot(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copies of all that a resumed run needs: arrays, and the state of the random generator."""
        arrays = {name: array.copy() for name, array in self._own_arrays().items()}
        return self.engine.snapshot() | arrays, {"random": self._random.bit_generator.state}

    def restore(self, arrays: dict[str, Array], state: dict[str, Any]) -> None:
        """Put back what `snapshot` gave."""
        self.engine.restore(arrays)
        for name, array in self._own_arrays().items():
            array[:] = arrays[name]
        self._random.bit_generator.state = state["random"]
        self._good = self.engine.snapshot()
        self._write_normaliser()

    def _own_arrays(self) -> dict[str, Array]:
        own = {"running_return": self._running, "rate_scale": self._rate_scale, "iterations": self._iterations}
        return self._obs.arrays("obs") | self._return.arrays("return") | own

    def _prepare(self, rollout: Rollout) -> tuple[Batch, float]:
        """Advantages, value targets and flat views of the rollout."""
        s, steps = self.settings, rollout.steps
        scale = 1.0
        if s.normalise_return:
            sums = np.zeros(3, np.float64)
            active = rollout.active[:steps]
            sum_returns(
                rollout.reward, rollout.terminated, rollout.truncated, active, s.gamma, self._running, sums
            )  # fmt: skip
            count = max(1.0, sums[0])
            mean = sums[1:2] / count
            self._return.merge(sums[0], mean, np.maximum(sums[2:3] / count - mean * mean, 0.0))
            scale = float(self._return.scale[0])
        if self._advantage.shape != rollout.reward.shape:
            self._advantage = np.zeros(rollout.reward.shape, np.float32)
        estimate_advantages(
            rollout.reward, rollout.value, rollout.final_value, rollout.terminated, rollout.truncated,
            rollout.active, s.gamma, s.gae_lambda, scale, self._advantage,
        )  # fmt: skip
        value = rollout.value[:steps]
        _, mean, inverse = split_pack(self.shape, self.pack)
        samples = rollout.reward.size

        def flat(array: Array) -> Array:
            return array[:steps].reshape(samples, *array.shape[2:])

        batch = Batch(
            obs=flat(rollout.obs),
            mean=mean,
            scale=inverse,
            mask=flat(rollout.mask),
            action=flat(rollout.action),
            logp=flat(rollout.logp),
            value=flat(rollout.value),
            advantage=flat(self._advantage),
            goal=flat(self._advantage + value),
        )
        return batch, scale

    def _order(self, chosen: Array, minibatch: int) -> Array:
        """A fresh order for each epoch; what does not fill a minibatch waits for another epoch's luck."""
        whole = len(chosen) - len(chosen) % minibatch or len(chosen)
        return np.stack([self._random.permutation(chosen)[:whole] for _ in range(self.settings.epochs)])

    def _learn_obs(self, rollout: Rollout) -> None:
        if not self.settings.normalise_obs:
            return
        shift = self._obs.mean.copy()
        total, squares = np.zeros_like(shift), np.zeros_like(shift)
        count = sum_obs(rollout.obs, rollout.active[: rollout.steps], shift, total, squares)
        mean = total / max(1, count)
        self._obs.merge(count, shift + mean, np.maximum(squares / max(1, count) - mean * mean, 0.0))
        self._write_normaliser()

    def _write_normaliser(self) -> None:
        _, mean, scale = split_pack(self.shape, self.pack)
        if self.settings.normalise_obs:
            mean[:], scale[:] = self._obs.mean, self._obs.scale

    def _fall_back(self) -> None:
        self.engine.restore(self._good)
        self._rate_scale *= 0.5
        self.notices.append(
            "Three gradient steps in a row were not finite: the last good weights are back, and the learning rate is "
            f"halved (now {self._rate_scale[0]:g} of its setting)."
        )


def schedule(settings: PPOSettings, steps: int) -> float:
    """What is left of a scheduled setting after `steps`, as a share of its start."""
    if settings.schedule == "constant" or settings.schedule_steps == 0:
        return 1.0
    progress = min(1.0, steps / settings.schedule_steps)
    left = 1.0 - progress if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.schedule_end + (1.0 - settings.schedule_end) * left


def _metrics(outcome: Outcome, knobs: Knobs, batch: Batch, chosen: Array) -> dict[str, Any]:
    goal, value = batch.goal[chosen], batch.value[chosen]
    spread = float(np.var(goal))
    explained = 1.0 - float(np.var(goal - value)) / spread if spread > 1e-12 else float("nan")
    return {
        "loss/policy": outcome.policy_loss,
        "loss/value": outcome.value_loss,
        "ppo/entropy": outcome.entropy,
        "ppo/kl": outcome.kl,
        "ppo/clip_fraction": outcome.clip_fraction,
        "ppo/explained_variance": explained,
        "ppo/gradient_norm": outcome.gradient_norm,
        "ppo/learning_rate": knobs.learning_rate,
        "ppo/updates": outcome.updates,
        "ppo/failed_updates": outcome.failed,
    }
