"""The verbs that bring other people's demos in and send ours out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slipstream.cli.app import Bar, print_result
from slipstream.cli.demos import demos

T = TypeVar("T")
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
SHOWN = 10
"""Episodes that were left out, or notes, that are printed."""


def whole(words: str) -> tuple[int, ...]:
    """The numbers of a list such as 3,3."""
    return tuple(_numbers(words, int, "3,3"))


def real(words: str) -> tuple[float, ...]:
    """The numbers of a list such as -1,0.5."""
    return tuple(_numbers(words, float, "-1,0.5"))


def bins(words: str) -> tuple[float, ...]:
    """Limit, width and mu of the bins of a camera."""
    found = tuple(_numbers(words, float, "10,2,10"))
    if len(found) != 3 or min(found[:2]) <= 0 or found[2] < 0:
        raise click.BadParameter(f"{words!r} should be limit, width and mu, such as 10,2,10.")
    return found


def size(words: str) -> tuple[int, int]:
    """Height and width of 64 or 64x96."""
    sides = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", words)
    if sides is None:
        raise click.BadParameter(f"{words!r} is no size such as 64 or 64x96.")
    return int(sides[1]), int(sides[2] or sides[1])


def _numbers(words: str, kind: Callable[[str], T], example: str) -> list[T]:
    try:
        return [kind(word) for word in words.split(",")]
    except ValueError:
        raise click.BadParameter(f"{words!r} is no list of numbers such as {example}.") from None


@demos.command("import")
@click.argument("form", metavar="FORMAT")
@click.argument("source")
@click.option("--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The demos folder.")
@click.option("--env", metavar="NAME", help="What it is a recording of; with gymnasium:NAME its spaces are used.")
@click.option("--actions", type=click.Choice(["14", "8", "full"]), help="The action map [minerl 14, vpt full].")
@click.option("--look", type=float, metavar="DEGREES", help="What a look of a table turns [15].")
@click.option("--margin", type=float, metavar="DEGREES", help="From where a turn is a look [5].")
@click.option("--camera", type=bins, metavar="LIMIT,WIDTH,MU", help="The bins of a full map [10,2,10].")
@click.option(
    "--size", type=size, metavar="PIXELS", help="Of frames: 64, or 64x96 (height, width) [minerl as they are, vpt 128]."
)
@click.option("--grey", is_flag=True, default=None, help="Brightness instead of colours.")
@click.option("--stack", type=click.IntRange(1, 16), help="Frames that are seen at once [1].")
@click.option("--drop-null", is_flag=True, default=None, help="Leave steps out at which nothing is done (vpt).")
@click.option(
    "--sizes", type=whole, metavar="N,...", help="Options of each part of an action (npz, hdf5) [as the data have]."
)
@click.option("--low", type=real, metavar="X,...", help="The least of each part of an action (npz, hdf5).")
@click.option("--high", type=real, metavar="X,...", help="The most of each part of an action (npz, hdf5).")
@click.option("--max-samples", type=int, help="Steps to take at most; the last episode is cut.")
@click.option("--workers", type=click.IntRange(1), help="Episodes read at once [one per usable core].")
@click.option("--allow", type=click.FloatRange(0, 1), default=0.01, show_default=True, metavar="SHARE",
              help="The share of episodes that may be unreadable.")  # fmt: skip
@as_json
def bring(
    form: str, source: str, out: Path, max_samples: int | None, workers: int | None, allow: float, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Import demos that others recorded: FORMAT is minerl, vpt, minari, npz, hdf5, or auto.

    SOURCE is a file or a folder; for minari also the name of a dataset on this machine. Nothing is downloaded.
    """
    from slipstream.stages.import_export import import_demos

    with Bar("episodes") as bar:
        facts = import_demos(
            form, source, out, workers=workers, allow=allow, max_samples=max_samples, on_progress=bar.show, **options
        )
    print_result(facts, as_json, _brought(facts))


@demos.command("export")
@click.argument("form", metavar="FORMAT")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", required=True, metavar="TARGET", type=click.Path(path_type=Path), help="A new file or folder.")
@as_json
def send(form: str, folder: Path, out: Path, as_json: bool) -> None:
    """Export the good episodes of DIR: FORMAT is minari, npz or minerl.

    TARGET is a folder named as Minari names datasets (NAME-v0), a file FILE.npz, or a folder of MineRL recordings.
    """
    from slipstream.stages.import_export import export_demos

    with Bar("episodes") as bar:
        facts = export_demos(form, folder, out, bar.show)
    left = f"\nleft out, since {form} has no place for it: {', '.join(facts['left_out'])}" if facts["left_out"] else ""
    print_result(facts, as_json, f"{facts['out']}: {facts['episodes']:,} episodes, {facts['steps']:,} steps{left}")


def _brought(facts: dict[str, Any]) -> str:
    """What was imported, what was not, and what to do next."""
    lines = [
        f"{facts['episodes']:,} episodes, {facts['steps']:,} steps of {facts['env']} in {facts['seconds']:.1f} s: "
        f"{facts['bytes'] / 2**20:,.1f} MiB in {facts['out']}"
    ]
    for words, items in (
        ("left out", [f"{one['episode']}: {one['why']}" for one in facts["skipped"]]),
        ("note", facts["notes"]),
    ):
        lines += [f"{words}: {item}" for item in items[:SHOWN]]
        lines += [f"{words}: and {len(items) - SHOWN} more (see --json)"] if len(items) > SHOWN else []
    return "\n".join([*lines, f"check them: slipstream demos check {facts['out']}"])
