"""The frame of every benchmark: command line, rounds, load gate, result file and statistics.

A benchmark script is its workload and a table of contestants. The frame runs the contestants in interleaved rounds
(`interleave`, `run_rounds`), waits for a quiet machine (`Result.gate`), keeps one row per measurement, and writes
`benchmarks/results/NAME.json`: name, command, commit, date, machine, rows, summary and a Markdown report. The file
holds the newest run; older ones are in the history of the repository. `docs/generate.py` writes docs/results.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, TypeVar

import psutil

from slipstream.confidence import t_quantile
from slipstream.perf.bench import turns
from slipstream.runs.layout import plain, write_text
from slipstream.system.machine import cores, cpu_model, gpu_name

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PRINTED = (
    "steps_per_second",
    "samples_per_second",
    "mean_return",
    "until_seconds",
    "seconds",
    "win_rate_low",
    "failed",
)
QUIET = 0.15
"""A machine is quiet if other processes use less than this share of it."""
GATE_S = 0.2
"""How long one measurement of the load takes."""
RESAMPLES = 10_000
Row = dict[str, Any]
T = TypeVar("T")


def make_parser(
    doc: str | None, rounds: int | None = None, seconds: float | None = None, quick: bool = True, help_flag: bool = True
) -> argparse.ArgumentParser:
    """The command line that all benchmarks share. `rounds` and `seconds` are the defaults; None leaves the flag out."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=help_flag
    )
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"interleaved rounds (default: {rounds})")
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help=f"per measurement (default: {seconds:g})")
    if quick:
        parser.add_argument("--quick", action="store_true", help="test the script; without --out, write no result")
    parser.add_argument("--out", type=Path, metavar="FILE", help="result file (default: benchmarks/results/NAME.json)")
    parser.add_argument("--wait", type=float, default=0.0, metavar="S", help="wait up to S seconds for a quiet machine")
    return parser


class Result:
    """One run of a benchmark: a row for every measurement, and their summary.

    The file is written after every row, so that a run that fails keeps the rows before.
    """

    def __init__(self, name: str, options: argparse.Namespace, resume: bool = False) -> None:
        quick = getattr(options, "quick", False)
        self.name, self.rows, self._wait_s = name, list[Row](), float(getattr(options, "wait", 0.0))
        out = getattr(options, "out", None)
        self.path: Path | None = out or (None if quick else RESULTS / f"{name}.json")
        self._head: Row = {"name": name, "command": command(), "commit": commit(), "date": str(datetime.date.today())}
        self._load: list[float] = []
        self._began = psutil.Process().create_time()
        if resume and self.path and self.path.exists():
            held = json.loads(self.path.read_text(encoding="utf-8"))
            self.rows, self._head = held["rows"], {key: held[key] for key in self._head}

    def provenance(self) -> dict[str, str]:
        """The commit and the date of this run."""
        return {key: self._head[key] for key in ("commit", "date")}

    def gate(self) -> None:
        """Wait until the machine is quiet or the waiting time is over, and note the load average for the next row."""
        deadline = time.monotonic() + self._wait_s
        while time.monotonic() < deadline and psutil.cpu_percent(GATE_S) / 100 > QUIET:
            time.sleep(GATE_S)
        self._load = [round(value, 2) for value in os.getloadavg()]

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep the row of one measurement and print it."""
        row = {**row, "load_before": row.get("load_before") or self._load}
        self.rows.append(row)
        self._write({}, "")
        facts = ", ".join(f"{key} {row[key]}" for key in PRINTED if row.get(key) is not None)
        self.say(f"{row['work']}, {row['contestant']}: {facts}")

    def say(self, text: str) -> None:
        """Print progress with the age of the process to stderr."""
        print(f"{time.time() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def close(self, summary: Mapping[str, Any], report: str) -> None:
        """Write the summary and the report, and print the report."""
        self._write(summary, report)
        print(report)

    def _write(self, summary: Mapping[str, Any], report: str) -> None:
        if self.path is not None:
            whole = self._head | {"machine": describe_machine(self.rows), "rows": self.rows}
            write_result(self.path, whole | {"summary": summary, "report": report})


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, one line per row and one per entry of the summary, without temporary paths."""
    parts = []
    for key, value in result.items():
        if key == "rows":
            inner = ",\n".join(f"  {json.dumps(plain(row))}" for row in value)
            text = f"[\n{inner}\n ]" if value else "[]"
        elif isinstance(value, Mapping):
            inner = ",\n".join(f"  {json.dumps(name)}: {json.dumps(plain(one))}" for name, one in value.items())
            text = f"{{\n{inner}\n }}" if value else "{}"
        else:
            text = json.dumps(value)
        parts.append(f" {json.dumps(key)}: {text}")
    body = "{\n" + ",\n".join(parts) + "\n}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, re.sub(rf"{re.escape(tempfile.gettempdir())}/[^/\" ]+/", "", body))


