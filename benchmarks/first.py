"""Wall-clock time of a first training, which compiles its kernels, and of the next one.

    .venv/bin/python benchmarks/first.py [--rounds 3] [--against REV] [--only soccer]

Runs `slipstream train` for a few updates with an empty kernel cache, and once more with the cache of that run. The time
is that of the whole command. `--against` adds the sources of another commit as a contestant.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from harness import ROOT, Result, interleave, make_parser, table
from slipstream.perf.variants import full_commit, sources

WORKS = {
    "CartPole": ("gymnasium:CartPole-v1", "--steps", "20000"),
    "CartPole, GRU": ("gymnasium:CartPole-v1", "--steps", "20000", "--set", "policy.memory=gru"),
    "Pendulum, SAC": ("gymnasium:Pendulum-v1", "--steps", "6000", "--set", "algorithm=sac"),
    "soccer": ("soccer", "--steps", "100000"),
    "kart": ("kart", "--steps", "100000"),
}


def train(words: tuple[str, ...], place: Path, cache: Path) -> float:
    """Wall-clock time of one training with the sources at `place` and the kernel cache `cache`."""
    env = os.environ | {"PYTHONPATH": str(place), "NUMBA_CACHE_DIR": str(cache)}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="slipstream-") as run:
        subprocess.run(
            [sys.executable, "-m", "slipstream.cli", "train", *words, "--no-tuned", "--run", f"{run}/run"],
            env=env,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return time.perf_counter() - began


def summarise(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Medians and ranges, and their table."""
    facts: dict[str, Any] = {}
    lines = []
    for work, who in dict.fromkeys((row["work"], row["contestant"]) for row in rows):
        own = [row for row in rows if (row["work"], row["contestant"]) == (work, who)]
        first, again = [row["seconds"] for row in own], statistics.median(row["again_s"] for row in own)
        middle = statistics.median(first)
        facts.setdefault(work, {})[who] = {"first_s": middle, "low": min(first), "high": max(first), "next_s": again}
        lines.append([work, who, f"{middle:.1f} s", f"{min(first):.1f} to {max(first):.1f} s", f"{again:.1f} s"])
    header = ("training", "sources", "first", "range", "next")
    return facts, "# The first training and the next\n\n" + table(header, lines)


def main() -> None:
    """Train with an empty cache and again, in interleaved rounds."""
    parser = make_parser(__doc__, rounds=3, quick=False)
    parser.add_argument("--against", metavar="REV", help="a commit to compare with")
    parser.add_argument("--only", choices=WORKS, action="append", help="one training; may be repeated")
    options = parser.parse_args()
    result = Result("first", options)
    places = {options.against: sources(full_commit(options.against))} if options.against else {}
    places["now"] = ROOT / "src"
    jobs = list(product(options.only or WORKS, places))
    for turn, (work, who) in interleave(options.rounds, jobs):
        result.gate()
        with tempfile.TemporaryDirectory(prefix="slipstream-") as cache:
            first, again = (train(WORKS[work], places[who], Path(cache)) for _ in range(2))
        result.add({"work": work, "contestant": who, "round": turn, "seconds": first, "again_s": again})
    result.close(*summarise(result.rows))


if __name__ == "__main__":
    main()
