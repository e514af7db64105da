"""The verb `check-env`: all that is wrong with an environment at once."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import Any

import click

from slipstream.cli.app import main, print_result, resolve_settings, settable, shared
from slipstream.errors import EnvError


@main.command("check-env")
@click.argument("env")
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True, help="Random steps to play.")
@settable
@shared
def check_env(env: str, steps: int, as_json: bool, modules: tuple[str, ...], **flags: Any) -> None:
    """Play random steps of a Gymnasium ENV and list everything that would hurt training, with hints.

    The exit code is 3 if anything was found that must be mended.
    """
    from slipstream.envs.adapters.env_checker import check
    from slipstream.envs.registry import parse
    from slipstream.vector.make import make_one

    choice, resolved = resolve_settings(env, modules, flags)
    if parse(env)[0] is not None:
        raise EnvError(f"`{env}` is one of our own games: its tests check it.", "name one as gymnasium:ID")
    options = {"disable_env_checker": True} | choice.env.options
    made = make_one(replace(choice, env=choice.env.model_copy(update={"options": options})))
    try:
        report = check(made, steps, resolved.settings.seed)
    finally:
        made.close()
    lines = [f"problem: {problem.what}\n   hint: {problem.hint}" for problem in report.problems]
    lines += [f" remark: {remark.what}\n   hint: {remark.hint}" for remark in report.remarks]
    told = f"{report.steps} steps, {report.episodes} episodes, {report.steps_per_second:,.0f} steps/s"
    verdict = f"{len(report.problems)} to mend" if report.problems else "fit for training"
    print_result({"env": env} | asdict(report), as_json, "\n".join([*lines, f"{env}: {verdict} ({told})"]))
    if report.problems:
        sys.exit(EnvError.code)
