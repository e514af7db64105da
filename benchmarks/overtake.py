"""Training from a clone of an expert: time saved, and time until the expert is beaten.

    .venv/bin/python benchmarks/overtake.py --game soccer [--seeds 3]
    .venv/bin/python benchmarks/overtake.py --game kart   [--seeds 1]

soccer: wall-clock until the lower 95 % bound of the win rate against `scripted:rule` is 0.70, evaluated every million
steps with 400 games: from scratch, and with record + clone + train from the clone, with the same preset (self-play),
one run at a time; also training from the same clone without warm-start safeguards.
kart: wall-clock until the agent is faster than its expert on held-out tracks (the upper bound of the difference of lap
times on the same tracks is below 0), with PPO and with SAC.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from harness import ROOT, Result, call, make_parser, read_lines, set_flags, table, verdict

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))


BAR, GAMES, CAP_S = 0.70, 400, 1800.0
NO_SAFEGUARDS = (
    "ppo.reference=null",
    "ppo.value_warmup=0",
    "ppo.freeze_obs_stats_steps=0",
    "evaluation.rollback_after=0",
)
HELD_OUT_SEED = 424_242
LAPS = 256


def evaluations(run: Path) -> list[dict[str, Any]]:
    """The evaluations of a run so far."""
    try:
        rows = read_lines(run / "metrics.jsonl")
    except (OSError, ValueError):
        return []
    return [row for row in rows if "evaluate/games" in row]


def train_until(run: Path, words: list[str], most_s: float) -> tuple[float | None, list[dict[str, Any]]]:
    """Train until the bar is reached; wall-clock seconds, None if it never was, and all evaluations."""
    command = [sys.executable, "-m", "slipstream.cli", "train", "soccer", "--run", str(run), *words]
    command += set_flags(("every.evaluate=1000000", f"evaluation.games={GAMES}", "evaluation.opponent=scripted:rule"))
    began, reached = time.perf_counter(), None
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        while process.poll() is None and time.perf_counter() - began < most_s:
            if any(row["evaluate/win_rate_low"] >= BAR for row in evaluations(run)):
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


def soccer(seed: int, folder: Path, result: Result) -> dict[str, Any]:
    """One seed: from scratch, from a clone, and from the clone without safeguards for as many steps."""
    rng, demos, clone = ["--seed", str(seed)], folder / "demos", folder / "clone"
    result.gate()
    scratch_s, scratch = train_until(folder / "scratch", [*rng, "--steps", "1000000000"], CAP_S)
    result.add({"work": "soccer", "contestant": "scratch", "seed": seed, "seconds": scratch_s or CAP_S, "way": scratch})
    result.gate()
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
        "record_s": record_s,
        "clone_s": clone_s,
        "train_s": train_s,
        "seconds": record_s + clone_s + (train_s or CAP_S),
        "recorded_steps_per_second": recorded["steps_per_second"],
        "accuracy": cloned["accuracy"],
        "clone_score": measured["score"],
        "clone_score_low": measured["score_low"],
        "way": way,
        "lowest": min(row["score"] for row in way),
    }
    result.add({"work": "soccer", "contestant": "from the clone", "seed": seed, **handed})
    result.gate()
    steps = max(3_000_000, way[-1]["steps"])
    _, plain = train_until(
        folder / "plain", [*rng, "--start", f"run:{clone}", "--steps", str(steps), *set_flags(NO_SAFEGUARDS)], CAP_S
    )
    result.add({"work": "soccer", "contestant": "without safeguards", "seed": seed, "way": plain})
    return {"seed": seed, "scratch_s": scratch_s or CAP_S, "reached": scratch_s is not None, "plain": plain, **handed}


def soccer_page(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Summary and report of soccer."""
    lines = [
        [
            row["seed"],
            f"{row['scratch_s']:.1f}",
            f"{row['record_s']:.1f}",
            f"{row['clone_s']:.1f}",
            f"{row['train_s']:.1f}" if row["train_s"] else "never",
            f"{row['seconds']:.1f}",
            f"{row['seconds'] / row['scratch_s']:.2f}",
            f"{row['clone_score']:.3f}",
            f"{row['lowest']:.3f}",
            f"{min((one['score'] for one in row['plain']), default=float('nan')):.3f}",
        ]
        for row in rows
    ]
    share = fmean(row["seconds"] for row in rows) / fmean(row["scratch_s"] for row in rows)
    kept = all(row["lowest"] >= row["clone_score"] - 0.10 for row in rows)
    cloned = all(row["clone_score"] >= 0.40 for row in rows)
    head = (
        "seed",
        "scratch s",
        "record s",
        "clone s",
        "train s",
        "from the clone s",
        "share",
        "clone's score",
        "lowest score",
        "lowest without safeguards",
    )
    text = (
        "# Soccer: seconds until the lower bound of the win rate against scripted:rule is 0.70\n\n"
        + table(head, lines)
        + f"\n\nMean share of the time from scratch: **{share:.2f}** (bar 0.50 at most, "
        + f"{verdict(share <= 0.5)}). Clone's score at least 0.40: {verdict(cloned)}. "
        + f"Never more than 0.10 below the clone: {verdict(kept)}."
    )
    return {"share": share, "kept": kept, "cloned": cloned, "seeds": rows}, text


