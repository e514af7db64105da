"""Soccer on one GPU: steps per second, with and without memory, and seconds from random weights to beating a rule.

    python benchmarks/gpu.py [--seconds 20] [--rounds 5] [--seeds 0,1,2] [--out DIR]

Everything is trained as `slipstream train soccer --preset soccer-gpu` does, in one process: the same settings meet both
goals. Compiling and capturing come before the clock starts, and are told beside it (the first run compiles). The
evaluation that says who won is played on the CPU, while the GPU waits, and counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import slipstream
from record import Record, dated
from slipstream.system.machine import gpu_name

GOAL = 0.70
WORKS = {
    "mlp": ({}, 50e6),
    "lstm": ({"policy__memory": "lstm", "policy__memory_size": 128}, 10e6),
}
"""What is trained, and the steps per second it should reach."""
QUIET = {"every__evaluate": 0, "every__checkpoint": 0}
WATCHED = {
    "every__evaluate": 100_000_000, "every__checkpoint": 0, "evaluation__games": 400, "evaluation__envs": 400,
    "evaluation__opponent": "scripted:rule", "every__log": 100_000_000,
}  # fmt: skip


def train(folder: Path, minutes: float, settings: dict[str, Any], seed: int) -> tuple[dict[str, Any], list[Any]]:
    """A training of so many minutes: its facts and its metrics."""
    shutil.rmtree(folder, ignore_errors=True)
    facts = slipstream.train(
        "soccer", preset="soccer-gpu", steps=10**12, minutes=minutes, seed=seed, run=folder, tuned=False, **settings
    ).facts
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return facts, [json.loads(line) for line in lines]


def measure_speed(record: Record, folder: Path, options: argparse.Namespace) -> None:
    """Rounds of every kind of policy in turn."""
    for number in range(options.rounds):
        for name, (settings, _) in WORKS.items():
            record.load()
            facts, rows = train(folder, options.seconds / 60, {**settings, **QUIET}, number)
            record.add({
                "work": name, "contestant": "slipstream", "round": number, "seed": number, "steps": facts["steps"],
                "seconds": rows[-1]["time/seconds"], "steps_per_second": rows[-1]["time/steps_per_second"],
            })  # fmt: skip


def measure_learning(record: Record, folder: Path, options: argparse.Namespace) -> None:
    """Seconds until the lower bound of the win rate against the rule passes the goal, for each seed."""
    for seed in [int(seed) for seed in options.seeds.split(",")]:
        record.load()
        began = time.perf_counter()
        _, rows = train(folder, options.minutes, WATCHED, seed)
        curve = [
            {"seconds": row["time/seconds"], "steps": row["steps"], "win_rate_low": row["evaluate/win_rate_low"],
             "steps_per_second": row["time/steps_per_second"]}
            for row in rows if "evaluate/win_rate_low" in row
        ]  # fmt: skip
        until = next((point for point in curve if point["win_rate_low"] >= GOAL), None)
        wall = time.perf_counter() - began
        record.add({
            "work": "learning", "contestant": "slipstream", "seed": seed, "curve": curve,
            "until_seconds": until and until["seconds"], "until_steps": until and until["steps"],
            "win_rate_low": curve[-1]["win_rate_low"] if curve else None,
            "start_seconds": wall - rows[-1]["time/seconds"],
        })  # fmt: skip


def summarise(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Medians with the least and the most."""
    summary: dict[str, Any] = {"gpu": gpu_name()}
    text = [f"# Soccer on one GPU ({gpu_name()})", "", "Preset `soccer-gpu`, MLP 128x128, 1 epoch.", "",
            "| policy | steps/s, median | least | most | goal |", "|---|---|---|---|---|"]  # fmt: skip
    for name, (_, goal) in WORKS.items():
        rates = [row["steps_per_second"] for row in rows if row["work"] == name]
        if rates:
            summary[name] = {"median": statistics.median(rates), "low": min(rates), "high": max(rates), "goal": goal}
            text.append(f"| {name} | {statistics.median(rates):,.0f} | {min(rates):,.0f} | {max(rates):,.0f} | "
                        f"{goal:,.0f} |")  # fmt: skip
    learned = [row for row in rows if row["work"] == "learning"]
    if learned:
        summary["learning"] = [{k: row[k] for k in ("seed", "until_seconds", "until_steps", "win_rate_low",
                                                    "start_seconds")} for row in learned]  # fmt: skip
        text += ["", f"From random weights until `win_rate_low` against scripted:rule (400 games) is {GOAL:.2f}:", "",
                 "| seed | seconds | steps | at the end | starting, compiling and capturing before |",
                 "|---|---|---|---|---|"]  # fmt: skip
        for row in learned:
            until = f"{row['until_seconds']:.1f}" if row["until_seconds"] else "not reached"
            text.append(f"| {row['seed']} | {until} | {row['until_steps'] or 0:,} | {row['win_rate_low']:.3f} | "
                        f"{row['start_seconds']:.1f} s |")  # fmt: skip
    return summary, "\n".join(text)


def main() -> None:
    """Run all and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement of speed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", default="0,1,2", help="of learning; empty: none")
    parser.add_argument("--minutes", type=float, default=1.0, help="of each training that is watched")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    record = Record(options.out or dated("gpu"))
    record.begin()
    with tempfile.TemporaryDirectory() as folder:
        if options.seeds:
            measure_learning(record, Path(folder) / "run", options)
        measure_speed(record, Path(folder) / "run", options)
    record.close(*summarise(record.rows))


if __name__ == "__main__":
    main()
