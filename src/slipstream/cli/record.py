"""The verb `record`: demonstrations from the games of an agent or a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import Bar, env_set_option, exit_with, given, main, notice, print_result, sampled_option, shared


@main.command()
@click.argument("agent")
@click.option("--env", required=True, help="The environment.")
@click.option(
    "--episodes", type=int, required=True, help="Number of games; each recorded agent of a game is an episode."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The demos folder; new demos are added.")
@click.option("--workers", type=int, help="Worker processes [one per usable core].")
@click.option("--opponent", metavar="AGENT", help="The opponent, which is not recorded [AGENT itself, recorded].")
@click.option("--expert", metavar="AGENT", help="Record the actions of this agent in the states that AGENT visits.")
@click.option("--seed", type=int, help="The random seed [the lowest one that the folder does not hold].")
@sampled_option
@click.option("--fps", type=float, help="Steps per second of a human player [the game's own].")
@env_set_option
@shared
def record(agent: str, env: str, episodes: int, out: Path, as_json: bool, **flags: Any) -> None:
    """Record games of AGENT as demonstrations; AGENT `human` is played by keyboard."""
    from slipstream import api

    with Bar("games") as bar:
        facts = api.record(agent, env, episodes, out, on_progress=bar.show, **given(flags))
    for fault in facts["faults"]:
        notice(fault)
    print_result(facts, as_json, _record_text(facts))
    exit_with(facts)


def _record_text(facts: dict[str, Any]) -> str:
    count, rate = facts["workers"], facts["steps_per_second"]
    lines = [
        f"{facts['games']:,} games, {facts['episodes']:,} episodes, {facts['steps']:,} steps in "
        f"{facts['seconds']:.1f} s ({rate:,.0f} steps/s, {count} worker{'s' * (count > 1)}): "
        f"{facts['mib']:,.1f} MiB in {facts['out']}"
    ]
    if facts["games"]:
        mean, low, high = (facts[f"mean_return{part}"] for part in ("", "_low", "_high"))
        lines.append(f"mean return {mean:.3g} [{low:.3g}, {high:.3g}] over games of {facts['mean_length']:.0f} steps")
    if facts["win_rate"] is not None:
        low, high = facts["win_rate_low"], facts["win_rate_high"]
        lines[-1] += f"; won {facts['win_rate']:.1%} [{low:.1%}, {high:.1%}] against {facts['opponent']}"
    lines.append("time: " + ", ".join(f"{name} {share:.0%}" for name, share in facts["time"].items()))
    if facts["dropped"]:
        lines.append(f"dropped: {facts['dropped']:,} episodes with NaN or infinite values")
    return "\n".join(lines)
