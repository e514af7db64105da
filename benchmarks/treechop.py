"""Treechop: from MineRL folders to an agent that collects more logs than the clone.

    .venv/bin/python benchmarks/treechop.py [--episodes 60] [--minutes 14] [--games 128] [--seed 0]
    .venv/bin/python benchmarks/treechop.py --work frames

path: record games of the scripted lumberjack, export them as MineRL folders, import these, train an image encoder with
a short clone, compute its features of all frames once, clone a policy with memory from the features and the scalars,
and train with PPO from that clone. Every stage is a command, and all of them are timed. Then both play the same
held-out worlds with sampled actions; the interval is that of the difference in logs per game.
frames: frames per second of CPU time in one process for each task, with the actions of the scripted lumberjack.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness import Result, call, interleave, make_parser, set_flags, verdict
from slipstream.contracts import empty_rows
from slipstream.envs.treechop.columns import TASKS
from slipstream.envs.treechop.minerl_spaces import Treechop, act

HELD_OUT_SEED = 909_090
LIMIT_S = 1800.0
SCALARS = ("env.options.scalars=true",)
ENVS, STEPS, ROUNDS = 64, 200, 5


def path(options: argparse.Namespace, folder: Path, result: Result) -> tuple[dict[str, Any], str]:
    """Run all stages, then evaluate on held-out worlds."""
    rng, shown = ["--seed", str(options.seed)], set_flags(SCALARS)
    demos, games, taken = folder / "recorded", folder / "MineRLTreechop-v0", folder / "imported"
    eyes, clone, agent = folder / "eyes", folder / "clone", folder / "agent"
    stages: dict[str, list[str]] = {
        "record": [
            "record",
            "scripted:lumberjack",
            "--env",
            "treechop",
            "--episodes",
            str(options.episodes),
            "--out",
            str(demos),
            *rng,
            *shown,
        ],
        "folders": ["demos", "export", "minerl", str(demos), "--out", str(games)],
        "import": ["demos", "import", "minerl", str(games), "--env", "treechop", "--out", str(taken)],
        "eyes": [
            "clone",
            str(taken),
            "--run",
            str(eyes),
            "--epochs",
            "2",
            *rng,
            *set_flags(("policy.memory=none", "policy.features=128")),
        ],
        "clone": [
            "clone",
            str(taken),
            "--run",
            str(clone),
            *rng,
            *set_flags(("policy.image=frozen", f"policy.trunk=run:{eyes}")),
        ],
        "train": [
            "train",
            "treechop",
            "--start",
            f"run:{clone}",
            "--run",
            str(agent),
            "--minutes",
            str(options.minutes),
            *rng,
            *shown,
            *set_flags(("every.evaluate=0",)),
        ],
    }
    seconds: dict[str, float] = {}
    for name, words in stages.items():
        result.gate()
        facts, seconds[name] = call(*words)
        kept = {key: value for key, value in facts.items() if isinstance(value, int | float | str)}
        result.add({"work": "path", "contestant": name, **kept, "seconds": seconds[name]})
    result.gate()
    played, spent = call(
        "evaluate",
        f"run:{agent}",
        "--env",
        "treechop",
        "--games",
        str(options.games),
        "--seed",
        str(HELD_OUT_SEED),
        "--beside",
        f"run:{clone}",
        "--sampled",
        *shown,
    )
    result.add({"work": "path", "contestant": "evaluate", "seconds": spent, **played["beside"]})
    return _summary(seconds, played, options.games)


def _summary(seconds: dict[str, float], played: dict[str, Any], games: int) -> tuple[dict[str, Any], str]:
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
        f"{gain['return_gain_high']:+.2f}).\n\nMore logs than the clone: {verdict(more)}. Within 30 "
        f"minutes: {verdict(quick)}."
    )
    return {"seconds": seconds, "whole": whole, "logs": logs, **gain, "more": more, "quick": quick}, text


def frames(result: Result) -> tuple[dict[str, Any], str]:
    """Frames per CPU second of each task, in interleaved rounds."""
    found: dict[str, list[float]] = {}
    for turn, task in interleave(ROUNDS, tuple(TASKS)):
        result.gate()
        game = Treechop(ENVS, variant=task, match_seconds=600.0)
        out, action = empty_rows(game.spec, ENVS), np.zeros((ENVS, 1), np.int32)
        game.reset(out)
        spent = 0.0
        for _ in range(STEPS):
            act("lumberjack", out.obs, game.spec.action, action)
            began = time.process_time()
            game.step(action, out)
            spent += time.process_time() - began
        found.setdefault(task, []).append(ENVS * STEPS / spent)
        result.add({"work": "frames", "contestant": task, "round": turn, "steps_per_second": found[task][-1]})
    lines = [
        f"| {task} | {statistics.median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f} |"
        for task, rates in found.items()
    ]
    text = "# Treechop: frames per CPU second on one core\n\n| task | median | range |\n|---|---|---|\n"
    return {"rates": found}, text + "\n".join(lines)


def main() -> None:
    """Run one part and write its result."""
    parser = make_parser(__doc__, quick=False)
    parser.add_argument("--work", choices=("path", "frames"), default="path")
    parser.add_argument("--episodes", type=int, default=60, help="recorded games")
    parser.add_argument("--minutes", type=float, default=14.0, help="minutes of PPO")
    parser.add_argument("--games", type=int, default=128, help="held-out worlds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    result = Result(f"treechop-{options.work}", options)
    if options.work == "frames":
        result.close(*frames(result))
        return
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        result.close(*path(options, Path(folder), result))


if __name__ == "__main__":
    main()
