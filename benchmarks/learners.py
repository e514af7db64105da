"""Steps per second of the learners that are not plain PPO, beside Stable-Baselines3: an LSTM policy, and SAC.

    .venv/bin/python benchmarks/learners.py [--cases recurrent,sac-small,sac-large] [--rounds 5] [--seconds 15]

Every run stands alone on the machine; a round holds each contestant once, and ratios are taken within a round, to the
peer's better number of torch threads. What comes before a learner has settled (compiling, random actions) is not timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

from case import Case
from contest import (
    SCRIPTS,
    START_LIMIT_S,
    VENVS,
    adopt_orphans,
    end_children,
    install,
    interpreter,
    launch,
    search_path,
    slipstream_command,
    slipstream_version,
    version_of,
    whole_iterations,
)
from lessons import DRILLS, OURS, SETTLED, settings_of
from stats import spread, table, told

from record import Record, dated, pairs

GOALS = {"recurrent": 5.0, "sac-small": 2.0, "sac-large": 1.3}
SEQUENCE = 16  # steps that slipstream's memory learns back; RecurrentPPO learns back to the start of the rollout
PROBE_STEPS = {"recurrent": 8 * 4096, "sac-small": 2_000, "sac-large": 2_000}
SLOWEST = 20.0  # steps per second below which a run counts as hung


def variants(name: str) -> tuple[str, ...]:
    """What the peer can be: one LSTM for policy and value, or its default of one each."""
    work = DRILLS[name]
    return ("plain", "separate") if isinstance(work, Case) and work.memory else ("plain",)


def contestants(name: str, threads: list[int]) -> list[str]:
    """Slipstream, and the peer's variants with each number of torch threads."""
    return [OURS, *(f"sb3-{variant}-{count}" for variant in variants(name) for count in threads)]


def timed(one: str, name: str, seed: int, options: argparse.Namespace, rates: dict[str, float]) -> dict[str, Any]:
    """One run of about `--seconds`: its row, or why there is none."""
    if one != OURS:
        return _peer(one, name, seed, options)
    if name not in rates:  # slipstream is told steps, not seconds: a short run finds how many
        probe = _slipstream(name, PROBE_STEPS[name], seed, options)
        if not probe.get("steps_per_second"):
            return {"failed": probe.get("failed", "the probe run told no steps_per_second")}
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
    """Train slipstream for so many steps and take the rate off its metrics, from where it has settled."""
    work = DRILLS[name]
    steps, log = (whole_iterations(steps, work), work.batch) if isinstance(work, Case) else (steps, SETTLED)
    settings = [*settings_of(work, steps, SEQUENCE), f"every.log={log}", *options.set]
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        run = Path(folder) / "run"
        command = slipstream_command(work.env, run, steps, seed, pairs(settings))
        done = launch(command, START_LIMIT_S + steps / SLOWEST, search_path())
        metrics = run / "metrics.jsonl"
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    if done.failure:
        return {"failed": done.failure}
    settled = [row for row in rows if row["steps"] >= SETTLED]
    rate = {"steps": done.row.get("steps"), "steps_per_second": done.row.get("steps_per_second")}
    if len(settled) > 1:
        first, last = settled[0], settled[-1]
        count, seconds = last["steps"] - first["steps"], last["time/seconds"] - first["time/seconds"]
        rate = {"steps": count, "seconds": round(seconds, 4), "steps_per_second": round(count / seconds, 1)}
    products = [row["time/products"] for row in settled if row.get("time/products") is not None]
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
    """Per contestant the spread of its rates; per variant of the peer the ratios, round by round."""
    rates: dict[str, dict[int, float]] = {row["contestant"]: {} for row in rows}
    for row in rows:
        if row.get("steps_per_second"):
            rates[row["contestant"]][row["round"]] = row["steps_per_second"]
    ranking: dict[str, Any] = {"contestants": {}, "ratios": {}, "goal": GOALS.get(name)}
    for one, found in rates.items():
        mine = [row for row in rows if row["contestant"] == one]
        facts = {key: _middle(mine, key) for key in ("start_seconds", "mean_return", "products_share")}
        failed = sorted({row["failed"] for row in mine if "failed" in row})
        ranking["contestants"][one] = {**spread(list(found.values())), **facts, "failed": failed}
    for variant in variants(name):
        peers = {one: median(found.values()) for one, found in rates.items() if found and f"-{variant}-" in one}
        best = max(peers, key=lambda one: peers[one], default=None)
        shared = sorted(set(rates.get(OURS, {})) & set(rates[best])) if best else []
        if shared:
            ratios = spread([rates[OURS][turn] / rates[best][turn] for turn in shared])
            ranking["ratios"][best] = ratios | _verdict(ratios, GOALS.get(name) if variant == "plain" else None)
    return ranking


