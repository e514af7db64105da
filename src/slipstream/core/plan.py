"""The plan: every speed switch as requested, as applied, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.core.errors import ConfigError
from slipstream.settings import PlanSettings, Settings

PYTHON_ENVS, NATIVE_ENVS, REPLAY_ENVS = 64, 512, 8
THREAD_WORK = 2_000_000
"""Samples times weights of a minibatch that make a thread worth its waking."""
ADDED = {"precision": "fp32", "compile": False}
"""What was applied before these switches were there: runs of that time have kept nothing about them."""


@dataclass(frozen=True)
class Switch:
    """One decision."""

    requested: Any
    applied: Any
    why: str


@dataclass
class Plan:
    """The switches of a run."""

    envs: Switch
    collector: Switch
    workers: Switch
    lag: Switch
    learner: Switch
    threads: Switch
    micro_batch: Switch
    checkpointing: Switch
    precision: Switch
    compile: Switch

    def applied(self) -> dict[str, Any]:
        """The decisions alone, as a checkpoint keeps them."""
        return {name: switch.applied for name, switch in vars(self).items()}

    def rows(self) -> list[tuple[str, Any, Any, str]]:
        """Name, requested, applied and reason of each switch."""
        return [(f"plan.{name}", s.requested, s.applied, s.why) for name, s in vars(self).items()]

    def mend(self, name: str, applied: Any, why: str) -> None:
        """Put down what is done instead, after a decision could not be carried out."""
        setattr(self, name, Switch(getattr(self, name).requested, applied, why))


def make_plan(
    wanted: PlanSettings, *, cores: int, native: bool, minibatch: int, weights: int = 10_000, replay: bool = False,
    needs_torch: str = "", before: Mapping[str, Any] | None = None,
) -> Plan:  # fmt: skip
    """Decide every switch; `before` holds the applied plan of a run that is resumed, which then stands.

    `weights` is the size of the network, `replay` whether learning is off-policy, `needs_torch` what the kernels lack.
    """
    if before is not None:
        kept = ADDED | dict(before)
        return Plan(**{name: Switch(getattr(wanted, name), value, "as the run began") for name, value in kept.items()})
    default, why = (NATIVE_ENVS, "native games") if native else (PYTHON_ENVS, "Python envs")
    if replay:
        default, why = REPLAY_ENVS, "off-policy learning"
    envs = _choose(wanted.envs, default, f"the default for {why}")
    if wanted.collector != "auto":
        collector = Switch(wanted.collector, wanted.collector, "asked for")
    elif replay:
        collector = Switch("auto", "local", "updates follow every step: nothing to gain by processes")
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
    learner = _learner(wanted, needs_torch or _torch_alone(wanted, replay))
    threads = _choose(wanted.threads, *_threads(cores, lag.applied, minibatch, weights))
    micro_batch = _choose(wanted.micro_batch, minibatch, "a whole minibatch fits")
    checkpointing = Switch(wanted.checkpointing, wanted.checkpointing, "asked for" if wanted.checkpointing else "off")
    precision = Switch(wanted.precision, "fp32", "bf16 only if asked for")
    if wanted.precision != "auto":
        precision = Switch(wanted.precision, wanted.precision, "asked for")
    compile = Switch(wanted.compile, wanted.compile, "asked for" if wanted.compile else "off")
    if learner.applied == "fused":
        micro_batch = Switch(wanted.micro_batch, None, "the fused kernel holds one small block at a time anyway")
        precision = Switch(wanted.precision, "fp32", "the fused kernel computes in fp32")
        compile = Switch(False, False, "the fused kernel is compiled anyway")
    return Plan(envs, collector, workers, lag, learner, threads, micro_batch, checkpointing, precision, compile)


def _torch_alone(wanted: PlanSettings, replay: bool) -> str:
    """What of the wishes only the torch learner of PPO and cloning can do; empty: nothing."""
    wishes = {"bf16": wanted.precision == "bf16", "torch.compile": wanted.compile}
    what = next((name for name, wished in wishes.items() if wished), "")
    if what and replay:
        raise ConfigError(
            f"SAC cannot do {what}.", "leave plan.precision=auto and plan.compile=false, or use algorithm=ppo"
        )
    return what


def _learner(wanted: PlanSettings, needs_torch: str) -> Switch:
    if wanted.learner == "fused" and needs_torch:
        raise ConfigError(f"The fused learner cannot do {needs_torch}.", "leave plan.learner=auto, which takes torch")
    if wanted.learner != "auto":
        return Switch(wanted.learner, wanted.learner, "asked for")
    if needs_torch:
        return Switch("auto", "torch", f"{needs_torch} needs it")
    return Switch("auto", "fused", "a small network on a CPU")


def check_batch(settings: Settings, envs: int, agents: int) -> int:
    """Return the batch size, or say why the shapes do not fit."""
    ppo, policy = settings.ppo, settings.policy
    batch = envs * agents * (ppo.rollout if settings.algorithm == "ppo" else settings.sac.rollout)
    if settings.opponent:
        batch //= 2 if agents > 1 else 1
    if settings.algorithm != "ppo":
        return batch
    if policy.memory != "none" or ppo.order == "segments" or ppo.priority_alpha:
        _check_sequences(settings)
    if batch % ppo.minibatch:
        who = f"{envs} envs" + (f" x {agents} agents" if agents > 1 else "")
        raise ConfigError(
            f"A rollout of {who} x {ppo.rollout} steps = {batch} samples does not divide by `ppo.minibatch` = "
            f"{ppo.minibatch}.",
            f"use a divisor, e.g. {_near_divisor(batch, ppo.minibatch)}.",
        )
    return batch


def _check_sequences(settings: Settings) -> None:
    """Sequences must fill rollouts and minibatches."""
    ppo, length = settings.ppo, settings.policy.sequence
    for key, size in (("rollout", ppo.rollout), ("minibatch", ppo.minibatch)):
        if size % length:
            below, above = size // length * length, -(-size // length) * length
            near = f"{below} or {above}" if below else str(above)
            raise ConfigError(
                f"`ppo.{key}` = {size} does not divide into sequences of `policy.sequence` = {length} steps.",
                f"use a multiple, e.g. {near}, or another policy.sequence",
            )
    if settings.policy.burn_in >= ppo.rollout:
        raise ConfigError(
            f"`policy.burn_in` = {settings.policy.burn_in} is as long as a whole rollout of {ppo.rollout} steps.",
            "lower it; a few steps are enough to freshen a state",
        )


def _threads(cores: int, lag: int, minibatch: int, weights: int) -> tuple[int, str]:
    """Waking a thread costs some tens of microseconds, so each must have work enough to be worth it."""
    worth = minibatch * weights // THREAD_WORK
    if worth < 2:
        return 1, f"minibatches of {minibatch} are too small to share"
    if lag:
        return max(1, cores // 2), "beside the actors"
    return min(cores, worth), "between rollouts the cores are free"


def _choose(requested: Any, default: Any, why: str) -> Switch:
    return Switch(requested, default, why) if requested is None else Switch(requested, requested, "asked for")


def _near_divisor(batch: int, wanted: int) -> int:
    divisors = [n for n in range(1, batch + 1) if batch % n == 0] if batch <= 1 << 20 else [batch // 4]
    return min(divisors, key=lambda n: abs(n - wanted))
