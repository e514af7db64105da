"""The verb of recording: an agent's games, or your own, as demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import Bar, exit_with, main, print_result, resolve_settings, shared
from slipstream.errors import ConfigError


@main.command()
@click.argument("agent")
@click.option("--env", required=True, help="Where it plays.")
@click.option("--episodes", type=int, required=True, help="Games to play; every recorded agent of one is an episode.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The demos folder; new ones are added.")
@click.option("--workers", type=int, help="Processes that play [one per usable core].")
@click.option("--opponent", metavar="AGENT", help="Who plays the other side, unrecorded [AGENT itself, recorded].")
@click.option("--expert", metavar="AGENT", help="Write what this agent would have done where AGENT played.")
@click.option("--seed", type=int, help="Everything random follows from it [the lowest that DIR has not seen].")
@click.option("--sampled", is_flag=True, help="Draw actions instead of taking the likeliest.")
@click.option("--fps", type=float, help="Steps per second when you play [the game's own pace].")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting of the env.")
@shared
def record(
    agent: str, env: str, episodes: int, out: Path, workers: int | None, opponent: str | None, expert: str | None,
    seed: int | None, sampled: bool, fps: float | None, words: tuple[str, ...], as_json: bool,
    modules: tuple[str, ...],
) -> None:  # fmt: skip
    """Record the games of AGENT as demonstrations; AGENT `human` is you, at the keyboard."""
    from slipstream.stages.record import record as do

    human = agent == "human"
    if fps is not None and not human:
        raise ConfigError("--fps is the pace of a person's game.", "leave it out, or record human")
    choice, resolved = resolve_settings(env, modules, {"words": words, "agent": agent})
    plan = resolved.settings.plan
    envs = plan.envs if resolved.origins.get("plan.envs") == "flag" else None
    common: dict[str, Any] = {"opponent": opponent, "expert": expert, "seed": seed, "sampled": sampled}
    if human:
        from slipstream.stages.human_player import HumanAgent

        with HumanAgent(choice, fps) as player:
            common |= {"player": player.sit, "stop_request": player.wishes}
            facts = do(player.choice, agent, episodes, out, **common)
    else:
        common |= {"workers": workers, "envs": envs, "deadline_s": plan.deadline_s}
        with Bar("games") as bar:
            facts = do(choice, agent, episodes, out, on_progress=bar.show, **common)
    for fault in facts["faults"]:
        click.echo(fault, err=True)
    print_result(facts, as_json, _recorded(facts))
    exit_with(facts)


def _recorded(facts: dict[str, Any]) -> str:
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
        lines.append(f"left out: {facts['dropped']:,} episodes with numbers that are not finite")
    return "\n".join(lines)
