"""The clone stage: trains a policy to imitate demos, with checkpoints that `train --start` can use."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.agents.trained import policy_arrays
from slipstream.algorithms.cloning import Cloner, summarise_epoch
from slipstream.algorithms.dagger import choose_expert, play_dagger_round
from slipstream.algorithms.demo_batches import demo_statistics
from slipstream.algorithms.warm_start import load_start
from slipstream.config import Resolved, dump
from slipstream.contracts import Array
from slipstream.demos.edit import split
from slipstream.demos.format import read_schema
from slipstream.demos.quality import check_quality
from slipstream.demos.reader import Demos
from slipstream.envs.registry import MINERL_PREFIXES, UserCode, is_registered, known
from slipstream.envs.rewards import discount
from slipstream.errors import ConfigError, DemoError
from slipstream.minecraft.env_settings import FORMATS, minerl_options, treechop_settings
from slipstream.plan import Facts, Plan, make_plan
from slipstream.policies.design import Design
from slipstream.runs import provenance
from slipstream.runs.checkpoint import Checkpoint, Saver, find, load, load_latest
from slipstream.runs.figures import Line, Panel, plot
from slipstream.runs.layout import RunDir, default_path, lock, module_names, plain, write_json, write_text
from slipstream.runs.metrics import Metrics, read, rewind
from slipstream.runs.signals import StopRequest, handle_signals
from slipstream.runs.sinks import MetricsSink, make_sinks
from slipstream.settings import Settings
from slipstream.system import machine, numba_compile
from slipstream.training.build import choose_env, machine_facts, make_engine, needs_torch
from slipstream.training.runner import Observers
from slipstream.vector.make import make_vector

OnNotice = Callable[[str], None]
Progress = Callable[[int, int], None]
OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""`MODULE:NAME`."""
STATE_KEYS = ("epoch", "seconds", "best", "waited", "round", "done")
"""The fields of `State` that a checkpoint stores."""


@dataclass(frozen=True)
class CloneResult:
    """The result of cloning: the run, and the metrics of its best epoch."""

    run: Path
    env: str
    epochs: int
    samples: int
    seconds: float
    best: dict[str, Any]
    shares: dict[str, float]
    """Shares of the time: read, learn, validate, log."""
    stopped: str = ""
    next_steps: tuple[str, ...] = ()
    """What to do with the clone, one line each, with the command that does it."""

    def facts(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        best = {key.removeprefix("clone/"): value for key, value in self.best.items() if key.startswith("clone/")}
        facts: dict[str, Any] = plain(self._facts(best))
        return facts

    def _facts(self, best: dict[str, Any]) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "env": self.env,
            "epochs": self.epochs,
            "samples": self.samples,
            "seconds": self.seconds,
            "samples_per_second": self.best.get("time/samples_per_second"),
            "best_epoch": self.best.get("epoch"),
            **best,
            "time": self.shares,
            "stopped": self.stopped,
            "next": list(self.next_steps),
        }


@dataclass
class State:
    """The progress of cloning between two epochs."""

    epoch: int = 0
    samples: int = 0
    seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    waited: int = 0
    """Epochs since the best epoch."""
    round: int = 0
    """DAgger rounds played."""
    done: int = 0
    """Epochs of earlier rounds."""


