"""The verbs about rewards: report and ablate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import (
    Bar,
    VerbGroup,
    config_option,
    exit_with,
    given,
    main,
    notice,
    preset_option,
    print_result,
    set_option,
    shared,
)

ABLATION_STEPS = 1_000_000


@main.group(cls=VerbGroup)
def rewards() -> None:
    """Analyse reward terms."""


@rewards.command()
@click.argument("source", metavar="[RUN|DEMOS]", required=False)
@click.option("--env", help="The environment [that of the run].")
@click.option("--agent", metavar="AGENT", help="The agent that plays [that of the run].")
@click.option("--games", type=int, help="Number of games to play, or to read from the demos [100, or all].")
@click.option(
    "--out",
    metavar="DIR",
    help="The folder of rewards.json and .png [RUN, DEMOS or .].",
    type=click.Path(path_type=Path),
)
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set one setting, such as rewards.potential=true."
)
@shared
def report(source: str | None, out: Path | None, as_json: bool, **flags: Any) -> None:
    """Show the contribution of each reward term: before training (DEMOS, or --env and --agent), or after it (RUN).

    The policy of a run plays against the reference opponent of the game. Shares of the return are relative to the sum
    of absolute rewards; shares of the advantage are relative to the mean absolute advantage.
    """
    from slipstream import api
    from slipstream.stages.reward_report import draw_report, keep

    with Bar("games") as bar:
        facts, place = api.reward_report(source, on_progress=bar.show, **given(flags))
    picture = keep(facts, out or place, draw_report, "rewards")
    facts = {key: value for key, value in facts.items() if key != "curves"} | {"picture": picture and str(picture)}
    print_result(facts, as_json, "\n".join([*_report_lines(facts), *([str(picture)] if picture else [])]))


def _report_lines(facts: dict[str, Any]) -> list[str]:
    against = f" against {facts['opponent']}" if facts["opponent"] else ""
    lines = [
        f"{facts['env']}: {facts['agent']}{against}, {facts['games']:,} games, {facts['steps']:,} steps, mean return "
        f"{facts['mean_return']:.3g}",
        f"{'term':<14}{'group':<13}{'per game':>10}{'per second':>12}{'min':>9}{'max':>9}{'density':>9}  {'':<9}"
        f"{'of return':>10}{'of advantage':>14}",
    ]
    off = [name for name, one in facts["terms"].items() if one["kind"] == "off"]
    for name, one in facts["terms"].items():
        if name in off:
            continue
        rate = "" if one["per_second"] is None else f"{one['per_second']:.3g}"
        lines.append(
            f"{name:<14}{one['group']:<13}{one['per_game']:>10.3g}{rate:>12}{one['min']:>9.2g}{one['max']:>9.2g}"
            f"{one['density']:>9.1%}  {one['kind']:<9}{one['return_share']:>10.1%}{one['advantage_share']:>14.1%}"
        )
    return [*lines, f"always 0: {', '.join(off)}"] if off else lines


@rewards.command()
@click.argument("env")
@click.option(
    "--terms", "names", metavar="A,B", help="The terms to remove, one at a time [all shaping terms with a weight]."
)
@click.option("--seeds", type=int, default=3, show_default=True, help="Number of runs of each variant.")
@click.option("--steps", type=int, default=ABLATION_STEPS, show_default=True, help="Steps of each run.")
@click.option("--games", type=int, default=400, show_default=True, help="Evaluation games of each run.")
@click.option("--seed", type=int, help="The first seed.")
@click.option(
    "--run", metavar="DIR", help="The folder of the runs [runs/ablation-ENV].", type=click.Path(path_type=Path)
)
@preset_option
@config_option
@set_option
@shared
def ablate(env: str, names: str | None, run: Path | None, as_json: bool, **flags: Any) -> None:
    """Train on ENV with all reward terms and without each of them, and report which terms help.

    All variants use the same seeds and are evaluated by playing games, not by their rewards. The same command resumes
    an interrupted ablation.
    """
    from slipstream.stages.prepare import prepare
    from slipstream.stages.reward_report import ablate as stage
    from slipstream.stages.reward_report import draw_ablation, keep

    choice, resolved, own = prepare(env, given(flags), stage)
    folder = run or Path("runs") / f"ablation-{env.replace(':', '-')}"
    removed = [word.strip() for word in names.split(",")] if names else []
    facts = stage(choice, resolved, folder, removed, on_notice=lambda line: notice(f"== {line}"), **own)
    if facts["stopped"]:
        print_result(facts, as_json, f"not finished; the same command resumes it in {folder}")
        exit_with(facts)
        return
    picture = keep(facts, folder, draw_ablation, "ablation")
    facts["picture"] = picture and str(picture)
    print_result(facts, as_json, "\n".join([*_ablation_lines(facts), *([str(picture)] if picture else [])]))


def _ablation_lines(facts: dict[str, Any]) -> list[str]:
    what = facts["measure"].replace("_", " ")
    against = f" against {facts['opponent']}" if facts["opponent"] else ", by sparse return"
    lines = [
        f"{facts['env']}: {facts['seeds']} seeds of {facts['steps']:,} steps, {facts['games']} games each{against}; "
        f"{what} with all terms {facts['full_mean']:.3g}",
        f"{'term':<14}{'gain':>13}  {'95 % interval':<20}verdict",
    ]
    for name, one in facts["terms"].items():
        span = f"[{one['gain_low']:+.3g}, {one['gain_high']:+.3g}]" if facts["seeds"] > 1 else "unknown (one seed)"
        lines.append(f"{name:<14}{one['gain']:>+13.3g}  {span:<20}{one['verdict']}")
    return lines
