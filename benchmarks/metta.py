"""MettaGrid: stepping compared with the package's PettingZoo env, training end to end, and learning in 15 minutes.

    .venv/bin/python benchmarks/metta.py [--parts step,train,learn] [--rounds 7] [--seconds 4] [--minutes 15] [--quick]

*step*: one core, one process, the arena's rules, size and objects, and 96 tokens per agent for all contestants, more
than random agents ever see (the package's env fails with too few). Rates are agent-steps per CPU second, including
resets. The bar is 1.8x. The simulator's core alone, without adapter and resets, is the ceiling of any adapter. *train*:
`mettagrid:arena` with its preset (token encoder of width 64, LSTM 128, one epoch) on two cores, without evaluation; the
bar is 30,000 agent-steps/s. *learn*: the same from random weights for some minutes; then the agent and a random agent
play held-out games. The bar is 3x the reward per episode of the random agent.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness import Result, call, make_parser, rates_of, ratios, run_rounds, split_names, table, verdict
from slipstream.api import configure
from slipstream.confidence import median_interval
from slipstream.contracts import empty_rows
from slipstream.envs.metta.worlds import Stage, choose, configure_world
from slipstream.envs.registry import EnvChoice
from slipstream.settings import EnvSettings
from slipstream.system import machine
from slipstream.training.build import build, choose_env
from slipstream.vector.make import make_vector

BARS = {"step": 1.8, "train": 30_000.0, "learn": 3.0}
ENV = "mettagrid:arena"
ENVS = 8
OPTIONS: dict[str, Any] = {"tokens": 96}
"""The same for all contestants."""
WARMED = 3
"""Iterations of warm-up before training is measured."""


def step_ours(rng: np.random.Generator) -> Callable[[float], tuple[int, float]]:
    """Random actions with Slipstream's adapter; CPU seconds."""
    vector = make_vector(EnvChoice(ENV, EnvSettings(options=OPTIONS)), ENVS, seed=0)
    rows = empty_rows(vector.spec, ENVS)
    vector.reset(rows)
    actions = rng.integers(0, 5, (64, len(rows.reward), 1)).astype(np.int32)

    def run(seconds: float) -> tuple[int, float]:
        began, steps = time.process_time(), 0
        while time.process_time() - began < seconds:
            for action in actions:
                vector.step(action, rows)
                steps += len(rows.reward)
        return steps, time.process_time() - began

    return run


def step_core(rng: np.random.Generator) -> Callable[[float], tuple[int, float]]:
    """Random actions with the simulator's core alone; CPU seconds."""
    made = Stage(choose("arena", OPTIONS | {"steps": 65535}))
    agents, shape = made.world.agents, (made.world.agents, made.world.max_tokens, 3)
    game, action = made.make_game(0), np.zeros(agents, np.int32)
    game.set_buffers(np.zeros(shape, np.uint8), *np.zeros((2, agents), np.bool_), np.zeros(agents, np.float32), action)
    actions = rng.integers(0, 5, (64, agents)).astype(np.int32)

    def run(seconds: float) -> tuple[int, float]:
        began, steps = time.process_time(), 0
        while time.process_time() - began < seconds:
            for chosen in actions:
                action[:] = chosen
                game.step()
                steps += agents
        return steps, time.process_time() - began

    return run


def step_theirs(rng: np.random.Generator) -> Callable[[float], tuple[int, float]]:
    """Random actions with the package's PettingZoo env; CPU seconds."""
    from mettagrid.config.mettagrid_config import MettaGridConfig
    from mettagrid.envs.pettingzoo_env import MettaGridPettingZooEnv
    from mettagrid.map_builder.random_map import RandomMapBuilder
    from mettagrid.simulator import Simulator

    world = choose("arena", OPTIONS)
    game = configure_world(world)
    things = {"wall": world.walls, "altar": world.altars}
    game.map_builder = RandomMapBuilder.Config(
        agents=world.agents, width=world.size, height=world.size, border_width=1, objects=things
    )
    game.obs.num_tokens = world.tokens
    env = MettaGridPettingZooEnv(Simulator(), MettaGridConfig(game=game))
    env.reset(seed=0)
    actions = [dict(enumerate(row.tolist())) for row in rng.integers(0, 5, (64, world.agents))]
    played = [0]

    def run(seconds: float) -> tuple[int, float]:
        began, steps = time.process_time(), 0
        while time.process_time() - began < seconds:
            for action in actions:
                env.step(action)
                steps += world.agents
                if not env.agents:
                    played[0] += 1
                    env.reset(seed=played[0])
        return steps, time.process_time() - began

    return run


