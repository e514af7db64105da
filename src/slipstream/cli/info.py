"""The verbs that show what exists: envs, agents, check-env, doctor, report."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import given, listing, main, notice, print_result, settable, shared
from slipstream.errors import EnvError, SlipstreamError


@main.command()
@listing
def envs(as_json: bool, modules: tuple[str, ...]) -> None:
    """List the available environments."""
    import gymnasium

    from slipstream.envs.registry import games, import_modules

    import_modules(modules)
    native = {name: {"summary": game.summary, "variants": list(game.variants)} for name, game in games().items()}
    others = sorted(f"gymnasium:{name}" for name in gymnasium.registry)
    lines = []
    for name, game in games().items():
        variants = ", ".join(f"{name}:{variant}" if variant else name for variant in game.variants)
        lines.append(f"{name:<28}{game.summary} ({variants})")
    lines += ["", f"{len(others)} Gymnasium environments:", *_columns(others)]
    print_result({"games": native, "gymnasium": others}, as_json, "\n".join(lines))


def _columns(words: list[str], width: int = 96) -> list[str]:
    cell = max(map(len, words), default=0) + 2
    per = max(1, width // cell)
    return ["  " + "".join(word.ljust(cell) for word in words[i : i + per]).rstrip() for i in range(0, len(words), per)]


@main.command()
@click.argument("env")
@listing
def agents(env: str, as_json: bool, modules: tuple[str, ...]) -> None:
    """List the agents that can play ENV: scripted players, and the runs in ./runs."""
    from slipstream.agents.specs import scripted_players
    from slipstream.envs.registry import import_modules
    from slipstream.runs.layout import RunDir
    from slipstream.runs.provenance import read_config

    import_modules(modules)
    found = ["random", *(f"scripted:{name}" for name in scripted_players(env))]
    for config in sorted(Path("runs").glob("*/config.yaml")):
        try:
            if read_config(RunDir(config.parent))[1] == env:
                found.append(f"run:{config.parent}")
        except SlipstreamError as error:
            notice(f"{config.parent}: {error.message}")
    print_result({"env": env, "agents": found}, as_json, "\n".join(found))


@main.command("check-env")
@click.argument("env")
@click.option("--steps", type=click.IntRange(min=1), help="Number of random steps [200; 10,000 in a native game].")
@settable
@shared
def check_env(env: str, steps: int | None, as_json: bool, **flags: Any) -> None:
    """Take random steps in a Gymnasium ENV and list all problems that would affect training, with hints.

    A native game is played as plain Python, compiled, and on a GPU if there is one, which must be equal. The exit code
    is 3 if there is a problem.
    """
    from slipstream.envs.adapters.env_checker import inspect_env
    from slipstream.envs.registry import parse
    from slipstream.stages.check_game import check_game
    from slipstream.stages.prepare import prepare
    from slipstream.vector.make import make_one, make_vector

    choice, resolved, _ = prepare(env, given(flags))
    game, variant = parse(env)
    if game is not None and game.definition is None:
        raise EnvError(f"`{env}` is a built-in game, which has its own tests.", "name one as gymnasium:ID")
    if game is not None:
        seed, repeat = resolved.settings.seed, game.definition.ticks_per_decision
        report = check_game(game.definition, steps, seed, variant, choice.game_options(0, seed, repeat))
    else:
        checked_here = env.startswith("gymnasium:") and not choice.python
        options = ({"disable_env_checker": True} if checked_here else {}) | choice.env.options
        made = make_one(replace(choice, env=choice.env.model_copy(update={"options": options})))
        try:
            report = inspect_env(made, steps or 200, resolved.settings.seed)
        finally:
            made.close()
    if choice.terms or choice.observation:
        make_vector(choice, 1).close()  # raises for a term or builder that the environment cannot take
    lines = [f"problem: {problem.what}\n   hint: {problem.hint}" for problem in report.problems]
    lines += [f" remark: {remark.what}\n   hint: {remark.hint}" for remark in report.remarks]
    counts = f"{report.steps} steps, {report.episodes} episodes, {report.steps_per_second:,.0f} steps/s"
    problems = len(report.problems)
    verdict = f"{problems} problem{'s' * (problems > 1)}" if problems else "ready for training"
    print_result({"env": env} | asdict(report), as_json, "\n".join([*lines, f"{env}: {verdict} ({counts})"]))
    if report.problems:
        sys.exit(EnvError.code)


@main.command("new-game")
@click.argument("name")
@listing
def new_game(name: str, as_json: bool, modules: tuple[str, ...]) -> None:
    """Write the skeleton of a native game, NAME.py, and a test of it into the current folder."""
    from slipstream.envs.registry import import_modules
    from slipstream.stages.write_game import write_game

    import_modules(modules)
    files = [str(path) for path in write_game(name)]
    lines = [
        *(f"wrote {file}" for file in files),
        f"check it: slipstream check-env {name} --import {name}",
        f"train it: slipstream train {name} --import {name} --steps 1000000",
    ]
    print_result({"files": files}, as_json, "\n".join(lines))


@main.command()
@listing
def doctor(as_json: bool, modules: tuple[str, ...]) -> None:
    """Check this machine: cores, memory, disk and libraries."""
    from slipstream.stages.doctor import examine_machine

    facts = examine_machine()
    lines = [f"{'ok  ' if check['ok'] else 'FAIL'} {check['name']:<10} {check['says']}" for check in facts["checks"]]
    lines += [f"     hint: {check['hint']}" for check in facts["checks"] if not check["ok"]]
    print_result(facts, as_json, "\n".join(lines))


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@listing
def report(run: Path, as_json: bool, modules: tuple[str, ...]) -> None:
    """Write the report.html of RUN, a run or a tournament, again; the page is one file that works offline."""
    from slipstream.runs.layout import RunDir
    from slipstream.stages.report import report as write_report

    facts = write_report(RunDir(run) if (run / "ladder.json").is_file() else RunDir.open(run))
    print_result(facts, as_json, f"{facts['report']}: {', '.join(facts['sections']).lower()}")
