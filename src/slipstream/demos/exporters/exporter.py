"""The protocol of exporters, and the checks and the summary that they share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from slipstream.demos.reader import Demos
from slipstream.errors import DemoError

Progress = Callable[[int, int], None]
"""Called with the work done so far and the total."""
BASIC_COLUMNS = ("obs", "action", "reward")


class Exporter(Protocol):
    """A function that writes a demos folder in another format."""

    def __call__(self, demos: Demos, out: Path, on_progress: Progress | None = None, /) -> dict[str, Any]:
        """Write all episodes of `demos` to the new file or folder `out` and return `export_summary`."""


def check_target(out: Path, flag: str, *, allow_empty: bool = False) -> None:
    """Raise DemoError if the target exists, unless it is an empty folder and `allow_empty` is set."""
    if out.exists() and not (allow_empty and out.is_dir() and not any(out.iterdir())):
        what = "folder" if flag == "DIR" else "file"
        raise DemoError(f"{out} already exists.", f"choose another {what} with --out {flag}")


def export_summary(format: str, demos: Demos, out: Path, written: Collection[str] | None = None) -> dict[str, Any]:
    """The summary of an export; `written` are the columns that the format can hold (all of them if None)."""
    names = [column.name for column in demos.schema.columns]
    left_out = [name for name in names if written is not None and name not in written]
    return {"format": format, "out": str(out), "episodes": len(demos), "steps": demos.steps, "left_out": left_out}
