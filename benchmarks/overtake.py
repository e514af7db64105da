"""Follow, then overtake: what a clone of the expert saves, and when the expert is beaten.

    .venv/bin/python benchmarks/overtake.py --game soccer [--seeds 3]
    .venv/bin/python benchmarks/overtake.py --game kart   [--seeds 1]

soccer: wall-clock until a win rate whose lower 95 % bound is 0.70 against `scripted:rule`, evaluated every million
steps by 400 games: from scratch, against record + clone + train from the clone, all by the same preset (self-play),
each alone on the machine. Beside it, from the same clone, training without any of the guards.
kart: wall-clock until the agent is faster than its expert on held-out tracks (the upper bound of the difference of lap
times over the same tracks is below 0), by PPO and by SAC.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

from stats import table

from record import ROOT, Record, call, dated, pairs

GOAL, GAMES, CAP_S = 0.70, 400, 1800.0
UNGUARDED = (
    "ppo.reference=null", "ppo.value_warmup=0", "ppo.freeze_obs_stats_steps=0", "evaluation.rollback_after=0"
)  # fmt: skip
HELD_OUT_SEED = 424_242
LAPS = 256


def evaluations(run: Path) -> list[dict[str, Any]]:
    """The evaluations of a run so far."""
    try:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return []
    return [row for row in rows if "evaluate/games" in row]


def train_until(run: Path, words: list[str], most_s: float) -> tuple[float | None, list[dict[str, Any]]]:
    """Train until the goal is reached: wall-clock seconds, or None where it never was, and the way there."""
    command = [sys.executable, "-m", "slipstream.cli", "train", "soccer", "--run", str(run), *words]
    command += pairs(("every.evaluate=1000000", f"evaluation.games={GAMES}", "evaluation.opponent=scripted:rule"))
    began, reached = time.perf_counter(), None
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        while process.poll() is None and time.perf_counter() - began < most_s:
            if any(row["evaluate/win_rate_low"] >= GOAL for row in evaluations(run)):
                reached = time.perf_counter() - began
                break
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()
    way = [
        {"steps": row["steps"], "score": row["evaluate/score"], "win_rate_low": row["evaluate/win_rate_low"]}
        for row in evaluations(run)
    ]
    return reached, way


def soccer(seed: int, folder: Path, record: Record) -> dict[str, Any]:
    """One seed: from scratch, from a clone, and from the clone without guards for as many steps as the former took."""
    rng, demos, clone = ["--seed", str(seed)], folder / "demos", folder / "clone"
    record.load()
    scratch_s, scratch = train_until(folder / "scratch", [*rng, "--steps", "1000000000"], CAP_S)
    record.add({"work": "soccer", "contestant": "scratch", "seed": seed, "seconds": scratch_s or CAP_S, "way": scratch})
    record.load()
    recorded, record_s = call(
        "record", "scripted:rule", "--env", "soccer", "--episodes", "2000", "--out", str(demos), *rng
    )
    cloned, clone_s = call("clone", str(demos), "--run", str(clone), *rng)
    start = [*rng, "--start", f"run:{clone}", "--steps", "1000000000"]
    train_s, way = train_until(folder / "handed", start, CAP_S)
    measured, _ = call(
        "evaluate", f"run:{clone}", "--env", "soccer", "--opponent", "scripted:rule", "--games", "1000", "--seed", "9"
    )
    handed = {
        "record_s": record_s, "clone_s": clone_s, "train_s": train_s,
        "seconds": record_s + clone_s + (train_s or CAP_S),
        "recorded_steps_per_second": recorded["steps_per_second"], "accuracy": cloned["accuracy"],
        "clone_score": measured["score"], "clone_score_low": measured["score_low"], "way": way,
        "lowest": min(row["score"] for row in way),
    }  # fmt: skip
    record.add({"work": "soccer", "contestant": "from the clone", "seed": seed, **handed})
    record.load()
    steps = max(3_000_000, way[-1]["steps"])
    _, plain = train_until(
        folder / "plain", [*rng, "--start", f"run:{clone}", "--steps", str(steps), *pairs(UNGUARDED)], CAP_S
    )
    record.add({"work": "soccer", "contestant": "without guards", "seed": seed, "way": plain})
    return {"seed": seed, "scratch_s": scratch_s or CAP_S, "reached": scratch_s is not None, "plain": plain, **handed}


def soccer_page(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The seeds in a table, and whether the bars are met."""
    lines = [
        [row["seed"], f"{row['scratch_s']:.1f}", f"{row['record_s']:.1f}", f"{row['clone_s']:.1f}",
         f"{row['train_s']:.1f}" if row["train_s"] else "never", f"{row['seconds']:.1f}",
         f"{row['seconds'] / row['scratch_s']:.2f}", f"{row['clone_score']:.3f}", f"{row['lowest']:.3f}",
         f"{min((one['score'] for one in row['plain']), default=float('nan')):.3f}"]
        for row in rows
    ]  # fmt: skip
    share = fmean(row["seconds"] for row in rows) / fmean(row["scratch_s"] for row in rows)
    kept = all(row["lowest"] >= row["clone_score"] - 0.10 for row in rows)
    cloned = all(row["clone_score"] >= 0.40 for row in rows)
    head = ("seed", "scratch s", "record s", "clone s", "train s", "from the clone s", "share", "clone's score",
            "lowest score on the way", "lowest without guards")  # fmt: skip
    text = (
        "# Soccer: seconds until the lower bound of the win rate against scripted:rule is 0.70\n\n"
        + table(head, lines)
        + f"\n\nMean share of the time from scratch: **{share:.2f}** (goal 0.50 at most, "
        + f"{'met' if share <= 0.5 else 'not met'}). Clone's score at least 0.40: {'met' if cloned else 'not met'}. "
        + f"Never more than 0.10 below the clone: {'met' if kept else 'not met'}."
    )
    return {"share": share, "kept": kept, "cloned": cloned, "seeds": rows}, text


