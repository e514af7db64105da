"""A pool of worker processes: start, send, gather, watch, respawn, close.

Workers are plain subprocesses of this interpreter. They read JSON lines from stdin and answer on stdout (see
`worker_main`), so a user's script needs no `__main__` guard, a waiting worker uses no CPU, and the parent's death is an
end of file. Large data goes through a slab.
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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import cloudpickle
import numpy as np

import slipstream
from slipstream import errors
from slipstream.contracts import Array
from slipstream.errors import EnvError, EnvFault, SlipstreamError
from slipstream.system.slab import Slab

START_S = 120.0
"""A worker must answer "ready" within this time, or within the deadline if that is longer."""
POLL_S = 0.2
Message = tuple[int, dict[str, Any]]
"""A worker's index and what it sent."""


class WorkerPool:
    """Processes that each run one job.

    The slab has a field `progress` [workers, n], which the workers update. A worker that neither answers nor makes
    progress for `deadline_s` seconds is considered hung.
    """

    def __init__(
        self,
        module: str,
        jobs: Sequence[Any],
        slab: Slab,
        *,
        deadline_s: float,
        where: Callable[[int], str],
        inherit: Sequence[Sequence[int]] = (),
    ) -> None:
        """Start one process `python -m module` per job and wait until all are ready.

        `where` describes what a worker was doing last, for error messages. `inherit` are file descriptors that each
        worker inherits.
        """
        self.faults: list[str] = []
        """Faults that workers reported with their answers."""
        self.results: list[Any] = []
        """Results that workers sent with their answers."""
        self._slab, self._deadline_s, self._where = slab, deadline_s, where
        self._module, inherited = module, [tuple(descriptors) for descriptors in inherit] or [()] * len(jobs)
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._early: set[tuple[int, str]] = set()
        """Answers that came before `gather` waited for them."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        try:
            for worker, job in enumerate(jobs):
                self._start(worker, job, inherited[worker])
            self.gather("ready", max(START_S, deadline_s))
        except BaseException:
            self.close()
            raise

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to every worker."""
        line = json.dumps(message).encode() + b"\n"
        for worker in range(len(self._processes)):
            self._write_line(worker, line)

    def gather(self, answer: str, deadline_s: float | None = None, workers: Collection[int] | None = None) -> None:
        """Wait until every worker, or each of `workers`, has sent `answer`; raise if one fails, dies or hangs."""
        waited_for = range(len(self._processes)) if workers is None else workers
        expected = {(worker, answer) for worker in waited_for}
        missing = expected - self._early
        self._early -= expected
        watch = _ProgressWatch(self._slab["progress"])
        with self._receiving(waited_for) as receive:
            while missing:
                message = receive()
                if message is None:
                    idle = watch.idle_seconds({worker for worker, _ in missing})
                    self._raise_if_hung(idle, deadline_s or self._deadline_s)
                    continue
                received = self._process_message(*message)
                if received in missing:
                    missing.remove(received)
                else:
                    self._early.add(received)

    def raise_failure(self, worker: int) -> None:
        """Raise the reason why a worker does not answer: its own error, its death, or that it hangs."""
        limit = time.monotonic() + 1.0
        with self._receiving({worker}) as receive:
            while time.monotonic() < limit:
                message = receive()
                if message is not None:
                    self._process_message(*message)
        self._raise_if_hung({worker: self._deadline_s + 1.0}, self._deadline_s)

    def respawn(self, worker: int, job: Any, inherit: Sequence[int] = ()) -> None:
        """Replace a worker that is dead or hangs with a new process, and wait until it is ready.

        `vector.processes.StepWorkers` decides when; actors are not respawned, their death ends the run.
        """
        old = self._processes[worker]
        old.kill()
        old.wait()
        self._readers[worker].join()
        _close_quietly(old.stdin)
        _close_quietly(old.stdout)
        pending = [self._messages.get() for _ in range(self._messages.qsize())]
        for message in pending:
            if message[0] != worker:
                self._messages.put(message)
        self._early = {received for received in self._early if received[0] != worker}
        self._start(worker, job, tuple(inherit))
        self.gather("ready", max(START_S, self._deadline_s), {worker})

    def close(self) -> None:
        """End all workers: close their stdin, then kill those that do not exit within two seconds."""
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

    def _start(self, worker: int, job: Any, inherit: tuple[int, ...]) -> None:
        """Start a process, a thread that reads its answers, and send it its job."""
        handle = self._slab.handle
        environment = dict(os.environ, OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        source = str(Path(slipstream.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join([source, *[p or os.getcwd() for p in sys.path if p != source]])
        process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=(handle, *inherit) if isinstance(handle, int) else (),
        )
        reader = threading.Thread(target=self._read_answers, args=(worker, process), daemon=True)
        self._processes[worker : worker + 1], self._readers[worker : worker + 1] = [process], [reader]
        reader.start()
        # A user's environment may be a lambda, so the job is pickled by value. It never goes through a file.
        pickled = base64.b64encode(cloudpickle.dumps(job)).decode()
        self._write_line(worker, json.dumps({"job": pickled, "slab": self._slab.describe()}).encode() + b"\n")

    def _write_line(self, worker: int, line: bytes) -> None:
        pipe = self._processes[worker].stdin
        assert pipe is not None
        try:
            pipe.write(line)
            pipe.flush()
        except OSError:
            self._raise_ended(worker, self._processes[worker].wait())

    def _read_answers(self, worker: int, process: subprocess.Popen[bytes]) -> None:
        """The reader thread of one worker: queue its messages, and its exit code at the end."""
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self._messages.put((worker, json.loads(line)))
        except ValueError:
            pass  # the pool is being closed, and the pipe with it
        self._messages.put((worker, {"ended": process.wait()}))

    @contextmanager
    def _receiving(self, workers: Collection[int]) -> Iterator[Callable[[], Message | None]]:
        """Yield a function that returns the next message of `workers`, or None if there is none at the moment.

        Messages of other workers are put back into the queue at the end.
        """
        others: list[Message] = []

        def receive() -> Message | None:
            try:
                message = self._messages.get(timeout=POLL_S)
            except queue.Empty:
                return None
            if message[0] in workers:
                return message
            others.append(message)
            return None

        try:
            yield receive
        finally:
            for message in others:
                self._messages.put(message)

    def _process_message(self, worker: int, message: dict[str, Any]) -> tuple[int, str]:
        """Keep faults and results and return the answer; raise if the worker failed or ended."""
        self.faults += message.get("faults", [])
        self.results += message.get("results", [])
        if "error" in message:
            raise _rebuild(message["error"])
        if "ended" in message:
            self._raise_ended(worker, message["ended"])
        return worker, message["answer"]

    def _raise_if_hung(self, idle_seconds: dict[int, float], deadline_s: float) -> None:
        for worker, seconds in idle_seconds.items():
            if seconds > deadline_s:
                self._processes[worker].kill()
                raise EnvError(
                    f"{self._where(worker)} did not return from `step` or `reset` within {deadline_s:g} s.",
                    "if the env is slow, raise plan.deadline_s; otherwise search it for an endless loop",
                )

    def _raise_ended(self, worker: int, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise EnvError(
            f"Worker {worker} {how}. {self._where(worker)} was the last it stepped.",
            "run with --set plan.collector=local to reproduce it in this process; it may have run out of memory",
        )


class _ProgressWatch:
    """Measures how long each worker has made no progress."""

    def __init__(self, progress: Array) -> None:
        self._progress = progress
        self._seen = progress.copy()
        self._since = np.full(len(progress), time.monotonic())

    def idle_seconds(self, workers: set[int]) -> dict[int, float]:
        """Return the seconds without progress of each worker."""
        now = time.monotonic()
        moved = (self._progress != self._seen).any(axis=1)
        self._since[moved] = now
        self._seen[:] = self._progress
        return {worker: now - float(self._since[worker]) for worker in workers}


def _rebuild(error: dict[str, Any]) -> SlipstreamError:
    """Make the exception that a worker described in its message."""
    if "env" in error:
        return EnvFault(error["env"], error["seed"], error["step"], error["report"])
    kind: type[SlipstreamError] = getattr(errors, error.get("kind", "EnvError"))
    return kind(error["report"].rstrip(), error.get("hint", ""))


def _close_quietly(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except OSError:
        pass
