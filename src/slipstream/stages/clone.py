"""Clone the demos: a policy that does as they do, with checkpoints that training goes on from."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.trained import policy_arrays
from slipstream.algorithms.cloning import Cloner, facts_of
from slipstream.algorithms.dagger import expert_of, play_round
from slipstream.algorithms.demo_batches import measure
from slipstream.algorithms.warm_start import load_start
from slipstream.config import Resolved, dump
from slipstream.contracts import Array
from slipstream.demos.edit import split
from slipstream.demos.quality import check_quality
from slipstream.demos.reader import Demos
from slipstream.envs.rewards import discount
from slipstream.errors import ConfigError, DemoError
from slipstream.plan import Facts, Plan, make_plan
from slipstream.policies.design import Design
from slipstream.runs import provenance
from slipstream.runs.checkpoint import Checkpoint, Saver, find, load, load_latest
from slipstream.runs.figures import Line, Panel, plot
from slipstream.runs.layout import RunDir, default_path, lock, plain, write_json, write_text
from slipstream.runs.metrics import Metrics, read, rewind
from slipstream.runs.signals import StopRequest, handle_signals
from slipstream.settings import Settings
from slipstream.system import machine, numba_compile
from slipstream.training.build import choose_env, machine_facts, make_engine, needs_torch

Say = Callable[[str], None]
KEPT = ("epoch", "seconds", "best", "waited", "round", "done")
"""What a checkpoint keeps of the state."""


@dataclass(frozen=True)
class Cloned:
    """What cloning leaves: the run, and the numbers of its best epoch."""

    run: Path
    env: str
    epochs: int
    samples: int
    seconds: float
    best: dict[str, Any]
    shares: dict[str, float]
    """Where the time went: read, learn, log."""
    stopped: str = ""

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
        }


@dataclass
class State:
    """Where a cloning stands between two epochs."""

    epoch: int = 0
    samples: int = 0
    seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    waited: int = 0
    """Epochs since the best."""
    round: int = 0
    """Rounds of DAgger that have been played."""
    done: int = 0
    """Epochs of the rounds before this."""


def clone(resolved: Resolved, folder: Path, run: Path | None, say: Say, tell: Callable[[int, int], None]) -> Cloned:
    """Start a new clone of the demos in `folder`."""
    began, settings = time.perf_counter(), resolved.settings
    numba_compile.announce(say)
    report = check_quality(folder, limit=settings.clone.quality)
    for line in report.lines():
        say(line)
    demos = Demos.open(folder)
    cloner, plan = _make(settings, demos, say, tell)
    name = f"{demos.schema.env or 'demos'}-clone"
    place = RunDir.create(run or default_path(name))
    with lock(place):
        write_text(place.config, dump(resolved, demos.schema.env))
        origin = {"stage": "clone", "env": demos.schema.env, "demos": str(folder), "checksum": demos.checksum}
        write_json(place.provenance, provenance.collect(sys.argv) | origin)
        provenance.record_plan(place, plan.rows())
        return _drive(cloner, settings, place, State(), plan, demos, say, tell, began)


def resume(run: Path, settings: Settings, say: Say, tell: Callable[[int, int], None]) -> Cloned:
    """Go on with a clone after the last epoch that was saved."""
    began = time.perf_counter()
    place = RunDir.open(run)
    with lock(place) as notices:
        checkpoint, damaged = load_latest(place)
        for notice in [*notices, *damaged]:
            say(notice)
        kept = checkpoint.state
        state = State(samples=checkpoint.steps, **{name: kept[name] for name in KEPT})
        over = state.epoch - state.done >= settings.clone.epochs or state.waited >= settings.clone.patience
        if over and state.round >= settings.clone.dagger:
            raise ConfigError(
                f"{run} is finished: it has {state.epoch} epochs.", "clone again with other settings, or train from it"
            )
        demos = Demos.open(settings.clone.demos or "")
        if demos.checksum != kept["checksum"]:
            raise DemoError(
                f"{demos.path} holds other demos than those that {run} was learning from.",
                f"clone them anew: slipstream clone {demos.path}",
            )
        cloner, plan = _make(settings, demos, say, tell, kept["plan"])
        for number in range(1, state.round + 1):
            played = _seen(settings, Demos.open(run / "dagger" / str(number)), tell)
            cloner.add(*split(played, settings.clone.held_out, settings.seed))
        cloner.restore(checkpoint.groups["learner"])
        rewind(place, checkpoint.steps)
        return _drive(cloner, settings, place, state, plan, demos, say, tell, began)


def _make(
    settings: Settings, demos: Demos, say: Say, tell: Callable[[int, int], None], before: dict[str, Any] | None = None
) -> tuple[Cloner, Plan]:
    """The cloner of these settings, and its plan; a frozen trunk's features are computed first."""
    wanted, design = settings.clone, _design(settings, demos)
    params_and_stats = design.initial_params_and_stats(settings.seed)
    if settings.start:
        load_start(settings.start, design, params_and_stats)
    if wanted.max_samples:
        demos = _first(demos, wanted.max_samples, settings.seed)
    demos = _seen(settings, demos, tell)
    if design.frozen:
        from slipstream.policies.pretrained import head_design, head_of

        design, params_and_stats = head_design(design), head_of(design, params_and_stats)
    train, held_out = split(demos, wanted.held_out, settings.seed)
    facts = Facts(
        cores=machine.cores(), native=True, minibatch=wanted.batch_size, weights=design.weights.size,
        needs_torch=needs_torch(settings, design), images=not design.obs.plain, **machine_facts(settings.plan),
    )  # fmt: skip
    nobody_plays = {"collector": "auto", "inference": "auto"}
    plan = make_plan(settings.plan.model_copy(update=nobody_plays), facts, before)
    engine = make_engine(settings, design, design.split_params_and_stats(params_and_stats)[0], plan, say)
    given = settings.ppo.gamma if settings.algorithm == "ppo" else settings.sac.gamma
    gamma = discount(settings.rewards, demos.schema.step_seconds, given, demos.schema.env)
    statistics = measure(train, gamma)
    cloner = Cloner(
        wanted, design, params_and_stats, engine, statistics, train, held_out, gamma=gamma, seed=settings.seed
    )
    return cloner, plan


