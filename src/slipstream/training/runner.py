"""Runs training from start to end: `begin` a new run, `resume` one from its checkpoint, `_drive` the loop.

`begin` and `resume` build the parts and hand them to `_drive`, which iterates over `loop.iterate`, shows the display,
handles signals and keys, and saves at the end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.agents.trained import TrainedAgent
from slipstream.config import Resolved, dump, flatten
from slipstream.contracts import Agent, EnvSpec
from slipstream.envs.registry import EnvChoice, UserCode, reference_opponent
from slipstream.errors import ConfigError, EnvError, NonFiniteGame, NonFinitePolicy
from slipstream.play.engine import GameResult
from slipstream.play.games import GameSummary, play
from slipstream.play.replay_recording import record_replays
from slipstream.policies.design import Design
from slipstream.runs import provenance
from slipstream.runs.checkpoint import Checkpoint, Saver, check_space, load_latest, steps_of
from slipstream.runs.display import Display
from slipstream.runs.layout import RunDir, default_path, lock, plain, write_json, write_text
from slipstream.runs.metrics import Metrics, record_events, rewind, rewind_lines
from slipstream.runs.signals import StopRequest, handle_signals
from slipstream.runs.sinks import MetricsSink, RunInfo, SinkWriter, make_sinks
from slipstream.settings import Settings
from slipstream.system import numba_compile
from slipstream.training.build import build, choose_env
from slipstream.training.callbacks import IterationCallback, OnIteration, check_on_iteration
from slipstream.training.loop import Evaluate, Progress, due, iterate
from slipstream.training.opponents import Opponents
from slipstream.training.parts import TrainingParts
from slipstream.training.plan_summary import notable_switches, plan_rows, table
from slipstream.training.run_state import Position, capture, restore

MIN_FREE_BYTES = 256 * 2**20
DEFAULT_STEPS = 1_000_000
REPLAY_GAMES = 16
"""Games that are played for replays; the best, worst, closest and lost ones are kept."""
MakeOpponents = Callable[[RunDir, Settings, EnvChoice, EnvSpec, Design], Opponents]
"""Makes the opponents of a run, such as a league."""


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training run."""

    run: Path
    steps: int
    seconds: float
    start_seconds: float
    """Seconds until the end of the first iteration, including start-up and compiling."""
    steps_per_second: float
    mean_return: float | None
    checkpoint: Path
    stopped: str = ""
    evaluating: float = 0.0
    """Fraction of the time that was spent in evaluations."""
    evaluate_every: int = 0

    def facts(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "run": str(self.run),
            "steps": self.steps,
            "seconds": self.seconds,
            "start_seconds": self.start_seconds,
            "steps_per_second": self.steps_per_second,
            "mean_return": self.mean_return,
            "checkpoint": str(self.checkpoint),
            "stopped": self.stopped,
            "evaluating": self.evaluating,
            "evaluate_every": self.evaluate_every,
        }


def begin(
    choice: EnvChoice,
    resolved: Resolved,
    run: Path | None = None,
    *,
    stage: str = "train",
    opponents: MakeOpponents | None = None,
    on_iteration: OnIteration | None = None,
    sinks: Sequence[MetricsSink] = (),
) -> TrainingResult:
    """Start a new run; `opponents` replaces the opponent that the settings name.

    `on_iteration` is called after every iteration. `sinks` get the metrics besides those that the settings name.
    """
    settings = resolved.settings
    place = RunDir(run or default_path(choice.name))
    observers = Observers(on_iteration, make_sinks([*settings.sinks, *sinks], place.path), stage)
    if settings.steps is None and settings.minutes is None:
        resolved = Resolved(settings.model_copy(update={"steps": DEFAULT_STEPS}), resolved.origins)
        settings = resolved.settings
    began = time.perf_counter()
    numba_compile.announce()
    parts = build(choice, settings, opponents=partial(opponents, place, settings, choice) if opponents else None)
    try:
        RunDir.create(place.path)
        check_space(place.path, MIN_FREE_BYTES)
        with lock(place):
            write_text(place.config, dump(resolved, choice.name))
            origin = {"env": choice.name, "stage": stage, "modules": list(choice.modules)}
            write_json(place.provenance, provenance.collect(sys.argv) | origin)
            provenance.record_plan(place, plan_rows(parts, settings))
            parts.publish(0)
            parts.collector.start(0, None)
            return _drive(parts, settings, place, Position(), began, observers)
    finally:
        parts.close()


