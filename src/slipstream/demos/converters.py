"""Importers and exporters of demonstrations, by format.

How to add an importer:

1. Write `demos/importers/NAME.py` with a function that returns a `Source` (see `importers/source.py`): a `Schema`, a
   list of `EpisodeRef`, and a function that reads one of them as an `Episode`. `importers/hdf5.py` is a
   short example; `space_values.Codec` encodes Gymnasium spaces, `flat_tables` splits arrays into episodes.
2. Add it to `FORMATS` with the options it accepts. A new option also needs a flag in `cli/import_export.py`.
3. Test it in `tests/demos/importers/test_NAME.py`, and describe it in `docs/guides/importing-demos.md`.

How to add an exporter: write `demos/exporters/NAME.py` with a function that follows the protocol `Exporter` (see
`exporters/exporter.py`) and set `export` of the format in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.demos.exporters.exporter import Exporter
from slipstream.demos.exporters.minari import export_minari
from slipstream.demos.exporters.minerl import export_minerl
from slipstream.demos.exporters.npz import export_npz
from slipstream.demos.importers.flat_tables import ActionBounds, TableOptions
from slipstream.demos.importers.hdf5 import hdf5_source
from slipstream.demos.importers.minari import minari_data, minari_source
from slipstream.demos.importers.minerl import minerl_source
from slipstream.demos.importers.npz import npz_source
from slipstream.demos.importers.source import Source
from slipstream.demos.importers.space_values import Space, SpaceRules
from slipstream.demos.importers.vpt import ADAPTER, vpt_source
from slipstream.errors import DemoError
from slipstream.minecraft.action_maps import CameraBins
from slipstream.minecraft.frames import FrameAdapter

FRAME_OPTIONS = ("env", "actions", "size", "grey", "stack", "look", "margin", "camera")
TABLE_OPTIONS = ("env", "sizes", "low", "high")


@dataclass(frozen=True)
class ImportRequest:
    """What to import and how."""

    location: str
    """A file or a folder; for minari also the name of a dataset."""
    rules: SpaceRules
    """How the environment adapters encode spaces."""
    env_spaces: Callable[[str], tuple[Space, Space] | None]
    """Returns the observation and action space of an environment by name, or None if it is not known."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options given by the user; only names in `Format.options`."""

    @property
    def path(self) -> Path:
        """The location as a path."""
        return Path(self.location)

    @property
    def env(self) -> str:
        """The name of the environment, if given."""
        return str(self.options.get("env", ""))


@dataclass(frozen=True)
class Format:
    """One format: how to open it, how to recognise it and how to write it."""

    open: Callable[[ImportRequest], Source] | None = None
    options: tuple[str, ...] = ()
    """The import options that the format accepts."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of single files in this format."""
    pattern: str = ""
    """A file name that occurs in folders of this format."""
    named: bool = False
    """Whether the location may be a name instead of a path."""
    export: Exporter | None = None


def _open_recording(source: Callable[..., Source], default: FrameAdapter, request: ImportRequest) -> Source:
    """Open recordings of video frames with an action map (MineRL, VPT)."""
    options = dict(request.options)
    size, grey, stack = (options.pop(name, None) for name in ("size", "grey", "stack"))
    adapter = FrameAdapter(size or default.size, bool(grey), stack or 1, how=default.how)
    if "camera" in options:
        options["bins"] = CameraBins(*options.pop("camera"))
    return source(request.path, adapter=adapter, **options)


def _open_table(source: Callable[..., Source], request: ImportRequest) -> Source:
    """Open a flat table of transitions (NPZ, HDF5)."""
    bounds = ActionBounds(*(tuple(request.options.get(name, ())) for name in ("sizes", "low", "high")))
    spaces = request.env_spaces(request.env)
    return source(request.path, TableOptions(request.env or request.path.stem, request.rules, spaces, bounds))


def _open_minari(request: ImportRequest) -> Source:
    return minari_source(request.location, request.rules, request.env)


FORMATS: dict[str, Format] = {
    "minerl": Format(
        partial(_open_recording, minerl_source, FrameAdapter()),
        FRAME_OPTIONS,
        pattern="rendered.npz",
        export=export_minerl,
    ),
    "vpt": Format(
        partial(_open_recording, vpt_source, ADAPTER), (*FRAME_OPTIONS, "drop_null"), (".json",), pattern="*.jsonl"
    ),
    "minari": Format(_open_minari, ("env",), named=True, export=export_minari),
    "npz": Format(partial(_open_table, npz_source), TABLE_OPTIONS, (".npz",), export=export_npz),
    "hdf5": Format(partial(_open_table, hdf5_source), TABLE_OPTIONS, (".hdf5", ".h5")),
}
"""All formats by name, in the order in which `detect` tries them."""
IMPORTERS = tuple(name for name, one in FORMATS.items() if one.open is not None)
EXPORTERS: dict[str, Exporter] = {name: one.export for name, one in FORMATS.items() if one.export is not None}


def detect(location: str) -> str:
    """The name of the format of a file, a folder or a Minari dataset name."""
    path = Path(location)
    for name, one in FORMATS.items():
        if path.is_file() and path.suffix in one.suffixes:
            return name
        if path.is_dir() and one.pattern and next(path.rglob(one.pattern), None) is not None:
            return name
    try:
        minari_data(location)
    except DemoError:
        raise DemoError(
            f"The format of {location} is not recognised.",
            f"name it: slipstream demos import {'|'.join(IMPORTERS)} {location} ...",
        ) from None
    return "minari"