def clone(
    resolved: Resolved,
    folder: Path,
    run: Path | None,
    on_notice: OnNotice,
    on_progress: Progress,
    code: UserCode | None = None,
    sinks: Sequence[MetricsSink] = (),
) -> CloneResult:
    """Clone the demos in `folder` into a new run; DAgger plays with the user's `code`.

    `sinks` get the metrics besides those that the settings name.
    """
    began, settings = time.perf_counter(), resolved.settings
    run = run or default_path(f"{read_schema(folder).env or 'demos'}-clone")
    observers = Observers(None, make_sinks([*settings.sinks, *sinks], run), "clone")
    numba_compile.announce(on_notice)
    report = check_quality(folder, limit=settings.clone.quality)
    for line in report.lines():
        on_notice(line)
    demos = Demos.open(folder)
    _check_dagger(settings, demos, code or UserCode())
    cloner, plan = _make(settings, demos, on_notice, on_progress)
    place = RunDir.create(run)
    with lock(place):
        write_text(place.config, dump(resolved, demos.schema.env))
        code = code or UserCode()
        origin = {"stage": "clone", "env": demos.schema.env, "modules": list(code.modules)}
        origin |= {"demos": str(folder), "checksum": demos.checksum}
        origin |= {"observation": builder} if (builder := _observation(demos)) else {}
        write_json(place.provenance, provenance.collect(sys.argv) | origin)
        provenance.record_plan(place, plan.rows())
        return _drive(cloner, settings, place, State(), plan, demos, code, observers, on_notice, on_progress, began)


def resume(
    run: Path,
    settings: Settings,
    on_notice: OnNotice,
    on_progress: Progress,
    code: UserCode | None = None,
    sinks: Sequence[str | MetricsSink] = (),
) -> CloneResult:
    """Resume a clone after the last saved epoch."""
    began, code = time.perf_counter(), code or UserCode()
    place = RunDir.open(run)
    provenance.check_modules(place, code.modules)
    with lock(place) as notices:
        checkpoint, damaged = load_latest(place)
        for notice in [*notices, *damaged]:
            on_notice(notice)
        kept = checkpoint.state
        observers = Observers(None, make_sinks([*settings.sinks, *sinks], run), "clone", checkpoint.steps)
        state = State(samples=checkpoint.steps, **{name: kept[name] for name in STATE_KEYS})
        over = state.epoch - state.done >= settings.clone.epochs or state.waited >= settings.clone.patience
        if over and state.round >= settings.clone.dagger:
            raise ConfigError(
                f"{run} is finished: it has {state.epoch} epochs.", "clone again with other settings, or train from it"
            )
        demos = Demos.open(settings.clone.demos or "")
        if demos.checksum != kept["checksum"]:
            raise DemoError(
                f"The demos in {demos.path} are not those that {run} was trained on.",
                f"start a new clone: slipstream clone {demos.path}",
            )
        cloner, plan = _make(settings, demos, on_notice, on_progress, kept["plan"])
        for number in range(1, state.round + 1):
            played = _with_features(settings, Demos.open(run / "dagger" / str(number)), on_progress)
            cloner.add(*split(played, settings.clone.held_out, settings.seed))
        cloner.restore(checkpoint.groups["learner"])
        rewind(place, checkpoint.steps)
        return _drive(cloner, settings, place, state, plan, demos, code, observers, on_notice, on_progress, began)


def _make(
    settings: Settings, demos: Demos, on_notice: OnNotice, on_progress: Progress, before: dict[str, Any] | None = None
) -> tuple[Cloner, Plan]:
    """Build the cloner and its plan; features of a frozen trunk are computed first."""
    options, design = settings.clone, _design(settings, demos)
    params_and_stats = design.initial_params_and_stats(settings.seed)
    if settings.start:
        load_start(settings.start, design, params_and_stats)
    if options.max_samples:
        demos = _subset(demos, options.max_samples, settings.seed)
    demos = _with_features(settings, demos, on_progress)
    if design.frozen:
        from slipstream.policies.pretrained import head_design, to_head_params

        design, params_and_stats = head_design(design), to_head_params(design, params_and_stats)
    train, held_out = split(demos, options.held_out, settings.seed)
    facts = Facts(
        cores=machine.cores(),
        native=True,
        minibatch=options.batch_size,
        weights=design.weights.size,
        needs_torch=needs_torch(settings, design),
        images=not design.obs.plain,
        **machine_facts(settings.plan),
    )
    no_collector = {"collector": "auto", "inference": "auto"}
    plan = make_plan(settings.plan.model_copy(update=no_collector), facts, before)
    engine = make_engine(settings, design, design.split_params_and_stats(params_and_stats)[0], plan, on_notice)
    base_gamma = settings.ppo.gamma if settings.algorithm == "ppo" else settings.sac.gamma
    gamma = discount(settings.rewards, demos.schema.step_seconds, base_gamma, demos.schema.env)
    statistics = demo_statistics(train, gamma)
    cloner = Cloner(
        options, design, params_and_stats, engine, statistics, train, held_out, gamma=gamma, seed=settings.seed
    )
    return cloner, plan


