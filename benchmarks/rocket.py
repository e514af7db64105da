"""Rocket League: agent-steps per second compared with RLGym, and twenty minutes of training from scripted demos.

    .venv/bin/python benchmarks/rocket.py speed [--rounds 5] [--seconds 8] [--sizes 1 2 3]
    .venv/bin/python benchmarks/rocket.py vectors [--rounds 5] [--seconds 8]
    .venv/bin/python benchmarks/rocket.py train [--minutes 20] [--seeds 3] [--first 0] [--games 400]

speed: RLGym in its own virtual environment (`.venvs/rlgym`, created here), with RLGym's meshes for all, tick skip 8 and
random actions of the table of 90, in interleaved rounds: RLGym with one match in one process; Slipstream's matches on
one core; and Slipstream's matches on all cores with one process each, as the collector `actors` steps them. The bar is
6x for the machine. The bare simulator on one core, which only gets controls and steps, is the ceiling of any adapter.
vectors: 1v1 matches stepped serially, in threads (the simulator releases the GIL) and in processes.
train: `record`, `clone --dagger` and `train --start` against the scripted driver with the command line, all within the
minutes; then games of the result against the driver with sides swapped: the bar is that the 95 % interval of goals
minus goals conceded is above 0.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness import ROOT, Result, call, interleave, make_parser, rates_of, ratios, run_rounds, table, verdict
from slipstream.confidence import mean_interval

BAR = 6.0
REQUIRED = ("rlgym==2.0.1", "rlgym-api==2.0.0", "rlgym-rocket-league==2.0.1")
"""Installed without dependencies, because they require numpy < 2."""
BESIDE = ("rocketsim==2.2.1", "numpy==2.4.6", "setuptools", "wheel")
VENV = ROOT / ".venvs" / "rlgym"
RIVAL = "scripted:driver"
WARM_STEPS = 300
"""Warm-up steps: the first match in a new arena is slow. RLGym has as many."""
MATCH_STEPS = 900
"""Decisions in a match of one minute."""
SPARE_S = 20.0
"""Time reserved for the start and the end of training."""


def install() -> Path:
    """Create RLGym's virtual environment if it is missing; return its Python."""
    python, stamp, wanted = VENV / "bin" / "python", VENV / "installed.txt", " ".join((*REQUIRED, *BESIDE))
    if not (stamp.exists() and stamp.read_text() == wanted):
        venv.create(VENV, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *BESIDE], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", *REQUIRED], check=True)
        stamp.write_text(wanted)
    return python


def meshes() -> Path:
    """The meshes of RLGym."""
    return next(VENV.glob("lib/python*/site-packages/rlgym/rocket_league/sim/collision_meshes"))


def step(size: int, seconds: float, seed: int, envs: int, barrier: Any = None) -> dict[str, Any]:
    """Step matches with random actions for some seconds in this process; a barrier starts all processes together."""
    from slipstream.contracts import empty_rows
    from slipstream.envs.registry import EnvChoice
    from slipstream.vector.make import make_vector

    vector = make_vector(EnvChoice("rocket" if size == 1 else f"rocket:{size}v{size}"), envs, seed=seed)
    rows, rng, agents = empty_rows(vector.spec, envs), np.random.default_rng(seed), 2 * size * envs
    vector.reset(rows)
    steps, began, cpu = -WARM_STEPS, 0.0, 0.0
    while steps <= 0 or time.perf_counter() - began < seconds:
        if steps == 0:
            if barrier is not None:
                barrier.wait()
            began, cpu = time.perf_counter(), time.process_time()
        vector.step(rng.integers(0, 90, (agents, 1)).astype(np.int32), rows)
        steps += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    vector.close()
    rates = {"steps_per_second": agents * steps / wall, "steps_per_cpu_second": agents * steps / cpu}
    return rates | {"wall_seconds": wall, "meshes": dict(vector.spec.world)["meshes"]}


