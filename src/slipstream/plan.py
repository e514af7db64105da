"""The plan: every switch that affects speed, as requested, as applied, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.errors import ConfigError
from slipstream.settings import PlanSettings, Settings

PYTHON_ENVS, NATIVE_ENVS, REPLAY_ENVS, DEVICE_ENVS = 64, 512, 8, 16_384
NATIVE_GAIN = 1.2
"""An env's own vector env is used if it steps at least this many times faster."""
THREAD_WORK = 2_000_000
"""Samples times weights of a minibatch for which one more thread pays off."""
DEFAULTS = {
    "vector": "serial",
    "native": False,
    "groups": 1,
    "zero_copy": True,
    "device": "cpu",
    "inference": "cpu",
    "storage": "host",
    "precision": "fp32",
    "compile": False,
    "compile_mode": "default",
    "graphs": False,
    "pinned": False,
    "cudnn_benchmark": False,
    "reproducible": False,
}
"""Values for switches that are missing in the checkpoint of an older run: it was trained with these."""

RENAMED = {"checkpointing": "activation_checkpointing"}
"""Switches of version 0.1.0 that have a new name."""


@dataclass(frozen=True)
class Switch:
    """One decision: what the settings request, what is applied, and the reason."""

    requested: Any
    applied: Any
    why: str


@dataclass
class Plan:
    """The switches of a run."""

    envs: Switch
    collector: Switch
    vector: Switch
    native: Switch
    workers: Switch
    groups: Switch
    lag: Switch
    zero_copy: Switch
    device: Switch
    inference: Switch
    storage: Switch
    learner: Switch
    precision: Switch
    compile: Switch
    compile_mode: Switch
    graphs: Switch
    pinned: Switch
    cudnn_benchmark: Switch
    threads: Switch
    micro_batch: Switch
    activation_checkpointing: Switch
    reproducible: Switch

    def applied(self) -> dict[str, Any]:
        """Return the applied values only, as a checkpoint stores them."""
        return {name: switch.applied for name, switch in vars(self).items()}

    def rows(self) -> list[tuple[str, Any, Any, str]]:
        """Return name, requested, applied and reason of each switch."""
        return [(f"plan.{name}", s.requested, s.applied, s.why) for name, s in vars(self).items()]

    def fall_back(self, name: str, applied: Any, why: str) -> None:
        """Change what is applied, after a decision could not be carried out."""
        setattr(self, name, Switch(getattr(self, name).requested, applied, why))


def describe_change(name: str, applied: Any, why: str) -> str:
    """Return the notice for a switch that fell back to another value."""
    return f"plan.{name} is {'off' if applied is False else applied}: {why}"


@dataclass(frozen=True)
class Facts:
    """What the plan follows from besides the settings: the env, the network and the machine."""

    cores: int
    native: bool
    """Whether the game steps a whole batch of envs in one compiled call."""
    minibatch: int
    weights: int = 10_000
    """Number of weights of the network."""
    replay: bool = False
    """Whether the algorithm is off-policy (SAC)."""
    needs_torch: str = ""
    """What in the run the fused kernels do not support; empty if they support everything."""
    gpu: str = ""
    """The name of the GPU; empty if torch can use none."""
    off_device: str = "this game has no GPU version"
    """Why env, policy and learner cannot all run on the GPU; empty if they can."""
    bf16: bool = True
    """Whether the GPU supports bf16 natively."""
    images: bool = False
    """Whether the network has convolutions."""
    no_native: str = "no vector env is registered for it"
    """Why the env cannot be stepped by its own vector env; empty if it can."""
    native_gain: float = 0.0
    """How many times faster its own vector env steps."""
    posix: bool = True
    """Whether the system has POSIX pipes, which step workers need."""


