"""Slipstream beside other trainers on equal work: one virtual environment each, interleaved rounds, a dated record.

    .venv/bin/python benchmarks/peers.py                 steps per second, all contestants
    .venv/bin/python benchmarks/peers.py --until-475     wall-clock to a mean return of 475 on CartPole
    .venv/bin/python benchmarks/peers.py --lag-quality   is the return at lag 1 as good as at lag 0?

Every run stands alone on the machine; a round holds each contestant once, so that a slow minute hits all of them, and
ratios are taken within a round. Peers that were tried and cannot take part stand in `ABSENT` with the reason.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

from contest import (
    HALF,
    LAGS,
    PROBE_ITERATIONS,
    START_LIMIT_S,
    WORK,
    Contestant,
    adopt_orphans,
    case_of,
    contestants,
    end_children,
    games_of,
    install,
    install_games,
    launch,
    path_of,
    peer_run,
    slipstream_command,
    slipstream_run,
    takes_part,
    whole_iterations,
)
from stats import difference, mean_interval, spread, table, told

from record import Record, dated, pairs

ABSENT = {
    "cleanrl": "the newest release that installs by name on Python 3.11 is 0.4.8, which imports `gym.wrappers.Monitor`"
    " and stops: the gym it brings (0.26.2) no longer has it",
    "leanrl": "published as source only; the package of that name is another project",
}
UNTIL_RETURN = 475.0
UNTIL_STEPS = 300_000
UNTIL_LIMIT_S = 240.0
QUALITY_STEPS = {
    "cartpole-1": 400_000, "cartpole-4": 400_000, "halfcheetah": 300_000, "minigrid": 200_000, "pong-1": 100_000,
    "pong-4": 100_000,
}  # fmt: skip
SLOWEST_RATE = 200.0  # steps per second below which a slipstream run counts as hung


def speed(options: argparse.Namespace, record: Record) -> None:
    """All contestants on all cases, round after round, and the ratios within each round."""
    field_ = contestants(options.peers)
    broken = {name: install(name) for name in sorted({one.peer for one in field_} - {"slipstream"})}
    needed = {games_of(case_of(work)) for work in options.cases} - {""}
    missing = {name: install_games(name) for name in sorted(needed)}
    rates: dict[tuple[str, str], float] = {}
    for turn in range(options.rounds):
        for work in options.cases:
            for one in (one for one in field_ if takes_part(one, case_of(work))):
                record.load()
                lacking = broken.get(one.peer) or missing.get(games_of(case_of(work)))
                row = lacking or _timed(one, work, turn, options, rates)
                row = {"failed": row} if isinstance(row, str) else row
                record.add({"work": work, "contestant": one.name, "peer": one.peer, "round": turn, **row})
    summary = {
        work: _ranking([row for row in record.rows if row["work"] == work], WORK[work][2]) for work in options.cases
    }
    record.close({"cases": summary, "absent": ABSENT}, _speed_page(summary))


def _timed(
    one: Contestant, work: str, seed: int, options: argparse.Namespace, rates: dict[tuple[str, str], float]
) -> dict[str, Any] | str:
    """One run of about `--seconds`: its row, or why there is none."""
    case = case_of(work)
    limit_s = START_LIMIT_S + 3 * options.seconds
    if one.peer != "slipstream":
        chosen = ["--case", WORK[work][0], "--epochs", str(case.epochs)]
        chosen += ["--threads", str(options.threads)] if options.threads else []
        chosen += ["--seed", str(seed), "--seconds", str(options.seconds)]
        done = peer_run(one, chosen, limit_s, path_of(case))
        return done.failure or {**done.row, "wall_seconds": round(done.wall_seconds, 2)}
    key, lag, extra = (one.name, work), int(one.variant[-1]), pairs(options.set)
    extra += pairs(["plan.precision=bf16"]) if one.variant.startswith(HALF) else []
    if key not in rates:  # slipstream is told steps, not seconds: a short run finds how many
        probe = slipstream_run(case, lag, PROBE_ITERATIONS * case.batch, seed, limit_s, extra)
        if probe.failure or not probe.row.get("steps_per_second"):
            return probe.failure or "the probe run told no steps_per_second"
        rates[key] = probe.row["steps_per_second"]
    steps = whole_iterations(rates[key] * options.seconds, case) + case.batch
    done = slipstream_run(case, lag, steps, seed, limit_s, extra)
    if done.failure:
        return done.failure
    rates[key] = done.row.get("steps_per_second") or rates[key]
    return {**done.row, "variant": one.variant, "wall_seconds": round(done.wall_seconds, 2)}


def _ranking(rows: list[dict[str, Any]], goal: float) -> dict[str, Any]:
    """Per contestant: spread of the rates; per lag: ratios to the best peer, round by round."""
    rates: dict[str, dict[int, float]] = {}
    for row in rows:
        found = rates.setdefault(row["contestant"], {})
        if row.get("steps_per_second"):
            found[row["round"]] = row["steps_per_second"]
    ranking: dict[str, Any] = {"contestants": {}, "ratios": {}, "goal": goal}
    for name, found in rates.items():
        mine = [row for row in rows if row["contestant"] == name]
        ranking["contestants"][name] = {
            **spread(list(found.values())),
            "mean_return": _middle(row.get("mean_return") for row in mine),
            "start_seconds": _middle(row.get("start_seconds") for row in mine),
            "failed": sorted({row["failed"] for row in mine if "failed" in row}),
        }
    peers = {
        name: median(found.values()) for name, found in rates.items() if found and not name.startswith("slipstream")
    }
    if not peers:
        return ranking
    ranking["best_peer"] = best = max(peers, key=lambda name: peers[name])
    for name in (name for name in rates if name.startswith("slipstream")):
        shared = sorted(set(rates[name]) & set(rates[best]))
        if shared:
            ratios = spread([rates[name][turn] / rates[best][turn] for turn in shared])
            ranking["ratios"][name] = {**ratios, "met": ratios["median"] >= goal, "clear": ratios["low"] >= goal}
    return ranking


def _middle(values: Iterable[float | None]) -> float | None:
    """The median of what is there."""
    present = [value for value in values if value is not None]
    return median(present) if present else None


def _speed_page(summary: dict[str, Any]) -> str:
    """The speed summary for people."""
    parts = ["# Steps per second beside other trainers"]
    for work, ranking in summary.items():
        case = case_of(work)
        parts.append(
            f"## {work}: {case.env}, {case.envs} envs, batch {case.batch}, minibatch {case.minibatch},"
            f" {case.epochs} epochs, {case.activation} {'x'.join(map(str, case.hidden))}, separate networks"
        )
        ordered = sorted(ranking["contestants"].items(), key=lambda item: -item[1].get("median", 0))
        lines = [
            [name, *told(one, 0), _shown(one["mean_return"], 1), _shown(one["start_seconds"], 1), one["n"]]
            for name, one in ordered
        ]
        parts.append(table(("contestant", "median", "min..max", "95 %", "mean return", "start s", "runs"), lines))
        parts += [f"- {name} failed: {reason}" for name, one in ordered for reason in one["failed"]]
        for name, ratio in ranking["ratios"].items():
            middle, extent, interval = told(ratio, 2)
            parts.append(
                f"{name} / {ranking['best_peer']}: **{middle}x** (95 % {interval}, {extent}, {ratio['n']} rounds;"
                f" goal {ranking['goal']:g}x {'met' if ratio['met'] else 'not met'})"
            )
    parts.append("Tried and not taking part: " + "; ".join(f"{name} ({why})" for name, why in ABSENT.items()) + ".")
    return "\n\n".join(parts)


def _shown(value: float | None, digits: int) -> str:
    """A number for people."""
    if value is None:
        return "-"
    return "not reached" if math.isinf(value) else f"{value:,.{digits}f}"


def until(options: argparse.Namespace, record: Record) -> None:
    """Wall-clock to a mean return of 475: slipstream's preset against Stable-Baselines3's published settings."""
    broken = install("sb3")
    for seed in range(options.rounds):
        record.load()
        record.add(
            {"work": "until-475", "contestant": "slipstream", "peer": "slipstream", **_until_slipstream(options, seed)}
        )
        record.load()
        record.add({"work": "until-475", "contestant": "sb3-published", "peer": "sb3", **_until_sb3(broken, seed)})
    times: dict[str, dict[int, float]] = {}
    for row in record.rows:
        times.setdefault(row["contestant"], {})[row["seed"]] = row.get("until_seconds") or math.inf
    ours, theirs = times["slipstream"], times["sb3-published"]
    both = [seed for seed in ours if math.isfinite(ours[seed]) and math.isfinite(theirs[seed])]
    summary = {
        "contestants": {
            name: {**_ordered(list(found.values())), "reached": sum(map(math.isfinite, found.values()))}
            for name, found in times.items()
        },
        "sb3_over_slipstream": spread([theirs[seed] / ours[seed] for seed in both]),
    }
    lines = [
        [name, f"{one['reached']} of {one['n']}", *(_shown(one[key], 2) for key in ("median", "min", "max"))]
        for name, one in summary["contestants"].items()
    ]
    parts = ["# Seconds to a mean return of 475 on CartPole-v1 (last 100 training episodes)"]
    parts.append(table(("contestant", "reached", "median s", "fastest", "slowest"), lines))
    if both:
        middle, extent, interval = told(summary["sb3_over_slipstream"], 2)
        parts.append(f"sb3 / slipstream, seed by seed where both arrive: **{middle}x** (95 % {interval}, {extent})")
    parts += [
        f"- {row['contestant']} seed {row['seed']} failed: {row['failed']}" for row in record.rows if "failed" in row
    ]
    record.close(summary, "\n\n".join(parts))


def _ordered(values: list[float]) -> dict[str, Any]:
    """Median and range of times of which some may be infinite (never reached)."""
    return {"n": len(values), "median": median(values), "min": min(values), "max": max(values)}


def _until_slipstream(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run of the preset; the time stands in the first row of its metrics that reaches the return."""
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        run = Path(folder) / "run"
        extra = ["--preset", "cartpole", *pairs(options.set)]
        done = launch(slipstream_command("CartPole-v1", run, UNTIL_STEPS, seed, extra), UNTIL_LIMIT_S)
        metrics = run / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
    if done.failure:
        return {"seed": seed, "failed": done.failure}
    row = {key: value for key, value in done.row.items() if key not in ("run", "checkpoint")} | {"seed": seed}
    for step in map(json.loads, lines):
        if (step.get("episode/return_mean") or -math.inf) >= UNTIL_RETURN:
            reached = {"until_steps": step["steps"], "until_seconds": step["time/seconds"]}
            return {**row, "reached": True, **reached}
    return {**row, "reached": False}


