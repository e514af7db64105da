"""The verbs around recorded demos: info, check, split, merge, view."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.app import Verbs, main, print_result

if TYPE_CHECKING:
    from slipstream.demos.reader import Demos


@main.group(cls=Verbs)
def demos() -> None:
    """Look at recorded demos, check, split, merge, import and export them."""


folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")


@demos.command()
@folder
@as_json
def info(folder: Path, as_json: bool) -> None:
    """What DIR holds, and who recorded it."""
    from slipstream.stages.demos import describe, episode_rows

    facts = describe(folder)
    print_result(facts, as_json, "\n".join(episode_rows(facts)))


@demos.command()
@folder
@click.option("--allow", type=click.FloatRange(0, 1), metavar="SHARE", help="The share that may be bad [0.01].")
@click.option("--keep", is_flag=True, help="Report bad episodes without putting them into quarantine.")
@click.option("--null", metavar="N", help="The option that does nothing, one for each part: 0 or 1,0,2.")
@as_json
def check(folder: Path, allow: float | None, keep: bool, null: str | None, as_json: bool) -> None:
    """Find bad episodes in DIR and put them into quarantine.

    An episode is bad if it is damaged, has NaN, an action out of its range, observations that never change, or is a
    copy of another. More than 1 % of bad episodes (copies aside) is an error; with `--allow 0.05` 5 % may be, from then
    on. The report tells what the rest is like: returns, lengths, how far actions reach.
    """
    from slipstream.demos import quality

    report = quality.examine(folder, null=_options(null))
    allowed = quality.accepted(folder) if allow is None else allow
    limit = max(quality.LIMIT, allowed) if allow is None else allow
    if not keep:
        quality.quarantine(report, allowed)
    lines = report.lines()
    if report.bad and not keep:
        lines.append(f"they are in {folder / 'quarantine.json'} and are left out from now on")
    print_result(report.facts() | {"limit": limit}, as_json, "\n".join(lines))
    quality.judge(report, limit)


@demos.command()
@folder
@click.option("--share", type=float, default=0.1, show_default=True, help="How much is held out.")
@click.option("--out", "outs", nargs=2, required=True, metavar="TRAIN HELD_OUT", help="The two new folders.",
              type=click.Path(path_type=Path))  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Which games those are.")
@as_json
def split(folder: Path, share: float, outs: tuple[Path, Path], seed: int, as_json: bool) -> None:
    """Split DIR by games into two new folders.

    The first is to learn from, the second is the share that is held out. Whole games go to one side or the other, so
    that neither steps of an episode nor the sides of a match leak.
    """
    from slipstream.demos.edit import split_to

    train, held_out = (_written(part) for part in split_to(folder, share, seed, outs))
    facts = {"train": train, "held_out": held_out, "share": share, "seed": seed}
    print_result(facts, as_json, f"{_words(train)}\n{_words(held_out)}")


@demos.command()
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, metavar="DIR", help="The new folder.", type=click.Path(path_type=Path))
@as_json
def merge(folders: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Copy the good episodes of all DIRs into a new one."""
    from slipstream.demos.edit import merge as do

    facts = _written(do(folders, out)) | {"from": [str(f) for f in folders]}
    print_result(facts, as_json, _words(facts))


@demos.command()
@folder
@click.option("--episode", default="0", show_default=True, metavar="N", help="Its number, or its name: SHARD/PLACE.")
@click.option("--out", metavar="FILE", help="The picture [DIR-N.png].", type=click.Path(path_type=Path))
@as_json
def view(folder: Path, episode: str, out: Path | None, as_json: bool) -> None:
    """Draw one episode of DIR as a PNG.

    It is a contact sheet where the episode is seen in images, and plots of rewards, actions and observations where not.
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
    """What a new folder holds."""
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
        raise click.BadParameter(f"{null!r} is no list of numbers such as 1,0,2.", param_hint="--null") from None