def _design(settings: Settings, demos: Demos) -> Design:
    """The design of the cloned policy; SAC's actor is squashed by tanh and shares no layers with a value."""
    more = {"squash": True, "shared": False} if settings.algorithm == "sac" else {}
    return Design(demos.schema.obs, demos.schema.action, settings.policy.model_copy(update=more))


def _with_features(settings: Settings, demos: Demos, on_progress: Progress) -> Demos:
    """The demos as the policy reads them: with a frozen trunk, images are replaced by its features."""
    if not _design(settings, demos).frozen:
        return demos
    from slipstream.algorithms.pretrained_features import replace_images
    from slipstream.policies.pretrained import load_trunk

    return replace_images(demos, load_trunk(settings.policy.trunk or ""), on_progress)


def _subset(demos: Demos, max_steps: int, seed: int) -> Demos:
    """Random whole episodes of at most `max_steps` steps in total, but at least two."""
    order = np.random.Generator(np.random.PCG64([seed, 0x1A57])).permutation(len(demos))
    kept = max(2, int(np.searchsorted(np.cumsum(demos.episodes["steps"][order]), max_steps, "right")))
    return demos.pick(np.sort(order[:kept]))


def _drive(
    cloner: Cloner,
    settings: Settings,
    place: RunDir,
    state: State,
    plan: Plan,
    demos: Demos,
    code: UserCode,
    observers: Observers,
    on_notice: OnNotice,
    on_progress: Progress,
    began: float,
) -> CloneResult:
    """Train, then play and train again for each DAgger round."""
    request, spent, before = StopRequest(), {"read": 0.0, "learn": 0.0, "validate": 0.0, "log": 0.0}, state.seconds
    saver = Saver(place, settings.keep)
    metrics = Metrics(place, sinks=observers.open_sinks(place, demos.schema.env, settings))

    def save(best: dict[str, Any] | None = None) -> None:
        state.seconds = before + time.perf_counter() - began
        saver.submit(_capture(cloner, state, plan, settings, demos), best, must=True)

    try:
        with handle_signals(request):
            while True:
                _train(cloner, settings, place, state, metrics, save, request, spent, on_notice, on_progress)
                if request.stop or state.round >= settings.clone.dagger:
                    break
                saver.wait(raise_errors=True)
                state.round, state.done, state.waited, state.best = state.round + 1, state.epoch, 0, {}
                _play(cloner, settings, place, state.round, demos, code, on_notice, on_progress)
        saver.wait(raise_errors=True)
    finally:
        saver.close()
        metrics.close()
        for line in metrics.drain_problems():
            on_notice(line)
    _draw(place)
    total = max(1e-9, sum(spent.values()))
    shares = {name: seconds / total for name, seconds in spent.items()}
    seconds = before + time.perf_counter() - began
    return CloneResult(
        place.path,
        demos.schema.env,
        state.epoch,
        state.samples,
        seconds,
        state.best,
        shares,
        request.stop,
        tuple(next_steps(demos, place.path, code)),
    )


def _modules(demos: Demos) -> list[str]:
    """The modules that the env or the agents of demos came from, by `--import`."""
    found = [name for shard in demos.shards for name in module_names(shard.origin.get("modules"))]
    return list(dict.fromkeys(found))


def _observation(demos: Demos) -> str:
    """The observation builder `MODULE:NAME` of demos that were recorded by a command with one; empty if unknown."""
    for shard in demos.shards:
        words = shard.origin.get("argv")
        texts = [word for word in words if isinstance(word, str)] if isinstance(words, list) else []
        for flag, value in [*pairwise(texts), *(text.partition("=")[::2] for text in texts)]:
            if flag == "--observation" and OBJECT.fullmatch(value):
                return value
    return ""


