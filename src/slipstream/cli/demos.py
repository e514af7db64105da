"""The verbs `demos info`, `check`, `split`, `merge` and `view`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.app import VerbGroup, json_option, main, print_result

if TYPE_CHECKING:
    from slipstream.demos.reader import Demos


@main.group(cls=VerbGroup)
def demos() -> None:
    """Inspect, check, split, merge, import and export recorded demos."""


folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@demos.command()
@folder
@json_option
def info(folder: Path, as_json: bool) -> None:
    """Show the contents and the origin of DIR."""
    from slipstream.stages.demos import describe, episode_rows

    facts = describe(folder)
    print_result(facts, as_json, "\n".join(episode_rows(facts)))


@demos.command()
@folder
@click.option("--allow", type=click.FloatRange(0, 1), metavar="SHARE", help="Maximum share of bad episodes [0.01].")
@click.option("--keep", is_flag=True, help="Report bad episodes without quarantining them.")
@click.option("--null", metavar="N", help="The no-op of each part of an action: 0 or 1,0,2.")
@json_option
def check(folder: Path, allow: float | None, keep: bool, null: str | None, as_json: bool) -> None:
    """Find bad episodes in DIR and quarantine them.

    An episode is bad if it is damaged, contains NaN or an action out of range, has constant observations, or is a copy
    of another episode. More than 1 % of bad episodes (without copies) is an error; `--allow 0.05` raises the limit to
    5 % and saves it. The report describes the good episodes: returns, lengths and the range of actions.
    """
    from slipstream.demos import quality

    report = quality.examine(folder, null=_options(null))
    allowed = quality.accepted(folder) if allow is None else allow
    limit = max(quality.LIMIT, allowed) if allow is None else allow
    if not keep:
        quality.quarantine(report, allowed)
    lines = report.lines()
    if report.bad and not keep:
        lines.append(f"they are listed in {folder / 'quarantine.json'} and ignored from now on")
    print_result(report.facts() | {"limit": limit}, as_json, "\n".join(lines))
    quality.judge(report, limit)


@demos.command()
@folder
@click.option("--share", type=float, default=0.1, show_default=True, help="Share of games that is held out.")
@click.option(
    "--out",
    "outs",
    nargs=2,
    required=True,
    metavar="TRAIN HELD_OUT",
    help="The two new folders.",
    type=click.Path(path_type=Path),
)
@click.option("--seed", type=int, default=0, show_default=True, help="The random seed.")
@json_option
def split(folder: Path, share: float, outs: tuple[Path, Path], seed: int, as_json: bool) -> None:
    """Split DIR by games into two new folders.

    The first folder is for training, the second one is held out. Games are never divided, so that neither the steps of
    an episode nor the two sides of a match are in both folders.
    """
    from slipstream.demos.edit import split_to

    train, held_out = (_written(part) for part in split_to(folder, share, seed, outs))
    facts = {"train": train, "held_out": held_out, "share": share, "seed": seed}
    print_result(facts, as_json, f"{_words(train)}\n{_words(held_out)}")


@demos.command()
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, metavar="DIR", help="The new folder.", type=click.Path(path_type=Path))
@json_option
def merge(folders: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Copy the good episodes of all DIRs into a new one."""
    from slipstream.demos.edit import merge as do

    facts = _written(do(folders, out)) | {"from": [str(f) for f in folders]}
    print_result(facts, as_json, _words(facts))


@demos.command()
@folder
@click.option("--episode", default="0", show_default=True, metavar="N", help="Its index, or its name: SHARD/PLACE.")
@click.option("--out", metavar="FILE", help="The image [DIR-N.png].", type=click.Path(path_type=Path))
@json_option
def view(folder: Path, episode: str, out: Path | None, as_json: bool) -> None:
    """Draw one episode of DIR as a PNG.

    Episodes with image observations become a contact sheet, others plots of rewards, actions and observations.
    """
    from slipstream.demos.charts import view as draw
    from slipstream.stages.demos import find

    chosen, number = find(folder, episode)
    place = out or Path(f"{folder.resolve().name}-{episode.replace('/', '-')}.png")
    kind = draw(chosen, number, place)
    facts: dict[str, Any] = {"picture": str(place), "kind": kind, "episode": chosen.label(number)}
    facts |= {"steps": int(chosen.episodes["steps"][number]), "return": float(chosen.episodes["return"][number])}
    print_result(facts, as_json, f"{place}: a {kind} of episode {chosen.label(number)}")


def _written(made: Demos) -> dict[str, Any]:
    """The facts of a new folder."""
    from slipstream.demos.quality import measure

    return {"path": str(made.path), "episodes": len(made), **measure(made)}


def _words(facts: dict[str, Any]) -> str:
    counts = ((facts[name], name if facts[name] != 1 else name[:-1]) for name in ("episodes", "games", "steps"))
    return f"{facts['path']}: " + ", ".join(f"{count:,} {name}" for count, name in counts)


def _options(null: str | None) -> list[int] | None:
    """The numbers of a list such as 1,0,2."""
    if null is None:
        return None
    try:
        return [int(word) for word in null.split(",")]
    except ValueError:
        raise click.BadParameter(f"{null!r} is not a list of numbers such as 1,0,2.", param_hint="--null") from None
