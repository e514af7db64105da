"""Learning at equal steps compared with Stable-Baselines3, with its published hyperparameters, over several seeds.

    .venv/bin/python benchmarks/learning.py                                all tasks, one run at a time
    .venv/bin/python benchmarks/learning.py --cases pendulum --jobs 8      eight runs at once, a core each
    .venv/bin/python benchmarks/learning.py --one sb3 pendulum 3           one run; its row as JSON on stdout
    .venv/bin/python benchmarks/learning.py --merge rows.jsonl more.jsonl  a result of rows made elsewhere

A run trains for a task's steps and then plays greedy games with new seeds in a new environment: their mean return is
the score. Rows also have the mean return of the last 100 training episodes. A run that fails is a row with the reason.
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
from contestants import (
    SCRIPTS,
    START_LIMIT_S,
    VENVS,
    child_cleanup,
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
from learning_tasks import OURS, TASKS, Task, settings_of

from harness import Result, commit, difference, make_parser, mean_interval, set_flags, split_names, table
from slipstream.system.machine import cores, cpu_model

MEASURES = {"score": "greedy games", "mean_return": "last 100 training episodes"}
EVALUATION_SEED = 10_000  # added to a run's seed for the games after it
Key = tuple[str, str, int]


def learn(key: Key, options: argparse.Namespace) -> dict[str, Any]:
    """One run; its row."""
    contestant, name, seed = key
    task = TASKS[name]
    about = {"work": name, "contestant": contestant, "peer": OURS if contestant == OURS else "sb3", "seed": seed}
    about |= {"load_before": [round(value, 2) for value in os.getloadavg()], "commit": commit()}
    about |= {"machine": {"cpu": cpu_model(), "cores": cores(), "python": platform.python_version()}}
    row = (_slipstream if contestant == OURS else _sb3)(contestant, name, task, seed, options)
    return {**about, "planned_steps": task.whole(options.steps), **row}


def _slipstream(contestant: str, name: str, task: Task, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train with the command line, then evaluate the run."""
    steps, env = task.whole(options.steps), task.work.env
    limit_s = START_LIMIT_S + steps / task.slowest
    path = search_path(*([SCRIPTS] if task.module else []))
    modules = ["--import", task.module] if task.module else []
    extra = [*set_flags([*settings_of(task.work, steps), *options.set]), *modules]
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        run = Path(folder) / "run"
        trained = launch(slipstream_command(env, run, steps, seed, extra), limit_s, path)
        if trained.failure:
            return {"failed": trained.failure}
        games = ["--games", str(options.games), "--seed", str(EVALUATION_SEED + seed), "--json", *modules]
        command = [*slipstream_program(), "evaluate", f"run:{run}", "--env", f"gymnasium:{env}", *games]
        played = launch(command, limit_s, path)
    if played.failure:
        return {"failed": f"evaluate: {played.failure}"}
    return {
        "version": slipstream_version(),
        "versions": {name: version_of(name) for name in ("torch", "gymnasium", "numpy", "numba")},
        "algorithm": "PPO" if isinstance(task.work, Case) else "SAC",
        "env": env,
        **task.work.shape(),
        **{key: trained.row.get(key) for key in ("steps", "seconds", "start_seconds", "mean_return")},
        "score": played.row.get("mean_return"),
        "games": played.row.get("games"),
        "wall_seconds": round(trained.wall_seconds, 2),
    }


