"""Learning at equal steps beside Stable-Baselines3, with its published settings on both sides, over several seeds.

    .venv/bin/python benchmarks/learning.py                                all lessons, one run at a time
    .venv/bin/python benchmarks/learning.py --cases pendulum --jobs 8      eight runs at once, a core each
    .venv/bin/python benchmarks/learning.py --one sb3 pendulum 3           one run; its row as JSON on stdout
    .venv/bin/python benchmarks/learning.py --merge rows.jsonl more.jsonl  a record of rows made elsewhere

A run trains for a lesson's steps and then plays greedy games with fresh seeds on a fresh environment: their mean return
is its score. The mean return of the last 100 training episodes is told too. A side that fails is a row that says why.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import queue
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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
    last_error,
    launch,
    search_path,
    slipstream_command,
    slipstream_program,
    slipstream_version,
    version_of,
)
from lessons import LESSONS, OURS, Lesson, settings_of
from stats import difference, mean_interval, table

from record import Record, commit, dated, pairs
from slipstream.system.machine import cores, cpu_model

MEASURES = {"score": "greedy games", "mean_return": "last 100 training episodes"}
FRESH_SEED = 10_000  # added to a run's seed for the games after it
Key = tuple[str, str, int]


def learn(key: Key, options: argparse.Namespace) -> dict[str, Any]:
    """One run, alone on its cores: its row, whether it went well or not."""
    side, name, seed = key
    lesson = LESSONS[name]
    about = {"work": name, "contestant": side, "peer": OURS if side == OURS else "sb3", "seed": seed}
    about |= {"load_before": [round(value, 2) for value in os.getloadavg()], "commit": commit()}
    about |= {"machine": {"cpu": cpu_model(), "cores": cores(), "python": platform.python_version()}}
    row = (_slipstream if side == OURS else _sb3)(side, name, lesson, seed, options)
    return {**about, "told_steps": lesson.whole(options.steps), **row}


def _slipstream(side: str, name: str, lesson: Lesson, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train by the command line, then evaluate the run."""
    steps, env = lesson.whole(options.steps), lesson.work.env
    limit_s = START_LIMIT_S + steps / lesson.slowest
    path = search_path(*([SCRIPTS] if lesson.module else []))
    modules = ["--import", lesson.module] if lesson.module else []
    extra = [*pairs([*settings_of(lesson.work, steps), *options.set]), *modules]
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        run = Path(folder) / "run"
        trained = launch(slipstream_command(env, run, steps, seed, extra), limit_s, path)
        if trained.failure:
            return {"failed": trained.failure}
        games = ["--games", str(options.games), "--seed", str(FRESH_SEED + seed), "--json", *modules]
        command = [*slipstream_program(), "evaluate", f"run:{run}", "--env", f"gymnasium:{env}", *games]
        played = launch(command, limit_s, path)
    if played.failure:
        return {"failed": f"evaluate: {played.failure}"}
    return {
        "version": slipstream_version(),
        "versions": {name: version_of(name) for name in ("torch", "gymnasium", "numpy", "numba")},
        "algorithm": "PPO" if isinstance(lesson.work, Case) else "SAC",
        "env": env,
        **lesson.work.shape(),
        **{key: trained.row.get(key) for key in ("steps", "seconds", "start_seconds", "mean_return")},
        "score": played.row.get("mean_return"),
        "games": played.row.get("games"),
        "wall_seconds": round(trained.wall_seconds, 2),
    }