def step_all(size: int, seconds: float, seed: int, envs: int, workers: int) -> dict[str, Any]:
    """Step matches in several processes together; the sum of their rates."""
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(workers, context) as pool:
        barrier = manager.Barrier(workers)
        futures = [pool.submit(step, size, seconds, seed * workers + k, envs, barrier) for k in range(workers)]
        rows = [future.result() for future in futures]
    rate = sum(row["steps_per_second"] for row in rows)
    return {"steps_per_second": rate, "workers": workers, "meshes": rows[0]["meshes"], "processes": rows}


def step_bare(size: int, seconds: float, seed: int, envs: int) -> dict[str, Any]:
    """Step the simulator alone: it gets controls, nothing is read; a kick-off every minute as in matches."""
    from slipstream.envs.rocket import arena
    from slipstream.envs.rocket.actions import Controls

    arena.load()
    sim, rng = arena.require(), np.random.default_rng(seed)
    controls, fields = Controls(sim, "discrete"), [arena.make(sim) for _ in range(envs)]
    cars = [[field.add_car(team) for team in (sim.Team.BLUE, sim.Team.ORANGE) for _ in range(size)] for field in fields]
    agents = 2 * size * envs
    drawn = [controls.of(rng.integers(0, 90, (agents, 1)).astype(np.int32)) for _ in range(64)]
    steps, began, cpu = -WARM_STEPS, 0.0, 0.0
    while steps <= 0 or time.perf_counter() - began < seconds:
        if steps == 0:
            began, cpu = time.perf_counter(), time.process_time()
        chosen = iter(drawn[steps % 64])
        for field, playing in zip(fields, cars, strict=True):
            if steps % MATCH_STEPS == 0 or steps == -WARM_STEPS:
                field.reset_kickoff(int(rng.integers(2**31)))
            for car in playing:
                car.set_controls(next(chosen))
            field.step(8)
        steps += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"steps_per_second": agents * steps / wall, "steps_per_cpu_second": agents * steps / cpu}


def run_json(command: list[str], place: Path, pinned: bool) -> dict[str, Any]:
    """Run one contestant on one core or on all; the JSON of its last line."""
    pin = ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[-1])] if pinned else []
    done = subprocess.run(
        [*pin, *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "RS_COLLISION_MESHES": str(place), "OMP_NUM_THREADS": "1"},
    )
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


CONTESTANTS = ("one core", "all cores", "rlgym", "simulator")


def measure_speed(options: argparse.Namespace) -> None:
    """All contestants in interleaved rounds."""
    from slipstream.system.machine import cores

    python, result = install(), Result("rocket-speed", options)
    for turn, (size, contestant) in interleave(options.rounds, product(options.sizes, CONTESTANTS)):
        words, many = [str(size), str(options.seconds), str(turn)], ["--envs", str(options.envs)]
        ours = [sys.executable, __file__, "step", *words, *many]
        commands = {
            "one core": ours,
            "all cores": [*ours, "--workers", str(cores())],
            "rlgym": [str(python), str(ROOT / "benchmarks" / "peers" / "rlgym_steps.py"), *words],
            "simulator": [sys.executable, __file__, "bare", *words, *many],
        }
        result.gate()
        row = run_json(commands[contestant], meshes(), contestant != "all cores")
        peer = contestant if contestant in ("rlgym", "simulator") else "slipstream"
        result.add({"work": f"{size}v{size}", "contestant": contestant, "peer": peer, "round": turn, **row})
    summary: dict[str, Any] = {"bar": BAR, "cores": cores(), "sizes": {}}
    lines = []
    for size in options.sizes:
        rates = rates_of(result.rows, f"{size}v{size}")
        found: dict[str, dict[str, float]] = {}
        for name in CONTESTANTS:
            ratio = ratios(rates, name, "rlgym")
            found[name] = {"rate": median(rates[name].values()), "ratio": median(ratio)}
            found[name] |= {"low": min(ratio), "high": max(ratio)}
        summary["sizes"][f"{size}v{size}"] = found
        every, one, bare = (found[name] for name in ("all cores", "one core", "simulator"))
        cells = [f"{found['rlgym']['rate']:,.0f}", f"{every['rate']:,.0f}"]
        cells.append(f"{every['ratio']:.2f}x ({every['low']:.2f} to {every['high']:.2f})")
        cells += [text for part in (one, bare) for text in (f"{part['rate']:,.0f}", f"{part['ratio']:.2f}x")]
        lines.append([f"{size}v{size}", *cells])
    summary["passed"] = all(found["all cores"]["ratio"] >= BAR for found in summary["sizes"].values())
    header = (
        "",
        "RLGym",
        f"{cores()} cores",
        "ratio (lowest to highest)",
        "one core",
        "ratio",
        "bare simulator, one core",
    )
    text = f"# Agent-steps per second, {options.rounds} rounds, medians; ratios to RLGym within a round\n\n"
    result.close(summary, text + table((*header, "ratio"), lines) + f"\n\nBar of {BAR}x: {verdict(summary['passed'])}")


