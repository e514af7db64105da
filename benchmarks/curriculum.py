"""A staged curriculum: soccer 3v3 in equal wall-clock, with and without stages of 1v1 and 2v2.

    .venv/bin/python benchmarks/curriculum.py --minutes 10 [--seeds 3] [--games 200] [--jobs 6]

For every seed two agents train from random weights for the same minutes, each alone on its cores: one through the
game's stages, one on 3v3 from the start. Then all agents and `scripted:rule` play a 3v3 round-robin tournament. The
result is the difference of the two ratings of a seed with a 95 % interval over the seeds (Student's t).
"""

from __future__ import annotations

import queue
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))


from harness import Result, call, make_parser, read_lines, set_flags, table
from slipstream.confidence import mean_interval, wilson

ENV, TARGET, REFERENCE = "soccer:mixed", "env.target=[3v3]", "scripted:rule"
VARIANTS = {"staged": ("curriculum.kind=staged",), "direct": ()}


def train(variant: str, seed: int, folder: Path, minutes: float, pin: str) -> dict[str, Any]:
    """Train one agent; its row."""
    run = folder / f"{variant}-{seed}"
    settings = set_flags((TARGET, "every.evaluate=0", *VARIANTS[variant]))
    facts, wall = call(
        "train", ENV, "--run", str(run), "--seed", str(seed), "--minutes", str(minutes), *settings, pin=pin
    )
    rows = read_lines(run / "metrics.jsonl")
    stages = [row["curriculum/stage"] for row in rows if "curriculum/stage" in row]
    moves = [event for event in read_lines(run / "events.jsonl") if event["kind"] == "curriculum"]
    return {
        "seconds": facts["seconds"],
        "wall_s": wall,
        "steps": facts["steps"],
        "steps_per_second": facts["steps_per_second"],
        "stage": stages[-1] if stages else None,
        "moves": moves,
    }


def play_tournament(folder: Path, seeds: int, games: int) -> tuple[dict[str, dict[str, Any]], list[list[Any]], float]:
    """Play the tournament: players by name, scores of staged against direct by seed, and the wall-clock time."""
    agents = {
        f"run:{folder / f'{variant}-{seed}'}": f"{variant}-{seed}" for seed in range(seeds) for variant in VARIANTS
    }
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
    """Ratings, their differences with an interval, and the changes of stage."""
    ratings = [
        [
            name,
            f"{one['rating']:.0f}",
            f"{one['low']:.0f} to {one['high']:.0f}",
            *(f"{runs[name][key]:,.0f}" if name in runs else "" for key in ("steps", "steps_per_second")),
            f"{runs[name]['stage']:.0f}" if runs.get(name, {}).get("stage") else "",
        ]
        for name, one in sorted(players.items(), key=lambda item: -item[1]["rating"])
    ]
    gains = [players[f"staged-{seed}"]["rating"] - players[f"direct-{seed}"]["rating"] for seed, _, _ in met]
    mean, low, high = mean_interval(gains)
    games = sum(count for _, _, count in met)
    score = sum(rate * count for _, rate, count in met) / games
    score_low, score_high = wilson(score * games, games)
    verdict = "met" if low > 0 else "not met: it is lower" if high < 0 else "not met: the interval includes 0"
    verdict = verdict if len(met) > 1 else "unknown: one seed has no interval"
    lines = [[seed, f"{gain:+.0f}", f"{rate:.3f}"] for gain, (seed, rate, _) in zip(gains, met, strict=True)]
    moves = [[name, f"{move['steps']:,}", move["text"]] for name, run in runs.items() for move in run["moves"]] or [
        ["-", "-", "no change of stage"]
    ]
    text = "\n\n".join(
        [
            f"# Soccer 3v3 after {minutes:g} minutes: staged, or 3v3 from the start",
            table(("agent", "rating", "95 %", "steps", "steps/s", "stage"), ratings),
            table(("seed", "rating staged - direct", "score staged against direct"), lines),
            f"Mean difference of the ratings: **{mean:+.0f}** ({low:+.0f} to {high:+.0f}, 95 % over {len(met)} seeds). "
            f"Against each other: score {score:.3f} ({score_low:.3f} to {score_high:.3f}, {games} games). "
            f"A higher rating in equal wall-clock: {verdict}.",
            "## Changes of stage",
            table(("agent", "steps", "decision"), moves),
        ]
    )
    facts = {"gains": gains, "gain": mean, "gain_low": low, "gain_high": high, "score": score}
    return facts | {"score_low": score_low, "score_high": score_high, "met": low > 0, "players": players}, text


def main() -> None:
    """Train, play the tournament, write the result."""
    parser = make_parser(__doc__, quick=False)
    parser.add_argument("--minutes", type=float, default=10.0, help="training of each agent")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--games", type=int, default=200, help="of every pair")
    parser.add_argument("--jobs", type=int, default=1, help="agents that train at once, each pinned to two cores")
    options = parser.parse_args()
    result = Result("curriculum", options)
    runs: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="slipstream-") as place:
        folder = Path(place)
        result.gate()
        free: queue.Queue[str] = queue.Queue()
        for job in range(options.jobs):
            free.put(f"{2 * job},{2 * job + 1}" if options.jobs > 1 else "")

        def work(variant: str, seed: int) -> dict[str, Any]:
            pin = free.get()
            try:
                return train(variant, seed, folder, options.minutes, pin)
            finally:
                free.put(pin)

        with ThreadPoolExecutor(options.jobs) as pool:
            kinds = [(variant, seed) for seed in range(options.seeds) for variant in VARIANTS]
            for (variant, seed), run in zip(kinds, pool.map(lambda kind: work(*kind), kinds), strict=True):
                runs[f"{variant}-{seed}"] = run
                result.add({"work": "3v3", "contestant": variant, "seed": seed, **run})
        result.gate()
        players, met, wall = play_tournament(folder, options.seeds, options.games)
        result.add({"work": "3v3", "contestant": "tournament", "seconds": wall, "players": players, "met": met})
    result.close(*page(runs, players, met, options.minutes))


if __name__ == "__main__":
    main()
