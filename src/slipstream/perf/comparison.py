"""Comparison of two variants: medians with intervals, ratios within rounds, and differences in work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from slipstream.confidence import median_interval
from slipstream.perf.timed_run import RunDescription, TimedRun

EQUAL = 0.01
"""Ratios closer to 1 than this are no difference: memory layout alone causes as much."""
SURE = 0.9
"""Minimum confidence of an interval; five rounds reach 0.9375."""
SET_BY_BENCH = {"every.log", "every.system"}
"""Settings that the comparison sets itself."""
IGNORED = ("league.", "record.", "clone.", "steps", "minutes", "seed", "keep", "every.checkpoint")
"""Settings that do not affect a training."""
PARTS = {
    "env": "the game",
    "rewards": "the game",
    "curriculum": "the game",
    "opponent": "the game",
    "policy": "the network",
    "every": "logging and evaluation",
    "evaluation": "logging and evaluation",
}


@dataclass(frozen=True)
class MedianInterval:
    """A median with its interval, and the confidence of the interval."""

    median: float
    low: float
    high: float
    sure: float

    def facts(self) -> dict[str, float]:
        """The fields as JSON."""
        return {"median": self.median, "low": self.low, "high": self.high, "sure": self.sure}


def median_of(values: Sequence[float]) -> MedianInterval:
    """The median of values with its interval."""
    return MedianInterval(*median_interval(values))


def ratio(before: Sequence[float], after: Sequence[float], paired: bool) -> MedianInterval:
    """The ratio of rates: median of the ratios within rounds, or from the intervals of both if they are not paired."""
    if paired:
        return median_of([b / a for a, b in zip(before, after, strict=True)])
    a, b = median_of(before), median_of(after)
    return MedianInterval(b.median / a.median, b.low / a.high, b.high / a.low, min(a.sure, b.sure))


def gain(before: Sequence[float], after: Sequence[float], paired: bool) -> MedianInterval:
    """The difference of values, as `ratio`."""
    if paired:
        return median_of([b - a for a, b in zip(before, after, strict=True)])
    a, b = median_of(before), median_of(after)
    return MedianInterval(b.median - a.median, b.low - a.high, b.high - a.low, min(a.sure, b.sure))


def judge(found: MedianInterval, words: tuple[str, str], neutral: float, equal: float = 0.0) -> str:
    """The word for more or for less, or `no difference` if the interval contains `neutral`."""
    sure = found.sure >= SURE and not found.low <= neutral <= found.high
    if not sure or abs(found.median - neutral) < equal:
        return "no difference"
    return words[0] if found.median > neutral else words[1]


@dataclass(frozen=True)
class Difference:
    """One difference between two variants."""

    part: str
    key: str
    a: Any
    b: Any
    matters: bool
    """Whether it changes the work; speed switches do not."""

    def facts(self) -> dict[str, Any]:
        """The fields as JSON."""
        return dict(vars(self))


def differences(a: RunDescription, b: RunDescription) -> list[Difference]:
    """Differences in settings that both have, in the plan and in the resulting sizes."""
    found = []
    for key in a.settings:
        if (
            key in SET_BY_BENCH
            or key.startswith(("plan.", *IGNORED))
            or a.settings[key] == b.settings.get(key, a.settings[key])
        ):
            continue
        part = PARTS.get(key.partition(".")[0], "learning")
        found.append(Difference(part, key, a.settings[key], b.settings[key], True))
    for name, ours in a.plan.items():
        theirs = b.plan.get(name, ours)
        if ours != theirs:
            part = "learning" if name == "lag" else "speed"
            found.append(Difference(part, f"plan.{name}", ours, theirs, name == "lag"))
    outcomes = (
        ("the network", "weights", a.weights, b.weights),
        ("learning", "batch", _batch(a), _batch(b)),
        ("learning", "updates per step", a.updates, b.updates),
    )
    for part, key, ours, theirs in outcomes:
        if not math.isclose(ours, theirs, rel_tol=1e-3):
            found.append(Difference(part, key, ours, theirs, True))
    return found


def bought_with(faster: RunDescription, slower: RunDescription) -> list[str]:
    """Work of the slower variant that the faster one does not do."""
    found = []
    if faster.updates < slower.updates * 0.999:
        share = faster.updates / slower.updates
        found.append(f"fewer gradient steps per step of experience ({share:.2g} of the other's)")
    if faster.weights < slower.weights:
        found.append(f"a smaller network ({faster.weights:,} parameters instead of {slower.weights:,})")
    if _samples(faster) < _samples(slower) * 0.999:
        found.append(f"less learning from each step ({_samples(faster):.3g} times instead of {_samples(slower):.3g})")
    if _every(faster) < _every(slower):
        found.append("less evaluation")
    if _repeat(faster) > _repeat(slower):
        found.append("fewer decisions in the same game time (env.action_repeat)")
    return found


def _batch(one: RunDescription) -> float:
    """Steps of an iteration, or samples of a replay batch."""
    return float(one.settings.get("sac.batch_size", 0)) if one.settings.get("algorithm") == "sac" else one.batch


def _samples(one: RunDescription) -> float:
    """How often a step is used for learning."""
    replayed = one.settings.get("algorithm") == "sac"
    return one.updates * (_batch(one) if replayed else float(one.settings.get("ppo.minibatch", 0)))


def _every(one: RunDescription) -> float:
    """Evaluation games per step."""
    every = one.settings.get("every.evaluate", 0)
    return float(one.settings.get("evaluation.games", 0)) / every if every else 0.0


def _repeat(one: RunDescription) -> int:
    return int(one.settings.get("env.action_repeat") or 0)


def compare(
    a: RunDescription,
    b: RunDescription,
    before: Sequence[TimedRun],
    after: Sequence[TimedRun],
    *,
    paired: bool,
    gate: float | None,
) -> dict[str, Any]:
    """Compare B with A."""
    speed = ratio([run.rate for run in before], [run.rate for run in after], paired)
    verdict = judge(speed, ("faster", "slower"), 1.0, EQUAL)
    found = differences(a, b)
    alike = not any(difference.matters for difference in found)
    price = []
    if verdict != "no difference" and not alike:
        price = bought_with(b, a) if verdict == "faster" else bought_with(a, b)
    scores = [(one.score, two.score) for one, two in zip(before, after, strict=False)]
    known = [(one, two) for one, two in scores if one is not None and two is not None]
    score = gain([one for one, _ in known], [two for _, two in known], paired) if known else None
    facts: dict[str, Any] = {
        "verdict": verdict,
        "speed": speed.facts(),
        "score": None if score is None else score.facts() | {"verdict": judge(score, ("higher", "lower"), 0.0)},
        "like_for_like": alike,
        "bought_with": price,
        "differences": [difference.facts() for difference in found],
        "busy": median([run.busy for run in (*before, *after)]),
        "paired": paired,
    }
    if gate is not None:
        facts["gate"] = {"percent": gate, "passed": not (verdict == "slower" and speed.median < 1 - gate / 100)}
    return facts
