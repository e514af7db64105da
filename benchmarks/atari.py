"""ALE Pong end to end, against its envs stepping alone and its learner alone, all in one run.

    .venv/bin/python benchmarks/atari.py [--envs 256] [--groups 2] [--rounds 5] [--seconds 3] [--budget 80] [--quick]

84 x 84 x 4 bytes, Nature CNN, every core steps envs; the bar is 0.9x the slower of the two. A round measures each in
turn: ALE's own vector with all envs and threads and nothing else, the groups as the collector steps them, the learner
on one rollout again and again, and training at lag 1. Rounds end when the budget of seconds is spent, and every
measurement is written down at once. --quick is a look at the script on any machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from record import Progress, Record, dated
from slipstream.api import configure
from slipstream.contracts import empty_rows
from slipstream.envs.adapters.atari import Atari
from slipstream.system import machine
from slipstream.training.build import TrainingParts, build, choose_env

BAR = 0.9
SETTLE_S = 1.0
"""A rollout that is being made ahead is done by then."""
WARMED = 4
"""Iterations before anything is measured: the learner's graphs are captured in the first ones."""


def stepping(envs: int, groups: int, threads: int) -> Callable[[float], tuple[int, float]]:
    """Games that step with fixed actions, in groups that are waited for in turn."""
    size = envs // groups
    vectors = [Atari("Pong", size, first=g * size, options={"threads": threads}) for g in range(groups)]
    rows = [empty_rows(vector.spec, size) for vector in vectors]
    action = np.random.default_rng(0).integers(0, 6, (size, 1)).astype(np.int32)
    for vector, into in zip(vectors, rows, strict=True):
        vector.reset(into)

    def run(seconds: float) -> tuple[int, float]:
        began, steps = time.perf_counter(), 0
        for vector, into in zip(vectors, rows, strict=True):
            vector.send(action, into)
        while time.perf_counter() - began < seconds:
            for vector, into in zip(vectors, rows, strict=True):
                vector.receive()
                vector.send(action, into)
                steps += size
        for vector in vectors:
            vector.receive()
            steps += size
        return steps, time.perf_counter() - began

    return run


class Training:
    """The loop of training without a run directory, to be gone on with at any time."""

    def __init__(self, parts: TrainingParts) -> None:
        self.parts, self.version, self.steps = parts, 0, 0
        self.rollout: Any = None
        parts.publish(0)
        parts.collector.start(0, None)

    def run(self, seconds: float) -> tuple[int, float]:
        """Train for so long, in whole iterations, of which the first is not counted: its rollout was made before."""
        self.iterate()
        began, before = time.perf_counter(), self.steps
        while self.steps == before or time.perf_counter() - began < seconds:
            self.iterate()
        return self.steps - before, time.perf_counter() - began

    def iterate(self) -> None:
        """Learn from one rollout, while the next one is made."""
        self.rollout = self.parts.collector.collect(self.version)
        samples, _ = self.parts.learner.update(self.rollout, self.steps)
        self.parts.episodes.add(self.rollout)
        self.steps += samples
        self.parts.collector.finished_games(self.version)
        self.version += 1
        self.parts.collector.snapshot(self.version)
        self.parts.publish(self.version)

    def learn(self, seconds: float) -> tuple[int, float]:
        """Learn from the last rollout again and again."""
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            done += self.parts.learner.update(self.rollout, self.steps)[0]
        return done, time.perf_counter() - began


