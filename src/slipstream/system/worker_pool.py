"""Worker processes: started, spoken to, watched and ended by their parent.

Workers are plain subprocesses of this interpreter that read lines on stdin and answer on stdout: nothing spins, a
user's script needs no `__main__` guard, and a dead parent is an end of file. What is large goes through a slab.
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
from slipstream.contracts import Array
from slipstream.errors import EnvError, EnvFault, MachineError, SlipstreamError
from slipstream.system.slab import Slab

START_S = 120.0
"""A worker must have made its environments within this time, or within the deadline if that is longer."""
POLL_S = 0.2
News = tuple[int, dict[str, Any]]
"""A worker, and what it said."""


class WorkerPool:
    """Processes that each run one job; `progress` [workers, n] in the slab shows the watcher that they live."""

    def __init__(
        self, module: str, jobs: Sequence[Any], slab: Slab, *, deadline_s: float, where: Callable[[int], str],
        inherit: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        self.faults: list[str] = []
        """What workers reported beside their answers."""
        self.told: list[Any] = []
        """What else they had to tell."""
        self._slab, self._deadline_s, self._where = slab, deadline_s, where
        self._module, inherited = module, [tuple(descriptors) for descriptors in inherit] or [()] * len(jobs)
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._early: set[tuple[int, str]] = set()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._listeners: list[threading.Thread] = []
        try:
            for worker, job in enumerate(jobs):
                self._start(worker, job, inherited[worker])
            self.gather("ready", max(START_S, deadline_s))
        except BaseException:
            self.close()
            raise

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message to every worker."""
        line = json.dumps(message).encode() + b"\n"
        for worker in range(len(self._processes)):
            self._send(worker, line)

    def gather(self, word: str, deadline_s: float | None = None, workers: Collection[int] | None = None) -> None:
        """Wait until every worker, or each of these, has said `word`; name the one that fails, dies or stands still.

        What others have said meanwhile is heard later.
        """
        asked = range(len(self._processes)) if workers is None else workers
        wanted = {(worker, word) for worker in asked}
        waiting = wanted - self._early
        self._early -= wanted
        watch = _Watch(self._slab["progress"])
        with self._hearing(asked) as hear:
            while waiting:
                heard = hear()
                if heard is None:
                    self._check(watch.still({worker for worker, _ in waiting}), deadline_s or self._deadline_s)
                    continue
                said = self._take(*heard)
                if said in waiting:
                    waiting.remove(said)
                else:
                    self._early.add(said)

    def blame(self, worker: int) -> None:
        """Raise what kept a worker from answering: its own error, its end, or that it stands still."""
        limit = time.monotonic() + 1.0
        with self._hearing({worker}) as hear:
            while time.monotonic() < limit:
                heard = hear()
                if heard is not None:
                    self._take(*heard)
        self._check({worker: self._deadline_s + 1.0}, self._deadline_s)

    @contextmanager
    def _hearing(self, workers: Collection[int]) -> Iterator[Callable[[], News | None]]:
        """What these workers say, one thing at a time (None: nothing, for now); what others say is heard later."""
        others: list[News] = []

        def hear() -> News | None:
            try:
                news = self._news.get(timeout=POLL_S)
            except queue.Empty:
                return None
            if news[0] in workers:
                return news
            others.append(news)
            return None

        try:
            yield hear
        finally:
            for news in others:
                self._news.put(news)

    def replace(self, worker: int, job: Any, inherit: Sequence[int] = ()) -> None:
        """Start a worker anew in the place of one that is gone or stands still, and wait until it is ready."""
        old = self._processes[worker]
        old.kill()
        old.wait()
        self._listeners[worker].join()
        _close_quietly(old.stdin)
        _close_quietly(old.stdout)
        kept = [self._news.get() for _ in range(self._news.qsize())]
        for news in kept:
            if news[0] != worker:
                self._news.put(news)
        self._early = {said for said in self._early if said[0] != worker}
        self._start(worker, job, tuple(inherit))
        self.gather("ready", max(START_S, self._deadline_s), {worker})

    def close(self) -> None:
        """End the workers: asked first, then killed; no process is left."""
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

    def _take(self, worker: int, news: dict[str, Any]) -> tuple[int, str]:
        """What a worker said; raises what it failed of."""
        self.faults += news.get("faults", [])
        self.told += news.get("told", [])
        if "error" in news:
            raise _rebuild(news["error"])
        if "ended" in news:
            self._raise_ended(worker, news["ended"])
        return worker, news["said"]

    def _start(self, worker: int, job: Any, inherit: tuple[int, ...]) -> None:
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
        listener = threading.Thread(target=self._listen, args=(worker, process), daemon=True)
        self._processes[worker : worker + 1], self._listeners[worker : worker + 1] = [process], [listener]
        listener.start()
        # A user's environment may be a lambda: it travels to our own child by value, and never through a file.
        parcel = base64.b64encode(cloudpickle.dumps(job)).decode()
        self._send(worker, json.dumps({"job": parcel, "slab": self._slab.describe()}).encode() + b"\n")

    def _listen(self, worker: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self._news.put((worker, json.loads(line)))
        except ValueError:
            pass  # the pipe was closed under us: the crew is being ended
        self._news.put((worker, {"ended": process.wait()}))

    def _send(self, worker: int, line: bytes) -> None:
        pipe = self._processes[worker].stdin
        assert pipe is not None
        try:
            pipe.write(line)
            pipe.flush()
        except OSError:
            self._raise_ended(worker, self._processes[worker].wait())

    def _check(self, still: dict[int, float], deadline_s: float) -> None:
        for worker, seconds in still.items():
            if seconds > deadline_s:
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


class _Watch:
    """Since when each worker's progress has stood still."""

    def __init__(self, progress: Array) -> None:
        self._progress = progress
        self._seen = progress.copy()
        self._since = np.full(len(progress), time.monotonic())

    def still(self, workers: set[int]) -> dict[int, float]:
        """Seconds without progress of each worker."""
        now = time.monotonic()
        moved = (self._progress != self._seen).any(axis=1)
        self._since[moved] = now
        self._seen[:] = self._progress
        return {worker: now - float(self._since[worker]) for worker in workers}


def _rebuild(error: dict[str, Any]) -> SlipstreamError:
    """The error that a worker met, in this process."""
    if "env" in error:
        return EnvFault(error["env"], error["seed"], error["step"], error["report"])
    kind = MachineError if error.get("code") == MachineError.code else EnvError
    return kind(error["report"].rstrip(), error.get("hint", ""))


def _close_quietly(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except OSError:
        pass