def make_plan(requested: PlanSettings, facts: Facts, before: Mapping[str, Any] | None = None) -> Plan:
    """Decide every switch. `before` is the applied plan of a run that is resumed, which keeps it."""
    if before is not None:
        kept = DEFAULTS | {RENAMED.get(name, name): value for name, value in before.items()}
        if "cuda" in (kept["device"], kept["inference"]) and not facts.gpu:
            return _without_gpu(requested, facts, kept)
        return Plan(
            **{
                name: Switch(getattr(requested, name), value, "the run was started with it")
                for name, value in kept.items()
            }
        )
    device, collector = _device_and_collector(requested, facts)
    envs = _envs(requested, facts, collector.applied)
    if collector.requested == "auto" and collector.applied == "actors" and envs.applied == 1:
        collector = Switch("auto", "local", "there is only one env")
    made: dict[str, Switch] = {"envs": envs, "collector": collector, "device": device}
    made |= _stepping(requested, facts, collector.applied, envs.applied)
    made |= _learning(requested, facts, device.applied, collector.applied, made["lag"].applied)
    made |= _on_gpu(requested, facts, device.applied, collector.applied)
    plan = Plan(**made, reproducible=Switch(requested.reproducible, False, "not requested: fastest choices"))
    if requested.reproducible:
        _make_reproducible(plan)
    return plan


def _without_gpu(requested: PlanSettings, facts: Facts, kept: Mapping[str, Any]) -> Plan:
    """Return the plan of a run that was started on a GPU and is resumed without one.

    The number of envs and the lag stay; everything else is decided again.
    """
    gpu_switches = (
        "collector",
        "device",
        "inference",
        "storage",
        "precision",
        "learner",
        "graphs",
        "pinned",
        "micro_batch",
    )
    free = {name: PlanSettings.model_fields[name].default for name in gpu_switches}
    plan = make_plan(requested.model_copy(update=free | {"envs": kept["envs"], "lag": kept["lag"]}), facts)
    for name, value in plan.applied().items():
        why = (
            getattr(plan, name).why
            if value == kept[name]
            else f"the run was started with {kept[name]} on a GPU, and this machine has none"
        )
        setattr(plan, name, Switch(getattr(requested, name), value, why))
    return plan


def _device_and_collector(requested: PlanSettings, facts: Facts) -> tuple[Switch, Switch]:
    """Decide the learner's device and the collector."""
    _check_gpu(requested, facts)
    device = _device(requested, facts)
    if requested.collector != "auto":
        return device, Switch(requested.collector, requested.collector, "requested")
    if facts.replay:
        return device, Switch("auto", "local", "SAC updates after every step, so worker processes gain nothing")
    if device.applied == "cuda" and not facts.off_device:
        return device, Switch("auto", "device", f"env, policy and learner all run on the {facts.gpu}")
    if device.applied == "cuda":
        return device, Switch("auto", "batched", "one policy on the GPU acts for all envs")
    if requested.inference == "cuda":
        return device, Switch("auto", "batched", "plan.inference=cuda: one policy on the GPU acts for all envs")
    if requested.vector != "auto":
        return device, Switch(
            "auto", "local", f"plan.vector={requested.vector}: the policy in this process acts for all envs"
        )
    if facts.cores > 1:
        return device, Switch("auto", "actors", f"{facts.cores} usable cores")
    return device, Switch("auto", "local", "one usable core")


def _device(requested: PlanSettings, facts: Facts) -> Switch:
    if requested.device != "auto":
        return Switch(requested.device, requested.device, "requested")
    if not facts.gpu:
        return Switch("auto", "cpu", "torch finds no GPU")
    if facts.replay:
        return Switch("auto", "cpu", "SAC runs on the CPU only")
    if requested.learner == "fused":
        return Switch("auto", "cpu", "plan.learner=fused runs on the CPU only")
    if requested.collector == "device" or (requested.collector == "auto" and not facts.off_device):
        return Switch("auto", "cuda", f"env, policy and learner all run on the {facts.gpu}")
    if facts.images:
        return Switch("auto", "cuda", f"an image network is faster on the {facts.gpu}")
    return Switch("auto", "cpu", "a small network is faster on the CPU than with transfers to a GPU")