def resume(
    run: Path,
    steps: int | None = None,
    code: UserCode | None = None,
    opponents: MakeOpponents | None = None,
    *,
    on_iteration: OnIteration | None = None,
    sinks: Sequence[str | MetricsSink] = (),
) -> TrainingResult:
    """Resume a run from its newest valid checkpoint; `steps` is the new total."""
    began = time.perf_counter()
    numba_compile.announce()
    place = RunDir.open(run)
    with lock(place) as notices:
        checkpoint, damaged = load_latest(place)
        for notice in [*notices, *damaged]:
            print(notice, file=sys.stderr)
        settings, name = provenance.read_config(place, steps)
        made = make_sinks([*settings.sinks, *sinks], place.path)
        observers = Observers(on_iteration, made, "compete" if opponents else "train", checkpoint.steps)
        code = code or UserCode()
        provenance.check_modules(place, code.modules)
        choice = _choose_env_again(name, settings, run, code)
        _check_unfinished(settings, checkpoint, run)
        if steps is not None:
            _write_total_steps(place, steps)
        make_opponents = partial(opponents, place, settings, choice) if opponents else None
        parts = build(choice, settings, before=checkpoint.state["plan"], opponents=make_opponents)
        try:
            rewind(place, checkpoint.steps)
            rewind_lines(place.events, checkpoint.steps)
            position = restore(parts, checkpoint)
            if not (parts.spec.exact and position.collector_state):
                print(
                    f"Environment state of `{choice.name}` cannot be restored, so episodes restart; weights, optimiser "
                    "and RNG are restored exactly.",
                    file=sys.stderr,
                )
            return _drive(parts, settings, place, position, began, observers)
        finally:
            parts.close()


@dataclass(frozen=True)
class Observers:
    """What the user attached to a run."""

    on_iteration: OnIteration | None
    sinks: Sequence[MetricsSink]
    stage: str
    resumed_at: int | None = None

    def __post_init__(self) -> None:
        if self.on_iteration is not None:
            check_on_iteration(self.on_iteration)

    def open_sinks(self, run: RunDir, env: str, settings: Settings) -> list[SinkWriter]:
        """Start a writer for each sink."""
        info = RunInfo(run.path, env, self.stage, plain(dict(flatten(settings))), self.resumed_at)
        return [SinkWriter(sink, info) for sink in self.sinks]


def _drive(
    parts: TrainingParts, settings: Settings, run: RunDir, position: Position, began: float, observers: Observers
) -> TrainingResult:
    """Iterate over the loop with display, signals and keys; save at the end, unless the policy is not finite."""
    request, saver = StopRequest(), Saver(run, settings.keep)
    metrics = Metrics(run, sinks=observers.open_sinks(run, parts.choice.name, settings))
    callback = None
    if observers.on_iteration is not None:
        callback = IterationCallback(observers.on_iteration, request, parts.schedules)
    progress, start_seconds, evaluated = Progress(position, 0.0), 0.0, dict[str, Any]()
    display = Display(f"train {parts.choice.name}")
    evaluate, rows = _evaluator(parts, settings), parts.plan.rows()
    profile = partial(_profiled, run)
    loop = iterate(parts, settings, position, metrics, saver, request, evaluate, profile, callback)
    try:
        with handle_signals(request), display:
            for line in table(notable_switches(plan_rows(parts, settings))):
                display.message(line)
            finite = True
            try:
                before = position.steps
                for progress in loop:
                    if due(settings.every.replay, before, position.steps):
                        progress.events.append(("replay", _record_replays(parts, settings, run, position.steps)))
                    before = position.steps
                    start_seconds = start_seconds or time.perf_counter() - began
                    events = [*progress.events, *(("notice", notice) for notice in progress.notices)]
                    record_events(run, position.steps, events)
                    if (now := parts.plan.rows()) != rows:  # a switch fell back to another value
                        provenance.record_plan(run, [row for row in now if row not in rows])
                        rows = now
                    for _, text in events:
                        display.message(text)
                    display.show(_view(progress, parts, settings, run, saver, evaluated))
                    _handle_keys(display, request)
            except NonFinitePolicy:
                finite = False
                raise
            finally:
                if position.iteration and position.consistent and finite:
                    saver.submit(capture(parts, position, position.seconds + progress.seconds), must=True)
                saver.wait(raise_errors=sys.exc_info()[0] is None)
                if progress.row:
                    display.show(_view(progress, parts, settings, run, saver, evaluated))
    except EnvError as error:
        if position.iteration:
            error.hint = f"{error.hint}; then resume with: slipstream resume {run.path}{parts.choice.flags}"
        raise
    except NonFinitePolicy as error:
        error.hint += _continue_hint(run, position.steps, parts.choice)
        raise
    finally:
        saver.close()
        metrics.close()
        for line in metrics.drain_problems():
            print(line, file=sys.stderr)
    if callback is not None and callback.error is not None:
        callback.error.add_note(
            f"on_iteration raised this after {position.steps:,} steps. The run is saved in {run.path}; pass a function "
            f"that works to continue: slipstream.resume({str(run.path)!r}, on_iteration=...)"
        )
        raise callback.error
    steps, seconds = progress.measured
    return TrainingResult(
        run=run.path,
        steps=position.steps,
        seconds=position.seconds + progress.seconds,
        start_seconds=start_seconds,
        steps_per_second=steps / seconds if seconds else 0.0,
        mean_return=progress.row.get("episode/return_mean"),
        checkpoint=run.checkpoints / f"{position.steps:012d}",
        stopped=request.stop,
        evaluating=progress.row.get("time/evaluate", 0.0),
        evaluate_every=settings.every.evaluate,
    )


