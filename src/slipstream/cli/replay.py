"""The verbs of looking: replay (a game that was kept) and watch (one that is played now)."""

from __future__ import annotations

import re
from pathlib import Path

import click

from slipstream.cli.app import Bar, main, print_result, resolve_settings, shared
from slipstream.errors import ConfigError


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--mp4", type=click.Path(path_type=Path), help="Write a video.")
@click.option("--gif", type=click.Path(path_type=Path), help="Write an animation.")
@click.option("--png", type=click.Path(path_type=Path), help="Write one sheet of the key moments.")
@click.option("--speed", type=float, default=1.0, show_default=True, help="Of the film, against the game's own.")
@click.option("--fps", type=float, help="Pictures a second [60 for --mp4, 20 for --gif].")
@click.option("--size", metavar="WxH", help="Pixels [960x540 for --mp4 and --png, 640x360 for --gif].")
@click.option("--from", "first", type=float, default=0.0, metavar="S", help="Begin at this second of the game.")
@click.option("--to", "last", type=float, metavar="S", help="End at this second.")
@click.option("--verify", is_flag=True, help="Play it again and check that every state is the same, bit for bit.")
@shared
def replay(
    file: Path, mp4: Path | None, gif: Path | None, png: Path | None, speed: float, fps: float | None,
    size: str | None, first: float, last: float | None, verify: bool, as_json: bool, modules: tuple[str, ...],
) -> None:  # fmt: skip
    """Tell what happened in a kept game, or make a film or a picture of it."""
    from slipstream.runs.replays import Replay
    from slipstream.stages import replay as do

    kept = Replay.open(file)
    cut = do.FilmOptions(speed, fps, _size(size), first, last)
    facts, lines = do.describe(kept), []
    with Bar("film") as bar:
        if mp4 is not None:
            count = do.save_mp4(kept, mp4, cut, bar.show)
            lines.append(f"{mp4}: {count:,} pictures")
        if gif is not None:
            count = do.save_gif(kept, gif, cut, bar.show)
            lines.append(f"{gif}: {count:,} pictures")
        if png is not None:
            do.save_png(kept, png, cut)
            lines.append(f"{png}: the key moments")
    if verify:
        from slipstream.play.replay_recording import verify as check

        check(kept, modules)
        lines.append(f"{file}: played again, {kept.facts.length:,} states the same, bit for bit")
    facts |= {"verified": verify, "written": [str(path) for path in (mp4, gif, png) if path is not None]}
    print_result(facts, as_json, "\n".join(lines or do.describe_lines(kept)))


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if found is None:
        raise ConfigError(f"`--size {text}` is no size.", "write --size 1280x720")
    return int(found.group(1)), int(found.group(2))


@main.command()
@click.argument("agents", nargs=-1, required=True, metavar="AGENT...")
@click.option("--env", required=True, help="What they play.")
@click.option("--games", type=int, default=1, show_default=True, help="How many; sides are swapped from game to game.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--speed", type=float, default=1.0, show_default=True, help="Against the game's own.")
@click.option("--sampled", is_flag=True, help="Draw actions instead of taking the likeliest.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A setting of the env.")
@shared
def watch(
    agents: tuple[str, ...], env: str, games: int, seed: int, speed: float, sampled: bool, words: tuple[str, ...],
    as_json: bool, modules: tuple[str, ...],
) -> None:  # fmt: skip
    """Play live in the terminal: one AGENT for each side.

    Space pauses, + and - change the speed, q leaves. Where there is no terminal, what happens is printed.
    """
    from slipstream.stages.watch import watch as do

    trained = next((agent for agent in agents if agent.startswith("run:")), agents[0])
    choice, _ = resolve_settings(env, modules, {"words": words, "agent": trained})
    facts = do(
        choice, agents, games=games, seed=seed, speed=speed, sampled=sampled,
        say=lambda line: click.echo(line, err=as_json),
    )  # fmt: skip
    won = sum(one["outcome"] == (1 if one["players"][0] == agents[0] else -1) for one in facts["results"])
    text = f"{facts['games']} game{'' if facts['games'] == 1 else 's'}"
    print_result(facts, as_json, text + (f", {agents[0]} won {won}" if len(agents) > 1 else ""))
