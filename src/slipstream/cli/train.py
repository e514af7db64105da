"""The verbs of training and playing: run, train, resume, evaluate, envs, agents, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import Bar, configurable, exit_with, main, plain, print_result, resolve_settings, shared, text
from slipstream.errors import SlipstreamError
from slipstream.stages import STORY

MUCH, LONG_S = 0.25, 10.0
"""The share of a training's time in evaluations that is worth a word, and seconds below which nothing is."""


@main.command()
@click.argument("env")
@click.option("--skip", multiple=True, metavar="STAGE", help=f"Leave a stage out: {', '.join(STORY)}.")
@configurable
@shared
def run(
    env: str, skip: tuple[str, ...], place: Path | None, as_json: bool, modules: tuple[str, ...], **flags: Any
) -> None:
    """The whole story: record an expert, clone it, train on from there, compete in a league, evaluate, report.

    It tunes first where no plan is kept for this machine, trying only what leaves every bit of the result as it is.
    The same command with --run DIR goes on where it was stopped.
    """
    from slipstream.stages.run import run as tell_story

    choice, _ = resolve_settings(env, modules, dict(flags))
    skip += ("tune",) if flags["no_tuned"] else ()
    with Bar("progress") as bar:
        facts = tell_story(
            choice, lambda more: resolve_settings(env, modules, flags | more)[1], place, skip,
            lambda line: click.echo(f"== {line}" if line.partition(":")[0] in STORY else line, err=True), bar.show,
        )  # fmt: skip
    print_result(facts, as_json, _story(facts))
    for name in ("record", "clone", "train", "compete"):
        exit_with(facts.get(name, {}))


@main.command()
@click.argument("env")
@configurable
@click.option("--start", metavar="AGENT", help="Begin as run:DIR, and take care not to forget it.")
@click.option("--teacher", metavar="AGENT", help="Learn from what this agent would do, too.")
@click.option("--show", is_flag=True, help="Print every setting with its value and origin, and stop.")
@click.option("--dry-run", is_flag=True, help="Make everything, play one step, print the plan, and stop.")
@shared
def train(
    env: str, place: Path | None, teacher: str | None, show: bool, dry_run: bool, as_json: bool,
    modules: tuple[str, ...], **flags: Any,
) -> None:  # fmt: skip
    """Train an agent on ENV."""
    if teacher:
        flags["ppo.reference" if teacher.startswith("run:") else "ppo.teacher"] = teacher
    choice, resolved = resolve_settings(env, modules, flags)
    if show:
        rows = resolved.rows()
        lines = [f"{key} = {text(value)}  ({origin})" for key, value, origin in rows]
        facts = {"settings": {key: {"value": plain(value), "origin": origin} for key, value, origin in rows}}
        print_result(facts, as_json, "\n".join(lines))
        return
    if dry_run:
        print_result(*_rehearse(choice, resolved, as_json))
        return
    from slipstream.stages.train import train as do

    facts = do(choice, resolved, place).facts()
    print_result(facts, as_json, trained(facts))
    exit_with(facts)


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--steps", type=int, help="Steps in all, those already done included.")
@shared
def resume(run: Path, steps: int | None, as_json: bool, modules: tuple[str, ...]) -> None:
    """Go on with a run exactly where its newest checkpoint stands."""
    from slipstream.runs.layout import RunDir
    from slipstream.runs.provenance import stage_of

    stage = stage_of(RunDir.open(run))
    if stage == "clone":
        from slipstream.cli.clone import resume_clone

        resume_clone(run, as_json)
        return
    if stage == "compete":
        from slipstream.cli.compete import resume_league as compete_on

        compete_on(run, steps, modules, as_json)
        return
    from slipstream.stages.train import resume as do

    facts = do(run, steps, modules).facts()
    print_result(facts, as_json, trained(facts))
    exit_with(facts)


@main.command()
@click.argument("agent")
@click.option("--env", required=True, help="Where it plays.")
@click.option("--opponent", "opponents", multiple=True, metavar="AGENT", help="Whom it plays; may be repeated.")
@click.option("--beside", metavar="AGENT", help="Play the same starts with this agent too, and compare.")
@click.option("--games", type=int, required=True, help="Games against each opponent.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--sampled", is_flag=True, help="Draw actions instead of taking the likeliest.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting of the env.")
@shared
def evaluate(
    agent: str, env: str, opponents: tuple[str, ...], beside: str | None, games: int, seed: int, sampled: bool,
    words: tuple[str, ...], as_json: bool, modules: tuple[str, ...],
) -> None:  # fmt: skip
    """Measure AGENT in games really played."""
    from slipstream.stages.evaluate import evaluate as do

    choice, resolved = resolve_settings(env, modules, {"words": words, "agent": agent})
    envs = resolved.settings.evaluation.envs
    with Bar("games") as bar:
        facts = do(
            choice, agent, opponents, games, seed=seed, sampled=sampled, envs=envs, on_progress=bar.show, beside=beside
        )
    print_result(facts, as_json, _evaluated(facts))


@main.command()
@shared
def envs(as_json: bool, modules: tuple[str, ...]) -> None:
    """What there is to play."""
    import gymnasium

    from slipstream.envs.registry import games, import_modules

    import_modules(modules)
    native = {name: {"summary": game.summary, "variants": list(game.variants)} for name, game in games().items()}
    others = sorted(f"gymnasium:{name}" for name in gymnasium.registry)
    lines = []
    for name, game in games().items():
        lines.append(f"{name:<28}{game.summary} ({', '.join(f'{name}:{variant}' for variant in game.variants)})")
    lines += ["", f"{len(others)} Gymnasium environments:", *_columns(others)]
    print_result({"games": native, "gymnasium": others}, as_json, "\n".join(lines))


