"""The demo's bar: from random weights to beating the scripted players, for several seeds, on this machine.

    .venv/bin/python benchmarks/demo.py [--seeds 3] [--first 0] [--out DIR]

Runs `slipstream run soccer --seed S` as `scripts/demo` does and notes its wall-clock, its steps and the games that it
then plays against each scripted player, on seeds of their own and with sides swapped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import ROOT, Record, dated

GOALS = {"scripted:chaser": 0.70, "scripted:rule": 0.50}
LIMIT_S = 480.0


def play(seed: int) -> dict[str, Any]:
    """One whole run; raises if the program fails."""
    command = [sys.executable, "-m", "slipstream.cli", "run", "soccer", "--seed", str(seed), "--json"]
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "--run", f"{folder}/run"], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
        )
        seconds = time.perf_counter() - began
    facts = json.loads(done.stdout.splitlines()[-1])
    train, games = facts["train"], facts["evaluate"]["opponents"]
    kept = {key: train[key] for key in ("steps", "steps_per_second", "start_seconds")}
    return {"seed": seed, "seconds": round(seconds, 1), **kept, "opponents": games}


def main() -> None:
    """Run every seed and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record(options.out or dated("demo"))
    record.begin()
    lines = ["| seed | seconds | steps | steps/s | against | games | win rate | low | bar |", "|" + "---|" * 9]
    passed = True
    for seed in range(options.first, options.first + options.seeds):
        record.load()
        row = play(seed)
        record.add({"work": "demo", "contestant": f"seed {seed}", **row})
        for name, bar in GOALS.items():
            result = row["opponents"][name]
            passed &= result["win_rate_low"] >= bar and row["seconds"] <= LIMIT_S
            lines.append(
                f"| {seed} | {row['seconds']} | {row['steps']:,} | {row['steps_per_second']:,.0f} | {name} | "
                f"{result['games']} | {result['win_rate']:.3f} | {result['win_rate_low']:.3f} | {bar} |"
            )
    text = "# The demo, seed by seed\n\n" + "\n".join(lines) + f"\n\nAll bars met: **{'yes' if passed else 'no'}**"
    record.close({"passed": passed, "limit_s": LIMIT_S, "goals": GOALS, "runs": record.rows}, text)


if __name__ == "__main__":
    main()
