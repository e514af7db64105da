"""The command `check-env`: list all problems of an environment."""

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
    """Play random steps of a Gymnasium ENV and list all problems for training, with hints.

    The exit code is 3 if there is any problem that must be fixed.
    """
    from slipstream.envs.adapters.env_checker import check
    from slipstream.envs.registry import parse
    from slipstream.vector.make import make_one

    choice, resolved = resolve_settings(env, modules, flags)
    if parse(env)[0] is not None:
        raise EnvError(f"`{env}` is a built-in game, which has its own tests.", "name an environment as gymnasium:ID")
    options = {"disable_env_checker": True} | choice.env.options
    instance = make_one(replace(choice, env=choice.env.model_copy(update={"options": options})))
    try:
        report = check(instance, steps, resolved.settings.seed)
    finally:
        instance.close()
    lines = [f"problem: {problem.what}\n   hint: {problem.hint}" for problem in report.problems]
    lines += [f" remark: {remark.what}\n   hint: {remark.hint}" for remark in report.remarks]
    counts = f"{report.steps} steps, {report.episodes} episodes, {report.steps_per_second:,.0f} steps/s"
    problems = "1 problem" if len(report.problems) == 1 else f"{len(report.problems)} problems"
    verdict = f"{problems} to fix" if report.problems else "no problems found"
    print_result({"env": env} | asdict(report), as_json, "\n".join([*lines, f"{env}: {verdict} ({counts})"]))
    if report.problems:
        sys.exit(EnvError.code)