def _check_dagger(settings: Settings, demos: Demos, code: UserCode) -> None:
    """Raise before the first epoch if DAgger cannot make its env or its expert."""
    if not settings.clone.dagger:
        return
    missing = [name for name in _modules(demos) if name not in code.modules]
    expert = choose_expert(demos, settings.clone.expert)
    if missing and (not is_registered(demos.schema.env) or expert.partition(":")[0] in missing):
        flags = " ".join(f"--import {name}" for name in missing)
        raise ConfigError(f"The demos in {demos.path} were recorded with {flags}, and DAgger plays.", f"add {flags}")
    if demos.schema.env.startswith("python:") and code.factory is None:
        raise ConfigError(
            f"The demos in {demos.path} are of `{demos.schema.env}`, which a Python function made, and DAgger plays.",
            "give the function: slipstream.clone(demos, env=lambda: MyEnv(), ...)",
        )
    choice = choose_env(demos.schema.env, settings, **vars(code))
    with contextlib.closing(make_vector(choice, 1)) as vector:
        if (vector.spec.obs, vector.spec.action) != (demos.schema.obs, demos.schema.action):
            raise ConfigError(
                f"`{choice.name}` has other observation or action spaces than the demos in {demos.path}.",
                "give the environment that they were recorded in",
            )
        load_agent(expert, vector.spec, choice)


def next_steps(demos: Demos, run: Path, code: UserCode) -> list[str]:
    """What to do with a clone: the commands that train it further, for the games that it can play."""
    env, start = demos.schema.env, f"--start run:{shlex.quote(str(run))}"
    builder = _observation(demos)
    needed = [builder.partition(":")[0]] if builder else []
    if not is_registered(env):
        needed = _modules(demos)  # some of them register it
    flags = code.flags + "".join(f" --import {name}" for name in needed if name not in code.modules)
    flags += f" --observation {builder}" if builder and code.observation is None else ""
    command = f"train from it: slipstream train {env} {start}{flags}"
    kind, _, name = env.partition(":")
    if kind == "python":
        return [f"train from it in Python: slipstream.train(lambda: {name}(...), start='run:{run}')"]
    if not known(env):
        return [f"train from it: slipstream train ENV {start}, where ENV has the spaces of these demos of `{env}`"]
    origin = demos.shards[0].origin if demos.shards else {}
    imported = origin.get("format") in FORMATS
    options = minerl_options(origin) if imported else {}
    if options is None:
        return ["no environment here has the actions of these demos, which are obfuscated"]
    reason = treechop_settings(options, demos.schema.obs)[1] if imported else ""
    if kind == "treechop" and reason:
        return [f"`{env}` cannot be trained from it: {reason}"]
    if kind not in MINERL_PREFIXES or code.python or find_spec("minerl") is not None:
        return [command]
    here = f"`treechop` cannot be trained from it: {reason}" if reason else command.replace(f" {env} ", " treechop ")
    there = f"in the real game: slipstream train {env} {start} --python PATH{flags}"
    return [here, f"{there}, where PATH is the interpreter of a Python with minerl"]


