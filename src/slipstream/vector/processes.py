"""Environments stepped by several processes, each a vector of its own, one exchange per step.

Training does not need this (actors own their environments and hand over whole rollouts); it is for loops of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from slipstream.core.child import Answer, Requests, serve
from slipstream.core.contracts import Array, EnvSpec, Rows, Vector, empty_rows
from slipstream.core.crew import Crew
from slipstream.core.slab import Field, Slab


@dataclass(frozen=True)
class VectorJob:
    """What one worker process is told when it starts."""

    worker: int
    make: Callable[..., Vector]
    """(envs, first=..., progress=...) -> vector."""
    first: int
    envs: int


class Processes:
    """A vector whose environments live in worker processes."""

    def __init__(
        self, make: Callable[..., Vector], spec: EnvSpec, envs: int, workers: int, deadline_s: float = 60.0
    ) -> None:
        self.spec, self.envs = spec, envs
        like = empty_rows(spec, envs)
        shapes = {field.name: getattr(like, field.name) for field in fields(Rows)}
        shapes["action"] = np.zeros((envs * spec.agents, spec.action.parts), spec.action.dtype)
        layout = {name: Field(array.shape, array.dtype.name) for name, array in shapes.items()}
        self._slab = Slab(layout | {"progress": Field((workers, 2), "int64")})
        self._rows = Rows(**{field.name: self._slab[field.name] for field in fields(Rows)})
        self._shares = [(w * envs // workers, (w + 1) * envs // workers) for w in range(workers)]
        jobs = [VectorJob(w, make, low, high - low) for w, (low, high) in enumerate(self._shares)]
        self._crew = Crew(
            "slipstream.vector.processes", jobs, self._slab, deadline_s=deadline_s,
            where=lambda w: f"Env {self._shares[w][0] + int(self._slab['progress'][w, 1])}",
        )  # fmt: skip

    def reset(self, out: Rows) -> None:
        """Start every environment anew."""
        self._exchange({"do": "reset"}, out)

    def reset_envs(self, indices: Sequence[int], out: Rows) -> None:
        """Start the named environments anew."""
        self._exchange({"do": "reset_envs", "indices": list(indices)}, out)

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment; `out.terms` accumulates as in any vector."""
        self._slab["action"][:] = action
        self._exchange({"do": "step"}, out)

    def snapshot(self) -> dict[str, Array]:
        """Not offered: collect with actors to save environments."""
        return {}

    def restore(self, state: dict[str, Array]) -> None:
        """Nothing to put back."""

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._crew.close()
        self._slab.close()

    def _exchange(self, message: dict[str, Any], out: Rows) -> None:
        self._rows.terms[:] = out.terms
        self._crew.tell(message)
        self._crew.gather("done")
        for field in fields(Rows):
            getattr(out, field.name)[:] = getattr(self._rows, field.name)


def work(job: VectorJob, slab: Slab, requests: Requests, answer: Answer) -> None:
    """Make the environments, then do as told until the parent is gone."""
    progress = slab["progress"][job.worker]
    vector = job.make(job.envs, first=job.first, progress=progress)
    agents = vector.spec.agents
    share = slice(job.first * agents, (job.first + job.envs) * agents)
    rows = Rows(**{field.name: slab[field.name][share] for field in fields(Rows)})
    action = slab["action"][share]
    answer({"said": "ready"})
    while True:
        request = requests.get()
        progress[0] += 1
        if request["do"] == "step":
            vector.step(action, rows)
        elif request["do"] == "reset":
            vector.reset(rows)
        else:
            mine = [i - job.first for i in request["indices"] if job.first <= i < job.first + job.envs]
            vector.reset_envs(mine, rows)
        answer({"said": "done"})


if __name__ == "__main__":
    serve(work)
