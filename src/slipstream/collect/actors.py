"""The actors collector: W processes, each with environments and a policy copy, hand over whole rollouts in a slab.

Workers are plain subprocesses of this interpreter that talk over their stdin and stdout, one line per rollout:
no message per step, no spinning, no `__main__` guard needed in a user's script, and a dead parent is an end of file.
Rollout k is made with weights k - lag, in buffer k mod (lag + 1).
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import cloudpickle
import numpy as np

import slipstream
from slipstream.collect.rollout import Rollout, rollout_fields, view_rollout
from slipstream.collect.vectors import env_seeds
from slipstream.core.contracts import Array, EnvSpec
from slipstream.core.errors import EnvError, MachineError, SlipstreamError
from slipstream.core.slab import Field, Slab
from slipstream.envs.registry import EnvChoice
from slipstream.models.acting import pack_size
from slipstream.models.shape import Shape

START_S = 120.0
"""A worker must have made its environments within this time, or within the deadline if that is longer."""
POLL_S = 0.2


@dataclass(frozen=True)
class WorkerJob:
    """What one worker process is told when it starts."""

    worker: int
    choice: EnvChoice
    shape: Shape
    seed: int
    first: int
    envs: int
    opponent: str | None
    buffers: int


class Actors:
    """Worker processes and the slab they share with the learner."""

    def __init__(
        self, choice: EnvChoice, spec: EnvSpec, shape: Shape, state_fields: dict[str, Field], *, envs: int,
        workers: int, steps: int, lag: int, seed: int, opponent: str | None = None, deadline_s: float = 60.0,
    ) -> None:  # fmt: skip
        self.lag, self.workers = lag, workers
        self._spec, self._seed, self._deadline_s = spec, seed, deadline_s
        self._state_fields = state_fields
        self._faults: list[str] = []
        self._asked = 0
        """The first rollout that nobody has been asked for."""
        buffers = lag + 1
        fields = {"pack": Field((2, pack_size(shape)), "float32"), "progress": Field((workers, 4), "int64")}
        fields["seconds"] = Field((workers, 2), "float64")
        for b in range(buffers):
            fields |= {f"{b}/{name}": field for name, field in rollout_fields(spec, steps, envs).items()}
        for slot in range(2):
            fields |= {f"start{slot}/{name}": field for name, field in state_fields.items()}
        self._slab = Slab(fields)
        self._rollouts = [view_rollout(self._slab, f"{b}/") for b in range(buffers)]
        self._news: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self._envs = [(w * envs // workers, (w + 1) * envs // workers) for w in range(workers)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._early: set[tuple[int, int]] = set()
        try:
            for w, (low, high) in enumerate(self._envs):
                self._start_worker(WorkerJob(w, choice, shape, seed, low, high - low, opponent, buffers))
            self._await({w: "ready" for w in range(workers)}, max(START_S, deadline_s))
        except BaseException:
            self.close()
            raise

    def publish(self, version: int, pack: Array) -> None:
        """Give the weights and normaliser of a version."""
        self._slab["pack"][version % 2] = pack

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Begin with rollout number `version`, from a snapshot if there is one."""
        if state is not None:
            for name in self._state_fields:
                self._slab[f"start{version % 2}/{name}"][:] = state[name]
        self._tell({"start": version, "restore": state is not None})
        for rollout in range(version, version + self.lag + 1):
            self._ask(rollout)

    def collect(self, version: int) -> Rollout:
        """Wait for rollout number `version`; at lag 1 the next one is already being made."""
        if self._asked == version + self.lag:
            self._ask(version + self.lag)
        self._await({w: f"done {version}" for w in range(self.workers)}, self._deadline_s)
        return self._rollouts[version % (self.lag + 1)]

    def snapshot(self, version: int) -> dict[str, Array]:
        """What rollout number `version`, the next one to be trained on, started from."""
        return {name: self._slab[f"start{version % 2}/{name}"].copy() for name in self._state_fields}

    def drain_faults(self) -> list[str]:
        """What was kept out of the batch since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def seconds(self) -> tuple[float, float]:
        """Time spent in environments and in inference so far, added up over workers and divided by them."""
        total = self._slab["seconds"].sum(axis=0) / self.workers
        return float(total[0]), float(total[1])

    def close(self) -> None:
        """End the workers: asked first, then killed; leaves no process and no memory behind."""
        for process in self._processes:
            _close_quietly(process.stdin)
        limit = time.monotonic() + 2.0
        for process in self._processes:
            try:
                process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close_quietly(process.stdout)
        self._processes = []
        self._rollouts = []
        self._slab.close()

    def _ask(self, rollout: int) -> None:
        self._tell({"go": rollout, "version": max(rollout - self.lag, 0)})
        self._asked = rollout + 1

    def _start_worker(self, job: WorkerJob) -> None:
        handle = self._slab.handle
        environment = dict(os.environ, OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        source = str(Path(slipstream.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join([source, *[p or os.getcwd() for p in sys.path if p != source]])
        process = subprocess.Popen(
            [sys.executable, "-m", "slipstream.collect.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=(handle,) if isinstance(handle, int) else (),
        )
        self._processes.append(process)
        # A user's environment may be a lambda: it travels to our own child by value, and never through a file.
        parcel = base64.b64encode(cloudpickle.dumps(replace(job))).decode()
        self._send(job.worker, {"job": parcel, "slab": self._slab.describe()})
        threading.Thread(target=self._listen, args=(job.worker, process), daemon=True).start()

    def _listen(self, worker: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self._news.put((worker, json.loads(line)))
        except ValueError:
            pass
        self._news.put((worker, {"ended": process.wait()}))

    def _tell(self, message: dict[str, Any]) -> None:
        for worker in range(self.workers):
            self._send(worker, message)

    def _send(self, worker: int, message: dict[str, Any]) -> None:
        pipe = self._processes[worker].stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()
        except OSError:
            self._raise_ended(worker, self._processes[worker].wait())

    def _await(self, wanted: dict[int, str], deadline_s: float) -> None:
        """Wait until every worker has said what is wanted; name the one that fails, dies or stands still."""
        waiting = {(w, word) for w, word in wanted.items()} - self._early
        self._early -= {(w, word) for w, word in wanted.items()}
        beats = self._slab["progress"][:, 0].copy()
        alive = np.full(self.workers, time.monotonic())
        while waiting:
            try:
                worker, news = self._news.get(timeout=POLL_S)
            except queue.Empty:
                self._check_progress(beats, alive, {w for w, _ in waiting}, deadline_s)
                continue
            self._faults += news.get("faults", [])
            if "error" in news:
                raise _worker_error(news["error"])
            if "ended" in news:
                self._raise_ended(worker, news["ended"])
            said = (worker, news["said"])
            if said in waiting:
                waiting.remove(said)
            else:
                self._early.add(said)

    def _check_progress(self, beats: Array, alive: Array, workers: set[int], deadline_s: float) -> None:
        now, seen = time.monotonic(), self._slab["progress"][:, 0]
        alive[seen != beats] = now
        beats[:] = seen
        for worker in workers:
            if now - alive[worker] > deadline_s:
                self._processes[worker].kill()
                raise EnvError(
                    f"{self._where(worker)} did not return from `step` or `reset` within {deadline_s:g} s.",
                    "if the env is just slow, raise plan.deadline_s; else look for a loop that never ends in it",
                )

    def _raise_ended(self, worker: int, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise EnvError(
            f"Worker {worker} {how}. {self._where(worker)} was the last it stepped.",
            "run with --set plan.collector=local to see it happen in this process; memory may have run out",
        )

    def _where(self, worker: int) -> str:
        beats, env, _, _ = (int(n) for n in self._slab["progress"][worker])
        index = self._envs[worker][0] + env
        return f"Env {index} (seed {env_seeds(self._seed, index, 1)[0]}, step {beats})"


def _worker_error(error: dict[str, Any]) -> SlipstreamError:
    where = f"Env {error['env']} (seed {error['seed']}, step {error['step']}) raised" if "env" in error else "A worker raised"
    kind = MachineError if error.get("code") == 6 else EnvError
    return kind(f"{where}:\n{error['report'].rstrip()}", error.get("hint") or "mend the environment; nothing else failed")


def _close_quietly(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except OSError:
        pass