def _sb3(contestant: str, name: str, task: Task, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate with the peer's own interpreter."""
    broken = None if options.python else install("sb3")
    if broken:
        return {"failed": broken}
    python = options.python or str(VENVS / "sb3" / "bin" / "python")
    steps = task.whole(options.steps)
    command = [python, str(SCRIPTS / "sb3_learning.py"), name, "--contestant", contestant, "--seed", str(seed)]
    command += ["--steps", str(steps), "--games", str(options.games), "--games-seed", str(EVALUATION_SEED + seed)]
    command += ["--threads", str(options.threads)]
    done = launch(command, 2 * START_LIMIT_S + steps / task.slowest, search_path())
    return {"failed": done.failure} if done.failure else {**done.row, "wall_seconds": round(done.wall_seconds, 2)}


def keys(options: argparse.Namespace) -> list[Key]:
    """All runs by seed, so that the contestants of a seed run close together in time."""
    found = []
    for place in range(max(len(_seeds(options, name)) for name in options.cases)):
        for name in options.cases:
            for seed in _seeds(options, name)[place : place + 1]:
                chosen = [one for one in TASKS[name].contestants if _chosen(one, options.contestants)]
                found += [(one, name, seed) for one in chosen]
    return found


def _seeds(options: argparse.Namespace, name: str) -> list[int]:
    return options.seeds or list(range(TASKS[name].seeds))


def _chosen(contestant: str, names: Sequence[str]) -> bool:
    """Whether a contestant is in the list, by its name or by the name of its peer."""
    return not names or contestant in names or contestant.partition("-")[0] in names


def each(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of all runs as they finish; `--jobs` in parallel, each in its own process on its own core."""
    free: queue.Queue[int] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0))[: options.jobs]:
        free.put(core)
    if any(contestant != OURS for contestant, _, _ in keys(options)) and not options.python:
        install("sb3")  # once, before the runs; if it fails, every row has the reason

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
    """One run in its own process, pinned to a core if there is one."""
    command = [] if core is None else ["taskset", "-c", str(core)]
    command += [sys.executable, str(Path(__file__).resolve()), "--one", key[0], key[1], str(key[2])]
    command += ["--games", str(options.games), "--threads", str(options.threads), *set_flags(options.set)]
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
    """The rows of several files, one per contestant, task and seed: the last that did not fail."""
    found: dict[Key, dict[str, Any]] = {}
    for line in (line for file in files for line in file.read_text().splitlines() if line.strip()):
        row = json.loads(line)
        key = (row["contestant"], row["work"], row["seed"])
        if key not in found or "failed" not in row or "failed" in found[key]:
            found[key] = row
    order = list(TASKS)
    return sorted(found.values(), key=lambda row: (order.index(row["work"]), row["seed"], row["contestant"] != OURS))


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per task: each contestant's means over seeds, and slipstream's difference to each peer, with 95 % intervals."""
    summary: dict[str, Any] = {}
    for name in [name for name in TASKS if any(row["work"] == name for row in rows)]:
        mine = [row for row in rows if row["work"] == name]
        steps = {row["steps"] for row in mine if "failed" not in row}
        if len(steps) > 1:
            raise SystemExit(f"{name}: runs of {sorted(steps)} steps are not equal. hint: merge those of one length")
        means: dict[str, Any] = {}
        for one in [one for one in TASKS[name].contestants if any(row["contestant"] == one for row in mine)]:
            theirs = [row for row in mine if row["contestant"] == one]
            good = [row for row in theirs if "failed" not in row]
            means[one] = {key: _mean([row.get(key) for row in good]) for key in MEASURES}
            means[one]["seconds"] = median(row["seconds"] for row in good) if good else None
            means[one]["failed"] = sorted({row["failed"] for row in theirs if "failed" in row})
        gaps = {peer: _gaps(mine, peer) for peer in TASKS[name].peers if peer in means and OURS in means}
        summary[name] = {"steps": next(iter(steps), None), "contestants": means, "slipstream_minus": gaps}
    return summary


def _mean(values: Sequence[float | None]) -> dict[str, Any]:
    present = [value for value in values if value is not None]
    return mean_interval(present) if present else {"n": 0}


def _gaps(rows: Sequence[dict[str, Any]], peer: str) -> dict[str, Any]:
    """Slipstream's mean minus a peer's, by measure, with a verdict."""
    gaps: dict[str, Any] = {}
    for key in MEASURES:
        theirs, ours = (
            [row[key] for row in rows if row["contestant"] == one and row.get(key) is not None] for one in (peer, OURS)
        )
        if not theirs or not ours:
            gaps[key] = {"verdict": "no runs of one contestant"}
            continue
        gap = difference(theirs, ours)
        verdict = "better" if gap["low"] > 0 else "worse" if gap["high"] < 0 else "not worse"
        gaps[key] = {**gap, "verdict": verdict if min(len(theirs), len(ours)) > 1 else "one run is no evidence"}
    return gaps


def page(summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The report."""
    parts = ["# Learning at equal steps compared with Stable-Baselines3, with its published hyperparameters"]
    parts.append(f"Means over seeds with 95 % t intervals; the score is the mean return of {MEASURES['score']}.")
    for name, one in summary.items():
        task = TASKS[name]
        kind = "PPO" if isinstance(task.work, Case) else "SAC"
        steps = f"{one['steps']:,} steps" if one["steps"] else "no run finished"
        parts.append(f"## {name}: {task.work.env}, {kind}, {steps}")
        if task.differs:
            parts.append(f"Note: {task.differs}.")
        header = ("contestant", "seeds", *MEASURES.values(), "median seconds")
        lines = [
            [who, facts["score"]["n"], *(_cell(facts[key], "mean") for key in MEASURES), _number(facts["seconds"])]
            for who, facts in one["contestants"].items()
        ]
        for peer, gaps in one["slipstream_minus"].items():
            cells = [f"{_cell(gaps[key], 'difference')}: **{gaps[key]['verdict']}**" for key in MEASURES]
            lines.append([f"slipstream - {peer}", "", *cells, ""])
        parts.append(table(header, lines))
        parts += [f"- {who} failed: {why}" for who, facts in one["contestants"].items() for why in facts["failed"]]
    machines = {json.dumps(row["machine"], sort_keys=True): row["machine"] for row in rows if "machine" in row}
    shown = [f"{one['cpu']} ({one['cores']} cores per run, Python {one['python']})" for one in machines.values()]
    commits = sorted({row["commit"] for row in rows if "commit" in row})
    parts.append(f"Machines: {'; '.join(shown)}; commits: {', '.join(commits)}.")
    return "\n\n".join(parts)


def _cell(values: dict[str, Any], key: str) -> str:
    return f"{_number(values[key])} ({_number(values['low'])}..{_number(values['high'])})" if key in values else "-"


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:,.2f}"


def numbers(text: str) -> list[int]:
    """The numbers in a comma-separated list; `0-4` means 0 to 4."""
    found: list[int] = []
    for part in split_names(text):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def parse() -> argparse.Namespace:
    """The options, checked."""
    parser = make_parser(__doc__, quick=False)
    parser.add_argument("--one", nargs=3, metavar=("CONTESTANT", "TASK", "SEED"), help="one run; print its row")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="make a result of rows printed by --one")
    parser.add_argument(
        "--contestants", type=split_names, default=[], help="of slipstream,sb3,sb3-recurrent,sb3-masked"
    )
    parser.add_argument("--cases", type=split_names, default=list(TASKS), help=f"of {','.join(TASKS)}")
    parser.add_argument("--seeds", type=numbers, help="e.g. 0-4 or 0,1,7 (default: from 0, as many as the task has)")
    parser.add_argument("--steps", type=int, help="steps of every run, e.g. the published 1000000 of acrobot")
    parser.add_argument("--games", type=int, default=20, help="greedy games after training")
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, each pinned to its own core")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of Stable-Baselines3")
    parser.add_argument("--python", type=interpreter, help="one that imports stable_baselines3 (default: .venvs/sb3)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further slipstream settings")
    options = parser.parse_args()
    cases = [options.one[1]] if options.one else options.cases
    unknown = set(cases) - set(TASKS)
    if unknown:
        parser.error(f"unknown cases {sorted(unknown)}; choose from {list(TASKS)}")
    known = {one for name in cases for one in TASKS[name].contestants}
    wrong = set([options.one[0]] if options.one else options.contestants) - known
    if wrong - ({"sb3"} if not options.one else set()):
        parser.error(f"unknown contestants {sorted(wrong)}; choose from {sorted(known)}")
    usable = len(os.sched_getaffinity(0))
    if not 1 <= options.jobs <= usable:
        parser.error(f"--jobs {options.jobs}: this machine has {usable} cores")
    return options


def main() -> None:
    """Run everything, or one run, or merge rows."""
    options = parse()
    with child_cleanup():
        if options.one:
            print(json.dumps(learn((options.one[0], options.one[1], int(options.one[2])), options)), flush=True)
            return
        result = Result("learning", options)
        for row in merged(options.merge) if options.merge else each(options):
            result.add(row)
        summary = summarise(result.rows)
        result.close(summary, page(summary, result.rows))


if __name__ == "__main__":
    main()
