"""The plan: every speed switch as requested, as applied, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.errors import ConfigError
from slipstream.settings import PlanSettings, Settings

PYTHON_ENVS, NATIVE_ENVS, REPLAY_ENVS, DEVICE_ENVS = 64, 512, 8, 16_384
NATIVE_GAIN = 1.2
"""A vector env of the env's own is used where it steps so many times faster."""
THREAD_WORK = 2_000_000
"""Samples times weights of a minibatch that make a thread worth its waking."""
ADDED = {
    "vector": "serial", "native": False, "groups": 1, "zero_copy": True, "device": "cpu", "inference": "cpu",
    "storage": "host", "precision": "fp32", "compile": False, "compile_mode": "default", "graphs": False,
    "pinned": False, "cudnn_benchmark": False, "reproducible": False,
}  # fmt: skip
"""What was applied before these switches were there: runs of that time have kept nothing about them."""

RENAMED = {"checkpointing": "activation_checkpointing"}
"""Switches of version 0.1.0 that have a new name."""


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
        """The decisions alone, as a checkpoint keeps them."""
        return {name: switch.applied for name, switch in vars(self).items()}

    def rows(self) -> list[tuple[str, Any, Any, str]]:
        """Name, requested, applied and reason of each switch."""
        return [(f"plan.{name}", s.requested, s.applied, s.why) for name, s in vars(self).items()]

    def mend(self, name: str, applied: Any, why: str) -> None:
        """Put down what is done instead, after a decision could not be carried out."""
        setattr(self, name, Switch(getattr(self, name).requested, applied, why))


def changed(name: str, applied: Any, why: str) -> str:
    """What is said when a switch could not be carried out."""
    return f"plan.{name} is {'off' if applied is False else applied}: {why}"


@dataclass(frozen=True)
class Facts:
    """What the plan of a run follows from, besides wishes."""

    cores: int
    native: bool
    """Whether the game steps a whole batch in one compiled call."""
    minibatch: int
    weights: int = 10_000
    """The size of the network."""
    replay: bool = False
    """Whether learning is off-policy."""
    needs_torch: str = ""
    """What of the run the fused kernels lack; empty: nothing."""
    gpu: str = ""
    """The name of the GPU; empty: there is none that torch can use."""
    off_device: str = "this game has no GPU version"
    """Why game, policy or learner cannot live on the GPU as a whole; empty: they can."""
    bf16: bool = True
    """Whether that GPU computes in bf16 by itself."""
    images: bool = False
    """Whether the network convolves."""
    no_native: str = "no vector env is registered for it"
    """Why no vector env of its own can step the env; empty: one can."""
    native_gain: float = 0.0
    """How many times faster that one steps."""
    posix: bool = True
    """Whether the system has the pipes that worker processes are rung by."""


def make_plan(wanted: PlanSettings, facts: Facts, before: Mapping[str, Any] | None = None) -> Plan:
    """Decide every switch; `before` holds the applied plan of a run that is resumed, which then stands."""
    if before is not None:
        kept = ADDED | {RENAMED.get(name, name): value for name, value in before.items()}
        if "cuda" in (kept["device"], kept["inference"]) and not facts.gpu:
            return _without_gpu(wanted, facts, kept)
        return Plan(**{name: Switch(getattr(wanted, name), value, "as the run began") for name, value in kept.items()})
    device, collector = _place(wanted, facts)
    envs = _envs(wanted, facts, collector.applied)
    if collector.requested == "auto" and collector.applied == "actors" and envs.applied == 1:
        collector = Switch("auto", "local", "one env")
    made: dict[str, Switch] = {"envs": envs, "collector": collector, "device": device}
    made |= _stepping(wanted, facts, collector.applied, envs.applied)
    made |= _learning(wanted, facts, device.applied, collector.applied, made["lag"].applied)
    made |= _on_gpu(wanted, facts, device.applied, collector.applied)
    plan = Plan(**made, reproducible=Switch(wanted.reproducible, False, "speed first"))
    if wanted.reproducible:
        _be_reproducible(plan)
    return plan


def _without_gpu(wanted: PlanSettings, facts: Facts, kept: Mapping[str, Any]) -> Plan:
    """The plan of a run that began on a GPU and goes on where there is none: the same envs, everything else anew."""
    own = ("collector", "device", "inference", "storage", "precision", "learner", "graphs", "pinned", "micro_batch")
    free = {name: PlanSettings.model_fields[name].default for name in own}
    plan = make_plan(wanted.model_copy(update=free | {"envs": kept["envs"], "lag": kept["lag"]}), facts)
    for name, value in plan.applied().items():
        why = (
            getattr(plan, name).why
            if value == kept[name]
            else f"the run began with {kept[name]} on a GPU, none is here"
        )
        setattr(plan, name, Switch(getattr(wanted, name), value, why))
    return plan


