"""Diagnose: measure training and its parts, apply the rules, and give a verdict with ranked advice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import psutil

from slipstream.algorithms.replay_buffer import step_bytes
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, did_you_mean
from slipstream.perf.env_timing import measure_env
from slipstream.perf.machine_limits import best_of, measure_limits
from slipstream.perf.measurements import (
    STEADY,
    EnvFindings,
    Findings,
    GpuFindings,
    InferenceFindings,
    LearnFindings,
    Limits,
    MemoryPart,
    PastFindings,
    Shares,
    TrainFindings,
    Trend,
)
from slipstream.perf.memory_budget import plan_memory, rollout_mib
from slipstream.perf.network_timing import measure_inference, measure_learner
from slipstream.perf.next_command import Given
from slipstream.perf.process_monitor import ProcessMonitor
from slipstream.perf.rules import Advice, apply_rules
from slipstream.perf.trial import Trial, TrialRun
from slipstream.plan import Plan
from slipstream.runs.layout import RunDir
from slipstream.runs.metrics import read
from slipstream.settings import Settings
from slipstream.system import machine
from slipstream.training.build import probe_env
from slipstream.training.parts import TrainingParts

TESTS = ("all", "env", "inference", "learn", "gpu", "memory")
SECONDS = 30.0
PARTS = {"train": 0.45, "limits": 0.05, "env": 0.3, "inference": 0.08, "learn": 0.12}
"""Shares of the seconds if all parts are tested. Building environments, workers and networks comes on top."""
GROWTH_S, GROWTH_MIB = 5.0, 8.0
"""Minimum time and amount of growth of a leak."""
OnNotice = Callable[[str], None]


@dataclass(frozen=True)
class Diagnosis:
    """The verdict, the advice and all measurements."""

    verdict: str
    advice: list[Advice]
    found: Findings

    def facts(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"verdict": self.verdict, "advice": [asdict(one) for one in self.advice]} | self.found.facts()


def diagnose(
    choice: EnvChoice,
    settings: Settings,
    given: Given | None = None,
    *,
    test: str = "all",
    seconds: float = SECONDS,
    run: RunDir | None = None,
    on_notice: OnNotice = lambda line: None,
) -> Diagnosis:
    """Measure for about `seconds` and apply the rules; `run` adds the metrics of an existing run.

    The suggested commands repeat what was `given`.
    """
    if test not in TESTS:
        raise ConfigError(f"There is no test `{test}`.{did_you_mean(test, TESTS)}", f"tests: {', '.join(TESTS)}")
    if not seconds > 0:
        raise ConfigError(f"Nothing can be measured in {seconds:g} s.", f"give a larger --seconds, such as {SECONDS:g}")
    probe_env(choice, settings)
    python_mib = psutil.Process().memory_info().rss / 2**20
    on_notice("the machine's limits")
    limits = measure_limits(seconds * PARTS["limits"])
    on_notice("training")
    with TrialRun(choice, settings) as trial_run:
        train, monitor = _train(trial_run, settings, seconds * PARTS["train"])
        parts = trial_run.parts
        gpu = _measure_gpu(parts, settings, train, monitor) if test in ("all", "gpu") else None
    train = _with_one_worker_per_core(choice, settings, train, limits, seconds * PARTS["train"] / 2, on_notice)
    env, inference, learn = _measure_parts(choice, settings, parts, limits, test, seconds, on_notice)
    memory: tuple[MemoryPart, ...] = ()
    if test in ("all", "memory"):
        memory = plan_memory(
            settings,
            parts.spec,
            parts.design,
            parts.plan,
            env_mib=env.env_mib if env is not None else 0.0,
            python_mib=python_mib,
            used_mib=train.memory_mib,
        )
    found = Findings(
        choice.name,
        limits,
        train,
        env,
        inference,
        learn,
        gpu,
        memory,
        past_of(run) if run is not None else None,
        {"sac.critics": settings.sac.critics},
        given or Given(flags=choice.flags),
    )
    return Diagnosis(*apply_rules(found), found)


def _train(trial_run: TrialRun, settings: Settings, seconds: float) -> tuple[TrainFindings, ProcessMonitor]:
    """Train for some seconds with a monitor."""
    buffered: list[int] = []
    applied = trial_run.parts.plan.applied()
    on_gpu = "cuda" in (applied["device"], applied["inference"])
    with ProcessMonitor(on_gpu) as monitor:
        trial = trial_run.measure(seconds, lambda _, row: buffered.append(row.get("sac/buffer", 0)))
    design = trial_run.parts.design
    filled = (buffered[-1] - buffered[0]) * step_bytes(design.obs.floats, design.action) if buffered[-1] else 0
    return TrainFindings(
        steps=trial.steps,
        seconds=trial.seconds,
        iterations=trial.iterations,
        rate=trial.rate,
        start_s=trial.build_s + trial.warm_s,
        shares=shares_of(trial),
        updates=trial.updates,
        samples=trial.samples,
        rates=trial.rates,
        plan=applied,
        algorithm=settings.algorithm,
        waiting_share=monitor.waiting_share,
        memory=tuple(monitor.memory),
        memory_mib=trial.memory_mib,
        growth_bytes=growth(monitor.memory, trial.steps, filled),
    ), monitor


def shares_of(trial: Trial) -> Shares:
    """Shares of an iteration; the time of collecting is split as the workers spent it."""
    spans, whole = trial.spans, max(trial.seconds, 1e-9)
    inside = max(spans["env"] + spans["inference"], 1e-9)
    collect = spans["collect"] / whole
    env, learn = collect * spans["env"] / inside, spans["learn"] / whole
    return Shares(env, collect - env, learn, max(0.0, 1.0 - collect - learn))


def growth(memory: Sequence[tuple[float, float]], steps: int, filled: int) -> float:
    """Bytes per step of steady growth of memory (seconds, MiB), beyond the filling of a replay buffer."""
    if len(memory) < 8 or memory[-1][0] - memory[0][0] < GROWTH_S:
        return 0.0
    trend = Trend.of([when for when, _ in memory], [mib for _, mib in memory])
    quarters = [float(part.mean()) for part in np.array_split(np.array([mib for _, mib in memory]), 4)]
    rises = [after - before for before, after in pairwise(quarters)]
    grown = trend.last - trend.first - 1.2 * filled / 2**20
    steady = trend.sure and min(rises) > STEADY * sum(rises) / len(rises)
    return grown * 2**20 / max(1, steps) if steady and grown > GROWTH_MIB else 0.0


def _with_one_worker_per_core(
    choice: EnvChoice, settings: Settings, train: TrainFindings, limits: Limits, seconds: float, on_notice: OnNotice
) -> TrainFindings:
    """Also measure one worker per core if there are more workers than cores."""
    if train.plan["workers"] <= limits.cores:
        return train
    on_notice("the same with one worker per core")
    fewer = settings.model_copy(update={"plan": settings.plan.model_copy(update={"workers": limits.cores})})
    with TrialRun(choice, fewer) as trial_run:
        return TrainFindings(**(vars(train) | {"fewer_rate": trial_run.measure(seconds).rate}))


def _measure_parts(
    choice: EnvChoice,
    settings: Settings,
    parts: TrainingParts,
    limits: Limits,
    test: str,
    seconds: float,
    on_notice: OnNotice,
) -> tuple[EnvFindings | None, InferenceFindings | None, LearnFindings | None]:
    """Measure environments, inference and learner alone, as far as the test covers them."""
    applied, spec, design = parts.plan.applied(), parts.spec, parts.design
    workers = applied["workers"] if applied["collector"] != "device" else 1
    env, inference, learn = None, None, None
    share = PARTS if test == "all" else dict.fromkeys(PARTS, 1.0 - PARTS["train"] - PARTS["limits"])
    if test in ("all", "env", "memory"):
        on_notice("the environment alone")
        stepped = replace(choice, native=applied["native"])
        env = measure_env(stepped, max(1, applied["envs"] // workers), limits, seconds * share["env"])
    if test in ("all", "inference"):
        on_notice("inference alone")
        rows = max(1, applied["envs"] // workers) * spec.agents
        inference = measure_inference(design, spec, rows, seconds * share["inference"])
    if test in ("all", "learn"):
        on_notice("the learner alone")
        learn = measure_learner(settings, design, spec, parts.plan, seconds * share["learn"])
    return env, inference, learn


def _measure_gpu(
    parts: TrainingParts, settings: Settings, train: TrainFindings, monitor: ProcessMonitor
) -> GpuFindings | None:
    """Utilisation, memory and copy rates of the GPU; None if training uses none."""
    plan = parts.plan
    if "cuda" not in (plan.device.applied, plan.inference.applied):
        return None
    import torch

    up, down = copy_rates("cuda", bool(plan.pinned.applied))
    use = monitor.utilisation
    return GpuFindings(
        name=machine.gpu_name(),
        utilisation=sum(use) / len(use) if use else float("nan"),
        memory_mib=torch.cuda.max_memory_reserved() / 2**20,
        total_mib=torch.cuda.get_device_properties(0).total_memory / 2**20,
        to_device_gib_s=up,
        to_host_gib_s=down,
        transfer_share=transfer_share(parts, plan, settings, train, up),
    )


def copy_rates(device: str, pinned: bool, mib: int = 64) -> tuple[float, float]:
    """GiB per second to a device and back."""
    import torch

    here = torch.zeros(mib * 2**20, dtype=torch.uint8, pin_memory=pinned and device == "cuda")
    there = torch.zeros_like(here, device=device)

    def copy(target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        if device == "cuda":
            torch.cuda.synchronize()

    copy(there, here)
    up = best_of(lambda: copy(there, here), 0.05)
    return mib / 1024 / up, mib / 1024 / best_of(lambda: copy(here, there), 0.05)


def transfer_share(parts: TrainingParts, plan: Plan, settings: Settings, train: TrainFindings, gib_s: float) -> float:
    """The share of an iteration that copying rollouts to the learner would take without overlap."""
    if plan.collector.applied == "device" or plan.device.applied != "cuda":
        return 0.0
    steps = settings.ppo.rollout if settings.algorithm == "ppo" else settings.sac.rollout
    times = settings.ppo.epochs if plan.storage.applied == "host" else 1
    gib = times * rollout_mib(parts.spec, parts.design, steps, plan.envs.applied) / 1024
    return min(1.0, gib / gib_s / max(train.seconds / train.iterations, 1e-9))


def past_of(run: RunDir) -> PastFindings:
    """Speed and memory of a run over time, from its metrics."""
    rows = read(run)
    if not rows:
        raise ConfigError(f"{run.path} has no metrics yet.", "name the env instead: slipstream diagnose ENV")
    rates: list[tuple[float, float]] = []
    for before, row in pairwise(rows):
        seconds = row.get("time/seconds", 0.0) - before.get("time/seconds", 0.0)
        if seconds > 0 and row["steps"] > before["steps"]:
            rates.append((row["time/seconds"], (row["steps"] - before["steps"]) / seconds))
    memory = {row["system/memory_mib"]: row["steps"] for row in reversed(rows) if row.get("system/memory_mib")}
    series = sorted((float(steps), float(mib)) for mib, steps in memory.items())
    return PastFindings(str(run.path), int(rows[-1]["steps"]), tuple(rates), tuple(series))