def _until_sb3(broken: str | None, seed: int) -> dict[str, Any]:
    """One run of Stable-Baselines3 with its published settings."""
    if broken:
        return {"seed": seed, "failed": broken}
    done = peer_run(
        Contestant("sb3", "dummy"), ["--until-return", str(UNTIL_RETURN), "--seed", str(seed)], UNTIL_LIMIT_S
    )
    return {"seed": seed, "failed": done.failure} if done.failure else {**done.row, "seed": seed}


def lag_quality(options: argparse.Namespace, record: Record) -> None:
    """The return at lag 1 against lag 0 after equal steps, under the very settings of each case."""
    for work in options.cases:
        case = case_of(work)
        steps = whole_iterations(options.steps or QUALITY_STEPS[work], case)
        for seed in range(options.rounds):
            for lag in LAGS:
                record.load()
                limit_s = START_LIMIT_S + steps / SLOWEST_RATE
                done = slipstream_run(case, lag, steps, seed, limit_s, pairs(options.set))
                row = {"failed": done.failure} if done.failure else done.row
                record.add(
                    {"work": work, "contestant": f"slipstream-lag{lag}", "peer": "slipstream", "round": seed, **row}
                )
    summary: dict[str, Any] = {}
    lines = []
    for work in options.cases:
        rows = [row for row in record.rows if row["work"] == work and row.get("mean_return") is not None]
        returns = [[row["mean_return"] for row in rows if row["contestant"].endswith(str(lag))] for lag in LAGS]
        if not all(returns):
            reasons = {row["failed"] for row in record.rows if row["work"] == work and "failed" in row}
            summary[work] = {"verdict": "failed", "failed": sorted(reasons)}
            lines.append([work, "-", "-", "-", "failed"])
            continue
        gap = difference(*returns)
        verdict = "not worse" if gap["high"] >= 0 else "worse"
        lags = {f"lag{lag}": mean_interval(values) for lag, values in zip(LAGS, returns, strict=True)}
        summary[work] = {**lags, **gap, "verdict": verdict}
        shown = [f"{one['mean']:.1f} ({one['low']:.1f}..{one['high']:.1f})" for one in lags.values()]
        lines.append([work, *shown, f"{gap['difference']:+.1f} ({gap['low']:.1f}..{gap['high']:.1f})", verdict])
    page = "# Mean return at equal steps, lag 1 against lag 0 (95 % t intervals)\n\n"
    record.close(summary, page + table(("case", "lag 0", "lag 1", "lag 1 - lag 0", "verdict"), lines))


