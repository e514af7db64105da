"""What a diagnosis measured: plain numbers, by the part of training that they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from slipstream.confidence import t_quantile

SURE = 0.999
"""How sure a trend must be to be called one."""
STEADY = 0.3
"""What a trend must keep of its slope in the second half: what fills up once is no leak."""


@dataclass(frozen=True)
class Times:
    """How long one thing took, done again and again, in microseconds."""

    count: int
    mean_us: float
    p50_us: float
    p95_us: float
    p99_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Mean and percentiles of some seconds, at least one."""
        taken = np.asarray(seconds, np.float64) * 1e6
        p50, p95, p99 = (float(q) for q in np.percentile(taken, (50, 95, 99)))
        return cls(len(taken), float(taken.mean()), p50, p95, p99)


@dataclass(frozen=True)
class Trend:
    """A straight line through a series of numbers."""

    first: float
    last: float
    """The ends of the line."""
    sure: bool
    """Whether its slope is no chance, and goes on in the second half."""

    @property
    def change(self) -> float:
        """How much of the first value was lost or won."""
        return self.last / self.first - 1.0 if self.first else 0.0

    @classmethod
    def of(cls, places: Sequence[float], values: Sequence[float]) -> Trend:
        """The line of least squares; fewer than six points make no trend."""
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
    """Slope, height at 0, and the slope's standard error."""
    around = x - x.mean()
    spread = float(np.square(around).sum())
    grad = float((around * (y - y.mean())).sum()) / spread
    left = y - y.mean() - grad * around
    error = float(np.sqrt(np.square(left).sum() / max(1, len(y) - 2) / spread))
    return grad, float(y.mean() - grad * x.mean()), error


@dataclass(frozen=True)
class Shares:
    """What part of an iteration went where; adds up to 1."""

    env: float = 0.0
    inference: float = 0.0
    learn: float = 0.0
    rest: float = 0.0


@dataclass(frozen=True)
class Limits:
    """What this machine can do at best, measured in the same minute."""

    cores: int
    memory_mib: float
    gemm_gflops: float
    """Products of matrices, in thousand million operations per second."""
    copy_gib_s: float
    """Reading and writing memory by one core."""
    line_us: float
    """A plain line of Python."""


@dataclass(frozen=True)
class EnvFindings:
    """Environments by themselves, stepped with random actions."""

    step: Times
    """One step of one env; of a native game, of one row of its batch."""
    rate: float
    """Steps per second of one process that does nothing else."""
    native: bool = False
    reset: Times | None = None
    reset_share: float = 0.0
    """Of the time of one process that does nothing else."""
    workers: int = 1
    workers_rate: float = 0.0
    """Steps per second of that many processes that exchange every step; 0: not measured."""
    wrapper_share: float = 0.0
    """What Gymnasium's checking wrappers would add to a step; they are taken off in training."""
    checkers: int = 0
    """Checking wrappers that cannot be taken off, since yours are around them."""
    lines: float = 0.0
    """Lines of Python that a step runs."""
    python_share: float = 0.0
    """Those lines at the price of a plain one, of a step's time: at least this much is Python itself."""
    hottest: str = ""
    """The line that runs most often."""
    hottest_times: float = 0.0
    """How often, in a step."""
    syncs: float = 0.0
    """Numbers that a step takes out of tensors one by one."""
    sync_share: float = 0.0
    leak_bytes: float = 0.0
    """Memory that a step keeps for ever."""
    leak_at: str = ""
    """The line that keeps it."""
    env_mib: float = 0.0
    """Memory of one more env."""


@dataclass(frozen=True)
class InferenceFindings:
    """The policy by itself, acting on rows."""

    by_batch: dict[int, Times]
    rows: int
    """The batch that training uses."""
    activation_share: float = 0.0
    """What ReLU would save of it."""

    def per_row_us(self, rows: int) -> float:
        """Microseconds per row in batches of that size."""
        return self.by_batch[rows].p50_us / rows