def _design(settings: Settings, demos: Demos) -> Design:
    """The policy that is cloned; SAC's actor is bent by tanh and shares nothing with its critics."""
    more = {"squash": True, "shared": False} if settings.algorithm == "sac" else {}
    return Design(demos.schema.obs, demos.schema.action, settings.policy.model_copy(update=more))


def _seen(settings: Settings, demos: Demos, tell: Callable[[int, int], None]) -> Demos:
    """The demos as what is trained reads them: behind a frozen trunk, features instead of images."""
    if not _design(settings, demos).frozen:
        return demos
    from slipstream.algorithms.pretrained_features import replaced
    from slipstream.policies.pretrained import load_trunk

    return replaced(demos, load_trunk(settings.policy.trunk or ""), tell)


def _first(demos: Demos, most: int, seed: int) -> Demos:
    """Whole episodes, drawn at random, of at most so many steps together, and at least two."""
    order = np.random.Generator(np.random.PCG64([seed, 0x1A57])).permutation(len(demos))
    kept = max(2, int(np.searchsorted(np.cumsum(demos.episodes["steps"][order]), most, "right")))
    return demos.pick(np.sort(order[:kept]))


def _drive(
    cloner: Cloner, settings: Settings, place: RunDir, state: State, plan: Plan, demos: Demos, say: Say,
    tell: Callable[[int, int], None], began: float,
) -> Cloned:  # fmt: skip
    """Learn, then as often as asked for let the clone play, its expert comment, and learn again."""
    wishes, spent, before = StopRequest(), {"read": 0.0, "learn": 0.0, "validate": 0.0, "log": 0.0}, state.seconds
    saver, metrics = Saver(place, settings.keep), Metrics(place)

    def save(best: dict[str, Any] | None = None) -> None:
        state.seconds = before + time.perf_counter() - began
        saver.submit(_capture(cloner, state, plan, settings, demos), best, must=True)

    try:
        with handle_signals(wishes):
            while True:
                _learn(cloner, settings, place, state, metrics, save, wishes, spent, say, tell)
                if wishes.stop or state.round >= settings.clone.dagger:
                    break
                saver.wait(raise_errors=True)
                state.round, state.done, state.waited, state.best = state.round + 1, state.epoch, 0, {}
                _play(cloner, settings, place, state.round, demos, say, tell)
        saver.wait(raise_errors=True)
    finally:
        saver.close()
        metrics.close()
    _draw(place)
    whole = max(1e-9, sum(spent.values()))
    shares = {name: seconds / whole for name, seconds in spent.items()}
    seconds = before + time.perf_counter() - began
    return Cloned(place.path, demos.schema.env, state.epoch, state.samples, seconds, state.best, shares, wishes.stop)


