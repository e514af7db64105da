"""The verbs that train: run, clone, train, compete, resume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import (
    Bar,
    config_option,
    configurable,
    exit_with,
    given,
    main,
    notice,
    preset_option,
    print_result,
    seed_option,
    set_option,
    shared,
    sink_option,
    start_option,
)
from slipstream.cli.play import evaluation_text
from slipstream.stages import STAGES

MUCH, LONG_S = 0.25, 10.0
"""Mention the time of evaluations above this share, in runs longer than this."""


@main.command()
@click.argument("env")
@click.option("--skip", multiple=True, metavar="STAGE", help=f"Skip a stage: {', '.join(STAGES)}.")
@configurable
@shared
def run(env: str, as_json: bool, **flags: Any) -> None:
    """Run the whole pipeline: record an expert, clone it, train from the clone, compete in a league, evaluate, report.

    If no tuned plan is saved for this machine, tune first, trying only changes that keep results identical.
    The same command with --run DIR resumes an interrupted pipeline.
    """
    from slipstream import api

    def on_notice(line: str) -> None:
        notice(f"== {line}" if line.partition(":")[0] in STAGES else line)

    with Bar("progress") as bar:
        facts = api.run(env, on_notice=on_notice, on_progress=bar.show, **given(flags))
    print_result(facts, as_json, _pipeline_text(facts, _flags_again(flags)))
    for name in ("record", "clone", "train", "compete"):
        exit_with(facts.get(name, {}))


@main.command()
@click.argument("demos", type=click.Path(path_type=Path))
@click.option("--epochs", "clone__epochs", type=int, help="Maximum number of passes over the demos.")
@click.option("--batch", "clone__batch_size", type=int, help="Samples per gradient step.")
@click.option("--max-samples", "clone__max_samples", type=int, help="Use whole episodes up to this many steps.")
@click.option("--dagger", "clone__dagger", type=int, metavar="ROUNDS", help="Rounds of DAgger after cloning.")
@click.option(
    "--expert",
    "clone__expert",
    metavar="AGENT",
    help="The expert of DAgger [the agent that recorded, if it is scripted or your own].",
)
@click.option("--start", metavar="AGENT", help="Start with the weights of run:DIR.")
@sink_option
@seed_option
@click.option("--run", type=click.Path(path_type=Path), help="The run directory [runs/ENV-clone-TIME].")
@preset_option
@config_option
@set_option
@shared
def clone(demos: Path, as_json: bool, **flags: Any) -> None:
    """Train a policy on DEMOS by behaviour cloning; continue with `train --start run:DIR`."""
    from slipstream import api

    with Bar("samples") as bar:
        facts = api.clone(demos, on_notice=notice, on_progress=bar.show, **given(flags)).facts
    _finish(facts, as_json, flags)


@main.command()
@click.argument("env")
@configurable
@start_option
@sink_option
@click.option("--teacher", metavar="AGENT", help="Also imitate the actions of this agent.")
@click.option("--show", is_flag=True, help="Print every setting with its value and origin, and exit.")
@click.option("--dry-run", is_flag=True, help="Build everything, run one step, print the plan, and exit.")
@shared
def train(env: str, teacher: str | None, show: bool, dry_run: bool, as_json: bool, **flags: Any) -> None:
    """Train an agent on ENV."""
    options = given(flags)
    if show or dry_run:
        from slipstream.stages.prepare import prepare

        options.pop("run", None)
        if teacher:
            options["ppo__reference" if teacher.startswith("run:") else "ppo__teacher"] = teacher
        choice, resolved, _ = prepare(env, options)
        print_result(*(_show(resolved, as_json) if show else _dry_run(choice, resolved, as_json)))
        return
    from slipstream import api

    _finish(api.train(env, teacher=teacher, **options).facts, as_json, flags)


@main.command()
@click.argument("env")
@configurable
@start_option
@sink_option
@shared
def compete(env: str, as_json: bool, **flags: Any) -> None:
    """Train on ENV by self-play in a league of frozen copies with ratings."""
    from slipstream import api

    _finish(api.compete(env, **given(flags)).facts, as_json, flags)


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--steps", type=int, help="New total number of steps.")
@sink_option
@shared
def resume(run: Path, as_json: bool, **flags: Any) -> None:
    """Resume a run from its newest checkpoint."""
    from slipstream import api

    with Bar("samples") as bar:
        facts = api.resume(run, on_notice=notice, on_progress=bar.show, **given(flags)).facts
    _finish(facts, as_json, flags)


def _finish(facts: dict[str, Any], as_json: bool, flags: Mapping[str, Any]) -> None:
    """Print the result of a run, whichever verb made it, and exit with its code."""
    again = _flags_again(flags)
    if "best_epoch" in facts:
        text = _clone_text(facts)
    elif "ladder" in facts:
        from slipstream.league.ladder_text import ladder_text

        text = "\n".join([ladder_text(facts["ladder"]["tables"]), "", training_text(facts, again)])
    else:
        text = training_text(facts, again)
    print_result(facts, as_json, text)
    exit_with(facts)


def _show(resolved: Any, as_json: bool) -> tuple[dict[str, Any], bool, str]:
    """Every setting with its value and origin."""
    rows = [(key, list(value) if isinstance(value, tuple) else value, origin) for key, value, origin in resolved.rows()]
    lines = [f"{key} = {'unset' if value is None else value}  ({origin})" for key, value, origin in rows]
    facts = {"settings": {key: {"value": value, "origin": origin} for key, value, origin in rows}}
    return facts, as_json, "\n".join(lines)


def _dry_run(choice: Any, resolved: Any, as_json: bool) -> tuple[dict[str, Any], bool, str]:
    """The plan and the sizes of a training run that is built but not started."""
    from slipstream.runs.sinks import make_sinks
    from slipstream.training.build import build
    from slipstream.training.plan_summary import plan_rows, table

    make_sinks(resolved.settings.sinks)  # a missing package is found now
    parts = build(choice, resolved.settings)
    parts.close()
    rows = plan_rows(parts, resolved.settings)
    facts = {
        "env": choice.name,
        "agents": parts.spec.agents,
        "obs": parts.spec.obs.width,
        "batch": parts.batch,
        "parameters": sum(array.size for array in parts.design.weights.named(parts.learner.params_and_stats).values()),
        "gamma": parts.schedules.at(parts.learner.section, 0).gamma,
        "plan": {
            name: {"requested": requested, "applied": applied, "why": why} for name, requested, applied, why in rows
        },
    }
    lines = [f"{choice.name}: {facts['obs']} observations, batch {parts.batch:,}, {facts['parameters']:,} parameters"]
    lines += table(rows)
    lines += parts.learner.notices
    return facts, as_json, "\n".join([*lines, "Everything was built; nothing was trained."])


def _flags_again(flags: Mapping[str, Any]) -> str:
    """The flags that give the same code to a later command."""
    from slipstream.stages.prepare import Sources

    return Sources(
        terms=flags.get("terms"),
        observation=flags.get("observation"),
        modules=flags["modules"],
        python=flags.get("python"),
    ).command_flags()


def training_text(facts: dict[str, Any], again: str = "") -> str:
    """The result of a training run for people."""
    mean = facts["mean_return"]
    lines = [
        f"{facts['steps']:,} steps in {facts['seconds']:.1f} s ({facts['steps_per_second']:,.0f} steps/s after "
        f"{facts['start_seconds']:.1f} s of start-up)",
        f"mean return of the last 100 episodes: {mean:.2f}" if mean is not None else "no episode has finished yet",
        f"saved: {facts['checkpoint']}",
        f"resume: slipstream resume {facts['run']}{again}"
        + ("" if facts["stopped"] else f" --steps {2 * facts['steps']}"),
    ]
    share = facts.get("evaluating", 0.0)
    if share > MUCH and facts["seconds"] > LONG_S:
        assignment = f"every.evaluate={10 * facts['evaluate_every']}"
        lines.insert(1, f"evaluations took {share:.0%} of the time; `--set {assignment}` runs a tenth of them")
    return "\n".join(lines)


def _clone_text(facts: dict[str, Any]) -> str:
    """The result of behaviour cloning for people."""
    measures = [f"accuracy {facts['accuracy']:.1%}"] if "accuracy" in facts else []
    measures += [f"error {facts['error']:.4f}"] if "error" in facts else []
    split = ", ".join(f"{name} {share:.0%}" for name, share in facts["time"].items())
    return "\n".join(
        [
            f"{facts['epochs']} epochs in {facts['seconds']:.1f} s ({split})",
            f"best: epoch {facts['best_epoch']}, held-out loss {facts.get('held_out_loss', 0):.4f}, "
            + ", ".join(measures),
            *facts["next"],
        ]
    )


def _pipeline_text(facts: dict[str, Any], again: str) -> str:
    """The results of all stages for people."""
    parts = []
    if "evaluate" in facts:
        opponents = facts["evaluate"]["opponents"]
        rates = [f"{result['win_rate']:.0%} of its games against {name}" for name, result in opponents.items()]
        parts += [f"The trained agent wins {' and '.join(rates)}."] if rates else []
        parts += [evaluation_text(facts["evaluate"]), ""]
    if "tournament" in facts:
        from slipstream.league.ladder_text import ladder_text

        parts += [ladder_text(facts["tournament"]["tables"]), ""]
    if "train" in facts:
        parts.append(training_text(facts["train"], again))
    if "report" in facts:
        parts.append(f"report: {facts['report']}")
    if "times" in facts:
        parts += ["", f"{'stage':<10}{'expected':>9}{'seconds':>9}{'share':>8}"]
        for name, one in facts["times"].items():
            expected = "" if one["expected"] is None else f"{one['expected']:.1f}"
            parts.append(f"{name:<10}{expected:>9}{one['seconds']:>9.1f}{one['share']:>8.0%}")
    return "\n".join(parts)