def _continue_hint(run: RunDir, steps: int, choice: EnvChoice) -> str:
    """Say how to continue a run whose policy is not finite after `steps`; empty if it has no checkpoint."""
    saved = steps_of(run)
    if saved[-2:-1] and saved[-1] == steps:  # these weights may be the cause, and `resume` would load them
        start = f"--start run:{run.path}@{saved[-2]}{choice.flags}"
        return f"; or start from earlier weights: slipstream train {choice.name} {start}"
    return f"; then resume from step {saved[-1]}: slipstream resume {run.path}{choice.flags}" if saved else ""


def _write_total_steps(run: RunDir, steps: int) -> None:
    """Write the new total into config.yaml, so that the next resume uses it too."""
    new = {"steps": f"steps: {steps}  # resume", "minutes": "minutes: null  # resume"}
    lines = run.config.read_text(encoding="utf-8").splitlines()
    write_text(run.config, "\n".join(new.get(line.partition(":")[0], line) for line in lines) + "\n")


def _choose_env_again(name: str, settings: Settings, run: Path, code: UserCode) -> EnvChoice:
    if name.startswith("python:") and code.factory is None:
        raise ConfigError(
            f"The environment of {run} was given as a Python function and has no name.",
            f"resume it in Python: slipstream.resume({str(run)!r}, env=lambda: {name.partition(':')[2]}(...))",
        )
    return choose_env(name, settings, **vars(code))


def _check_unfinished(settings: Settings, checkpoint: Checkpoint, run: Path) -> None:
    done = settings.steps is not None and checkpoint.steps >= settings.steps
    done = done or (settings.minutes is not None and checkpoint.state["seconds"] >= settings.minutes * 60)
    if done:
        raise ConfigError(
            f"{run} is finished: it has {checkpoint.steps:,} steps.",
            f"give a larger total: {RunDir(run).resume_command} --steps {2 * checkpoint.steps}",
        )


def _play_games(
    parts: TrainingParts, settings: Settings, games: int, steps: int, results: list[GameResult] | None = None
) -> GameSummary:
    """Play games of the current policy against the evaluation opponent, with seeds that training does not use."""
    opponent = _evaluation_opponent(parts, settings)
    agent = TrainedAgent("learner", parts.design, parts.learner.params_and_stats.copy())
    versus = (lambda spec, choice: load_agent(opponent, spec, choice)) if parts.spec.competitive else None
    seed = int(np.random.SeedSequence([settings.seed, 0xE7A1, steps]).generate_state(1)[0])
    envs = settings.evaluation.envs
    return play(parts.choice, lambda *_: agent, versus, games, seed=seed, envs=envs, keep=results)


def _evaluation_opponent(parts: TrainingParts, settings: Settings) -> str:
    default = reference_opponent(parts.choice) or ("random" if parts.spec.competitive else "")
    return settings.evaluation.opponent or default


def _record_replays(parts: TrainingParts, settings: Settings, run: RunDir, steps: int) -> str:
    """Play some games and keep replays of the most interesting ones; return a notice."""
    results: list[GameResult] = []
    try:
        _play_games(parts, settings, REPLAY_GAMES, steps, results)
    except NonFiniteGame as error:
        return f"No replays were kept. {error.message}"
    agent = TrainedAgent("learner", parts.design, parts.learner.params_and_stats.copy())
    opponent = _evaluation_opponent(parts, settings)

    def load(name: str, spec: EnvSpec, choice: EnvChoice) -> Agent:
        return agent if name == "agent" else load_agent(opponent, spec, choice)

    names = {"agent": f"run:{run.path}@{steps}", "opponent": opponent}
    kept = record_replays(parts.choice, results, "agent", run.replays, steps=steps, load=load, names=names)
    return f"Replays kept: {', '.join(path.name for path in kept)}."


