"""`tune` compared with a full grid search, in a tenth of its time.

    python benchmarks/tune.py [ENV] [--seconds 10] [--preset NAME] [--set KEY=VALUE]
    python benchmarks/tune.py --stop-after 500     a part of the grid; the next call resumes
    python benchmarks/tune.py --quick              test the script

The grid is workers {1..cores} x envs {32..1,024 by doubling} x groups {1, 2} x threads {1, 2}, `--seconds` a point;
two groups mean the `batched` collector, one the plan's own. Rollout lengths are chosen so that the batch is the same
at every point; points where that is impossible are left out. If the game runs on the GPU, a point of one group is
measured once, since workers and threads have no effect there. Then `tune` runs with a tenth of the grid's time, and
the chosen plan and the best point of the grid are timed in pairs, five times each. Compiling is not timed.
`--workers 1,2,4,8,16` measures a part of the grid.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

from harness import Result, make_parser, verdict
from slipstream.api import configure
from slipstream.errors import SlipstreamError
from slipstream.perf.paired_timing import time_pairs
from slipstream.perf.search_space import apply_changes, rollout_for
from slipstream.perf.trial import TrialRun, run_trial
from slipstream.perf.tune import tune
from slipstream.plan import Plan
from slipstream.system.machine import cores
from slipstream.training.build import choose_env

BAR, SHARE, REPEATS = 0.95, 0.1, 5
MARGIN = 0.85
"""Share of its time that `tune` gets: building the first plan comes on top."""


def points(settings: Any, plan: Plan, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The settings of every point of the grid with the batch of the plan."""
    found, first = [], (options.workers[0], options.threads[0])
    for workers, count, groups, threads in itertools.product(options.workers, options.envs, (1, 2), options.threads):
        steps = rollout_for(settings, plan.envs.applied, count)
        if steps is None or workers > count:
            continue
        if groups == 1 and plan.collector.applied == "device" and (workers, threads) != first:
            continue
        point = {"plan.workers": workers, "plan.envs": count, f"{settings.algorithm}.rollout": steps}
        point |= {"plan.threads": threads} | ({"plan.collector": "batched", "plan.groups": 2} if groups > 1 else {})
        found.append(point)
    return found


def name(point: dict[str, Any]) -> str:
    """The name of a point."""
    return " ".join(f"{key.partition('.')[2]}={value}" for key, value in point.items()) or "default plan"


def grid(
    result: Result, choice: Any, settings: Any, grid_points: list[dict[str, Any]], seconds: float, limit_s: float
) -> dict[str, Any] | None:
    """Measure every point that has no row yet. Return the best point, or None if time ran out."""
    began = time.perf_counter()
    measured = [row["settings"] for row in result.rows if row["work"] == "grid"]
    for point in grid_points:
        if point in measured:
            continue
        if time.perf_counter() - began > limit_s:
            return None
        result.gate()
        row = {"work": "grid", "contestant": name(point), "settings": point}
        try:
            trial = run_trial(choice, apply_changes(settings, point), seconds=seconds)
        except SlipstreamError as error:
            result.add(row | {"failed": error.message})
            continue
        rates = [round(rate, 1) for rate in trial.rates]
        result.add(row | {"steps_per_second": round(trial.rate), "seconds": round(trial.seconds, 2), "rates": rates})
    tried = [row for row in result.rows if row["work"] == "grid" and "steps_per_second" in row]
    best = max(tried, key=lambda row: row["steps_per_second"])
    return {"rate": best["steps_per_second"], "point": best["settings"]}


def main() -> None:
    """Run the grid, tune, compare, and write the result."""
    parser = make_parser(__doc__, seconds=10.0)
    parser.add_argument("env", nargs="?", default="soccer")
    parser.add_argument("--workers", help="numbers of workers in the grid, e.g. 1,2,4 [1 to all cores]")
    parser.add_argument(
        "--stop-after",
        type=float,
        default=1e9,
        metavar="S",
        help="stop the grid after S seconds; the next call resumes",
    )
    parser.add_argument("--preset")
    parser.add_argument("--set", dest="words", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    given = [int(word) for word in (options.workers or "").split(",") if word]
    options.workers, options.envs, options.threads = (
        given or range(1, cores() + 1),
        [2**n for n in range(5, 11)],
        (1, 2),
    )
    if options.quick:
        options.seconds, options.preset, options.workers, options.envs, options.threads = (
            0.2,
            "smoke",
            [1],
            [2, 4],
            (1,),
        )
    resolved = configure(options.env, preset=options.preset, flags=options.words, tuned=False)
    choice, settings = choose_env(options.env, resolved.settings), resolved.settings
    suffix = "" if options.env == "soccer" else f"-{options.env.partition(':')[2] or options.env}".lower()
    result = Result(f"tune{suffix}", options, resume=options.stop_after < 1e9)
    result.gate()
    default = run_trial(choice, settings, seconds=options.seconds)
    result.add({"work": "default", "contestant": "default plan", "steps_per_second": round(default.rate)})
    grid_points = points(settings, default.plan, options)
    best = grid(result, choice, settings, grid_points, options.seconds, options.stop_after)
    if best is None:
        done = sum(row["work"] == "grid" for row in result.rows)
        print(f"{done} of {len(grid_points)} points of the grid; run the same command to resume")
        return
    grid_s = len(grid_points) * options.seconds
    result.gate()
    began = time.perf_counter()
    found = tune(choice, resolved, seconds=MARGIN * SHARE * grid_s, keep=False, on_notice=print_line)
    tune_s = time.perf_counter() - began
    result.add({"work": "tune", "contestant": name(found.settings), "seconds": round(tune_s, 1), **found.facts()})
    result.gate()
    with (
        TrialRun(choice, apply_changes(settings, best["point"])) as one,
        TrialRun(choice, apply_changes(settings, found.settings)) as other,
    ):
        last = time_pairs(one, other, seconds=options.seconds / 2, rounds=REPEATS, sure=REPEATS)
    pairs = [[round(a), round(b)] for a, b in last.rates]
    result.add({"work": "final", "contestant": "tuned and the best of the grid", "pairs": pairs})
    ratio = last.ratio
    met = ratio.mean >= BAR and tune_s <= SHARE * grid_s
    summary = {
        "env": options.env,
        "batch": found.batch,
        "points": len(grid_points),
        "grid_s": grid_s,
        "tune_s": tune_s,
        "default_steps_per_second": default.rate,
        "best": best,
        "chosen": found.settings,
        "ratio": {"mean": ratio.mean, "low": ratio.low, "high": ratio.high, "rounds": ratio.rounds},
        "met": met,
    }
    text = f"""# tune compared with the full grid: {options.env}, batch {found.batch:,}

| | plan | steps/s | seconds |
|---|---|---|---|
| default | {name({})} | {default.rate:,.0f} | |
| best of {len(grid_points)} grid points | {name(best["point"])} | {best["rate"]:,.0f} | {grid_s:,.0f} |
| tune | {name(found.settings)} | {found.rate:,.0f} | {tune_s:,.1f} |

Tuned / best of the grid, {ratio.rounds} interleaved rounds: **{ratio}** (bar {BAR}, in at most \
{SHARE * grid_s:,.0f} s): **{verdict(met)}**"""
    result.close(summary, text)


def print_line(line: str) -> None:
    """Print the progress of tuning."""
    print(f"  tune: {line}", flush=True)


if __name__ == "__main__":
    main()