def _learn(
    cloner: Cloner, settings: Settings, place: RunDir, state: State, metrics: Metrics,
    save: Callable[..., None], wishes: StopRequest, spent: dict[str, float], say: Say, tell: Callable[[int, int], None],
) -> None:  # fmt: skip
    """Epoch after epoch, each followed by validation, a row of metrics and a checkpoint; the best weights win."""
    wanted, best = settings.clone, dict[str, Array]()
    while state.epoch - state.done < wanted.epochs and state.waited < wanted.patience and not wishes.stop:
        try:
            row = cloner.epoch(state.epoch - state.done, lambda done, total: _go_on(done, total, tell, wishes))
        except _Stop:
            return
        checked = time.perf_counter()
        if state.epoch == 0:
            say(cloner.judge_reading(row))
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
        say(f"epoch {state.epoch}/{state.done + wanted.epochs}: {facts_of(row)}")
        spent["read"] += row["time/read"] * row["time/epoch_s"]
        spent["learn"] += (1 - row["time/read"]) * row["time/epoch_s"]
        spent["validate"] += logged - checked
        spent["log"] += time.perf_counter() - logged
    if state.waited and not wishes.stop:
        # The newest checkpoint is what others load: it gets the best epoch's weights, found on disk after a resume.
        cloner.restore(best or load(find(place, "best"), groups=("learner",)).groups["learner"])
        save()


def _play(
    cloner: Cloner, settings: Settings, place: RunDir, number: int, demos: Demos, say: Say,
    tell: Callable[[int, int], None],
) -> None:  # fmt: skip
    """One round of DAgger; what it wrote is learned from as the demos are."""
    wanted, expert = settings.clone, expert_of(demos, settings.clone.expert)
    choice = choose_env(demos.schema.env, settings)
    say(f"round {number}: the clone plays {wanted.dagger_games} games, {expert} says what it would have done")
    played = play_round(
        choice, f"run:{place.path}", expert, wanted.dagger_games, number, place.path / "dagger" / str(number),
        demos.schema,
    )  # fmt: skip
    cloner.add(*split(_seen(settings, played, tell), wanted.held_out, settings.seed))


class _Stop(Exception):
    """Ends an epoch in its midst."""


def _go_on(done: int, total: int, tell: Callable[[int, int], None], wishes: StopRequest) -> None:
    tell(done, total)
    if wishes.stop:
        raise _Stop


def _capture(cloner: Cloner, state: State, plan: Plan, settings: Settings, demos: Demos) -> Checkpoint:
    """A copy of everything, as `train` can start from it."""
    return Checkpoint(
        steps=state.samples,
        groups={"policy": policy_arrays(cloner.design, cloner.params_and_stats), "learner": cloner.snapshot()},
        state={
            "stage": "clone",
            **{name: getattr(state, name) for name in KEPT},
            "plan": plan.applied(),
            "terms": list(demos.schema.terms),
            "policy": _design(settings, demos).describe(),
            "env": demos.schema.env,
            "checksum": demos.checksum,
        },
    )


def _draw(place: RunDir) -> None:
    """Curves of the epochs as a picture."""
    rows = read(place)
    if not rows:
        return
    like = "clone/accuracy" if "clone/accuracy" in rows[0] else "clone/error"

    def line(name: str, key: str) -> Line:
        return Line.of(name, [row["epoch"] for row in rows], [row[key] for row in rows])

    panels = [
        Panel("loss", [line(name, f"clone/{name}") for name in ("loss", "held_out_loss")], along="epoch"),
        Panel(like.removeprefix("clone/"), [line("held out", like)], along="epoch"),
        Panel("value: explained variance", [line("held out", "clone/explained_variance")], along="epoch"),
    ]
    plot(place.path / "clone.png", panels, place.path.name)


def confusion(run: Path) -> list[Array]:
    """The confusion matrices of the best epoch, one for each choice."""
    told = json.loads((run / "confusion.json").read_text(encoding="utf-8"))
    return [np.array(part) for part in told["parts"]]
