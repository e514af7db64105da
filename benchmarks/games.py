"""Speed of every game, alone and in training: the table of docs/guides/games.md.

    .venv/bin/python benchmarks/games.py [--only soccer,kart] [--rounds 5] [--seconds 3] [--quick]
    .venv/bin/python benchmarks/games.py --write          write the page from the result; measure nothing

*alone*: one process on one core steps the game with random legal actions, with as many envs as a training worker has.
*training*: some seconds of training on all cores with the game's preset or the defaults, without compiling. Both are
agent-steps per second of wall-clock, in interleaved rounds. A game whose package is not installed is left out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness import ROOT, Result, interleave, make_parser, read_result, split_names, table
from slipstream.api import configure
from slipstream.confidence import median_interval
from slipstream.errors import SlipstreamError
from slipstream.perf.trial import run_trial
from slipstream.system import machine
from slipstream.training.build import choose_env
from slipstream.vector.make import make_vector
from slipstream.vector.random_rollout import RandomRollout

PAGE = ROOT / "docs" / "guides" / "games.md"


@dataclass(frozen=True)
class GameLine:
    """A row of the table."""

    what: str
    extra: str
    page: str
    flags: tuple[tuple[str, Any], ...] = ()


GAMES = {
    "soccer": GameLine("car soccer, 1v1", "", "self-play-soccer.md"),
    "soccer:3v3": GameLine("car soccer, 3v3", "", "self-play-soccer.md"),
    "kart": GameLine("a lap against the clock", "", "kart.md"),
    "treechop": GameLine("a small Minecraft, 64 x 64 pixels (or 128 x 128)", "", "minecraft.md"),
    "rocket:1v1": GameLine("Rocket League's physics, 1v1", "rocket", "rocket.md"),
    "rocket:3v3": GameLine("Rocket League's physics, 3v3", "rocket", "rocket.md"),
    "mettagrid:arena": GameLine("MettaGrid, 24 agents, tokens, LSTM", "mettagrid", "mettagrid.md"),
    "atari:Pong": GameLine("Atari, 84 x 84 x 4 pixels", "atari", "vector-envs.md", (("plan__envs", 32),)),
    "pettingzoo:connect_four": GameLine(
        "a board game, in turns", "pettingzoo", "pettingzoo.md", (("preset", "boards"),)
    ),
    "pettingzoo:simple_tag": GameLine("four players at once", "pettingzoo", "pettingzoo.md"),
    "gymnasium:CartPole-v1": GameLine("Gymnasium's vector env", "", "vector-envs.md"),
    "gymnasium:HalfCheetah-v5": GameLine("MuJoCo, one env at a time", "", "your-own-env.md"),
}


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Pin this process to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(name: str, seconds: float) -> dict[str, float]:
    """Steps per second alone and in training."""
    flags = dict(GAMES[name].flags)
    preset = flags.pop("preset", None)
    settings = configure(name, preset=preset, flags={"every__evaluate": 0, **flags}, tuned=False).settings
    choice = choose_env(name, settings)
    trial = run_trial(choice, settings, seconds=seconds)
    envs = max(1, trial.plan.envs.applied // machine.cores())
    with one_core(), contextlib.closing(make_vector(choice, envs)) as vector:
        rollout = RandomRollout(vector)
        rollout.rate(seconds / 4)
        alone = rollout.rate(seconds)
    return {"alone": alone, "training": trial.rate, "envs": trial.plan.envs.applied}


def summarise(rows: list[dict[str, Any]], missing: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Medians with their intervals."""
    found: dict[str, Any] = {}
    lines = []
    for name in GAMES:
        own = [row for row in rows if row["contestant"] == name]
        if not own:
            continue
        found[name] = {"envs": own[0]["envs"]}
        for what in ("alone", "training"):
            middle, low, high, _ = median_interval([row[what] for row in own])
            found[name][what] = {"median": middle, "low": low, "high": high}
        cells = [
            f"{one['median']:,.0f} ({one['low']:,.0f} to {one['high']:,.0f})"
            for one in (found[name]["alone"], found[name]["training"])
        ]
        lines.append([name, *cells, found[name]["envs"]])
    notes = [f"{name}: not measured: {why}" for name, why in missing.items()]
    summary = {"cpu": machine.cpu_model(), "cores": machine.cores(), "games": found}
    header = ("game", "alone, one core", "training, all cores", "envs")
    title = f"# Games, {summary['cpu']}, {summary['cores']} cores"
    return summary, "\n\n".join([title, table(header, lines), *notes])


def page(summary: dict[str, Any]) -> str:
    """docs/guides/games.md, from the summary of the result."""
    rows = []
    for game, line in GAMES.items():
        own = summary["games"].get(game)
        rates = [f"{own[what]['median']:,.0f}" if own else "" for what in ("alone", "training")]
        extra = f"`{line.extra}`" if line.extra else ""
        rows.append(f"| [`{game}`]({line.page}) | {line.what} | {extra} | {rates[0]} | {rates[1]} |")
    lines = "\n".join(["| game | | extra | alone, one core | training |", "|---|---|---|---|---|", *rows])
    return f"""# Games

Written by `benchmarks/games.py --write` from [`benchmarks/results/games.json`](../results.md#games):
agent-steps per second on {summary["cores"]} cores ({summary["cpu"]}). *Alone*: one core steps the game with random
actions. *Training*: all cores, end to end, with the game's preset or the defaults; networks and epochs differ between
games.

{lines}

An extra is installed with `pip install -c constraints.txt -e ".[NAME]"`. Any other Gymnasium environment is
`gymnasium:ID`, or [written in Python](your-own-env.md); EnvPool's are [`envpool:NAME`](vector-envs.md); RLGym's are
passed [as objects](rocket.md). `slipstream envs` lists the games, and `slipstream check-env ENV` checks one.
"""


def main() -> None:
    """Measure, or write the page."""
    parser = make_parser(__doc__, rounds=5, seconds=3.0)
    parser.add_argument("--only", type=split_names, default=list(GAMES))
    parser.add_argument("--write", action="store_true", help="write the page; measure nothing")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(page(read_result("games")["summary"]), encoding="utf-8")
        return
    if options.quick:
        options.rounds, options.seconds = 1, 0.3
    result, missing = Result("games", options), dict[str, str]()
    for turn, name in interleave(options.rounds, options.only):
        result.gate()
        try:
            found = measure(name, options.seconds)
        except SlipstreamError as error:
            missing[name] = error.message
            continue
        result.add({"work": "games", "contestant": name, "round": turn, **found})
    result.close(*summarise(result.rows, missing))


if __name__ == "__main__":
    main()