def _sb3(side: str, name: str, lesson: Lesson, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train and play in the peer's own interpreter."""
    broken = None if options.python else install("sb3")
    if broken:
        return {"failed": broken}
    python = options.python or str(VENVS / "sb3" / "bin" / "python")
    steps = lesson.whole(options.steps)
    command = [python, str(SCRIPTS / "sb3_learning.py"), name, "--side", side, "--seed", str(seed)]
    command += ["--steps", str(steps), "--games", str(options.games), "--games-seed", str(FRESH_SEED + seed)]
    command += ["--threads", str(options.threads)]
    done = launch(command, 2 * START_LIMIT_S + steps / lesson.slowest, search_path())
    return {"failed": done.failure} if done.failure else {**done.row, "wall_seconds": round(done.wall_seconds, 2)}


def keys(options: argparse.Namespace) -> list[Key]:
    """All runs asked for, seed by seed, so that both sides of a seed come close together in time."""
    found = []
    for place in range(max(len(_seeds(options, name)) for name in options.cases)):
        for name in options.cases:
            for seed in _seeds(options, name)[place : place + 1]:
                found += [(side, name, seed) for side in LESSONS[name].sides if _chosen(side, options.sides)]
    return found


def _seeds(options: argparse.Namespace, name: str) -> list[int]:
    return options.seeds or list(range(LESSONS[name].seeds))


def _chosen(side: str, wanted: Sequence[str]) -> bool:
    """Whether a side was asked for, by its name or by its peer's."""
    return not wanted or side in wanted or side.partition("-")[0] in wanted


def each(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of all runs as they end; `--jobs` at once, each a process of its own on a core of its own."""
    free: queue.Queue[int] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0))[: options.jobs]:
        free.put(core)
    if any(side != OURS for side, _, _ in keys(options)) and not options.python:
        install("sb3")  # once, before many need it; why it failed stands in every row

    def start(key: Key) -> dict[str, Any]:
        core = free.get()
        try:
            return _apart(key, core if options.jobs > 1 else None, options)
        finally:
            free.put(core)

    pool = ThreadPoolExecutor(options.jobs)
    try:
        for done in as_completed([pool.submit(start, key) for key in keys(options)]):
            yield done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _apart(key: Key, core: int | None, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own, pinned where a core is named."""
    command = [] if core is None else ["taskset", "-c", str(core)]
    command += [sys.executable, str(Path(__file__).resolve()), "--one", key[0], key[1], str(key[2])]
    command += ["--games", str(options.games), "--threads", str(options.threads), *pairs(options.set)]
    command += ["--steps", str(options.steps)] if options.steps else []
    command += ["--python", options.python] if options.python else []
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    try:
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        facts = {"work": key[1], "contestant": key[0], "peer": key[0].partition("-")[0], "seed": key[2]}
        return {**facts, "load_before": [], "failed": f"exit {done.returncode}: {last_error(done.stderr, '/nowhere')}"}
    return row | ({} if core is None else {"jobs": options.jobs})


def merged(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The rows of several files, one for each side, lesson and seed: the last that did not fail."""
    found: dict[Key, dict[str, Any]] = {}
    for line in (line for file in files for line in file.read_text().splitlines() if line.strip()):
        row = json.loads(line)
        key = (row["contestant"], row["work"], row["seed"])
        if key not in found or "failed" not in row or "failed" in found[key]:
            found[key] = row
    order = list(LESSONS)
    return sorted(found.values(), key=lambda row: (order.index(row["work"]), row["seed"], row["contestant"] != OURS))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per lesson: each side's means over seeds, and slipstream's difference from each peer, with 95 % intervals."""
    summary: dict[str, Any] = {}
    for name in [name for name in LESSONS if any(row["work"] == name for row in rows)]:
        mine = [row for row in rows if row["work"] == name]
        steps = {row["steps"] for row in mine if "failed" not in row}
        if len(steps) > 1:
            raise SystemExit(f"{name}: runs of {sorted(steps)} steps are not equal. hint: merge those of one length")
        sides: dict[str, Any] = {}
        for side in [side for side in LESSONS[name].sides if any(row["contestant"] == side for row in mine)]:
            theirs = [row for row in mine if row["contestant"] == side]
            good = [row for row in theirs if "failed" not in row]
            sides[side] = {key: _mean([row.get(key) for row in good]) for key in MEASURES}
            sides[side]["seconds"] = median(row["seconds"] for row in good) if good else None
            sides[side]["failed"] = sorted({row["failed"] for row in theirs if "failed" in row})
        gaps = {peer: _gaps(mine, peer) for peer in LESSONS[name].peers if peer in sides and OURS in sides}
        summary[name] = {"steps": next(iter(steps), None), "sides": sides, "slipstream_minus": gaps}
    return summary


def _mean(values: Sequence[float | None]) -> dict[str, Any]:
    present = [value for value in values if value is not None]
    return mean_interval(present) if present else {"n": 0}


def _gaps(rows: Sequence[dict[str, Any]], peer: str) -> dict[str, Any]:
    """Slipstream's mean minus a peer's, by measure, and what that says."""
    gaps: dict[str, Any] = {}
    for key in MEASURES:
        theirs, ours = (
            [row[key] for row in rows if row["contestant"] == side and row.get(key) is not None]
            for side in (peer, OURS)
        )
        if not theirs or not ours:
            gaps[key] = {"verdict": "no runs of one side"}
            continue
        gap = difference(theirs, ours)
        verdict = "better" if gap["low"] > 0 else "worse" if gap["high"] < 0 else "not worse"
        gaps[key] = {**gap, "verdict": verdict if min(len(theirs), len(ours)) > 1 else "one run is no evidence"}
    return gaps


def page(summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The summary for people."""
    parts = ["# Learning at equal steps beside Stable-Baselines3, the same published settings on both sides"]
    parts.append(f"Means over seeds with 95 % t intervals; the score is the mean return of {MEASURES['score']}.")
    for name, one in summary.items():
        lesson = LESSONS[name]
        kind = "PPO" if isinstance(lesson.work, Case) else "SAC"
        steps = f"{one['steps']:,} steps" if one["steps"] else "no run finished"
        parts.append(f"## {name}: {lesson.work.env}, {kind}, {steps}")
        if lesson.differs:
            parts.append(f"Note: {lesson.differs}.")
        header = ("side", "seeds", *MEASURES.values(), "median seconds")
        lines = [
            [side, facts["score"]["n"], *(_told(facts[key], "mean") for key in MEASURES), _shown(facts["seconds"])]
            for side, facts in one["sides"].items()
        ]
        for peer, gaps in one["slipstream_minus"].items():
            told = [f"{_told(gaps[key], 'difference')}: **{gaps[key]['verdict']}**" for key in MEASURES]
            lines.append([f"slipstream - {peer}", "", *told, ""])
        parts.append(table(header, lines))
        parts += [f"- {side} failed: {why}" for side, facts in one["sides"].items() for why in facts["failed"]]
    machines = {json.dumps(row["machine"], sort_keys=True): row["machine"] for row in rows if "machine" in row}
    told = [f"{one['cpu']} ({one['cores']} cores for a run, Python {one['python']})" for one in machines.values()]
    commits = sorted({row["commit"] for row in rows if "commit" in row})
    parts.append(f"Runs were made on {'; '.join(told)}, at {', '.join(commits)}.")
    return "\n\n".join(parts)


def _told(values: dict[str, Any], key: str) -> str:
    return f"{_shown(values[key])} ({_shown(values['low'])}..{_shown(values['high'])})" if key in values else "-"


def _shown(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:,.2f}"


def names(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name for name in text.split(",") if name]


def numbers(text: str) -> list[int]:
    """The numbers in a list with commas, in which `0-4` stands for all from 0 to 4."""
    found: list[int] = []
    for part in names(text):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def parse() -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "CASE", "SEED"), help="one run alone, told on stdout")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="make a record of rows that --one told")
    parser.add_argument("--sides", type=names, default=[], help="of slipstream,sb3,sb3-recurrent,sb3-masked")
    parser.add_argument("--cases", type=names, default=list(LESSONS), help=f"of {','.join(LESSONS)}")
    parser.add_argument("--seeds", type=numbers, help="e.g. 0-4 or 0,1,7 (default: from 0, as many as the lesson says)")
    parser.add_argument("--steps", type=int, help="steps of every run, e.g. the published 1000000 of acrobot")
    parser.add_argument("--games", type=int, default=20, help="greedy games after training")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, each pinned to a core of its own")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of Stable-Baselines3")
    parser.add_argument("--python", type=interpreter, help="one that imports stable_baselines3 (default: .venvs/sb3)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further slipstream settings")
    parser.add_argument("--out", type=Path, help="the record's folder (default: benchmarks/records/DATE-learning)")
    options = parser.parse_args()
    cases = [options.one[1]] if options.one else options.cases
    unknown = set(cases) - set(LESSONS)
    if unknown:
        parser.error(f"unknown cases {sorted(unknown)}; choose from {list(LESSONS)}")
    known = {side for name in cases for side in LESSONS[name].sides}
    wrong = set([options.one[0]] if options.one else options.sides) - known
    if wrong - ({"sb3"} if not options.one else set()):
        parser.error(f"unknown sides {sorted(wrong)}; choose from {sorted(known)}")
    usable = len(os.sched_getaffinity(0))
    if not 1 <= options.jobs <= usable:
        parser.error(f"--jobs {options.jobs}: this machine has {usable} cores for them")
    return options


def main() -> None:
    """Run what was asked for and leave nothing running."""
    options = parse()
    adopt_orphans()
    try:
        if options.one:
            print(json.dumps(learn((options.one[0], options.one[1], int(options.one[2])), options)), flush=True)
            return
        record = Record(options.out or dated("learning"))
        record.begin()
        for row in merged(options.merge) if options.merge else each(options):
            record.loads.append(row.pop("load_before", []))
            record.add(row)
        summary = summarise(record.rows)
        record.close(summary, page(summary, record.rows))
    finally:
        end_children()


if __name__ == "__main__":
    main()
