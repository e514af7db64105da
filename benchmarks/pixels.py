"""Cloning from images on disk: the demos, one run by phase, and monitors of memory and of the page cache.

    .venv/bin/python benchmarks/pixels.py DEMOS [--phases inspect,learn,validate,ahead] [--windows 2] [--samples N]

Prints one JSON object; `cloning.py --part pixels` runs it. `ahead` is the last phase: the thread that reads ahead keeps
its windows in memory when an epoch is stopped in the middle.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from slipstream.algorithms.cloning import Cloner
from slipstream.algorithms.demo_batches import demo_statistics
from slipstream.api import configure
from slipstream.contracts import ActionSpec, ObsField, ObsSpec
from slipstream.demos.edit import split
from slipstream.demos.format import TRUNCATED, Schema
from slipstream.demos.quality import check_quality
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare, recording_name
from slipstream.plan import Facts, make_plan
from slipstream.policies.design import Design
from slipstream.system.machine import cores
from slipstream.training.build import make_engine, needs_torch

LENGTH = 100  # steps of an episode
SIDE, SQUARE, NOISE = 64, 8, 2048
NETWORK = {"image": "nature", "features": 64, "hidden": [64]}
PHASES = ("inspect", "make", "learn", "validate", "ahead")
POLL_S = 0.05


def new_shard(folder: Path, schema: Schema) -> Shard:
    """A shard for episodes of synthetic demos."""
    prepare(folder, schema)
    return Shard(folder, recording_name(), schema, {"agent": "synthetic"})


def write_pixels(folder: Path, gigabytes: float) -> None:
    """Demos of noise with a bright square; the action is the quadrant of the square."""
    random = np.random.default_rng(0)
    noise = random.integers(0, 160, (NOISE, SIDE, SIDE, 3), np.uint8)
    schema = Schema("squares", ObsSpec((ObsField("", "image", (SIDE, SIDE, 3)),)), ActionSpec("discrete", (4,)))
    shard, half = new_shard(folder, schema), SIDE // 2
    while shard.bytes < gigabytes * 1e9:
        first = int(random.integers(NOISE - LENGTH))
        obs = noise[first : first + LENGTH + 1].copy()
        action = random.integers(0, 4, LENGTH, np.int32)
        corners = np.stack([action // 2, action % 2], axis=1) * half + random.integers(0, half - SQUARE, (LENGTH, 2))
        for picture, (y, x) in zip(obs, corners, strict=False):
            picture[y : y + SQUARE, x : x + SQUARE] = 255
        values = {"obs": obs.reshape(LENGTH + 1, -1), "action": action[:, None], "reward": np.ones(LENGTH, np.float32)}
        shard.add(values, game=shard.episodes, ended=TRUNCATED)
    shard.close()


class StopEpoch(Exception):
    """Stops an epoch in the middle."""


def timed_windows(cloner: Cloner, windows: int, samples: int) -> dict[str, Any]:
    """Train, and time a number of windows or samples after the first window."""
    marks: list[tuple[int, float, float]] = []
    before = 0

    def on_window(done: int, total: int) -> None:
        marks.append((before + done, time.perf_counter(), cloner.train.seconds["read"]))
        learned = marks[-1][0] - marks[0][0]
        if len(marks) > windows and learned >= samples:
            raise StopEpoch

    with suppress(StopEpoch):
        for number in range(cloner.settings.epochs):
            cloner.epoch(number, on_window)
            before += cloner.train.demos.steps
    (first, began, read), (last, ended, read_at_end) = marks[0], marks[-1]
    return {
        "samples": last - first,
        "seconds": round(ended - began, 4),
        "samples_per_second": round((last - first) / (ended - began), 1),
        "read_share": round((read_at_end - read) / (ended - began), 4),
    }


def make_cloner(folder: Path, window_mib: int | None) -> Cloner:
    """The cloner of `slipstream clone`."""
    flags = {f"policy.{key}": value for key, value in NETWORK.items()} | {"clone.epochs": 1000}
    flags |= {"clone.window_mib": window_mib} if window_mib else {}
    settings, demos = configure("", flags=flags).settings, Demos.open(folder)
    design = Design(demos.schema.obs, demos.schema.action, settings.policy)
    facts = Facts(
        cores=cores(),
        native=True,
        minibatch=settings.clone.batch_size,
        weights=design.weights.size,
        needs_torch=needs_torch(settings, design),
    )
    plan = make_plan(settings.plan, facts)
    params_and_stats, (train, held_out) = (
        design.initial_params_and_stats(settings.seed),
        split(demos, settings.clone.held_out, settings.seed),
    )
    engine = make_engine(settings, design, design.split_params_and_stats(params_and_stats)[0], plan)
    statistics, gamma = demo_statistics(train, settings.ppo.gamma), settings.ppo.gamma
    return Cloner(
        settings.clone, design, params_and_stats, engine, statistics, train, held_out, gamma=gamma, seed=settings.seed
    )


def learn(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run `slipstream clone` by phase, on a part of the demos."""
    row, spans, cloner = dict[str, Any](), dict[str, list[float]](), None
    for name in [name for name in PHASES if name in options.phases or name == "make"]:
        began = time.monotonic()
        if name == "inspect":
            check_quality(folder)
        elif cloner is None:
            cloner = make_cloner(folder, options.window_mib)
            row |= {"fits": cloner.train.fits_in_memory, "windows": len(cloner.train.windows(None))}
        elif name == "validate":
            row["accuracy"] = cloner.validate()[0]["clone/accuracy"]
        else:
            cloner.ahead = name == "ahead"
            row[name] = timed_windows(cloner, options.windows, options.samples)
        spans[name] = [began, time.monotonic()]
    return {**row, "phases": spans}


