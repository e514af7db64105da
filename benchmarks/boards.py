"""Board games: train by self-play, then play against an opponent that searches one move ahead.

    .venv/bin/python benchmarks/boards.py [--game connect_four] [--minutes 27] [--games 2000] [--seed 0] [--quick]

`slipstream train pettingzoo:GAME --preset boards` trains from random weights on all cores. Then the best checkpoint
plays against `scripted:lookahead`, which wins if it can, else blocks a win, else plays at random. The time includes
imports and compiling.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from harness import Result, call, make_parser, read_lines, set_flags, verdict

BAR, LIMIT_S = 0.80, 1800.0
OPPONENT = "scripted:lookahead"


def main() -> None:
    """Train, evaluate, and report the verdict on the bar."""
    parser = make_parser(__doc__)
    parser.add_argument("--game", default="connect_four")
    parser.add_argument("--minutes", type=float, default=27.0, help="of training")
    parser.add_argument("--games", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.quick:
        options.minutes, options.games = 1.0, 20
    env = f"pettingzoo:{options.game}"
    result = Result(f"boards-{options.game}", options)
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        run = Path(folder) / "run"
        result.gate()
        trained, train_s = call(
            "train",
            env,
            "--preset",
            "boards",
            "--minutes",
            str(options.minutes),
            "--seed",
            str(options.seed),
            "--run",
            str(run),
            *set_flags(("every.evaluate=100000",) if options.quick else ()),
        )
        curve = [
            {key: row[key] for key in ("steps", "time/seconds", "evaluate/score", "evaluate/win_rate_low")}
            for row in read_lines(run / "metrics.jsonl")
            if "evaluate/games" in row
        ]
        result.add(
            {"work": env, "contestant": "training", "seconds": train_s, "steps": trained["steps"], "curve": curve}
        )
        result.gate()
        played, played_s = call(
            "evaluate",
            f"run:{run}@best",
            "--env",
            env,
            "--opponent",
            OPPONENT,
            "--games",
            str(options.games),
            "--seed",
            str(1_000_000 + options.seed),
        )
        result.add({"work": env, "contestant": OPPONENT, "seconds": played_s, **played})
    met = played["win_rate_low"] >= BAR and train_s <= LIMIT_S
    summary: dict[str, Any] = {
        "train_s": train_s,
        "steps": trained["steps"],
        "met": met,
        "curve": curve,
        "played": played,
    }
    text = f"""# {env}: self-play from random weights, then {options.games:,} games against {OPPONENT}

{trained["steps"]:,} steps in {train_s:,.0f} s. Win rate {played["win_rate"]:.3f}, at least {played["win_rate_low"]:.3f}
(95 %; bar {BAR:.2f} in {LIMIT_S / 60:.0f} minutes): {verdict(met)}."""
    result.close(summary, text)


if __name__ == "__main__":
    main()
