"""From an observation on the host to an action on the host: one CUDA graph, eager torch and torch.compile.

    .venv/bin/python benchmarks/roundtrip.py [--rows 2048] [--repeats 2000] [--budget 40] [--compile] [--quick]

Observations of 44 floats, an MLP of 256 x 256, including sampling. All contestants run in interleaved rounds in one
process until the budget of seconds is spent. torch.compile takes part only with --compile. Without a GPU everything
runs on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness import Result, make_parser, run_rounds, verdict
from slipstream.contracts import ActionSpec, vector_obs
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.gpu_actor import GPUActor
from slipstream.settings import PolicySettings
from slipstream.system.pinned_memory import pin, unpin
from slipstream.system.rng import make_streams
from slipstream.system.slab import Field, Slab

WIDTH, HIDDEN = 44, (256, 256)
SIZES = (3, 3, 2, 2, 2)
BAR_US = 120.0
WARMED = 5
GRAPH = "one CUDA graph, both copies"


def staged(design: Design, rows: int, obs: Any, device: str, graphs: bool) -> Callable[[], None]:
    """Inference of the batched collector for a group, including RNG streams, log-probabilities and values."""
    acting = GPUActor(design, rows, device, graphs=graphs, pinned=True)
    acting.load(design.initial_params_and_stats(0))
    everyone, streams = np.arange(rows), make_streams(0, "act", 0, rows)
    mask, states = np.ones((rows, 0), np.uint8), np.zeros((rows, 0), np.float32)
    action, (log_prob, value) = np.zeros((rows, len(SIZES)), np.int32), np.zeros((2, rows), np.float32)

    def run() -> None:
        acting.act(ActInputs(everyone, obs, mask, states, streams), ActOutputs(action, log_prob, value), True)
        if acting.graph_error:
            raise SystemExit(acting.graph_error)

    return run


def compiled(design: Design, rows: int, obs: Any, device: str) -> Callable[[], None]:
    """torch.compile with its own graphs and torch's RNG."""
    policy = GPUActor(design, rows, device).policy
    mean, scale = torch.zeros(WIDTH, device=device), torch.ones(WIDTH, device=device)
    states, seen = torch.zeros(rows, 0, device=device), torch.from_numpy(obs)

    def choose(given: torch.Tensor) -> torch.Tensor:
        output = policy(given, mean, scale, states)
        parts = torch.split(output.outputs, list(SIZES), -1)
        return torch.stack([(part - torch.empty_like(part).exponential_().log()).argmax(-1) for part in parts], -1)

    fused = torch.compile(choose, mode="reduce-overhead") if device == "cuda" else choose
    out = torch.zeros(rows, len(SIZES), dtype=torch.int64, pin_memory=device == "cuda")

    def run() -> None:
        with torch.inference_mode():
            out.copy_(fused(seen.to(device, non_blocking=True)), non_blocking=True)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def make_contestants(
    given: tuple[Design, int, Any, str], compiling: bool, result: Result
) -> dict[str, Callable[[], None]]:
    """All contestants, compiled, captured and warm."""
    makers: dict[str, Callable[[], Callable[[], None]]] = {
        GRAPH: lambda: staged(*given, graphs=True),
        "eager": lambda: staged(*given, graphs=False),
    }
    if compiling:
        makers["torch.compile reduce-overhead"] = lambda: compiled(*given)
    contestants = {}
    for name, make in makers.items():
        result.say(f"compiling: {name}")
        contestants[name] = make()
        for _ in range(WARMED):
            contestants[name]()
    return contestants


def summarise(times: dict[str, list[float]], title: str) -> tuple[dict[str, Any], str]:
    """Percentiles of every contestant, and the verdict on the bar."""
    lines, summary = [title, "", "| contestant | p50 us | p95 us | p99 us |", "|---|---|---|---|"], dict[str, Any]()
    for name, taken in times.items():
        p50, p95, p99 = np.percentile(taken, [50, 95, 99]).tolist()
        summary[name] = {"p50_us": round(p50, 1), "p95_us": round(p95, 1), "p99_us": round(p99, 1)}
        lines.append(f"| {name} | {p50:.1f} | {p95:.1f} | {p99:.1f} |")
    best = summary[GRAPH]["p50_us"]
    lines += ["", f"p50 with one graph {best:.1f} us, bar {BAR_US:g} us: {verdict(best <= BAR_US)}"]
    return summary, "\n".join(lines)


def main() -> None:
    """Measure all contestants and report the verdict."""
    parser = make_parser(__doc__, rounds=10)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=200, help="per round")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of measuring")
    parser.add_argument("--compile", action="store_true", help="include torch.compile")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.repeats = 2, 5
    device, result = "cuda" if torch.cuda.is_available() else "cpu", Result("roundtrip", options)
    design = Design(vector_obs(WIDTH), ActionSpec("multi_discrete", SIZES), PolicySettings(hidden=HIDDEN))
    slab = Slab({"obs": Field((options.rows, WIDTH), "float32")})
    slab["obs"][:] = np.random.default_rng(0).normal(size=(options.rows, WIDTH))
    if device == "cuda" and (failed := pin(slab)):
        raise SystemExit(failed)
    contestants = make_contestants((design, options.rows, slab["obs"], device), options.compile, result)

    def timed(run: Callable[[], None]) -> Callable[[int], dict[str, Any]]:
        def measure(_: int) -> dict[str, Any]:
            taken = []
            for _ in range(options.repeats):
                began = time.perf_counter()
                run()
                taken.append((time.perf_counter() - began) * 1e6)
            return {"microseconds": [round(t, 1) for t in taken]}

        return measure

    measures = {name: timed(run) for name, run in contestants.items()}
    run_rounds(result, "roundtrip", measures, options.rounds, options.budget)
    if device == "cuda":
        unpin(slab)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for row in result.rows:
        times[row["contestant"]] += row["microseconds"]
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    rounds = 1 + max(row["round"] for row in result.rows)
    summary, text = summarise(times, f"{options.rows} rows of {WIDTH} floats, MLP {HIDDEN}, {where}, {rounds} rounds")
    result.close({"device": where, "rounds": rounds, **summary}, text)


if __name__ == "__main__":
    main()