@dataclass(frozen=True)
class LearnFindings:
    """The learner by itself, on made-up samples."""

    engine: str
    samples_per_second: float
    update_ms: float
    """One gradient step."""
    activation: str
    activation_share: float = 0.0
    """What ReLU would save of an update."""
    syncs: float = 0.0
    """Numbers that an update takes out of tensors one by one, or waits for the GPU for."""
    sync_share: float = 0.0
    gflops: float = 0.0
    fused_ratio: float = 0.0
    """How much faster the fused learner is, where it could be used and is not; 0: not measured."""


@dataclass(frozen=True)
class GpuFindings:
    """The GPU, while training used it."""

    name: str
    utilisation: float
    """Mean share of time in which something ran there; says nothing about how well."""
    memory_mib: float
    total_mib: float
    to_device_gib_s: float = 0.0
    to_host_gib_s: float = 0.0
    transfer_share: float = 0.0
    """What copies would take of an iteration if nothing overlapped with them."""


@dataclass(frozen=True)
class Part:
    """A part of a run's memory."""

    stage: str
    name: str
    budget_mib: float
    """Computed from sizes."""
    used_mib: float | None = None
    """Measured, where that can be told apart."""


@dataclass(frozen=True)
class TrainFindings:
    """Some seconds of real training."""

    steps: int
    seconds: float
    iterations: int
    rate: float
    start_s: float
    """Making everything, compiling, and the first iterations."""
    shares: Shares
    updates: int
    samples: int
    rates: tuple[float, ...]
    plan: Mapping[str, Any]
    algorithm: str = "ppo"
    waiting_share: float = 0.0
    """Of the workers' time, that they could run and had to wait for a core."""
    fewer_rate: float = 0.0
    """Steps per second with one worker per core, where there were more; 0: not measured."""
    memory: tuple[tuple[float, float], ...] = ()
    """Seconds and MiB, this process and its workers."""
    memory_mib: float = 0.0
    growth_bytes: float = 0.0
    """Memory that is added per step, beyond what a replay buffer fills; 0: none for sure."""

    @property
    def updates_per_step(self) -> float:
        """Gradient steps per step of experience."""
        return self.updates / max(1, self.steps)

    @property
    def update_to_data(self) -> float:
        """How many times each step of experience was learned from."""
        return self.samples / max(1, self.steps)

    @property
    def drift(self) -> Trend:
        """How steps per second moved."""
        return Trend.of(range(len(self.rates)), self.rates)


@dataclass(frozen=True)
class PastFindings:
    """What the metrics of a run tell about its time so far."""

    run: str
    steps: int
    rates: tuple[tuple[float, float], ...]
    """Seconds, and steps per second since the row before."""
    memory: tuple[tuple[float, float], ...]
    """Steps, and MiB."""

    @property
    def drift(self) -> Trend:
        """How steps per second moved."""
        return Trend.of([x for x, _ in self.rates], [y for _, y in self.rates])

    @property
    def growth(self) -> Trend:
        """How memory moved."""
        return Trend.of([x for x, _ in self.memory], [y for _, y in self.memory])


@dataclass(frozen=True)
class Findings:
    """All that was measured; what was not is None."""

    name: str
    """The environment."""
    limits: Limits
    train: TrainFindings
    env: EnvFindings | None = None
    inference: InferenceFindings | None = None
    learn: LearnFindings | None = None
    gpu: GpuFindings | None = None
    memory: tuple[Part, ...] = ()
    past: PastFindings | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those that rules look at."""

    @property
    def env_limit(self) -> float:
        """Steps per second if every core did nothing but step environments."""
        return self.env.rate * self.limits.cores if self.env is not None else 0.0

    def facts(self) -> dict[str, Any]:
        """As JSON holds them."""
        told = asdict(self)
        del told["settings"]
        told["train"] |= {
            "updates_per_step": self.train.updates_per_step,
            "update_to_data": self.train.update_to_data,
            "drift": self.train.drift.change if self.train.drift.sure else 0.0,
        }
        told["limits"]["env_steps_per_second"] = self.env_limit
        return told
