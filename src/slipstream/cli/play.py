"""The verbs that play games: evaluate, tournament, watch, replay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import Bar, env_set_option, given, listing, main, notice, print_result, sampled_option, shared
from slipstream.errors import ConfigError


@main.command()
@click.argument("agent")
@click.option("--env", required=True, help="The environment.")
@click.option("--opponent", multiple=True, metavar="AGENT", help="An opponent; may be repeated.")
@click.option("--beside", metavar="AGENT", help="Also evaluate this agent from the same initial states, and compare.")
@click.option("--games", type=int, required=True, help="Number of games against each opponent.")
@click.option("--seed", type=int, default=0, show_default=True)
@sampled_option
@env_set_option
@shared
def evaluate(agent: str, env: str, as_json: bool, **flags: Any) -> None:
    """Evaluate AGENT by playing games."""
    from slipstream import api

    with Bar("games") as bar:
        facts = api.evaluate(agent, env, on_progress=bar.show, **given(flags))
    print_result(facts, as_json, evaluation_text(facts))


def evaluation_text(facts: dict[str, Any]) -> str:
    """The result of an evaluation for people."""
    lines = []
    for name, result in facts["opponents"].items():
        lines.append(
            f"against {name}: won {result['wins']} of {result['games']}, drew {result['draws']}, "
            f"lost {result['losses']}: win rate {result['win_rate']:.1%} "
            f"[{result['win_rate_low']:.1%}, {result['win_rate_high']:.1%}]"
        )
        mine, theirs = result["behaviour"], result["opponent_behaviour"]
        if mine:
            pairs = (f"{label.replace('_', ' ')} {mine[label][0]:.3g} : {theirs[label][0]:.3g}" for label in mine)
            lines.append(f"  per game: {', '.join(pairs)}")
    if lines:
        return "\n".join(lines)
    mean, low, high = (facts[key] for key in ("mean_return", "mean_return_low", "mean_return_high"))
    games = f"{facts['games']} games of {facts['mean_length']:.0f} steps"
    lines.append(f"mean return {mean:.3g} [{low:.3g}, {high:.3g}] over {games}")
    if beside := facts.get("beside"):
        for name, unit in (("return", ""), ("length", " steps")):
            gain, low, high = (beside[f"{name}_gain{end}"] for end in ("", "_low", "_high"))
            lines.append(f"{name} compared with {beside['agent']}: {gain:+.3g}{unit} [{low:+.3g}, {high:+.3g}]")
    return "\n".join(lines)


@main.command()
@click.argument("agents", nargs=-1, required=True, metavar="AGENT AGENT...")
@click.option("--env", required=True, help="The environment.")
@click.option(
    "--games", type=int, required=True, help="Number of games of each pairing, half of them with sides swapped."
)
@click.option(
    "--format",
    type=click.Choice(["round-robin", "gauntlet", "knockout"]),
    default="round-robin",
    show_default=True,
    help="All against all, the first agent against all others, or single elimination.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The random seed.")
@sampled_option
@click.option(
    "--anchor", metavar="AGENT", default="scripted:rule", show_default=True, help="The agent whose rating is 1500."
)
@click.option(
    "--run", type=click.Path(path_type=Path), help="The folder of the game log and the ladder [runs/tournament-TIME]."
)
@env_set_option
@shared
def tournament(agents: tuple[str, ...], env: str, games: int, as_json: bool, **flags: Any) -> None:
    """Play games between agents and rate them, with confidence intervals.

    The same command with --run DIR adds games to those in DIR.
    """
    from slipstream import api

    with Bar("games") as bar:
        facts = api.tournament(agents, env, games, on_progress=bar.show, on_notice=notice, **given(flags))
    print_result(facts, as_json, _tournament_text(facts))


def _tournament_text(facts: dict[str, Any]) -> str:
    from slipstream.league.ladder_text import ladder_text, short_names

    names = short_names([*facts["agents"], *facts["retired"]])
    lines = [ladder_text(facts["tables"]), ""]
    for number, matches in enumerate(facts["rounds"], 1):
        for match in matches:
            one, other = (names.get(agent, agent) for agent in match["agents"])
            (won, lost), more = match["points"], match["replayed_pairs"]
            end = " (the other was retired)" if match["walkover"] else f" after {more} more pairs" if more else ""
            lines.append(f"round {number}: {one} {won:g} : {lost:g} {other}{end}")
    if facts["rounds"]:
        lines.append(f"winner: {names[facts['rounds'][-1][0]['winner']]}")
    lines += [f"retired: {agent}: {why}" for agent, why in facts["retired"].items()]
    if facts["unreadable"]:
        lines.append(f"{facts['unreadable']} unreadable lines of games.jsonl are ignored")
    lines.append(f"{facts['games']:,} games in {facts['seconds']:.1f} s ({facts['logged']:,} in all): {facts['run']}")
    return "\n".join(lines)


@main.command()
@click.argument("agents", nargs=-1, required=True, metavar="AGENT...")
@click.option("--env", required=True, help="The environment.")
@click.option("--games", type=int, default=1, show_default=True, help="Number of games; sides are swapped every game.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--speed", type=float, default=1.0, show_default=True, help="Speed relative to the game's own.")
@click.option("--mp4", type=click.Path(path_type=Path), help="Write a video instead.")
@click.option("--gif", type=click.Path(path_type=Path), help="Write an animated GIF instead.")
@click.option("--png", type=click.Path(path_type=Path), help="Write one image with several moments instead.")
@click.option("--fps", type=float, help="Frames per second of the video [that of the game, at most 60; 20 for --gif].")
@click.option("--size", metavar="WxH", help="Size of the video in pixels [that of the env's images, or 960x540].")
@sampled_option
@env_set_option
@shared
def watch(agents: tuple[str, ...], env: str, size: str | None, as_json: bool, **flags: Any) -> None:
    """Watch a game live in the terminal, with one AGENT per side, or write it as a video.

    Space pauses, + and - change the speed, q quits. Without a terminal, the events of the game are printed.
    """
    from slipstream import api

    with Bar("frames") as bar:
        facts = api.watch(
            agents,
            env,
            size=_parse_size(size),
            on_notice=lambda line: click.echo(line, err=as_json),
            on_progress=bar.show,
            **given(flags),
        )
    won = sum(one["outcome"] == (1 if one["players"][0] == agents[0] else -1) for one in facts["results"])
    text = f"{facts['games']} game{'' if facts['games'] == 1 else 's'}"
    print_result(facts, as_json, text + (f", {agents[0]} won {won}" if len(agents) > 1 else ""))


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--mp4", type=click.Path(path_type=Path), help="Write a video.")
@click.option("--gif", type=click.Path(path_type=Path), help="Write an animated GIF.")
@click.option("--png", type=click.Path(path_type=Path), help="Write one image with several moments.")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Playback speed relative to the game's own.")
@click.option("--fps", type=float, help="Frames per second [at most that of the env's images, 60, and 20 for --gif].")
@click.option("--size", metavar="WxH", help="Size in pixels [that of the env's images, or 960x540, 640x360 for --gif].")
@click.option("--from", "first", type=float, default=0.0, metavar="S", help="Start at this second of the game.")
@click.option("--to", "last", type=float, metavar="S", help="End at this second of the game.")
@click.option("--verify", is_flag=True, help="Play the game again and check that every state is identical.")
@listing
def replay(file: Path, size: str | None, first: float, last: float | None, as_json: bool, **flags: Any) -> None:
    """Print the events of a recorded game, or render it as a video or an image."""
    from slipstream import api

    with Bar("frames") as bar:
        facts = api.replay(
            file, size=_parse_size(size), first_s=first, last_s=last, on_progress=bar.show, **given(flags)
        )
    print_result(facts, as_json, "\n".join(facts.pop("text")))


def _parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if found is None:
        raise ConfigError(f"`--size {text}` is not a size.", "write --size 1280x720")
    return int(found.group(1)), int(found.group(2))
