"""Behaviour cloning: samples per second beside `imitation`, and memory and speed on demos of 10 GB.

    .venv/bin/python benchmarks/cloning.py --part peers [--rounds 5] [--epochs 10] [--batches 256,4096]
    .venv/bin/python benchmarks/cloning.py --part pixels [--rounds 3] [--gb 10] [--windows 2] [--disk DIR]

Runs stand alone on the machine and rounds are interleaved; ratios are taken within a round. Start-up, compiling and the
first epoch (of pixels: the first window) are not timed.

`peers` makes 100,000 transitions in episodes, whose actions a fixed random network chose, and gives both sides the same
episodes to learn from and to be judged by. `pixels` writes images to disk and learns from them window by window, with
the files in the system's cache and without, beside a set that fits in memory; the anonymous memory of all processes is
looked at 20 times a second.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

import numpy as np
from contest import (
    SCRIPTS,
    VENVS,
    adopt_orphans,
    end_children,
    install,
    interpreter,
    launch,
    say,
    search_path,
    slipstream_program,
    slipstream_version,
    version_of,
)
from stats import spread, table, told

from pixels import LENGTH, NETWORK, SIDE, Watch, cached_share, forget, new_shard, recall, write_pixels
from record import ROOT, Record, dated, pairs
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
SPEED_GOAL = 3.0
ACCURACY_SLACK = 0.005
"""By how much slipstream's accuracy may be lower and still count as the same."""

MEMORY_GOAL = 2e9
PIXELS_GOAL = 0.7
FITS = "fits"
CACHES = {
    FITS: "small set, in memory",
    "cached": "large set, its files in the system's cache",
    "cold": "large set, from disk",
    "cold, ahead": "large set, from disk, the next window read by a thread",
}


def slipstream_facts() -> dict[str, Any]:
    """What a row tells of our side."""
    return {
        "version": slipstream_version(),
        "versions": {package: version_of(package) for package in ("torch", "numpy", "numba")},
    }


def write_vectors(folder: Path) -> None:
    """Demos of a wandering point, whose action a random network with one hidden layer chooses."""
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
    """The parts that slipstream makes of the demos by this seed, for the peer; their sizes."""
    parts = dict(zip(("train", "held"), split(Demos.open(demos), HELD_OUT, seed), strict=True))
    arrays = {}
    for name, part in parts.items():
        columns = part.load(["obs", "action"])
        arrays |= {f"{name}_obs": columns["obs"], f"{name}_acts": columns["action"][:, 0].astype(np.int64)}
    np.savez(out, **arrays)
    return {f"{name}_samples": part.steps for name, part in parts.items()}


