"""Host observation to action on the host: one CUDA graph with both copies, against eager torch and torch.compile.

    .venv/bin/python benchmarks/roundtrip.py [--rows 2048] [--repeats 2000] [--budget 40] [--compile] [--quick]

Soccer-like observations of 44 numbers, an MLP of 256 x 256, sampling included. All ways are measured in turns, round by
round, in one process, until the rounds are done or the budget of seconds is spent; every round is written down at once.
torch.compile takes its time to compile, so it takes part only if asked to. Without a GPU (--quick for a look at the
script) the CPU plays its part.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from record import Progress, Record, dated
from slipstream.contracts import ActionSpec, vector_obs
from slipstream.policies.design import Design
from slipstream.policies.gpu_actor import GPUActor
from slipstream.settings import PolicySettings
from slipstream.system.pinned_memory import pin, unpin
from slipstream.system.rng import make_streams
from slipstream.system.slab import Field, Slab

WIDTH, HIDDEN = 44, (256, 256)
SIZES = (3, 3, 2, 2, 2)
BAR_US = 120.0
ROUNDS, WARMED = 10, 5
GRAPH = "one CUDA graph, both copies"


def staged(design: Design, rows: int, obs: Any, device: str, graphs: bool) -> Callable[[], None]:
    """What the batched collector does for a group: streams of chance, log-probabilities and values included."""
    acting = GPUActor(design, rows, device, graphs=graphs, pinned=True)
    acting.load(design.initial_params_and_stats(0))
    everyone, streams = np.arange(rows), make_streams(0, "act", 0, rows)
    mask, states = np.ones((rows, 0), np.uint8), np.zeros((rows, 0), np.float32)
    action, (log_prob, value) = np.zeros((rows, len(SIZES)), np.int32), np.zeros((2, rows), np.float32)

    def run() -> None:
        acting.act(everyone, obs, mask, streams, True, action, log_prob, value, states)
        if acting.graph_error:
            raise SystemExit(acting.graph_error)

    return run


def compiled(design: Design, rows: int, obs: Any, device: str) -> Callable[[], None]:
    """torch.compile with its own graphs, and torch's own chance: what one would write without this package."""
    policy = GPUActor(design, rows, device).policy
    mean, scale = torch.zeros(WIDTH, device=device), torch.ones(WIDTH, device=device)
    states, seen = torch.zeros(rows, 0, device=device), torch.from_numpy(obs)

    def choose(given: torch.Tensor) -> torch.Tensor:
        told = policy(given, mean, scale, states)
        parts = torch.split(told.outputs, list(SIZES), -1)
        return torch.stack([(part - torch.empty_like(part).exponential_().log()).argmax(-1) for part in parts], -1)

    fused = torch.compile(choose, mode="reduce-overhead") if device == "cuda" else choose
    out = torch.zeros(rows, len(SIZES), dtype=torch.int64, pin_memory=device == "cuda")

    def run() -> None:
        with torch.inference_mode():
            out.copy_(fused(seen.to(device, non_blocking=True)), non_blocking=True)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def make_ways(
    given: tuple[Design, int, Any, str], compiling: bool, progress: Progress
) -> dict[str, Callable[[], None]]:
    """Every way that is measured, compiled, captured and warm."""
    makers: dict[str, Callable[[], Callable[[], None]]] = {
        GRAPH: lambda: staged(*given, graphs=True), "eager": lambda: staged(*given, graphs=False),
    }  # fmt: skip
    if compiling:
        makers["torch.compile reduce-overhead"] = lambda: compiled(*given)
    ways = {}
    for name, make in makers.items():
        progress.say(f"compiling: {name}")
        ways[name] = make()
        for _ in range(WARMED):
            ways[name]()
    return ways


def summarise(times: dict[str, list[float]], title: str) -> tuple[dict[str, Any], str]:
    """Percentiles of every way, and whether the graph is within its bar."""
    lines, summary = [title, "", "| way | p50 us | p95 us | p99 us |", "|---|---|---|---|"], dict[str, Any]()
    for name, taken in times.items():
        p50, p95, p99 = np.percentile(taken, [50, 95, 99]).tolist()
        summary[name] = {"p50_us": round(p50, 1), "p95_us": round(p95, 1), "p99_us": round(p99, 1)}
        lines.append(f"| {name} | {p50:.1f} | {p95:.1f} | {p99:.1f} |")
    best = summary[GRAPH]["p50_us"]
    lines += ["", f"p50 with one graph {best:.1f} us, bar {BAR_US:g} us: {'held' if best <= BAR_US else 'MISSED'}"]
    return summary, "\n".join(lines)


def main() -> None:
    """Measure all ways in turns and say whether the graph is within its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of measuring")
    parser.add_argument("--compile", action="store_true", help="torch.compile takes part")
    parser.add_argument("--out", type=Path, default=None, help="where the record goes")
    parser.add_argument("--quick", action="store_true", help="few repeats, no record")
    options = parser.parse_args()
    device, progress = "cuda" if torch.cuda.is_available() else "cpu", Progress(options.budget)
    record = Record(options.out or dated("roundtrip"))
    if not options.quick:
        record.begin()
    design = Design(vector_obs(WIDTH), ActionSpec("multi_discrete", SIZES), PolicySettings(hidden=HIDDEN))
    slab = Slab({"obs": Field((options.rows, WIDTH), "float32")})
    slab["obs"][:] = np.random.default_rng(0).normal(size=(options.rows, WIDTH))
    if device == "cuda" and (failed := pin(slab)):
        raise SystemExit(failed)
    given = (design, options.rows, slab["obs"], device)
    ways = make_ways(given, options.compile, progress)
    each = 5 if options.quick else options.repeats // ROUNDS
    rounds, done = 2 if options.quick else ROUNDS, 0
    times: dict[str, list[float]] = {name: [] for name in ways}
    progress.measure()
    while progress.allows(done, rounds):
        for name, run in ways.items():
            taken = []
            for _ in range(each):
                began = time.perf_counter()
                run()
                taken.append((time.perf_counter() - began) * 1e6)
            times[name] += taken
            progress.say(f"round {done + 1} of {rounds}: {name}: p50 {np.median(taken):.1f} us")
            if not options.quick:
                record.load()
                record.add({"work": "roundtrip", "contestant": name, "round": done,
                            "microseconds": [round(t, 1) for t in taken]})  # fmt: skip
        done += 1
    if device == "cuda":
        unpin(slab)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    summary, text = summarise(times, f"{options.rows} rows of {WIDTH} numbers, MLP {HIDDEN}, {where}, {done} rounds")
    if options.quick:
        print(text)
    else:
        record.close({"device": where, "rounds": done, **summary}, text)


if __name__ == "__main__":
    main()
