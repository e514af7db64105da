"""The demo: `slipstream run soccer` for several seeds, then games against the scripted players.

    .venv/bin/python benchmarks/demo.py [--seeds 3] [--first 0]
    .venv/bin/python benchmarks/demo.py --memory lstm     also with memory, after each run without

Runs `slipstream run soccer --seed S` as `scripts/demo` does. A row has the wall-clock time, the steps and the result of
the games against each scripted player, on held-out seeds and with sides swapped. With memory the same command runs with
`--set policy.memory=...`; its bar is three times the wall-clock time of the run without.
"""

from __future__ import annotations

import tempfile
from typing import Any

from harness import Result, call, make_parser, set_flags

BARS = {"scripted:chaser": 0.70, "scripted:rule": 0.50}
LIMIT_S = 480.0
MEMORY_SHARE = 3.0
"""Bar of the wall-clock time with memory, relative to the run without."""


def play(seed: int, memory: str) -> dict[str, Any]:
    """One run of the demo; its row."""
    flags = set_flags([f"policy.memory={memory}"])
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        facts, seconds = call("run", "soccer", "--seed", str(seed), *flags, "--run", f"{folder}/run")
    train, games = facts["train"], facts["evaluate"]["opponents"]
    kept = {key: train[key] for key in ("steps", "steps_per_second", "start_seconds")}
    return {"seed": seed, "memory": memory, "seconds": round(seconds, 1), **kept, "opponents": games}


def main() -> None:
    """Run every seed and write the result."""
    parser = make_parser(__doc__, quick=False)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--memory", choices=("gru", "lstm"), help="run with this memory beside each plain run")
    options = parser.parse_args()
    result = Result(f"demo-{options.memory}" if options.memory else "demo", options)
    lines = [
        "| seed | memory | seconds | steps | steps/s | against | games | win rate | low | bar |",
        "|" + "---|" * 10,
    ]
    passed, plain_s = True, 0.0
    for seed in range(options.first, options.first + options.seeds):
        for memory in ("none", options.memory) if options.memory else ("none",):
            result.gate()
            row = play(seed, memory)
            result.add({"work": "demo", "contestant": f"seed {seed} {memory}", **row})
            plain_s = row["seconds"] if memory == "none" else plain_s
            limit_s = LIMIT_S if memory == "none" else MEMORY_SHARE * plain_s
            for name, bar in BARS.items():
                found = row["opponents"][name]
                passed &= found["win_rate_low"] >= bar and row["seconds"] <= limit_s
                lines.append(
                    f"| {seed} | {memory} | {row['seconds']} | {row['steps']:,} | {row['steps_per_second']:,.0f} | "
                    f"{name} | {found['games']} | {found['win_rate']:.3f} | {found['win_rate_low']:.3f} | {bar} |"
                )
    text = "# The demo by seed\n\n" + "\n".join(lines) + f"\n\nAll bars met: **{'yes' if passed else 'no'}**"
    result.close({"passed": passed, "limit_s": LIMIT_S, "bars": BARS}, text)


if __name__ == "__main__":
    main()
