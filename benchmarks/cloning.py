"""Behaviour cloning: samples per second compared with `imitation`, and memory and speed on 10 GB of demos.

    .venv/bin/python benchmarks/cloning.py --part peers [--rounds 5] [--epochs 10] [--batches 256,4096]
    .venv/bin/python benchmarks/cloning.py --part pixels [--rounds 3] [--gb 10] [--windows 2] [--disk DIR]

One run at a time, in interleaved rounds; ratios are taken within a round. Start-up, compiling and the first epoch (of
pixels: the first window) are not timed.

`peers` makes 100,000 transitions whose actions come from a fixed random network. All contestants get the same training
and validation episodes. `pixels` writes images to disk and learns from them window by window, with and without the
files in the page cache, compared with a set that fits in memory. The anonymous memory of all processes is sampled 20
times per second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

import numpy as np
from contestants import (
    SCRIPTS,
    VENVS,
    child_cleanup,
    install,
    interpreter,
    launch,
    say,
    search_path,
    slipstream_program,
    slipstream_version,
    version_of,
)

from harness import ROOT, Result, interleave, make_parser, set_flags, spread, spread_cells, table, verdict
from pixels import LENGTH, NETWORK, SIDE, MemoryMonitor, cached_share, drop_cache, fill_cache, new_shard, write_pixels
from slipstream.contracts import ActionSpec, vector_obs
from slipstream.demos.edit import split
from slipstream.demos.format import TRUNCATED, Schema
from slipstream.demos.reader import Demos

OURS = "slipstream"
LIMIT_S = 900.0

STEPS, FLOATS, ACTIONS, TEACHER = 100_000, 32, 8, 64
HELD_OUT = 0.1
HIDDEN, ACTIVATION, LEARNING_RATE = [256, 256], "relu", 1e-3
LOADERS = ("transitions", "batches")
SPEED_BAR = 3.0
ACCURACY_SLACK = 0.005
"""Difference in accuracy that counts as equal."""

MEMORY_BAR = 2e9
PIXELS_BAR = 0.7
FITS = "fits"
CACHES = {
    FITS: "small set, in memory",
    "cached": "large set, files in the page cache",
    "cold": "large set, from disk",
    "cold, ahead": "large set, from disk, next window read by a thread",
}


def slipstream_facts() -> dict[str, Any]:
    """Versions of Slipstream and its libraries."""
    return {
        "version": slipstream_version(),
        "versions": {package: version_of(package) for package in ("torch", "numpy", "numba")},
    }


def write_vectors(folder: Path) -> None:
    """Demos of a random walk, with the actions of a random network with one hidden layer."""
    random = np.random.default_rng(0)
    episodes, keep = STEPS // LENGTH, np.float32(0.9)
    walk = random.standard_normal((episodes, LENGTH + 1, FLOATS), np.float32)
    for t in range(LENGTH):
        walk[:, t + 1] = keep * walk[:, t] + np.sqrt(1 - keep * keep) * walk[:, t + 1]
    first, last = random.standard_normal((FLOATS, TEACHER)), random.standard_normal((TEACHER, ACTIONS))
    shard = new_shard(folder, Schema("teacher", vector_obs(FLOATS), ActionSpec("discrete", (ACTIONS,))))
    for number, obs in enumerate(walk):
        action = np.argmax(np.tanh(obs[:-1] @ first / np.sqrt(FLOATS)) @ last, axis=1)
        values = {"obs": obs, "action": action[:, None], "reward": np.ones(LENGTH, np.float32)}
        shard.add(values, game=number, ended=TRUNCATED)
    shard.close()


def save_split(demos: Path, seed: int, out: Path) -> dict[str, int]:
    """Save the train and validation parts of this seed for the peer; their sizes."""
    parts = dict(zip(("train", "held"), split(Demos.open(demos), HELD_OUT, seed), strict=True))
    arrays = {}
    for name, part in parts.items():
        columns = part.load(["obs", "action"])
        arrays |= {f"{name}_obs": columns["obs"], f"{name}_acts": columns["action"][:, 0].astype(np.int64)}
    np.savez(out, **arrays)
    return {f"{name}_samples": part.steps for name, part in parts.items()}


def clone(demos: Path, batch: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Clone with the command line; the rate without the first epoch, and the accuracy of the last epoch."""
    settings = {
        "clone.learning_rate": LEARNING_RATE,
        "clone.held_out": HELD_OUT,
        "clone.value_coef": 0,
        "clone.entropy_coef": 0,
        "clone.weight_decay": 0,
        "clone.max_grad_norm": 1e9,  # the peer clips no gradient
        "clone.normalise_obs": "false",
        "clone.patience": options.epochs,
        "policy.hidden": json.dumps(HIDDEN, separators=(",", ":")),
        "policy.activation": ACTIVATION,
    }
    words = set_flags([*(f"{key}={value}" for key, value in settings.items()), *options.set])
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        run = Path(folder) / "run"
        command = [*slipstream_program(), "clone", str(demos), "--batch", str(batch), "--epochs", str(options.epochs)]
        done = launch([*command, "--seed", str(seed), "--run", str(run), "--json", *words], LIMIT_S, search_path())
        if done.failure:
            return {"failed": done.failure}
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        state = json.loads(max(run.glob("checkpoints/*/state.json")).read_text())
    seconds = sum(row["time/epoch_s"] for row in rows[1:])
    samples = rows[-1]["steps"] - rows[0]["steps"]
    return {
        **slipstream_facts(),
        "threads": state["plan"]["threads"],
        "epochs": len(rows),
        "samples": samples,
        "seconds": round(seconds, 4),
        "samples_per_second": round(samples / seconds, 1),
        "accuracy": rows[-1]["clone/accuracy"],
        "wall_seconds": round(done.wall_seconds, 2),
    }


