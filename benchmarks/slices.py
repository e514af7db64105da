"""Trainings in processes of their own that take turns: each one runs for a slice of time when it is asked to.

A line with a number of seconds on standard input is answered by `[steps, seconds]` of a slice that took at least as
long; a first answer says that the training is ready. The others wait meanwhile, so all slices have the machine alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import ROOT

TRAINER = """
import json, sys, time
try:
    from slipstream.training import runner as driver
except ImportError:
    from slipstream.learn import drive as driver
env, settings, run = json.loads(sys.argv[1])
answer, sys.stdout = sys.stdout, sys.stderr
plain = driver.iterate

def iterate(parts, settings, position, *more, **named):
    began, first, wanted = time.perf_counter(), 0, 0.0
    for number, progress in enumerate(plain(parts, settings, position, *more, **named)):
        now = time.perf_counter()
        if number > 2 and now - began >= wanted:
            print(json.dumps([position.steps - first, now - began]), file=answer, flush=True)
            line = sys.stdin.readline()
            if not line.strip():
                return
            began, first, wanted = time.perf_counter(), position.steps, float(line)
        yield progress

driver.iterate = iterate
import slipstream as ss
if env.startswith("native:"):
    import importlib
    env = importlib.import_module(env.removeprefix("native:")).game
ss.train(env, run=run, steps=10**12, every__evaluate=0, every__checkpoint=0, every__system=0, **settings)
"""


class Trainer:
    """A training that runs for a slice of time when it is asked to."""

    def __init__(self, command: Sequence[str | Path], folder: Path, paths: Sequence[Path] = ()) -> None:
        """Start the command in a new folder, with `paths` on its PYTHONPATH; `wait` until it is ready."""
        folder.mkdir(parents=True)
        self._log = folder / "log"
        found = [*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(found)},
        )

    @classmethod
    def of(cls, env: str, settings: Mapping[str, Any], folder: Path, sources: Path = ROOT / "src") -> Trainer:
        """A training of ours; `native:MODULE` is the game of a module."""
        return cls([sys.executable, "-c", TRAINER, json.dumps([env, settings, str(folder / "run")])], folder, [sources])

    def _receive(self) -> tuple[int, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"A training ended early:\n{self._log.read_text()}")
        steps, seconds = json.loads(line)
        return steps, seconds

    def wait(self) -> None:
        """Wait until the training is ready; several may start at the same time."""
        self._receive()

    def rate(self, seconds: float) -> float:
        """Steps per second of a slice of at least so many seconds."""
        assert self._process.stdin is not None
        print(seconds, file=self._process.stdin, flush=True)
        steps, taken = self._receive()
        return steps / taken

    def close(self) -> None:
        """End the training."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def take_turns(trainers: Mapping[str, Trainer], slices: int, seconds: float) -> dict[str, list[float]]:
    """The rates of trainings that take turns, every second round in reverse order; it ends them."""
    for trainer in trainers.values():
        trainer.wait()
    rates: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(slices):
        for name in trainers if turn % 2 == 0 else reversed(list(trainers)):
            rates[name].append(round(trainers[name].rate(seconds)))
    for trainer in trainers.values():
        trainer.close()
    return rates