def lap(agent: str) -> dict[str, Any]:
    """An agent beside the expert on tracks that nobody trained on."""
    facts, _ = call(
        "evaluate", agent, "--env", "kart", "--games", str(LAPS), "--seed", str(HELD_OUT_SEED), "--beside",
        "scripted:expert",
    )  # fmt: skip
    kept = ("length_gain", "length_gain_low", "length_gain_high", "return_gain", "mean_length")
    return {"mean_length": facts["mean_length"], "expert": facts["beside"]["mean_length"]} | {
        key: facts["beside"][key] for key in kept[:4]
    }


def kart(seed: int, folder: Path, record: Record, minutes: float) -> dict[str, Any]:
    """One seed: record, clone, then each algorithm from its clone until it beats the expert."""
    rng, demos = ["--seed", str(seed)], folder / "demos"
    record.load()
    _, record_s = call("record", "scripted:expert", "--env", "kart", "--episodes", "500", "--out", str(demos), *rng)
    found: dict[str, Any] = {"seed": seed, "record_s": record_s}
    for name, extra in (("ppo", ()), ("sac", ("algorithm=sac", f"sac.demos={demos}"))):
        clone = folder / f"clone-{name}"
        _, clone_s = call("clone", str(demos), "--run", str(clone), *rng, *pairs(extra[:1]))
        copied = lap(f"run:{clone}")
        record.load()
        train_s, beaten, way = beat(folder / name, clone, rng, extra, minutes)
        row = {"record_s": record_s, "clone_s": clone_s, "train_s": train_s, "seconds": record_s + clone_s + train_s,
               "beaten": beaten, "clone": copied, "way": way, **(way[-1] if way else {})}  # fmt: skip
        record.add({"work": "kart", "contestant": name, **row})
        found[name] = row
    return found


def beat(
    run: Path, clone: Path, rng: list[str], extra: tuple[str, ...], minutes: float
) -> tuple[float, bool, list[dict[str, Any]]]:
    """Train in stretches, and after each drive the held-out tracks; only training counts as time."""
    stretch = 20_000 if extra else 1_000_000
    spent, steps, way = 0.0, 0, list[dict[str, Any]]()
    while spent < 60 * minutes:
        steps += stretch
        if steps == stretch:
            words = ["train", "kart", "--start", f"run:{clone}", "--run", str(run), *rng, *pairs(extra)]
            _, seconds = call(*words, "--steps", str(steps), *pairs(("every.evaluate=0",)))
        else:
            _, seconds = call("resume", str(run), "--steps", str(steps))
        spent += seconds
        way.append({"steps": steps, "train_s": spent, **lap(f"run:{run}")})
        if way[-1]["length_gain_high"] < 0:
            return spent, True, way
    return spent, False, way


def kart_page(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Each algorithm's stages with their shares of the time, and the laps."""
    lines, met = [], True
    for row in rows:
        for name in ("ppo", "sac"):
            one = row[name]
            whole = one["seconds"]
            met &= one["beaten"] and whole <= 1800
            lines.append(
                [row["seed"], name]
                + [f"{one[key]:.1f} ({one[key] / whole:.0%})" for key in ("record_s", "clone_s", "train_s")]
                + [f"{whole:.1f}", f"{one['expert']:.1f}", f"{one['clone']['mean_length']:.1f}",
                   f"{one['mean_length']:.1f}",
                   f"{one['length_gain']:+.1f} ({one['length_gain_low']:+.1f}..{one['length_gain_high']:+.1f})"]
            )  # fmt: skip
    head = ("seed", "algorithm", "record s", "clone s", "train s", "all s", "expert's lap", "clone's lap",
            "agent's lap", "difference (95 %)")  # fmt: skip
    text = (
        f"# Kart: from the expert's laps to faster ones, on {LAPS} held-out tracks (laps in decisions of 1/15 s)\n\n"
        + table(head, lines)
        + f"\n\nFaster than the expert within 30 minutes, by both: {'met' if met else 'not met'}."
    )
    return {"met": met, "seeds": rows}, text


def main() -> None:
    """Run every seed and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=("soccer", "kart"), required=True)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--minutes", type=float, default=25.0, help="the longest that kart's training may take")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record(options.out or dated(f"overtake-{options.game}"))
    record.begin()
    rows = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
            place = Path(folder)
            os.sync()
            rows.append(
                soccer(seed, place, record) if options.game == "soccer" else kart(seed, place, record, options.minutes)
            )
    record.close(*(soccer_page(rows) if options.game == "soccer" else kart_page(rows)))


if __name__ == "__main__":
    main()
