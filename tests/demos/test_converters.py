"""The table of import and export formats."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from slipstream.cli.import_export import export_command, import_command
from slipstream.demos.converters import EXPORTERS, FORMATS, IMPORTERS, detect


def test_every_format_has_a_module_of_its_name() -> None:
    """The importer of a format is in importers/NAME.py, its exporter in exporters/NAME.py."""
    for name in IMPORTERS:
        assert hasattr(import_module(f"slipstream.demos.importers.{name}"), f"{name}_source")
    for name, export in EXPORTERS.items():
        assert inspect.getmodule(export) is import_module(f"slipstream.demos.exporters.{name}")


def test_every_option_is_a_flag_of_the_command() -> None:
    """An option in the table can be given on the command line, and the help lists every format."""
    flags = {parameter.name for parameter in import_command.params}
    for name in IMPORTERS:
        assert set(FORMATS[name].options) <= flags
        assert name in (import_command.help or "")
    for name in EXPORTERS:
        assert name in (export_command.help or "")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a.npz", "npz"),
        ("a.hdf5", "hdf5"),
        ("a.h5", "hdf5"),
        ("a.json", "vpt"),
        ("d/v3_a/rendered.npz", "minerl"),
        ("d/a.jsonl", "vpt"),
    ],
)
def test_detect(tmp_path: Path, file: str, name: str) -> None:
    """A format is detected by the suffix of a file or by the files in a folder."""
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert detect(str(path if "/" not in file else tmp_path / "d")) == name