class MemoryMonitor:
    """Samples the anonymous memory of all child processes while it is entered."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> MemoryMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        mine, children, samples = psutil.Process(), [], 0
        while not self._end.wait(POLL_S):
            if samples % 10 == 0:  # listing processes is slow
                children = mine.children(recursive=True)
            samples += 1
            self.seen.append((time.monotonic(), sum(anonymous(child.pid) for child in children)))

    def peak(self, span: Sequence[float] = (0.0, float("inf"))) -> int:
        """Peak bytes within a span of time."""
        return max((size for when, size in self.seen if span[0] <= when <= span[1]), default=0)


def anonymous(pid: int) -> int:
    """RssAnon of a process in bytes, 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def drop_cache(folder: Path) -> None:
    """Drop the files from the page cache."""
    for file in folder.rglob("*.bin"):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill_cache(folder: Path) -> None:
    """Read the files once, so that they are in the page cache."""
    block = bytearray(16 << 20)
    for file in folder.rglob("*.bin"):
        with open(file, "rb", buffering=0) as opened:
            while opened.readinto(block):
                pass


def cached_share(folder: Path) -> float:
    """The share of the files that is in the page cache."""
    library, there, pages = ctypes.CDLL(None, use_errno=True), 0, 0
    for file in folder.rglob("*.bin"):
        size = file.stat().st_size
        if not size:
            continue
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), size, mmap.MAP_PRIVATE) as mapped:
            marks = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            start = ctypes.c_char.from_buffer(mapped)
            library.mincore(ctypes.byref(start), ctypes.c_size_t(size), ctypes.c_void_p(marks.ctypes.data))
            del start
            there, pages = there + int((marks & 1).sum()), pages + len(marks)
    return there / max(1, pages)


def main() -> None:
    """Run the phases and print their row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demos", type=Path)
    parser.add_argument("--phases", type=lambda text: text.split(","), default=["learn"])
    parser.add_argument("--windows", type=int, default=2, help="timed windows")
    parser.add_argument("--samples", type=int, default=0, help="timed samples at least")
    parser.add_argument("--window-mib", type=int, help="clone.window_mib (default: its own)")
    options = parser.parse_args()
    print(json.dumps(learn(options.demos, options)), flush=True)


if __name__ == "__main__":
    main()
