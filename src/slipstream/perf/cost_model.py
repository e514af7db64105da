"""A cost model of training: seconds per step on one core, and the predicted rate of a plan on all cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.perf.trial import Trial


@dataclass(frozen=True)
class Cost:
    """Seconds per step as a function of the envs per call: `each` + `call` / envs."""

    each: float
    call: float = 0.0

    def __call__(self, envs: float) -> float:
        """Seconds per step with `envs` per call."""
        return self.each + self.call / max(1.0, envs)

    @classmethod
    def fit(cls, points: Mapping[int, float]) -> Cost:
        """Fit one or two measurements; negative parts become 0."""
        (few, slow), (many, quick) = min(points.items()), max(points.items())
        call = max(0.0, (slow - quick) / (1 / few - 1 / many)) if many > few else 0.0
        return cls(max(0.0, quick - call / many), call)


@dataclass(frozen=True)
class CostModel:
    """Seconds per step of one process with one thread. The limit is cores / (env + inference + learning)."""

    cores: int
    env: Cost
    inference: Cost
    learn: float
    """Seconds per step of all epochs."""
    rest: float

    @classmethod
    def of(cls, trials: Mapping[int, Trial], cores: int) -> CostModel:
        """Fit trials in one process with different numbers of envs."""
        costs = {
            name: {envs: trial.spans[name] / max(1, trial.steps) for envs, trial in trials.items()}
            for name in ("env", "inference", "learn", "rest")
        }
        most = max(trials)
        return cls(
            cores, Cost.fit(costs["env"]), Cost.fit(costs["inference"]), costs["learn"][most], costs["rest"][most]
        )

    def limit(self, envs: int) -> float:
        """Steps per second if all cores were always busy."""
        return self.cores / (self.env(envs) + self.inference(envs) + self.learn)

    def predict(self, plan: Mapping[str, Any]) -> float:
        """Predicted steps per second of an applied plan."""
        envs, workers, threads = (int(plan[name]) for name in ("envs", "workers", "threads"))
        workers, threads = min(workers, self.cores), min(threads, self.cores)
        learn = self.learn / threads
        if plan["collector"] == "batched":
            collect = self._batched(envs, workers, plan["groups"])
        elif plan["collector"] == "actors":
            collect = (self.env(envs / workers) + self.inference(envs / workers)) / workers
        else:
            workers, collect = 1, self.env(envs) + self.inference(envs)
        if plan["lag"] and plan["collector"] != "local":
            spent = max(collect, learn, (collect * workers + self.learn) / self.cores)
        else:
            spent = collect + learn
        return 1.0 / (spent + self.rest)

    def _batched(self, envs: int, workers: int, groups: int) -> float:
        """Groups take turns: while inference runs for one, the others step."""
        env, choose = self.env(envs / groups / workers) / workers, self.inference(envs / groups)
        if groups == 1:
            return env + choose
        return max(env, choose, (env * workers + choose) / self.cores)

    def facts(self, envs: int) -> dict[str, float]:
        """Microseconds per step, and the limit."""
        spent = {"env": self.env(envs), "inference": self.inference(envs), "learn": self.learn, "rest": self.rest}
        return {f"{name}_us": 1e6 * seconds for name, seconds in spent.items()} | {"limit": self.limit(envs)}