def _middle(rows: list[dict[str, Any]], key: str) -> float | None:
    present = [row[key] for row in rows if row.get(key) is not None]
    return median(present) if present else None


def _verdict(ratios: dict[str, Any], goal: float | None) -> dict[str, bool]:
    return {"met": ratios["median"] >= goal, "clear": ratios["low"] >= goal} if goal else {}


def page(summary: dict[str, Any]) -> str:
    """The summary for people."""
    parts = ["# Steps per second of an LSTM policy and of SAC beside Stable-Baselines3 and sb3-contrib"]
    parts.append("`sb3-plain-2` is the peer with 2 torch threads; `separate` is its default of two LSTMs.")
    for name, ranking in summary.items():
        work = DRILLS[name]
        shape = ", ".join(f"{key} {value}" for key, value in work.shape().items())
        memory = f", LSTM {work.memory}" if isinstance(work, Case) and work.memory else ""
        parts.append(f"## {name}: {work.env}, {shape}{memory}")
        lines = [
            [one, *told(facts, 0), _shown(facts["mean_return"], 1), _shown(facts["start_seconds"], 1), facts["n"]]
            for one, facts in sorted(ranking["contestants"].items(), key=lambda item: -item[1].get("median", 0))
        ]
        parts.append(table(("contestant", "median", "min..max", "95 %", "mean return", "start s", "runs"), lines))
        for one, facts in ranking["contestants"].items():
            parts += [f"- {one} failed: {reason}" for reason in facts["failed"]]
            if facts["products_share"] is not None:
                parts.append(f"{one} spends {facts['products_share']:.0%} of the time in matrix products.")
        for one, ratio in ranking["ratios"].items():
            middle, extent, interval = told(ratio, 2)
            goal = f"; goal {ranking['goal']:g}x {'met' if ratio['met'] else 'not met'}" if "met" in ratio else ""
            parts.append(f"slipstream / {one}: **{middle}x** (95 % {interval}, {extent}, {ratio['n']} rounds{goal})")
    return "\n\n".join(parts)


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def parse() -> argparse.Namespace:
    """The options, checked."""

    def names(text: str) -> list[str]:
        return [name for name in text.split(",") if name]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=names, default=list(DRILLS), help=f"of {','.join(DRILLS)}")
    parser.add_argument("--sides", type=names, default=[OURS, "sb3"], help="of slipstream,sb3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="timed part of each run")
    parser.add_argument("--threads", type=names, default=["1", "2"], help="torch threads to try the peer with")
    parser.add_argument("--python", type=interpreter, help="one that imports stable_baselines3 (default: .venvs/sb3)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further slipstream settings")
    parser.add_argument("--out", type=Path, help="the record's folder (default: benchmarks/records/DATE-learners)")
    options = parser.parse_args()
    unknown = set(options.cases) - set(DRILLS)
    if unknown:
        parser.error(f"unknown cases {sorted(unknown)}; choose from {list(DRILLS)}")
    options.threads = [int(count) for count in options.threads]
    return options


def main() -> None:
    """All contestants on all cases, round after round; leave nothing running."""
    options = parse()
    record = Record(options.out or dated("learners"))
    adopt_orphans()
    rates: dict[str, float] = {}
    try:
        record.begin()
        broken = None if options.python or "sb3" not in options.sides else install("sb3")
        for turn in range(options.rounds):
            for name in options.cases:
                for one in contestants(name, options.threads):
                    peer = one.partition("-")[0]
                    if peer not in options.sides:
                        continue
                    record.load()
                    lost = broken if peer == "sb3" else None
                    row = {"failed": lost} if lost else timed(one, name, turn, options, rates)
                    record.add({**row, "work": name, "contestant": one, "peer": peer, "round": turn})
        summary = {name: rank([row for row in record.rows if row["work"] == name], name) for name in options.cases}
        record.close(summary, page(summary))
    finally:
        end_children()


if __name__ == "__main__":
    main()
