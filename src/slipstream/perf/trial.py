"""Trials: some seconds of training without a run directory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any

from slipstream.envs.registry import EnvChoice
from slipstream.plan import Plan
from slipstream.runs import system_metrics
from slipstream.runs.spans import Spans
from slipstream.settings import Settings
from slipstream.training.build import build

SLICE_S = 0.2
"""A rate is measured over iterations of at least this time together."""
WARM_S = 30.0
"""Longest warm-up of an algorithm that fills a replay buffer first."""
OnIteration = Callable[[float, dict[str, Any]], None]
"""Called after every measured iteration with the seconds so far and the metrics row."""


@dataclass(frozen=True)
class Trial:
    """Measurements of some seconds of training."""

    plan: Plan
    """The applied plan."""
    steps: int
    seconds: float
    iterations: int
    """Steps, seconds and iterations of the measured part."""
    build_s: float
    """Seconds of building."""
    warm_s: float
    """Seconds of the first iterations, including compiling."""
    spans: dict[str, float]
    """Seconds of the measured part: `collect`, `learn` and `rest` add up to it; `env` and `inference` are the
    parts of collecting, as means over workers."""
    updates: int
    """Gradient steps."""
    samples: int
    """Samples of all gradient steps."""
    memory_mib: float
    """Peak memory of this process and its children."""
    gpu_mib: float
    """Peak memory on the GPU; 0 without one."""
    rates: tuple[float, ...]
    """Steps per second of consecutive slices of at least `SLICE_S`."""

    @property
    def rate(self) -> float:
        """Steps per second of the measured part."""
        return self.steps / self.seconds if self.seconds else 0.0


class TrialRun:
    """A training that is built and warm and can be measured repeatedly. It writes nothing to disk."""

    def __init__(self, choice: EnvChoice, settings: Settings, warm_iterations: int = 2) -> None:
        began = perf_counter()
        self._gpu_before = _gpu_peak_from_here()
        self._batch = settings.sac.batch_size
        self.parts = build(choice, settings)
        self._version = self._steps = self._updates = 0
        self._spans = Spans()
        self.memory_mib = 0.0
        try:
            self.build_s = perf_counter() - began
            self._begin()
            while not self._warm(warm_iterations, began):
                self._iterate()
            self._wait_for_gpu()
            self._note_memory()
        except BaseException:
            self.parts.close()
            raise
        self.warm_s = perf_counter() - began - self.build_s

    def __enter__(self) -> TrialRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all workers."""
        self.parts.close()

    def measure(self, seconds: float, on_iteration: OnIteration | None = None) -> Trial:
        """Train for some seconds, at least one iteration."""
        _restore_flags(self.parts.plan)
        if self.parts.collector.lag:
            self._iterate()  # its rollout was collected before the clock starts
        self._spans.reset()
        before = self.parts.collector.seconds()
        steps = samples = updates = iterations = 0
        rates: list[float] = []
        self._wait_for_gpu()
        began = mark = perf_counter()
        marked = 0
        while not iterations or perf_counter() - began < seconds:
            taken, learned, seen, row = self._iterate()
            steps, updates, samples, iterations = steps + taken, updates + learned, samples + seen, iterations + 1
            now = perf_counter()
            if now - mark >= SLICE_S:
                rates.append((steps - marked) / (now - mark))
                mark, marked = now, steps
            if on_iteration is not None:
                on_iteration(now - began, row)
        self._wait_for_gpu()
        took = perf_counter() - began
        self._note_memory()
        after = self.parts.collector.seconds()
        spent = self._spans.totals()
        spent["rest"] = max(0.0, took - spent["collect"] - spent["learn"])
        spent |= {"env": after[0] - before[0], "inference": after[1] - before[1]}
        return Trial(
            plan=self.parts.plan,
            steps=steps,
            seconds=took,
            iterations=iterations,
            build_s=self.build_s,
            warm_s=self.warm_s,
            spans=spent,
            updates=updates,
            samples=samples,
            memory_mib=self.memory_mib,
            gpu_mib=self.gpu_mib(),
            rates=tuple(rates) or (steps / took,),
        )

    def _begin(self) -> None:
        """Start as a new run does."""
        self.parts.publish(0)
        self.parts.collector.start(0, None)
        self.parts.matchmaker.advance(0, self.parts.learner.params_and_stats)

    def _iterate(self) -> tuple[int, int, int, dict[str, Any]]:
        """One iteration as in the training loop; its steps, gradient steps, samples and metrics row."""
        parts = self.parts
        collector, learner, matchmaker = parts.collector, parts.learner, parts.matchmaker
        with self._spans("collect"):
            rollout = collector.collect(self._version)
        if collector.lag:
            learner.params_and_stats.copy()
        learner.settings = parts.schedules.at(learner.section, self._steps)
        with self._spans("learn"):
            taken, row = learner.update(rollout, self._steps)
        parts.episodes.add(rollout)
        self._steps += taken
        matchmaker.record_games(collector.finished_games(self._version), collector.failed, self._steps)
        self._version += 1
        collector.snapshot(self._version)
        row |= matchmaker.advance(self._steps, learner.params_and_stats)
        matchmaker.draw_assignments()
        parts.publish(self._version)
        row |= parts.episodes.metrics()
        matchmaker.drain_events()
        collector.drain_faults()
        learner.notices.clear()
        if learner.section == "ppo":
            learned = int(row["ppo/updates"])
            seen = taken * int(row["ppo/epochs"])
        else:
            learned = int(row["sac/updates"]) - self._updates
            seen = learned * self._batch
        self._updates += learned
        return taken, learned, seen, row

    def _warm(self, iterations: int, began: float) -> bool:
        """Whether the warm-up is over, including the first updates."""
        learns = self._updates > 0 or perf_counter() - began > WARM_S
        return self._version >= iterations and (learns or not iterations)

    def _note_memory(self) -> None:
        self.memory_mib = max(self.memory_mib, system_metrics.memory_mib())

    def _on_gpu(self) -> bool:
        plan = self.parts.plan
        return "cuda" in (plan.device.applied, plan.inference.applied)

    def _wait_for_gpu(self) -> None:
        """Synchronise, so that the clock includes work that is only queued."""
        if self._on_gpu():
            import torch

            torch.cuda.synchronize()

    def gpu_mib(self) -> float:
        """Peak memory of this training on the GPU; 0 without one."""
        if not self._on_gpu():
            return 0.0
        import torch

        return (torch.cuda.max_memory_reserved() - self._gpu_before) / 2**20


def _gpu_peak_from_here() -> int:
    """Reset the peak memory of the GPU; return the memory that is reserved now."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_reserved())


def _restore_flags(plan: Plan) -> None:
    """Restore the process-wide flags of a plan, if several trainings are built in one process."""
    if "torch" in sys.modules:
        import torch

        from slipstream.engines.torch_backends import set_backend_flags

        set_backend_flags(plan)
        if plan.learner.applied == "torch":
            torch.set_num_threads(plan.threads.applied)


def run_trial(
    choice: EnvChoice,
    settings: Settings,
    *,
    seconds: float,
    warm_iterations: int = 2,
    on_iteration: OnIteration | None = None,
) -> Trial:
    """Train for some seconds as a run does, without its files."""
    with TrialRun(choice, settings, warm_iterations) as trial_run:
        return trial_run.measure(seconds, on_iteration)
