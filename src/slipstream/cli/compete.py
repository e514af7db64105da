"""The verb compete: training by self-play in a league."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import configurable, exit_with, main, print_result, resolve_settings, shared
from slipstream.cli.train import trained


@main.command()
@click.argument("env")
@configurable
@click.option("--start", metavar="AGENT", help="Begin as run:DIR, and take care not to forget it.")
@shared
def compete(env: str, place: Path | None, as_json: bool, modules: tuple[str, ...], **flags: Any) -> None:
    """Train on ENV by self-play in a league of frozen copies, with ratings."""
    from slipstream.stages.compete import compete as do

    choice, resolved = resolve_settings(env, modules, flags)
    _tell(do(choice, resolved, place), as_json)


def resume_league(run: Path, steps: int | None, modules: tuple[str, ...], as_json: bool) -> None:
    """Go on with a league."""
    from slipstream.stages.compete import resume

    _tell(resume(run, steps, modules), as_json)


def _tell(facts: dict[str, Any], as_json: bool) -> None:
    from slipstream.league.ladder_text import ladder_text

    print_result(facts, as_json, "\n".join([ladder_text(facts["ladder"]["tables"]), "", trained(facts)]))
    exit_with(facts)
