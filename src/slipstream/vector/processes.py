"""Environments stepped by worker processes, each of which has a vector of its own.

Each step exchanges one byte with every worker; actions and results are in a slab. Environments may be split into groups
that are stepped in turn. Every worker has a share of each group, so no core is idle while one group waits for actions.
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
"""Commands to the workers of a group."""
STEPS, ENV, FIRST = range(3)
"""Columns of a worker's progress: steps of its group, the env that is being stepped, the index of its first env."""
MAX_RESPAWNS, RESPAWN_WINDOW_S = 3, 60.0
"""At most so many workers are respawned within so many seconds; one more is an error."""
OutputRows = Callable[[Slab, int, int], list[Rows]]
"""(slab, low, high) -> the views into which the rows [low, high) may be written; the first is always copied from."""


def spread(count: int, parts: int) -> list[tuple[int, int]]:
    """Split [0, count) into `parts` ranges of nearly equal size."""
    return [(k * count // parts, (k + 1) * count // parts) for k in range(parts)]


def step_fields(spec: EnvSpec, envs: int, groups: int, workers: int) -> dict[str, Field]:
    """Return the slab fields that stepping needs: rows to copy from, actions, commands and progress."""
    like = empty_rows(spec, envs)
    shapes = {field.name: getattr(like, field.name) for field in fields(Rows)}
    shapes["action"] = np.zeros((envs * spec.agents, spec.action.parts), spec.action.dtype)
    layout = {name: Field(array.shape, array.dtype.name) for name, array in shapes.items()}
    layout |= {"command": Field((groups, 2), "int64"), "chosen": Field((envs,), "uint8")}
    layout |= {"seeds": Field((envs,), "int64"), "tasks": Field((envs,), "int64")}
    return layout | {"progress": Field((workers, 3), "int64")}


def state_views(slab: Slab) -> dict[str, Array]:
    """Return the arrays of a snapshot of the environments by name; empty if the slab has no fields `state/`."""
    return {name.partition("/")[2]: slab[name] for name in slab.fields if name.startswith("state/")}


def copied_rows(slab: Slab, low: int, high: int) -> list[Rows]:
    """Return only the rows to copy from."""
    return [Rows(**{field.name: slab[field.name][low:high] for field in fields(Rows)})]


@dataclass(frozen=True)
class VectorJob:
    """What one worker process receives when it starts."""

    worker: int
    make: Callable[..., Vector]
    """(envs, first=..., progress=...) -> vector."""
    shares: tuple[tuple[int, int], ...]
    """Its environments [low, high) of each group."""
    output_rows: OutputRows
    call_fd: int
    """Where it waits for a command."""
    reply_fd: int
    """Where it reports that a command is done."""


class StepWorkers:
    """Worker processes that step the environments of one or more groups."""

    def __init__(
        self,
        make: Callable[..., Vector],
        spec: EnvSpec,
        groups: Sequence[tuple[int, int]],
        workers: int,
        deadline_s: float = 60.0,
        slab: Slab | None = None,
        output_rows: OutputRows = copied_rows,
        where: Callable[[int, int], str] = "Env {} (step {})".format,
        respawn: bool = False,
    ) -> None:
        """Start the workers. With `respawn`, one that dies or hangs is respawned and its environments are reset."""
        if os.name != "posix":
            raise MachineError("Vectors over several processes need POSIX pipes.", "use workers=1; training needs none")
        self.spec, self.groups, self.output_rows, self.deadline_s = spec, list(groups), output_rows, deadline_s
        self.slab = slab or Slab(step_fields(spec, groups[-1][1], len(groups), workers))
        self.slab["tasks"][:] = -1
        self._where_env, self._respawn_allowed = where, respawn
        self._respawned_at: list[float] = []
        shares = [tuple(_share(group, w, workers) for group in groups) for w in range(workers)]
        self._members = [[w for w, own in enumerate(shares) if own[g][0] < own[g][1]] for g in range(len(groups))]
        """The workers that have environments of each group."""
        self._replied = np.zeros((workers, len(groups)), np.int64)
        """Replies that came while another group was waited for."""
        self._calls, self._replies = [PipeEvent() for _ in shares], [PipeEvent() for _ in shares]
        ends = [
            (call.read_fd or 0, reply.write_fd or 0) for call, reply in zip(self._calls, self._replies, strict=True)
        ]
        self._jobs = [VectorJob(w, make, own, output_rows, *ends[w]) for w, own in enumerate(shares)]
        try:
            self._pool = WorkerPool(
                "slipstream.vector.processes",
                self._jobs,
                self.slab,
                deadline_s=deadline_s,
                where=self._where,
                inherit=ends,
            )
        except BaseException:
            self._release()
            raise
        for call, reply in zip(self._calls, self._replies, strict=True):
            call.close(read=True)
            reply.close(write=True)

    def send(self, group: int, command: int, output: int = 0) -> None:
        """Send a command to all workers of a group; `output` is the index of the rows that they write."""
        self.slab["command"][group] = command, output
        for worker in self._members[group]:
            self._calls[worker].notify(group)

    def wait(self, group: int) -> list[tuple[int, int]]:
        """Wait until each worker of the group has done its command.

        Returns the environments [low, high) of the workers that had to be respawned.
        """
        failed = [worker for worker in self._members[group] if not self._wait_for(worker, group)]
        return [self._respawn(worker, group) for worker in failed]  # after all others have read the group's command

    def _wait_for(self, worker: int, group: int) -> bool:
        """Wait for a worker's reply for a group; False if none comes. Replies for other groups are counted."""
        reply = self._replies[worker]
        while not self._replied[worker, group]:
            if not reply.wait(self.deadline_s):
                if not self._respawn_allowed:
                    self._pool.raise_failure(worker)
                return False
            self._replied[worker, reply.value] += 1
        self._replied[worker, group] -= 1
        return True

    def _respawn(self, worker: int, group: int) -> tuple[int, int]:
        """Respawn a worker and start new episodes in its environments of the group."""
        now = time.monotonic()
        self._respawned_at = [then for then in self._respawned_at if now - then < RESPAWN_WINDOW_S]
        try:
            self._pool.raise_failure(worker)
        except EnvFault:  # the environment raised, so a new worker would not help
            raise
        except EnvError as error:
            if len(self._respawned_at) >= MAX_RESPAWNS:
                raise
            warnings.warn(
                f"{error.message} The worker was restarted; its episodes were truncated.", RuntimeWarning, stacklevel=2
            )
        self._respawned_at.append(now)
        for event in (self._calls[worker], self._replies[worker]):
            event.close(read=True, write=True)
        call, reply = self._calls[worker], self._replies[worker] = PipeEvent(), PipeEvent()
        job = replace(self._jobs[worker], call_fd=call.read_fd or 0, reply_fd=reply.write_fd or 0)
        self._jobs[worker] = job
        self._pool.respawn(worker, job, (job.call_fd, job.reply_fd))
        call.close(read=True)
        reply.close(write=True)
        low, high = job.shares[group]
        self.slab["chosen"][low:high] = 1
        seeds = np.random.SeedSequence([len(self._respawned_at), low, time.time_ns()]).generate_state(high - low)
        for command in (ASSIGN, RESET_SOME) if self.spec.tasks else (RESET_SOME,):
            self.slab["seeds"][low:high] = seeds
            self.slab["command"][group] = command, 0
            call.notify(group)
            if not self._wait_for(worker, group):
                self._pool.raise_failure(worker)
        return low, high

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._pool.close()
        self._release()

    def _release(self) -> None:
        for event in (*self._calls, *self._replies):
            event.close(read=True, write=True)
        self._calls, self._replies = [], []
        self.slab.close()

    def _where(self, worker: int) -> str:
        steps, env, first = self.slab["progress"][worker].tolist()
        return self._where_env(first + env, steps)


class VectorShare:
    """A vector of one group of environments, which worker processes step."""

    def __init__(self, workers: StepWorkers, group: int) -> None:
        self.spec, self._workers, self._group = workers.spec, workers, group
        low, high = workers.groups[group]
        self.envs, self._low, self._last_command = high - low, low, RESET
        self._slab = {name: workers.slab[name][low:high] for name in ("chosen", "seeds", "tasks")}
        self._state = {name: array[low:high] for name, array in state_views(workers.slab).items()}
        rows = slice(low * self.spec.agents, high * self.spec.agents)
        self._action = workers.slab["action"][rows]
        outputs = workers.output_rows(workers.slab, rows.start, rows.stop)
        self._outputs = {_address(output): number for number, output in enumerate(outputs) if number}
        """The index of each output that workers can write directly, by address."""
        self._rows, self._out = outputs[0], outputs[0]
        self._filled = [(name, array) for name, array in vars(self._rows).items() if array.size and name != "final_obs"]

    def reset(self, out: Rows) -> None:
        """Reset every environment."""
        self._begin(RESET, out)
        self.receive()

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Reset the given environments, from `seeds` where they are given."""
        self._slab["chosen"][:] = 0
        self._slab["chosen"][list(indices)] = 1
        self._slab["seeds"][list(indices)] = -1 if seeds is None else seeds
        self._begin(RESET_SOME, out)
        self.receive()

    def seeds(self) -> Array:
        """Return the seeds of the current episodes."""
        self._run(SEEDS)
        return self._slab["seeds"].copy()

    def assign(self, tasks: Array) -> None:
        """Set the task of each env for its next episodes."""
        self._slab["tasks"][:] = check_tasks(self.spec, tasks)
        self._run(ASSIGN)

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment."""
        self.send(action, out)
        self.receive()

    def send(self, action: Array, out: Rows) -> None:
        """Begin a step. If `out` is one of the outputs in the slab, workers write into it directly."""
        self._action[:] = action
        self._begin(STEP, out)

    def receive(self) -> None:
        """Wait for the end of what was begun."""
        for low, high in self._workers.wait(self._group):
            if self._last_command == STEP:
                self._truncate(slice((low - self._low) * self.spec.agents, (high - self._low) * self.spec.agents))
        if self._out is not self._rows:
            for name, filled in self._filled:
                np.copyto(getattr(self._out, name), filled)
            ended = (self._rows.terminated | self._rows.truncated).nonzero()[0]
            if ended.size:  # `final_obs` is valid only there, and may be as large as everything else together
                self._out.final_obs[ended] = self._rows.final_obs[ended]
            self._out = self._rows

    def snapshot(self) -> dict[str, Array]:
        """Return the state of all environments; empty if the slab has no fields for it."""
        if not self._state:
            return {}
        self._run(SAVE)
        return {name: array.copy() for name, array in self._state.items()}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore a snapshot."""
        if self._state:
            for name, array in self._state.items():
                array[:] = state[name]
            self._run(LOAD)

    def close(self) -> None:
        """Do nothing: `StepWorkers` ends the workers."""

    def _truncate(self, own: slice) -> None:
        """Truncate the episodes of rows whose worker was respawned in this step; the last observation is final."""
        rows, before = self._rows, self._out
        rows.final_obs[own], rows.terms[own] = before.obs[own], before.terms[own]
        rows.reward[own], rows.terminated[own], rows.truncated[own] = 0, 0, 1
        rows.outcome[own], rows.behaviour[own] = 0, 0

    def _begin(self, command: int, out: Rows) -> None:
        self._last_command = command
        output = self._outputs.get(_address(out), 0) if self._outputs else 0
        self._out = self._rows if output else out
        if not output and self.spec.terms:
            self._rows.terms[:] = out.terms
        self._workers.send(self._group, command, output)

    def _run(self, command: int) -> None:
        self._workers.send(self._group, command)
        self._workers.wait(self._group)


class ProcessVector(VectorShare):
    """A vector whose environments are in worker processes of its own."""

    def __init__(
        self,
        make: Callable[..., Vector],
        spec: EnvSpec,
        envs: int,
        workers: int,
        deadline_s: float = 60.0,
        state: Mapping[str, Field] | None = None,
        respawn: bool = False,
    ) -> None:
        """`state` are the fields of a snapshot of all environments, by name; without it snapshots are empty."""
        state_fields = {f"state/{name}": field for name, field in (state or {}).items()}
        slab = Slab(step_fields(spec, envs, 1, workers) | state_fields)
        super().__init__(StepWorkers(make, spec, [(0, envs)], workers, deadline_s, slab, respawn=respawn), 0)

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._workers.close()


class WorkerGroup:
    """One worker's environments of one group."""

    def __init__(self, job: VectorJob, slab: Slab, group: int) -> None:
        low, high = job.shares[group]
        self._first, self._progress, self._steps = low, slab["progress"][job.worker], 0
        self._vector = job.make(high - low, first=low, progress=self._progress[:FIRST])
        agents = self._vector.spec.agents
        self._action = slab["action"][low * agents : high * agents]
        self._outputs = job.output_rows(slab, low * agents, high * agents)
        self._command = slab["command"][group]
        self._chosen, self._seeds, self._tasks = (slab[name][low:high] for name in ("chosen", "seeds", "tasks"))
        self._state = {name: array[low:high] for name, array in state_views(slab).items()}

    def execute(self) -> None:
        """Execute the group's command."""
        vector, (command, output), progress = self._vector, self._command.tolist(), self._progress
        self._steps += command < SEEDS
        progress[STEPS], progress[FIRST] = self._steps, self._first
        if command == STEP:
            vector.step(self._action, self._outputs[output])
        elif command == RESET:
            vector.reset(self._outputs[output])
        elif command == RESET_SOME:
            chosen = np.flatnonzero(self._chosen)
            vector.reset_envs(chosen.tolist(), self._outputs[output], self._seeds[chosen].tolist())
        elif command == SEEDS:
            self._seeds[:] = vector.seeds()
        elif command == ASSIGN:
            vector.assign(self._tasks)
        elif command == SAVE:
            for name, array in vector.snapshot().items():
                self._state[name][:] = array
        else:
            vector.restore({name: array.copy() for name, array in self._state.items()})


def work(job: VectorJob, slab: Slab, requests: Requests, answer: Answer) -> None:
    """The worker's program: make the environments, then execute commands until the parent is gone."""
    _pin_to_core(job.worker)
    slab["progress"][job.worker, FIRST] = next((low for low, high in job.shares if low < high), 0)
    groups = [WorkerGroup(job, slab, group) if low < high else None for group, (low, high) in enumerate(job.shares)]
    call, reply = PipeEvent(read_fd=job.call_fd), PipeEvent(write_fd=job.reply_fd)
    answer({"answer": "ready"})
    while call.wait():
        group = groups[call.value]
        assert group is not None
        group.execute()
        reply.notify(call.value)


def _share(group: tuple[int, int], worker: int, workers: int) -> tuple[int, int]:
    low, high = spread(group[1] - group[0], workers)[worker]
    return group[0] + low, group[0] + high


def _address(rows: Rows) -> int:
    address: int = rows.reward.__array_interface__["data"][0]
    return address


def _pin_to_core(worker: int) -> None:
    """Pin this process to a core: workers that are woken together tend to be scheduled on the same core."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[worker % len(cores)]})


if __name__ == "__main__":
    serve(work)
