"""NPZ files: flat tables of transitions, and the files of `imitation` and Stable-Baselines."""

from __future__ import annotations

from pathlib import Path

from slipstream.demos.importers.flat_tables import ARRAY_NAMES, TableOptions, TransitionTable, table_source
from slipstream.demos.importers.npz_stream import NpzFile
from slipstream.demos.importers.source import Source, file_errors


def npz_source(path: Path, options: TableOptions) -> Source:
    """The episodes of an NPZ file. Arrays that are not needed (the pickled `infos` of imitation) are never read."""
    file = NpzFile(path)
    try:
        with file_errors(path):
            arrays = {name: file[name] for name in file.names if name.partition("/")[0] in ARRAY_NAMES}
            table = TransitionTable(arrays, path)
            return table_source(table, "npz", options, file.close)
    except BaseException:
        file.close()
        raise
