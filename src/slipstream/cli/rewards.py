"""The verbs around rewards: report, ablate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import Bar, Verbs, exit_with, main, preset_option, print_result, resolve_settings, shared
from slipstream.errors import ConfigError

ABLATION_STEPS = 1_000_000


@main.group(cls=Verbs)
def rewards() -> None:
    """See what is rewarded, and what each reward is good for."""


@rewards.command()
@click.argument("source", metavar="[RUN|DEMOS]", required=False)
@click.option("--env", help="Where to play, if not where the run was trained.")
@click.option("--agent", metavar="AGENT", help="Who plays, if not the run's own.")
@click.option("--games", type=int, help="Games to play, or to read of the demos [100, or all].")
@click.option(
    "--out", metavar="DIR", help="Where rewards.json and .png go [RUN, DEMOS or .].", type=click.Path(path_type=Path)
)
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting, such as rewards.potential=true.")
@shared
def report(
    source: str | None, env: str | None, agent: str | None, games: int | None, out: Path | None,
    words: tuple[str, ...], as_json: bool, modules: tuple[str, ...],
) -> None:  # fmt: skip
    """What each reward term contributes: before training (DEMOS, or --env and --agent), and after (RUN).

    A run's own policy plays the game's reference opponent. Shares of the return are of all that is paid or taken;
    shares of the advantage are of what pushes the policy one way or the other.
    """
    from slipstream.stages.reward_report import draw_report, keep

    if source and (Path(source) / "demos.json").exists():
        if agent or env:
            raise ConfigError(
                f"{source} holds demos, which somebody recorded somewhere.", "leave --agent and --env out"
            )
        facts, place = _of_demos(Path(source), games, words, modules), Path(source)
    else:
        facts, place = _of_games(source, env, agent, 100 if games is None else games, words, modules)
    picture = keep(facts, out or place, draw_report, "rewards")
    facts = {key: value for key, value in facts.items() if key != "curves"} | {"picture": str(picture)}
    print_result(facts, as_json, "\n".join([*_report_lines(facts), str(picture)]))


def _of_demos(folder: Path, games: int | None, words: tuple[str, ...], modules: tuple[str, ...]) -> dict[str, Any]:
    from slipstream.demos.reader import Demos
    from slipstream.envs.registry import known
    from slipstream.stages.reward_report import reward_report

    found = Demos.open(folder)
    env = found.schema.env
    _, resolved = resolve_settings(env if known(env) else "", modules, {"words": words})
    by = {"source": str(folder), "agent": found.shards[0].origin.get("agent") if found.shards else None}
    gammas = _discounts(resolved.settings, found.schema.step_seconds, env)
    return by | {"opponent": None} | reward_report(found, games, *gammas)


def _of_games(
    source: str | None, env: str | None, agent: str | None, games: int, words: tuple[str, ...], modules: tuple[str, ...]
) -> tuple[dict[str, Any], Path]:
    """Facts about games that are played now, by a run or by anybody, and where they belong."""
    from slipstream.agents.specs import run_folder
    from slipstream.config import Layer, flag_layer, resolve
    from slipstream.config import flatten as flat
    from slipstream.envs.registry import import_modules
    from slipstream.runs.layout import RunDir
    from slipstream.runs.provenance import read_config
    from slipstream.stages.reward_report import opponent_of, played, reward_report
    from slipstream.training.build import choose_env

    place = Path()
    if source:
        named = source if source.startswith("run:") else f"run:{source}"
        place = run_folder(named)
        own, where = read_config(RunDir.open(place))
        import_modules(modules)
        settings = resolve(Layer(str(place), dict(flat(own))), flag_layer(list(words))).settings
        env, agent = env or where, agent or named
        choice = choose_env(env, settings, modules=modules)
    elif env and agent:
        choice, resolved = resolve_settings(env, modules, {"words": words, "agent": agent})
        settings = resolved.settings
    else:
        raise ConfigError(
            "There is nothing to look at.",
            "name a run or a folder of demos, or somebody who plays: --env soccer --agent scripted:rule",
        )
    opponent = opponent_of(choice, settings.evaluation.opponent)
    with Bar("games") as bar, played(choice, agent, opponent, games, seed=settings.seed, tell=bar.show) as demos:
        gammas = _discounts(settings, demos.schema.step_seconds, env)
        return {"source": source or agent, "agent": agent, "opponent": opponent} | reward_report(
            demos, None, *gammas
        ), place


def _discounts(settings: Any, step_seconds: float, env: str) -> tuple[float, float]:
    """Gamma and lambda as training would have them."""
    from slipstream.envs.rewards import discount

    section = getattr(settings, settings.algorithm)
    return discount(settings.rewards, step_seconds, section.gamma, env), getattr(section, "gae_lambda", 1.0)


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
    return [*lines, f"0 throughout: {', '.join(off)}"] if off else lines


@rewards.command()
@click.argument("env")
@click.option(
    "--terms", metavar="A,B", help="Which to drop, one at a time [all with a weight, but goals and the like]."
)
@click.option("--seeds", type=int, default=3, show_default=True, help="Runs of each kind.")
@click.option("--steps", type=int, default=ABLATION_STEPS, show_default=True, help="Steps of each run.")
@click.option("--games", type=int, default=400, show_default=True, help="Games that measure each run.")
@click.option("--seed", type=int, help="The first seed.")
@click.option(
    "--run", "place", metavar="DIR", help="Where the runs go [runs/ablation-ENV].", type=click.Path(path_type=Path)
)
@preset_option
@click.option("--config", type=click.Path(path_type=Path), help="A YAML file of settings.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="One setting; may be repeated.")
@shared
def ablate(
    env: str, terms: str | None, seeds: int, games: int, place: Path | None, as_json: bool, modules: tuple[str, ...],
    **flags: Any,
) -> None:  # fmt: skip
    """Train on ENV with all reward terms and without each, and say which help.

    All kinds of run have the same seeds and are measured in games, never by the rewards that differ. The same command
    goes on where it was stopped.
    """
    from slipstream.stages.reward_report import ablate as do
    from slipstream.stages.reward_report import draw_ablation, keep

    choice, resolved = resolve_settings(env, modules, flags)
    folder = place or Path("runs") / f"ablation-{env.replace(':', '-')}"
    wanted = [word.strip() for word in terms.split(",")] if terms else []
    facts = do(
        choice, resolved, folder, wanted, seeds=seeds, games=games, say=lambda line: click.echo(f"== {line}", err=True)
    )
    if facts["stopped"]:
        print_result(facts, as_json, f"not done; the same command goes on in {folder}")
        exit_with(facts)
        return
    picture = keep(facts, folder, draw_ablation, "ablation")
    facts["picture"] = picture and str(picture)
    print_result(facts, as_json, "\n".join([*_ablation_lines(facts), str(picture)]))


def _ablation_lines(facts: dict[str, Any]) -> list[str]:
    what = facts["measure"].replace("_", " ")
    against = f" against {facts['opponent']}" if facts["opponent"] else ", by sparse rewards"
    lines = [
        f"{facts['env']}: {facts['seeds']} seeds of {facts['steps']:,} steps, {facts['games']} games each{against}; "
        f"{what} with all terms {facts['full_mean']:.3g}",
        f"{'term':<14}{'what it adds':>13}  {'95 % interval':<20}verdict",
    ]
    for name, one in facts["terms"].items():
        span = f"[{one['gain_low']:+.3g}, {one['gain_high']:+.3g}]" if facts["seeds"] > 1 else "unknown: one seed"
        lines.append(f"{name:<14}{one['gain']:>+13.3g}  {span:<20}{one['verdict']}")
    return lines