def _place(wanted: PlanSettings, facts: Facts) -> tuple[Switch, Switch]:
    """Where the learner computes, and who collects."""
    _check_gpu(wanted, facts)
    device = _device(wanted, facts)
    if wanted.collector != "auto":
        return device, Switch(wanted.collector, wanted.collector, "asked for")
    if facts.replay:
        return device, Switch("auto", "local", "updates follow every step: nothing to gain by processes")
    if device.applied == "cuda" and not facts.off_device:
        return device, Switch("auto", "device", f"the whole game runs on the {facts.gpu}")
    if device.applied == "cuda":
        return device, Switch("auto", "batched", "one policy on the GPU chooses for all envs")
    if wanted.inference == "cuda":
        return device, Switch("auto", "batched", "plan.inference=cuda: one policy on the GPU chooses for all envs")
    if wanted.vector != "auto":
        return device, Switch("auto", "local", f"plan.vector={wanted.vector}: this process acts for all envs")
    if facts.cores > 1:
        return device, Switch("auto", "actors", f"{facts.cores} usable cores")
    return device, Switch("auto", "local", "one usable core")


def _device(wanted: PlanSettings, facts: Facts) -> Switch:
    if wanted.device != "auto":
        return Switch(wanted.device, wanted.device, "asked for")
    if not facts.gpu:
        return Switch("auto", "cpu", "no GPU that torch can use")
    if facts.replay:
        return Switch("auto", "cpu", "SAC learns on the CPU")
    if wanted.learner == "fused":
        return Switch("auto", "cpu", "the fused learner computes on the CPU")
    if wanted.collector == "device" or (wanted.collector == "auto" and not facts.off_device):
        return Switch("auto", "cuda", f"game, policy and learner live on the {facts.gpu}")
    if facts.images:
        return Switch("auto", "cuda", f"a network for images, and a {facts.gpu}")
    return Switch("auto", "cpu", "a small network: its way to the GPU and back costs more than it gains")


def _check_gpu(wanted: PlanSettings, facts: Facts) -> None:
    """A GPU that is asked for must be there, except by `plan.device=cpu`, which plays the GPU's part for tests."""
    if wanted.collector == "device" and facts.off_device:
        raise ConfigError(f"plan.collector=device: {facts.off_device}.", "leave plan.collector=auto")
    if wanted.device == "cuda" and facts.replay:
        raise ConfigError("SAC cannot do a learner on the GPU.", "leave plan.device=auto, or use algorithm=ppo")
    asked = "cuda" in (wanted.device, wanted.inference) or (wanted.collector == "device" and wanted.device != "cpu")
    if asked and not facts.gpu:
        raise ConfigError(
            "The plan asks for a GPU, and torch finds none here.", "slipstream doctor; or plan.device=cpu"
        )


def _envs(wanted: PlanSettings, facts: Facts, collector: str) -> Switch:
    default, why = (NATIVE_ENVS, "native games") if facts.native else (PYTHON_ENVS, "Python envs")
    if facts.replay:
        default, why = REPLAY_ENVS, "off-policy learning"
    elif collector == "device":
        default, why = DEVICE_ENVS, "games on a GPU"
    return _choose(wanted.envs, default, f"the default for {why}")


def _stepping(wanted: PlanSettings, facts: Facts, collector: str, envs: int) -> dict[str, Switch]:
    """How environments are stepped."""
    vector, groups = _vector(wanted, facts, collector), Switch(wanted.groups, 1, f"{collector} has one group")
    zero_copy = _asked(wanted.zero_copy, True, "workers write where the learner reads")
    lag = _choose(wanted.lag, 0, "every rollout by the newest weights")
    workers = _choose(wanted.workers, min(facts.cores, envs), "one per usable core")
    if workers.applied > envs:
        workers = Switch(wanted.workers, envs, "no more workers than envs")
    if collector == "batched":
        groups = _choose(wanted.groups, 2, "one group steps while the policy chooses for the other")
        if groups.applied > envs:
            groups = Switch(wanted.groups, envs, "no more groups than envs")
    if collector == "device":
        workers = Switch(wanted.workers, 1, "the GPU steps all envs at once")
    elif collector != "actors" and vector.applied == "serial":
        workers = Switch(wanted.workers, 1, f"{collector} steps all envs in this process")
    if collector == "local":
        lag = _choose(wanted.lag, 0, "there is nothing to overlap with")
    elif collector == "device":
        lag = Switch(wanted.lag, 0, "the GPU does one thing after the other")
    if collector in ("local", "device"):
        zero_copy = Switch(wanted.zero_copy, True, f"{collector} has no rollouts of workers to copy")
    return {
        "vector": vector,
        "native": _native(wanted, facts),
        "workers": workers,
        "groups": groups,
        "lag": lag,
        "zero_copy": zero_copy,
    }