def _train(
    cloner: Cloner,
    settings: Settings,
    place: RunDir,
    state: State,
    metrics: Metrics,
    save: Callable[..., None],
    request: StopRequest,
    spent: dict[str, float],
    on_notice: OnNotice,
    on_progress: Progress,
) -> None:
    """Run epochs, each with validation, metrics and a checkpoint; the last checkpoint gets the best weights."""
    options, best = settings.clone, dict[str, Array]()
    while state.epoch - state.done < options.epochs and state.waited < options.patience and not request.stop:
        try:
            row = cloner.epoch(
                state.epoch - state.done, lambda done, total: _report_progress(done, total, on_progress, request)
            )
        except _StopEpoch:
            return
        checked = time.perf_counter()
        if state.epoch == 0:
            on_notice(cloner.choose_prefetch(row))
        result, confusion = cloner.validate()
        logged = time.perf_counter()
        state.epoch += 1
        state.samples += cloner.train.demos.steps
        row |= result | {"epoch": state.epoch, "round": state.round}
        better = not state.best or row["clone/held_out_loss"] < state.best["clone/held_out_loss"]
        state.waited = 0 if better else state.waited + 1
        if better:
            state.best, best = dict(row), cloner.snapshot()
            write_json(place.path / "confusion.json", {"parts": confusion})
        save({"score": -row["clone/held_out_loss"], **result} if better else None)
        metrics.append({"steps": state.samples, **row, "time/seconds": state.seconds})
        for line in metrics.drain_problems():
            on_notice(line)
        on_notice(f"epoch {state.epoch}/{state.done + options.epochs}: {summarise_epoch(row)}")
        spent["read"] += row["time/read"] * row["time/epoch_s"]
        spent["learn"] += (1 - row["time/read"]) * row["time/epoch_s"]
        spent["validate"] += logged - checked
        spent["log"] += time.perf_counter() - logged
    if state.waited and not request.stop:
        # Others load the newest checkpoint, so it gets the weights of the best epoch (read from disk after a resume).
        cloner.restore(best or load(find(place, "best"), groups=("learner",)).groups["learner"])
        save()


def _play(
    cloner: Cloner,
    settings: Settings,
    place: RunDir,
    number: int,
    demos: Demos,
    code: UserCode,
    on_notice: OnNotice,
    on_progress: Progress,
) -> None:
    """Play one DAgger round and add its demos to the training set."""
    options, expert = settings.clone, choose_expert(demos, settings.clone.expert)
    choice = choose_env(demos.schema.env, settings, **vars(code))
    on_notice(f"DAgger round {number}: the clone plays {options.dagger_games} games, labelled by {expert}")
    played = play_dagger_round(
        choice,
        f"run:{place.path}",
        expert,
        options.dagger_games,
        number,
        place.path / "dagger" / str(number),
        demos.schema,
    )
    cloner.add(*split(_with_features(settings, played, on_progress), options.held_out, settings.seed))


class _StopEpoch(Exception):
    """Ends an epoch early."""


def _report_progress(done: int, total: int, on_progress: Progress, request: StopRequest) -> None:
    on_progress(done, total)
    if request.stop:
        raise _StopEpoch


def _capture(cloner: Cloner, state: State, plan: Plan, settings: Settings, demos: Demos) -> Checkpoint:
    """A checkpoint that `resume` and `train --start` can load."""
    return Checkpoint(
        steps=state.samples,
        groups={"policy": policy_arrays(cloner.design, cloner.params_and_stats), "learner": cloner.snapshot()},
        state={
            "stage": "clone",
            **{name: getattr(state, name) for name in STATE_KEYS},
            "plan": plan.applied(),
            "terms": list(demos.schema.terms),
            "policy": _design(settings, demos).describe(),
            "env": demos.schema.env,
            "checksum": demos.checksum,
        },
    )


def _draw(place: RunDir) -> None:
    """Plot the metrics of the epochs."""
    rows = read(place)
    if not rows:
        return
    scores = [key for key in ("clone/accuracy", "clone/error") if key in rows[0]]

    def line(name: str, key: str) -> Line:
        return Line.of(name, [row["epoch"] for row in rows], [row[key] for row in rows])

    panels = [
        Panel("loss", [line(name, f"clone/{name}") for name in ("loss", "held_out_loss")], along="epoch"),
        *(Panel(score.removeprefix("clone/"), [line("held out", score)], along="epoch") for score in scores),
        Panel("value: explained variance", [line("held out", "clone/explained_variance")], along="epoch"),
    ]
    plot(place.path / "clone.png", panels, place.path.name)


def confusion(run: Path) -> list[Array]:
    """The confusion matrices of the best epoch, one per discrete action."""
    stored = json.loads((run / "confusion.json").read_text(encoding="utf-8"))
    return [np.array(part) for part in stored["parts"]]
