"""CartPole as a native game: training on CPU cores and on a GPU, against Gymnasium's and PureJaxRL's.

    python benchmarks/native_cartpole.py [--slices 60]
    python benchmarks/native_cartpole.py --gpu --purejaxrl FOLDER [--slices 8]

On the CPU the native game and Gymnasium's vector env train alike, by the fastest plan of each. On a GPU PureJaxRL
trains with the same envs, steps, minibatches, epochs and networks: separate ones for policy and value, with two tanh
layers; both shuffle all samples. FOLDER holds its ppo.py and wrappers.py. Products have the precision of fp32 (`fp32`;
ours are made of three TF32 products) or the reduced one of tensor cores (`tf32`), as JAX's have on a GPU unless it is
told otherwise. All take turns in slices of time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from harness import ROOT, Result, make_parser, spread, table, verdict
from slices import Trainer, take_turns
from slipstream.contracts import empty_rows
from slipstream.stages.check_game import random_actions

GAME = "native:slipstream.envs.native.examples.cartpole"
CPU_BAR, GPU_BAR = 1.3, 1.0
CPU = {"gymnasium": "gymnasium:CartPole-v1", "gymnasium again": "gymnasium:CartPole-v1", "native": GAME}
CPU_WORK: dict[str, Any] = {"ppo__epochs": 1, "plan__envs": 64, "ppo__rollout": 64, "ppo__minibatch": 1024}
STEPPING_BARS = {"cartpole": 12_000_000, "pong": 8_000_000}
"""Least steps of envs per second on one core."""
STEPPED_ENVS, STEPS = 1024, 200
SIZES = ((16_384, 64, 128), (65_536, 32, 128), (16_384, 64, 64))
"""Envs, steps and units of each layer."""
MINIBATCHES = 16
PRECISIONS = ("fp32", "tf32", "bf16")
PEER_PRECISIONS = {"PureJaxRL fp32": "highest", "PureJaxRL tf32": "default"}


def on_gpu(envs: int, steps: int, width: int, precision: str) -> dict[str, Any]:
    """The settings that correspond to PureJaxRL's."""
    return {
        "plan__collector": "device",
        "plan__envs": envs,
        "plan__precision": precision,
        "policy__shared": False,
        "policy__hidden": [width, width],
        "ppo__rollout": steps,
        "ppo__minibatch": envs * steps // MINIBATCHES,
        "ppo__epochs": 1,
        "ppo__shuffle": "samples",
        "ppo__clip_value": 0.2,
        "ppo__learning_rate": 2.5e-4,
        "ppo__normalise_obs": False,
        "ppo__normalise_return": False,
        "every__log": 10**12,
    }


def ratio(rates: dict[str, list[float]], one: str, other: str) -> dict[str, Any]:
    """The ratio of two contestants within each round."""
    return spread([a / b for a, b in zip(rates[one], rates[other], strict=True)])


def cell(found: dict[str, Any]) -> str:
    """A ratio with its interval."""
    return f"{found['median']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"


def stepping_rates(rounds: int = 15) -> dict[str, list[float]]:
    """Steps of envs per second on one core, with observations and rewards, and random actions."""
    games = {name: import_module(f"slipstream.envs.native.examples.{name}").game for name in STEPPING_BARS}
    rates: dict[str, list[float]] = {name: [] for name in games}
    played = {}
    for name, game in games.items():
        vector = game.vector(STEPPED_ENVS)
        rows = empty_rows(vector.spec, STEPPED_ENVS)
        vector.reset(rows)
        played[name] = vector, rows, random_actions(vector.spec, rows.mask, np.random.default_rng(0))
    for _ in range(rounds):
        for name, (vector, rows, action) in played.items():
            vector.step(action, rows)
            began = perf_counter()
            for _ in range(STEPS):
                vector.step(action, rows)
            rates[name].append(round(STEPPED_ENVS * STEPS / (perf_counter() - began)))
    return rates


