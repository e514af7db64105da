"""Slipstream and other trainers on equal work, each in its own virtual environment, in interleaved rounds.

    .venv/bin/python benchmarks/peers.py                 steps per second, all contestants
    .venv/bin/python benchmarks/peers.py --until-475     wall-clock to a mean return of 475 on CartPole
    .venv/bin/python benchmarks/peers.py --lag-quality   return at lag 1 compared with lag 0

One run at a time. A round has each contestant once, so that a slow minute affects all of them, and ratios are taken
within a round. `ABSENT` lists peers that cannot take part, with the reason.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

from contestants import (
    HALF,
    LAGS,
    PROBE_ITERATIONS,
    START_LIMIT_S,
    WORK,
    Contestant,
    case_of,
    child_cleanup,
    contestants,
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

from harness import (
    Result,
    difference,
    interleave,
    make_parser,
    mean_interval,
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

ABSENT = {
    "cleanrl": "the newest release that installs by name on Python 3.11 is 0.4.8, which imports `gym.wrappers.Monitor`"
    " and stops: the gym it brings (0.26.2) no longer has it",
    "leanrl": "published as source only; the package of that name is another project",
}
UNTIL_RETURN = 475.0
UNTIL_STEPS = 300_000
UNTIL_LIMIT_S = 240.0
QUALITY_STEPS = {
    "cartpole-1": 400_000,
    "cartpole-4": 400_000,
    "halfcheetah": 300_000,
    "minigrid": 200_000,
    "pong-1": 100_000,
    "pong-4": 100_000,
}
SLOWEST_RATE = 200.0  # steps per second below which a slipstream run counts as hung


def speed(options: argparse.Namespace, result: Result) -> None:
    """All contestants on all cases in interleaved rounds, and the ratios within each round."""
    field_ = contestants(options.peers)
    broken = {name: install(name) for name in sorted({one.peer for one in field_} - {"slipstream"})}
    needed = {games_of(case_of(work)) for work in options.cases} - {""}
    missing = {name: install_games(name) for name in sorted(needed)}
    rates: dict[tuple[str, str], float] = {}
    runs = [(work, one) for work in options.cases for one in field_ if takes_part(one, case_of(work))]
    for turn, (work, one) in interleave(options.rounds, runs):
        result.gate()
        failure = broken.get(one.peer) or missing.get(games_of(case_of(work)))
        row = failure or _timed(one, work, turn, options, rates)
        row = {"failed": row} if isinstance(row, str) else row
        result.add({"work": work, "contestant": one.name, "peer": one.peer, "round": turn, **row})
    summary = {
        work: _ranking([row for row in result.rows if row["work"] == work], WORK[work][2]) for work in options.cases
    }
    result.close({"cases": summary, "absent": ABSENT}, _speed_page(summary))


def _timed(
    one: Contestant, work: str, seed: int, options: argparse.Namespace, rates: dict[tuple[str, str], float]
) -> dict[str, Any] | str:
    """One run of about `--seconds`: its row, or the reason why there is none."""
    case = case_of(work)
    limit_s = START_LIMIT_S + 3 * options.seconds
    if one.peer != "slipstream":
        chosen = ["--case", WORK[work][0], "--epochs", str(case.epochs)]
        chosen += ["--threads", str(options.threads)] if options.threads else []
        chosen += ["--seed", str(seed), "--seconds", str(options.seconds)]
        done = peer_run(one, chosen, limit_s, path_of(case))
        return done.failure or {**done.row, "wall_seconds": round(done.wall_seconds, 2)}
    key, lag, extra = (one.name, work), int(one.variant[-1]), set_flags(options.set)
    extra += set_flags(["plan.precision=bf16"]) if one.variant.startswith(HALF) else []
    if key not in rates:  # slipstream trains for a number of steps: a short run measures the rate
        probe = slipstream_run(case, lag, PROBE_ITERATIONS * case.batch, seed, limit_s, extra)
        if probe.failure or not probe.row.get("steps_per_second"):
            return probe.failure or "the probe run has no steps_per_second"
        rates[key] = probe.row["steps_per_second"]
    steps = whole_iterations(rates[key] * options.seconds, case) + case.batch
    done = slipstream_run(case, lag, steps, seed, limit_s, extra)
    if done.failure:
        return done.failure
    rates[key] = done.row.get("steps_per_second") or rates[key]
    return {**done.row, "variant": one.variant, "wall_seconds": round(done.wall_seconds, 2)}


def _ranking(rows: list[dict[str, Any]], bar: float) -> dict[str, Any]:
    """Rates of each contestant; ratios of each lag to the best peer within a round."""
    rates = rates_of(rows)
    ranking: dict[str, Any] = {"contestants": {}, "ratios": {}, "bar": bar}
    for name, found in rates.items():
        mine = [row for row in rows if row["contestant"] == name]
        ranking["contestants"][name] = {
            **spread(list(found.values())),
            "mean_return": median_of(row.get("mean_return") for row in mine),
            "start_seconds": median_of(row.get("start_seconds") for row in mine),
            "failed": sorted({row["failed"] for row in mine if "failed" in row}),
        }
    peers = {
        name: median(found.values()) for name, found in rates.items() if found and not name.startswith("slipstream")
    }
    if not peers:
        return ranking
    ranking["best_peer"] = best = max(peers, key=lambda name: peers[name])
    for name in (name for name in rates if name.startswith("slipstream")):
        if found := ratios(rates, name, best):
            ratio = spread(found)
            ranking["ratios"][name] = {**ratio, "met": ratio["median"] >= bar, "clear": ratio["low"] >= bar}
    return ranking


def _speed_page(summary: dict[str, Any]) -> str:
    """The report of the speeds."""
    parts = ["# Steps per second compared with other trainers"]
    for work, ranking in summary.items():
        case = case_of(work)
        parts.append(
            f"## {work}: {case.env}, {case.envs} envs, batch {case.batch}, minibatch {case.minibatch},"
            f" {case.epochs} epochs, {case.activation} {'x'.join(map(str, case.hidden))}, separate networks"
        )
        ordered = sorted(ranking["contestants"].items(), key=lambda item: -item[1].get("median", 0))
        lines = [
            [
                name,
                *spread_cells(one, 0),
                number_cell(one["mean_return"], 1),
                number_cell(one["start_seconds"], 1),
                one["n"],
            ]
            for name, one in ordered
        ]
        parts.append(table(("contestant", "median", "min..max", "95 %", "mean return", "start s", "runs"), lines))
        parts += [f"- {name} failed: {reason}" for name, one in ordered for reason in one["failed"]]
        for name, ratio in ranking["ratios"].items():
            middle, extent, interval = spread_cells(ratio, 2)
            parts.append(
                f"{name} / {ranking['best_peer']}: **{middle}x** (95 % {interval}, {extent}, {ratio['n']} rounds;"
                f" bar {ranking['bar']:g}x {verdict(ratio['met'])})"
            )
    parts.append("Not taking part: " + "; ".join(f"{name} ({why})" for name, why in ABSENT.items()) + ".")
    return "\n\n".join(parts)


def until(options: argparse.Namespace, result: Result) -> None:
    """Wall-clock to a mean return of 475: slipstream's preset and Stable-Baselines3's published hyperparameters."""
    broken = install("sb3")
    for seed in range(options.rounds):
        result.gate()
        result.add(
            {"work": "until-475", "contestant": "slipstream", "peer": "slipstream", **_until_slipstream(options, seed)}
        )
        result.gate()
        result.add({"work": "until-475", "contestant": "sb3-published", "peer": "sb3", **_until_sb3(broken, seed)})
    times: dict[str, dict[int, float]] = {}
    for row in result.rows:
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
        [name, f"{one['reached']} of {one['n']}", *(number_cell(one[key], 2) for key in ("median", "min", "max"))]
        for name, one in summary["contestants"].items()
    ]
    parts = ["# Seconds to a mean return of 475 on CartPole-v1 (last 100 training episodes)"]
    parts.append(table(("contestant", "reached", "median s", "fastest", "slowest"), lines))
    if both:
        middle, extent, interval = spread_cells(summary["sb3_over_slipstream"], 2)
        parts.append(f"sb3 / slipstream, for seeds that both reach: **{middle}x** (95 % {interval}, {extent})")
    parts += [
        f"- {row['contestant']} seed {row['seed']} failed: {row['failed']}" for row in result.rows if "failed" in row
    ]
    result.close(summary, "\n\n".join(parts))


def _ordered(values: list[float]) -> dict[str, Any]:
    """Median and range of times; infinite times were never reached."""
    return {"n": len(values), "median": median(values), "min": min(values), "max": max(values)}


def _until_slipstream(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run of the preset; the time is that of the first row of its metrics that reaches the return."""
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        run = Path(folder) / "run"
        extra = ["--preset", "cartpole", *set_flags(options.set)]
        done = launch(slipstream_command("CartPole-v1", run, UNTIL_STEPS, seed, extra), UNTIL_LIMIT_S)
        lines = read_lines(run / "metrics.jsonl")
    if done.failure:
        return {"seed": seed, "failed": done.failure}
    row = {key: value for key, value in done.row.items() if key not in ("run", "checkpoint")} | {"seed": seed}
    for step in lines:
        if (step.get("episode/return_mean") or -math.inf) >= UNTIL_RETURN:
            reached = {"until_steps": step["steps"], "until_seconds": step["time/seconds"]}
            return {**row, "reached": True, **reached}
    return {**row, "reached": False}


