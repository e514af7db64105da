"""MettaGrid: stepping beside the package's own PettingZoo env, training end to end, and what is learned in 15 minutes.

    .venv/bin/python benchmarks/metta.py [--parts step,train,learn] [--rounds 7] [--seconds 4] [--minutes 15] [--quick]

*step*: one core, one process, the arena's rules, size and things, and 96 tokens per agent for both, more than random
agents ever see in it (the package's own env fails where they are too few). Rounds take turns; rates are agent-steps per
CPU second, new games included. The bar is 1.8x. The simulator's core alone, without adapter or new games, is measured
beside them: what no adapter on this core can exceed, whatever the bar. *train*: `mettagrid:arena` by its preset
(token encoder of width 64, LSTM 128, one epoch) on two cores, without evaluation; the bar is 30,000 agent-steps/s.
*learn*: the same, from nothing, for so many minutes; then the agent and a random one play games that neither has seen.
The bar is 3x the random one's reward per episode.
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

from record import Progress, Record, call, dated
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
"""As many for both sides."""
WARMED = 3
"""Iterations before training is measured."""


def step_ours(rng: np.random.Generator) -> Callable[[float], tuple[int, float]]:
    """Random play by rows; CPU seconds."""
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
    """Random play by the simulator's core and nothing else; CPU seconds."""
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
    """Random play by the package's PettingZoo env, as its users write it; CPU seconds."""
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


def measure_steps(options: argparse.Namespace, progress: Progress, record: Record) -> tuple[dict[str, Any], list[str]]:
    """Both in turn, pinned to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    makers = {"slipstream": step_ours, "PettingZoo env": step_theirs, "core alone": step_core}
    work = {name: make(np.random.default_rng(0)) for name, make in makers.items()}
    rates: dict[str, list[float]] = {name: [] for name in work}
    for run in work.values():
        run(0.5)
    for number in range(options.rounds):
        for name, run in work.items():
            steps, seconds = run(options.seconds)
            rates[name].append(steps / seconds)
            note(options, progress, record, "step", name, number, seconds, steps / seconds)
    os.sched_setaffinity(0, before)
    shares, most = (
        [one / other for one, other in zip(rates[name], rates["PettingZoo env"], strict=True)]
        for name in ("slipstream", "core alone")
    )
    world = choose("arena", OPTIONS)
    lines = [f"## Stepping, one core, {world.agents} agents, {world.tokens} tokens, agent-steps per CPU second", ""]
    lines += [*tell_rates(rates), "", f"core alone: {median_interval(most)[0]:.2f} of the PettingZoo env, the ceiling"]
    facts, lines = tell_share("step", shares, lines)
    return facts | {"ceiling": median_interval(most)[0]}, lines


def measure_training(
    options: argparse.Namespace, progress: Progress, record: Record
) -> tuple[dict[str, Any], list[str]]:
    """The preset, end to end, in this process and its workers."""
    small = {"plan__envs": 2, "ppo__rollout": 16, "ppo__minibatch": 256} if options.quick else {}
    settings = configure(ENV, flags={"every__evaluate": 0, **small}, tuned=False).settings
    parts = build(choose_env(ENV, settings), settings)
    for name, _, applied, why in parts.plan.rows():
        progress.say(f"{name} = {applied} ({why})")
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
            note(options, progress, record, "train", "slipstream", len(rates) - 1, seconds, rates[-1])
    parts.close()
    lines = [f"## Training, {machine.cores()} cores, {settings.plan.envs} envs, agent-steps per second", ""]
    lines += tell_rates({"slipstream": rates})
    return tell_share("train", rates, lines)


def measure_learning(
    options: argparse.Namespace, progress: Progress, record: Record
) -> tuple[dict[str, Any], list[str]]:
    """Train by the command line, then play games of other seeds, and let a random agent play the same."""
    quick = ["--preset", "smoke", "--steps", "4096"] if options.quick else ["--minutes", f"{options.minutes:g}"]
    games = "2" if options.quick else "32"
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        told, seconds = call("train", ENV, *quick, "--set", "every.evaluate=0", "--run", run)
        note(options, progress, record, "learn", "training", 0, seconds, told["steps"] / seconds)
        found = {}
        for name, agent in (("slipstream", f"run:{run}"), ("random", "random"), ("scripted", "scripted:walker")):
            result, seconds = call("evaluate", agent, "--env", ENV, "--games", games, "--seed", "1234567", "--sampled")
            found[name] = result
            note(options, progress, record, "learn", name, 0, seconds, 0.0, result["mean_return"])
    means = {name: float(result["mean_return"]) for name, result in found.items()}
    lines = ["## Reward per episode and agent, games of other seeds", "", "| who | reward per episode |", "|---|---|"]
    lines += [f"| {name} | {mean:.2f} |" for name, mean in means.items()]
    lines += ["", f"{told['steps']:,} agent-steps of training, {games} games each"]
    facts, lines = tell_share("learn", [means["slipstream"] / max(means["random"], 1e-9)], lines)
    return facts | {"means": means, "steps": told["steps"]}, lines


def note(
    options: argparse.Namespace, progress: Progress, record: Record, work: str, name: str, number: int, seconds: float,
    rate: float, mean_return: float | None = None,
) -> None:  # fmt: skip
    """Say one measurement, and keep it unless this is a quick look."""
    told = f"{rate:,.0f} agent-steps/s" if mean_return is None else f"return {mean_return:.2f}"
    progress.say(f"{work}, round {number + 1}: {name}: {told}")
    if not options.quick:
        record.load()
        row = {"work": work, "contestant": name, "round": number, "seconds": round(seconds, 2)}
        row |= {"steps_per_second": round(rate)} if mean_return is None else {"mean_return": mean_return}
        record.add(row)


def tell_rates(rates: dict[str, list[float]]) -> list[str]:
    """A table of medians with their intervals."""
    lines = ["| what | median | 95 % interval | lowest | highest |", "|---|---|---|---|---|"]
    for name, found in rates.items():
        middle, low, high, _ = median_interval(found)
        lines.append(f"| {name} | {middle:,.0f} | {low:,.0f} to {high:,.0f} | {min(found):,.0f} | {max(found):,.0f} |")
    return lines


def tell_share(part: str, values: list[float], lines: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The part's number against its bar."""
    middle, low, high, _ = median_interval(values) if len(values) > 1 else (values[0], values[0], values[0], 0.0)
    held = middle >= BARS[part]
    said = f"{part}: {middle:,.2f} [{low:,.2f}, {high:,.2f}], bar {BARS[part]:,g}: {'held' if held else 'MISSED'}"
    return {"median": middle, "low": low, "high": high, "bar": BARS[part], "held": held}, [*lines, "", said]


def main() -> None:
    """Measure the parts asked for and say which bars are held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="step,train,learn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--out", type=Path, default=None, help="where the record goes")
    parser.add_argument("--quick", action="store_true", help="a small one, no record")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 2, 0.5
    progress, record = Progress(0.0), Record(options.out or dated("mettagrid"))
    if not options.quick:
        record.begin()
    work = {"step": measure_steps, "train": measure_training, "learn": measure_learning}
    summary: dict[str, Any] = {}
    text = ["# MettaGrid", ""]
    for part in options.parts.split(","):
        summary[part], lines = work[part](options, progress, record)
        text += [*lines, ""]
    if options.quick:
        print("\n".join(text))
    else:
        record.close(summary, "\n".join(text))


if __name__ == "__main__":
    main()
