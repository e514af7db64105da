"""Rocket League: agent-steps per second beside RLGym, and twenty minutes of training from scripted demos.

    .venv/bin/python benchmarks/rocket.py speed [--rounds 5] [--seconds 8] [--sizes 1 2 3]
    .venv/bin/python benchmarks/rocket.py spread [--rounds 5] [--seconds 8]
    .venv/bin/python benchmarks/rocket.py train [--minutes 20] [--seeds 3] [--first 0] [--games 400]

speed: RLGym in a virtual environment of its own (`.venvs/rlgym`, made here), on the same meshes (RLGym's), tick skip 8,
with random actions of the table of 90, in turn, round by round: RLGym, which is one match in one process; our matches
on one core; and our matches on all cores, a process each that steps its own, as the collector `actors` does, which
trains on them. The bar is 6x, for the machine. The bare simulator takes part too, on one core and in arenas as ours,
given controls and told to step, and asked nothing: no adapter can exceed it.
spread: the same games of 1v1 stepped serially, in threads (the simulator lets go of the GIL) and in processes.
train: `record`, `clone --dagger` and `train --start`, against the driver, by the command line, all within the minutes;
then games of the result against it, sides swapped: the bar is that the 95 % interval of goals less goals conceded is
above 0.
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
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from record import ROOT, Record, call, dated
from slipstream.confidence import mean_interval

BAR = 6.0
REQUIRED = ("rlgym==2.0.1", "rlgym-api==2.0.0", "rlgym-rocket-league==2.0.1")
"""Installed without what they depend on: they ask for numpy < 2."""
BESIDE = ("rocketsim==2.2.1", "numpy==2.4.6", "setuptools", "wheel")
VENV = ROOT / ".venvs" / "rlgym"
RIVAL = "scripted:driver"
WARM_STEPS = 300
"""Steps before the clock starts: the first match in a new arena is slow. RLGym is given as many."""
MATCH_STEPS = 900
"""Decisions in a match of a minute."""
SPARE_S = 20.0
"""Of the minutes, kept for the start and the end of training."""


def install() -> Path:
    """Make RLGym's virtual environment where it is missing; return its Python."""
    python, stamp, wanted = VENV / "bin" / "python", VENV / "installed.txt", " ".join((*REQUIRED, *BESIDE))
    if not (stamp.exists() and stamp.read_text() == wanted):
        venv.create(VENV, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *BESIDE], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", *REQUIRED], check=True)
        stamp.write_text(wanted)
    return python


def meshes() -> Path:
    """The meshes that RLGym brings."""
    return next(VENV.glob("lib/python*/site-packages/rlgym/rocket_league/sim/collision_meshes"))


def step(size: int, seconds: float, seed: int, envs: int, gate: Any = None) -> dict[str, Any]:
    """Our own matches with random actions for some seconds, in this process; with a gate, all start at once."""
    from slipstream.contracts import empty_rows
    from slipstream.envs.registry import EnvChoice
    from slipstream.vector.make import make_vector

    vector = make_vector(EnvChoice("rocket" if size == 1 else f"rocket:{size}v{size}"), envs, seed=seed)
    rows, rng, agents = empty_rows(vector.spec, envs), np.random.default_rng(seed), 2 * size * envs
    vector.reset(rows)
    steps, began, cpu = -WARM_STEPS, 0.0, 0.0
    while steps <= 0 or time.perf_counter() - began < seconds:
        if steps == 0:
            if gate is not None:
                gate.wait()
            began, cpu = time.perf_counter(), time.process_time()
        vector.step(rng.integers(0, 90, (agents, 1)).astype(np.int32), rows)
        steps += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    vector.close()
    told = {"steps_per_second": agents * steps / wall, "steps_per_cpu_second": agents * steps / cpu}
    return told | {"wall_seconds": wall, "meshes": dict(vector.spec.world)["meshes"]}


def step_all(size: int, seconds: float, seed: int, envs: int, workers: int) -> dict[str, Any]:
    """The same in several processes at once, each with as many matches of its own: what they do together."""
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(workers, context) as pool:
        gate = manager.Barrier(workers)
        asked = [pool.submit(step, size, seconds, seed * workers + k, envs, gate) for k in range(workers)]
        told = [one.result() for one in asked]
    rate = sum(one["steps_per_second"] for one in told)
    return {"steps_per_second": rate, "workers": workers, "meshes": told[0]["meshes"], "processes": told}


def step_bare(size: int, seconds: float, seed: int, envs: int) -> dict[str, Any]:
    """The simulator alone: controls go in, nothing is read; a new kick-off every minute, as our matches have."""
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