def prepare(options: argparse.Namespace, cores: int, progress: Progress) -> Training:
    """Training that is built, compiled, captured and warm."""
    flags: dict[str, Any] = {
        "plan__collector": "batched", "plan__envs": options.envs, "plan__groups": options.groups,
        "plan__lag": options.lag, "ppo__rollout": options.rollout, "ppo__minibatch": options.minibatch,
        "ppo__epochs": options.epochs, "policy__hidden": [], "policy__features": 512,
        "env__options": {"threads": cores},
    }  # fmt: skip
    more = dict(word.split("=", 1) for word in options.set)
    flags |= {key.replace(".", "__"): value for key, value in more.items()}
    settings = configure("atari:Pong", flags=flags, tuned=False).settings
    progress.say("building")
    parts = build(choose_env("atari:Pong", settings), settings)
    for name, _, applied, why in parts.plan.rows():
        progress.say(f"{name} = {applied} ({why})")
    progress.say("compiling and capturing")
    training = Training(parts)
    while training.version < WARMED:
        training.iterate()
        progress.say(f"iteration {training.version} of {WARMED} before anything is measured")
    for said in parts.learner.notices:
        progress.say(said)
    return training


def summarise(rates: dict[str, list[float]], title: str) -> tuple[dict[str, float], str]:
    """Medians, and whether the bar is held."""
    medians = {name: float(np.median(found)) for name, found in rates.items()}
    limit = min(max(medians["envs alone, one vector"], medians["envs alone, in groups"]), medians["learner alone"])
    share = medians["end to end"] / limit
    lines = [title, "", "| what | steps/s (median) | lowest | highest |", "|---|---|---|---|"]
    lines += [f"| {name} | {medians[name]:,.0f} | {min(r):,.0f} | {max(r):,.0f} |" for name, r in rates.items()]
    lines += ["", f"end to end is {share:.3f} of the slower of envs and learner, bar {BAR}: "
              f"{'held' if share >= BAR else 'MISSED'}"]  # fmt: skip
    return {"share": share, **medians}, "\n".join(lines)


def main() -> None:
    """Measure in turns and say whether the bar is held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--rollout", type=int, default=64)
    parser.add_argument("--minibatch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lag", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--budget", type=float, default=80.0, help="seconds of measuring, after compiling")
    parser.add_argument("--set", action="append", default=[], help="more settings, as KEY=VALUE")
    parser.add_argument("--out", type=Path, default=None, help="where the record goes")
    parser.add_argument("--quick", action="store_true", help="a small one, no record")
    options = parser.parse_args()
    if options.quick:
        options.envs, options.rollout, options.minibatch, options.rounds, options.seconds = 8, 8, 32, 2, 1.0
    progress, record = Progress(options.budget), Record(options.out or dated("atari"))
    if not options.quick:
        record.begin()
    cores = machine.cores()
    training = prepare(options, cores, progress)
    progress.say("games of their own")
    work = {"envs alone, one vector": stepping(options.envs, 1, cores),
            "envs alone, in groups": stepping(options.envs, options.groups, cores),
            "learner alone": training.learn, "end to end": training.run}  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in work}
    done = 0
    progress.measure()
    while progress.allows(done, options.rounds):
        for name, run in work.items():
            time.sleep(SETTLE_S)
            steps, seconds = run(options.seconds)
            rates[name].append(steps / seconds)
            progress.say(f"round {done + 1} of {options.rounds}: {name}: {rates[name][-1]:,.0f} steps/s")
            if not options.quick:
                record.load()
                record.add({"work": "atari:Pong", "contestant": name, "round": done, "seconds": round(seconds, 2),
                            "steps_per_second": round(rates[name][-1])})  # fmt: skip
        done += 1
    waited, chose = training.parts.collector.seconds()
    notices = training.parts.learner.notices + training.parts.collector.drain_faults()
    training.parts.close()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    title = (f"ALE Pong, {options.envs} envs in {options.groups} groups, {cores} cores, {where}, {options.epochs} "
             f"epochs, lag {options.lag}, {done} rounds")  # fmt: skip
    summary, text = summarise(rates, title)
    told = [f"collecting: {waited:.1f} s waited for envs, {chose:.1f} s choosing", *notices]
    text = "\n".join([text, "", *told])
    if options.quick:
        print(text)
    else:
        record.close(summary, text)


if __name__ == "__main__":
    main()
