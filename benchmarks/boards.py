"""Board games by self-play: how an agent that has only played itself does against one that looks a move ahead.

    .venv/bin/python benchmarks/boards.py [--game connect_four] [--minutes 27] [--games 2000] [--seed 0] [--quick]

`slipstream train pettingzoo:GAME --preset boards`, from random weights and on all cores; then so many games of the best
copy against `scripted:lookahead`, which wins where it can, else stops a win, else plays anything. The clock runs from
the start of the command, imports and compiling included. --quick is a look at the script.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from record import Record, call, dated, pairs

GOAL, LIMIT_S = 0.80, 1800.0
OPPONENT = "scripted:lookahead"


def main() -> None:
    """Train, play, and say whether the bar is held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="connect_four")
    parser.add_argument("--minutes", type=float, default=27.0, help="of training")
    parser.add_argument("--games", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a look at the script")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.minutes, options.games = 1.0, 20
    env = f"pettingzoo:{options.game}"
    record = Record(options.out or dated(f"boards-{options.game}"))
    record.begin()
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        run = Path(folder) / "run"
        record.load()
        trained, train_s = call(
            "train", env, "--preset", "boards", "--minutes", str(options.minutes), "--seed", str(options.seed), "--run",
            str(run), *pairs(("every.evaluate=100000",) if options.quick else ()),
        )  # fmt: skip
        way = [
            {key: row[key] for key in ("steps", "time/seconds", "evaluate/score", "evaluate/win_rate_low")}
            for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            if "evaluate/games" in row
        ]
        record.add({"work": env, "contestant": "training", "seconds": train_s, "steps": trained["steps"], "way": way})
        record.load()
        told, played_s = call(
            "evaluate", f"run:{run}@best", "--env", env, "--opponent", OPPONENT, "--games", str(options.games),
            "--seed", str(1_000_000 + options.seed),
        )  # fmt: skip
        record.add({"work": env, "contestant": OPPONENT, "seconds": played_s, **told})
    met = told["win_rate_low"] >= GOAL and train_s <= LIMIT_S
    summary: dict[str, Any] = {"train_s": train_s, "steps": trained["steps"], "met": met, "way": way, "played": told}
    text = f"""# {env}: self-play from random weights, then {options.games:,} games against {OPPONENT}

{trained["steps"]:,} steps in {train_s:,.0f} s. Win rate {told["win_rate"]:.3f}, at least {told["win_rate_low"]:.3f}
(95 %; bar {GOAL:.2f} in {LIMIT_S / 60:.0f} minutes): {"held" if met else "MISSED"}."""
    record.close(summary, text)


if __name__ == "__main__":
    main()
