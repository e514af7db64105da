"""ALE Pong end to end, compared with its environments alone and its learner alone.

    .venv/bin/python benchmarks/atari.py [--envs 256] [--groups 2] [--rounds 5] [--seconds 3] [--budget 80] [--quick]

84 x 84 x 4 bytes, Nature CNN, all cores step environments. The bar is 0.9x the slower of environments and learner. A
round measures ALE's own vector environment with all threads, the groups as the collector steps them, the learner on one
rollout repeatedly, and training at lag 1. No further round starts when the budget of seconds is spent.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness import Result, make_parser, rates_of, run_rounds, verdict
from slipstream.api import configure
from slipstream.contracts import empty_rows
from slipstream.envs.adapters.atari import Atari
from slipstream.system import machine
from slipstream.training.build import build, choose_env
from slipstream.training.parts import TrainingParts

BAR = 0.9
SETTLE_S = 1.0
"""A rollout that is being collected ahead is finished after this time."""
WARMED = 4
"""Iterations before the first measurement. They capture the learner's graphs."""


def stepping(envs: int, groups: int, threads: int) -> Callable[[float], tuple[int, float]]:
    """Step environments with fixed actions in groups, one group after the other."""
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
    """A training loop without a run directory that can be continued at any time."""

    def __init__(self, parts: TrainingParts) -> None:
        self.parts, self.version, self.steps = parts, 0, 0
        self.rollout: Any = None
        parts.publish(0)
        parts.collector.start(0, None)

    def run(self, seconds: float) -> tuple[int, float]:
        """Train whole iterations for some seconds. The first is not counted: its rollout was collected earlier."""
        self.iterate()
        began, before = time.perf_counter(), self.steps
        while self.steps == before or time.perf_counter() - began < seconds:
            self.iterate()
        return self.steps - before, time.perf_counter() - began

    def iterate(self) -> None:
        """Update from one rollout while the next one is collected."""
        self.rollout = self.parts.collector.collect(self.version)
        samples, _ = self.parts.learner.update(self.rollout, self.steps)
        self.parts.episodes.add(self.rollout)
        self.steps += samples
        self.parts.collector.finished_games(self.version)
        self.version += 1
        self.parts.collector.snapshot(self.version)
        self.parts.publish(self.version)

    def learn(self, seconds: float) -> tuple[int, float]:
        """Update from the last rollout repeatedly."""
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            done += self.parts.learner.update(self.rollout, self.steps)[0]
        return done, time.perf_counter() - began


def prepare(options: argparse.Namespace, cores: int, result: Result) -> Training:
    """Build training, compile it, capture its graphs and warm it up."""
    flags: dict[str, Any] = {
        "plan__collector": "batched",
        "plan__envs": options.envs,
        "plan__groups": options.groups,
        "plan__lag": options.lag,
        "ppo__rollout": options.rollout,
        "ppo__minibatch": options.minibatch,
        "ppo__epochs": options.epochs,
        "policy__hidden": [],
        "policy__features": 512,
        "env__options": {"threads": cores},
    }
    more = dict(word.split("=", 1) for word in options.set)
    flags |= {key.replace(".", "__"): value for key, value in more.items()}
    settings = configure("atari:Pong", flags=flags, tuned=False).settings
    result.say("building")
    parts = build(choose_env("atari:Pong", settings), settings)
    for name, _, applied, why in parts.plan.rows():
        result.say(f"{name} = {applied} ({why})")
    result.say("compiling and capturing")
    training = Training(parts)
    while training.version < WARMED:
        training.iterate()
        result.say(f"iteration {training.version} of {WARMED} of the warm-up")
    for notice in parts.learner.notices:
        result.say(notice)
    return training


def summarise(rates: dict[str, list[float]], title: str) -> tuple[dict[str, float], str]:
    """Medians, and the verdict on the bar."""
    medians = {name: float(np.median(found)) for name, found in rates.items()}
    limit = min(max(medians["envs alone, one vector"], medians["envs alone, in groups"]), medians["learner alone"])
    share = medians["end to end"] / limit
    lines = [title, "", "| what | steps/s (median) | lowest | highest |", "|---|---|---|---|"]
    lines += [f"| {name} | {medians[name]:,.0f} | {min(r):,.0f} | {max(r):,.0f} |" for name, r in rates.items()]
    lines += ["", f"end to end is {share:.3f} of the slower of envs and learner, bar {BAR}: {verdict(share >= BAR)}"]
    return {"share": share, **medians}, "\n".join(lines)


def main() -> None:
    """Measure all contestants in rounds and report the verdict."""
    parser = make_parser(__doc__, rounds=5, seconds=3.0)
    parser.add_argument("--envs", type=int, default=256)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--rollout", type=int, default=64)
    parser.add_argument("--minibatch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lag", type=int, default=1)
    parser.add_argument("--budget", type=float, default=80.0, help="seconds of measuring, after compiling")
    parser.add_argument("--set", action="append", default=[], help="more settings, as KEY=VALUE")
    options = parser.parse_args()
    if options.quick:
        options.envs, options.rollout, options.minibatch, options.rounds, options.seconds = 8, 8, 32, 2, 1.0
    result, cores = Result("atari", options), machine.cores()
    training = prepare(options, cores, result)
    work = {
        "envs alone, one vector": stepping(options.envs, 1, cores),
        "envs alone, in groups": stepping(options.envs, options.groups, cores),
        "learner alone": training.learn,
        "end to end": training.run,
    }

    def timed(run: Callable[[float], tuple[int, float]]) -> Callable[[int], dict[str, Any]]:
        def measure(_: int) -> dict[str, Any]:
            time.sleep(SETTLE_S)
            steps, seconds = run(options.seconds)
            return {"seconds": round(seconds, 2), "steps_per_second": round(steps / seconds)}

        return measure

    contestants = {name: timed(run) for name, run in work.items()}
    run_rounds(result, "atari:Pong", contestants, options.rounds, options.budget)
    waited, chose = training.parts.collector.seconds()
    notices = training.parts.learner.notices + training.parts.collector.drain_faults()
    training.parts.close()
    rates = {name: list(found.values()) for name, found in rates_of(result.rows).items()}
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    title = (
        f"ALE Pong, {options.envs} envs in {options.groups} groups, {cores} cores, {where}, {options.epochs} epochs, "
        f"lag {options.lag}, {len(rates['end to end'])} rounds"
    )
    summary, text = summarise(rates, title)
    details = [f"collecting: {waited:.1f} s waiting for envs, {chose:.1f} s choosing actions", *notices]
    result.close(summary, "\n".join([text, "", *details]))


if __name__ == "__main__":
    main()