def measure_vectors(options: argparse.Namespace) -> None:
    """Serial, threads and processes in interleaved rounds."""
    from slipstream.contracts import empty_rows
    from slipstream.envs.registry import EnvChoice
    from slipstream.system.machine import cores
    from slipstream.vector.make import spread_vector

    result, envs = Result("rocket-vectors", options), 2 * options.envs
    kinds = ("serial", "threads", "processes")
    vectors = {kind: spread_vector(EnvChoice("rocket"), envs, kind, cores()) for kind in kinds}
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 90, (2 * envs, 1)).astype(np.int32) for _ in range(50)]

    def measured(kind: str) -> Callable[[int], dict[str, Any]]:
        vector, rows = vectors[kind], empty_rows(vectors[kind].spec, envs)
        vector.reset(rows)

        def rate(seconds: float) -> float:
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                vector.step(actions[steps % len(actions)], rows)
                steps += 1
            return 2 * envs * steps / (time.perf_counter() - began)

        rate(1.0)
        return lambda _: {"steps_per_second": rate(options.seconds)}

    run_rounds(result, "1v1", {kind: measured(kind) for kind in kinds}, options.rounds)
    for vector in vectors.values():
        vector.close()
    rates = {kind: list(found.values()) for kind, found in rates_of(result.rows).items()}
    lines = [[kind, *(f"{f(found):,.0f}" for f in (median, min, max))] for kind, found in rates.items()]
    text = f"# Stepping {envs} matches of 1v1, agent-steps per second, {cores()} workers\n\n"
    text += table(("", "median", "lowest", "highest"), lines)
    result.close({kind: median(found) for kind, found in rates.items()}, text)


def learn(seed: int, minutes: float, episodes: int, games: int) -> dict[str, Any]:
    """Record, clone and train with the command line, then evaluate."""
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        demos, clone, run = (f"{folder}/{name}" for name in ("demos", "clone", "run"))
        began = time.perf_counter()
        played = ("--episodes", str(episodes), "--seed", str(seed))
        _, record_s = call("record", RIVAL, "--env", "rocket", *played, "--out", demos)
        _, clone_s = call("clone", demos, "--epochs", "3", "--dagger", "3", "--run", clone)
        left = minutes - (time.perf_counter() - began + SPARE_S) / 60
        facts, train_s = call(
            "train",
            "rocket",
            "--start",
            f"run:{clone}",
            "--minutes",
            f"{left:.3f}",
            "--run",
            run,
            "--set",
            f"opponent={RIVAL}",
            "--set",
            f"seed={seed}",
        )
        seconds = time.perf_counter() - began
        margins = {"clone": margin(f"run:{clone}", games), "result": margin(f"run:{run}", games)}
    kept = {key: facts[key] for key in ("steps", "steps_per_second", "start_seconds")}
    spent = {"seconds": seconds, "record_seconds": record_s, "clone_seconds": clone_s, "train_seconds": train_s}
    return {"seed": seed, **spent, **kept, **margins}


