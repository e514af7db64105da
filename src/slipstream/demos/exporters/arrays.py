"""NPZ files of trajectories, named as `imitation` names them, which our own importer reads back exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contracts import Array
from slipstream.demos.format import TERMINATED
from slipstream.demos.importers.npz_stream import write_npz
from slipstream.demos.reader import Demos
from slipstream.errors import DemoError


def export_npz(demos: Demos, out: Path, on_progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Write one file: `obs` [steps + episodes] (or `obs/FIELD`), `acts`, `rews`, `indices`, `terminal` and `ended`.

    Episodes stand behind one another; `np.split(acts, indices)` cuts them apart, and `obs` has one row more for each.
    """
    out = out if out.suffix == ".npz" else out.with_name(out.name + ".npz")
    if out.exists():
        raise DemoError(f"{out} is already there.", "choose another file with --out FILE")
    out.parent.mkdir(parents=True, exist_ok=True)
    schema, count, steps = demos.schema, len(demos), demos.steps
    total = count * (len(schema.obs.fields) + 2)
    done = 0

    def rows(column: str, take: Callable[[Array], Array]) -> Iterator[Array]:
        nonlocal done
        for number in range(count):
            yield take(np.array(demos.episode(number, (column,))[column]))
            done += 1
            if on_progress is not None:
                on_progress(done, total)

    def members() -> Iterator[tuple[str, Any, tuple[int, ...], Iterator[Array]]]:
        for field in schema.obs.fields:
            name = f"obs/{field.name}" if field.name else "obs"
            split = rows("obs", lambda found, key=field.name: schema.obs.split(found)[key])  # type: ignore[misc]
            yield name, field.dtype, (steps + count, *field.shape), split
        parts = () if schema.action.kind == "discrete" else (schema.action.parts,)
        kind = np.float32 if schema.action.kind == "continuous" else np.int64
        yield "acts", kind, (steps, *parts), rows("action", lambda found: found)
        yield "rews", np.float32, (steps,), rows("reward", lambda found: found)
        ended = demos.episodes["ended"]
        yield "indices", np.int64, (max(0, count - 1),), iter([demos.offsets[1:-1]])
        yield "terminal", np.bool_, (count,), iter([ended == TERMINATED])
        yield "ended", np.int32, (count,), iter([ended])

    write_npz(out, members())
    kept = ("obs", "action", "reward")
    left = [column.name for column in schema.columns if column.name not in kept]
    return {"format": "npz", "out": str(out), "episodes": count, "steps": steps, "left_out": left}
