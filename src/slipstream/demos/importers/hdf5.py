"""HDF5 files with the layout of D4RL: one row per transition, with `terminals` and `timeouts`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.demos.importers.flat_tables import ARRAY_NAMES, TableOptions, TransitionTable, table_source
from slipstream.demos.importers.source import Source, file_errors, import_optional
from slipstream.errors import DemoError


def hdf5_source(path: Path, options: TableOptions) -> Source:
    """The episodes of an HDF5 file; `infos/...` and `metadata/...` are ignored."""
    h5py = import_optional("h5py", "hdf5")
    with file_errors(path):
        file = h5py.File(path, "r")
    try:
        arrays: dict[str, Any] = {}

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.shape and name.partition("/")[0] in ARRAY_NAMES:
                if item.dtype.hasobject:
                    raise DemoError(f"`{name}` in {path} holds text or objects, not numbers.", "remove it")
                arrays[name] = item

        with file_errors(path):
            file.visititems(visit)
            table = TransitionTable(arrays, path)
            return table_source(table, "hdf5", options, file.close)
    except BaseException:
        file.close()
        raise