def read_result(name: str) -> dict[str, Any]:
    """The newest result of a benchmark."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def describe_machine(rows: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """This machine, and the versions that the rows report."""
    versions = {row["peer"]: {"version": row["version"], **row.get("versions", {})} for row in rows if "version" in row}
    return {
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "threads": os.cpu_count(),
        "usable": cores(),
        "gpu": gpu_name(),
        "memory_mib": psutil.virtual_memory().total >> 20,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def command() -> str:
    """The command of this run."""
    return f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".strip()


def commit() -> str:
    """The commit, and whether the working tree differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return (git("rev-parse", "--verify", "-q", "HEAD") or "no commit") + (
        " dirty" if git("status", "--porcelain", "--untracked-files=no") else " clean"
    )


def interleave(rounds: int, contestants: Iterable[T], budget_s: float | None = None) -> Iterator[tuple[int, T]]:
    """Pairs of round (from 0) and contestant. Every second round runs in reverse order.

    With a budget, no round starts that would exceed it if it took as long as those before. One round always runs.
    """
    field, began = list(contestants), time.perf_counter()
    for turn, number in turns(rounds, len(field)):
        done = turn - 1
        first = number == (0 if turn % 2 else len(field) - 1)
        if budget_s is not None and first and done:
            spent = time.perf_counter() - began
            if spent * (done + 1) / done > budget_s:
                return
        yield done, field[number]


def run_rounds(
    result: Result,
    work: str,
    contestants: Mapping[str, Callable[[int], Mapping[str, Any]]],
    rounds: int,
    budget_s: float | None = None,
) -> None:
    """Measure contestants in interleaved rounds. Each is called with the round and returns its row."""
    for turn, name in interleave(rounds, contestants, budget_s):
        result.gate()
        row = contestants[name](turn)
        result.add({"work": work, "contestant": name, "round": turn, **row})


def rates_of(rows: Iterable[Mapping[str, Any]], work: str | None = None) -> dict[str, dict[int, float]]:
    """Steps per second by contestant and round; contestants without a rate have no rounds."""
    rates: dict[str, dict[int, float]] = {}
    for row in rows:
        if work is None or row["work"] == work:
            found = rates.setdefault(row["contestant"], {})
            if row.get("steps_per_second"):
                found[row["round"]] = row["steps_per_second"]
    return rates


def ratios(rates: Mapping[str, Mapping[int, float]], one: str, other: str) -> list[float]:
    """The ratios of two contestants within the rounds that both finished."""
    return [rates[one][turn] / rates[other][turn] for turn in sorted(set(rates[one]) & set(rates[other]))]


def call(*words: str, pin: str = "") -> tuple[dict[str, Any], float]:
    """Run a verb of slipstream, optionally on some cores only. Return its JSON output and its wall-clock time.

    Tuned plans of this machine are ignored, so that results are comparable.
    """
    began = time.perf_counter()
    pinned = ["taskset", "-c", pin] if pin else []
    words += ("--no-tuned",) if words[0] in ("run", "train", "compete") else ()
    done = subprocess.run(
        [*pinned, sys.executable, "-m", "slipstream.cli", *words, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - began


def set_flags(settings: Sequence[str]) -> list[str]:
    """Settings as `--set` flags."""
    return [word for setting in settings for word in ("--set", setting)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; empty if there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def split_names(text: str) -> list[str]:
    """The names in a comma-separated list."""
    return [name for name in text.split(",") if name]


def verdict(met: bool) -> str:
    """The verdict on a bar."""
    return "met" if met else "not met"


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, range and the 95 % bootstrap interval of the median."""
    if not values:
        return {"n": 0}
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return {
        "n": len(values),
        "median": median(values),
        "min": min(values),
        "max": max(values),
        "low": medians[int(0.025 * RESAMPLES)],
        "high": medians[int(0.975 * RESAMPLES) - 1],
    }


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of the values that are not None."""
    present = [value for value in values if value is not None]
    return median(present) if present else None


def spread_cells(values: Mapping[str, Any], digits: int) -> tuple[str, str, str]:
    """Median, range and interval of a spread as text."""
    if not values["n"]:
        return ("-", "-", "-")
    texts = {key: f"{values[key]:,.{digits}f}" for key in ("median", "min", "max", "low", "high")}
    return (texts["median"], f"{texts['min']}..{texts['max']}", f"{texts['low']}..{texts['high']}")


def number_cell(value: float | None, digits: int) -> str:
    """A number as text, `-` if there is none."""
    if value is None:
        return "-"
    return "not reached" if math.isinf(value) else f"{value:,.{digits}f}"


def mean_interval(values: Sequence[float]) -> dict[str, float]:
    """Mean with its 95 % t interval; the interval is infinite below two values."""
    half = t_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return {"n": len(values), "mean": fmean(values), "low": fmean(values) - half, "high": fmean(values) + half}


def difference(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Mean of `second` minus mean of `first`, with Welch's 95 % t interval (degrees of freedom rounded down)."""
    gap = fmean(second) - fmean(first)
    if min(len(first), len(second)) < 2:
        return {"difference": gap, "low": -math.inf, "high": math.inf}
    parts = [stdev(values) ** 2 / len(values) for values in (first, second)]
    weights = [part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)]
    degrees = sum(parts) ** 2 / sum(weights) if sum(weights) > 0 else 1.0
    half = t_quantile(0.975, max(1, int(degrees))) * math.sqrt(sum(parts))
    return {"difference": gap, "low": gap - half, "high": gap + half}


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
