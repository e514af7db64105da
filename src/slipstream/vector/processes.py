"""Environments stepped by several processes, each a vector of its own, one exchange per step.

Each exchange is a byte to every worker and a byte back; what is stepped stands in a slab. Environments may be in groups
that are stepped in turn: every worker has its share of each, so that no core is idle while one group waits for actions.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, Vector, check_tasks, empty_rows
from slipstream.errors import EnvError, EnvFault, MachineError
from slipstream.system.pipe_event import PipeEvent
from slipstream.system.slab import Field, Slab
from slipstream.system.worker_main import Answer, Requests, serve
from slipstream.system.worker_pool import WorkerPool

RESET, STEP, RESET_SOME, SEEDS, ASSIGN, SAVE, LOAD = range(7)
STEPS, ENV, FIRST = range(3)
"""What a worker shows of its progress: orders to its group, the env at work, and the number of the first of them."""
MENDS, MENDS_S = 3, 60.0
"""So many workers may be started anew within so many seconds; one more is an error."""
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


class StepWorkers:
    """Worker processes that step the environments of one or more groups."""

    def __init__(
        self, make: Callable[..., Vector], spec: EnvSpec, groups: Sequence[tuple[int, int]], workers: int,
        deadline_s: float = 60.0, slab: Slab | None = None, places: Places = one_place,
        where: Callable[[int, int], str] = "Env {} (step {})".format, mends: bool = False,
    ) -> None:  # fmt: skip
        """With `mends`, a worker that dies or stands still is started anew; its environments begin new episodes."""
        if os.name != "posix":
            raise MachineError(
                "Vectors over several processes need POSIX pipes.", "use workers=1; training needs no more"
            )
        self.spec, self.groups, self.places, self.deadline_s = spec, list(groups), places, deadline_s
        self.slab = slab or Slab(step_fields(spec, groups[-1][1], len(groups), workers))
        self.slab["tasks"][:] = -1
        self._named, self._mends = where, mends
        self._mended: list[float] = []
        """When workers were started anew."""
        shares = [tuple(_share(group, w, workers) for group in groups) for w in range(workers)]
        self._busy = [[w for w, own in enumerate(shares) if own[g][0] < own[g][1]] for g in range(len(groups))]
        self._heard = np.zeros((workers, len(groups)), np.int64)
        """Answers that came while another group's were waited for."""
        self._calls, self._replies = [PipeEvent() for _ in shares], [PipeEvent() for _ in shares]
        ends = [(call.ear or 0, reply.cord or 0) for call, reply in zip(self._calls, self._replies, strict=True)]
        self._jobs = [VectorJob(w, make, own, places, *ends[w]) for w, own in enumerate(shares)]
        try:
            self._crew = WorkerPool(
                "slipstream.vector.processes", self._jobs, self.slab, deadline_s=deadline_s, where=self._where,
                inherit=ends,
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

    def wait(self, group: int) -> list[tuple[int, int]]:
        """Wait until each worker of the group has done as it was told; the answers of others may come before.

        Returns the environments [low, high) of workers that had to be started anew.
        """
        gone = [worker for worker in self._busy[group] if not self._hear(worker, group)]
        return [self._mend(worker, group) for worker in gone]  # only now, when no other reads the group's order

    def _hear(self, worker: int, group: int) -> bool:
        """Wait for one answer of a worker about a group; False if none comes."""
        reply = self._replies[worker]
        while not self._heard[worker, group]:
            if not reply.wait(self.deadline_s):
                if not self._mends:
                    self._crew.blame(worker)
                return False
            self._heard[worker, reply.word] += 1
        self._heard[worker, group] -= 1
        return True

    def _mend(self, worker: int, group: int) -> tuple[int, int]:
        """Start a worker anew, with new episodes in all of its environments."""
        now = time.monotonic()
        self._mended = [then for then in self._mended if now - then < MENDS_S]
        try:
            self._crew.blame(worker)
        except EnvFault:  # the environment itself says what is wrong with it
            raise
        except EnvError as error:
            if len(self._mended) >= MENDS:
                raise
            warnings.warn(f"{error.message} It is started anew; its episodes are cut.", RuntimeWarning, stacklevel=2)
        self._mended.append(now)
        for bell in (self._calls[worker], self._replies[worker]):
            bell.drop(ear=True, cord=True)
        call, reply = self._calls[worker], self._replies[worker] = PipeEvent(), PipeEvent()
        job = self._jobs[worker] = replace(self._jobs[worker], ear=call.ear or 0, cord=reply.cord or 0)
        self._crew.replace(worker, job, (job.ear, job.cord))
        call.drop(ear=True)
        reply.drop(cord=True)
        low, high = job.shares[group]
        self.slab["chosen"][low:high] = 1
        seeds = np.random.SeedSequence([len(self._mended), low, time.time_ns()]).generate_state(high - low)
        for order in (ASSIGN, RESET_SOME) if self.spec.tasks else (RESET_SOME,):
            self.slab["seeds"][low:high] = seeds
            self.slab["order"][group] = order, 0
            call.ring(group)
            if not self._hear(worker, group):
                self._crew.blame(worker)
        return low, high

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


class VectorShare:
    """One group of environments that worker processes step; a step can be begun and waited for."""

    def __init__(self, hands: StepWorkers, group: int) -> None:
        self.spec, self._hands, self._group = hands.spec, hands, group
        low, high = hands.groups[group]
        self.envs, self._low, self._last = high - low, low, RESET
        self._slab = {name: hands.slab[name][low:high] for name in ("chosen", "seeds", "tasks")}
        self._state = {name: array[low:high] for name, array in state_views(hands.slab).items()}
        rows = slice(low * self.spec.agents, high * self.spec.agents)
        self._action = hands.slab["action"][rows]
        places = hands.places(hands.slab, rows.start, rows.stop)
        self._places = {_address(place): number for number, place in enumerate(places) if number}
        self._rows, self._out = places[0], places[0]
        self._filled = [(name, array) for name, array in vars(self._rows).items() if array.size and name != "final_obs"]

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
        for low, high in self._hands.wait(self._group):
            if self._last == STEP:
                self._cut(slice((low - self._low) * self.spec.agents, (high - self._low) * self.spec.agents))
        if self._out is not self._rows:
            for name, filled in self._filled:
                np.copyto(getattr(self._out, name), filled)
            ended = (self._rows.terminated | self._rows.truncated).nonzero()[0]
            if ended.size:  # last observations mean something only there, and may be as large as all else together
                self._out.final_obs[ended] = self._rows.final_obs[ended]
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

    def _cut(self, own: slice) -> None:
        """Rows whose worker was started anew in this step: their episodes end with what was seen before it."""
        rows, before = self._rows, self._out
        rows.final_obs[own], rows.terms[own] = before.obs[own], before.terms[own]
        rows.reward[own], rows.terminated[own], rows.truncated[own] = 0, 0, 1
        rows.outcome[own], rows.behaviour[own] = 0, 0

    def _begin(self, order: int, out: Rows) -> None:
        self._last = order
        place = self._places.get(_address(out), 0) if self._places else 0
        self._out = self._rows if place else out
        if not place and self.spec.terms:
            self._rows.terms[:] = out.terms
        self._hands.tell(self._group, order, place)

    def _order(self, order: int) -> None:
        self._hands.tell(self._group, order)
        self._hands.wait(self._group)


class ProcessVector(VectorShare):
    """A vector whose environments live in worker processes of its own."""

    def __init__(
        self, make: Callable[..., Vector], spec: EnvSpec, envs: int, workers: int, deadline_s: float = 60.0,
        state: Mapping[str, Field] | None = None, mends: bool = False,
    ) -> None:  # fmt: skip
        """`state` is what a snapshot of all environments holds, by name; without it none is given."""
        room = {f"state/{name}": field for name, field in (state or {}).items()}
        slab = Slab(step_fields(spec, envs, 1, workers) | room)
        super().__init__(StepWorkers(make, spec, [(0, envs)], workers, deadline_s, slab, mends=mends), 0)

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
    call, reply = PipeEvent(ear=job.ear), PipeEvent(cord=job.cord)
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