def _check_gpu(requested: PlanSettings, facts: Facts) -> None:
    """Raise if a GPU is requested and cannot be used. With `plan.device=cpu`, tests run the GPU's code on the CPU."""
    if requested.collector == "device" and facts.off_device:
        raise ConfigError(f"plan.collector=device: {facts.off_device}.", "leave plan.collector=auto")
    if requested.device == "cuda" and facts.replay:
        raise ConfigError("SAC runs on the CPU only.", "leave plan.device=auto, or use algorithm=ppo")
    needs_gpu = "cuda" in (requested.device, requested.inference) or (
        requested.collector == "device" and requested.device != "cpu"
    )
    if needs_gpu and not facts.gpu:
        raise ConfigError("The plan requests a GPU, but torch finds none.", "slipstream doctor; or plan.device=cpu")


def _envs(requested: PlanSettings, facts: Facts, collector: str) -> Switch:
    default, why = (NATIVE_ENVS, "native games") if facts.native else (PYTHON_ENVS, "Python envs")
    if facts.replay:
        default, why = REPLAY_ENVS, "off-policy learning"
    elif collector == "device":
        default, why = DEVICE_ENVS, "envs on a GPU"
    return _choose(requested.envs, default, f"the default for {why}")


def _stepping(requested: PlanSettings, facts: Facts, collector: str, envs: int) -> dict[str, Switch]:
    """Decide how environments are stepped."""
    vector, groups = (
        _vector(requested, facts, collector),
        Switch(requested.groups, 1, f"the {collector} collector has one group"),
    )
    zero_copy = _requested_or(requested.zero_copy, True, "workers write directly into the learner's memory")
    lag = _choose(requested.lag, 0, "every rollout uses the newest weights")
    workers = _choose(requested.workers, min(facts.cores, envs), "one per usable core")
    if workers.applied > envs:
        workers = Switch(requested.workers, envs, "at most one worker per env")
    if collector == "batched":
        groups = _choose(requested.groups, 2, "one group steps while the policy acts for the other")
        if groups.applied > envs:
            groups = Switch(requested.groups, envs, "at most one group per env")
    if collector == "device":
        workers = Switch(requested.workers, 1, "the GPU steps all envs at once")
    elif collector != "actors" and vector.applied == "serial":
        workers = Switch(requested.workers, 1, f"the {collector} collector steps all envs in this process")
    if collector == "local":
        lag = _choose(requested.lag, 0, "the local collector cannot overlap with the update")
    elif collector == "device":
        lag = Switch(requested.lag, 0, "collecting and updating alternate on the GPU")
    if collector in ("local", "device"):
        zero_copy = Switch(requested.zero_copy, True, f"the {collector} collector has no worker rollouts to copy")
    return {
        "vector": vector,
        "native": _native(requested, facts),
        "workers": workers,
        "groups": groups,
        "lag": lag,
        "zero_copy": zero_copy,
    }


def _native(requested: PlanSettings, facts: Facts) -> Switch:
    if requested.native is False:
        return Switch(False, False, "requested")
    if facts.no_native:
        if requested.native:
            raise ConfigError(f"plan.native=true: {facts.no_native}.", "leave plan.native unset")
        return Switch(None, False, facts.no_native)
    if requested.native:
        return Switch(True, True, "requested")
    if requested.reproducible:
        return Switch(None, False, "plan.reproducible: not chosen by a timing")
    faster = facts.native_gain >= NATIVE_GAIN
    return Switch(None, faster, f"its own vector env steps {facts.native_gain:.1f} times as fast")


def _vector(requested: PlanSettings, facts: Facts, collector: str) -> Switch:
    if collector in ("actors", "device"):
        why = "each actor steps its own envs" if collector == "actors" else "the GPU steps all envs at once"
        return Switch(requested.vector, "serial", why)
    if requested.vector == "processes" and not facts.posix:
        return Switch("processes", "serial", "step workers need POSIX pipes")
    if requested.vector != "auto":
        return Switch(requested.vector, requested.vector, "requested")
    if collector == "local" or facts.cores == 1:
        return Switch(
            "auto",
            "serial",
            "the local collector steps one env after another" if facts.cores > 1 else "one usable core",
        )
    if facts.native:
        return Switch("auto", "threads", "native games release the GIL while they step")
    if not facts.posix:
        return Switch("auto", "threads", "step workers need POSIX pipes")
    return Switch("auto", "processes", "Python envs would hold the GIL in threads")


