"""The verbs about speed: diagnose, tune, bench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import (
    given,
    listing,
    main,
    no_tuned_option,
    notice,
    print_result,
    settable,
    shared,
    trust_option,
)
from slipstream.errors import ConfigError

PAGE = "diagnosis.html"
MIN_ROUNDS = 5


@main.command()
@click.argument("env", required=False)
@click.option("--test", default="all", metavar="NAME", help="all, env, inference, learn, gpu or memory [all].")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="Duration of the measurements.")
@click.option("--run", type=click.Path(path_type=Path), help="Use the settings and the metrics of this run.")
@click.option(
    "--out", type=click.Path(path_type=Path), help=f"The HTML page [{PAGE}, in the run directory with --run]."
)
@click.option("--rules", is_flag=True, help="Print the rules of the diagnosis, and exit.")
@settable
@no_tuned_option
@shared
def diagnose(env: str | None, out: Path | None, rules: bool, as_json: bool, **flags: Any) -> None:
    """Measure what limits the training speed on ENV (or of run:DIR), and suggest changes.

    Trains for a while without a run directory, and measures env, policy and learner separately.
    """
    if rules:
        _print_rules(as_json)
        return
    from slipstream import api
    from slipstream.perf.diagnose_report import summary, write_page

    diagnosis = api.diagnose(env, on_notice=notice, **given(flags))
    past = diagnosis.facts().get("past")
    page = out or (Path(past["run"]) if past else Path()) / PAGE
    write_page(diagnosis, page)
    print_result(diagnosis.facts() | {"page": str(page)}, as_json, f"{summary(diagnosis)}\npage: {page}")


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


@main.command()
@click.argument("env")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.0, min_open=True),
    default=0.75,
    show_default=True,
    help="Duration of the search, without compilation.",
)
@click.option("--free", is_flag=True, help="Also try larger batches and minibatches, which changes learning.")
@click.option("--exact", is_flag=True, help="Try only changes that keep results identical bit for bit.")
@settable
@shared
def tune(env: str, as_json: bool, **flags: Any) -> None:
    """Find the fastest plan for training on ENV on this machine, with short trial runs.

    Batch size, minibatch size and epochs stay fixed: with more envs, rollouts are shorter. Settings that you give are
    not changed. The plan is saved for later runs with the same settings; `train --show` marks its values as `tuned`,
    and `--no-tuned` ignores it.
    """
    from slipstream import api

    facts = api.tune(env, on_notice=notice, **given(flags))
    print_result(facts, as_json, tune_text(facts))


def tune_text(facts: dict[str, Any]) -> str:
    """The result of tuning for people."""
    lines = [f"{facts['env']}, batch {facts['batch']:,}: {facts['default_steps_per_second']:,.0f} steps/s by default"]
    if model := facts["model"]:
        lines.append(
            f"on one core: env {model['env_us']:.2f} us per step, inference {model['inference_us']:.2f}, learning "
            f"{model['learn_us']:.2f}; with all cores busy: {model['limit']:,.0f} steps/s"
        )
    if facts["tried"]:
        wide = max(len(one["said"]) for one in facts["tried"])
        lines += ["", f"{'switch':<{wide}}  {'predicted':>9}  {'measured':<19}  "]
        lines += [_attempt_text(one, wide) for one in facts["tried"]]
    lines.append("")
    if facts["settings"]:
        predicted = f" (predicted {facts['predicted']:.2f}x)" if facts["predicted"] is not None else ""
        lines += [
            f"speed-up: {facts['gain']:.2f}x [{facts['gain_low']:.2f}, {facts['gain_high']:.2f}]{predicted}, "
            f"{facts['steps_per_second']:,.0f} steps/s, {facts['memory_mib']:,.0f} MiB of memory",
            *(f"  {key} = {value}" for key, value in facts["settings"].items()),
        ]
    elif facts["path"]:
        lines.append("No plan is measurably faster than the default plan.")
    else:
        lines.append("There was no time to try anything.")
    saved = f"saved in {facts['path']}" if facts["path"] else "nothing was saved"
    return "\n".join([*lines, f"{facts['seconds']:.0f} s of tuning; {saved}"])


def _attempt_text(one: dict[str, Any], wide: int) -> str:
    predicted = f"{one['predicted']:.2f}x" if one["predicted"] is not None else ""
    measured = ""
    if one["measured"]:
        mean, low, high = one["measured"]
        measured = f"{mean:.2f}x" if low == 0 else f"{mean:.2f}x [{low:.2f}, {high:.2f}]"
    why = f": {one['why']}" if one["why"] else ""
    return f"{one['said']:<{wide}}  {predicted:>9}  {measured:<19}  {one['verdict']}{why}"


@main.command()
@click.argument("variants", nargs=-1, metavar="A [B]")
@click.option("--env", help="The environment [soccer, or that of the baseline].")
@click.option("--seconds", type=float, help="Training time of each run without warm-up [10].")
@click.option("--repeats", type=int, help=f"Number of rounds; each trains both variants [{MIN_ROUNDS}].")
@click.option("--games", type=int, help="Evaluation games after each run [0: the return of the last episodes].")
@click.option("--gate", type=float, metavar="PERCENT", help="Exit with code 7 if B is slower by more than this.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Save the result of B as a baseline.")
@click.option("--against", type=click.Path(path_type=Path), metavar="FILE", help="Use a saved baseline as A.")
@click.option("--any-machine", is_flag=True, help="Allow a baseline from another machine.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set one setting of both variants; may be repeated."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The seed of the first round.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The results folder [benches/ENV-TIME].")
@trust_option
@listing
def bench(variants: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Compare the speed and the score of B with those of A by training both in turn.

    A variant is a comma-separated list of settings (KEY=VALUE), presets, YAML files or commit:REV; "" is the default
    configuration. A may be a baseline (FILE.json). A single variant needs --against or --save.
    """
    from slipstream import api
    from slipstream.perf.bench import pass_gate
    from slipstream.perf.bench_report import lines

    if not 1 <= len(variants) <= 2:
        raise ConfigError(f"{len(variants)} variants cannot be compared.", 'name two, for example: "" plan.workers=1')
    if (repeats := flags["repeats"]) is not None and repeats < MIN_ROUNDS:
        raise ConfigError(f"{repeats} repeats are too few for a result.", f"give --repeats {MIN_ROUNDS} or more")
    facts = api.bench(*variants, on_notice=notice, **given(flags))
    print_result(facts, as_json, lines(facts))
    pass_gate(facts)
