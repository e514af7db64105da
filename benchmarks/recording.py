"""Speed of recording to disk: soccer, a slow Python env and a slow controller, with one worker and with several.

    .venv/bin/python benchmarks/recording.py [--rounds 5] [--games 2000] [--workers 2] [--disk DIR]

Runs `slipstream record` and reads its steps per second, from the first step until every episode is written and synced,
without start-up. The slow env, and the user's own controller in Pendulum, compute in Python for about 200 microseconds
per step.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from harness import Result, interleave, make_parser, table

SOCCER_BAR = 500_000
"""Bar of soccer on two cores, steps per second."""
LINEAR_BAR = 0.85
"""Bar of the slow env: share of the ideal speed-up."""
CONTROLLER_BAR = 0.95
"""Bar of the slow controller: share of the ideal speed-up."""
WORKS = ("soccer", "slow", "controller")
SLOW = """
import os
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


class Controller:
    rounds = int(os.environ["ROUNDS"])

    def act(self, obs):
        return [work(self.rounds) % 2 - obs[1]]
"""


def play(folder: Path, work: str, agent: str, env: str, games: int, workers: int, *words: str) -> dict[str, Any]:
    """One recording; its row."""
    with tempfile.TemporaryDirectory(prefix="recording-", dir=folder) as out:
        command = [sys.executable, "-m", "slipstream.cli", "record", agent, "--env", env, "--episodes", str(games)]
        command += ["--workers", str(workers), "--out", f"{out}/demos", "--seed", "0", "--json", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=folder)
    facts = json.loads(done.stdout.splitlines()[-1])
    kept = ("steps", "seconds", "start_seconds", "steps_per_second", "mib", "time")
    return {"work": work, "contestant": f"workers {workers}", "workers": workers, **{key: facts[key] for key in kept}}


def main() -> None:
    """Run all rounds and write the result."""
    parser = make_parser(__doc__, rounds=5, quick=False)
    parser.add_argument("--games", type=int, default=2000, help="soccer games of a recording; the slow env has a tenth")
    parser.add_argument("--workers", type=int, default=2, help="number of workers compared with one")
    parser.add_argument("--disk", type=Path, help="folder for the demos (default: the temporary folder)")
    options = parser.parse_args()
    result = Result("recording", options)
    slow_games = max(options.workers, options.games // 10)
    with tempfile.TemporaryDirectory(prefix="slipstream-", dir=options.disk) as name:
        folder = Path(name)
        (folder / "slow_env.py").write_text(SLOW)
        code, os.environ["ROUNDS"] = "import slow_env; print(slow_env.calibrated())", "1"
        rounds = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
        os.environ["ROUNDS"] = rounds.stdout.strip()
        slow = ["--import", "slow_env", "--set", f"env.options.rounds={rounds.stdout.strip()}"]
        own = ["--import", "slow_env"]
        for turn, (work, workers) in interleave(options.rounds, product(WORKS, (1, options.workers))):
            result.gate()
            if work == "soccer":
                row = play(folder, work, "scripted:rule", "soccer", options.games, workers)
            elif work == "controller":
                row = play(folder, work, "slow_env:Controller", "gymnasium:Pendulum-v1", slow_games, workers, *own)
            else:
                row = play(folder, work, "random", "gymnasium:Slow-v0", slow_games, workers, *slow)
            result.add({**row, "round": turn})
    summary = summarise(result.rows, options.workers)
    result.close(summary, text_of(summary))


def summarise(rows: list[dict[str, Any]], workers: int) -> dict[str, Any]:
    """Medians with one and with several workers, and the verdict."""
    rates = {
        f"{work} {count}": [r["steps_per_second"] for r in rows if (r["work"], r["workers"]) == (work, count)]
        for work in WORKS
        for count in (1, workers)
    }
    medians = {name: statistics.median(values) for name, values in rates.items()}
    gains = {work: medians[f"{work} {workers}"] / medians[f"{work} 1"] for work in WORKS}
    passed = medians[f"soccer {workers}"] >= SOCCER_BAR and gains["slow"] >= LINEAR_BAR * workers
    passed = passed and gains["controller"] >= CONTROLLER_BAR * workers
    spans = {name: [min(values), max(values)] for name, values in rates.items()}
    return {"workers": workers, "medians": medians, "spans": spans, "gains": gains, "passed": passed}


def text_of(summary: dict[str, Any]) -> str:
    """The report."""
    lines = []
    for name, median in summary["medians"].items():
        work, count = name.split()
        low, high = summary["spans"][name]
        lines.append([work, count, *(f"{value:,.0f}" for value in (median, low, high))])
    gains = ", ".join(f"{work} {gain:.2f}x" for work, gain in summary["gains"].items())
    header = ("work", "workers", "steps/s (median)", "lowest", "highest")
    parts = ["# Recording", table(header, lines), f"{summary['workers']} workers compared with one: {gains}."]
    bars = f"soccer {SOCCER_BAR:,} steps/s with {summary['workers']} workers, slow {LINEAR_BAR:.0%} of the ideal gain"
    bars += f", controller {CONTROLLER_BAR:.0%}"
    return "\n\n".join([*parts, f"Bars ({bars}) met: **{'yes' if summary['passed'] else 'no'}**"])


if __name__ == "__main__":
    main()
