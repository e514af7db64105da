"""The verb `diagnose`: find the bottleneck of training and advise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import main, print_result, resolve_settings, settable, shared
from slipstream.errors import ConfigError

PAGE = "diagnosis.html"


@main.command()
@click.argument("env", required=False)
@click.option("--test", default="all", metavar="NAME", help="all, env, inference, learn, gpu or memory [all].")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="How long to measure.")
@click.option(
    "--run", "place", type=click.Path(path_type=Path), help="An existing run: its settings and its metrics are used."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"The HTML page [{PAGE}, in the run directory if there is one]."
)
@click.option("--rules", is_flag=True, help="List the rules and exit.")
@settable
@click.option("--no-tuned", is_flag=True, help="Ignore the plan that `tune` found on this machine.")
@shared
def diagnose(
    env: str | None,
    test: str,
    seconds: float,
    place: Path | None,
    out: Path | None,
    rules: bool,
    as_json: bool,
    modules: tuple[str, ...],
    **flags: Any,
) -> None:
    """Find the bottleneck of training on ENV (or of run:DIR) and advise.

    Trains for some seconds without a run directory, and measures environment, inference and learner alone.
    """
    if rules:
        _print_rules(as_json)
        return
    from slipstream.perf.diagnose import diagnose as do
    from slipstream.perf.diagnose_report import summary, write_page

    head, _, folder = (env or "").partition(":")
    name, run = _named(None, Path(folder), flags) if head == "run" else _named(env, place, flags)
    choice, resolved = resolve_settings(name, modules, flags)
    diagnosis = do(
        choice, resolved.settings, test=test, seconds=seconds, run=run, say=lambda line: click.echo(line, err=True)
    )
    page = out or ((run.path if run is not None else Path()) / PAGE)
    write_page(diagnosis, page)
    print_result(diagnosis.facts() | {"page": str(page)}, as_json, f"{summary(diagnosis)}\npage: {page}")


def _named(env: str | None, place: Path | None, flags: dict[str, Any]) -> tuple[str, Any]:
    """The environment, and the run whose settings are the defaults of the flags, if one is named."""
    if place is None:
        if env is None:
            raise ConfigError("There is nothing to diagnose.", "name an ENV, or a run by --run DIR")
        return env, None
    from slipstream.runs.layout import RunDir
    from slipstream.runs.provenance import read_config

    run = RunDir.open(place)
    name = read_config(run)[1]
    if name.startswith("python:"):
        raise ConfigError(
            f"The environment of {place} was given in Python and has no name.",
            "diagnose it there: slipstream.diagnose(lambda: MyEnv(...))",
        )
    if env not in (None, name):
        raise ConfigError(f"{place} is a run of `{name}`, not of `{env}`.", "leave ENV out")
    flags["config"] = flags.get("config") or run.config
    return name, run


def _print_rules(as_json: bool) -> None:
    from slipstream.perf.rules import RULES

    listed = [
        {"name": rule.name, "verdict": rule.verdict, "symptom": rule.symptom, "when": rule.when, "do": rule.do}
        for rule in RULES
    ]
    lines = []
    for rule in listed:
        lines += [f"{rule['name']} ({rule['verdict'] or 'advice'})", f"  when {rule['when']}", f"  then {rule['do']}"]
    print_result({"rules": listed}, as_json, "\n".join(lines))
