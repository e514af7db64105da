"""Does a staged curriculum help? Soccer 3v3 in equal wall-clock, with and without the way over 1v1 and 2v2.

    .venv/bin/python benchmarks/curriculum.py --minutes 10 [--seeds 3] [--games 200] [--jobs 6]

For every seed two agents train from nothing for the same minutes, each alone on its cores: one through the game's own
stages, one on 3v3 from the start. Then all of them and `scripted:rule` play 3v3, everybody against everybody, in one
ladder. What counts is the difference of the two ratings of a seed, with a 95 % interval over the seeds (Student's t).
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))

from stats import table

from record import Record, call, dated
from slipstream.confidence import mean_interval, wilson

ENV, TARGET, REFERENCE = "soccer:mixed", "env.target=[3v3]", "scripted:rule"
WAYS = {"staged": ("curriculum.kind=staged",), "direct": ()}


def told(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines; none where it is missing."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trained(way: str, seed: int, folder: Path, minutes: float, pin: str) -> dict[str, Any]:
    """Train one agent, and say how far it came."""
    run = folder / f"{way}-{seed}"
    settings = [word for setting in (TARGET, "every.evaluate=0", *WAYS[way]) for word in ("--set", setting)]
    facts, wall = call(
        "train", ENV, "--run", str(run), "--seed", str(seed), "--minutes", str(minutes), *settings, pin=pin
    )
    rows = told(run / "metrics.jsonl")
    stages = [row["curriculum/stage"] for row in rows if "curriculum/stage" in row]
    moves = [event for event in told(run / "events.jsonl") if event["kind"] == "curriculum"]
    return {
        "seconds": facts["seconds"], "wall_s": wall, "steps": facts["steps"],
        "steps_per_second": facts["steps_per_second"], "stage": stages[-1] if stages else None, "moves": moves,
    }  # fmt: skip


def compared(folder: Path, seeds: int, games: int) -> tuple[dict[str, dict[str, Any]], list[list[Any]], float]:
    """One ladder of everybody: players by name, scores of the two ways against each other by seed, and its time."""
    agents = {f"run:{folder / f'{way}-{seed}'}": f"{way}-{seed}" for seed in range(seeds) for way in WAYS}
    words = ["tournament", *agents, REFERENCE, "--env", ENV, "--games", str(games), "--set", TARGET]
    words += ["--run", str(folder / "tournament")]
    facts, wall = call(*words)
    (ladder,) = facts["tables"]

    def named(agent: str) -> str:
        return agents.get(agent.partition("@")[0], agent)

    players = {named(player["agent"]): player for player in ladder["players"]}
    names = [named(agent) for agent in ladder["payoff"]["agents"]]
    met = []
    for seed in range(seeds):
        a, b = names.index(f"staged-{seed}"), names.index(f"direct-{seed}")
        met.append([seed, ladder["payoff"]["score"][a][b], ladder["payoff"]["games"][a][b]])
    return players, met, wall


def page(
    runs: dict[str, dict[str, Any]], players: dict[str, dict[str, Any]], met: list[list[Any]], minutes: float
) -> tuple[dict[str, Any], str]:
    """Ratings, differences and their interval, and what the stages did."""
    ratings = [
        [name, f"{one['rating']:.0f}", f"{one['low']:.0f} to {one['high']:.0f}",
         *(f"{runs[name][key]:,.0f}" if name in runs else "" for key in ("steps", "steps_per_second")),
         f"{runs[name]['stage']:.0f}" if runs.get(name, {}).get("stage") else ""]
        for name, one in sorted(players.items(), key=lambda item: -item[1]["rating"])
    ]  # fmt: skip
    gains = [players[f"staged-{seed}"]["rating"] - players[f"direct-{seed}"]["rating"] for seed, _, _ in met]
    mean, low, high = mean_interval(gains)
    games = sum(count for _, _, count in met)
    score = sum(rate * count for _, rate, count in met) / games
    score_low, score_high = wilson(score * games, games)
    verdict = "met" if low > 0 else "not met: it is lower" if high < 0 else "not met: the interval holds 0"
    verdict = verdict if len(met) > 1 else "not known: one seed has no interval"
    lines = [[seed, f"{gain:+.0f}", f"{rate:.3f}"] for gain, (seed, rate, _) in zip(gains, met, strict=True)]
    moves = [
        [name, f"{move['steps']:,}", move["text"]] for name, run in runs.items() for move in run["moves"]
    ] or [["-", "-", "no stage was left"]]  # fmt: skip
    text = "\n\n".join(
        [
            f"# Soccer 3v3 after {minutes:g} minutes: through the stages, or 3v3 from the start",
            table(("agent", "rating", "95 %", "steps", "steps/s", "stage"), ratings),
            table(("seed", "rating staged - direct", "score staged against direct"), lines),
            f"Mean difference of the ratings: **{mean:+.0f}** ({low:+.0f} to {high:+.0f}, 95 % over {len(met)} seeds). "
            f"Against each other: score {score:.3f} ({score_low:.3f} to {score_high:.3f}, {games} games). "
            f"A higher rating in equal wall-clock: {verdict}.",
            "## What the stages did",
            table(("agent", "steps", "decision"), moves),
        ]
    )
    facts = {"gains": gains, "gain": mean, "gain_low": low, "gain_high": high, "score": score}
    return facts | {"score_low": score_low, "score_high": score_high, "met": low > 0, "players": players}, text


def main() -> None:
    """Train, let them play, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="training of each agent")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--games", type=int, default=200, help="of every pair")
    parser.add_argument("--jobs", type=int, default=1, help="agents that train at once, each pinned to two cores")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record(options.out or dated("curriculum"))
    record.begin()
    runs: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="slipstream-") as place:
        folder = Path(place)
        record.load()
        free: queue.Queue[str] = queue.Queue()
        for job in range(options.jobs):
            free.put(f"{2 * job},{2 * job + 1}" if options.jobs > 1 else "")

        def work(way: str, seed: int) -> dict[str, Any]:
            pin = free.get()
            try:
                return trained(way, seed, folder, options.minutes, pin)
            finally:
                free.put(pin)

        with ThreadPoolExecutor(options.jobs) as pool:
            kinds = [(way, seed) for seed in range(options.seeds) for way in WAYS]
            for (way, seed), run in zip(kinds, pool.map(lambda kind: work(*kind), kinds), strict=True):
                runs[f"{way}-{seed}"] = run
                record.add({"work": "3v3", "contestant": way, "seed": seed, **run})
        record.load()
        players, met, wall = compared(folder, options.seeds, options.games)
        record.add({"work": "3v3", "contestant": "tournament", "seconds": wall, "players": players, "met": met})
    record.close(*page(runs, players, met, options.minutes))


if __name__ == "__main__":
    main()