def compare_cpu(result: Result, place: Path, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Train with Gymnasium's vector env, with it once more, and with the native game."""
    trainers = {name: Trainer.of(env, CPU_WORK, place / name) for name, env in CPU.items()}
    rates = take_turns(trainers, options.slices, options.seconds)
    result.rows += [{"work": "cpu", "contestant": name, "rates": found} for name, found in rates.items()]
    native, again = ratio(rates, "native", "gymnasium"), ratio(rates, "gymnasium again", "gymnasium")
    met = native["low"] >= CPU_BAR
    rows = [(name, f"{median(found):,.0f}", cell(ratio(rates, name, "gymnasium"))) for name, found in rates.items()]
    text = f"At least {CPU_BAR}x of Gymnasium's vector env: {verdict(met)}."
    report = table(("env", "steps/s", "ratio to gymnasium"), rows) + f"\n\n{text}"
    stepping = stepping_rates()
    result.rows += [{"work": "stepping", "contestant": name, "rates": found} for name, found in stepping.items()]
    rows = [(name, f"{median(found):,.0f}", f"{STEPPING_BARS[name]:,}") for name, found in stepping.items()]
    report += "\n\nStepping alone on one core, with observations and rewards:\n\n"
    report += table(("game", "env steps/s", "bar"), rows)
    return {"native": native, "gymnasium again": again, "met": met, "stepping": stepping}, report


def compare_gpu(result: Result, place: Path, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Train with PureJaxRL and with the native game at each size."""
    summary: dict[str, Any] = {}
    lines = []
    for envs, steps, width in SIZES[:1] if options.quick else SIZES:
        folder, trainers = place / f"{envs}-{steps}-{width}", dict[str, Trainer]()
        for name, precision in PEER_PRECISIONS.items():
            work = {"envs": envs, "steps": steps, "minibatches": MINIBATCHES, "width": width, "precision": precision}
            script = ROOT / "benchmarks" / "peers" / "purejaxrl_ppo.py"
            command = [sys.executable, script, options.purejaxrl.resolve(), json.dumps(work)]
            trainers[name] = Trainer(command, folder / name)
        for name in PRECISIONS:
            trainers[name] = Trainer.of(GAME, on_gpu(envs, steps, width, name), folder / name)
        rates = take_turns(trainers, 2 if options.quick else options.slices, options.seconds)
        work_name = f"{envs} x {steps}, {width} wide"
        result.rows += [{"work": work_name, "contestant": name, "rates": found} for name, found in rates.items()]
        found = {
            "exact": ratio(rates, "fp32", "PureJaxRL fp32"),
            "tensor cores": ratio(rates, "tf32", "PureJaxRL tf32"),
            "bf16": ratio(rates, "bf16", "PureJaxRL tf32"),
        }
        summary[work_name] = found | {"met": min(found["exact"]["low"], found["tensor cores"]["low"]) >= GPU_BAR}
        lines += [
            (work_name, name, f"{median(one):,.0f}", cell(ratio(rates, name, peer)), peer)
            for name, one in rates.items()
            for peer in ["PureJaxRL fp32" if "fp32" in name else "PureJaxRL tf32"]
        ]
        result.say(f"{work_name}: " + ", ".join(f"{name} {median(one) / 1e6:.1f}M" for name, one in rates.items()))
    met = all(one["met"] for one in summary.values())
    text = f"At least {GPU_BAR}x at equal precision: {verdict(met)}."
    return summary, table(("work", "contestant", "steps/s", "ratio", "to"), lines) + f"\n\n{text}"


def main() -> None:
    """Measure and write the result."""
    parser = make_parser(__doc__, seconds=0.3)
    parser.add_argument("--gpu", action="store_true", help="against PureJaxRL on a GPU")
    parser.add_argument("--purejaxrl", type=Path, metavar="FOLDER", help="the folder of PureJaxRL's ppo.py")
    parser.add_argument("--slices", type=int, default=60, help="slices of each training (default: 60)")
    options = parser.parse_args()
    if options.gpu and options.purejaxrl is None:
        parser.error("--gpu needs --purejaxrl FOLDER")
    result = Result(f"native-cartpole{'-gpu' if options.gpu else ''}", options)
    with tempfile.TemporaryDirectory(prefix="native-cartpole-") as name:
        compare = compare_gpu if options.gpu else compare_cpu
        summary, report = compare(result, Path(name), options)
    where = "one GPU" if options.gpu else "the CPU"
    result.close(summary, f"# CartPole as a native game, on {where}\n\n{report}")


if __name__ == "__main__":
    main()
