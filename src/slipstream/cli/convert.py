"""The verb for other projects' weights: convert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import main, print_result, shared
from slipstream.errors import CheckpointError


@main.command()
@click.argument("layout", metavar="LAYOUT")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder of the trunk that is written.")
@click.option("--minimum", type=float, default=1.0, show_default=True, help="The share of keys that must match.")
@shared
def convert(
    layout: str, source: Path, out: Path, minimum: float, as_json: bool, modules: tuple[str, ...]
) -> None:  # fmt: skip
    """Make a frozen trunk of other projects' weights, for `policy.trunk`.

    LAYOUT is `vpt`: FILE is the .weights of a VPT policy, or the same as safetensors.
    """
    from slipstream.stages.convert import convert as do

    reports: list[dict[str, Any]] = []
    try:
        facts = do(layout, source, out, minimum, reports.append)
    except CheckpointError:
        if as_json and reports:
            print_result(reports[0], as_json, "")
        raise
    print_result(facts, as_json, _converted(facts))


def _converted(facts: dict[str, Any]) -> str:
    return "\n".join(
        [
            ", ".join(f"{count} {what}" for what, count in facts["counts"].items()),
            f"written: {facts['out']} ({facts['features']} features of images of {facts['side']} pixels a side)",
            f"use it: slipstream train ENV --set policy.image=frozen --set policy.trunk={facts['out']}",
        ]
    )
