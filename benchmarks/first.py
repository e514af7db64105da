"""How long a first training takes, which compiles its kernels, and how long the next one.

    .venv/bin/python benchmarks/first.py [--rounds 3] [--against REV] [--only soccer] [--out DIR]

Runs `slipstream train` for a few updates as a user does, with nothing compiled yet, and once more with what that left
behind; the clock runs from the start of the command to its end. `--against` does the same with the sources of another
commit. Rounds are interleaved, so that what else the machine does hits all alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from record import ROOT, Record, dated
from slipstream.perf.bench import turns
from slipstream.perf.variants import full_commit, sources

WORKS = {
    "CartPole": ("gymnasium:CartPole-v1", "--steps", "20000"),
    "CartPole, GRU": ("gymnasium:CartPole-v1", "--steps", "20000", "--set", "policy.memory=gru"),
    "Pendulum, SAC": ("gymnasium:Pendulum-v1", "--steps", "6000", "--set", "algorithm=sac"),
    "soccer": ("soccer", "--steps", "100000"),
    "kart": ("kart", "--steps", "100000"),
}


def train(words: tuple[str, ...], place: Path, cache: Path) -> float:
    """Wall-clock of one training by the sources at `place`; what it compiles is kept in `cache`."""
    env = os.environ | {"PYTHONPATH": str(place), "NUMBA_CACHE_DIR": str(cache)}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="slipstream-") as run:
        subprocess.run(
            [sys.executable, "-m", "slipstream.cli", "train", *words, "--no-tuned", "--run", f"{run}/run"], env=env,
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    return time.perf_counter() - began


def summarise(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Medians and ranges, and the table of them."""
    facts: dict[str, Any] = {}
    lines = ["| training | sources | first | range | next |", "|---|---|---|---|---|"]
    for work, who in dict.fromkeys((row["work"], row["contestant"]) for row in rows):
        own = [row for row in rows if (row["work"], row["contestant"]) == (work, who)]
        first, again = [row["seconds"] for row in own], statistics.median(row["again_s"] for row in own)
        middle = statistics.median(first)
        facts.setdefault(work, {})[who] = {"first_s": middle, "low": min(first), "high": max(first), "next_s": again}
        lines.append(f"| {work} | {who} | {middle:.1f} s | {min(first):.1f} to {max(first):.1f} s | {again:.1f} s |")
    return facts, "# First trainings, and the next\n\n" + "\n".join(lines)


def main() -> None:
    """Train from nothing and again, round by round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", metavar="REV", help="a commit to compare with")
    parser.add_argument("--only", choices=WORKS, action="append", help="one training; may be repeated")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record(options.out or dated("first"))
    record.begin()
    places = {options.against: sources(full_commit(options.against))} if options.against else {}
    places["now"] = ROOT / "src"
    jobs = list(product(options.only or WORKS, places))
    for turn, number in turns(options.rounds, len(jobs)):
        work, who = jobs[number]
        record.load()
        with tempfile.TemporaryDirectory(prefix="slipstream-") as cache:
            first, again = (train(WORKS[work], places[who], Path(cache)) for _ in range(2))
        record.add({"work": work, "contestant": who, "round": turn - 1, "seconds": first, "again_s": again})
    record.close(*summarise(record.rows))


if __name__ == "__main__":
    main()
