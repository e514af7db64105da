"""Whether `tune` finds what a full grid finds, in a tenth of its time.

    python benchmarks/tune.py [ENV] [--seconds 10] [--preset NAME] [--set KEY=VALUE] [--out DIR]
    python benchmarks/tune.py --stop-after 500 --out DIR        as much of the grid as fits; again goes on
    python benchmarks/tune.py --quick          a check of this script: a small game, few points, short

The grid is workers {1..cores} x envs {32..1,024 by doubling} x groups {1, 2} x threads {1, 2}, `--seconds` a point; two
groups mean the `batched` collector, one the plan's own. Rollouts are cut so that the batch is the same at every point,
and points where that cannot be are left out; where the whole game lives on a GPU, a point of one group is measured
once, whatever its workers and threads, which do nothing there. Then `tune` runs with a tenth of the grid's time, and at
the end the plan that it chose and the best point of the grid are trained in turns, five times each. Compiling is done
before.
`--workers 1,2,4,8,16` leaves some of the grid out, where there are many cores and little time.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

from record import Record, dated
from slipstream.api import configure
from slipstream.errors import SlipstreamError
from slipstream.perf.paired_timing import time_pairs
from slipstream.perf.search_space import apply_changes, rollout_for
from slipstream.perf.trial import TrialRun, run_trial
from slipstream.perf.tune import tune
from slipstream.plan import Plan
from slipstream.system.machine import cores
from slipstream.training.build import choose_env

GOAL, SHARE, REPEATS = 0.95, 0.1, 5
MARGIN = 0.85
"""Of its time that `tune` is told to take: making the first plan ready comes on top."""


def points(settings: Any, plan: Plan, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The settings of every point of the grid that keeps the batch of a plan."""
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
    """A point in few words."""
    return " ".join(f"{key.partition('.')[2]}={value}" for key, value in point.items()) or "default plan"


def grid(
    record: Record, choice: Any, settings: Any, wanted: list[dict[str, Any]], seconds: float, limit_s: float
) -> dict[str, Any] | None:
    """Measure every point that is not in the record yet; returns the best, or None if there was no time for all."""
    began = time.perf_counter()
    measured = [row["settings"] for row in record.rows if row["work"] == "grid"]
    for point in wanted:
        if point in measured:
            continue
        if time.perf_counter() - began > limit_s:
            return None
        record.load()
        row = {"work": "grid", "contestant": name(point), "settings": point}
        try:
            trial = run_trial(choice, apply_changes(settings, point), seconds=seconds)
        except SlipstreamError as error:
            record.add(row | {"failed": error.message})
            continue
        rates = [round(rate, 1) for rate in trial.rates]
        record.add(row | {"steps_per_second": round(trial.rate), "seconds": round(trial.seconds, 2), "rates": rates})
    tried = [row for row in record.rows if row["work"] == "grid" and "steps_per_second" in row]
    best = max(tried, key=lambda row: row["steps_per_second"])
    return {"rate": best["steps_per_second"], "point": best["settings"]}


def main() -> None:
    """Run the grid, tune, compare, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="?", default="soccer")
    parser.add_argument("--seconds", type=float, default=10.0, help="per point of the grid")
    parser.add_argument("--workers", help="numbers of workers in the grid, e.g. 1,2,4 [1 to all cores]")
    parser.add_argument("--stop-after", type=float, default=1e9, metavar="S", help="leave the rest for another call")
    parser.add_argument("--preset")
    parser.add_argument("--set", dest="words", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--quick", action="store_true", help="a check of this script")
    parser.add_argument("--out", type=Path)
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
    record = Record(options.out or dated(f"tune-{options.env.partition(':')[2] or options.env}".lower()))
    record.begin(go_on=options.stop_after < 1e9)
    record.load()
    default = run_trial(choice, settings, seconds=options.seconds)
    record.add({"work": "default", "contestant": "default plan", "steps_per_second": round(default.rate)})
    wanted = points(settings, default.plan, options)
    best = grid(record, choice, settings, wanted, options.seconds, options.stop_after)
    if best is None:
        done = sum(row["work"] == "grid" for row in record.rows)
        print(f"{done} of {len(wanted)} points of the grid; the same command goes on")
        return
    grid_s = len(wanted) * options.seconds
    record.load()
    began = time.perf_counter()
    found = tune(choice, resolved, seconds=MARGIN * SHARE * grid_s, keep=False, tell=print_line)
    tune_s = time.perf_counter() - began
    record.add({"work": "tune", "contestant": name(found.settings), "seconds": round(tune_s, 1), **found.facts()})
    record.load()
    with (
        TrialRun(choice, apply_changes(settings, best["point"])) as one,
        TrialRun(choice, apply_changes(settings, found.settings)) as other,
    ):
        last = time_pairs(one, other, seconds=options.seconds / 2, rounds=REPEATS, sure=REPEATS)
    pairs = [[round(a), round(b)] for a, b in last.rates]
    record.add({"work": "final", "contestant": "tuned against the best of the grid", "pairs": pairs})
    ratio = last.ratio
    met = ratio.mean >= GOAL and tune_s <= SHARE * grid_s
    summary = {
        "env": options.env, "batch": found.batch, "points": len(wanted), "grid_s": grid_s, "tune_s": tune_s,
        "default_steps_per_second": default.rate, "best": best, "chosen": found.settings,
        "ratio": {"mean": ratio.mean, "low": ratio.low, "high": ratio.high, "rounds": ratio.rounds}, "met": met,
    }  # fmt: skip
    text = f"""# tune against the full grid: {options.env}, batch {found.batch:,}

| | plan | steps/s | seconds |
|---|---|---|---|
| default | {name({})} | {default.rate:,.0f} | |
| best of {len(wanted)} grid points | {name(best["point"])} | {best["rate"]:,.0f} | {grid_s:,.0f} |
| tune | {name(found.settings)} | {found.rate:,.0f} | {tune_s:,.1f} |

Tuned against the best of the grid, {ratio.rounds} interleaved rounds: **{ratio}** (goal {GOAL} at least, in at most \
{SHARE * grid_s:,.0f} s): **{"met" if met else "not met"}**"""
    record.close(summary, text)


def print_line(line: str) -> None:
    """Progress of tuning."""
    print(f"  tune: {line}", flush=True)


if __name__ == "__main__":
    main()
