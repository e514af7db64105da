"""Host observation to action on the host: one CUDA graph with both copies, against eager torch and torch.compile.

    .venv/bin/python benchmarks/roundtrip.py [--rows 2048] [--repeats 2000] [--quick]

Soccer-like observations of 44 numbers, an MLP of 256 x 256, sampling included. All ways are measured in turns, round by
round, in one process; without a GPU (--quick for a look at the script) the CPU plays its part.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from record import Record, dated
from slipstream.collect.pinned import pin, unpin
from slipstream.core.contracts import ActionSpec, vector_obs
from slipstream.core.slab import Field, Slab
from slipstream.core.streams import make_streams
from slipstream.models.design import Design
from slipstream.models.staged import StagedActing
from slipstream.settings import PolicySettings

WIDTH, HIDDEN = 44, (256, 256)
SIZES = (3, 3, 2, 2, 2)
BAR_US = 120.0
ROUNDS = 10


def staged(design: Design, rows: int, obs: Any, device: str, graphs: bool) -> Callable[[], None]:
    """What the batched collector does for a group: streams of chance, log-probabilities and values included."""
    acting = StagedActing(design, rows, device, graphs=graphs, pinned=True)
    acting.load(design.first_pack(0))
    everyone, streams = np.arange(rows), make_streams(0, "act", 0, rows)
    mask, states = np.ones((rows, 0), np.uint8), np.zeros((rows, 0), np.float32)
    action, (logp, value) = np.zeros((rows, len(SIZES)), np.int32), np.zeros((2, rows), np.float32)
    return lambda: acting.act(everyone, obs, mask, streams, True, action, logp, value, states)


def compiled(design: Design, rows: int, obs: Any, device: str) -> Callable[[], None]:
    """torch.compile with its own graphs, and torch's own chance: what one would write without this package."""
    policy = StagedActing(design, rows, device).policy
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


def main() -> None:
    """Measure all ways in turns and say whether the graph is within its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=None, help="where the record goes")
    parser.add_argument("--quick", action="store_true", help="few repeats, no record")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    design = Design(vector_obs(WIDTH), ActionSpec("multi_discrete", SIZES), PolicySettings(hidden=HIDDEN))
    slab = Slab({"obs": Field((options.rows, WIDTH), "float32")})
    slab["obs"][:] = np.random.default_rng(0).normal(size=(options.rows, WIDTH))
    if device == "cuda" and (failed := pin(slab)):
        raise SystemExit(failed)
    given = (design, options.rows, slab["obs"], device)
    ways: dict[str, Callable[[], None]] = {
        "one CUDA graph, both copies": staged(*given, graphs=True), "eager": staged(*given, graphs=False),
        "torch.compile reduce-overhead": compiled(*given),
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in ways}
    each = 5 if options.quick else options.repeats // ROUNDS
    for run in ways.values():
        for _ in range(5):
            run()
    for _ in range(2 if options.quick else ROUNDS):
        for name, run in ways.items():
            for _ in range(each):
                began = time.perf_counter()
                run()
                times[name].append((time.perf_counter() - began) * 1e6)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    lines = [f"{options.rows} rows of {WIDTH} numbers, MLP {HIDDEN}, {where}", "", "| way | p50 us | p95 us | p99 us |",
             "|---|---|---|---|"]  # fmt: skip
    summary: dict[str, Any] = {"device": where}
    for name, taken in times.items():
        p50, p95, p99 = np.percentile(taken, [50, 95, 99])
        summary[name] = {"p50_us": round(p50, 1), "p95_us": round(p95, 1), "p99_us": round(p99, 1)}
        lines.append(f"| {name} | {p50:.1f} | {p95:.1f} | {p99:.1f} |")
    best = summary["one CUDA graph, both copies"]["p50_us"]
    lines += ["", f"p50 with one graph {best:.1f} us, bar {BAR_US:g} us: {'held' if best <= BAR_US else 'MISSED'}"]
    if device == "cuda":
        unpin(slab)
    if options.quick:
        print("\n".join(lines))
        return
    record = Record(options.out or dated("roundtrip"))
    record.begin()
    record.load()
    for name, taken in times.items():
        record.add({"work": "roundtrip", "contestant": name, "microseconds": [round(t, 1) for t in taken]})
    record.close(summary, "\n".join(lines))


if __name__ == "__main__":
    main()
