"""Tuning: short real trials, guided by a model of the machine, and a plan that is measurably faster or none."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

from slipstream.config import Resolved
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, MachineError, SlipstreamError
from slipstream.perf.cost_model import CostModel
from slipstream.perf.paired_timing import PairedTiming, Ratio, median, time_pairs
from slipstream.perf.plan_cache import VARIED, save
from slipstream.perf.search_space import LADDERS, Changes, SearchSpace, apply_changes, compiles_s, rollout_for
from slipstream.perf.trial import Trial, TrialRun
from slipstream.runs import system_metrics
from slipstream.settings import Settings
from slipstream.system import machine

SECONDS = 45.0
ROUNDS, FINAL_ROUNDS, FINAL_SLICE = 6, 5, 1.5
"""Turns of a race; of the one at the end, whose turns are longer by that much."""
MEMORY_SHARE = 0.8
"""A plan that takes more of the memory than this is refused."""
UNLIKELY = 0.8
"""What the model expects to be slower than this is not tried."""
MODELLED = {"plan.collector", "plan.workers", "plan.groups", "plan.envs", "ppo.rollout", "sac.rollout"}
"""Changes whose loss the model is trusted to foresee; what threads gain it can only hope."""
MOST_BUILD_S = 10.0
"""What takes longer to make is taken to have been compiled, once."""
NO_TIME = "no time left"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Attempt:
    """One thing that was looked at: what was expected, what was measured, and what became of it."""

    said: str
    changes: Changes
    predicted: float | None
    ratio: Ratio | None
    verdict: str
    """`kept`, `slower`, `no difference`, `refused` or `not tried`."""
    why: str = ""

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        measured = None if self.ratio is None else [self.ratio.mean, self.ratio.low, self.ratio.high]
        return {
            "said": self.said, "changes": self.changes, "predicted": self.predicted, "measured": measured,
            "verdict": self.verdict, "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    """What tuning found: the settings of a faster plan, or none, and what it saw on the way."""

    env: str
    settings: Changes
    """What the next training is laid over with."""
    default_rate: float
    rate: float
    """Steps per second of the plan that is kept."""
    gain: Ratio
    predicted: float | None
    """How many times as fast the model expected that plan to be."""
    batch: int
    attempts: list[Attempt]
    model: dict[str, float]
    seconds: float
    memory_mib: float
    exact: bool = False
    path: str = ""

    @property
    def looked(self) -> bool:
        """Whether there was time to try anything of what there was to try."""
        late = [attempt for attempt in self.attempts if attempt.why.startswith(NO_TIME)]
        return not late or any(attempt.verdict != "not tried" for attempt in self.attempts)

    def facts(self) -> dict[str, Any]:
        """The object that `--json` prints and the cache holds."""
        return {
            "env": self.env, "settings": self.settings, "default_steps_per_second": self.default_rate,
            "steps_per_second": self.rate, "gain": self.gain.mean, "gain_low": self.gain.low,
            "gain_high": self.gain.high, "predicted": self.predicted, "batch": self.batch, "model": self.model,
            "seconds": self.seconds, "memory_mib": self.memory_mib, "exact": self.exact, "path": self.path,
            "tried": [attempt.facts() for attempt in self.attempts],
        }  # fmt: skip


def tune(
    choice: EnvChoice, resolved: Resolved, *, seconds: float = SECONDS, free: bool = False, exact: bool = False,
    tell: Tell = lambda line: None, keep: bool = True,
) -> Tuned:  # fmt: skip
    """Look for a faster plan for about so many seconds, and keep it for trainings of the same kind on this machine.

    `free` allows larger batches and minibatches; `exact` tries only what leaves every bit of the result as it is.
    """
    settings = resolved.untuned or resolved.settings
    fixed = {key for key, _, origin in resolved.rows() if not origin.startswith(VARIED)}
    tuner = Tuner(choice, settings, fixed, seconds, free, exact, tell)
    try:
        found = tuner.run()
    finally:
        tuner.close()
    return save(choice.name, settings, found) if keep and found.looked else found


@dataclass
class Tuner:
    """A search that always holds the best plan so far, ready to run."""

    choice: EnvChoice
    base: Settings
    fixed: set[str]
    seconds: float
    free: bool
    exact: bool
    tell: Tell
    accepted: Changes = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    model: CostModel | None = None

    def run(self) -> Tuned:
        """Measure, search, and compare what was found with the default plan once more."""
        self._bare_mib = system_metrics.memory_mib()
        self._seen: set[tuple[tuple[str, Any], ...]] = {()}
        self._opening_s = self._iteration_s = 0.0
        self.best = self._open(self.base)  # what fails here fails in training too
        self._memory_mib = self._default_mib = self.best.memory_mib
        self._began = perf_counter()
        self._slice_s = min(1.0, max(0.25, self.seconds / 150))
        first = self.best.measure(self._slice_s)
        self._iteration_s = first.seconds / first.iterations
        self._default = dict(self.best.parts.plan.applied())
        spec = self.best.parts.spec
        self.space = SearchSpace(
            spec.agents, machine.cores(), bool(machine.gpu_name()), self.fixed, self.free, self.exact
        )  # fmt: skip
        self.tell(f"default plan: about {first.rate:,.0f} steps/s")
        self.model = self._measure_model()
        self._search()
        return self._verify(first)

    def close(self) -> None:
        """End everything that was started."""
        if hasattr(self, "best"):
            self.best.close()

    def left_s(self) -> float:
        """Seconds until the comparison at the end has to begin."""
        turns_s = 2 * FINAL_ROUNDS * self._turn_s(FINAL_SLICE * self._slice_s)
        reserved = (self._opening_s + turns_s) if self.accepted else 0.0
        return self.seconds - (perf_counter() - self._began) - reserved

    def _turn_s(self, slice_s: float) -> float:
        """About what a turn of a race takes: its last iteration ends after its time."""
        return max(slice_s, self._iteration_s) + self._iteration_s / 2

    def _open(self, settings: Settings) -> TrialRun:
        """Make a training ready; how long that took, compiling aside, is what the next one may take."""
        slow = settings.plan.compile or bool(machine.gpu_name())
        rehearsal = TrialRun(self.choice, settings, warm_iterations=3 if slow else 1)
        took = min(rehearsal.build_s, MOST_BUILD_S) + min(rehearsal.warm_s, 4 * self._iteration_s)
        self._opening_s = (self._opening_s + took) / 2 if self._opening_s else took
        return rehearsal

    def _measure_model(self) -> CostModel | None:
        """What a step costs in one process with one thread, with all envs and with a quarter of them."""
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
                with TrialRun(self.choice, apply_changes(self.base, alone | shape), warm_iterations=1) as rehearsal:
                    trials[count] = rehearsal.measure(2 * self._slice_s)
            except (SlipstreamError, RuntimeError, MemoryError):
                return None
        if not trials:
            return None
        model = CostModel.of(trials, self.space.cores)
        facts = model.facts(envs)
        self.tell(
            f"one core: env {facts['env_us']:.2f}, inference {facts['inference_us']:.2f}, learning "
            f"{facts['learn_us']:.2f} us a step; {model.cores} cores: at most {facts['limit']:,.0f} steps/s"
        )
        return model

    def _search(self) -> None:
        """Coordinate by coordinate; once more along those that were left before something else changed."""
        last: dict[str, Changes] = {}
        for _ in range(3):
            for name in self.space.coordinates(self.best.parts.plan.applied()):
                if last.get(name) != self.accepted:
                    self._climb(name) if name in LADDERS else self._choose(name)
                    last[name] = dict(self.accepted)

    def _choose(self, coordinate: str) -> None:
        plan = self.best.parts.plan.applied()
        for changes in self._likeliest(self.space.options(coordinate, plan)):
            self._try(changes)

    def _climb(self, coordinate: str) -> None:
        """Up or down a ladder, the likelier way first, as long as it gets faster."""
        ways = {up: self._rung(coordinate, up) for up in (True, False)}
        for changes in self._likeliest([found for found in ways.values() if found is not None]):
            up = changes == ways[True]
            moved, step = False, cast(Changes | None, changes)
            while step is not None and self._try(step):
                moved, step = True, self._rung(coordinate, up)
            if moved:
                return

    def _rung(self, coordinate: str, up: bool) -> Changes | None:
        return self.space.step(coordinate, self.best.parts.plan.applied(), self._settings(), up)

    def _settings(self, more: Mapping[str, Any] | None = None) -> Settings:
        return apply_changes(self.base, self.accepted | dict(more or {}))

    def _likeliest(self, found: list[Changes]) -> list[Changes]:
        return sorted(found, key=lambda changes: -(self._expect(changes) or 1.0))

    def _expect(self, changes: Changes) -> float | None:
        """How many times as fast as the best so far the model takes a change to be; None where it cannot say."""
        now = self.best.parts.plan.applied()
        if self.model is None or now["device"] == "cuda":
            return None
        wished = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("plan.")}
        if not set(wished) <= {"collector", "workers", "groups", "envs", "threads"}:
            return None
        if wished.get("collector") == "device":
            return None
        return self.model.predict(now | wished) / self.model.predict(now)

    def _try(self, changes: Changes) -> bool:
        """Race a change against the best so far; returns whether it is the best now."""
        merged = self.accepted | changes
        key = tuple(sorted(merged.items()))
        if key in self._seen:
            return False
        self._seen.add(key)
        said, predicted = self._say(changes), self._expect(changes)

        def judge(verdict: str, why: str = "", ratio: Ratio | None = None) -> bool:
            if verdict != "not tried" or said not in {attempt.said for attempt in self.attempts}:
                self.attempts.append(Attempt(said, changes, predicted, ratio, verdict, why))
                told = f"{said}: {ratio}" if ratio is not None else said
                self.tell(f"{told}, {verdict}{f': {why}' if why else ''}")
            return verdict == "kept"

        if predicted is not None and predicted < UNLIKELY and set(changes) <= MODELLED:
            return judge("not tried", "the model of the machine expects less")
        opening_s = self._opening_s + compiles_s(self.best.parts.plan.applied(), changes)
        if self.left_s() < opening_s + 4 * self._turn_s(self._slice_s):
            return judge("not tried", f"{NO_TIME}; --minutes {math.ceil(self.seconds / 30)} has more")
        _free_gpu()
        try:
            rival, ratio, takes = self._pit(merged)
        except SlipstreamError as error:
            return judge("refused", error.message)
        except (RuntimeError, MemoryError) as error:  # the GPU's memory has run out, or a switch fails here
            _free_gpu()
            return judge("refused", (str(error) or type(error).__name__).splitlines()[0])
        if not ratio.faster:
            rival.close()
            return judge("slower" if ratio.slower else "no difference", "", ratio)
        self.best.close()
        self.best, self.accepted, self._memory_mib = rival, merged, takes
        return judge("kept", "", ratio)

    def _pit(self, changes: Changes) -> tuple[TrialRun, Ratio, float]:
        """Make a training ready with some changes, and race it against the best so far; what it takes of the memory."""
        before = system_metrics.memory_mib()
        settings = apply_changes(self.base, changes)
        rival = self._open(settings)
        try:
            same = rival.parts.plan.applied() == self.best.parts.plan.applied()
            if same and settings.ppo.minibatch == self._settings().ppo.minibatch:
                raise ConfigError("the plan makes nothing else of it")
            takes = self._check_memory(rival, before)
            done = time_pairs(self.best, rival, seconds=self._slice_s, rounds=ROUNDS, enough=lambda: self.left_s() < 0)
        except BaseException:
            rival.close()
            raise
        return rival, done.ratio, takes

    def _check_memory(self, rival: TrialRun, before: float) -> float:
        """What a plan takes without the one beside it; refused if it leaves too little memory, here or on the GPU."""
        takes = self._bare_mib + rival.memory_mib - before
        most = MEMORY_SHARE * machine.memory_bytes() / 2**20
        if takes > most:
            raise MachineError(f"it takes {takes:,.0f} MiB of memory, more than {most:,.0f}")
        if gpu := rival.gpu_mib():
            import torch

            most = MEMORY_SHARE * torch.cuda.mem_get_info()[1] / 2**20
            if gpu > most:
                raise MachineError(f"it takes {gpu:,.0f} MiB of the GPU's memory, more than {most:,.0f}")
        return takes

    def _say(self, changes: Changes) -> str:
        """A change in words: what it was and what it becomes."""
        now, settings, words = self.best.parts.plan.applied(), self._settings(), list[str]()
        for key, value in changes.items():
            section, _, name = key.partition(".")
            was = now[name] if section == "plan" else getattr(getattr(settings, section), name)
            if was != value:
                words.append(f"{key} {was} -> {value}")
        return ", ".join(words) or "nothing"

    def _verify(self, first: Trial) -> Tuned:
        """The plan that was found against the default one, both new; what is not faster for sure is dropped."""
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
                self.tell(f"all of it together: {gain}, not faster for sure: the default plan stands")
                self.accepted, rate, self._memory_mib = {}, default_rate, self._default_mib
        return Tuned(
            env=self.choice.name, settings=self.accepted, default_rate=default_rate, rate=rate, gain=gain,
            predicted=predicted, batch=self.best.parts.batch, attempts=self.attempts,
            model=self.model.facts(self._default["envs"]) if self.model else {},
            seconds=perf_counter() - self._began, memory_mib=self._memory_mib, exact=self.exact,
        )  # fmt: skip


def _free_gpu() -> None:
    """Give back what trainings that are over held on the GPU; a GPU that has failed is of no use to any other."""
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
            "slipstream doctor; and please report the plan that was tried last",
        ) from error