def _until_sb3(broken: str | None, seed: int) -> dict[str, Any]:
    """One run of Stable-Baselines3 with its published hyperparameters."""
    if broken:
        return {"seed": seed, "failed": broken}
    done = peer_run(
        Contestant("sb3", "dummy"), ["--until-return", str(UNTIL_RETURN), "--seed", str(seed)], UNTIL_LIMIT_S
    )
    return {"seed": seed, "failed": done.failure} if done.failure else {**done.row, "seed": seed}


def lag_quality(options: argparse.Namespace, result: Result) -> None:
    """The return at lag 1 compared with lag 0 after equal steps, with the settings of each case."""
    for seed, (work, lag) in interleave(options.rounds, product(options.cases, LAGS)):
        case = case_of(work)
        steps = whole_iterations(options.steps or QUALITY_STEPS[work], case)
        result.gate()
        done = slipstream_run(case, lag, steps, seed, START_LIMIT_S + steps / SLOWEST_RATE, set_flags(options.set))
        row = {"failed": done.failure} if done.failure else done.row
        result.add({"work": work, "contestant": f"slipstream-lag{lag}", "peer": "slipstream", "round": seed, **row})
    summary: dict[str, Any] = {}
    lines = []
    for work in options.cases:
        rows = [row for row in result.rows if row["work"] == work and row.get("mean_return") is not None]
        returns = [[row["mean_return"] for row in rows if row["contestant"].endswith(str(lag))] for lag in LAGS]
        if not all(returns):
            reasons = {row["failed"] for row in result.rows if row["work"] == work and "failed" in row}
            summary[work] = {"verdict": "failed", "failed": sorted(reasons)}
            lines.append([work, "-", "-", "-", "failed"])
            continue
        gap = difference(*returns)
        judgement = "not worse" if gap["high"] >= 0 else "worse"
        lags = {f"lag{lag}": mean_interval(values) for lag, values in zip(LAGS, returns, strict=True)}
        summary[work] = {**lags, **gap, "verdict": judgement}
        shown = [f"{one['mean']:.1f} ({one['low']:.1f}..{one['high']:.1f})" for one in lags.values()]
        lines.append([work, *shown, f"{gap['difference']:+.1f} ({gap['low']:.1f}..{gap['high']:.1f})", judgement])
    page = "# Mean return at equal steps, lag 1 against lag 0 (95 % t intervals)\n\n"
    result.close(summary, page + table(("case", "lag 0", "lag 1", "lag 1 - lag 0", "verdict"), lines))


