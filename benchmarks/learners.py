"""Steps per second of PPO with an LSTM and of SAC compared with Stable-Baselines3.

    .venv/bin/python benchmarks/learners.py [--cases recurrent,sac-small,sac-large] [--rounds 5] [--seconds 15]

One run at a time; a round has each contestant once, and ratios are taken within a round, to the peer's better number of
torch threads. Compiling and random actions at the start are not timed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

from case import Case
from contestants import (
    SCRIPTS,
    START_LIMIT_S,
    VENVS,
    child_cleanup,
    install,
    interpreter,
    launch,
    search_path,
    slipstream_command,
    slipstream_version,
    version_of,
    whole_iterations,
)
from learning_tasks import OURS, SETTLED, SPEED_TASKS, settings_of

from harness import (
    Result,
    interleave,
    make_parser,
    median_of,
    number_cell,
    rates_of,
    ratios,
    read_lines,
    set_flags,
    split_names,
    spread,
    spread_cells,
    table,
    verdict,
)

BARS = {"recurrent": 5.0, "sac-small": 2.0, "sac-large": 1.3}
SEQUENCE = 16  # BPTT length of slipstream; RecurrentPPO backpropagates to the start of the rollout
PROBE_STEPS = {"recurrent": 8 * 4096, "sac-small": 2_000, "sac-large": 2_000}
SLOWEST = 20.0  # steps per second below which a run counts as hung


def variants(name: str) -> tuple[str, ...]:
    """Variants of the peer: one LSTM for policy and value, or its default of one each."""
    work = SPEED_TASKS[name]
    return ("plain", "separate") if isinstance(work, Case) and work.memory else ("plain",)


def contestants(name: str, threads: list[int]) -> list[str]:
    """Slipstream, and the peer's variants with each number of torch threads."""
    return [OURS, *(f"sb3-{variant}-{count}" for variant in variants(name) for count in threads)]


def timed(one: str, name: str, seed: int, options: argparse.Namespace, rates: dict[str, float]) -> dict[str, Any]:
    """One run of about `--seconds`; its row."""
    if one != OURS:
        return _peer(one, name, seed, options)
    if name not in rates:  # slipstream trains for a number of steps: a short run measures the rate
        probe = _slipstream(name, PROBE_STEPS[name], seed, options)
        if not probe.get("steps_per_second"):
            return {"failed": probe.get("failed", "the probe run has no steps_per_second")}
        rates[name] = probe["steps_per_second"]
    row = _slipstream(name, int(SETTLED + rates[name] * options.seconds), seed, options)
    rates[name] = row.get("steps_per_second") or rates[name]
    return row