def margin(agent: str, games: int) -> dict[str, Any]:
    """Games against the driver: results, goals, and the difference of goals with its 95 % interval."""
    from slipstream.agents.specs import load_agent
    from slipstream.api import configure
    from slipstream.play.games import play
    from slipstream.training.build import choose_env

    choice = choose_env("rocket", configure("rocket", agent=agent).settings)
    played = play(
        choice,
        lambda spec, choice: load_agent(agent, spec, choice),
        lambda spec, choice: load_agent(RIVAL, spec, choice),
        games,
        seed=9000,
    )
    more = [one["goals"] - one["conceded"] for one in played.behaviour]
    mean, low, high = mean_interval(more)
    kept = {name: played.summary()[name] for name in ("games", "wins", "draws", "losses", "win_rate", "win_rate_low")}
    goals = {name: float(np.mean([one[name] for one in played.behaviour])) for name in ("goals", "conceded", "touches")}
    return kept | goals | {"more": mean, "more_low": low, "more_high": high}


def measure_training(options: argparse.Namespace) -> None:
    """Train every seed, and write the result."""
    result, lines, passed = Result("rocket-train", options), [], True
    for seed in range(options.first, options.first + options.seeds):
        result.gate()
        row = learn(seed, options.minutes, options.episodes, options.games)
        result.add({"work": "rocket", "contestant": f"seed {seed}", **row})
        for agent in ("clone", "result"):
            found = row[agent]
            more = f"{found['more']:+.2f} ({found['more_low']:+.2f} to {found['more_high']:+.2f})"
            cells = [seed, f"{row['seconds']:.0f}", f"{row['steps']:,}", f"{row['steps_per_second']:,.0f}", agent]
            lines.append([*cells, f"{found['goals']:.2f} : {found['conceded']:.2f}", more, f"{found['win_rate']:.3f}"])
        passed &= row["result"]["more_low"] > 0 and row["seconds"] <= 60 * options.minutes
    text = (
        f"# From scripted demos against {RIVAL}, {options.minutes:g} minutes in total, {options.games} games each\n\n"
    )
    header = ("seed", "seconds", "steps", "steps/s", "agent", "goals : conceded", "difference, 95 %", "win rate")
    text += table(header, lines) + f"\n\nScores more than it concedes, every seed: {verdict(passed)}"
    result.close({"passed": passed, "minutes": options.minutes}, text)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    timed = make_parser(None, rounds=5, seconds=8.0, quick=False, help_flag=False)
    speed, vectors = (parts.add_parser(name, parents=[timed]) for name in ("speed", "vectors"))
    train = parts.add_parser("train", parents=[make_parser(None, quick=False, help_flag=False)])
    speed.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 3])
    train.add_argument("--minutes", type=float, default=20.0)
    train.add_argument("--seeds", type=int, default=3)
    train.add_argument("--first", type=int, default=0)
    train.add_argument("--games", type=int, default=400)
    train.add_argument("--episodes", type=int, default=400, help="recorded games of the scripted driver")
    one, bare = parts.add_parser("step"), parts.add_parser("bare")
    for name, kind in (("size", int), ("seconds", float), ("seed", int)):
        one.add_argument(name, type=kind)
        bare.add_argument(name, type=kind)
    one.add_argument("--workers", type=int, default=1, help="processes")
    for part in (speed, vectors, one, bare):
        part.add_argument("--envs", type=int, default=32, help="matches per process")
    options = parser.parse_args()
    if options.part == "step":
        given = (options.size, options.seconds, options.seed, options.envs)
        print(json.dumps(step(*given) if options.workers == 1 else step_all(*given, options.workers)))
    elif options.part == "bare":
        print(json.dumps(step_bare(options.size, options.seconds, options.seed, options.envs)))
    else:
        {"speed": measure_speed, "vectors": measure_vectors, "train": measure_training}[options.part](options)


if __name__ == "__main__":
    main()
