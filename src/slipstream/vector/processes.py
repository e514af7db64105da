"""Environments stepped by several processes, each a vector of its own, one exchange per step.

Each exchange is a byte to every worker and a byte back; what is stepped stands in a slab. Environments may be in groups
that are stepped in turn: every worker has its share of each, so that no core is idle while one group waits for actions.
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

RESET, STEP, RESET_SOME, SEEDS, ASSIGN, SAVE, LOAD = range(7)
STEPS, ENV, FIRST = range(3)
"""What a worker shows of its progress: orders to its group, the env at work, and the number of the first of them."""
Places = Callable[[Slab, int, int], list[Rows]]
"""(slab, low, high) -> where results may be written, for the rows [low, high); the first is to be copied from."""


def spread(count: int, parts: int) -> list[tuple[int, int]]:
    """Split [0, count) into so many ranges of nearly the same size."""
    return [(k * count // parts, (k + 1) * count // parts) for k in range(parts)]


def step_fields(spec: EnvSpec, envs: int, groups: int, workers: int) -> dict[str, Field]:
    """What stepping needs in a slab: rows to copy from, actions, orders and progress."""
    like = empty_rows(spec, envs)
    shapes = {field.name: getattr(like, field.name) for field in fields(Rows)}
    shapes["action"] = np.zeros((envs * spec.agents, spec.action.parts), spec.action.dtype)
    layout = {name: Field(array.shape, array.dtype.name) for name, array in shapes.items()}
    layout |= {"order": Field((groups, 2), "int64"), "chosen": Field((envs,), "uint8")}
    layout |= {"seeds": Field((envs,), "int64"), "tasks": Field((envs,), "int64")}
    return layout | {"progress": Field((workers, 3), "int64")}


def state_views(slab: Slab) -> dict[str, Array]:
    """What a snapshot of the environments holds, by name, where a slab has room for it under `state/`."""
    return {name.partition("/")[2]: slab[name] for name in slab.fields if name.startswith("state/")}


def one_place(slab: Slab, low: int, high: int) -> list[Rows]:
    """The rows to copy from, and nothing else."""
    return [Rows(**{field.name: slab[field.name][low:high] for field in fields(Rows)})]


@dataclass(frozen=True)
class VectorJob:
    """What one worker process is told when it starts."""

    worker: int
    make: Callable[..., Vector]
    """(envs, first=..., progress=...) -> vector."""
    shares: tuple[tuple[int, int], ...]
    """Its environments [low, high) of each group."""
    places: Places
    ear: int
    """Where it waits for work."""
    cord: int
    """Where it says that it is done."""


class Hands:
    """Worker processes that step the environments of one or more groups."""

    def __init__(
        self, make: Callable[..., Vector], spec: EnvSpec, groups: Sequence[tuple[int, int]], workers: int,
        deadline_s: float = 60.0, slab: Slab | None = None, places: Places = one_place,
        where: Callable[[int, int], str] = "Env {} (step {})".format,
    ) -> None:  # fmt: skip
        if os.name != "posix":
            raise MachineError(
                "Vectors over several processes need POSIX pipes.", "use workers=1; training needs no more"
            )
        self.spec, self.groups, self.places, self.deadline_s = spec, list(groups), places, deadline_s
        self.slab = slab or Slab(step_fields(spec, groups[-1][1], len(groups), workers))
        self._named = where
        shares = [tuple(_share(group, w, workers) for group in groups) for w in range(workers)]
        self._busy = [[w for w, own in enumerate(shares) if own[g][0] < own[g][1]] for g in range(len(groups))]
        self._heard = np.zeros((workers, len(groups)), np.int64)
        """Answers that came while another group's were waited for."""
        self._calls, self._replies = [Bell() for _ in shares], [Bell() for _ in shares]
        ends = [(call.ear or 0, reply.cord or 0) for call, reply in zip(self._calls, self._replies, strict=True)]
        jobs = [VectorJob(w, make, own, places, *ends[w]) for w, own in enumerate(shares)]
        try:
            self._crew = Crew(
                "slipstream.vector.processes", jobs, self.slab, deadline_s=deadline_s, where=self._where, inherit=ends
            )  # fmt: skip
        except BaseException:
            self._let_go()
            raise
        for call, reply in zip(self._calls, self._replies, strict=True):
            call.drop(ear=True)
            reply.drop(cord=True)

    def tell(self, group: int, order: int, place: int = 0) -> None:
        """Give all workers of a group an order."""
        self.slab["order"][group] = order, place
        for worker in self._busy[group]:
            self._calls[worker].ring(group)

    def wait(self, group: int) -> None:
        """Wait until each worker of the group has done as it was told; the answers of others may come before."""
        for worker in self._busy[group]:
            reply = self._replies[worker]
            while not self._heard[worker, group]:
                if not reply.wait(self.deadline_s):
                    self._crew.blame(worker)
                self._heard[worker, reply.word] += 1
            self._heard[worker, group] -= 1

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._crew.close()
        self._let_go()

    def _let_go(self) -> None:
        for bell in (*self._calls, *self._replies):
            bell.drop(ear=True, cord=True)
        self._calls, self._replies = [], []
        self.slab.close()

    def _where(self, worker: int) -> str:
        steps, env, first = self.slab["progress"][worker].tolist()
        return self._named(first + env, steps)


