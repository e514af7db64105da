"""The verb `tune`: search the fastest plan for an environment on this machine."""

from __future__ import annotations

from typing import Any

import click

from slipstream.cli.app import main, print_result, resolve_settings, settable, shared


@main.command()
@click.argument("env")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.0, min_open=True),
    default=0.75,
    show_default=True,
    help="Time of the search without compiling.",
)
@click.option("--free", is_flag=True, help="Also try larger batches and minibatches, which changes learning.")
@click.option("--exact", is_flag=True, help="Try only changes that keep the result bit for bit.")
@settable
@shared
def tune(
    env: str, minutes: float, free: bool, exact: bool, as_json: bool, modules: tuple[str, ...], **flags: Any
) -> None:
    """Search the fastest plan for training on ENV with this machine, with short trials.

    The batch, the minibatch and the epochs do not change: if the number of envs changes, the rollout length changes
    too. Settings that you give are fixed. The plan is cached for the next trainings of this kind; `train --show` marks
    its settings as `tuned`, and `--no-tuned` ignores it.
    """
    from slipstream.perf.tune import tune as do

    choice, resolved = resolve_settings(env, modules, flags)
    found = do(
        choice, resolved, seconds=60 * minutes, free=free, exact=exact, tell=lambda line: click.echo(line, err=True)
    )
    facts = found.facts()
    print_result(facts, as_json, tuned(facts))


def tuned(facts: dict[str, Any]) -> str:
    """The outcome of tuning as text."""
    lines = [f"{facts['env']}, batch {facts['batch']:,}: {facts['default_steps_per_second']:,.0f} steps/s by default"]
    if model := facts["model"]:
        lines.append(
            f"one core alone: env {model['env_us']:.2f} us per step, inference {model['inference_us']:.2f}, learning "
            f"{model['learn_us']:.2f}; limit of all cores: {model['limit']:,.0f} steps/s"
        )
    if facts["tried"]:
        wide = max(len(one["said"]) for one in facts["tried"])
        lines += ["", f"{'switch':<{wide}}  {'predicted':>9}  {'measured':<19}  "]
        lines += [_attempt(one, wide) for one in facts["tried"]]
    lines.append("")
    if facts["settings"]:
        predicted = f" (predicted {facts['predicted']:.2f}x)" if facts["predicted"] is not None else ""
        lines += [
            f"gained: {facts['gain']:.2f}x [{facts['gain_low']:.2f}, {facts['gain_high']:.2f}]{predicted}, "
            f"{facts['steps_per_second']:,.0f} steps/s, {facts['memory_mib']:,.0f} MiB of memory",
            *(f"  {key} = {value}" for key, value in facts["settings"].items()),
        ]
    elif facts["path"]:
        lines.append("No plan is significantly faster than the default plan, which is kept.")
    else:
        lines.append("There was no time for an attempt.")
    kept = f"cached in {facts['path']}" if facts["path"] else "nothing is cached"
    return "\n".join([*lines, f"{facts['seconds']:.0f} s of tuning; {kept}"])


def _attempt(one: dict[str, Any], wide: int) -> str:
    predicted = f"{one['predicted']:.2f}x" if one["predicted"] is not None else ""
    measured = ""
    if one["measured"]:
        mean, low, high = one["measured"]
        measured = f"{mean:.2f}x" if low == 0 else f"{mean:.2f}x [{low:.2f}, {high:.2f}]"
    why = f": {one['why']}" if one["why"] else ""
    return f"{one['said']:<{wide}}  {predicted:>9}  {measured:<19}  {one['verdict']}{why}"