def imitate(one: str, data: Path, batch: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the peer's script with its own interpreter."""
    _, loader, threads = one.split("-")
    python = options.python or str(VENVS / "imitation" / "bin" / "python")
    command = [python, str(SCRIPTS / "imitation_bc.py"), str(data), "--loader", loader, "--threads", threads]
    command += ["--batch", str(batch), "--epochs", str(options.epochs), "--seed", str(seed)]
    command += ["--actions", str(ACTIONS), "--hidden", json.dumps(HIDDEN), "--activation", ACTIVATION]
    done = launch([*command, "--learning-rate", str(LEARNING_RATE)], LIMIT_S, search_path())
    return {"failed": done.failure} if done.failure else {**done.row, "wall_seconds": round(done.wall_seconds, 2)}


def run_peers(options: argparse.Namespace, result: Result) -> None:
    """All contestants with all batch sizes, in interleaved rounds."""
    broken = None if options.python else install("imitation")
    everyone = [OURS, *(f"imitation-{loader}-{count}" for loader in LOADERS for count in options.threads)]
    with tempfile.TemporaryDirectory(prefix="cloning-") as name:
        demos, data = Path(name) / "demos", Path(name) / "split.npz"
        write_vectors(demos)
        for turn, (batch, one) in interleave(options.rounds, product(options.batches, everyone)):
            sizes = save_split(demos, turn, data)
            result.gate()
            if one == OURS:
                row = clone(demos, batch, turn, options)
            else:
                row = {"failed": broken} if broken else imitate(one, data, batch, turn, options)
            peer = one.partition("-")[0]
            about = {"work": f"batch {batch}", "contestant": one, "peer": peer, "round": turn, "batch": batch}
            result.add({**row, **about, **sizes})
    summary = {
        f"batch {batch}": rank([row for row in result.rows if row["batch"] == batch]) for batch in options.batches
    }
    result.close(summary, peers_page(summary, options))


def rank(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rates and accuracies of each contestant; ratios to each loader of the peer within a round."""
    found: dict[str, dict[int, dict[str, Any]]] = {row["contestant"]: {} for row in rows}
    ranking: dict[str, Any] = {"contestants": {}, "against": {}}
    for row in rows:
        if "failed" not in row:
            found[row["contestant"]][row["round"]] = row
    for one, turns in found.items():
        facts = {key: spread([row[key] for row in turns.values()]) for key in ("samples_per_second", "accuracy")}
        failed = sorted({row["failed"] for row in rows if row["contestant"] == one and "failed" in row})
        ranking["contestants"][one] = {**facts, "failed": failed}
    for loader in LOADERS:
        peers = {
            one: median(row["samples_per_second"] for row in turns.values())
            for one, turns in found.items()
            if turns and f"-{loader}-" in one
        }
        best = max(peers, key=lambda one: peers[one], default=None)
        shared = sorted(set(found.get(OURS, {})) & set(found[best])) if best else []
        if shared:
            ours, theirs = ([found[one][turn] for turn in shared] for one in (OURS, best))
            both = list(zip(ours, theirs, strict=True))
            ratio = spread([mine["samples_per_second"] / other["samples_per_second"] for mine, other in both])
            gap = spread([mine["accuracy"] - other["accuracy"] for mine, other in both])
            met = ratio["median"] >= SPEED_BAR and gap["median"] >= -ACCURACY_SLACK
            ranking["against"][best] = {"ratio": ratio, "accuracy_gap": gap, "met": met}
    return ranking


def peers_page(summary: dict[str, Any], options: argparse.Namespace) -> str:
    """The report."""
    parts = [
        "# Behaviour cloning compared with `imitation`",
        f"{STEPS:,} transitions of {FLOATS} floats and {ACTIONS} actions in episodes of {LENGTH} steps, {HELD_OUT:.0%}"
        f" of the episodes held out, the same for both; {options.epochs} epochs, hidden layers {HIDDEN}, {ACTIVATION},"
        f" Adam with a learning rate of {LEARNING_RATE:g}, samples/s over all epochs but the first, accuracy of the"
        " most likely action on the validation episodes after the last epoch.",
        "Equal: the loss is the negative log-probability alone (no entropy bonus, weight decay or value loss),"
        " gradients are not clipped, observations are not normalised, initial weights are orthogonal, a value head of"
        " one layer is computed and not trained. Different: slipstream's learning rate has a cosine schedule and"
        " `imitation`'s is constant; slipstream uses the last, smaller batch of an epoch and `imitation` drops it;"
        " slipstream chooses its threads and `imitation` has its better number of torch threads, the last in its name.",
        "`transitions` passes the demos to `imitation` as its documentation does; `batches` passes ready batches of"
        " tensors instead, which its own loader would collate sample by sample.",
    ]
    for work, ranking in summary.items():
        parts.append(f"## {work}")
        lines = [
            [one, *spread_cells(facts["samples_per_second"], 0), _percent(facts["accuracy"]), facts["accuracy"]["n"]]
            for one, facts in ranking["contestants"].items()
        ]
        parts.append(table(("contestant", "samples/s", "min..max", "95 %", "accuracy", "runs"), lines))
        for one, facts in ranking["contestants"].items():
            parts += [f"- {one} failed: {reason}" for reason in facts["failed"]]
        for one, facts in ranking["against"].items():
            middle, extent, interval = spread_cells(facts["ratio"], 2)
            gap = facts["accuracy_gap"]
            parts.append(
                f"slipstream / {one}: **{middle}x** (95 % {interval}, {extent}, {gap['n']} rounds), accuracy"
                f" {100 * gap['median']:+.2f} points ({100 * gap['min']:+.2f}..{100 * gap['max']:+.2f}); bar"
                f" {SPEED_BAR:g}x at the same accuracy {verdict(facts['met'])}"
            )
    return "\n\n".join(parts)


def _percent(values: dict[str, Any]) -> str:
    return f"{values['median']:.1%} ({values['min']:.1%}..{values['max']:.1%})" if values["n"] else "-"


def apart(folder: Path, phases: str, samples: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run of pixels.py in its own process, with its memory monitored."""
    command = [sys.executable, str(ROOT / "benchmarks" / "pixels.py"), str(folder), "--phases", phases, "--windows"]
    command += [str(options.windows), "--samples", str(samples)]
    command += ["--window-mib", str(options.window_mib)] if options.window_mib else []
    cached = round(cached_share(folder), 4)
    with MemoryMonitor() as monitor:
        done = launch(command, LIMIT_S, search_path())
    if done.failure:
        return {"failed": done.failure, "cached_before": cached}
    spans = done.row.pop("phases")
    return {
        **slipstream_facts(),
        **done.row,
        **done.row.get("ahead", {}),
        **done.row.get("learn", {}),
        "cached_before": cached,
        "cached_after": round(cached_share(folder), 4),
        "peak_anonymous": monitor.peak(),
        "peaks": {name: monitor.peak(span) for name, span in spans.items()},
        "phase_seconds": {name: round(high - low, 2) for name, (low, high) in spans.items()},
        "wall_seconds": round(done.wall_seconds, 2),
    }


def run_pixels(options: argparse.Namespace, result: Result) -> None:
    """One run of all phases for memory, then rounds for speed."""
    free, needed = shutil.disk_usage(options.disk or tempfile.gettempdir()).free, (options.gb + options.small_gb) * 1e9
    if free < 1.1 * needed:
        raise SystemExit(
            f"{needed / 1e9:.1f} GB do not fit on the disk: {free / 1e9:.1f} GB are free. hint: --disk DIR"
        )
    with tempfile.TemporaryDirectory(prefix="cloning-", dir=options.disk) as name:
        large, small = Path(name) / "large", Path(name) / "small"
        for folder, size in ((large, options.gb), (small, options.small_gb)):
            began = time.perf_counter()
            write_pixels(folder, size)
            say(f"wrote {size:g} GB in {time.perf_counter() - began:.0f} s")

        def add(one: str, folder: Path, phases: str, turn: int, samples: int = 0) -> dict[str, Any]:
            result.gate()
            row = apart(folder, phases, samples, options)
            result.add({"work": "pixels", "contestant": one, "peer": OURS, "round": turn, **row})
            return row

        whole = add("all phases", large, "inspect,learn,validate,ahead", -1)
        samples = whole.get("learn", {}).get("samples", 0)
        for turn in range(options.rounds):
            add(FITS, small, "learn", turn, samples)
            fill_cache(large)
            add("cached", large, "learn", turn)
            for one, phase in (("cold", "learn"), ("cold, ahead", "ahead")):
                drop_cache(large)
                add(one, large, phase, turn)
    summary = summarise_pixels(result.rows)
    result.close(summary, pixels_page(summary, options))


def summarise_pixels(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Peak memory of all runs on the large set, by phase too; rates, and their ratios to the small set."""
    good = [row for row in rows if "failed" not in row]
    large = [row for row in good if not row["fits"]]
    peaks: dict[str, int] = {}
    for name, size in (pair for row in large for pair in row["peaks"].items()):
        peaks[name] = max(size, peaks.get(name, 0))
    peak = max((row["peak_anonymous"] for row in large), default=0)
    summary: dict[str, Any] = {
        "memory": {"peak_anonymous": peak, "by_phase": peaks, "met": 0 < peak < MEMORY_BAR},
        "accuracy": next((row["accuracy"] for row in good if "accuracy" in row), None),
        "failed": sorted({f"{row['contestant']}: {row['failed']}" for row in rows if "failed" in row}),
        "speed": {},
    }
    fits = {row["round"]: row["samples_per_second"] for row in good if row["fits"]}
    for one in CACHES:
        mine = [row for row in good if row["contestant"] == one]
        ratios = spread([row["samples_per_second"] / fits[row["round"]] for row in mine if row["round"] in fits])
        facts = {
            key: spread([row[key] for row in mine]) for key in ("samples_per_second", "read_share", "cached_before")
        }
        summary["speed"][one] = {**facts, "ratio": ratios, "met": ratios.get("median", 0) >= PIXELS_BAR}
    return summary


def pixels_page(summary: dict[str, Any], options: argparse.Namespace) -> str:
    """The report."""
    memory = summary["memory"]
    network = ", ".join(f"policy.{key}={value}" for key, value in NETWORK.items())
    lines = []
    for one, facts in summary["speed"].items():
        rate, ratio = spread_cells(facts["samples_per_second"], 0), spread_cells(facts["ratio"], 2)
        shares = (f"{facts[key].get('median', 0):.0%}" for key in ("cached_before", "read_share"))
        lines.append([one, CACHES[one], *rate[:2], *shares, *ratio[::2], "" if one == FITS else verdict(facts["met"])])
    header = (
        "set",
        "what",
        "samples/s",
        "min..max",
        "cached before",
        "time reading or waiting for reads",
        f"ratio to `{FITS}`",
        "95 %",
        f"bar {PIXELS_BAR:g}x",
    )
    by_phase = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in memory["by_phase"].items())
    parts = [
        "# Cloning from images on disk",
        f"{options.gb:g} GB of {SIDE}x{SIDE}x3 images in episodes of {LENGTH} steps, against {options.small_gb:g} GB"
        f" that fit into one window; {network}, else the defaults. The rate is that of {options.windows} windows after"
        " a first one, including reading, and of as many samples of the small set. Before a cold run the files were"
        " dropped from the page cache; caches below it, such as that of the host of a virtual machine, are unknown.",
        table(header, lines),
        f"Peak anonymous memory of all processes: **{memory['peak_anonymous'] / 1e6:,.0f} MB**; bar below"
        f" {MEMORY_BAR / 1e6:,.0f} MB {verdict(memory['met'])}. By phase, in MB: {by_phase}.",
        f"Validation accuracy after {1 + options.windows} windows: {summary['accuracy']}.",
    ]
    return "\n\n".join([*parts, *(f"- failed: {reason}" for reason in summary["failed"])])


def parse() -> argparse.Namespace:
    """The options."""

    def numbers(text: str) -> list[int]:
        return [int(name) for name in text.split(",")]

    parser = make_parser(__doc__, rounds=0, quick=False)
    parser.add_argument("--part", choices=("peers", "pixels"), required=True)
    peers = parser.add_argument_group("peers")
    peers.add_argument("--epochs", type=int, default=10, help="the first of which is not timed")
    peers.add_argument("--batches", type=numbers, default=[256, 4096])
    peers.add_argument("--threads", type=numbers, default=[1, 2], help="torch threads to try the peer with")
    peers.add_argument("--python", type=interpreter, help="one that imports imitation (default: .venvs/imitation)")
    peers.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further slipstream settings")
    pixels = parser.add_argument_group("pixels")
    pixels.add_argument("--gb", type=float, default=10.0, help="size of the large set")
    pixels.add_argument("--small-gb", type=float, default=0.25, help="size of the set that fits in memory")
    pixels.add_argument("--windows", type=int, default=2, help="timed windows of each run")
    pixels.add_argument("--window-mib", type=int, help="clone.window_mib (default: its own)")
    pixels.add_argument("--disk", type=Path, help="folder for the demos (default: the temporary folder)")
    return parser.parse_args()


def main() -> None:
    """Run one part and write its result."""
    options = parse()
    options.rounds = options.rounds or {"peers": 5, "pixels": 3}[options.part]
    with child_cleanup():
        run = run_peers if options.part == "peers" else run_pixels
        run(options, Result(f"cloning-{options.part}", options))


if __name__ == "__main__":
    main()
