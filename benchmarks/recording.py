"""How fast games are recorded, to disk: built-in soccer, and a slow Python env, with one worker and with one per core.

    .venv/bin/python benchmarks/recording.py [--rounds 5] [--games 2000] [--workers 2] [--disk DIR] [--out DIR]

Runs `slipstream record` as a user does and notes the steps per second that it tells: from the first step until every
episode is written and synced, start-up aside. The slow env is Python that computes for about 200 microseconds a step
and never sleeps. Rounds are interleaved, so that what else the machine does hits all alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from record import Record, dated

SOCCER_BAR = 500_000
"""Steps per second of soccer on two cores."""
LINEAR_BAR = 0.85
"""Share of the ideal speed-up that a slow env must reach."""
SLOW = """
import time
import gymnasium
import numpy as np
from gymnasium import spaces


def work(rounds):
    total = 0
    for number in range(rounds):
        total += number * number % 7
    return total


def calibrated(seconds=200e-6):
    rounds, took = 1000, 0.0
    while took < 0.05:
        rounds *= 2
        began = time.perf_counter()
        work(rounds)
        took = time.perf_counter() - began
    return max(1, int(rounds * seconds / took))


class Slow(gymnasium.Env):
    observation_space = spaces.Box(0.0, 1.0, (8,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, rounds=1000):
        self._rounds = rounds

    def reset(self, *, seed=None, options=None):
        self._left = 100
        return np.zeros(8, np.float32), {}

    def step(self, action):
        self._left -= 1
        return np.full(8, work(self._rounds) % 2, np.float32), 1.0, self._left == 0, False, {}


gymnasium.register("Slow-v0", Slow)
"""


def play(folder: Path, work: str, agent: str, env: str, games: int, workers: int, *words: str) -> dict[str, Any]:
    """One recording; raises if the program fails."""
    with tempfile.TemporaryDirectory(prefix="recording-", dir=folder) as out:
        command = [sys.executable, "-m", "slipstream.cli", "record", agent, "--env", env, "--episodes", str(games)]
        command += ["--workers", str(workers), "--out", f"{out}/demos", "--seed", "0", "--json", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=folder)
    facts = json.loads(done.stdout.splitlines()[-1])
    kept = ("steps", "seconds", "start_seconds", "steps_per_second", "mib", "time")
    return {"work": work, "contestant": f"workers {workers}", "workers": workers, **{key: facts[key] for key in kept}}


def main() -> None:
    """Run all rounds and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--games", type=int, default=2000, help="soccer games of a recording; of the slow env a tenth")
    parser.add_argument("--workers", type=int, default=2, help="how many, against one")
    parser.add_argument("--disk", type=Path, help="a folder on the disk to write to [the temporary one]")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record(options.out or dated("recording"))
    record.begin()
    slow_games = max(options.workers, options.games // 10)
    with tempfile.TemporaryDirectory(prefix="slipstream-", dir=options.disk) as name:
        folder = Path(name)
        (folder / "slow_env.py").write_text(SLOW)
        told = "import slow_env; print(slow_env.calibrated())"
        rounds = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, cwd=folder)
        slow = ["--import", "slow_env", "--set", f"env.options.rounds={rounds.stdout.strip()}"]
        for number in range(options.rounds):
            for workers in (1, options.workers) if number % 2 == 0 else (options.workers, 1):
                record.load()
                row = play(folder, "soccer", "scripted:rule", "soccer", options.games, workers)
                record.add({**row, "round": number})
                record.load()
                row = play(folder, "slow", "random", "gymnasium:Slow-v0", slow_games, workers, *slow)
                record.add({**row, "round": number})
    summary = summarise(record.rows, options.workers)
    record.close(summary, text_of(summary))


def summarise(rows: list[dict[str, Any]], workers: int) -> dict[str, Any]:
    """Medians of both works with one and with several workers, and whether the bars are met."""
    rates = {
        f"{work} {count}": [r["steps_per_second"] for r in rows if (r["work"], r["workers"]) == (work, count)]
        for work in ("soccer", "slow")
        for count in (1, workers)
    }
    medians = {name: statistics.median(values) for name, values in rates.items()}
    gains = {work: medians[f"{work} {workers}"] / medians[f"{work} 1"] for work in ("soccer", "slow")}
    passed = medians[f"soccer {workers}"] >= SOCCER_BAR and gains["slow"] >= LINEAR_BAR * workers
    spans = {name: [min(values), max(values)] for name, values in rates.items()}
    return {"workers": workers, "medians": medians, "spans": spans, "gains": gains, "passed": passed}


def text_of(summary: dict[str, Any]) -> str:
    """The summary for people."""
    lines = ["# Recording", "", "| work | workers | steps/s (median) | lowest | highest |", "|---|---|---|---|---|"]
    for name, median in summary["medians"].items():
        work, count = name.split()
        low, high = summary["spans"][name]
        lines.append(f"| {work} | {count} | {median:,.0f} | {low:,.0f} | {high:,.0f} |")
    gains = ", ".join(f"{work} {gain:.2f}x" for work, gain in summary["gains"].items())
    lines += ["", f"{summary['workers']} workers against one: {gains}."]
    bars = f"soccer {SOCCER_BAR:,} steps/s with {summary['workers']} workers, slow {LINEAR_BAR:.0%} of the ideal gain"
    return "\n".join([*lines, f"Bars ({bars}) met: **{'yes' if summary['passed'] else 'no'}**"])


if __name__ == "__main__":
    main()
