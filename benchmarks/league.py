"""The league: speed, strength and exploitability.

    .venv/bin/python benchmarks/league.py --work speed  [--rounds 5]
    .venv/bin/python benchmarks/league.py --work season [--minutes 10] [--exploit 5] [--games 2000]
    .venv/bin/python benchmarks/league.py --work tournament

speed: steps per second of training against a pool of eight frozen copies and against one scripted player, interleaved.
season: soccer from a clone: a league of some minutes, and training with the preset's length. Then a sequential test of
the league's best checkpoint against the start of the run, its rating, its win rate against `scripted:rule`, its score
against every earlier copy, and the score of a new exploiter, trained from the same clone for some minutes, against the
league's best and against the trained agent.
tournament: six agents, 200 games per pair.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent / "peers"))


from harness import Result, call, interleave, make_parser, read_lines, set_flags, spread, table, verdict
from slipstream.agents.specs import load_agent
from slipstream.api import configure
from slipstream.confidence import wilson
from slipstream.league.sprt import Sprt
from slipstream.play.engine import play_scheduled
from slipstream.play.games import paired_games
from slipstream.training.build import choose_env

RULE, CHASER, KEEPER = "scripted:rule", "scripted:chaser", "scripted:keeper"
POOL = 8
NO_EVALUATION = ("every.evaluate=0", "every.checkpoint=0", "league.snapshot=1000000000", "league.rating_games=2")
HELD_OUT = 77_000


def clone(folder: Path, seed: int) -> Path:
    """Record the scripted player and clone it as `run soccer` does."""
    demos, run = folder / "demos", folder / "clone"
    call("record", RULE, "--env", "soccer", "--episodes", "2000", "--out", str(demos), "--seed", str(seed))
    call("clone", str(demos), "--run", str(run), "--seed", str(seed))
    return run


def speed(result: Result, folder: Path, rounds: int, steps: int) -> tuple[dict[str, Any], str]:
    """Rates against a scripted player and against a pool, in interleaved rounds."""
    copies = []
    for number in range(POOL - 1):
        words = ("train", "soccer", "--run", str(folder / f"copy{number}"), "--seed", str(number))
        call(*words, "--steps", "200000", *set_flags(NO_EVALUATION[:2]))
        copies.append(f"run:{folder / f'copy{number}'}")
    anchors = f"league.anchors=[{', '.join(copies)}]"
    rates: dict[str, list[float]] = {"scripted": [], "pool": []}
    for turn, name in interleave(rounds, rates):
        result.gate()
        words = ["--steps", str(steps), "--run", str(folder / f"{name}-{turn}"), *set_flags(NO_EVALUATION)]
        if name == "scripted":
            facts, _ = call("train", "soccer", "--opponent", RULE, *words)
        else:
            facts, _ = call("compete", "soccer", *words, *set_flags((anchors, "league.matchmaking=uniform")))
        rates[name].append(facts["steps_per_second"])
        row = {"work": "speed", "contestant": name, "round": turn}
        result.add({**row, "steps_per_second": facts["steps_per_second"]})
    ratio = spread([pool / one for pool, one in zip(rates["pool"], rates["scripted"], strict=True)])
    met = verdict(ratio["median"] >= 0.7)
    lines = [[name, f"{spread(values)['median']:,.0f}"] for name, values in rates.items()]
    text = (
        f"# Soccer 1v1 against a pool of {POOL} frozen copies and against one scripted opponent\n\n"
        + table(("opponents", "steps/s, median"), lines)
        + f"\n\nPool against scripted: **{ratio['median']:.2f}** ({ratio['low']:.2f}..{ratio['high']:.2f}, {rounds} "
        + f"interleaved rounds; bar 0.70, {met}). Only the learner's steps count."
    )
    return {"ratio": ratio, "rates": rates}, text


def meet(one: str, other: str, games: int, seed: int) -> dict[str, Any]:
    """Paired greedy games: the outcomes of the first agent."""
    choice = choose_env("soccer", configure("soccer").settings)
    played = play_scheduled(
        choice, lambda name, spec, where: load_agent(name, spec, where), paired_games(one, other, games, seed)
    )
    outcomes = [game.outcome if game.game.players[0] == one else -game.outcome for game in played]
    wins, draws = outcomes.count(1), outcomes.count(0)
    low, high = wilson(wins + draws / 2, games)
    first, last = wilson(wins, games)
    found = {
        "one": one,
        "other": other,
        "games": games,
        "wins": wins,
        "draws": draws,
        "score": (wins + draws / 2) / games,
    }
    return found | {"score_low": low, "score_high": high, "win_low": first, "win_high": last, "outcomes": outcomes}


def run_sprt(one: str, other: str, seed: int) -> Sprt:
    """A sequential test of [0, 35] Elo on pairs of games, up to 2,000 games."""
    test = Sprt()
    while test.verdict == "INCONCLUSIVE" and test.games < 2000:
        outcomes = meet(one, other, 64, seed + test.games)["outcomes"]
        for first, second in zip(outcomes[::2], outcomes[1::2], strict=True):
            test.add(first, second)
    return test


def season(
    result: Result, folder: Path, seed: int, minutes: float, exploit: float, games: int
) -> tuple[dict[str, Any], str]:
    """Train all agents and compare them."""
    result.gate()
    start = ["--start", f"run:{clone(folder, seed)}", "--seed", str(seed)]
    result.add({"work": "season", "contestant": "clone"})
    result.gate()
    alone, _ = call("train", "soccer", "--run", str(folder / "alone"), *start)
    result.add({"work": "season", "contestant": "train only", **alone})
    result.gate()
    words = ("--minutes", str(minutes), *set_flags(("every.evaluate=0",)))
    league, wall = call("compete", "soccer", "--run", str(folder / "league"), *start, *words)
    kept = {key: league[key] for key in ("steps", "seconds", "steps_per_second")}
    result.add({"work": "season", "contestant": "league", **kept, "wall_s": wall})
    best = json.loads((folder / "league" / "checkpoints" / "best.json").read_text())
    agent, plain = f"run:{folder / 'league'}@best", f"run:{folder / 'alone'}"
    events = read_lines(folder / "league" / "events.jsonl")
    copies = [
        int(event["text"].split()[0].partition("@")[2])
        for event in events
        if event["text"].startswith("main@") and event["kind"] == "snapshot"
    ]
    test = run_sprt(agent, f"run:{folder / 'league' / 'pool'}@0", HELD_OUT)
    rule = meet(agent, RULE, games, HELD_OUT + 1)
    earlier = []
    for steps in copies:
        if steps < best["steps"]:
            one = meet(agent, f"run:{folder / 'league' / 'pool'}@{steps}", games, HELD_OUT + 2 + steps)
            earlier.append({key: value for key, value in one.items() if key != "outcomes"} | {"steps": steps})
            result.add({"work": "earlier", "contestant": f"main@{steps}", **earlier[-1]})
    ladder, _ = call(
        "tournament",
        agent,
        plain,
        f"run:{folder / 'clone'}",
        RULE,
        CHASER,
        KEEPER,
        "--env",
        "soccer",
        "--games",
        "400",
        "--seed",
        "5",
        "--run",
        str(folder / "ladder"),
    )
    exploiters = {}
    for name, victim in (("league", agent), ("train only", plain)):
        result.gate()
        run = folder / f"exploiter-{name.split()[0]}"
        words = ("--minutes", str(exploit), "--opponent", victim, *set_flags(("every.evaluate=0",)))
        facts, _ = call("train", "soccer", "--run", str(run), *start, *words)
        exploiters[name] = meet(f"run:{run}", victim, games, HELD_OUT + 3)
        exploiters[name]["steps"] = facts["steps"]
        result.add(
            {"work": "exploiter", "contestant": name, **{k: v for k, v in exploiters[name].items() if k != "outcomes"}}
        )
    return _season_page(league, best, test, rule, earlier, ladder, exploiters, plain, games)


def _season_page(
    league: dict[str, Any],
    best: dict[str, Any],
    test: Sprt,
    rule: dict[str, Any],
    earlier: list[dict[str, Any]],
    ladder: dict[str, Any],
    exploiters: dict[str, dict[str, Any]],
    plain: str,
    games: int,
) -> tuple[dict[str, Any], str]:
    """The summary and the report."""
    (board,) = ladder["tables"]
    rated = next(player for player in board["players"] if "league" in player["agent"])
    worst = min(earlier, key=lambda one: one["score_low"]) if earlier else None
    gap = exploiters["train only"]["score"] - exploiters["league"]["score"]
    error = math.sqrt(sum(one["score"] * (1 - one["score"]) / games for one in exploiters.values()))
    rows = [
        ["SPRT [0, 35] Elo against the start of the run", f"{test.verdict} after {test.games} games", "PASS"],
        ["rating, lower bound", f"{rated['low']:.0f} (rating {rated['rating']:.0f})", "1600"],
        ["win rate against scripted:rule, lower bound", f"{rule['win_low']:.3f} ({games} games)", "0.70"],
        [
            "lowest score bound against an earlier copy",
            f"{worst['score_low']:.3f} (main@{worst['steps']}, of {len(earlier)})" if worst else "no copy",
            "0.45",
        ],
        [
            "score of an exploiter: against train only minus against the league",
            f"{gap:+.3f} ({gap - 1.96 * error:+.3f} to {gap + 1.96 * error:+.3f})",
            "> 0",
        ],
    ]
    ranks = [
        [
            player["short"],
            f"{player['rating']:.0f}",
            f"{player['low']}" if player["low"] is None else f"{player['low']:.0f} to {player['high']:.0f}",
        ]
        for player in board["players"]
    ]
    scores = [
        [name, f"{one['score']:.3f}", f"{one['score_low']:.3f} to {one['score_high']:.3f}", f"{one['steps']:,}"]
        for name, one in exploiters.items()
    ]
    ways = [[f"main@{one['steps']}", f"{one['score']:.3f}", f"{one['score_low']:.3f}"] for one in earlier]
    text = "\n\n".join(
        [
            f"# A league of {league['seconds'] / 60:.1f} minutes from the clone ({league['steps']:,} steps, best at "
            f"{best['steps']:,})",
            table(("what", "found", "bar"), rows),
            "## Ladder",
            table(("agent", "rating", "95 %"), ranks),
            "## Against every earlier copy",
            table(("copy", "score", "lower bound"), ways),
            "## New exploiters from the same clone",
            table(("against", "score", "95 %", "steps"), scores),
        ]
    )
    facts = {
        "test": test.describe(),
        "rating": rated,
        "rule": {k: v for k, v in rule.items() if k != "outcomes"},
        "earlier": earlier,
    }
    return facts | {"exploit_gap": [gap, gap - 1.96 * error, gap + 1.96 * error], "ladder": board}, text


def tournament(result: Result, folder: Path) -> tuple[dict[str, Any], str]:
    """Six agents, every pair."""
    agents = [RULE, CHASER, KEEPER, "random"]
    for number in range(2):
        run = folder / f"run{number}"
        call(
            "train",
            "soccer",
            "--run",
            str(run),
            "--steps",
            "2000000",
            "--seed",
            str(number),
            *set_flags(NO_EVALUATION[:2]),
        )
        agents.append(f"run:{run}")
    times = []
    for turn in range(3):
        result.gate()
        words = ["--env", "soccer", "--games", "200", "--seed", str(turn), "--run", str(folder / f"t{turn}")]
        _, wall = call("tournament", *agents, *words)
        times.append(wall)
        result.add({"work": "tournament", "contestant": "6 agents", "round": turn, "seconds": wall})
    found = spread(times)
    text = (
        "# Tournament of 6 agents, 200 games per pair (3,000 games)\n\n"
        f"**{found['median']:.1f} s** ({found['min']:.1f}..{found['max']:.1f}, including start-up; bar 30 s)."
    )
    return {"seconds": found}, text


def main() -> None:
    """Run one part and write its result."""
    parser = make_parser(__doc__, rounds=5, quick=False)
    parser.add_argument("--work", choices=("speed", "season", "tournament"), required=True)
    parser.add_argument("--steps", type=int, default=10_000_000, help="steps of each run of `speed`")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of the league")
    parser.add_argument("--exploit", type=float, default=5.0, help="minutes of each exploiter")
    parser.add_argument("--games", type=int, default=2000, help="paired games against each other agent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the runs in this folder")
    options = parser.parse_args()
    result = Result(f"league-{options.work}", options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if options.work == "speed":
            facts, text = speed(result, folder, options.rounds, options.steps)
        elif options.work == "season":
            facts, text = season(result, folder, options.seed, options.minutes, options.exploit, options.games)
        else:
            facts, text = tournament(result, folder)
    result.close(facts, text)


if __name__ == "__main__":
    main()
