"""Environments stepped by threads of this process, each of which has a vector of its own.

Threads speed up native games and other environments that release the GIL while they step; Python environments belong
in processes. A waiting thread sleeps on its queue.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from slipstream.contracts import Array, EnvSpec, Rows, Vector
from slipstream.errors import EnvError

Task = Callable[[], None]


class ThreadVector:
    """A vector whose environments are split over threads."""

    def __init__(
        self,
        make: Callable[..., Vector],
        spec: EnvSpec,
        envs: int,
        workers: int,
        deadline_s: float = 60.0,
        first: int = 0,
        where: Callable[[int, int], str] = "Env {} (step {})".format,
    ) -> None:
        self.spec, self.envs, self._deadline_s, self._first, self._where = spec, envs, deadline_s, first, where
        workers = min(workers, envs)
        self._shares = [(k * envs // workers, (k + 1) * envs // workers) for k in range(workers)]
        self._progress = np.zeros((workers, 2), np.int64)
        self._vectors = [
            make(high - low, first=first + low, progress=self._progress[k])
            for k, (low, high) in enumerate(self._shares)
        ]
        self._calls: list[queue.SimpleQueue[Task | None]] = [queue.SimpleQueue() for _ in self._shares]
        self._done: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(k,), name=f"envs-{k}", daemon=True) for k in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def reset(self, out: Rows) -> None:
        """Reset every environment."""
        self._run(lambda vector, low, high: vector.reset(self._part(out, low, high)))

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Reset the given environments, from `seeds` where they are given."""
        for vector, (low, high) in zip(self._vectors, self._shares, strict=True):
            own = [k for k, index in enumerate(indices) if low <= index < high]
            if own:
                chosen = None if seeds is None else [seeds[k] for k in own]
                vector.reset_envs([indices[k] - low for k in own], self._part(out, low, high), chosen)

    def seeds(self) -> Array:
        """Return the seeds of the current episodes."""
        return np.concatenate([vector.seeds() for vector in self._vectors])

    def assign(self, tasks: Array) -> None:
        """Set the task of each env for its next episodes."""
        for vector, (low, high) in zip(self._vectors, self._shares, strict=True):
            vector.assign(np.asarray(tasks)[low:high])

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment."""
        self.send(action, out)
        self.receive()

    def send(self, action: Array, out: Rows) -> None:
        """Begin a step; each thread writes its own rows."""
        agents = self.spec.agents
        self._progress[:, 0] += 1
        self._begin(
            lambda vector, low, high: vector.step(action[low * agents : high * agents], self._part(out, low, high))
        )

    def receive(self) -> None:
        """Wait until every thread is done; raise what one of them raised."""
        waiting, failed = set(range(len(self._shares))), list[BaseException]()
        while waiting:
            try:
                worker, error = self._done.get(timeout=self._deadline_s)
            except queue.Empty:
                steps, env = self._progress[worker := min(waiting)].tolist()
                where = self._where(self._first + self._shares[worker][0] + env, steps)
                raise EnvError(
                    f"{where} did not return from `step` or `reset` within {self._deadline_s:g} s.",
                    "if the env is slow, raise plan.deadline_s; otherwise search it for an endless loop",
                ) from None
            waiting.remove(worker)
            failed += [error] if error is not None else []
        if failed:
            raise failed[0]

    def snapshot(self) -> dict[str, Array]:
        """Return the state of all environments, in the same form as a single vector."""
        states = [vector.snapshot() for vector in self._vectors]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def restore(self, state: dict[str, Array]) -> None:
        """Restore a snapshot."""
        for vector, (low, high) in zip(self._vectors, self._shares, strict=True):
            vector.restore({name: array[low:high] for name, array in state.items()})

    def close(self) -> None:
        """End the threads and close the environments; may be called twice."""
        for call in self._calls:
            call.put(None)
        for thread in self._threads:
            thread.join(1.0)
        vectors, self._vectors, self._calls, self._threads = self._vectors, [], [], []
        for vector in vectors:
            vector.close()

    def _part(self, rows: Rows, low: int, high: int) -> Rows:
        agents = self.spec.agents
        return Rows(**{field.name: getattr(rows, field.name)[low * agents : high * agents] for field in fields(Rows)})

    def _run(self, work: Callable[[Vector, int, int], None]) -> None:
        self._begin(work)
        self.receive()

    def _begin(self, work: Callable[[Vector, int, int], None]) -> None:
        for call, vector, (low, high) in zip(self._calls, self._vectors, self._shares, strict=True):
            call.put(lambda vector=vector, low=low, high=high: work(vector, low, high))  # type: ignore[misc]

    def _serve(self, worker: int) -> None:
        """The thread of one worker: run tasks until None comes."""
        call = self._calls[worker]
        while (task := call.get()) is not None:
            error: BaseException | None = None
            try:
                task()
            except BaseException as caught:  # raised again by `receive`
                error = caught
            self._done.put((worker, error))