def _native(wanted: PlanSettings, facts: Facts) -> Switch:
    if wanted.native is False:
        return Switch(False, False, "asked for")
    if facts.no_native:
        if wanted.native:
            raise ConfigError(f"plan.native=true: {facts.no_native}.", "leave plan.native unset")
        return Switch(None, False, facts.no_native)
    if wanted.native:
        return Switch(True, True, "asked for")
    if wanted.reproducible:
        return Switch(None, False, "plan.reproducible: not chosen by the clock")
    faster = facts.native_gain >= NATIVE_GAIN
    return Switch(None, faster, f"its own vector env steps {facts.native_gain:.1f} times as fast")


def _vector(wanted: PlanSettings, facts: Facts, collector: str) -> Switch:
    if collector in ("actors", "device"):
        done = "each actor steps its own envs" if collector == "actors" else "the GPU steps all envs at once"
        return Switch(wanted.vector, "serial", done)
    if wanted.vector == "processes" and not facts.posix:
        return Switch("processes", "serial", "processes that step envs need POSIX pipes")
    if wanted.vector != "auto":
        return Switch(wanted.vector, wanted.vector, "asked for")
    if collector == "local" or facts.cores == 1:
        return Switch("auto", "serial", "local steps one env after another" if facts.cores > 1 else "one usable core")
    if facts.native:
        return Switch("auto", "threads", "a native game lets other threads run while it steps")
    if not facts.posix:
        return Switch("auto", "threads", "processes that step envs need POSIX pipes")
    return Switch("auto", "processes", "Python envs hold each other up in threads")


def _learning(wanted: PlanSettings, facts: Facts, device: str, collector: str, lag: int) -> dict[str, Switch]:
    """How gradient steps are taken."""
    needs = facts.needs_torch or _torch_alone(wanted, facts.replay)
    if device == "cuda" and not needs:
        needs = "a learner on the GPU"
    learner = _learner(wanted, needs)
    if collector == "device":
        learner = Switch(wanted.learner, "torch", "gradients are products of matrices on the device")
    threads = _choose(wanted.threads, *_threads(facts.cores, lag, facts.minibatch, facts.weights))
    micro_batch = _choose(wanted.micro_batch, facts.minibatch, "a whole minibatch fits")
    activation_checkpointing = _asked(wanted.activation_checkpointing, False, "off")
    compile = _asked(wanted.compile, False, "off")
    if micro_batch.applied > facts.minibatch:
        micro_batch = Switch(wanted.micro_batch, facts.minibatch, "no more than a minibatch")
    if learner.applied == "fused":
        micro_batch = Switch(wanted.micro_batch, None, "the fused kernel holds one small block at a time anyway")
        compile = Switch(False, False, "the fused kernel is compiled anyway")
    elif facts.replay:
        micro_batch = Switch(wanted.micro_batch, None, "SAC takes whole batches")
    if collector == "device":
        micro_batch = Switch(wanted.micro_batch, facts.minibatch, "the GPU holds whole minibatches")
        activation_checkpointing = Switch(wanted.activation_checkpointing, False, "the GPU holds whole minibatches")
        compile = Switch(wanted.compile, False, "what the GPU does is captured as graphs")
    mode = _choose_word(wanted.compile_mode, "default", "asked for")
    if not compile.applied:
        mode = Switch(wanted.compile_mode, "default", "nothing is compiled")
    precision = _precision(wanted, facts, device, collector, learner.applied)
    return {
        "learner": learner, "threads": threads, "micro_batch": micro_batch, "activation_checkpointing": activation_checkpointing,
        "compile": compile, "compile_mode": mode, "precision": precision,
    }  # fmt: skip


