"""The plan: every speed switch as requested, as applied, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.core.errors import ConfigError
from slipstream.settings import PlanSettings, Settings

PYTHON_ENVS, NATIVE_ENVS = 64, 512
THREAD_ROWS = 256
"""Rows of a minibatch that make a thread worth its waking."""


@dataclass(frozen=True)
class Switch:
    """One decision."""

    requested: Any
    applied: Any
    why: str


@dataclass(frozen=True)
class Plan:
    """The switches of a run."""

    envs: Switch
    collector: Switch
    workers: Switch
    lag: Switch
    learner: Switch
    threads: Switch

    def applied(self) -> dict[str, Any]:
        """The decisions alone, as a checkpoint keeps them."""
        return {name: switch.applied for name, switch in vars(self).items()}

    def rows(self) -> list[tuple[str, Any, Any, str]]:
        """Name, requested, applied and reason of each switch."""
        return [(f"plan.{name}", s.requested, s.applied, s.why) for name, s in vars(self).items()]


def make_plan(
    wanted: PlanSettings, *, cores: int, native: bool, minibatch: int, before: Mapping[str, Any] | None = None
) -> Plan:
    """Decide every switch; `before` holds the applied plan of a run that is resumed, which then stands."""
    if before is not None:
        kept = {name: Switch(getattr(wanted, name), value, "as the run began") for name, value in before.items()}
        return Plan(**kept)
    default = NATIVE_ENVS if native else PYTHON_ENVS
    envs = _choose(wanted.envs, default, "the default for native games" if native else "the default for Python envs")
    if wanted.collector != "auto":
        collector = Switch(wanted.collector, wanted.collector, "asked for")
    elif cores > 1 and envs.applied > 1:
        collector = Switch("auto", "actors", f"{cores} usable cores")
    else:
        collector = Switch("auto", "local", "one usable core" if cores == 1 else "one env")
    if collector.applied == "local":
        workers = Switch(wanted.workers, 1, "local collects in this process")
        lag = _choose(wanted.lag, 0, "there is nothing to overlap with")
    else:
        workers = _choose(wanted.workers, min(cores, envs.applied), "one per usable core")
        if workers.applied > envs.applied:
            workers = Switch(wanted.workers, envs.applied, "no more workers than envs")
        lag = _choose(wanted.lag, 0, "every rollout by the newest weights")
    learner = Switch("auto", "fused", "a small network on a CPU")
    if wanted.learner != "auto":
        learner = Switch(wanted.learner, wanted.learner, "asked for")
    threads = _choose(wanted.threads, *_threads(cores, lag.applied, minibatch))
    return Plan(envs, collector, workers, lag, learner, threads)


def check_batch(settings: Settings, envs: int, agents: int) -> int:
    """Return the batch size, or say why the shapes do not fit."""
    ppo = settings.ppo
    batch = envs * agents * ppo.rollout
    if settings.opponent:
        batch //= 2 if agents > 1 else 1
    if batch % ppo.minibatch:
        who = f"{envs} envs" + (f" x {agents} agents" if agents > 1 else "")
        raise ConfigError(
            f"A rollout of {who} x {ppo.rollout} steps = {batch} samples does not divide by `ppo.minibatch` = "
            f"{ppo.minibatch}.",
            f"use a divisor, e.g. {_near_divisor(batch, ppo.minibatch)}.",
        )
    return batch


def _threads(cores: int, lag: int, minibatch: int) -> tuple[int, str]:
    """Waking a thread costs some tens of microseconds, so each must have rows enough to be worth it."""
    if minibatch < 2 * THREAD_ROWS:
        return 1, f"minibatches of {minibatch} are too small to share"
    if lag:
        return max(1, cores // 2), "beside the actors"
    return min(cores, minibatch // THREAD_ROWS), "between rollouts the cores are free"


def _choose(requested: Any, default: Any, why: str) -> Switch:
    return Switch(requested, default, why) if requested is None else Switch(requested, requested, "asked for")


def _near_divisor(batch: int, wanted: int) -> int:
    divisors = [n for n in range(1, batch + 1) if batch % n == 0] if batch <= 1 << 20 else [batch // 4]
    return min(divisors, key=lambda n: abs(n - wanted))