def lap(agent: str) -> dict[str, Any]:
    """An agent and the expert on held-out tracks."""
    facts, _ = call(
        "evaluate",
        agent,
        "--env",
        "kart",
        "--games",
        str(LAPS),
        "--seed",
        str(HELD_OUT_SEED),
        "--beside",
        "scripted:expert",
    )
    kept = ("length_gain", "length_gain_low", "length_gain_high", "return_gain", "mean_length")
    return {"mean_length": facts["mean_length"], "expert": facts["beside"]["mean_length"]} | {
        key: facts["beside"][key] for key in kept[:4]
    }


def kart(seed: int, folder: Path, result: Result, minutes: float) -> dict[str, Any]:
    """One seed: record, clone, then train with each algorithm until it beats the expert."""
    rng, demos = ["--seed", str(seed)], folder / "demos"
    result.gate()
    _, record_s = call("record", "scripted:expert", "--env", "kart", "--episodes", "500", "--out", str(demos), *rng)
    found: dict[str, Any] = {"seed": seed, "record_s": record_s}
    for name, extra in (("ppo", ()), ("sac", ("algorithm=sac", f"sac.demos={demos}"))):
        clone = folder / f"clone-{name}"
        _, clone_s = call("clone", str(demos), "--run", str(clone), *rng, *set_flags(extra[:1]))
        copied = lap(f"run:{clone}")
        result.gate()
        train_s, beaten, way = beat(folder / name, clone, rng, extra, minutes)
        row = {
            "record_s": record_s,
            "clone_s": clone_s,
            "train_s": train_s,
            "seconds": record_s + clone_s + train_s,
            "beaten": beaten,
            "clone": copied,
            "way": way,
            **(way[-1] if way else {}),
        }
        result.add({"work": "kart", "contestant": name, **row})
        found[name] = row
    return found


def beat(
    run: Path, clone: Path, rng: list[str], extra: tuple[str, ...], minutes: float
) -> tuple[float, bool, list[dict[str, Any]]]:
    """Train in intervals and evaluate after each on the held-out tracks; only training is timed."""
    interval = 20_000 if extra else 1_000_000
    spent, steps, way = 0.0, 0, list[dict[str, Any]]()
    while spent < 60 * minutes:
        steps += interval
        if steps == interval:
            words = ["train", "kart", "--start", f"run:{clone}", "--run", str(run), *rng, *set_flags(extra)]
            _, seconds = call(*words, "--steps", str(steps), *set_flags(("every.evaluate=0",)))
        else:
            _, seconds = call("resume", str(run), "--steps", str(steps))
        spent += seconds
        way.append({"steps": steps, "train_s": spent, **lap(f"run:{run}")})
        if way[-1]["length_gain_high"] < 0:
            return spent, True, way
    return spent, False, way


def kart_page(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Summary and report of kart."""
    lines, met = [], True
    for row in rows:
        for name in ("ppo", "sac"):
            one = row[name]
            whole = one["seconds"]
            met &= one["beaten"] and whole <= 1800
            lines.append(
                [row["seed"], name]
                + [f"{one[key]:.1f} ({one[key] / whole:.0%})" for key in ("record_s", "clone_s", "train_s")]
                + [
                    f"{whole:.1f}",
                    f"{one['expert']:.1f}",
                    f"{one['clone']['mean_length']:.1f}",
                    f"{one['mean_length']:.1f}",
                    f"{one['length_gain']:+.1f} ({one['length_gain_low']:+.1f}..{one['length_gain_high']:+.1f})",
                ]
            )
    head = (
        "seed",
        "algorithm",
        "record s",
        "clone s",
        "train s",
        "all s",
        "expert's lap",
        "clone's lap",
        "agent's lap",
        "difference (95 %)",
    )
    text = (
        f"# Kart: from the expert's laps to faster ones, on {LAPS} held-out tracks (laps in decisions of 1/15 s)\n\n"
        + table(head, lines)
        + f"\n\nFaster than the expert within 30 minutes with both: {verdict(met)}."
    )
    return {"met": met, "seeds": rows}, text


def main() -> None:
    """Run every seed and write the result."""
    parser = make_parser(__doc__, quick=False)
    parser.add_argument("--game", choices=("soccer", "kart"), required=True)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--minutes", type=float, default=25.0, help="the longest that kart's training may take")
    options = parser.parse_args()
    result = Result(f"overtake-{options.game}", options)
    rows = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
            place = Path(folder)
            os.sync()
            rows.append(
                soccer(seed, place, result) if options.game == "soccer" else kart(seed, place, result, options.minutes)
            )
    result.close(*(soccer_page(rows) if options.game == "soccer" else kart_page(rows)))


if __name__ == "__main__":
    main()
