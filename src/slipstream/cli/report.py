"""The verb for looking back at a run: report."""

from __future__ import annotations

from pathlib import Path

import click

from slipstream.cli.app import main, print_result, shared


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@shared
def report(run: Path, as_json: bool, modules: tuple[str, ...]) -> None:
    """Make the report.html of RUN anew, a run or a tournament: one page that opens anywhere, without a network."""
    from slipstream.runs.layout import RunDir
    from slipstream.stages.report import report as do

    facts = do(RunDir(run) if (run / "ladder.json").is_file() else RunDir.open(run))
    print_result(facts, as_json, f"{facts['report']}: {', '.join(facts['sections']).lower()}")
