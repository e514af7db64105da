"""The verb `bench`: an A/B benchmark of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import main, print_result, shared
from slipstream.errors import ConfigError

LEAST_ROUNDS = 5


@main.command()
@click.argument("sides", nargs=-1, metavar="A [B]")
@click.option("--env", help="The environment [soccer, or that of the baseline].")
@click.option("--seconds", type=float, help="Training time of each run without warm-up [10].")
@click.option("--repeats", type=int, help=f"Interleaved rounds of both variants [{LEAST_ROUNDS}].")
@click.option(
    "--games", type=int, help="Evaluation games after each run [0: the score is the return of the last episodes]."
)
@click.option("--gate", type=float, metavar="PERCENT", help="Exit with code 7 if B is slower by more than this.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Save the runs of B as a baseline.")
@click.option("--against", type=click.Path(path_type=Path), metavar="FILE", help="Use a saved baseline as A.")
@click.option("--any-machine", is_flag=True, help="Allow a baseline of another machine.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting of both variants; may be repeated.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the first round.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the results [benches/ENV-TIME].")
@shared
def bench(
    sides: tuple[str, ...],
    repeats: int | None,
    words: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    modules: tuple[str, ...],
    **flags: Any,
) -> None:
    """Compare the speed and the score of B with those of A by training both in interleaved rounds.

    A variant is a comma-separated list of settings (KEY=VALUE), presets, a YAML file and commit:REV; "" are the
    defaults. A may be a baseline (FILE.json). A single variant needs --against or --save.
    """
    from slipstream.perf.bench import bench as do
    from slipstream.perf.bench import pass_gate
    from slipstream.perf.bench_report import lines
    from slipstream.runs.layout import default_path

    if not 1 <= len(sides) <= 2:
        raise ConfigError(f"{len(sides)} variants cannot be compared.", 'name two, for example: "" plan.workers=1')
    if repeats is not None and repeats < LEAST_ROUNDS:
        raise ConfigError(
            f"{repeats} repeats are too few for a significant difference.", f"give --repeats {LEAST_ROUNDS} or more"
        )
    place = out or default_path(flags["env"] or "bench", "benches")
    facts = do(
        sides,
        rounds=repeats,
        shared=words,
        modules=modules,
        out=place,
        say=lambda line: click.echo(line, err=True),
        **flags,
    )
    print_result(facts, as_json, lines(facts))
    pass_gate(facts)
