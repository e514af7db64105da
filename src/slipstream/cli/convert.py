"""The command `convert`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import env_set_option, given, main, print_result, shared
from slipstream.errors import CheckpointError, ConfigError


@main.command()
@click.argument("layout", metavar="LAYOUT")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The new folder of the trunk or the run.")
@click.option("--env", help="sb3: the environment of the model.")
@click.option("--minimum", type=float, help="vpt, vpt-agent: the share of keys that must match.  [default: 1.0]")
@click.option("--temperature", type=float, help="vpt-agent: the temperature of the actions [2, as published].")
@env_set_option
@shared
def convert(
    layout: str,
    source: Path,
    out: Path,
    env: str | None,
    minimum: float | None,
    temperature: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert weights of another project.

    LAYOUT is `vpt` or `vpt-agent`: FILE is the .weights file of a VPT policy, or the same as safetensors. `vpt` makes a
    frozen trunk of its image encoder, for `policy.trunk`; `vpt-agent` makes a run of the whole policy. Or LAYOUT is
    `sb3`: FILE is the .zip file of a Stable-Baselines3 model with an MlpPolicy or MlpLstmPolicy. A run plays as
    `run:DIR` and goes on training with `train ENV --start run:DIR`.
    """
    from slipstream.stages.convert import check_layout
    from slipstream.stages.convert import convert as convert_weights

    check_layout(layout)
    if layout == "sb3":
        if temperature is not None:
            raise ConfigError("--temperature applies to `convert vpt-agent` only.", "leave it out")
        _convert_sb3(source, out, env, minimum, as_json, options)
        return
    if env is not None or options["assignments"]:
        raise ConfigError("--env and --set apply to `convert sb3` only.", "leave them out")
    reports: list[dict[str, Any]] = []
    try:
        share = 1.0 if minimum is None else minimum
        facts = convert_weights(layout, source, out, share, reports.append, temperature)
    except CheckpointError:
        if as_json and reports:
            print_result(reports[0], as_json, "")
        raise
    print_result(facts, as_json, _vpt_summary(facts))


def _convert_sb3(
    source: Path, out: Path, env: str | None, minimum: float | None, as_json: bool, options: dict[str, Any]
) -> None:
    from slipstream.api import convert_sb3

    if env is None:
        raise ConfigError("`convert sb3` needs the environment of the model.", "add --env ENV")
    if minimum is not None:
        raise ConfigError("--minimum applies to `convert vpt` only: every key of a model must match.", "leave it out")
    facts = convert_sb3(source, env, out, **given(options))
    print_result(facts, as_json, _run_summary(facts))


def _vpt_summary(facts: dict[str, Any]) -> str:
    if facts["kind"] == "run":
        size = "" if facts["side"] == 128 else f" --set env.options.size={facts['side']}"
        there = f"--python PATH --set env.options.actions=vpt{size}"
        return "\n".join(
            [
                ", ".join(f"{count} {what}" for what, count in facts["counts"].items()),
                f"written: {facts['out']} ({facts['parameters']:,} parameters, {facts['side']}x{facts['side']} images)",
                f"play with it: slipstream evaluate run:{facts['out']} --env minerl:ID --sampled {there}",
                f"train it further: slipstream train minerl:ID --start run:{facts['out']} {there}",
                "ID is a game of minerl, such as MineRLBasaltFindCave-v0, and PATH a Python that has minerl",
            ]
        )
    return "\n".join(
        [
            ", ".join(f"{count} {what}" for what, count in facts["counts"].items()),
            f"written: {facts['out']} ({facts['features']} features of {facts['side']}x{facts['side']} images)",
            f"use it: slipstream train ENV --set policy.image=frozen --set policy.trunk={facts['out']}",
            f"for the whole agent, with its actions: slipstream convert vpt-agent {facts['source']} --out DIR",
        ]
    )


def _run_summary(facts: dict[str, Any]) -> str:
    if "same_actions" in facts:
        parity = f"{facts['same_actions']:.2%} of the actions are the same"
    else:
        parity = f"actions differ by at most {facts['largest_difference']:.1e}"
    more = " --set algorithm=sac" if facts["algorithm"] == "sac" else ""
    return "\n".join(
        [
            f"{facts['compared']:,} random observations: {parity}",
            f"observation statistics: {facts['statistics'] or 'none found beside the model'}",
            f"written: {facts['out']} ({facts['steps']:,} steps)",
            f"train on: slipstream train {facts['env']} --start run:{shlex.quote(facts['out'])}{more}{facts['flags']}",
        ]
    )
