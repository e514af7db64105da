"""HDF5 files laid out as D4RL's: one row per transition, episodes told by `terminals` and `timeouts`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.demos.importers.arrays import NEEDED
from slipstream.demos.importers.flat_tables import Bounds, Table, table_source
from slipstream.demos.importers.ingest import Source, optional, readable
from slipstream.demos.importers.space_values import Space, SpaceRules
from slipstream.errors import DemoError


def hdf5_source(
    path: Path, env: str, rules: SpaceRules, given: tuple[Space, Space] | None = None, bounds: Bounds | None = None
) -> Source:
    """The episodes of a file; `infos/...` and `metadata/...` are left out."""
    h5py = optional("h5py", "hdf5")
    with readable(path):
        file = h5py.File(path, "r")
    try:
        members: dict[str, Any] = {}

        def visit(name: str, found: Any) -> None:
            if isinstance(found, h5py.Dataset) and found.shape and name.partition("/")[0] in NEEDED:
                if found.dtype.hasobject:
                    raise DemoError(f"`{name}` in {path} holds text or objects, not numbers.", "leave it out")
                members[name] = found

        with readable(path):
            file.visititems(visit)
            table = Table(members, str(path))
            return table_source(table, "hdf5", str(path), env, rules, given, bounds or Bounds(), [path], file.close)
    except BaseException:
        file.close()
        raise
