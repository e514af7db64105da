"""A benchmark record: a dated folder with machine, commit, command, raw rows and their summary."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from slipstream.runs.layout import plain
from slipstream.system.machine import cores, cpu_model, gpu_name

ROOT = Path(__file__).parents[1]
SHOWN = ("steps_per_second", "mean_return", "until_seconds", "seconds", "win_rate_low", "failed")


@dataclass
class Record:
    """A dated folder under `benchmarks/records`: machine, commit, command, raw rows and their summary."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    loads: list[list[float]] = field(default_factory=list)

    def begin(self, go_on: bool = False) -> None:
        """Write what is known before the first run; or go on after the rows that are there, if there are any."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if go_on and (raw := self.folder / "raw.jsonl").exists():
            self.rows = [json.loads(line) for line in raw.read_text().splitlines()]
            self.loads = [row["load_before"] for row in self.rows]
            return
        (self.folder / "command.txt").write_text(
            f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".strip() + "\n"
        )
        (self.folder / "commit.txt").write_text(commit() + "\n")
        (self.folder / "raw.jsonl").write_text("")
        self.write_machine()

    def load(self) -> None:
        """Note the load average before a run."""
        self.loads.append([round(value, 2) for value in os.getloadavg()])

    def add(self, row: dict[str, Any]) -> None:
        """Keep one run's row and say it; where its temporary files lay is left out."""
        row = {**row, "load_before": self.loads[-1]}
        self.rows.append(row)
        with open(self.folder / "raw.jsonl", "a") as raw:
            raw.write(_lasting(json.dumps(plain(row))) + "\n")
        facts = {key: row.get(key) for key in SHOWN if row.get(key) is not None}
        told = ", ".join(f"{key} {value}" for key, value in facts.items())
        print(f"  {row['work']} {row['contestant']}: {told}", file=sys.stderr, flush=True)

    def close(self, summary: dict[str, Any], text: str) -> None:
        """Write the summary for programs and for people."""
        self.write_machine()
        (self.folder / "summary.json").write_text(_lasting(json.dumps(plain(summary), indent=2)) + "\n")
        (self.folder / "summary.md").write_text(text + "\n")
        print(text)

    def write_machine(self) -> None:
        """Machine, load before each run and every version seen."""
        versions: dict[str, Any] = {}
        for row in self.rows:
            if "version" in row:
                versions[row["peer"]] = {"version": row["version"], **row.get("versions", {})}
        machine = {
            "cpu": cpu_model(),
            "cores": psutil.cpu_count(logical=False),
            "threads": os.cpu_count(),
            "usable": cores(),
            "gpu": gpu_name(),
            "memory_mib": psutil.virtual_memory().total >> 20,
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "load_before_each_run": self.loads,
            "versions": versions,
        }
        (self.folder / "machine.json").write_text(json.dumps(machine, indent=2) + "\n")


class Progress:
    """Says on stderr, at once, what is being done and how old the process is; knows when a budget is spent."""

    def __init__(self, budget_s: float) -> None:
        self._budget, self._began, self._measuring = budget_s, psutil.Process().create_time(), 0.0
        self.say("imported")

    def say(self, text: str) -> None:
        """Tell what comes next."""
        print(f"{time.time() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def measure(self) -> None:
        """From here on the budget counts: all is compiled."""
        self._measuring = time.perf_counter()

    def allows(self, done: int, rounds: int) -> bool:
        """Whether there is time for one more round as long as those before; one there is in any case."""
        spent = time.perf_counter() - self._measuring
        return done < rounds and (not done or spent * (done + 1) / done <= self._budget)


def _lasting(text: str) -> str:
    """The same without the folders in which temporary files lay."""
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/[^/\" ]+/", "", text)


def commit() -> str:
    """HEAD, and whether the working tree differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return (git("rev-parse", "--verify", "-q", "HEAD") or "no commit") + (
        " dirty" if git("status", "--porcelain", "--untracked-files=no") else " clean"
    )


def call(*words: str, pin: str = "") -> tuple[dict[str, Any], float]:
    """Run a verb of slipstream to its end, on some cores only if said: its facts and its wall-clock.

    A plan that was tuned on this machine is left aside, so that a record means the same everywhere.
    """
    began = time.perf_counter()
    pinned = ["taskset", "-c", pin] if pin else []
    words += ("--no-tuned",) if words[0] in ("run", "train", "compete") else ()
    done = subprocess.run(
        [*pinned, sys.executable, "-m", "slipstream.cli", *words, "--json"], stdout=subprocess.PIPE, text=True,
        check=True, cwd=ROOT,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - began


def pairs(settings: Sequence[str]) -> list[str]:
    """Settings as the command line takes them."""
    return [word for setting in settings for word in ("--set", setting)]


def dated(name: str) -> Path:
    """The folder of today's record of a benchmark."""
    return ROOT / "benchmarks" / "records" / f"{datetime.date.today():%Y-%m-%d}-{name}"
