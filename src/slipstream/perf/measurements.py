"""The measurements of a diagnosis, by part of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from slipstream.confidence import t_quantile
from slipstream.perf.next_command import Given

SURE = 0.999
"""Confidence level of a trend."""
STEADY = 0.3
"""Share of the slope that a trend must keep in the second half: a buffer that fills once is no leak."""


@dataclass(frozen=True)
class Times:
    """Durations of a repeated operation in microseconds."""

    count: int
    mean_us: float
    p50_us: float
    p95_us: float
    p99_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Mean and percentiles of durations in seconds."""
        taken = np.asarray(seconds, np.float64) * 1e6
        p50, p95, p99 = (float(q) for q in np.percentile(taken, (50, 95, 99)))
        return cls(len(taken), float(taken.mean()), p50, p95, p99)


@dataclass(frozen=True)
class Trend:
    """A linear fit of a series."""

    first: float
    last: float
    """The ends of the line."""
    sure: bool
    """Whether its slope is significant and persists in the second half."""

    @property
    def change(self) -> float:
        """Relative change from the first to the last value."""
        return self.last / self.first - 1.0 if self.first else 0.0

    @classmethod
    def of(cls, places: Sequence[float], values: Sequence[float]) -> Trend:
        """Least-squares fit; fewer than six points are no trend."""
        if not values:
            return cls(0.0, 0.0, False)
        x, y = np.asarray(places, np.float64), np.asarray(values, np.float64)
        if len(y) < 6 or not np.ptp(x) > 0:
            middle = float(np.median(y))
            return cls(middle, middle, False)
        grad, base, error = _fit(x, y)
        half = len(y) // 2
        later = _fit(x[half:], y[half:])[0] if np.ptp(x[half:]) > 0 else 0.0
        sure = abs(grad) > t_quantile(SURE, len(y) - 2) * error and later / grad > STEADY if grad else False
        return cls(float(base + grad * x[0]), float(base + grad * x[-1]), bool(sure))


