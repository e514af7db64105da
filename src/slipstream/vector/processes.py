"""Environments stepped by several processes, each a vector of its own, one exchange per step.

For one policy that acts for all (`plan.vector=processes`) and for loops of your own; actors, who own their environments
and hand over whole rollouts, do without. Each exchange is a byte to every worker and a byte back; what is stepped
stands in a slab.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from slipstream.core.bell import Bell
from slipstream.core.child import Answer, Requests, serve
from slipstream.core.contracts import Array, EnvSpec, Rows, Vector, check_tasks, empty_rows
from slipstream.core.crew import Crew
from slipstream.core.errors import MachineError
from slipstream.core.slab import Field, Slab

RESET, STEP, RESET_SOME, SEEDS, ASSIGN, SNAPSHOT, RESTORE = range(7)


@dataclass(frozen=True)
class VectorJob:
    """What one worker process is told when it starts."""

    worker: int
    make: Callable[..., Vector]
    """(envs, first=..., progress=...) -> vector."""
    first: int
    envs: int
    state: tuple[str, ...]
    """The names of what a snapshot holds."""
    ear: int
    """Where it waits for work."""
    cord: int
    """Where it says that it is done."""


class Processes:
    """A vector whose environments live in worker processes."""

    def __init__(
        self, make: Callable[..., Vector], spec: EnvSpec, envs: int, workers: int, deadline_s: float = 60.0,
        state: Mapping[str, Field] | None = None,
    ) -> None:  # fmt: skip
        if os.name != "posix":
            raise MachineError(
                "Vectors over several processes need POSIX pipes.", "use workers=1; training needs no more"
            )
        self.spec, self.envs = spec, envs
        self._deadline_s = deadline_s
        like = empty_rows(spec, envs)
        shapes = {field.name: getattr(like, field.name) for field in fields(Rows)}
        shapes["action"] = np.zeros((envs * spec.agents, spec.action.parts), spec.action.dtype)
        layout = {name: Field(array.shape, array.dtype.name) for name, array in shapes.items()}
        layout |= {"order": Field((1,), "int64"), "chosen": Field((envs,), "uint8")}
        layout |= {"seeds": Field((envs,), "int64"), "tasks": Field((envs,), "int64")}
        self._state = dict(state or {})
        """What a snapshot of all environments holds; nothing where they cannot be saved."""
        layout |= {f"state/{name}": field for name, field in self._state.items()}
        self._slab = Slab(layout | {"progress": Field((workers, 2), "int64")})
        self._rows = Rows(**{field.name: self._slab[field.name] for field in fields(Rows)})
        self._filled = [(name, array) for name, array in vars(self._rows).items() if array.size]
        self._shares = [(w * envs // workers, (w + 1) * envs // workers) for w in range(workers)]
        self._calls, self._replies = [Bell() for _ in self._shares], [Bell() for _ in self._shares]
        ends = [(call.ear or 0, reply.cord or 0) for call, reply in zip(self._calls, self._replies, strict=True)]
        jobs = [
            VectorJob(w, make, low, high - low, tuple(self._state), *ends[w])
            for w, (low, high) in enumerate(self._shares)
        ]  # fmt: skip
        try:
            self._crew = Crew(
                "slipstream.vector.processes", jobs, self._slab, deadline_s=deadline_s, where=self._where, inherit=ends
            )  # fmt: skip
        except BaseException:
            self._let_go()
            raise
        for call, reply in zip(self._calls, self._replies, strict=True):
            call.drop(ear=True)
            reply.drop(cord=True)

    def reset(self, out: Rows) -> None:
        """Start every environment anew."""
        self._exchange(RESET, out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the named environments anew, each from its seed where there is one."""
        self._slab["chosen"][:] = 0
        self._slab["chosen"][list(indices)] = 1
        self._slab["seeds"][list(indices)] = -1 if seeds is None else seeds
        self._exchange(RESET_SOME, out)

    def seeds(self) -> Array:
        """The seeds of all episodes that are being played."""
        self._tell(SEEDS)
        return self._slab["seeds"].copy()

    def assign(self, tasks: Array) -> None:
        """Say which task each env plays in the episodes that begin from now on."""
        self._slab["tasks"][:] = check_tasks(self.spec, tasks)
        self._tell(ASSIGN)

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment; `out.terms` accumulates as in any vector."""
        self._slab["action"][:] = action
        self._exchange(STEP, out)

    def snapshot(self) -> dict[str, Array]:
        """Copies of what the environments hold, as one vector would give them."""
        if self._state:
            self._tell(SNAPSHOT)
        return {name: self._slab[f"state/{name}"].copy() for name in self._state}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from a snapshot."""
        for name in self._state:
            self._slab[f"state/{name}"][:] = state[name]
        if self._state:
            self._tell(RESTORE)

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._crew.close()
        self._let_go()

    def _let_go(self) -> None:
        for bell in (*self._calls, *self._replies):
            bell.drop(ear=True, cord=True)
        self._calls, self._replies = [], []
        self._slab.close()

    def _exchange(self, order: int, out: Rows) -> None:
        if self.spec.terms:
            self._rows.terms[:] = out.terms
        self._tell(order)
        for name, filled in self._filled:
            np.copyto(getattr(out, name), filled)

    def _tell(self, order: int) -> None:
        """Give all workers an order and wait until each has done it."""
        self._slab["order"][0] = order
        for call in self._calls:
            call.ring()
        for worker, reply in enumerate(self._replies):
            if not reply.wait(self._deadline_s):
                self._crew.blame(worker)

    def _where(self, worker: int) -> str:
        steps, env = (int(n) for n in self._slab["progress"][worker])
        return f"Env {self._shares[worker][0] + env} (step {steps})"


def work(job: VectorJob, slab: Slab, requests: Requests, answer: Answer) -> None:
    """Make the environments, then do as told until the parent is gone."""
    _stay_on_a_core(job.worker)
    progress = slab["progress"][job.worker]
    vector = job.make(job.envs, first=job.first, progress=progress)
    agents = vector.spec.agents
    share = slice(job.first * agents, (job.first + job.envs) * agents)
    rows = Rows(**{field.name: slab[field.name][share] for field in fields(Rows)})
    action, order = slab["action"][share], slab["order"]
    chosen, seeds, tasks = (slab[name][job.first : job.first + job.envs] for name in ("chosen", "seeds", "tasks"))
    state = {name: slab[f"state/{name}"][job.first : job.first + job.envs] for name in job.state}
    call, reply = Bell(ear=job.ear), Bell(cord=job.cord)
    answer({"said": "ready"})
    while call.wait():
        progress[0] += order[0] < SEEDS
        if order[0] == STEP:
            vector.step(action, rows)
        elif order[0] == RESET:
            vector.reset(rows)
        elif order[0] == RESET_SOME:
            named = np.flatnonzero(chosen)
            vector.reset_envs(named.tolist(), rows, seeds[named].tolist())
        elif order[0] == SEEDS:
            seeds[:] = vector.seeds()
        elif order[0] == ASSIGN:
            vector.assign(tasks)
        elif order[0] == SNAPSHOT:
            for name, array in vector.snapshot().items():
                state[name][:] = array
        else:
            vector.restore({name: array.copy() for name, array in state.items()})
        reply.ring()


def _stay_on_a_core(worker: int) -> None:
    """Workers that are woken at the same moment tend to land on the waker's core, one behind the other."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[worker % len(cores)]})


if __name__ == "__main__":
    serve(work)
