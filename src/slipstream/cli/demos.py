"""The commands for recorded demos: info, check, split, merge, view."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.app import VerbGroup, main, print_result

if TYPE_CHECKING:
    from slipstream.demos.reader import Demos


@main.group(cls=VerbGroup)
def demos() -> None:
    """Inspect, check, split, merge, import and export recorded demos."""


folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")


@demos.command()
@folder
@as_json
def info(folder: Path, as_json: bool) -> None:
    """Show what DIR holds and who recorded it."""
    from slipstream.stages.demos import describe, summary_lines

    facts = describe(folder)
    print_result(facts, as_json, "\n".join(summary_lines(facts)))


@demos.command()
@folder
@click.option("--allow", type=click.FloatRange(0, 1), metavar="SHARE", help="The share that may be bad [0.01].")
@click.option("--keep", is_flag=True, help="Report bad episodes without quarantining them.")
@click.option("--null", metavar="N", help="The null action: one option for each part, such as 0 or 1,0,2.")
@as_json
def check(folder: Path, allow: float | None, keep: bool, null: str | None, as_json: bool) -> None:
    """Find bad episodes in DIR and quarantine them.

    An episode is bad if it is damaged, has NaN values, an action out of range, observations that never change, or is a
    copy of another. More than 1 % of bad episodes (not counting copies) is an error; `--allow 0.05` accepts 5 % from
    then on. The report describes the good episodes: returns, lengths, and the range of actions.
    """
    from slipstream.demos import quality

    report = quality.examine(folder, null=_options(null))
    allowed = quality.allowed_share(folder) if allow is None else allow
    limit = max(quality.LIMIT, allowed) if allow is None else allow
    if not keep:
        quality.quarantine(report, allowed)
    lines = report.lines()
    if report.bad and not keep:
        lines.append(f"bad episodes are listed in {folder / 'quarantine.json'} and left out from now on")
    print_result(report.facts() | {"limit": limit}, as_json, "\n".join(lines))
    quality.enforce_limit(report, limit)


@demos.command()
@folder
@click.option("--share", type=float, default=0.1, show_default=True, help="The share of games held out.")
@click.option(
    "--out",
    "outs",
    nargs=2,
    required=True,
    metavar="TRAIN HELD_OUT",
    help="The two new folders.",
    type=click.Path(path_type=Path),
)
@click.option("--seed", type=int, default=0, show_default=True, help="Selects the games that are held out.")
@as_json
def split(folder: Path, share: float, outs: tuple[Path, Path], seed: int, as_json: bool) -> None:
    """Split DIR by games into two new folders.

    The first folder is for training, the second is the held-out share. Games are never divided, so neither steps of an
    episode nor the two teams of a match leak between the folders.
    """
    from slipstream.demos.edit import split_to

    train, held_out = (_folder_facts(part) for part in split_to(folder, share, seed, outs))
    facts = {"train": train, "held_out": held_out, "share": share, "seed": seed}
    print_result(facts, as_json, f"{_counts(train)}\n{_counts(held_out)}")


@demos.command()
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, metavar="DIR", help="The new folder.", type=click.Path(path_type=Path))
@as_json
def merge(folders: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Copy the good episodes of all DIRs into a new folder."""
    from slipstream.demos.edit import merge as merge_demos

    facts = _folder_facts(merge_demos(folders, out)) | {"from": [str(f) for f in folders]}
    print_result(facts, as_json, _counts(facts))


@demos.command()
@folder
@click.option("--episode", default="0", show_default=True, metavar="N", help="Episode number, or name SHARD/INDEX.")
@click.option("--out", metavar="FILE", help="The image file [DIR-N.png].", type=click.Path(path_type=Path))
@as_json
def view(folder: Path, episode: str, out: Path | None, as_json: bool) -> None:
    """Draw one episode of DIR as a PNG.

    Episodes with image observations become a contact sheet, others plots of rewards, actions and observations.
    """
    from slipstream.demos.charts import view as draw
    from slipstream.stages.demos import find_episode

    chosen, number = find_episode(folder, episode)
    place = out or Path(f"{folder.resolve().name}-{episode.replace('/', '-')}.png")
    kind = draw(chosen, number, place)
    facts: dict[str, Any] = {"picture": str(place), "kind": kind, "episode": chosen.label(number)}
    facts |= {"steps": int(chosen.episodes["steps"][number]), "return": float(chosen.episodes["return"][number])}
    print_result(facts, as_json, f"{place}: a {kind} of episode {chosen.label(number)}")


def _folder_facts(made: Demos) -> dict[str, Any]:
    """The path and the counts of a new folder."""
    from slipstream.demos.quality import statistics

    return {"path": str(made.path), "episodes": len(made), **statistics(made)}


def _counts(facts: dict[str, Any]) -> str:
    counts = ((facts[name], name if facts[name] != 1 else name[:-1]) for name in ("episodes", "games", "steps"))
    return f"{facts['path']}: " + ", ".join(f"{count:,} {name}" for count, name in counts)


def _options(null: str | None) -> list[int] | None:
    """Parse a list of integers such as 1,0,2."""
    if null is None:
        return None
    try:
        return [int(word) for word in null.split(",")]
    except ValueError:
        raise click.BadParameter(f"{null!r} is not a list of numbers such as 1,0,2.", param_hint="--null") from None