def ask(command: list[str], place: Path, pinned: bool) -> dict[str, Any]:
    """Run one side, on one core or on all, and take its line of JSON."""
    pin = ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[-1])] if pinned else []
    done = subprocess.run(
        [*pin, *command], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
        env={**os.environ, "RS_COLLISION_MESHES": str(place), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


SIDES = ("one core", "all cores", "rlgym", "simulator")


def race(options: argparse.Namespace) -> None:
    """All sides in turn, round by round."""
    from slipstream.system.machine import cores

    python, record = install(), Record(options.out or dated("rocket-speed"))
    record.begin()
    for number in range(options.rounds):
        for size in options.sizes:
            words, many = [str(size), str(options.seconds), str(number)], ["--envs", str(options.envs)]
            ours = [sys.executable, __file__, "step", *words, *many]
            commands = {
                "one core": ours,
                "all cores": [*ours, "--workers", str(cores())],
                "rlgym": [str(python), str(ROOT / "benchmarks" / "peers" / "rlgym_steps.py"), *words],
                "simulator": [sys.executable, __file__, "bare", *words, *many],
            }
            for side in SIDES[:: 1 if number % 2 == 0 else -1]:
                record.load()
                told = ask(commands[side], meshes(), side != "all cores")
                peer = side if side in ("rlgym", "simulator") else "slipstream"
                record.add({"work": f"{size}v{size}", "contestant": side, "peer": peer, "round": number, **told})
    summary: dict[str, Any] = {"bar": BAR, "cores": cores(), "sizes": {}}
    lines = [f"| | RLGym | {cores()} cores | ratio (lowest to highest) | one core | ratio | bare simulator, one core | "
             "ratio |", "|" + "---|" * 8]  # fmt: skip
    for size in options.sizes:
        mine = [row for row in record.rows if row["work"] == f"{size}v{size}"]
        rates = {side: np.array([row["steps_per_second"] for row in mine if row["contestant"] == side])
                 for side in SIDES}  # fmt: skip
        ratios = {side: rates[side] / rates["rlgym"] for side in SIDES}
        low, high = ratios["all cores"].min(), ratios["all cores"].max()
        middle = {side: (float(np.median(rates[side])), float(np.median(ratios[side]))) for side in SIDES}
        summary["sizes"][f"{size}v{size}"] = {
            side: {"rate": rate, "ratio": ratio, "low": float(ratios[side].min()), "high": float(ratios[side].max())}
            for side, (rate, ratio) in middle.items()
        }
        told = [f"{rate:,.0f} | {ratio:.2f}x" for rate, ratio in (middle["one core"], middle["simulator"])]
        rate, ratio = middle["all cores"]
        lines.append(f"| {size}v{size} | {middle['rlgym'][0]:,.0f} | {rate:,.0f} | {ratio:.2f}x ({low:.2f} to "
                     f"{high:.2f}) | {told[0]} | {told[1]} |")  # fmt: skip
    summary["passed"] = all(found["all cores"]["ratio"] >= BAR for found in summary["sizes"].values())
    head = f"# Agent-steps per second, {options.rounds} rounds, medians; ratios to RLGym round by round\n\n"
    record.close(summary, head + "\n".join(lines) + f"\n\nBar of {BAR}x met: {'yes' if summary['passed'] else 'no'}")


def spread(options: argparse.Namespace) -> None:
    """One process, two threads, two processes, in turn."""
    from slipstream.contracts import empty_rows
    from slipstream.envs.registry import EnvChoice
    from slipstream.system.machine import cores
    from slipstream.vector.make import spread_vector

    record, envs = Record(options.out or dated("rocket-spread")), 2 * options.envs
    record.begin()
    hows = ("serial", "threads", "processes")
    vectors = {how: spread_vector(EnvChoice("rocket"), envs, how, cores()) for how in hows}
    rows = {how: empty_rows(vector.spec, envs) for how, vector in vectors.items()}
    rng = np.random.default_rng(0)
    acts = [rng.integers(0, 90, (2 * envs, 1)).astype(np.int32) for _ in range(50)]
    for how, vector in vectors.items():
        vector.reset(rows[how])
    for number in range(-1, options.rounds):
        for how in hows[:: 1 if number % 2 == 0 else -1]:
            record.load()
            began, steps = time.perf_counter(), 0
            while time.perf_counter() - began < (options.seconds if number >= 0 else 1.0):
                vectors[how].step(acts[steps % len(acts)], rows[how])
                steps += 1
            rate = 2 * envs * steps / (time.perf_counter() - began)
            if number >= 0:  # the first is for warming up
                record.add({"work": "1v1", "contestant": how, "round": number, "steps_per_second": rate})
    for vector in vectors.values():
        vector.close()
    middle = {how: [row["steps_per_second"] for row in record.rows if row["contestant"] == how] for how in hows}
    lines = [f"| {how} | {np.median(found):,.0f} | {min(found):,.0f} | {max(found):,.0f} |"
             for how, found in middle.items()]  # fmt: skip
    head = f"# Stepping {envs} matches of 1v1, agent-steps per second, {cores()} workers\n\n"
    text = head + "\n".join(["| | median | lowest | highest |", "|---|---|---|---|", *lines])
    record.close({how: float(np.median(found)) for how, found in middle.items()}, text)


def learn(seed: int, minutes: float, episodes: int, games: int) -> dict[str, Any]:
    """One whole story by the command line, and games of its result."""
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        demos, clone, run = (f"{folder}/{name}" for name in ("demos", "clone", "run"))
        began = time.perf_counter()
        played = ("--episodes", str(episodes), "--seed", str(seed))
        _, record_s = call("record", RIVAL, "--env", "rocket", *played, "--out", demos)
        _, clone_s = call("clone", demos, "--epochs", "3", "--dagger", "3", "--run", clone)
        left = minutes - (time.perf_counter() - began + SPARE_S) / 60
        facts, train_s = call("train", "rocket", "--start", f"run:{clone}", "--minutes", f"{left:.3f}", "--run", run,
                              "--set", f"opponent={RIVAL}", "--set", f"seed={seed}")  # fmt: skip
        seconds = time.perf_counter() - began
        told = {"clone": margin(f"run:{clone}", games), "result": margin(f"run:{run}", games)}
    kept = {key: facts[key] for key in ("steps", "steps_per_second", "start_seconds")}
    spent = {"seconds": seconds, "record_seconds": record_s, "clone_seconds": clone_s, "train_seconds": train_s}
    return {"seed": seed, **spent, **kept, **told}


def margin(agent: str, games: int) -> dict[str, Any]:
    """Games against the driver: won, goals, and by how much it scored more, with its 95 % interval."""
    from slipstream.agents.specs import load_agent
    from slipstream.api import configure
    from slipstream.play.games import play
    from slipstream.training.build import choose_env

    choice = choose_env("rocket", configure("rocket", agent=agent).settings)
    played = play(
        choice, lambda spec, choice: load_agent(agent, spec, choice),
        lambda spec, choice: load_agent(RIVAL, spec, choice), games, seed=9000,
    )  # fmt: skip
    more = [one["goals"] - one["conceded"] for one in played.behaviour]
    mean, low, high = mean_interval(more)
    kept = {name: played.summary()[name] for name in ("games", "wins", "draws", "losses", "win_rate", "win_rate_low")}
    goals = {name: float(np.mean([one[name] for one in played.behaviour])) for name in ("goals", "conceded", "touches")}
    return kept | goals | {"more": mean, "more_low": low, "more_high": high}


def teach(options: argparse.Namespace) -> None:
    """Every seed, and the record."""
    record = Record(options.out or dated("rocket-train"))
    record.begin()
    lines = ["| seed | seconds | steps | steps/s | who | goals : conceded | more, 95 % | win rate |", "|" + "---|" * 8]
    passed = True
    for seed in range(options.first, options.first + options.seeds):
        record.load()
        row = learn(seed, options.minutes, options.episodes, options.games)
        record.add({"work": "rocket", "contestant": f"seed {seed}", **row})
        for who in ("clone", "result"):
            found = row[who]
            lines.append(
                f"| {seed} | {row['seconds']:.0f} | {row['steps']:,} | {row['steps_per_second']:,.0f} | {who} | "
                f"{found['goals']:.2f} : {found['conceded']:.2f} | {found['more']:+.2f} ({found['more_low']:+.2f} to "
                f"{found['more_high']:+.2f}) | {found['win_rate']:.3f} |"
            )
        passed &= row["result"]["more_low"] > 0 and row["seconds"] <= 60 * options.minutes
    head = f"# From scripted demos against {RIVAL}, {options.minutes:g} minutes in all, {options.games} games each\n\n"
    text = head + "\n".join(lines) + f"\n\nScores more than it concedes, every seed: {'yes' if passed else 'no'}"
    record.close({"passed": passed, "minutes": options.minutes, "runs": record.rows}, text)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    speed = parts.add_parser("speed")
    speed.add_argument("--rounds", type=int, default=5)
    speed.add_argument("--seconds", type=float, default=8.0)
    speed.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 3])
    spreading = parts.add_parser("spread")
    spreading.add_argument("--rounds", type=int, default=5)
    spreading.add_argument("--seconds", type=float, default=8.0)
    train = parts.add_parser("train")
    train.add_argument("--minutes", type=float, default=20.0)
    train.add_argument("--seeds", type=int, default=3)
    train.add_argument("--first", type=int, default=0)
    train.add_argument("--games", type=int, default=400)
    train.add_argument("--episodes", type=int, default=400, help="games of the driver that are recorded")
    one, bare = parts.add_parser("step"), parts.add_parser("bare")
    for name, kind in (("size", int), ("seconds", float), ("seed", int)):
        one.add_argument(name, type=kind)
        bare.add_argument(name, type=kind)
    one.add_argument("--workers", type=int, default=1, help="processes")
    for part in (speed, spreading, one, bare):
        part.add_argument("--envs", type=int, default=32, help="our matches in a process")
    for part in (speed, spreading, train):
        part.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.part == "step":
        asked = (options.size, options.seconds, options.seed, options.envs)
        print(json.dumps(step(*asked) if options.workers == 1 else step_all(*asked, options.workers)))
    elif options.part == "bare":
        print(json.dumps(step_bare(options.size, options.seconds, options.seed, options.envs)))
    else:
        {"speed": race, "spread": spread, "train": teach}[options.part](options)


if __name__ == "__main__":
    main()
