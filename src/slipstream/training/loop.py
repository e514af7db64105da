"""The training loop as a generator: collect -> update -> evaluate -> log -> save, one iteration per `next`."""

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
from slipstream.training.opponents import Event
from slipstream.training.parts import TrainingParts
from slipstream.training.run_state import Position, capture


@dataclass
class Progress:
    """The state after an iteration. The loop yields the same object every time: copy what is kept."""

    position: Position
    seconds: float
    """Seconds since the loop began."""
    measured: tuple[int, float] = (0, 0.0)
    """Steps and seconds since the end of the first iteration, which includes compiling."""
    row: dict[str, Any] = field(default_factory=dict)
    """The metrics of the iteration."""
    notices: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


Evaluate = Callable[[int], tuple[float | None, dict[str, Any]]]
"""(steps) -> score and metrics of the current policy; no score if its games cannot be played."""
Profile = Callable[[int], Any]
"""(steps) -> a context manager that profiles one iteration."""


def iterate(
    parts: TrainingParts,
    settings: Settings,
    position: Position,
    metrics: Metrics,
    saver: Saver,
    request: StopRequest,
    evaluate: Evaluate,
    profile: Profile,
    callback: Callable[[int, dict[str, Any]], None] | None = None,
) -> Iterator[Progress]:
    """Train until the steps or minutes are used up or a stop is requested; yield after every iteration.

    Logging, evaluation and periodic saving are due by step count, not by time, so a resumed run logs what an
    uninterrupted run logs. A checkpoint is also saved for a new best score and when the user asks for one. The lag of
    a collector is the number of updates that a rollout's weights are behind, 0 or 1. `callback` gets the steps and the
    metrics before the iteration is saved, so that a checkpoint holds what it changed.
    """
    collector, learner, matchmaker, every = parts.collector, parts.learner, parts.matchmaker, settings.every
    spans, began, system_row = Spans(), time.perf_counter(), dict[str, Any]()
    progress = Progress(position, 0.0)
    first_steps, first_at = 0, began
    if parts.rollback is not None and not position.iteration:
        score, result = evaluate(0)
        if score is not None:
            parts.rollback.judge(score, result, learner.engine)
            metrics.append({"steps": 0, **result})
    if not position.iteration:
        matchmaker.advance(0, learner.params_and_stats)

    while not request.stop and not _finished(settings, position, time.perf_counter() - began):
        # Collect a rollout and update the policy with it.
        before = position.steps
        # A profile shows the iteration after a multiple of `every.profile` was passed.
        with profile(before) if before and due(every.profile, before - parts.batch, before) else spans("iteration"):
            with spans("collect"):
                rollout = collector.collect(position.iteration)
            previous = learner.params_and_stats.copy() if collector.lag else None
            position.consistent = False
            learner.settings = parts.schedules.at(learner.section, before)
            with spans("learn"):
                samples, row = learner.update(rollout, before)

        # Advance the run's position, draw the next games and publish the new weights.
        parts.episodes.add(rollout)
        position.steps += samples
        matchmaker.record_games(collector.finished_games(position.iteration), collector.failed, position.steps)
        position.iteration += 1
        position.previous_weights = previous
        position.collector_state = collector.snapshot(position.iteration)
        row |= matchmaker.advance(position.steps, learner.params_and_stats)
        position.consistent = True
        matchmaker.draw_assignments()
        parts.publish(position.iteration)

        # Metrics, and evaluation where it is due.
        row |= {"iteration": position.iteration, "lag": collector.lag}
        row |= parts.episodes.metrics() | _reward_terms(parts, rollout, samples)
        if due(every.gradients, before, position.steps):
            row |= learner.gradient_statistics()
        if due(every.dormant_units, before, position.steps):
            row |= learner.dormant()
        best, evaluating = matchmaker.opponents.promotion, due(every.evaluate, before, position.steps)
        if evaluating:
            with spans("evaluate"):
                score, result = evaluate(position.steps)
            row |= result
            restored = False
            if parts.rollback is not None and score is not None:
                if notice := parts.rollback.judge(score, result, learner.engine):
                    learner.notices.append(notice)
                    parts.publish(position.iteration)
                restored = parts.rollback.restored  # then the score is of weights that are gone
            if not restored and not matchmaker.opponents.promotes and _is_best(score, position):
                position.best_score, best = score, {"score": score, **result}

        # The weights are final from here on: at lag 0 the workers can start the next rollout while metrics are written.
        now = time.perf_counter()
        progress.seconds = now - began
        if not collector.lag and not _finished(settings, position, progress.seconds):
            collector.prefetch(position.iteration)

        parts.schedules.see(row)

        # Timing. The rate excludes the first iteration, in which kernels are compiled.
        system_row = system_metrics.sample() if due(every.system, before, position.steps) else system_row
        progress.measured = (position.steps - first_steps, now - first_at) if first_steps else (0, 0.0)
        if not first_steps:
            first_steps, first_at = position.steps, now
        steps, seconds = progress.measured
        rate = steps / seconds if seconds else 0.0
        row |= system_row | {"time/seconds": position.seconds + progress.seconds, "time/steps_per_second": rate}
        row |= spans.shares(progress.seconds, collector.seconds())

        going = not request.stop
        if callback is not None:
            callback(position.steps, row)
        stopping = going and bool(request.stop)  # its row may say why

        # Save and log.
        with spans("save"):
            if best or request.save or due(every.checkpoint, before, position.steps):
                saver.submit(capture(parts, position, position.seconds + progress.seconds), best, must=request.save)
                request.save = False
            progress.events = matchmaker.drain_events()
            if evaluating or stopping or due(every.log, before, position.steps):
                metrics.append({"steps": position.steps, **row})
                warning = parts.reward_hacking.see({"steps": position.steps, **row})
                progress.events += [("alarm", warning)] if warning else []
        progress.row = row
        progress.notices = [*learner.notices, *collector.drain_faults()]
        progress.notices += [*saver.drain_problems(), *metrics.drain_problems()]
        learner.notices.clear()
        yield progress


def _finished(settings: Settings, position: Position, seconds: float) -> bool:
    if settings.steps is not None and position.steps >= settings.steps:
        return True
    return settings.minutes is not None and position.seconds + seconds >= settings.minutes * 60


def _is_best(score: float | None, position: Position) -> bool:
    return score is not None and (position.best_score is None or score >= position.best_score)


def due(every: int, before: int, now: int) -> bool:
    """Return whether a multiple of `every` lies in (before, now]; never if `every` is 0."""
    return every > 0 and now // every > before // every


def _reward_terms(parts: TrainingParts, rollout: Any, samples: int) -> dict[str, float]:
    """Return the mean of each reward term per sample."""
    if not parts.spec.terms:
        return {}
    sums = zip(parts.spec.terms, rollout.term_sums(), strict=True)
    return {f"reward/{name}": float(x) / max(1, samples) for name, x in sums}
