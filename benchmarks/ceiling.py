"""Training compared with the ceiling of this machine: every part alone on one core, then all together.

    .venv/bin/python benchmarks/ceiling.py [--cases cartpole-1,cartpole-4,halfcheetah,soccer] [--rounds 5] [--quick]

The ceiling is cores / (t_env + t_inference + epochs x t_update). Each time is that of the fastest implementation, alone
on one core: a bare loop over environments without wrappers (for soccer, its compiled batch; training steps them one by
one too, even if Gymnasium has a vector environment, which is another ceiling); inference for all rows of the case with
the fused kernel, with plain torch (inference mode, one thread) and with torch.compile if there is a C++ compiler; and
gradient steps on the case's minibatch with the same three. A round measures the parts, then trains at lag 0 and lag 1
on all cores; shares are taken within a round. The rows hold all times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from slipstream.policies.design import ActInputs, ActOutputs

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

from case import Case
from contestants import (
    LAGS,
    PROBE_ITERATIONS,
    START_LIMIT_S,
    case_of,
    child_cleanup,
    launch,
    slipstream_program,
    slipstream_settings,
)

from harness import Result, interleave, make_parser, set_flags, split_names, spread, spread_cells, table, verdict

SHARE = 0.60
SOCCER_RATE = 250_000.0
"""Agent-steps per second that soccer 1v1 must reach."""
SOCCER = Case("soccer", envs=512, rollout=64, minibatch=4096, epochs=1, hidden=(128, 128), activation="relu")
CASES = ("cartpole-1", "cartpole-4", "halfcheetah", "soccer")
PARTS = ("env", "inference", "update")
IMPLEMENTATIONS = ("fused", "torch", "compiled")
SLOWEST_S = 600.0
"""Time limit of measuring the parts of a case, including compiling."""


def find(name: str) -> Case:
    """The case of a name. Soccer counts agent-steps, with two rows per env."""
    return SOCCER if name == "soccer" else case_of(name)


def flags_of(case: Case, lag: int) -> list[str]:
    """A case as `key=value` settings; soccer keeps the settings of its preset."""
    if case is not SOCCER:
        return [*slipstream_settings(case, lag)[1::2], "plan.native=false"]  # one by one, as the bare loop steps them
    hidden = json.dumps(list(case.hidden), separators=(",", ":"))
    fixed = {"plan.envs": case.envs, "plan.lag": lag, "ppo.rollout": case.rollout, "ppo.minibatch": case.minibatch}
    fixed |= {"ppo.epochs": case.epochs, "policy.hidden": hidden, "every.evaluate": 0}
    return [f"{key}={value}" for key, value in fixed.items()]


def name_of(case: Case) -> str:
    """The name of the case's environment for slipstream."""
    return case.env if case is SOCCER else f"gymnasium:{case.env}"


def times(work: Callable[[], object], count: int, seconds: float, repeats: int = 5) -> list[float]:
    """Microseconds per unit of a function that does `count` units: one number per repeat."""
    work()
    found = []
    for _ in range(repeats):
        began, calls = time.perf_counter(), 0
        while time.perf_counter() - began < seconds / repeats:
            work()
            calls += 1
        found.append((time.perf_counter() - began) / calls / count * 1e6)
    return found


def time_env(case: Case, seconds: float) -> dict[str, list[float]]:
    """A bare loop with precomputed actions, without wrappers; observations are discarded."""
    if case is SOCCER:
        return {"batch": _time_soccer(case, seconds)}
    import gymnasium
    import numpy as np

    envs = [gymnasium.make(case.env).unwrapped for _ in range(case.envs)]
    random, steps = np.random.default_rng(0), 200
    script: list[list[Any]] = []
    seen = [env.reset(seed=index)[0] for index, env in enumerate(envs)]
    for _ in range(steps):  # CartPole is balanced, as it soon is in training, so that no reset is timed
        balanced: list[Any] = [int(3 * obs[2] + obs[3] > 0) for obs in seen] if case.env == "CartPole-v1" else []
        choices = balanced or [random.uniform(-1, 1, env.action_space.shape).astype(np.float32) for env in envs]
        seen = [env.step(choice)[0] for env, choice in zip(envs, choices, strict=True)]
        script.append(choices)

    def loop() -> None:
        for index, env in enumerate(envs):
            env.reset(seed=index)
        moves = [env.step for env in envs]
        for choices in script:
            for move, choice in zip(moves, choices, strict=True):
                _, _, terminated, truncated, _ = move(choice)
                if terminated or truncated:
                    raise SystemExit("an episode ended early")

    return {"bare loop": times(loop, steps * case.envs, seconds)}


def _time_soccer(case: Case, seconds: float) -> list[float]:
    import numpy as np

    from slipstream.contracts import empty_rows
    from slipstream.envs.soccer.game import game as soccer

    game = soccer.vector(case.envs)
    out = empty_rows(game.spec, case.envs)
    game.reset(out)
    actions = np.random.default_rng(0).integers(0, 18, (16, len(out.obs), 1)).astype(np.int32)

    def loop() -> None:
        for action in actions:
            game.step(action, out)

    return times(loop, len(actions) * len(out.obs), seconds)