def _evaluator(parts: TrainingParts, settings: Settings) -> Evaluate:
    """Return a function that evaluates the current policy and returns its score and metrics."""
    opponent = _evaluation_opponent(parts, settings)

    def evaluate(steps: int) -> tuple[float | None, dict[str, Any]]:
        try:
            result = _play_games(parts, settings, settings.evaluation.games, steps).summary()
        except NonFiniteGame as error:  # training, which masks such steps, continues
            parts.learner.notices.append(f"The evaluation at {steps:,} steps was left out. {error.message}")
            return None, {}
        behaviour = result.pop("behaviour")
        result.pop("opponent_behaviour")
        result |= {f"behaviour/{name}": mean for name, (mean, _, _) in behaviour.items()}
        score = result["score"] if parts.spec.competitive else result["mean_return"]
        row = {f"evaluate/{key}": value for key, value in result.items() if value is not None}
        return score, row | ({"evaluate/opponent": opponent} if parts.spec.competitive else {})

    return evaluate


def _view(
    progress: Progress, parts: TrainingParts, settings: Settings, run: RunDir, saver: Saver, evaluated: dict[str, Any]
) -> dict[str, Any]:
    """Return what the display shows of an iteration; `evaluated` holds the last evaluation between calls."""
    row, position = progress.row, progress.position
    rate = row["time/steps_per_second"] or None
    eta = (settings.steps - position.steps) / rate if settings.steps and rate else None
    if settings.minutes is not None:
        eta = max(0.0, settings.minutes * 60 - row["time/seconds"])
    if "evaluate/games" in row:
        names = ("win_rate", "win_rate_low", "win_rate_high", "opponent")
        evaluated |= {name: row.get(f"evaluate/{name}") for name in names}
    rating = next((key for key in row if key.startswith("league/rating/") and not key.endswith(("_low", "_high"))), "")
    return evaluated | {
        "stage": row.get("curriculum/stage"),
        **{f"rating{end}": row.get(rating + end) for end in ("", "_low", "_high")},
        "env": parts.choice.name,
        "run": str(run.path),
        "steps": position.steps,
        "total_steps": settings.steps,
        "seconds": row["time/seconds"],
        "eta_s": eta,
        "steps_per_second": rate,
        "updates": position.iteration,
        "split": {name: row[f"time/{name}"] for name in ("env", "inference", "learn", "other")},
        "losses": {"policy": row.get("loss/policy"), "value": row.get("loss/value")},
        "kl": row.get("ppo/kl"),
        "entropy": row.get("ppo/entropy", row.get("sac/entropy")),
        "explained_variance": row.get("ppo/explained_variance"),
        "clip_fraction": row.get("ppo/clip_fraction"),
        "learning_rate": row.get("ppo/learning_rate", row.get("sac/learning_rate")),
        "lag": row["lag"],
        "mean_return": row.get("episode/return_mean"),
        "mean_return_low": row.get("episode/return_low"),
        "mean_return_high": row.get("episode/return_high"),
        "mean_length": row.get("episode/length_mean"),
        "cpu_percent": row.get("system/cpu_percent"),
        "memory_mib": row.get("system/memory_mib"),
        "checkpoint": saver.saved_steps,
    }


def _handle_keys(display: Display, request: StopRequest) -> None:
    """Handle one key: p pauses until p is pressed again, c saves, q saves and quits."""
    key = display.poll_key()
    if key == "p":
        display.message("paused: press p to continue, q to save and quit")
        while not request.stop and (key := display.poll_key()) not in ("p", "q"):
            time.sleep(0.05)
        display.message("continuing")
    if key == "c":
        request.save = True
    if key == "q":
        request.stop = "quit"


@contextlib.contextmanager
def _profiled(run: RunDir, steps: int) -> Iterator[None]:
    """Write a torch-profiler trace of one iteration, with GPU activity if there is a GPU."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # its log would break the display
    from torch.profiler import profile, record_function

    run.traces.mkdir(exist_ok=True)
    with profile() as profiler, record_function("iteration"):
        yield
    profiler.export_chrome_trace(os.fspath(run.traces / f"{steps:012d}.json"))
