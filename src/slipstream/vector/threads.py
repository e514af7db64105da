"""Environments stepped by several threads of this process, each a vector of its own.

For games that let other threads run while they step: native ones, and Python ones that wait or compute in C. Threads
share the caller's memory, so nothing is copied; an environment is made, stepped and closed by one and the same thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from slipstream.core.contracts import Array, EnvSpec, Rows, Vector, check_tasks
from slipstream.core.errors import EnvError

Order = Callable[[], Any]


class Threads:
    """A vector whose environments are shared out over threads."""

    def __init__(
        self, make: Callable[..., Vector], spec: EnvSpec, envs: int, workers: int, deadline_s: float = 60.0
    ) -> None:
        self.spec, self.envs = spec, envs
        self._deadline_s = deadline_s
        self._shares = [(w * envs // workers, (w + 1) * envs // workers) for w in range(workers)]
        self._progress = np.zeros((workers, 2), np.int64)
        """What a watcher may read: orders carried out, and the env that is being stepped."""
        self._orders: list[queue.SimpleQueue[Order | None]] = [queue.SimpleQueue() for _ in self._shares]
        self._answers: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, args=(w,), daemon=True) for w in range(workers)]
        for thread in self._threads:
            thread.start()
        self._vectors: list[Vector] = []
        made: list[Order] = [
            lambda w=w, low=low, high=high: make(high - low, first=low, progress=self._progress[w])  # type: ignore[misc]
            for w, (low, high) in enumerate(self._shares)
        ]
        try:
            self._vectors = self._tell(made)
        except BaseException:
            self.close()
            raise

    def reset(self, out: Rows) -> None:
        """Start every environment anew."""
        self._each(lambda vector, rows: vector.reset(rows), out)

    def reset_envs(self, indices: Sequence[int], out: Rows, seeds: Sequence[int] | None = None) -> None:
        """Start the named environments anew, each from its seed where there is one."""
        orders: list[Order] = []
        for vector, (low, high), rows in zip(self._vectors, self._shares, self._cut(out), strict=True):
            mine = [k for k, index in enumerate(indices) if low <= index < high]
            named = [indices[k] - low for k in mine]
            given = None if seeds is None else [seeds[k] for k in mine]
            orders.append(lambda v=vector, n=named, r=rows, s=given: v.reset_envs(n, r, s) if n else None)  # type: ignore[misc]
        self._tell(orders)

    def seeds(self) -> Array:
        """The seeds of all episodes that are being played."""
        return np.concatenate([vector.seeds() for vector in self._vectors])

    def assign(self, tasks: Array) -> None:
        """Say which task each env plays in the episodes that begin from now on."""
        given = check_tasks(self.spec, tasks)
        for vector, (low, high) in zip(self._vectors, self._shares, strict=True):
            vector.assign(given[low:high])

    def step(self, action: Array, out: Rows) -> None:
        """Step every environment; `out.terms` accumulates as in any vector."""
        agents, orders = self.spec.agents, list[Order]()
        for vector, (low, high), rows in zip(self._vectors, self._shares, self._cut(out), strict=True):
            part = action[low * agents : high * agents]
            orders.append(lambda v=vector, a=part, r=rows: v.step(a, r))  # type: ignore[misc]
        self._tell(orders)

    def snapshot(self) -> dict[str, Array]:
        """Copies of what the vectors hold, envs first, as one vector would give them."""
        parts = [vector.snapshot() for vector in self._vectors]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from a snapshot."""
        for vector, (low, high) in zip(self._vectors, self._shares, strict=True):
            vector.restore({name: array[low:high] for name, array in state.items()})

    def close(self) -> None:
        """Close every environment in its own thread and end the threads; may be called twice."""
        vectors, self._vectors = self._vectors, []
        for number, orders in enumerate(self._orders):
            if number < len(vectors):
                orders.put(vectors[number].close)
            orders.put(None)
        for thread in self._threads:
            thread.join(2.0)  # one that an environment holds ends with the process
        self._orders, self._threads = [], []

    def _work(self, number: int) -> None:
        """Carry out orders until there are no more."""
        orders = self._orders[number]
        while (order := orders.get()) is not None:
            result, error = None, None
            try:
                result = order()
            except BaseException as caught:  # whatever an environment raises belongs to whoever asked
                error = caught
            self._progress[number, 0] += 1
            self._answers.put((number, result, error))

    def _tell(self, orders: Sequence[Order]) -> list[Any]:
        """Give each thread its order, wait for all, and return the answers, or raise what the first share met."""
        for waiting, order in zip(self._orders, orders, strict=True):
            waiting.put(order)
        results: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        seen = self._progress.copy()
        while len(results) < len(orders):
            try:
                number, result, error = self._answers.get(timeout=self._deadline_s)
            except queue.Empty:
                self._check(seen, set(range(len(orders))) - set(results))
                seen = self._progress.copy()
                continue
            results[number] = result
            if error is not None:
                errors[number] = error
        if errors:
            raise errors[min(errors)]
        return [results[number] for number in range(len(orders))]

    def _check(self, seen: Array, waiting: set[int]) -> None:
        """Name an environment that has stood still for as long as is allowed."""
        for number in sorted(waiting):
            if (self._progress[number] == seen[number]).all():
                index = self._shares[number][0] + int(self._progress[number, 1])
                raise EnvError(
                    f"Env {index} did not return from `step` or `reset` within {self._deadline_s:g} s.",
                    "if the env is just slow, raise plan.deadline_s; else look for a loop that never ends in it",
                )

    def _each(self, order: Callable[[Vector, Rows], None], out: Rows) -> None:
        """Let every thread do the same with its own rows."""
        pairs = zip(self._vectors, self._cut(out), strict=True)
        self._tell([lambda v=vector, r=rows: order(v, r) for vector, rows in pairs])  # type: ignore[misc]

    def _cut(self, out: Rows) -> list[Rows]:
        """The rows of each share, as views."""
        agents = self.spec.agents
        return [
            Rows(**{field.name: getattr(out, field.name)[low * agents : high * agents] for field in fields(Rows)})
            for low, high in self._shares
        ]