def _peer(one: str, name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    _, variant, threads = one.split("-")
    python = options.python or str(VENVS / "sb3" / "bin" / "python")
    command = [python, str(SCRIPTS / "sb3_learners.py"), "--case", name, "--vec", variant, "--threads", threads]
    command += ["--seed", str(seed), "--seconds", str(options.seconds)]
    done = launch(command, START_LIMIT_S + SETTLED / SLOWEST + 3 * options.seconds, search_path())
    return {"failed": done.failure} if done.failure else {**done.row, "wall_seconds": round(done.wall_seconds, 2)}


def _slipstream(name: str, steps: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train slipstream for a number of steps; the rate is that of its metrics after the start."""
    work = SPEED_TASKS[name]
    steps, log = (whole_iterations(steps, work), work.batch) if isinstance(work, Case) else (steps, SETTLED)
    settings = [*settings_of(work, steps, SEQUENCE), f"every.log={log}", *options.set]
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        run = Path(folder) / "run"
        command = slipstream_command(work.env, run, steps, seed, set_flags(settings))
        done = launch(command, START_LIMIT_S + steps / SLOWEST, search_path())
        rows = read_lines(run / "metrics.jsonl")
    if done.failure:
        return {"failed": done.failure}
    settled = [row for row in rows if row["steps"] >= SETTLED]
    rate = {"steps": done.row.get("steps"), "steps_per_second": done.row.get("steps_per_second")}
    if len(settled) > 1:
        first, last = settled[0], settled[-1]
        count, seconds = last["steps"] - first["steps"], last["time/seconds"] - first["time/seconds"]
        rate = {"steps": count, "seconds": round(seconds, 4), "steps_per_second": round(count / seconds, 1)}
    products = [row["time/matmul"] for row in settled if row.get("time/matmul") is not None]
    return {
        "version": slipstream_version(),
        "versions": {package: version_of(package) for package in ("torch", "gymnasium", "numpy", "numba")},
        "env": work.env,
        "seed": seed,
        **work.shape(),
        **rate,
        "start_seconds": done.row.get("start_seconds"),
        "mean_return": done.row.get("mean_return"),
        "products_share": median(products) if products else None,
        "wall_seconds": round(done.wall_seconds, 2),
    }


def rank(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Rates of each contestant; ratios to each variant of the peer within a round."""
    rates = rates_of(rows)
    ranking: dict[str, Any] = {"contestants": {}, "ratios": {}, "bar": BARS.get(name)}
    for one, found in rates.items():
        mine = [row for row in rows if row["contestant"] == one]
        facts = {
            key: median_of(row.get(key) for row in mine) for key in ("start_seconds", "mean_return", "products_share")
        }
        failed = sorted({row["failed"] for row in mine if "failed" in row})
        ranking["contestants"][one] = {**spread(list(found.values())), **facts, "failed": failed}
    for variant in variants(name):
        peers = {one: median(found.values()) for one, found in rates.items() if found and f"-{variant}-" in one}
        best = max(peers, key=lambda one: peers[one], default=None)
        found = ratios(rates, OURS, best) if best and OURS in rates else []
        if best and found:
            ratio = spread(found)
            ranking["ratios"][best] = ratio | _verdict(ratio, BARS.get(name) if variant == "plain" else None)
    return ranking


def _verdict(ratio: dict[str, Any], bar: float | None) -> dict[str, bool]:
    return {"met": ratio["median"] >= bar, "clear": ratio["low"] >= bar} if bar else {}


def page(summary: dict[str, Any]) -> str:
    """The report."""
    parts = ["# Steps per second of an LSTM policy and of SAC compared with Stable-Baselines3 and sb3-contrib"]
    parts.append("`sb3-plain-2` is the peer with 2 torch threads; `separate` is its default of two LSTMs.")
    for name, ranking in summary.items():
        work = SPEED_TASKS[name]
        shape = ", ".join(f"{key} {value}" for key, value in work.shape().items())
        memory = f", LSTM {work.memory}" if isinstance(work, Case) and work.memory else ""
        parts.append(f"## {name}: {work.env}, {shape}{memory}")
        lines = [
            [
                one,
                *spread_cells(facts, 0),
                number_cell(facts["mean_return"], 1),
                number_cell(facts["start_seconds"], 1),
                facts["n"],
            ]
            for one, facts in sorted(ranking["contestants"].items(), key=lambda item: -item[1].get("median", 0))
        ]
        parts.append(table(("contestant", "median", "min..max", "95 %", "mean return", "start s", "runs"), lines))
        for one, facts in ranking["contestants"].items():
            parts += [f"- {one} failed: {reason}" for reason in facts["failed"]]
            if facts["products_share"] is not None:
                parts.append(f"{one} spends {facts['products_share']:.0%} of the time in matrix products.")
        for one, ratio in ranking["ratios"].items():
            middle, extent, interval = spread_cells(ratio, 2)
            bar = f"; bar {ranking['bar']:g}x {verdict(ratio['met'])}" if "met" in ratio else ""
            parts.append(f"slipstream / {one}: **{middle}x** (95 % {interval}, {extent}, {ratio['n']} rounds{bar})")
    return "\n\n".join(parts)


def parse() -> argparse.Namespace:
    """The options, checked."""
    parser = make_parser(__doc__, rounds=5, seconds=15.0, quick=False)
    parser.add_argument("--cases", type=split_names, default=list(SPEED_TASKS), help=f"of {','.join(SPEED_TASKS)}")
    parser.add_argument("--contestants", type=split_names, default=[OURS, "sb3"], help="of slipstream,sb3")
    parser.add_argument("--threads", type=split_names, default=["1", "2"], help="torch threads to try the peer with")
    parser.add_argument("--python", type=interpreter, help="one that imports stable_baselines3 (default: .venvs/sb3)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further slipstream settings")
    options = parser.parse_args()
    unknown = set(options.cases) - set(SPEED_TASKS)
    if unknown:
        parser.error(f"unknown cases {sorted(unknown)}; choose from {list(SPEED_TASKS)}")
    options.threads = [int(count) for count in options.threads]
    return options


def main() -> None:
    """All contestants on all tasks in interleaved rounds."""
    options = parse()
    rates: dict[str, float] = {}
    with child_cleanup():
        result = Result("learners", options)
        broken = None if options.python or "sb3" not in options.contestants else install("sb3")
        field = [(name, one) for name in options.cases for one in contestants(name, options.threads)]
        field = [(name, one) for name, one in field if one.partition("-")[0] in options.contestants]
        for turn, (name, one) in interleave(options.rounds, field):
            peer = one.partition("-")[0]
            result.gate()
            row = {"failed": broken} if broken and peer == "sb3" else timed(one, name, turn, options, rates)
            result.add({**row, "work": name, "contestant": one, "peer": peer, "round": turn})
        summary = {name: rank([row for row in result.rows if row["work"] == name], name) for name in options.cases}
        result.close(summary, page(summary))


if __name__ == "__main__":
    main()
