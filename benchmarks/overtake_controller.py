"""Overtaking a controller of the user's own: record it with two workers, clone it, train from the clone, compare.

    .venv/bin/python benchmarks/overtake_controller.py [--rounds 1]

Two environments: Gymnasium's Pendulum-v1 with a controller that pumps energy and then balances, and the ship of
`examples/own_agent.py` with its pilot. From the same demos, PPO and SAC each train from their own clone. The measure is
the difference of the returns in 200 games with the same seeds, greedy, with its 95 % interval. The demos are also
recorded with 1 and 4 workers and compared by checksum.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import slipstream as ss
from harness import ROOT, Result, make_parser, table, verdict

sys.path.append(str(ROOT / "examples"))
from own_agent import SETTINGS, Docking, Pilot

EPISODES, GAMES = 64, 200
SAC: dict[str, Any] = {"algorithm": "sac", "steps": 20_000, "sac__gamma": 0.97, "sac__learning_starts": 1000}
PENDULUM: dict[str, Any] = {
    "steps": 1_000_000,
    "ppo__gamma": 0.98,
    "ppo__epochs": 10,
    "ppo__learning_rate": 1e-3,
    "schedules": {"ppo.learning_rate": "linear to 0"},
}


def swing(obs: Any) -> Any:
    """Pump energy into the pendulum until it is nearly upright, then balance it."""
    cos, sin, speed = obs
    if cos > 0.9:
        return [-20 * np.arctan2(sin, cos) - 3 * speed]
    energy = speed**2 / 2 + 15 * (cos - 1)
    return [2 * np.sign(speed or 1) * (1 if energy < 0 else -1)]


WORKS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Pendulum": (swing, "gymnasium:Pendulum-v1", PENDULUM),
    "Docking": (Pilot, Docking, SETTINGS),
}


def record(work: str, folder: Path, workers: int) -> Path:
    """Record the controller; the folder of the demos."""
    agent, env, _ = WORKS[work]
    out = folder / f"{work}-{workers}"
    ss.record(agent, env, EPISODES, out, workers=workers, seed=0)
    return out


def same_demos(work: str, folder: Path, demos: Path) -> bool:
    """Whether one and four workers record the same episodes."""
    first = ss.Demos.open(demos)
    others = [ss.Demos.open(record(work, folder, workers)) for workers in (1, 4)]
    return all(other.checksum == first.checksum for other in others)


def overtake(work: str, algorithm: str, demos: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Clone, train from the clone, and compare with the controller; a row."""
    agent, env, ppo = WORKS[work]
    settings = ppo if algorithm == "ppo" else SAC | {"sac__demos": str(demos)}
    began = time.perf_counter()
    kind = {} if algorithm == "ppo" else {"algorithm": "sac"}
    clone = ss.clone(demos, run=folder / f"clone-{work}-{algorithm}-{seed}", clone__epochs=10, seed=seed, **kind)
    cloned = time.perf_counter()
    run = ss.train(env, run=folder / f"run-{work}-{algorithm}-{seed}", start=f"run:{clone.path}", seed=seed, **settings)
    trained = time.perf_counter()
    facts = ss.evaluate(run.agent(), env, beside=agent, games=GAMES)
    return {
        "steps": settings["steps"],
        "clone_s": cloned - began,
        "train_s": trained - cloned,
        "mean_return": facts["mean_return"],
        "controller": facts["beside"]["mean_return"],
        **{key: facts["beside"][key] for key in ("return_gain", "return_gain_low", "return_gain_high")},
    }


def main() -> None:
    """Run all rounds and write the result."""
    options = make_parser(__doc__, rounds=1, quick=False).parse_args()
    result = Result("overtake-controller", options)
    same: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="slipstream-") as name:
        folder = Path(name)
        for work in WORKS:
            demos = record(work, folder, 2)
            same[work] = same_demos(work, folder, demos)
            for seed in range(options.rounds):
                for algorithm in ("ppo", "sac"):
                    result.gate()
                    row = overtake(work, algorithm, demos, folder, seed)
                    result.add({"work": work, "contestant": algorithm, "seed": seed, **row})
    lines = [
        [
            row["work"],
            row["contestant"],
            row["seed"],
            f"{row['steps']:,}",
            f"{row['train_s']:.0f}",
            f"{row['controller']:.1f}",
            f"{row['mean_return']:.1f}",
            f"{row['return_gain']:+.1f} [{row['return_gain_low']:+.1f}, {row['return_gain_high']:+.1f}]",
            verdict(row["return_gain_low"] > 0),
        ]
        for row in result.rows
    ]
    head = ("env", "algorithm", "seed", "steps", "train s", "controller", "agent", "difference", "overtaken")
    beaten = all(row["return_gain_low"] > 0 for row in result.rows)
    text = (
        "# Overtaking a controller of one's own\n\n"
        + table(head, lines)
        + f"\n\nThe same demos with 1, 2 and 4 workers: {verdict(all(same.values()))}."
    )
    result.close({"beaten": beaten, "same_demos": same}, text)


if __name__ == "__main__":
    main()
