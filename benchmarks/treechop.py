"""Treechop: from folders of MineRL's form to an agent that gathers more logs than the clone of them.

    .venv/bin/python benchmarks/treechop.py [--episodes 60] [--minutes 14] [--games 128] [--seed 0]
    .venv/bin/python benchmarks/treechop.py --work frames

path: the lumberjack's games are recorded and written as MineRL folders, these are imported, eyes are learned by a short
clone, their features of all frames are computed once, a policy with memory is cloned from these and the numbers beside
them, and PPO goes on from that clone: every step by the command that a user types, and all of it counted. Then both
play the same held-out worlds, their actions drawn as in training; the interval is that of the difference in logs, game
by game.
frames: pictures per second of CPU time, one process, for each task: the world is stepped by the lumberjack's actions.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from record import Record, call, dated, pairs
from slipstream.contracts import empty_rows
from slipstream.envs.treechop import scripted
from slipstream.envs.treechop.game import Treechop

HELD_OUT_SEED = 909_090
LIMIT_S = 1800.0
NUMBERS = ("env.options.scalars=true",)
ENVS, STEPS, ROUNDS = 64, 200, 5


def path(options: argparse.Namespace, folder: Path, record: Record) -> tuple[dict[str, Any], str]:
    """The whole path with its times, and the held-out games."""
    rng, shown = ["--seed", str(options.seed)], pairs(NUMBERS)
    demos, games, taken = folder / "recorded", folder / "MineRLTreechop-v0", folder / "imported"
    eyes, clone, agent = folder / "eyes", folder / "clone", folder / "agent"
    stages: dict[str, list[str]] = {
        "record": ["record", "scripted:lumberjack", "--env", "treechop", "--episodes", str(options.episodes), "--out",
                   str(demos), *rng, *shown],
        "folders": ["demos", "export", "minerl", str(demos), "--out", str(games)],
        "import": ["demos", "import", "minerl", str(games), "--env", "treechop", "--out", str(taken)],
        "eyes": ["clone", str(taken), "--run", str(eyes), "--epochs", "2", *rng,
                 *pairs(("policy.memory=none", "policy.features=128"))],
        "clone": ["clone", str(taken), "--run", str(clone), *rng,
                  *pairs(("policy.image=frozen", f"policy.trunk=run:{eyes}"))],
        "train": ["train", "treechop", "--start", f"run:{clone}", "--run", str(agent), "--minutes",
                  str(options.minutes), *rng, *shown, *pairs(("every.evaluate=0",))],
    }  # fmt: skip
    seconds: dict[str, float] = {}
    for name, words in stages.items():
        record.load()
        facts, seconds[name] = call(*words)
        kept = {key: value for key, value in facts.items() if isinstance(value, int | float | str)}
        record.add({"work": "path", "contestant": name, **kept, "seconds": seconds[name]})
    record.load()
    played, spent = call(
        "evaluate", f"run:{agent}", "--env", "treechop", "--games", str(options.games), "--seed", str(HELD_OUT_SEED),
        "--beside", f"run:{clone}", "--sampled", *shown,
    )  # fmt: skip
    record.add({"work": "path", "contestant": "evaluate", "seconds": spent, **played["beside"]})
    return _told(seconds, played, options.games)


def _told(seconds: dict[str, float], played: dict[str, Any], games: int) -> tuple[dict[str, Any], str]:
    beside, whole = played["beside"], sum(seconds.values())
    logs = {"agent": played["mean_return"], "clone": beside["mean_return"]}
    gain = {key: beside[key] for key in ("return_gain", "return_gain_low", "return_gain_high")}
    more, quick = gain["return_gain_low"] > 0, whole <= LIMIT_S
    lines = [f"| {name} | {spent:.1f} |" for name, spent in seconds.items()]
    text = (
        "# Treechop: folders, import, features, clone, PPO from the clone\n\n| stage | seconds |\n|---|---|\n"
        + "\n".join([*lines, f"| all | {whole:.1f} |"])
        + f"\n\nLogs in 25 seconds, mean of {games} held-out worlds: the clone {logs['clone']:.2f}, the agent "
        f"{logs['agent']:.2f}; difference {gain['return_gain']:+.2f} ({gain['return_gain_low']:+.2f} to "
        f"{gain['return_gain_high']:+.2f}).\n\nMore logs than the clone: {'met' if more else 'not met'}. Within 30 "
        f"minutes: {'met' if quick else 'not met'}."
    )
    return {"seconds": seconds, "whole": whole, "logs": logs, **gain, "more": more, "quick": quick}, text


def frames(record: Record) -> tuple[dict[str, Any], str]:
    """Pictures per CPU-second of each task, rounds of all tasks in turn."""
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for task in ("dense", "medium", "sparse"):
            record.load()
            game = Treechop(ENVS, variant=task, limit_seconds=600.0)
            out, action = empty_rows(game.spec, ENVS), np.zeros((ENVS, 1), np.int32)
            game.reset(out)
            spent = 0.0
            for _ in range(STEPS):
                scripted.act("lumberjack", out.obs, "discrete", action)
                began = time.process_time()
                game.step(action, out)
                spent += time.process_time() - began
            found.setdefault(task, []).append(ENVS * STEPS / spent)
            record.add({"work": "frames", "contestant": task, "steps_per_second": found[task][-1]})
    lines = [
        f"| {task} | {statistics.median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f} |"
        for task, rates in found.items()
    ]
    text = "# Treechop: pictures per CPU-second of one core\n\n| task | median | range |\n|---|---|---|\n"
    return {"rates": found}, text + "\n".join(lines)


def main() -> None:
    """Run one of the two and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=("path", "frames"), default="path")
    parser.add_argument("--episodes", type=int, default=60, help="games that are recorded")
    parser.add_argument("--minutes", type=float, default=14.0, help="of PPO")
    parser.add_argument("--games", type=int, default=128, help="held-out worlds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record(options.out or dated(f"treechop-{options.work}"))
    record.begin()
    if options.work == "frames":
        record.close(*frames(record))
        return
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        record.close(*path(options, Path(folder), record))


if __name__ == "__main__":
    main()