def measure_steps(options: argparse.Namespace, result: Result) -> tuple[dict[str, Any], list[str]]:
    """All contestants in interleaved rounds, pinned to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    makers = {"slipstream": step_ours, "PettingZoo env": step_theirs, "core alone": step_core}

    def measured(run: Callable[[float], tuple[int, float]]) -> Callable[[int], dict[str, Any]]:
        run(0.5)

        def measure(_: int) -> dict[str, Any]:
            steps, seconds = run(options.seconds)
            return {"seconds": round(seconds, 2), "steps_per_second": round(steps / seconds)}

        return measure

    contestants = {name: measured(make(np.random.default_rng(0))) for name, make in makers.items()}
    run_rounds(result, "step", contestants, options.rounds)
    os.sched_setaffinity(0, before)
    rates = rates_of(result.rows, "step")
    shares, most = (ratios(rates, name, "PettingZoo env") for name in ("slipstream", "core alone"))
    world = choose("arena", OPTIONS)
    lines = [f"## Stepping, one core, {world.agents} agents, {world.tokens} tokens, agent-steps per CPU second", ""]
    lines += [rate_table({name: list(found.values()) for name, found in rates.items()}), ""]
    lines += [f"core alone: {median_interval(most)[0]:.2f} of the PettingZoo env, the ceiling"]
    facts, lines = judge_bar("step", shares, lines)
    return facts | {"ceiling": median_interval(most)[0]}, lines


def measure_training(options: argparse.Namespace, result: Result) -> tuple[dict[str, Any], list[str]]:
    """Train with the preset in this process and its workers."""
    small = {"plan__envs": 2, "ppo__rollout": 16, "ppo__minibatch": 256} if options.quick else {}
    settings = configure(ENV, flags={"every__evaluate": 0, **small}, tuned=False).settings
    parts = build(choose_env(ENV, settings), settings)
    for name, _, applied, why in parts.plan.rows():
        result.say(f"{name} = {applied} ({why})")
    parts.publish(0)
    parts.collector.start(0, None)
    rates: list[float] = []
    version = steps = 0
    while len(rates) < options.rounds:
        began, before = time.perf_counter(), steps
        while steps == before or time.perf_counter() - began < options.seconds:
            rollout = parts.collector.collect(version)
            steps += parts.learner.update(rollout, steps)[0]
            parts.episodes.add(rollout)
            parts.collector.finished_games(version)
            version += 1
            parts.collector.snapshot(version)
            parts.publish(version)
        seconds = time.perf_counter() - began
        if version > WARMED:
            rates.append((steps - before) / seconds)
            row = {"work": "train", "contestant": "slipstream", "round": len(rates) - 1, "seconds": round(seconds, 2)}
            result.add({**row, "steps_per_second": round(rates[-1])})
    parts.close()
    lines = [f"## Training, {machine.cores()} cores, {settings.plan.envs} envs, agent-steps per second", ""]
    lines.append(rate_table({"slipstream": rates}))
    return judge_bar("train", rates, lines)


def measure_learning(options: argparse.Namespace, result: Result) -> tuple[dict[str, Any], list[str]]:
    """Train with the command line, then evaluate the agent, a random and a scripted one on held-out games."""
    quick = ["--preset", "smoke", "--steps", "4096"] if options.quick else ["--minutes", f"{options.minutes:g}"]
    games = "2" if options.quick else "32"
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        trained, seconds = call("train", ENV, *quick, "--set", "every.evaluate=0", "--run", run)
        row = {"work": "learn", "round": 0}
        rate = round(trained["steps"] / seconds)
        result.add({**row, "contestant": "training", "seconds": round(seconds, 2), "steps_per_second": rate})
        found = {}
        for name, agent in (("slipstream", f"run:{run}"), ("random", "random"), ("scripted", "scripted:walker")):
            played, seconds = call("evaluate", agent, "--env", ENV, "--games", games, "--seed", "1234567", "--sampled")
            found[name] = played
            facts = {"seconds": round(seconds, 2), "mean_return": played["mean_return"]}
            result.add({**row, "contestant": name, **facts})
    means = {name: float(played["mean_return"]) for name, played in found.items()}
    lines = ["## Reward per episode and agent, held-out games", ""]
    lines.append(table(("agent", "reward per episode"), [[name, f"{mean:.2f}"] for name, mean in means.items()]))
    lines += ["", f"{trained['steps']:,} agent-steps of training, {games} games each"]
    facts, lines = judge_bar("learn", [means["slipstream"] / max(means["random"], 1e-9)], lines)
    return facts | {"means": means, "steps": trained["steps"]}, lines


def rate_table(rates: dict[str, list[float]]) -> str:
    """A table of medians with their intervals."""
    lines = []
    for name, found in rates.items():
        middle, low, high, _ = median_interval(found)
        cells = (f"{middle:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{min(found):,.0f}", f"{max(found):,.0f}")
        lines.append([name, *cells])
    return table(("what", "median", "95 % interval", "lowest", "highest"), lines)


def judge_bar(part: str, values: list[float], lines: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The median of a part and the verdict on its bar."""
    middle, low, high, _ = median_interval(values) if len(values) > 1 else (values[0], values[0], values[0], 0.0)
    met = middle >= BARS[part]
    text = f"{part}: {middle:,.2f} [{low:,.2f}, {high:,.2f}], bar {BARS[part]:,g}: {verdict(met)}"
    return {"median": middle, "low": low, "high": high, "bar": BARS[part], "met": met}, [*lines, "", text]


def main() -> None:
    """Measure the parts and report the verdicts."""
    parser = make_parser(__doc__, rounds=7, seconds=4.0)
    parser.add_argument("--parts", type=split_names, default=["step", "train", "learn"])
    parser.add_argument("--minutes", type=float, default=15.0)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 2, 0.5
    result = Result("mettagrid-learn" if options.parts == ["learn"] else "mettagrid", options)
    work = {"step": measure_steps, "train": measure_training, "learn": measure_learning}
    summary: dict[str, Any] = {}
    text = ["# MettaGrid", ""]
    for part in options.parts:
        summary[part], lines = work[part](options, result)
        text += [*lines, ""]
    result.close(summary, "\n".join(text).strip())


if __name__ == "__main__":
    main()
