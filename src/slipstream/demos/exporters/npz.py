"""NPZ files of trajectories with the array names of `imitation`; the NPZ importer reads them back exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.exporters.exporter import BASIC_COLUMNS, Progress, check_target, export_summary
from slipstream.demos.format import TERMINATED
from slipstream.demos.importers.npz_stream import write_npz
from slipstream.demos.reader import Demos


def export_npz(demos: Demos, out: Path, on_progress: Progress | None = None) -> dict[str, Any]:
    """Write one file: `obs` [steps + episodes] (or `obs/FIELD`), `acts`, `rews`, `indices`, `terminal` and `ended`.

    Episodes are concatenated: `np.split(acts, indices)` splits them, and `obs` has one more row per episode.
    """
    out = out if out.suffix == ".npz" else out.with_name(out.name + ".npz")
    check_target(out, "FILE")
    out.parent.mkdir(parents=True, exist_ok=True)
    schema, count, steps = demos.schema, len(demos), demos.steps
    total = count * (len(schema.obs.fields) + 2)
    done = 0

    def rows(column: str, convert: Callable[[Array], Array]) -> Iterator[Array]:
        nonlocal done
        for number in range(count):
            yield convert(np.array(demos.episode(number, (column,))[column]))
            done += 1
            if on_progress is not None:
                on_progress(done, total)

    def members() -> Iterator[tuple[str, Any, tuple[int, ...], Iterator[Array]]]:
        for field in schema.obs.fields:
            name = f"obs/{field.name}" if field.name else "obs"
            split = rows("obs", lambda obs, key=field.name: schema.obs.split(obs)[key])  # type: ignore[misc]
            yield name, field.dtype, (steps + count, *field.shape), split
        parts = () if schema.action.kind == "discrete" else (schema.action.parts,)
        kind = np.float32 if schema.action.continuous_parts else np.int64
        yield "acts", kind, (steps, *parts), rows("action", lambda values: values)
        yield "rews", np.float32, (steps,), rows("reward", lambda values: values)
        ended = demos.episodes["ended"]
        yield "indices", np.int64, (max(0, count - 1),), iter([demos.offsets[1:-1]])
        yield "terminal", np.bool_, (count,), iter([ended == TERMINATED])
        yield "ended", np.int32, (count,), iter([ended])

    write_npz(out, members())
    return export_summary("npz", demos, out, BASIC_COLUMNS)
