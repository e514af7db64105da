"""Steps per second of two commits of this repository, in alternating slices of a fraction of a second.

    python benchmarks/before_after.py REV [--case cartpole-1] [--slices 400]
    python benchmarks/before_after.py REV --gpu [--slices 20]

REV is a commit, or a folder that holds its `src`.

On a shared machine the rate of a run of some seconds varies by 15 %, and so does the ratio of two runs. Here REV, REV
once more and the working tree train in three processes that take turns: one of them runs for a slice while the others
wait. REV against itself shows how precise the comparison is.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from harness import ROOT, Result, make_parser, spread, table
from slices import Trainer, take_turns

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole-1": ("gymnasium:CartPole-v1", {"ppo__epochs": 1}),
    "cartpole-4": ("gymnasium:CartPole-v1", {"ppo__epochs": 4}),
    "soccer": ("soccer", {}),
    "kart": ("kart", {}),
    "lstm": ("gymnasium:CartPole-v1", {"policy__memory": "lstm"}),
    "sac": ("gymnasium:Pendulum-v1", {"algorithm": "sac"}),
}
GPU_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "soccer-gpu": ("soccer", {"preset": "soccer-gpu"}),
    "kart-gpu": ("kart", {"preset": "kart-gpu"}),
    "lstm-gpu": ("soccer", {"preset": "soccer-gpu", "policy__memory": "lstm", "policy__memory_size": 128}),
}
GPU_SLICE_S = 2.0
"""Slices on a GPU are longer, because a rollout that was started in one slice may end before the next one begins."""


@contextmanager
def checked_out(commit: str, place: Path) -> Iterator[Path]:
    """The sources of a commit, or of the folder of that name."""
    if Path(commit).is_dir():
        yield Path(commit).resolve() / "src"
        return
    old = place / "old"
    subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", old, commit], check=True)
    try:
        yield old / "src"
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", old], check=True)


def measure(case: str, old: Path, place: Path, slices: int, seconds: float) -> dict[str, list[float]]:
    """The rates of all slices of the old sources, the old ones once more, and the working tree."""
    sources = {"before": old, "before again": old, "after": ROOT / "src"}
    env, settings = (CASES | GPU_CASES)[case]
    trainers = {name: Trainer.of(env, settings, place / case / name, path) for name, path in sources.items()}
    return take_turns(trainers, slices, seconds)


def main() -> None:
    """Measure all cases, or some, and write the result."""
    parser = make_parser(__doc__, seconds=0.1)
    parser.add_argument("commit", help="the commit to compare with, or a folder that holds its src")
    parser.add_argument("--case", action="append", choices=[*CASES, *GPU_CASES], help="only this case; repeatable")
    parser.add_argument("--gpu", action="store_true", help="the cases on a GPU")
    parser.add_argument("--slices", type=int, default=400, help="slices of each training (default: 400)")
    options = parser.parse_args()
    seconds = max(options.seconds, GPU_SLICE_S) if options.gpu else options.seconds
    result, rows, summary = Result(f"before-after{'-gpu' if options.gpu else ''}", options), [], {}
    with tempfile.TemporaryDirectory(prefix="before-after-") as name, checked_out(options.commit, Path(name)) as old:
        for case in options.case or (GPU_CASES if options.gpu else CASES):
            rates = measure(case, old, Path(name), 3 if options.quick else options.slices, seconds)
            result.rows += [{"work": case, "contestant": one, "rates": found} for one, found in rates.items()]
            pairs = list(zip(*rates.values(), strict=True))
            again = spread([other / one for one, other, _ in pairs])
            after = spread([2 * new / (one + other) for one, other, new in pairs])
            summary[case] = {"before again": again, "after": after}
            cells = (f"{one['median']:.3f} [{one['low']:.3f}, {one['high']:.3f}]" for one in (again, after))
            rates_cells = (f"{median(rates[one]):,.0f}" for one in ("before", "after"))
            rows.append((case, *rates_cells, *cells))
            result.say(" ".join(rows[-1]))
    text = table(("case", "steps/s before", "after", "before, once more: ratio", "after: ratio"), rows)
    title = f"Speed compared with commit {Path(options.commit).name}"
    note = (
        f"Medians of {options.slices} slices of {seconds:g} s with 95 % intervals: the second training of the "
        "old commit relative to its first, and the new one relative to the mean of both."
    )
    result.close(summary, f"# {title}\n\n{text}\n\n{note}")


if __name__ == "__main__":
    main()