def _precision(wanted: PlanSettings, facts: Facts, device: str, collector: str, learner: str) -> Switch:
    if wanted.precision in ("tf32", "fp16") and device != "cuda":
        what = "TensorFloat-32 is a GPU's" if wanted.precision == "tf32" else "fp16 is too slow on a CPU"
        return Switch(wanted.precision, "fp32", what)
    if learner == "fused":
        return Switch(wanted.precision, "fp32", "the fused kernel computes in fp32")
    if wanted.precision == "fp16" and collector == "device":
        return Switch("fp16", "bf16" if facts.bf16 else "fp32", "games that live on the GPU have no fp16")
    if wanted.precision != "auto":
        return Switch(wanted.precision, wanted.precision, "asked for")
    if device == "cuda" and facts.bf16:
        return Switch("auto", "bf16", "fast on a GPU; weights, optimiser and losses stay fp32")
    if device == "cuda":
        return Switch("auto", "fp32", f"the {facts.gpu} has no bf16 of its own")
    return Switch("auto", "fp32", "bf16 only if asked for")


def _on_gpu(wanted: PlanSettings, facts: Facts, device: str, collector: str) -> dict[str, Switch]:
    """What only a GPU can do."""
    learns, none = device == "cuda", "nothing runs on a GPU"
    inference = Switch(wanted.inference, "cpu", f"{collector} asks its own copies of the policy")
    if collector == "batched":
        inference = _choose_word(wanted.inference, device, "where the learner is")
    elif collector == "device":
        inference = Switch(wanted.inference, device, "the policy lives where the game does")
    storage = Switch(wanted.storage, "host", "the learner is on the CPU")
    if learns:
        storage = _choose_word(wanted.storage, "device", "where the learner is")
    if collector == "device":
        storage = Switch(wanted.storage, "device", "rollouts are made where they are learned from")
    if not learns and inference.applied != "cuda":
        return {
            "inference": inference, "storage": storage, "graphs": Switch(wanted.graphs, False, none),
            "pinned": Switch(wanted.pinned, False, none),
            "cudnn_benchmark": Switch(wanted.cudnn_benchmark, False, none),
        }  # fmt: skip
    pinned = _choose(wanted.pinned, True, "copies overlap with work")
    if collector == "device":
        pinned = Switch(wanted.pinned, False, "nothing is copied: the game is on the GPU")
    images = "there are convolutions" if facts.images else "there are no convolutions"
    return {
        "inference": inference, "storage": storage, "pinned": pinned,
        "graphs": _choose(wanted.graphs, True, "one launch instead of hundreds"),
        "cudnn_benchmark": _choose(wanted.cudnn_benchmark, facts.images, images),
    }  # fmt: skip


def _be_reproducible(plan: Plan) -> None:
    """Take back what makes results depend on timing, luck or the number of cores."""
    plan.reproducible = Switch(True, True, "asked for")
    plan.mend("cudnn_benchmark", False, "plan.reproducible: no way of convolving is chosen by the clock")
    if plan.threads.requested is None:
        plan.mend("threads", 1, "plan.reproducible: the same on every machine")


def _torch_alone(wanted: PlanSettings, replay: bool) -> str:
    """What of the wishes only the torch learner of PPO and cloning can do; empty: nothing."""
    wishes = {
        "bf16": wanted.precision == "bf16", "torch.compile": wanted.compile, "activation_checkpointing": wanted.activation_checkpointing
    }  # fmt: skip
    what = next((name for name, wished in wishes.items() if wished), "")
    if what and replay:
        raise ConfigError(
            f"SAC cannot do {what}.",
            "leave plan.precision=auto, plan.compile=false and plan.activation_checkpointing=false, or use algorithm=ppo",
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
    if policy.memory != "none" or ppo.shuffle == "segments" or ppo.priority_alpha:
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


def _asked(requested: bool, default: bool, why: str) -> Switch:
    return Switch(requested, requested, why if requested == default else "asked for")


def _choose_word(requested: str, default: str, why: str) -> Switch:
    return Switch(requested, default, why) if requested == "auto" else Switch(requested, requested, "asked for")


def _choose(requested: Any, default: Any, why: str) -> Switch:
    return Switch(requested, default, why) if requested is None else Switch(requested, requested, "asked for")


def _near_divisor(batch: int, wanted: int) -> int:
    divisors = [n for n in range(1, batch + 1) if batch % n == 0] if batch <= 1 << 20 else [batch // 4]
    return min(divisors, key=lambda n: abs(n - wanted))