def _learning(requested: PlanSettings, facts: Facts, device: str, collector: str, lag: int) -> dict[str, Switch]:
    """Decide how gradient steps are taken."""
    needs = facts.needs_torch or _torch_only(requested, facts.replay)
    if device == "cuda" and not needs:
        needs = "a learner on the GPU"
    learner = _learner(requested, needs)
    if collector == "device":
        learner = Switch(requested.learner, "torch", "the device collector trains with torch on the same device")
    threads = _choose(requested.threads, *_threads(facts.cores, lag, facts.minibatch, facts.weights))
    micro_batch = _choose(requested.micro_batch, facts.minibatch, "a whole minibatch at once")
    activation_checkpointing = _requested_or(requested.activation_checkpointing, False, "off")
    compile = _requested_or(requested.compile, False, "off")
    if micro_batch.applied > facts.minibatch:
        micro_batch = Switch(requested.micro_batch, facts.minibatch, "at most a minibatch")
    if learner.applied == "fused":
        micro_batch = Switch(requested.micro_batch, None, "the fused kernel computes in small blocks already")
        compile = Switch(False, False, "the fused kernel is compiled already")
    elif facts.replay:
        micro_batch = Switch(requested.micro_batch, None, "SAC computes whole batches")
    if collector == "device":
        threads = Switch(requested.threads, 1, "the GPU computes the gradient steps")
        micro_batch = Switch(requested.micro_batch, facts.minibatch, "the GPU computes whole minibatches")
        activation_checkpointing = Switch(
            requested.activation_checkpointing, False, "the GPU computes whole minibatches"
        )
        compile = Switch(requested.compile, False, "the GPU's work is captured as CUDA graphs instead")
    mode = _choose_unless_auto(requested.compile_mode, "default", "requested")
    if not compile.applied:
        mode = Switch(requested.compile_mode, "default", "plan.compile is off")
    precision = _precision(requested, facts, device, collector, learner.applied)
    return {
        "learner": learner,
        "threads": threads,
        "micro_batch": micro_batch,
        "activation_checkpointing": activation_checkpointing,
        "compile": compile,
        "compile_mode": mode,
        "precision": precision,
    }


def _precision(requested: PlanSettings, facts: Facts, device: str, collector: str, learner: str) -> Switch:
    if requested.precision in ("tf32", "fp16") and device != "cuda":
        why = "TensorFloat-32 needs a GPU" if requested.precision == "tf32" else "fp16 is too slow on a CPU"
        return Switch(requested.precision, "fp32", why)
    if learner == "fused":
        return Switch(requested.precision, "fp32", "the fused kernel computes in fp32")
    if requested.precision == "fp16" and collector == "device":
        return Switch("fp16", "bf16" if facts.bf16 else "fp32", "the device collector does not support fp16")
    if requested.precision != "auto":
        return Switch(requested.precision, requested.precision, "requested")
    if device == "cuda" and facts.bf16:
        return Switch("auto", "bf16", "fast on a GPU; weights, optimiser and losses stay fp32")
    if device == "cuda":
        return Switch("auto", "fp32", f"the {facts.gpu} does not support bf16 natively")
    return Switch("auto", "fp32", "bf16 only if requested")


def _on_gpu(requested: PlanSettings, facts: Facts, device: str, collector: str) -> dict[str, Switch]:
    """Decide the switches that concern a GPU."""
    learns, no_gpu = device == "cuda", "nothing runs on a GPU"
    inference = Switch(
        requested.inference, "cpu", f"the {collector} collector acts with copies of the policy on the CPU"
    )
    if collector == "batched":
        inference = _choose_unless_auto(requested.inference, device, "same device as the learner")
    elif collector == "device":
        inference = Switch(requested.inference, device, "same device as the env")
    storage = Switch(requested.storage, "host", "the learner is on the CPU")
    if learns:
        storage = _choose_unless_auto(requested.storage, "device", "same device as the learner")
    if collector == "device":
        storage = Switch(requested.storage, "device", "rollouts are made on the learner's device")
    if not learns and inference.applied != "cuda":
        return {
            "inference": inference,
            "storage": storage,
            "graphs": Switch(requested.graphs, False, no_gpu),
            "pinned": Switch(requested.pinned, False, no_gpu),
            "cudnn_benchmark": Switch(requested.cudnn_benchmark, False, no_gpu),
        }
    pinned = _choose(requested.pinned, True, "transfers overlap with computation")
    if collector == "device":
        pinned = Switch(requested.pinned, False, "nothing is transferred: the env is on the GPU")
    images = "the network has convolutions" if facts.images else "the network has no convolutions"
    return {
        "inference": inference,
        "storage": storage,
        "pinned": pinned,
        "graphs": _choose(requested.graphs, True, "one graph launch instead of hundreds of kernel launches"),
        "cudnn_benchmark": _choose(requested.cudnn_benchmark, facts.images, images),
    }