def names(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name for name in text.split(",") if name]


def parse() -> argparse.Namespace:
    """The driver's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", type=names, default=[], help="peers or contestants, e.g. sb3,skrl-sync (default: all)"
    )
    parser.add_argument("--cases", type=names, default=list(WORK), help=f"of {','.join(WORK)}")
    parser.add_argument("--rounds", type=int, help="rounds, or seeds (default: 5)")
    parser.add_argument("--seconds", type=float, help="training time of each run (default: 15)")
    parser.add_argument("--quick", action="store_true", help="one round of 2 s, to see that all of it runs")
    parser.add_argument("--threads", type=int, help="torch threads of every peer (default: each peer's better one)")
    parser.add_argument("--steps", type=int, help="steps of each run of --lag-quality (default: by case)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further slipstream settings")
    parser.add_argument("--out", type=Path, help="the record's folder (default: benchmarks/records/DATE-NAME)")
    parser.add_argument("--until-475", action="store_true", dest="until", help="time to a mean return of 475")
    parser.add_argument("--lag-quality", action="store_true", help="return at lag 1 against lag 0")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.seconds = options.seconds or (2.0 if options.quick else 15.0)
    unknown = set(options.cases) - set(WORK)
    if unknown:
        parser.error(f"unknown cases {sorted(unknown)}; choose from {list(WORK)}")
    return options


def main() -> None:
    """Run what was asked for and leave nothing running."""
    options = parse()
    name, job = (
        ("until-475", until)
        if options.until
        else ("lag-quality", lag_quality)
        if options.lag_quality
        else ("peers", speed)
    )
    folder = options.out or dated(name)
    record = Record(folder)
    adopt_orphans()
    try:
        record.begin()
        job(options, record)
    finally:
        end_children()


if __name__ == "__main__":
    main()