def clone(demos: Path, batch: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Clone by the command line; the rate of all epochs but the first, and the last epoch's accuracy."""
    settings = {
        "clone.learning_rate": LEARNING_RATE,
        "clone.held_out": HELD_OUT,
        "clone.value_coef": 0,
        "clone.entropy_coef": 0,
        "clone.weight_decay": 0,
        "clone.max_grad_norm": 1e9,  # the peer shortens no gradient
        "clone.normalise_obs": "false",
        "clone.patience": options.epochs,
        "policy.hidden": json.dumps(HIDDEN, separators=(",", ":")),
        "policy.activation": ACTIVATION,
    }
    words = pairs([*(f"{key}={value}" for key, value in settings.items()), *options.set])
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
    """Run the peer's script in its own interpreter."""
    _, loader, threads = one.split("-")
    python = options.python or str(VENVS / "imitation" / "bin" / "python")
    command = [python, str(SCRIPTS / "imitation_bc.py"), str(data), "--loader", loader, "--threads", threads]
    command += ["--batch", str(batch), "--epochs", str(options.epochs), "--seed", str(seed)]
    command += ["--actions", str(ACTIONS), "--hidden", json.dumps(HIDDEN), "--activation", ACTIVATION]
    done = launch([*command, "--learning-rate", str(LEARNING_RATE)], LIMIT_S, search_path())
    return {"failed": done.failure} if done.failure else {**done.row, "wall_seconds": round(done.wall_seconds, 2)}


def run_peers(options: argparse.Namespace, record: Record) -> None:
    """All contestants with all batch sizes, round after round."""
    broken = None if options.python else install("imitation")
    everyone = [OURS, *(f"imitation-{loader}-{count}" for loader in LOADERS for count in options.threads)]
    with tempfile.TemporaryDirectory(prefix="cloning-") as name:
        demos, data = Path(name) / "demos", Path(name) / "split.npz"
        write_vectors(demos)
        for turn in range(options.rounds):
            sizes = save_split(demos, turn, data)
            for batch in options.batches:
                for one in everyone if turn % 2 == 0 else everyone[::-1]:
                    record.load()
                    if one == OURS:
                        row = clone(demos, batch, turn, options)
                    else:
                        row = {"failed": broken} if broken else imitate(one, data, batch, turn, options)
                    peer = one.partition("-")[0]
                    about = {"work": f"batch {batch}", "contestant": one, "peer": peer, "round": turn, "batch": batch}
                    record.add({**row, **about, **sizes})
                    say(f"    {row.get('samples_per_second')} samples/s, accuracy {row.get('accuracy')}")
    summary = {
        f"batch {batch}": rank([row for row in record.rows if row["batch"] == batch]) for batch in options.batches
    }
    record.close(summary, peers_page(summary, options))


def rank(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per contestant the spread of rates and accuracies; per loader of the peer the ratios, round by round."""
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
        peers = {one: median(row["samples_per_second"] for row in turns.values()) for one, turns in found.items()
                 if turns and f"-{loader}-" in one}  # fmt: skip
        best = max(peers, key=lambda one: peers[one], default=None)
        shared = sorted(set(found.get(OURS, {})) & set(found[best])) if best else []
        if shared:
            ours, theirs = ([found[one][turn] for turn in shared] for one in (OURS, best))
            both = list(zip(ours, theirs, strict=True))
            ratio = spread([mine["samples_per_second"] / other["samples_per_second"] for mine, other in both])
            gap = spread([mine["accuracy"] - other["accuracy"] for mine, other in both])
            met = ratio["median"] >= SPEED_GOAL and gap["median"] >= -ACCURACY_SLACK
            ranking["against"][best] = {"ratio": ratio, "accuracy_gap": gap, "met": met}
    return ranking


def peers_page(summary: dict[str, Any], options: argparse.Namespace) -> str:
    """The summary for people."""
    parts = [
        "# Behaviour cloning beside `imitation`",
        f"{STEPS:,} transitions of {FLOATS} floats and {ACTIONS} actions in episodes of {LENGTH} steps, {HELD_OUT:.0%}"
        f" of the episodes held out, the same for both; {options.epochs} epochs, hidden layers {HIDDEN}, {ACTIVATION},"
        f" Adam with a learning rate of {LEARNING_RATE:g}, samples/s over all epochs but the first, accuracy of the"
        " likeliest action on the part held out after the last epoch.",
        "Alike: the loss is the negative log-probability alone (no entropy bonus, weight decay or value loss),"
        " gradients are not shortened, observations are not scaled, first weights are orthogonal, a value head of one"
        " layer is computed and not trained. Different: slipstream's learning rate falls along a cosine and"
        " `imitation`'s is constant; slipstream learns from the last, smaller batch of an epoch and `imitation` leaves"
        " it out; slipstream chooses its threads and `imitation` stands with its better number of torch threads, the"
        " last in its name.",
        "`transitions` hands `imitation` the demos as its documentation does; `batches` hands it ready batches of"
        " tensors instead, which its own loader would have made sample by sample.",
    ]
    for work, ranking in summary.items():
        parts.append(f"## {work}")
        lines = [
            [one, *told(facts["samples_per_second"], 0), _percent(facts["accuracy"]), facts["accuracy"]["n"]]
            for one, facts in ranking["contestants"].items()
        ]
        parts.append(table(("contestant", "samples/s", "min..max", "95 %", "accuracy", "runs"), lines))
        for one, facts in ranking["contestants"].items():
            parts += [f"- {one} failed: {reason}" for reason in facts["failed"]]
        for one, facts in ranking["against"].items():
            middle, extent, interval = told(facts["ratio"], 2)
            gap = facts["accuracy_gap"]
            parts.append(
                f"slipstream / {one}: **{middle}x** (95 % {interval}, {extent}, {gap['n']} rounds), accuracy"
                f" {100 * gap['median']:+.2f} points ({100 * gap['min']:+.2f}..{100 * gap['max']:+.2f}); goal"
                f" {SPEED_GOAL:g}x at the same accuracy {'met' if facts['met'] else 'not met'}"
            )
    return "\n\n".join(parts)


def _percent(values: dict[str, Any]) -> str:
    return f"{values['median']:.1%} ({values['min']:.1%}..{values['max']:.1%})" if values["n"] else "-"


def apart(folder: Path, phases: str, samples: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run of pixels.py in a process of its own, with its memory watched from here."""
    command = [sys.executable, str(ROOT / "benchmarks" / "pixels.py"), str(folder), "--phases", phases, "--windows"]
    command += [str(options.windows), "--samples", str(samples)]
    command += ["--window-mib", str(options.window_mib)] if options.window_mib else []
    cached = round(cached_share(folder), 4)
    with Watch() as watch:
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
        "peak_anonymous": watch.peak(),
        "peaks": {name: watch.peak(span) for name, span in spans.items()},
        "phase_seconds": {name: round(high - low, 2) for name, (low, high) in spans.items()},
        "wall_seconds": round(done.wall_seconds, 2),
    }


def run_pixels(options: argparse.Namespace, record: Record) -> None:
    """One run through all phases for its memory, then rounds for speed."""
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
            record.load()
            row = apart(folder, phases, samples, options)
            record.add({"work": "pixels", "contestant": one, "peer": OURS, "round": turn, **row})
            say(f"    {row.get('samples_per_second')} samples/s, {row.get('peak_anonymous', 0) / 1e6:.0f} MB")
            return row

        whole = add("all phases", large, "inspect,learn,validate,ahead", -1)
        samples = whole.get("learn", {}).get("samples", 0)
        for turn in range(options.rounds):
            add(FITS, small, "learn", turn, samples)
            recall(large)
            add("cached", large, "learn", turn)
            for one, phase in (("cold", "learn"), ("cold, ahead", "ahead")):
                forget(large)
                add(one, large, phase, turn)
    summary = weigh(record.rows)
    record.close(summary, pixels_page(summary, options))


def weigh(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The most memory of all runs on the large set, by phase too; rates, and their ratios to the small set's."""
    good = [row for row in rows if "failed" not in row]
    large = [row for row in good if not row["fits"]]
    peaks: dict[str, int] = {}
    for name, size in (pair for row in large for pair in row["peaks"].items()):
        peaks[name] = max(size, peaks.get(name, 0))
    peak = max((row["peak_anonymous"] for row in large), default=0)
    summary: dict[str, Any] = {
        "memory": {"peak_anonymous": peak, "by_phase": peaks, "met": 0 < peak < MEMORY_GOAL},
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
        summary["speed"][one] = {**facts, "ratio": ratios, "met": ratios.get("median", 0) >= PIXELS_GOAL}
    return summary


def pixels_page(summary: dict[str, Any], options: argparse.Namespace) -> str:
    """The summary for people."""
    memory = summary["memory"]
    network = ", ".join(f"policy.{key}={value}" for key, value in NETWORK.items())
    lines = []
    for one, facts in summary["speed"].items():
        rate, ratio = told(facts["samples_per_second"], 0), told(facts["ratio"], 2)
        shares = (f"{facts[key].get('median', 0):.0%}" for key in ("cached_before", "read_share"))
        lines.append([one, CACHES[one], *rate[:2], *shares, *ratio[::2], "" if one == FITS else _met(facts)])
    header = ("set", "what", "samples/s", "min..max", "in the cache before", "time that waits for or makes reads",
              f"ratio to `{FITS}`", "95 %", f"goal {PIXELS_GOAL:g}x")  # fmt: skip
    by_phase = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in memory["by_phase"].items())
    parts = [
        "# Cloning from images on disk",
        f"{options.gb:g} GB of {SIDE}x{SIDE}x3 images in episodes of {LENGTH} steps, against {options.small_gb:g} GB"
        f" that fit into one window; {network}, else the defaults. The rate is that of {options.windows} windows after"
        " a first one, reading included, and of as many samples of the small set. Before a cold run the system was"
        " asked to drop the files; what keeps them below it, such as the host of a virtual machine, is not known.",
        table(header, lines),
        f"Most anonymous memory of all processes: **{memory['peak_anonymous'] / 1e6:,.0f} MB**; goal below"
        f" {MEMORY_GOAL / 1e6:,.0f} MB {_met(memory)}. By phase, in MB: {by_phase}.",
        f"Accuracy on the part held out after {1 + options.windows} windows: {summary['accuracy']}.",
    ]
    return "\n\n".join([*parts, *(f"- failed: {reason}" for reason in summary["failed"])])


def _met(facts: dict[str, Any]) -> str:
    return "met" if facts["met"] else "not met"


def parse() -> argparse.Namespace:
    """The options."""

    def numbers(text: str) -> list[int]:
        return [int(name) for name in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("peers", "pixels"), required=True)
    parser.add_argument("--rounds", type=int, help="[5 with peers, 3 with pixels]")
    parser.add_argument("--out", type=Path, help="the record's folder [benchmarks/records/DATE-cloning-PART]")
    peers = parser.add_argument_group("peers")
    peers.add_argument("--epochs", type=int, default=10, help="the first of which is not timed")
    peers.add_argument("--batches", type=numbers, default=[256, 4096])
    peers.add_argument("--threads", type=numbers, default=[1, 2], help="torch threads to try the peer with")
    peers.add_argument("--python", type=interpreter, help="one that imports imitation (default: .venvs/imitation)")
    peers.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further slipstream settings")
    pixels = parser.add_argument_group("pixels")
    pixels.add_argument("--gb", type=float, default=10.0, help="size of the large set")
    pixels.add_argument("--small-gb", type=float, default=0.25, help="size of the set that fits in memory")
    pixels.add_argument("--windows", type=int, default=2, help="that are timed in each run, after one that is not")
    pixels.add_argument("--window-mib", type=int, help="another clone.window_mib than the default")
    pixels.add_argument("--disk", type=Path, help="a folder on the disk to write to [the temporary one]")
    return parser.parse_args()


def main() -> None:
    """Run what was asked for and leave nothing running."""
    options = parse()
    options.rounds = options.rounds or {"peers": 5, "pixels": 3}[options.part]
    record = Record(options.out or dated(f"cloning-{options.part}"))
    adopt_orphans()
    try:
        record.begin()
        (run_peers if options.part == "peers" else run_pixels)(options, record)
    finally:
        end_children()


if __name__ == "__main__":
    main()