def time_policy(case: Case, seconds: float, implementation: str) -> dict[str, list[float]]:
    """Inference for all rows of the case and gradient steps with one implementation, after a warm-up."""
    from slipstream.api import configure
    from slipstream.training.build import build, choose_env

    learner = {"fused": ["plan.learner=fused"], "torch": ["plan.learner=torch"]}
    flags = learner.get(implementation, ["plan.learner=torch", "plan.compile=true"])
    env, alone = name_of(case), ["plan.collector=local", "plan.threads=1"]
    settings = configure(env, flags=[*flags_of(case, 0), *alone, *flags]).settings
    parts = build(choose_env(env, settings), settings)
    try:
        parts.matchmaker.draw_assignments()
        parts.publish(0)
        parts.collector.start(0, None)
        rollout = parts.collector.collect(0)
        inside, run = [0.0], parts.learner.engine.run

        def clocked(*args: Any) -> None:
            began = time.perf_counter()
            run(*args)
            inside[0] += time.perf_counter() - began

        parts.learner.engine.run = clocked
        parts.learner.update(rollout, 0)
        found, samples = [], rollout.reward.size * case.epochs
        for _ in range(5):
            began, updates, inside[0] = time.perf_counter(), 0, 0.0
            while time.perf_counter() - began < seconds / 5:
                parts.learner.update(rollout, 0)
                updates += 1
            found.append(inside[0] / updates / samples * 1e6)
        if implementation == "compiled" and not parts.learner.engine.compiled:
            return {}
        return {"update": found, "inference": _time_acting(parts, rollout, seconds, implementation)}
    finally:
        parts.close()


def _time_acting(parts: Any, rollout: Any, seconds: float, implementation: str) -> list[float]:
    """Microseconds per row of inference for all rows of one step."""
    import numpy as np

    from slipstream.policies.fused_actor import make_actor
    from slipstream.system.rng import make_streams

    if implementation != "fused":
        return times(
            _plain_torch(parts.design, rollout.obs[0], implementation == "compiled"), rollout.reward.shape[1], seconds
        )
    rows, acting = np.arange(rollout.reward.shape[1]), make_actor(parts.design)
    acting.load(parts.learner.params_and_stats)
    streams, states = make_streams(0, "act", 0, len(rows)), np.zeros((len(rows), parts.design.state_size), np.float32)
    action, log_prob, value = rollout.action[0].copy(), rollout.log_prob[0].copy(), rollout.value[0].copy()
    obs, mask = rollout.obs[0], rollout.mask[0]

    def act() -> None:
        acting.act(ActInputs(rows, obs, mask, states, streams), ActOutputs(action, log_prob, value), True)

    return times(act, len(rows), seconds)


def _plain_torch(design: Any, obs: Any, compiled: bool) -> Callable[[], object]:
    """Inference with little torch: no distributions, no gradients, one thread, sampling by one argmax."""
    import itertools

    import torch
    from torch import nn

    torch.set_num_threads(1)
    policy, discrete = design.policy, design.action.kind != "continuous"
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[policy.activation]
    sizes = [(a, b) for a, b in itertools.pairwise((obs.shape[1], *policy.hidden))]

    def body() -> nn.Sequential:
        return nn.Sequential(*(part for a, b in sizes for part in (nn.Linear(a, b), activation())))

    actor, critic = body(), nn.Identity() if policy.shared else body()
    logits_head, value_head = nn.Linear(sizes[-1][1], design.outputs), nn.Linear(sizes[-1][1], 1)
    log_std, seen = torch.zeros(design.outputs), torch.from_numpy(obs.copy())

    def act(given: Any) -> tuple[Any, Any, Any]:
        hidden = actor(given)
        logits, value = logits_head(hidden), value_head(hidden if policy.shared else critic(given))
        if discrete:
            log_prob = torch.log_softmax(logits, 1)
            action = (log_prob.exp() / torch.empty_like(log_prob).exponential_()).argmax(1, keepdim=True)
            return action, log_prob.gather(1, action), value
        noise = torch.randn_like(logits)
        return logits + noise * log_std.exp(), -(0.5 * noise * noise + log_std + 0.9189385).sum(1), value

    chosen = torch.compile(act) if compiled else act

    def step() -> object:
        with torch.inference_mode():
            return [part.numpy() for part in chosen(seen)]

    return step