def _fit(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Slope, intercept and standard error of the slope."""
    around = x - x.mean()
    spread = float(np.square(around).sum())
    grad = float((around * (y - y.mean())).sum()) / spread
    left = y - y.mean() - grad * around
    error = float(np.sqrt(np.square(left).sum() / max(1, len(y) - 2) / spread))
    return grad, float(y.mean() - grad * x.mean()), error


@dataclass(frozen=True)
class Shares:
    """Shares of an iteration; they add up to 1."""

    env: float = 0.0
    inference: float = 0.0
    learn: float = 0.0
    rest: float = 0.0


@dataclass(frozen=True)
class Limits:
    """The limits of this machine, measured at the same time."""

    cores: int
    memory_mib: float
    gemm_gflops: float
    """Matrix multiplication, GFLOP/s."""
    copy_gib_s: float
    """Memory bandwidth of one core."""
    line_us: float
    """Microseconds of a simple line of Python."""


@dataclass(frozen=True)
class EnvFindings:
    """Environments alone, with random actions."""

    step: Times
    """One step of one env; of a native game, of one row of its batch."""
    rate: float
    """Steps per second of one process."""
    native: bool = False
    reset: Times | None = None
    reset_share: float = 0.0
    """Share of the time of one process."""
    workers: int = 1
    workers_rate: float = 0.0
    """Steps per second of `workers` processes with one exchange per step; 0: not measured."""
    wrapper_share: float = 0.0
    """Share that Gymnasium's checking wrappers would add to a step; training removes them."""
    checkers: int = 0
    """Checking wrappers that cannot be removed, because other wrappers are around them."""
    lines: float = 0.0
    """Lines of Python per step."""
    python_share: float = 0.0
    """Those lines at the cost of a simple one, as a share of a step: a lower bound of Python's share."""
    hottest: str = ""
    """The line that runs most often."""
    hottest_times: float = 0.0
    """Runs of that line per step."""
    syncs: float = 0.0
    """Single numbers that a step reads from tensors."""
    sync_share: float = 0.0
    leak_bytes: float = 0.0
    """Memory that a step never frees."""
    leak_at: str = ""
    """The line that allocates it."""
    env_mib: float = 0.0
    """Memory of one more env."""


@dataclass(frozen=True)
class InferenceFindings:
    """Inference alone."""

    by_batch: dict[int, Times]
    rows: int
    """The batch of training."""
    activation_share: float = 0.0
    """Share that ReLU would save."""

    def per_row_us(self, rows: int) -> float:
        """Microseconds per row in batches of that size."""
        return self.by_batch[rows].p50_us / rows


@dataclass(frozen=True)
class LearnFindings:
    """The learner alone, on synthetic samples."""

    engine: str
    samples_per_second: float
    update_ms: float
    """One gradient step."""
    activation: str
    activation_share: float = 0.0
    """Share of an update that ReLU would save."""
    syncs: float = 0.0
    """Single numbers that an update reads from tensors, or synchronisations with the GPU."""
    sync_share: float = 0.0
    gflops: float = 0.0
    fused_ratio: float = 0.0
    """Speed-up of the fused learner if it could be used and is not; 0: not measured."""


@dataclass(frozen=True)
class GpuFindings:
    """The GPU during training."""

    name: str
    utilisation: float
    """Mean share of time with a running kernel."""
    memory_mib: float
    total_mib: float
    to_device_gib_s: float = 0.0
    to_host_gib_s: float = 0.0
    transfer_share: float = 0.0
    """Share of an iteration that copies would take without overlap."""


@dataclass(frozen=True)
class MemoryPart:
    """One part of the memory of a run."""

    stage: str
    name: str
    budget_mib: float
    """Computed from sizes."""
    used_mib: float | None = None
    """Measured, if it can be separated."""


@dataclass(frozen=True)
class TrainFindings:
    """Some seconds of training."""

    steps: int
    seconds: float
    iterations: int
    rate: float
    start_s: float
    """Seconds of building, compiling and the first iterations."""
    shares: Shares
    updates: int
    samples: int
    rates: tuple[float, ...]
    plan: Mapping[str, Any]
    algorithm: str = "ppo"
    waiting_share: float = 0.0
    """Share of their runnable time that workers waited for a core."""
    fewer_rate: float = 0.0
    """Steps per second with one worker per core, if there were more; 0: not measured."""
    memory: tuple[tuple[float, float], ...] = ()
    """Seconds and MiB, this process and its workers."""
    memory_mib: float = 0.0
    growth_bytes: float = 0.0
    """Significant growth of memory per step, beyond the filling of a replay buffer."""

    @property
    def updates_per_step(self) -> float:
        """Gradient steps per step of experience."""
        return self.updates / max(1, self.steps)

    @property
    def update_to_data(self) -> float:
        """Uses of each step of experience."""
        return self.samples / max(1, self.steps)

    @property
    def drift(self) -> Trend:
        """Trend of steps per second."""
        return Trend.of(range(len(self.rates)), self.rates)


@dataclass(frozen=True)
class PastFindings:
    """Speed and memory of a run so far, from its metrics."""

    run: str
    steps: int
    rates: tuple[tuple[float, float], ...]
    """Seconds, and steps per second since the row before."""
    memory: tuple[tuple[float, float], ...]
    """Steps, and MiB."""

    @property
    def drift(self) -> Trend:
        """Trend of steps per second."""
        return Trend.of([x for x, _ in self.rates], [y for _, y in self.rates])

    @property
    def growth(self) -> Trend:
        """Trend of memory."""
        return Trend.of([x for x, _ in self.memory], [y for _, y in self.memory])


@dataclass(frozen=True)
class Findings:
    """All measurements; None if not measured."""

    name: str
    """The environment."""
    limits: Limits
    train: TrainFindings
    env: EnvFindings | None = None
    inference: InferenceFindings | None = None
    learn: LearnFindings | None = None
    gpu: GpuFindings | None = None
    memory: tuple[MemoryPart, ...] = ()
    past: PastFindings | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that rules use."""
    given: Given = field(default_factory=Given)
    """What the user gave, for the commands that are suggested."""

    @property
    def env_limit(self) -> float:
        """Steps per second if all cores only stepped environments."""
        return self.env.rate * self.limits.cores if self.env is not None else 0.0

    def facts(self) -> dict[str, Any]:
        """The measurements as JSON."""
        facts = asdict(replace(self, settings={}, given=Given()))
        del facts["settings"], facts["given"]
        facts["train"] |= {
            "updates_per_step": self.train.updates_per_step,
            "update_to_data": self.train.update_to_data,
            "drift": self.train.drift.change if self.train.drift.sure else 0.0,
        }
        facts["limits"]["env_steps_per_second"] = self.env_limit
        return facts
