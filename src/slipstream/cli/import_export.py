"""The commands `demos import` and `demos export`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slipstream.cli.app import Bar, import_option, print_result
from slipstream.cli.demos import demos

T = TypeVar("T")
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
SHOWN = 10
"""The number of skipped episodes, and of notes, that are printed."""


def integers(text: str) -> tuple[int, ...]:
    """Parse a list of integers such as 3,3."""
    return tuple(_numbers(text, int, "3,3"))


def floats(text: str) -> tuple[float, ...]:
    """Parse a list of numbers such as -1,0.5."""
    return tuple(_numbers(text, float, "-1,0.5"))


def bins(text: str) -> tuple[float, ...]:
    """Parse the limit, width and mu of camera bins."""
    found = tuple(_numbers(text, float, "10,2,10"))
    if len(found) != 3 or min(found[:2]) <= 0 or found[2] < 0:
        raise click.BadParameter(f"{text!r} should be limit, width and mu, such as 10,2,10.")
    return found


def size(text: str) -> tuple[int, int]:
    """Parse a height and width such as 64 or 64x96."""
    sides = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if sides is None:
        raise click.BadParameter(f"{text!r} is not a size such as 64 or 64x96.")
    return int(sides[1]), int(sides[2] or sides[1])


def _numbers(text: str, parse: Callable[[str], T], example: str) -> list[T]:
    try:
        return [parse(item) for item in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as {example}.") from None


@demos.command("import")
@click.argument("form", metavar="FORMAT")
@click.argument("source")
@click.option("--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The demos folder.")
@click.option("--env", metavar="NAME", help="The recorded environment; with gymnasium:NAME its spaces are used.")
@click.option("--actions", type=click.Choice(["14", "8", "full", "vpt"]), help="The action map [minerl 14, vpt full].")
@click.option("--look", type=float, metavar="DEGREES", help="The angle of a look action in the maps 14 and 8 [15].")
@click.option("--margin", type=float, metavar="DEGREES", help="The smallest camera turn that counts as a look [5].")
@click.option("--camera", type=bins, metavar="LIMIT,WIDTH,MU", help="The camera bins of the full map [10,2,10].")
@click.option(
    "--size",
    type=size,
    metavar="PIXELS",
    help="Resize frames: 64, or 64x96 (height, width) [minerl: original, vpt: 128].",
)
@click.option("--grey", is_flag=True, default=None, help="Convert frames to greyscale.")
@click.option("--stack", type=click.IntRange(1, 16), help="The number of stacked frames [1].")
@click.option("--drop-null", is_flag=True, default=None, help="Drop steps with null actions (vpt).")
@click.option(
    "--sizes", type=integers, metavar="N,...", help="The number of options of each action part (npz, hdf5) [inferred]."
)
@click.option("--low", type=floats, metavar="X,...", help="The lower bound of each action part (npz, hdf5).")
@click.option("--high", type=floats, metavar="X,...", help="The upper bound of each action part (npz, hdf5).")
@click.option("--max-samples", type=int, help="Import at most this many steps; the last episode is cut.")
@click.option("--workers", type=click.IntRange(1), help="Episodes read in parallel [one per usable core].")
@click.option(
    "--allow",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    metavar="SHARE",
    help="The share of episodes that may be unreadable.",
)
@import_option
@as_json
def import_command(
    form: str,
    source: str,
    out: Path,
    max_samples: int | None,
    workers: int | None,
    allow: float,
    as_json: bool,
    modules: tuple[str, ...],
    **options: Any,
) -> None:
    """Import demos recorded by other tools: FORMAT is minerl, vpt, minari, npz, hdf5, or auto.

    SOURCE is a file or a folder; for minari also the name of a local dataset. Nothing is downloaded.
    """
    from slipstream.envs.registry import import_modules
    from slipstream.stages.import_export import import_demos

    import_modules(modules)
    with Bar("episodes") as bar:
        facts = import_demos(
            form, source, out, workers=workers, allow=allow, max_samples=max_samples, on_progress=bar.show, **options
        )
    print_result(facts, as_json, _import_summary(facts))


@demos.command("export")
@click.argument("form", metavar="FORMAT")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", required=True, metavar="TARGET", type=click.Path(path_type=Path), help="A new file or folder.")
@as_json
def export_command(form: str, folder: Path, out: Path, as_json: bool) -> None:
    """Export the good episodes of DIR: FORMAT is minari, npz or minerl.

    TARGET is a folder with a Minari dataset id as name (NAME-v0), a file FILE.npz, or a folder of MineRL recordings.
    """
    from slipstream.stages.import_export import export_demos

    with Bar("episodes") as bar:
        facts = export_demos(form, folder, out, bar.show)
    left = f"\nnot exported ({form} cannot hold it): {', '.join(facts['left_out'])}" if facts["left_out"] else ""
    print_result(facts, as_json, f"{facts['out']}: {facts['episodes']:,} episodes, {facts['steps']:,} steps{left}")


def _import_summary(facts: dict[str, Any]) -> str:
    """What was imported, what was skipped, and the next command."""
    lines = [
        f"{facts['episodes']:,} episodes, {facts['steps']:,} steps of {facts['env']} in {facts['seconds']:.1f} s: "
        f"{facts['bytes'] / 2**20:,.1f} MiB in {facts['out']}"
    ]
    for label, items in (
        ("skipped", [f"{one['episode']}: {one['why']}" for one in facts["skipped"]]),
        ("note", facts["notes"]),
    ):
        lines += [f"{label}: {item}" for item in items[:SHOWN]]
        lines += [f"{label}: and {len(items) - SHOWN} more (see --json)"] if len(items) > SHOWN else []
    return "\n".join([*lines, f"check them: slipstream demos check {facts['out']}"])