def measure_alone(name: str, seconds: float) -> None:
    """Print the times of a case's parts by implementation as one JSON object, on one core with one thread."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    case = find(name)
    found: dict[str, dict[str, list[float]]] = {"env": time_env(case, seconds), "inference": {}, "update": {}}
    for implementation in IMPLEMENTATIONS if shutil.which("g++") else IMPLEMENTATIONS[:2]:
        for part, raw in time_policy(case, seconds, implementation).items():
            found[part][implementation] = raw
    print(json.dumps({"times_us": found}))


def alone(name: str, seconds: float) -> dict[str, Any]:
    """The parts of a case with their fastest implementation: microseconds, implementations and all times."""
    command = [sys.executable, __file__, "--alone", name, "--seconds", str(seconds)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    done = launch(command, SLOWEST_S, threads)
    if done.failure:
        return {"failed": done.failure}
    raw = done.row["times_us"]
    best = {part: min(raw[part], key=lambda name: median(raw[part][name])) for part in PARTS}
    return {"fastest": {part: median(raw[part][best[part]]) for part in PARTS}, "ways": best, "times_us": raw}


def train(name: str, lag: int, steps: int, seed: int, extra: list[str]) -> dict[str, Any]:
    """Train a case for a number of steps on all cores."""
    case = find(name)
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        command = [*slipstream_program(), "train", name_of(case), "--steps", str(steps), "--seed", str(seed)]
        command += ["--run", f"{folder}/run", "--json", "--no-tuned", *set_flags([*flags_of(case, lag), *extra])]
        done = launch(command, START_LIMIT_S + SLOWEST_S)
    return {"failed": done.failure} if done.failure else {key: done.row[key] for key in ("steps", "steps_per_second")}


def measure(options: argparse.Namespace, result: Result) -> None:
    """In every round, measure the parts alone, then train; compute the share of the ceiling."""
    from slipstream.system.machine import cores

    rates: dict[tuple[str, int], float] = {}
    for turn, name in interleave(options.rounds, options.cases):
        case, rows = find(name), 2 if name == "soccer" else 1
        result.gate()
        parts = alone(name, options.seconds / 5)
        result.add({"work": name, "contestant": "alone", "round": turn, **parts})
        for lag in LAGS:
            if (name, lag) not in rates:
                probe = train(name, lag, PROBE_ITERATIONS * case.batch * rows, turn, options.set)
                rates[name, lag] = probe.get("steps_per_second") or 1000.0
            result.gate()
            steps = max(2, round(rates[name, lag] * options.seconds / (case.batch * rows))) * case.batch * rows
            row = train(name, lag, steps, turn, options.set)
            if "failed" not in parts and "failed" not in row:
                us = parts["fastest"]
                row["ceiling"] = cores() * 1e6 / (us["env"] + us["inference"] + case.epochs * us["update"])
                row["share"] = row["steps_per_second"] / row["ceiling"]
            result.add({"work": name, "contestant": f"lag{lag}", "round": turn, **row})
    result.close(*_summary(options.cases, result.rows))


def _summary(cases: list[str], rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Shares and times by case, and the report."""
    summary: dict[str, Any] = {}
    parts, shares = [], []
    for name in cases:
        mine = [row for row in rows if row["work"] == name and "failed" not in row]
        measured = [row for row in mine if row["contestant"] == "alone"]
        found: dict[str, Any] = {"us": {}, "lags": {}}
        for part in PARTS if measured else ():
            one = spread([row["fastest"][part] for row in measured])
            found["us"][part] = one | {"way": measured[0]["ways"][part]}
            parts.append([name, part, measured[0]["ways"][part], *spread_cells(one, 3)])
        for lag in LAGS:
            runs = [row for row in mine if row["contestant"] == f"lag{lag}" and "share" in row]
            rate, share = spread([row["steps_per_second"] for row in runs]), spread([row["share"] for row in runs])
            found["lags"][f"lag{lag}"] = {"rate": rate, "share": share}
            ceiling = spread_cells(spread([row["ceiling"] for row in runs]), 0)[0]
            met = "-" if not runs else "yes" if share["median"] >= SHARE else "no"
            shares.append([name, lag, ceiling, *spread_cells(rate, 0)[::2], *spread_cells(share, 3)[::2], met])
        summary[name] = found
    failed = sorted({f"- {row['work']} {row['contestant']}: {row['failed']}" for row in rows if "failed" in row})
    text = ["# Training compared with the ceiling of this machine", f"Bar: {SHARE:.0%} of the ceiling."]
    if any(row.get("share", 0.0) > 1.0 for row in rows):
        text.append("A share above 1 means that the machine was busy while the parts were measured: measure again.")
    header = ("case", "lag", "ceiling steps/s", "steps/s", "95 %", "share", "95 %", "met")
    text += [table(header, shares), "## Parts alone on one core, microseconds (per step, row and sample)"]
    text += [table(("case", "part", "fastest", "median", "min..max", "95 %"), parts), *failed]
    if "soccer" in summary and (best := summary["soccer"]["lags"]["lag0"]["rate"]).get("median"):
        met = verdict(best["median"] >= SOCCER_RATE)
        text.append(f"Soccer 1v1 at lag 0: {best['median']:,.0f} agent-steps/s (bar {SOCCER_RATE:,.0f}: {met}).")
    return summary, "\n\n".join(text)


def main() -> None:
    """Measure and write the result."""
    parser = make_parser(__doc__, rounds=5, seconds=15.0)
    parser.add_argument("--cases", type=split_names, default=list(CASES), help=f"of {','.join(CASES)}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further slipstream settings")
    parser.add_argument("--alone", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 2.0
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"unknown cases {sorted(unknown)}; choose from {list(CASES)}")
    if options.alone:
        measure_alone(options.alone, options.seconds)
        return
    with child_cleanup():
        measure(options, Result("ceiling", options))


if __name__ == "__main__":
    main()