class Share:
    """One group of environments that worker processes step; a step can be begun and waited for."""

    def __init__(self, hands: Hands, group: int) -> None:
        self.spec, self._hands, self._group = hands.spec, hands, group
        low, high = hands.groups[group]
        self.envs = high - low
        self._slab = {name: hands.slab[name][low:high] for name in ("chosen", "seeds", "tasks")}
        self._state = {name: array[low:high] for name, array in state_views(hands.slab).items()}
        rows = slice(low * self.spec.agents, high * self.spec.agents)
        self._action = hands.slab["action"][rows]
        places = hands.places(hands.slab, rows.start, rows.stop)
        self._places = {_address(place): number for number, place in enumerate(places) if number}
        self._rows, self._out = places[0], places[0]
        self._filled = [(name, array) for name, array in vars(self._rows).items() if array.size]

    def reset(self, out: Rows) -> None:
        """Start every environment anew."""
        self._begin(RESET, out)
        self.receive()

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the named environments anew, each from its seed where there is one."""
        self._slab["chosen"][:] = 0
        self._slab["chosen"][list(indices)] = 1
        self._slab["seeds"][list(indices)] = -1 if seeds is None else seeds
        self._begin(RESET_SOME, out)
        self.receive()

    def seeds(self) -> Array:
        """The seeds of all episodes that are being played."""
        self._order(SEEDS)
        return self._slab["seeds"].copy()

    def assign(self, tasks: Array) -> None:
        """Say which task each env plays in the episodes that begin from now on."""
        self._slab["tasks"][:] = check_tasks(self.spec, tasks)
        self._order(ASSIGN)

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment; `out.terms` accumulates as in any vector."""
        self.send(action, out)
        self.receive()

    def send(self, action: Array, out: Rows) -> None:
        """Begin a step; where `out` is one of the places in the slab, workers write there."""
        self._action[:] = action
        self._begin(STEP, out)

    def receive(self) -> None:
        """Wait for what was begun."""
        self._hands.wait(self._group)
        if self._out is not self._rows:
            for name, filled in self._filled:
                np.copyto(getattr(self._out, name), filled)
            self._out = self._rows

    def snapshot(self) -> dict[str, Array]:
        """The state of all environments, where the slab has room for it; else nothing."""
        if not self._state:
            return {}
        self._order(SAVE)
        return {name: array.copy() for name, array in self._state.items()}

    def restore(self, state: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        if self._state:
            for name, array in self._state.items():
                array[:] = state[name]
            self._order(LOAD)

    def close(self) -> None:
        """Leave the workers to whoever started them."""

    def _begin(self, order: int, out: Rows) -> None:
        place = self._places.get(_address(out), 0) if self._places else 0
        self._out = self._rows if place else out
        if not place and self.spec.terms:
            self._rows.terms[:] = out.terms
        self._hands.tell(self._group, order, place)

    def _order(self, order: int) -> None:
        self._hands.tell(self._group, order)
        self._hands.wait(self._group)


class Processes(Share):
    """A vector whose environments live in worker processes of its own."""

    def __init__(
        self, make: Callable[..., Vector], spec: EnvSpec, envs: int, workers: int, deadline_s: float = 60.0,
        state: Mapping[str, Field] | None = None,
    ) -> None:  # fmt: skip
        """`state` is what a snapshot of all environments holds, by name; without it none is given."""
        room = {f"state/{name}": field for name, field in (state or {}).items()}
        slab = Slab(step_fields(spec, envs, 1, workers) | room)
        super().__init__(Hands(make, spec, [(0, envs)], workers, deadline_s, slab), 0)

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._hands.close()


class Team:
    """A worker's environments of one group."""

    def __init__(self, job: VectorJob, slab: Slab, group: int) -> None:
        low, high = job.shares[group]
        self._first, self._progress, self._count = low, slab["progress"][job.worker], 0
        self._vector = job.make(high - low, first=low, progress=self._progress[:FIRST])
        agents = self._vector.spec.agents
        self._action = slab["action"][low * agents : high * agents]
        self._places = job.places(slab, low * agents, high * agents)
        self._order = slab["order"][group]
        self._chosen, self._seeds, self._tasks = (slab[name][low:high] for name in ("chosen", "seeds", "tasks"))
        self._state = {name: array[low:high] for name, array in state_views(slab).items()}

    def obey(self) -> None:
        """Do what the group is told."""
        vector, (order, place), progress = self._vector, self._order.tolist(), self._progress
        self._count += order < SEEDS
        progress[STEPS], progress[FIRST] = self._count, self._first
        if order == STEP:
            vector.step(self._action, self._places[place])
        elif order == RESET:
            vector.reset(self._places[place])
        elif order == RESET_SOME:
            named = np.flatnonzero(self._chosen)
            vector.reset_envs(named.tolist(), self._places[place], self._seeds[named].tolist())
        elif order == SEEDS:
            self._seeds[:] = vector.seeds()
        elif order == ASSIGN:
            vector.assign(self._tasks)
        elif order == SAVE:
            for name, array in vector.snapshot().items():
                self._state[name][:] = array
        else:
            vector.restore({name: array.copy() for name, array in self._state.items()})


def work(job: VectorJob, slab: Slab, requests: Requests, answer: Answer) -> None:
    """Make the environments, then do as told until the parent is gone."""
    _stay_on_a_core(job.worker)
    slab["progress"][job.worker, FIRST] = next((low for low, high in job.shares if low < high), 0)
    teams = [Team(job, slab, group) if low < high else None for group, (low, high) in enumerate(job.shares)]
    call, reply = Bell(ear=job.ear), Bell(cord=job.cord)
    answer({"said": "ready"})
    while call.wait():
        team = teams[call.word]
        assert team is not None
        team.obey()
        reply.ring(call.word)


def _share(group: tuple[int, int], worker: int, workers: int) -> tuple[int, int]:
    low, high = spread(group[1] - group[0], workers)[worker]
    return group[0] + low, group[0] + high


def _address(rows: Rows) -> int:
    address: int = rows.reward.__array_interface__["data"][0]
    return address


def _stay_on_a_core(worker: int) -> None:
    """Workers that are woken at the same moment tend to land on the waker's core, one behind the other."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[worker % len(cores)]})


if __name__ == "__main__":
    serve(work)
