"""The verb `convert`: pretrained weights of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import main, print_result, shared
from slipstream.errors import CheckpointError


@main.command()
@click.argument("layout", metavar="LAYOUT")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The output folder.")
@click.option("--minimum", type=float, default=1.0, show_default=True, help="Minimum share of matching keys.")
@shared
def convert(layout: str, source: Path, out: Path, minimum: float, as_json: bool, modules: tuple[str, ...]) -> None:
    """Convert weights of another project to a frozen network for `policy.trunk`.

    LAYOUT is `vpt`: FILE is the .weights file of a VPT policy, or the same weights as safetensors.
    """
    from slipstream.stages.convert import convert as stage

    reports: list[dict[str, Any]] = []
    try:
        facts = stage(layout, source, out, minimum, reports.append)
    except CheckpointError:
        if as_json and reports:
            print_result(reports[0], as_json, "")
        raise
    print_result(facts, as_json, _convert_text(facts))


def _convert_text(facts: dict[str, Any]) -> str:
    return "\n".join(
        [
            ", ".join(f"{count} {what}" for what, count in facts["counts"].items()),
            f"written: {facts['out']} ({facts['features']} features of images of {facts['side']} pixels a side)",
            f"use it: slipstream train ENV --set policy.image=frozen --set policy.trunk={facts['out']}",
        ]
    )
