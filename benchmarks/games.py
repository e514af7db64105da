"""How fast every game steps and trains here: the table of docs/guides/games.md.

    .venv/bin/python benchmarks/games.py [--only soccer,kart] [--rounds 5] [--seconds 3] [--quick]
    .venv/bin/python benchmarks/games.py --write          make the page from the newest record; measure nothing

*alone*: one process on one core steps the game with random actions that are allowed, as many envs as training has for
each worker. *training*: some seconds of real training on all cores, by the game's preset or by the defaults, compiling
not counted. Both are steps of agents per second of wall-clock, and games take turns, round by round. A game whose
package is not installed is left out, and said to be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from record import ROOT, Progress, Record, dated
from slipstream.api import configure
from slipstream.confidence import median_interval
from slipstream.errors import SlipstreamError
from slipstream.perf.trial import run_trial
from slipstream.system import machine
from slipstream.training.build import choose_env
from slipstream.vector.make import make_vector
from slipstream.vector.random_rollout import RandomRollout

PAGE = ROOT / "docs" / "guides" / "games.md"
RECORDS = ROOT / "benchmarks" / "records"


@dataclass(frozen=True)
class Line:
    """A game of the table."""

    what: str
    extra: str
    page: str
    flags: tuple[tuple[str, Any], ...] = ()


GAMES = {
    "soccer": Line("car soccer, 1v1", "", "self-play-soccer.md"),
    "soccer:3v3": Line("car soccer, 3v3", "", "self-play-soccer.md"),
    "kart": Line("a lap against the clock", "", "kart.md"),
    "treechop": Line("a small Minecraft, 64 x 64 pixels", "", "minecraft.md"),
    "rocket:1v1": Line("Rocket League's physics, 1v1", "rocket", "rocket.md"),
    "rocket:3v3": Line("Rocket League's physics, 3v3", "rocket", "rocket.md"),
    "mettagrid:arena": Line("MettaGrid, 24 agents, tokens, LSTM", "mettagrid", "mettagrid.md"),
    "atari:Pong": Line("Atari, 84 x 84 x 4 pixels", "atari", "vector-envs.md", (("plan__envs", 32),)),
    "pettingzoo:connect_four": Line("a board game, in turns", "pettingzoo", "pettingzoo.md", (("preset", "boards"),)),
    "pettingzoo:simple_tag": Line("four players at once", "pettingzoo", "pettingzoo.md"),
    "gymnasium:CartPole-v1": Line("Gymnasium's vector env", "", "vector-envs.md"),
    "gymnasium:HalfCheetah-v5": Line("MuJoCo, one env at a time", "", "your-own-env.md"),
}


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Stay on one core."""
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
        walk = RandomRollout(vector)
        walk.rate(seconds / 4)
        alone = walk.rate(seconds)
    return {"alone": alone, "training": trial.rate, "envs": trial.plan.envs.applied}


def summarise(rows: list[dict[str, Any]], lacking: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Medians with their intervals."""
    found: dict[str, Any] = {}
    lines = ["| game | alone, one core | training, all cores | envs |", "|---|---|---|---|"]
    for name in GAMES:
        own = [row for row in rows if row["contestant"] == name]
        if not own:
            continue
        found[name] = {"envs": own[0]["envs"]}
        for what in ("alone", "training"):
            middle, low, high, _ = median_interval([row[what] for row in own])
            found[name][what] = {"median": middle, "low": low, "high": high}
        cells = [f"{one['median']:,.0f} ({one['low']:,.0f} to {one['high']:,.0f})"
                 for one in (found[name]["alone"], found[name]["training"])]  # fmt: skip
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {found[name]['envs']} |")
    lines += ["", *(f"{name}: not measured: {why}" for name, why in lacking.items())]
    told = {"cpu": machine.cpu_model(), "cores": machine.cores(), "games": found}
    return told, f"# Games, {told['cpu']}, {told['cores']} cores\n\n" + "\n".join(lines)


def page(name: str, told: dict[str, Any]) -> str:
    """docs/guides/games.md, from a record."""
    rows = []
    for game, line in GAMES.items():
        own = told["games"].get(game)
        rates = [f"{own[what]['median']:,.0f}" if own else "" for what in ("alone", "training")]
        extra = f"`{line.extra}`" if line.extra else ""
        rows.append(f"| [`{game}`]({line.page}) | {line.what} | {extra} | {rates[0]} | {rates[1]} |")
    table = "\n".join(["| game | | extra | alone, one core | training |", "|---|---|---|---|---|", *rows])
    return f"""# Games

Made by `benchmarks/games.py --write` from record [{name}](../../benchmarks/records/{name}/summary.md): steps of
agents per second on {told["cores"]} cores ({told["cpu"]}). *Alone*: one core steps the game with random actions.
*Training*: all cores, end to end, with the game's preset or the defaults; networks and epochs differ from game to game.

{table}

An extra is installed with `pip install -c constraints.txt -e ".[NAME]"`. Any other Gymnasium environment is
`gymnasium:ID`, or [made in Python](your-own-env.md); EnvPool's are [`envpool:NAME`](vector-envs.md); RLGym's are handed
over [as they are](rocket.md). `slipstream envs` lists what there is, and `slipstream check-env ENV` looks at one.
"""


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(GAMES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--write", action="store_true", help="make the page; measure nothing")
    parser.add_argument("--quick", action="store_true", help="a look at the script, no record")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.write:
        newest = max(RECORDS.glob("*-games/summary.json"))
        PAGE.write_text(page(newest.parent.name, json.loads(newest.read_text())), encoding="utf-8")
        return
    if options.quick:
        options.rounds, options.seconds = 1, 0.3
    progress, record, lacking = Progress(0.0), Record(options.out or dated("games")), dict[str, str]()
    rows: list[dict[str, Any]] = []
    if not options.quick:
        record.begin()
    for number in range(options.rounds):
        for name in options.only:
            try:
                found = measure(name, options.seconds)
            except SlipstreamError as error:
                lacking[name] = error.message
                continue
            row = {"work": "games", "contestant": name, "round": number, **found}
            rows.append(row)
            progress.say(f"round {number + 1}: {name}: alone {found['alone']:,.0f}, training {found['training']:,.0f}")
            if not options.quick:
                record.load()
                record.add(row)
    summary, text = summarise(rows, lacking)
    if options.quick:
        print(text)
    else:
        record.close(summary, text)


if __name__ == "__main__":
    main()
