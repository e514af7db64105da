"""The demo's bar: from random weights to beating the scripted players, for several seeds, on this machine.

    .venv/bin/python benchmarks/demo.py [--seeds 3] [--first 0] [--out DIR]
    .venv/bin/python benchmarks/demo.py --memory lstm     with memory too, right after each plain run

Runs `slipstream run soccer --seed S` as `scripts/demo` does and notes its wall-clock, its steps and the games that it
then plays against each scripted player, on seeds of their own and with sides swapped. With memory the same command is
given `--set policy.memory=...`, and may take three times as long as the plain run before it.
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
MEMORY_SHARE = 3.0
"""How many times as long as a plain run one with memory may take."""


def play(seed: int, memory: str) -> dict[str, Any]:
    """One whole run; raises if the program fails."""
    command = [sys.executable, "-m", "slipstream.cli", "run", "soccer", "--seed", str(seed), "--json"]
    command += ["--set", f"policy.memory={memory}"]
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "--run", f"{folder}/run"], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
        )
        seconds = time.perf_counter() - began
    facts = json.loads(done.stdout.splitlines()[-1])
    train, games = facts["train"], facts["evaluate"]["opponents"]
    kept = {key: train[key] for key in ("steps", "steps_per_second", "start_seconds")}
    return {"seed": seed, "memory": memory, "seconds": round(seconds, 1), **kept, "opponents": games}


def main() -> None:
    """Run every seed and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--memory", choices=("gru", "lstm"), help="run with this memory beside each plain run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record(options.out or dated(f"demo-{options.memory}" if options.memory else "demo"))
    record.begin()
    lines = [
        "| seed | memory | seconds | steps | steps/s | against | games | win rate | low | bar |",
        "|" + "---|" * 10,
    ]
    passed, plain_s = True, 0.0
    for seed in range(options.first, options.first + options.seeds):
        for memory in ("none", options.memory) if options.memory else ("none",):
            record.load()
            row = play(seed, memory)
            record.add({"work": "demo", "contestant": f"seed {seed} {memory}", **row})
            plain_s = row["seconds"] if memory == "none" else plain_s
            limit_s = LIMIT_S if memory == "none" else MEMORY_SHARE * plain_s
            for name, bar in GOALS.items():
                result = row["opponents"][name]
                passed &= result["win_rate_low"] >= bar and row["seconds"] <= limit_s
                lines.append(
                    f"| {seed} | {memory} | {row['seconds']} | {row['steps']:,} | {row['steps_per_second']:,.0f} | "
                    f"{name} | {result['games']} | {result['win_rate']:.3f} | {result['win_rate_low']:.3f} | {bar} |"
                )
    text = "# The demo, seed by seed\n\n" + "\n".join(lines) + f"\n\nAll bars met: **{'yes' if passed else 'no'}**"
    record.close({"passed": passed, "limit_s": LIMIT_S, "goals": GOALS, "runs": record.rows}, text)


if __name__ == "__main__":
    main()
