"""Soccer on one GPU: steps per second with and without memory, and seconds until it beats `scripted:rule`.

    python benchmarks/gpu.py [--seconds 20] [--rounds 5] [--seeds 0,1,2]

All runs train as `slipstream train soccer --preset soccer-gpu`, in one process. Compiling and graph capture are not
timed; `start_seconds` has them (the first run compiles). Evaluations run on the CPU while the GPU waits, and are timed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import slipstream
from harness import Result, interleave, make_parser, read_lines
from slipstream.system.machine import gpu_name

BAR = 0.70
WORKS = {
    "mlp": ({}, 50e6),
    "lstm": ({"policy__memory": "lstm", "policy__memory_size": 128}, 10e6),
}
"""Settings, and the bar in steps per second."""
QUIET = {"every__evaluate": 0, "every__checkpoint": 0}
EVALUATED = {
    "every__evaluate": 100_000_000,
    "every__checkpoint": 0,
    "evaluation__games": 400,
    "evaluation__envs": 400,
    "evaluation__opponent": "scripted:rule",
    "every__log": 100_000_000,
}


def train(folder: Path, minutes: float, settings: dict[str, Any], seed: int) -> tuple[dict[str, Any], list[Any]]:
    """Train for some minutes; its output and its metrics."""
    shutil.rmtree(folder, ignore_errors=True)
    facts = slipstream.train(
        "soccer", preset="soccer-gpu", steps=10**12, minutes=minutes, seed=seed, run=folder, tuned=False, **settings
    ).facts
    return facts, read_lines(folder / "metrics.jsonl")


def measure_speed(result: Result, folder: Path, options: argparse.Namespace) -> None:
    """All policies in interleaved rounds."""
    for turn, name in interleave(options.rounds, WORKS):
        result.gate()
        facts, rows = train(folder, options.seconds / 60, {**WORKS[name][0], **QUIET}, turn)
        timing = {"seconds": rows[-1]["time/seconds"], "steps_per_second": rows[-1]["time/steps_per_second"]}
        row = {"work": name, "contestant": "slipstream", "round": turn, "seed": turn, "steps": facts["steps"]}
        result.add({**row, **timing})


def measure_learning(result: Result, folder: Path, options: argparse.Namespace) -> None:
    """Seconds until the lower bound of the win rate against the rule reaches the bar, for each seed."""
    for seed in [int(seed) for seed in options.seeds.split(",")]:
        result.gate()
        began = time.perf_counter()
        _, rows = train(folder, options.minutes, EVALUATED, seed)
        curve = [
            {
                "seconds": row["time/seconds"],
                "steps": row["steps"],
                "win_rate_low": row["evaluate/win_rate_low"],
                "steps_per_second": row["time/steps_per_second"],
            }
            for row in rows
            if "evaluate/win_rate_low" in row
        ]
        until = next((point for point in curve if point["win_rate_low"] >= BAR), None)
        wall = time.perf_counter() - began
        result.add(
            {
                "work": "learning",
                "contestant": "slipstream",
                "seed": seed,
                "curve": curve,
                "until_seconds": until and until["seconds"],
                "until_steps": until and until["steps"],
                "win_rate_low": curve[-1]["win_rate_low"] if curve else None,
                "start_seconds": wall - rows[-1]["time/seconds"],
            }
        )


def summarise(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Medians and ranges."""
    summary: dict[str, Any] = {"gpu": gpu_name()}
    text = [
        f"# Soccer on one GPU ({gpu_name()})",
        "",
        "Preset `soccer-gpu`, MLP 128x128, 1 epoch.",
        "",
        "| policy | steps/s, median | lowest | highest | bar |",
        "|---|---|---|---|---|",
    ]
    for name, (_, bar) in WORKS.items():
        rates = [row["steps_per_second"] for row in rows if row["work"] == name]
        if rates:
            summary[name] = {"median": statistics.median(rates), "low": min(rates), "high": max(rates), "bar": bar}
            text.append(
                f"| {name} | {statistics.median(rates):,.0f} | {min(rates):,.0f} | {max(rates):,.0f} | {bar:,.0f} |"
            )
    learned = [row for row in rows if row["work"] == "learning"]
    if learned:
        summary["learning"] = [
            {k: row[k] for k in ("seed", "until_seconds", "until_steps", "win_rate_low", "start_seconds")}
            for row in learned
        ]
        text += [
            "",
            f"From random weights until `win_rate_low` against scripted:rule (400 games) is {BAR:.2f}:",
            "",
            "| seed | seconds | steps | win rate at the end | start-up and compiling |",
            "|---|---|---|---|---|",
        ]
        for row in learned:
            until = f"{row['until_seconds']:.1f}" if row["until_seconds"] else "not reached"
            text.append(
                f"| {row['seed']} | {until} | {row['until_steps'] or 0:,} | {row['win_rate_low']:.3f} | "
                f"{row['start_seconds']:.1f} s |"
            )
    return summary, "\n".join(text)


def main() -> None:
    """Measure learning and speed, and write the result."""
    parser = make_parser(__doc__, rounds=5, seconds=20.0, quick=False)
    parser.add_argument("--seeds", default="0,1,2", help="seeds of learning; empty: none")
    parser.add_argument("--minutes", type=float, default=1.0, help="minutes of each training of learning")
    options = parser.parse_args()
    result = Result("gpu", options)
    with tempfile.TemporaryDirectory() as folder:
        if options.seeds:
            measure_learning(result, Path(folder) / "run", options)
        measure_speed(result, Path(folder) / "run", options)
    result.close(*summarise(result.rows))


if __name__ == "__main__":
    main()