def parse() -> argparse.Namespace:
    """The options, checked."""
    parser = make_parser(__doc__, rounds=5, seconds=15.0)
    parser.add_argument(
        "--peers", type=split_names, default=[], help="peers or contestants, e.g. sb3,skrl-sync (default: all)"
    )
    parser.add_argument("--cases", type=split_names, default=list(WORK), help=f"of {','.join(WORK)}")
    parser.add_argument("--threads", type=int, help="torch threads of every peer (default: each peer's better one)")
    parser.add_argument("--steps", type=int, help="steps of each run of --lag-quality (default: by case)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further slipstream settings")
    parser.add_argument("--until-475", action="store_true", dest="until", help="time to a mean return of 475")
    parser.add_argument("--lag-quality", action="store_true", help="return at lag 1 compared with lag 0")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 2.0
    unknown = set(options.cases) - set(WORK)
    if unknown:
        parser.error(f"unknown cases {sorted(unknown)}; choose from {list(WORK)}")
    return options


def main() -> None:
    """Run one of the three comparisons."""
    options = parse()
    with child_cleanup():
        if options.until:
            until(options, Result("until-475", options))
        elif options.lag_quality:
            lag_quality(options, Result("lag-quality", options))
        else:
            speed(options, Result("peers", options))


if __name__ == "__main__":
    main()
