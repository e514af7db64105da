"""Tuning: a search for a faster plan with short trials, guided by a cost model."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, cast

from slipstream.config import Resolved
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, MachineError, SlipstreamError
from slipstream.perf.cost_model import CostModel
from slipstream.perf.paired_timing import PairedTiming, Ratio, time_pairs
from slipstream.perf.plan_cache import VARIED, save
from slipstream.perf.search_space import DOUBLING, Changes, SearchSpace, apply_changes, compiles_s, rollout_for
from slipstream.perf.trial import Trial, TrialRun
from slipstream.runs import system_metrics
from slipstream.settings import Settings
from slipstream.system import machine

SECONDS = 45.0
ROUNDS, FINAL_ROUNDS, FINAL_SLICE = 6, 5, 1.5
"""Rounds of a paired timing; rounds of the final one, and the factor of its slices."""
MEMORY_SHARE = 0.8
"""A plan that uses a larger share of the memory is refused."""
UNLIKELY = 0.8
"""A change with a lower predicted ratio is not tried."""
MODELLED = {"plan.collector", "plan.workers", "plan.groups", "plan.envs", "ppo.rollout", "sac.rollout"}
"""Changes whose slowdown the model predicts well."""
MOST_BUILD_S = 10.0
"""A longer build is assumed to include compiling."""
NO_TIME = "no time left"
OnNotice = Callable[[str], None]


@dataclass(frozen=True)
class Attempt:
    """One change that was considered: predicted ratio, measured ratio and verdict."""

    said: str
    changes: Changes
    predicted: float | None
    ratio: Ratio | None
    verdict: str
    """`kept`, `slower`, `no difference`, `refused` or `not tried`."""
    why: str = ""

    def facts(self) -> dict[str, Any]:
        """The fields as JSON."""
        measured = None if self.ratio is None else [self.ratio.mean, self.ratio.low, self.ratio.high]
        return {
            "said": self.said,
            "changes": self.changes,
            "predicted": self.predicted,
            "measured": measured,
            "verdict": self.verdict,
            "why": self.why,
        }


@dataclass(frozen=True)
class Tuned:
    """The outcome of tuning: the settings of a faster plan, or none, and all attempts."""

    env: str
    settings: Changes
    """Settings that the next training uses."""
    default_rate: float
    rate: float
    """Steps per second of the chosen plan."""
    gain: Ratio
    predicted: float | None
    """The predicted ratio of that plan."""
    batch: int
    attempts: list[Attempt]
    model: dict[str, float]
    seconds: float
    memory_mib: float
    exact: bool = False
    path: str = ""

    @property
    def searched(self) -> bool:
        """Whether there was time for at least one attempt."""
        late = [attempt for attempt in self.attempts if attempt.why.startswith(NO_TIME)]
        return not late or any(attempt.verdict != "not tried" for attempt in self.attempts)

    def facts(self) -> dict[str, Any]:
        """The object that `--json` prints and the cache stores."""
        return {
            "env": self.env,
            "settings": self.settings,
            "default_steps_per_second": self.default_rate,
            "steps_per_second": self.rate,
            "gain": self.gain.mean,
            "gain_low": self.gain.low,
            "gain_high": self.gain.high,
            "predicted": self.predicted,
            "batch": self.batch,
            "model": self.model,
            "seconds": self.seconds,
            "memory_mib": self.memory_mib,
            "exact": self.exact,
            "path": self.path,
            "tried": [attempt.facts() for attempt in self.attempts],
        }


def tune(
    choice: EnvChoice,
    resolved: Resolved,
    *,
    seconds: float = SECONDS,
    free: bool = False,
    exact: bool = False,
    on_notice: OnNotice = lambda line: None,
    keep: bool = True,
) -> Tuned:
    """Search for a faster plan for about `seconds`, and cache it for trainings of the same kind on this machine.

    `free` allows larger batches and minibatches; `exact` tries only changes that keep the result bit for bit.
    """
    settings = resolved.untuned or resolved.settings
    fixed = {key for key, _, origin in resolved.rows() if not origin.startswith(VARIED)}
    tuner = Tuner(choice, settings, fixed, seconds, free, exact, on_notice)
    try:
        found = tuner.run()
    finally:
        tuner.close()
    return save(choice.name, settings, found) if keep and found.searched else found


@dataclass
class Tuner:
    """A search that keeps a warm training with the best plan so far."""

    choice: EnvChoice
    base: Settings
    fixed: set[str]
    seconds: float
    free: bool
    exact: bool
    on_notice: OnNotice
    accepted: Changes = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    model: CostModel | None = None

    def run(self) -> Tuned:
        """Measure the default plan and the cost model, search, and verify the plan that was found."""
        self._base_mib = system_metrics.memory_mib()
        self._seen: set[tuple[tuple[str, Any], ...]] = {()}
        self._build_estimate_s = self._iteration_s = 0.0
        self.best = self._open(self.base)  # an error here would be an error of training too
        self._memory_mib = self._default_mib = self.best.memory_mib
        self._began = perf_counter()
        self._slice_s = min(1.0, max(0.25, self.seconds / 150))
        first = self.best.measure(self._slice_s)
        self._iteration_s = first.seconds / first.iterations
        self._default = dict(self.best.parts.plan.applied())
        spec = self.best.parts.spec
        self.space = SearchSpace(
            spec.agents, machine.cores(), bool(machine.gpu_name()), self.fixed, self.free, self.exact
        )
        self.on_notice(f"default plan: about {first.rate:,.0f} steps/s")
        self.model = self._measure_model()
        self._search()
        return self._verify(first)

    def close(self) -> None:
        """Stop the training."""
        if hasattr(self, "best"):
            self.best.close()

    def left_s(self) -> float:
        """Seconds until the final comparison must start."""
        final_s = 2 * FINAL_ROUNDS * self._measurement_s(FINAL_SLICE * self._slice_s)
        reserved = (self._build_estimate_s + final_s) if self.accepted else 0.0
        return self.seconds - (perf_counter() - self._began) - reserved

    def _measurement_s(self, slice_s: float) -> float:
        """Estimated seconds of one measurement: the last iteration ends after the slice."""
        return max(slice_s, self._iteration_s) + self._iteration_s / 2

    def _open(self, settings: Settings) -> TrialRun:
        """Build a training; its time without compiling is the estimate for the next one."""
        slow = settings.plan.compile or bool(machine.gpu_name())
        trial_run = TrialRun(self.choice, settings, warm_iterations=3 if slow else 1)
        took = min(trial_run.build_s, MOST_BUILD_S) + min(trial_run.warm_s, 4 * self._iteration_s)
        self._build_estimate_s = (self._build_estimate_s + took) / 2 if self._build_estimate_s else took
        return trial_run

    def _measure_model(self) -> CostModel | None:
        """Measure the cost of a step in one process with one thread, with all envs and with a quarter of them."""
        envs, alone = self._default["envs"], {"plan.collector": "local", "plan.workers": 1, "plan.threads": 1}
        if self._default["collector"] == "device":
            return None
        trials: dict[int, Trial] = {}
        for count in (envs, envs // 4):
            steps = rollout_for(self.base, envs, count) if count else None
            if steps is None or self.left_s() < 3 * self._iteration_s:
                continue
            shape = {"plan.envs": count, f"{self.base.algorithm}.rollout": steps}
            try:
                with TrialRun(self.choice, apply_changes(self.base, alone | shape), warm_iterations=1) as trial_run:
                    trials[count] = trial_run.measure(2 * self._slice_s)
            except (SlipstreamError, RuntimeError, MemoryError):
                return None
        if not trials:
            return None
        model = CostModel.of(trials, self.space.cores)
        facts = model.facts(envs)
        self.on_notice(
            f"one core: env {facts['env_us']:.2f}, inference {facts['inference_us']:.2f}, learning "
            f"{facts['learn_us']:.2f} us per step; {model.cores} cores: at most {facts['limit']:,.0f} steps/s"
        )
        return model

    def _search(self) -> None:
        """Coordinate descent: up to three passes over all coordinates that changed since."""
        last: dict[str, Changes] = {}
        for _ in range(3):
            for name in self.space.coordinates(self.best.parts.plan.applied()):
                if last.get(name) != self.accepted:
                    self._climb(name) if name in DOUBLING else self._choose(name)
                    last[name] = dict(self.accepted)

    def _choose(self, coordinate: str) -> None:
        plan = self.best.parts.plan.applied()
        for changes in self._by_prediction(self.space.options(coordinate, plan)):
            self._try(changes)

    def _climb(self, coordinate: str) -> None:
        """Double or halve a value, the more promising direction first, while it gets faster."""
        directions = {up: self._next_value(coordinate, up) for up in (True, False)}
        for changes in self._by_prediction([found for found in directions.values() if found is not None]):
            up = changes == directions[True]
            moved, step = False, cast(Changes | None, changes)
            while step is not None and self._try(step):
                moved, step = True, self._next_value(coordinate, up)
            if moved:
                return

    def _next_value(self, coordinate: str, up: bool) -> Changes | None:
        return self.space.step(coordinate, self.best.parts.plan.applied(), self._settings(), up)

    def _settings(self, more: Mapping[str, Any] | None = None) -> Settings:
        return apply_changes(self.base, self.accepted | dict(more or {}))

    def _by_prediction(self, found: list[Changes]) -> list[Changes]:
        return sorted(found, key=lambda changes: -(self._predict(changes) or 1.0))

    def _predict(self, changes: Changes) -> float | None:
        """The predicted ratio of a change to the best plan so far; None if the model does not cover it."""
        now = self.best.parts.plan.applied()
        if self.model is None or now["device"] == "cuda":
            return None
        changed = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("plan.")}
        if not set(changed) <= {"collector", "workers", "groups", "envs", "threads"}:
            return None
        if changed.get("collector") == "device":
            return None
        return self.model.predict(now | changed) / self.model.predict(now)

    def _try(self, changes: Changes) -> bool:
        """Time a change against the best plan so far; return whether it is the new best."""
        merged = self.accepted | changes
        key = tuple(sorted(merged.items()))
        if key in self._seen:
            return False
        self._seen.add(key)
        text, predicted = self._describe(changes), self._predict(changes)

        def conclude(verdict: str, why: str = "", ratio: Ratio | None = None) -> bool:
            if verdict != "not tried" or text not in {attempt.said for attempt in self.attempts}:
                self.attempts.append(Attempt(text, changes, predicted, ratio, verdict, why))
                line = f"{text}: {ratio}" if ratio is not None else text
                self.on_notice(f"{line}, {verdict}{f': {why}' if why else ''}")
            return verdict == "kept"

        if predicted is not None and predicted < UNLIKELY and set(changes) <= MODELLED:
            return conclude("not tried", "the cost model predicts less")
        opening_s = self._build_estimate_s + compiles_s(self.best.parts.plan.applied(), changes)
        if self.left_s() < opening_s + 4 * self._measurement_s(self._slice_s):
            return conclude("not tried", f"{NO_TIME}; --minutes {math.ceil(self.seconds / 30)} has more")
        _free_gpu()
        try:
            candidate, ratio, used = self._time_candidate(merged)
        except SlipstreamError as error:
            return conclude("refused", error.message)
        except (RuntimeError, MemoryError) as error:  # out of GPU memory, or a switch that fails on this machine
            _free_gpu()
            return conclude("refused", (str(error) or type(error).__name__).splitlines()[0])
        if not ratio.faster:
            candidate.close()
            return conclude("slower" if ratio.slower else "no difference", "", ratio)
        self.best.close()
        self.best, self.accepted, self._memory_mib = candidate, merged, used
        return conclude("kept", "", ratio)

    def _time_candidate(self, changes: Changes) -> tuple[TrialRun, Ratio, float]:
        """Build a training with some changes and time it against the best so far; training, ratio and memory."""
        before = system_metrics.memory_mib()
        settings = apply_changes(self.base, changes)
        candidate = self._open(settings)
        try:
            same = candidate.parts.plan.applied() == self.best.parts.plan.applied()
            if same and settings.ppo.minibatch == self._settings().ppo.minibatch:
                raise ConfigError("the applied plan is the same")
            used = self._check_memory(candidate, before)
            done = time_pairs(
                self.best, candidate, seconds=self._slice_s, rounds=ROUNDS, enough=lambda: self.left_s() < 0
            )
        except BaseException:
            candidate.close()
            raise
        return candidate, done.ratio, used

    def _check_memory(self, candidate: TrialRun, before: float) -> float:
        """The memory of a plan alone; raise if it exceeds the limit of the host or of the GPU."""
        used = self._base_mib + candidate.memory_mib - before
        most = MEMORY_SHARE * machine.memory_bytes() / 2**20
        if used > most:
            raise MachineError(f"it uses {used:,.0f} MiB of memory, more than {most:,.0f}")
        if gpu := candidate.gpu_mib():
            import torch

            most = MEMORY_SHARE * torch.cuda.mem_get_info()[1] / 2**20
            if gpu > most:
                raise MachineError(f"it uses {gpu:,.0f} MiB of GPU memory, more than {most:,.0f}")
        return used

    def _describe(self, changes: Changes) -> str:
        """A change as text: old and new values."""
        now, settings, words = self.best.parts.plan.applied(), self._settings(), list[str]()
        for key, value in changes.items():
            section, _, name = key.partition(".")
            was = now[name] if section == "plan" else getattr(getattr(settings, section), name)
            if was != value:
                words.append(f"{key} {was} -> {value}")
        return ", ".join(words) or "nothing"

    def _verify(self, first: Trial) -> Tuned:
        """Time the plan that was found against the default plan; drop it if it is not significantly faster."""
        predicted, rate, default_rate, gain = None, first.rate, first.rate, Ratio(1.0, 1.0, 1.0, 0)
        if self.accepted:
            _free_gpu()
            with self._open(self.base) as default:
                final: PairedTiming = time_pairs(
                    default, self.best, seconds=FINAL_SLICE * self._slice_s, rounds=FINAL_ROUNDS, sure=FINAL_ROUNDS
                )
            gain = final.ratio
            default_rate, rate = median([one for one, _ in final.rates]), final.rate
            if self.model is not None and self.best.parts.plan.applied()["device"] != "cuda":
                now = self.model.predict(self.best.parts.plan.applied())
                predicted = now / self.model.predict(self._default)
            if not gain.faster:
                self.on_notice(f"all changes together: {gain}, not significantly faster: the default plan is kept")
                self.accepted, rate, self._memory_mib = {}, default_rate, self._default_mib
        return Tuned(
            env=self.choice.name,
            settings=self.accepted,
            default_rate=default_rate,
            rate=rate,
            gain=gain,
            predicted=predicted,
            batch=self.best.parts.batch,
            attempts=self.attempts,
            model=self.model.facts(self._default["envs"]) if self.model else {},
            seconds=perf_counter() - self._began,
            memory_mib=self._memory_mib,
            exact=self.exact,
        )


def _free_gpu() -> None:
    """Release GPU memory of closed trainings; raise if the GPU has failed."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    gc.collect()
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        raise MachineError(
            f"The GPU failed while plans were tried, and this process cannot use it any more: "
            f"{str(error).splitlines()[0]}.",
            "slipstream doctor; please report the last plan that was tried",
        ) from error
