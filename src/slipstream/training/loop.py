"""The loop: collect -> update -> log -> save, as a generator; whoever drives it decides what is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from slipstream.runs import system_metrics
from slipstream.runs.checkpoint import Saver
from slipstream.runs.metrics import Metrics
from slipstream.runs.signals import StopRequest
from slipstream.runs.spans import Spans
from slipstream.settings import Settings
from slipstream.training.build import TrainingParts
from slipstream.training.opponents import Event
from slipstream.training.run_state import Position, capture


@dataclass
class Progress:
    """What one iteration leaves to look at."""

    position: Position
    seconds: float
    """Since the loop began."""
    measured: tuple[int, float] = (0, 0.0)
    """Steps and seconds since the end of the first iteration."""
    row: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


Evaluate = Callable[[int], tuple[float, dict[str, Any]]]
Profile = Callable[[int], Any]


def iterate(
    parts: TrainingParts, settings: Settings, position: Position, metrics: Metrics, saver: Saver, wishes: StopRequest,
    evaluate: Evaluate, profile: Profile,
) -> Iterator[Progress]:  # fmt: skip
    """Train until the steps or minutes are used up or somebody wishes to stop; yields after every iteration.

    Everything that is logged falls on step counts, so that a resumed run writes what an uninterrupted one does.
    """
    collector, learner, matches, every = parts.collector, parts.learner, parts.matches, settings.every
    spans, began, load = Spans(), time.perf_counter(), dict[str, Any]()
    progress = Progress(position, 0.0)
    first_steps, first_at = 0, began
    if parts.gate is not None and not position.version:
        score, result = evaluate(0)
        parts.gate.judge(score, result, learner.engine)
        metrics.append({"steps": 0, **result})
    if not position.version:
        matches.advance(0, learner.params_and_stats)
    while not wishes.stop and not _finished(settings, position, time.perf_counter() - began):
        before = position.steps
        with profile(before) if before and due(every.profile, before - parts.batch, before) else spans("iteration"):
            with spans("collect"):
                rollout = collector.collect(position.version)
            previous = learner.params_and_stats.copy() if collector.lag else None
            position.whole = False
            learner.now = parts.schedules.now(learner.section, before)
            with spans("learn"):
                samples, row = learner.update(rollout, before)
        parts.episodes.add(rollout)
        position.steps += samples
        matches.record_games(collector.matches(position.version), collector.failed, position.steps)
        position.version += 1
        position.previous = previous
        position.start = collector.snapshot(position.version)
        row |= matches.advance(position.steps, learner.params_and_stats)
        position.whole = True
        matches.draw()
        parts.publish(position.version)
        row |= {"iteration": position.version, "lag": collector.lag}
        row |= parts.episodes.metrics() | _terms(parts, rollout, samples)
        if due(every.gradients, before, position.steps):
            row |= learner.gradient_statistics()
        if due(every.dormant_units, before, position.steps):
            row |= learner.dormant()
        best, evaluating = matches.opponents.promotion, due(every.evaluate, before, position.steps)
        if evaluating:
            with spans("evaluate"):
                score, result = evaluate(position.steps)
            row |= result
            if parts.gate is not None and (said := parts.gate.judge(score, result, learner.engine)):
                learner.notices.append(said)
                parts.publish(position.version)
            if not matches.opponents.promotes and (position.best is None or score >= position.best):
                position.best, best = score, {"score": score, **result}
        now = time.perf_counter()
        progress.seconds = now - began
        _go_ahead(parts, settings, position, progress.seconds)
        parts.schedules.see(row)
        load = system_metrics.sample() if due(every.system, before, position.steps) else load
        progress.measured = (position.steps - first_steps, now - first_at) if first_steps else (0, 0.0)
        if not first_steps:
            first_steps, first_at = position.steps, now
        steps, seconds = progress.measured
        rate = steps / seconds if seconds else 0.0
        row |= load | {"time/seconds": position.seconds + progress.seconds, "time/steps_per_second": rate}
        row |= spans.shares(progress.seconds, collector.seconds())
        with spans("save"):
            if best or wishes.save or due(every.checkpoint, before, position.steps):
                saver.submit(capture(parts, position, position.seconds + progress.seconds), best, must=wishes.save)
                wishes.save = False
            progress.events = matches.drain_events()
            if evaluating or due(every.log, before, position.steps):
                metrics.append({"steps": position.steps, **row})
                said = parts.alarm.see({"steps": position.steps, **row})
                progress.events += [("alarm", said)] if said else []
        progress.row = row
        progress.notices = [*learner.notices, *collector.drain_faults()]
        progress.notices += [*saver.drain_problems(), *metrics.drain_problems()]
        learner.notices.clear()
        yield progress


def _go_ahead(parts: TrainingParts, settings: Settings, position: Position, seconds: float) -> None:
    """Weights are final: where none are awaited, the next rollout need not wait for what is still to be told."""
    if not parts.collector.lag and not _finished(settings, position, seconds):
        parts.collector.ahead(position.version)


def _finished(settings: Settings, position: Position, seconds: float) -> bool:
    if settings.steps is not None and position.steps >= settings.steps:
        return True
    return settings.minutes is not None and position.seconds + seconds >= settings.minutes * 60


def due(every: int, before: int, now: int) -> bool:
    """Whether a mark was passed between two step counts; never where the interval is 0."""
    return every > 0 and now // every > before // every


def _terms(parts: TrainingParts, rollout: Any, samples: int) -> dict[str, float]:
    """The mean of each reward term per step of the learning policy."""
    if not parts.spec.terms:
        return {}
    sums = zip(parts.spec.terms, rollout.term_sums(), strict=True)
    return {f"reward/{name}": float(x) / max(1, samples) for name, x in sums}
