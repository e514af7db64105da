"""The verb of comparing: bench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import main, print_result, shared
from slipstream.errors import ConfigError

LEAST_ROUNDS = 5


@main.command()
@click.argument("sides", nargs=-1, metavar="A [B]")
@click.option("--env", help="What is trained on [soccer, or the baseline's].")
@click.option("--seconds", type=float, help="Training time of each run, warm-up aside [10].")
@click.option("--repeats", type=int, help=f"Rounds, each of which trains both sides [{LEAST_ROUNDS}].")
@click.option("--games", type=int, help="Games that measure the score after each run [0: the last episodes' return].")
@click.option("--gate", type=float, metavar="PERCENT", help="End with exit code 7 if B is slower by more than this.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Keep what B showed, as a baseline.")
@click.option("--against", type=click.Path(path_type=Path), metavar="FILE", help="Take a saved baseline as A.")
@click.option("--any-machine", is_flag=True, help="Compare with a baseline of another machine all the same.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting of both sides; may be repeated.")
@click.option("--seed", type=int, default=0, show_default=True, help="The rounds' seeds follow it.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where the results go [benches/ENV-TIME].")
@shared
def bench(
    sides: tuple[str, ...], repeats: int | None, words: tuple[str, ...], out: Path | None, as_json: bool,
    modules: tuple[str, ...], **flags: Any,
) -> None:  # fmt: skip
    """Compare the speed and the score of B with those of A, by training both, round by round.

    A side is words with commas between them: settings (KEY=VALUE), a preset, a YAML file, commit:REV, or nothing at all
    ("" are the defaults); A may be a baseline (FILE.json). One side alone needs --against or --save.
    """
    from slipstream.perf.bench import bench as do
    from slipstream.perf.bench import pass_gate
    from slipstream.perf.bench_report import lines
    from slipstream.runs.layout import default_path

    if not 1 <= len(sides) <= 2:
        raise ConfigError(f"{len(sides)} sides cannot be compared.", 'name two, for instance: "" plan.workers=1')
    if repeats is not None and repeats < LEAST_ROUNDS:
        raise ConfigError(
            f"{repeats} repeats are too few to tell a difference from chance.", f"give --repeats {LEAST_ROUNDS} or more"
        )
    place = out or default_path(flags["env"] or "bench", "benches")
    facts = do(
        sides, rounds=repeats, shared=words, modules=modules, out=place, say=lambda line: click.echo(line, err=True),
        **flags,
    )  # fmt: skip
    print_result(facts, as_json, lines(facts))
    pass_gate(facts)