def _make_reproducible(plan: Plan) -> None:
    """Undo choices that make results depend on timing or on the number of cores."""
    plan.reproducible = Switch(True, True, "requested")
    plan.fall_back("cudnn_benchmark", False, "plan.reproducible: no autotuning by timing")
    if plan.threads.requested is None:
        plan.fall_back("threads", 1, "plan.reproducible: the same on every machine")


def _torch_only(requested: PlanSettings, replay: bool) -> str:
    """Return what of the requested plan only PPO's and cloning's torch learner supports; empty if nothing."""
    torch_only = {
        "bf16": requested.precision == "bf16",
        "torch.compile": requested.compile,
        "activation_checkpointing": requested.activation_checkpointing,
    }
    what = next((name for name, used in torch_only.items() if used), "")
    if what and replay:
        raise ConfigError(
            f"SAC does not support {what}.",
            "leave plan.precision=auto and plan.compile, plan.activation_checkpointing unset, or use algorithm=ppo",
        )
    return what


def _learner(requested: PlanSettings, needs_torch: str) -> Switch:
    if requested.learner == "fused" and needs_torch:
        raise ConfigError(
            f"The fused learner does not support {needs_torch}.", "leave plan.learner=auto, which uses torch"
        )
    if requested.learner != "auto":
        return Switch(requested.learner, requested.learner, "requested")
    if needs_torch:
        return Switch("auto", "torch", f"{needs_torch} needs torch")
    return Switch("auto", "fused", "fastest for a small network on a CPU")


def check_batch(settings: Settings, envs: int, agents: int, recurrent: bool = False) -> int:
    """Return the batch size; raise if rollout, minibatch and sequences do not fit together.

    `recurrent` is whether a network of the user's own has memory.
    """
    ppo, policy = settings.ppo, settings.policy
    batch = envs * agents * (ppo.rollout if settings.algorithm == "ppo" else settings.sac.rollout)
    if settings.opponent:
        batch //= 2 if agents > 1 else 1
    if settings.algorithm != "ppo":
        return batch
    if recurrent or policy.memory != "none" or ppo.shuffle == "segments" or ppo.priority_alpha:
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
    """Raise unless rollouts and minibatches consist of whole sequences."""
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
            "lower it; a few steps are enough to warm up the recurrent state",
        )


def _threads(cores: int, lag: int, minibatch: int, weights: int) -> tuple[int, str]:
    """Return the number of threads and why: waking one costs tens of microseconds, so each needs enough work."""
    useful = minibatch * weights // THREAD_WORK
    if useful < 2:
        return 1, f"minibatches of {minibatch} are too small to split"
    if lag:
        return max(1, cores // 2), "the actors need the other cores"
    return min(cores, useful), "the cores are free during an update"


def _requested_or(requested: bool, default: bool, why: str) -> Switch:
    return Switch(requested, requested, why if requested == default else "requested")


def _choose_unless_auto(requested: str, default: str, why: str) -> Switch:
    return Switch(requested, default, why) if requested == "auto" else Switch(requested, requested, "requested")


def _choose(requested: Any, default: Any, why: str) -> Switch:
    return Switch(requested, default, why) if requested is None else Switch(requested, requested, "requested")


def _near_divisor(batch: int, minibatch: int) -> int:
    divisors = [n for n in range(1, batch + 1) if batch % n == 0] if batch <= 1 << 20 else [batch // 4]
    return min(divisors, key=lambda n: abs(n - minibatch))
