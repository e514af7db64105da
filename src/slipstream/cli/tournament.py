"""The verb of tournaments: agents against each other, and the ladder that comes of it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import Bar, main, print_result, resolve_settings, shared
from slipstream.errors import CheckpointError


@main.command()
@click.argument("agents", nargs=-1, required=True, metavar="AGENT AGENT...")
@click.option("--env", required=True, help="Where they play.")
@click.option("--games", type=int, required=True, help="Games of every two that meet; sides are swapped in pairs.")
@click.option(
    "--format", "form", type=click.Choice(["round-robin", "gauntlet", "knockout"]), default="round-robin",
    show_default=True, help="All against all, the first against all others, or the loser is out.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Everything random follows from it.")
@click.option("--sampled", is_flag=True, help="Draw actions instead of taking the likeliest.")
@click.option("--anchor", metavar="AGENT", default="scripted:rule", show_default=True, help="Who is rated 1500.")
@click.option(
    "--run", "place", type=click.Path(path_type=Path), help="Where the log and the ladder go [runs/tournament-TIME]."
)
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting of the env.")
@shared
def tournament(
    agents: tuple[str, ...], env: str, games: int, form: Any, seed: int, sampled: bool, anchor: str,
    place: Path | None, words: tuple[str, ...], as_json: bool, modules: tuple[str, ...],
) -> None:  # fmt: skip
    """Let agents play each other, and rate them with intervals.

    The same command with --run DIR adds games to those that are there.
    """
    from slipstream.stages.tournament import tournament as do

    choice = _settle(env, modules, words, agents)
    with Bar("games") as bar:
        facts = do(
            choice, agents, games, format=form, seed=seed, sampled=sampled, run=place, anchor=anchor,
            on_progress=bar.show, on_notice=lambda line: click.echo(line, err=True),
        )  # fmt: skip
    print_result(facts, as_json, _told(facts))


def _settle(env: str, modules: tuple[str, ...], words: tuple[str, ...], agents: tuple[str, ...]) -> Any:
    """The env, with what the first trained agent that can be read needs it to offer."""
    for agent in (agent for agent in agents if agent.startswith("run:")):
        with contextlib.suppress(CheckpointError):
            return resolve_settings(env, modules, {"words": words, "agent": agent})[0]
    return resolve_settings(env, modules, {"words": words})[0]


def _told(facts: dict[str, Any]) -> str:
    from slipstream.league.ladder_text import ladder_text, short_names

    names = short_names([*facts["agents"], *facts["retired"]])
    lines = [ladder_text(facts["tables"]), ""]
    for number, matches in enumerate(facts["rounds"], 1):
        for match in matches:
            one, other = (names.get(agent, agent) for agent in match["agents"])
            (won, lost), on = match["points"], match["replayed_pairs"]
            end = " (the other was retired)" if match["walkover"] else f" after {on} more pairs" if on else ""
            lines.append(f"round {number}: {one} {won:g} : {lost:g} {other}{end}")
    if facts["rounds"]:
        lines.append(f"winner: {names[facts['rounds'][-1][0]['winner']]}")
    lines += [f"retired: {agent}: {why}" for agent, why in facts["retired"].items()]
    if facts["unreadable"]:
        lines.append(f"{facts['unreadable']} lines of games.jsonl cannot be read and are left out")
    lines.append(f"{facts['games']:,} games in {facts['seconds']:.1f} s ({facts['logged']:,} in all): {facts['run']}")
    return "\n".join(lines)