@main.command()
@click.argument("env")
@shared
def agents(env: str, as_json: bool, modules: tuple[str, ...]) -> None:
    """Who can play ENV: scripted players and the runs found here."""
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
            click.echo(f"{config.parent}: {error.message}", err=True)
    print_result({"env": env, "agents": found}, as_json, "\n".join(found))


@main.command()
@shared
def doctor(as_json: bool, modules: tuple[str, ...]) -> None:
    """What this machine offers, and whether anything is in the way."""
    from slipstream.stages.doctor import examine_machine

    facts = examine_machine()
    lines = [f"{'ok  ' if check['ok'] else 'LOOK'} {check['name']:<10} {check['says']}" for check in facts["checks"]]
    lines += [f"     hint: {check['hint']}" for check in facts["checks"] if not check["ok"]]
    print_result(facts, as_json, "\n".join(lines))


def _rehearse(choice: Any, resolved: Any, as_json: bool) -> tuple[dict[str, Any], bool, str]:
    from slipstream.training.build import build
    from slipstream.training.plan_summary import plan_rows, table

    parts = build(choice, resolved.settings)
    parts.close()
    rows = plan_rows(parts, resolved.settings)
    facts = {
        "env": choice.name,
        "agents": parts.spec.agents,
        "obs": parts.spec.obs.width,
        "batch": parts.batch,
        "parameters": sum(array.size for array in parts.design.weights.named(parts.learner.params_and_stats).values()),
        "gamma": parts.schedules.now(parts.learner.section, 0).gamma,
        "plan": {name: {"requested": asked, "applied": applied, "why": why} for name, asked, applied, why in rows},
    }
    lines = [f"{choice.name}: {facts['obs']} observations, batch {parts.batch:,}, {facts['parameters']:,} parameters"]
    lines += table(rows)
    lines += parts.learner.notices
    return facts, as_json, "\n".join([*lines, "Everything could be made; nothing was trained."])


def trained(facts: dict[str, Any]) -> str:
    """The end of a training in words."""
    mean = facts["mean_return"]
    lines = [
        f"{facts['steps']:,} steps in {facts['seconds']:.1f} s ({facts['steps_per_second']:,.0f} steps/s after "
        f"{facts['start_seconds']:.1f} s of start-up)",
        f"mean return of the last 100 episodes: {mean:.2f}" if mean is not None else "no episode has finished yet",
        f"saved: {facts['checkpoint']}",
        f"go on: slipstream resume {facts['run']}" + ("" if facts["stopped"] else f" --steps {2 * facts['steps']}"),
    ]
    share = facts.get("evaluating", 0.0)
    if share > MUCH and facts["seconds"] > LONG_S:
        seldom = f"every.evaluate={10 * facts['evaluate_every']}"
        lines.insert(1, f"{share:.0%} of the time went into evaluations: `--set {seldom}` has a tenth of them")
    return "\n".join(lines)


def _evaluated(facts: dict[str, Any]) -> str:
    lines = []
    for name, result in facts["opponents"].items():
        lines.append(
            f"against {name}: won {result['wins']} of {result['games']}, drew {result['draws']}, "
            f"lost {result['losses']}: win rate {result['win_rate']:.1%} "
            f"[{result['win_rate_low']:.1%}, {result['win_rate_high']:.1%}]"
        )
        mine, theirs = result["behaviour"], result["opponent_behaviour"]
        if mine:
            told = (f"{label.replace('_', ' ')} {mine[label][0]:.3g} : {theirs[label][0]:.3g}" for label in mine)
            lines.append(f"  per game: {', '.join(told)}")
    if lines:
        return "\n".join(lines)
    mean, low, high = (facts[key] for key in ("mean_return", "mean_return_low", "mean_return_high"))
    games = f"{facts['games']} games of {facts['mean_length']:.0f} steps"
    lines.append(f"mean return {mean:.3g} [{low:.3g}, {high:.3g}] over {games}")
    if beside := facts.get("beside"):
        for name, unit in (("return", ""), ("length", " steps")):
            gain, low, high = (beside[f"{name}_gain{end}"] for end in ("", "_low", "_high"))
            lines.append(f"{name} beside {beside['agent']}: {gain:+.3g}{unit} [{low:+.3g}, {high:+.3g}]")
    return "\n".join(lines)


def _story(facts: dict[str, Any]) -> str:
    parts = []
    if "evaluate" in facts:
        parts += [*_headline(facts["evaluate"]), _evaluated(facts["evaluate"]), ""]
    if "tournament" in facts:
        from slipstream.league.ladder_text import ladder_text

        parts += [ladder_text(facts["tournament"]["tables"]), ""]
    if "train" in facts:
        parts.append(trained(facts["train"]))
    if "report" in facts:
        parts.append(f"report: {facts['report']}")
    if "times" in facts:
        parts += ["", f"{'stage':<10}{'expected':>9}{'seconds':>9}{'share':>8}"]
        for name, one in facts["times"].items():
            expected = "" if one["expected"] is None else f"{one['expected']:.1f}"
            parts.append(f"{name:<10}{expected:>9}{one['seconds']:>9.1f}{one['share']:>8.0%}")
    return "\n".join(parts)


def _headline(facts: dict[str, Any]) -> list[str]:
    """The result in one sentence."""
    won = [f"{result['win_rate']:.0%} of its games against {name}" for name, result in facts["opponents"].items()]
    return [f"The trained agent wins {' and '.join(won)}."] if won else []


def _columns(words: list[str], width: int = 96) -> list[str]:
    cell = max(map(len, words), default=0) + 2
    per = max(1, width // cell)
    return ["  " + "".join(word.ljust(cell) for word in words[i : i + per]).rstrip() for i in range(0, len(words), per)]
