"""A share of a recording: its environments, agents and shard; run as a module, a worker process that has one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.contracts import Agent, Array, EnvSpec, Vector, empty_rows
from slipstream.demos.format import Schema
from slipstream.demos.writer import Shard
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import MachineError
from slipstream.play.recorder import Recorder, RecordJob, make_vectors
from slipstream.system.rng import make_streams
from slipstream.system.slab import Field, Slab
from slipstream.system.worker_main import Answer, Requests, serve
from slipstream.vector.make import make_vector

GAMES, BYTES, DROPPED = 0, 1, 2
"""Columns of a share's tally."""


@dataclass(frozen=True)
class RecordShare:
    """What one process is told to record."""

    worker: int
    order: RecordJob
    first: int
    envs: int
    out: Path
    shard: str
    schema: Schema
    origin: Mapping[str, Any]
    limit_bytes: int
    """Memory that its running episodes may take."""


def slab_fields(shares: int) -> dict[str, Field]:
    """What scribes tell their parent while they write, and what it tells them."""
    return {
        "progress": Field((shares, 3), "int64"),
        "tally": Field((shares, 3), "int64"),
        "seconds": Field((shares, 3), "float64"),
        "stop": Field((1,), "int64"),
    }


@contextlib.contextmanager
def writable(out: Path) -> Iterator[None]:
    """Say it plainly if a folder cannot be made or written to."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{out} cannot hold demos: {error.strerror or error}.", "choose another folder with --out DIR"
        ) from error


def check_recording(spec: EnvSpec, agents: Iterable[Agent], vector: Vector | None = None) -> None:
    """Let agents act once, and a vector that nobody needs take a step, so that all is compiled and loaded."""
    rows = empty_rows(spec, 1)
    if vector is not None:
        vector.reset(rows)
    action = np.zeros((spec.agents, spec.action.parts), spec.action.dtype)
    for agent in agents:
        agent.act_into(rows.obs, rows.mask, make_streams(0, "rehearse", 0, spec.agents), action)
    if vector is not None:
        vector.step(action, rows)


class RecordWorker:
    """Makes what a share needs, then records it; `tell` is a slab, or arrays by the same names."""

    def __init__(
        self, share: RecordShare, tell: Slab | Mapping[str, Array], player: Callable[[Vector], Agent] | None = None
    ) -> None:
        order, choice = share.order, share.order.choice
        self._progress, self._tally, self._seconds = (tell[n][share.worker] for n in ("progress", "tally", "seconds"))
        vectors = make_vectors(order, share.first, share.envs, self._progress)
        spec = vectors[0].spec
        opponent = load_agent(order.opponent, spec, choice, order.sampled) if order.opponent else None
        agent = player(vectors[0]) if player else load_agent(order.agent, spec, choice, order.sampled)
        expert = load_agent(order.expert, spec, choice) if order.expert else None
        check_recording(
            spec, [each for each in (None if player else agent, opponent, expert) if each], self._spare(choice)
        )
        alone = np.arange(share.envs * spec.agents) == 0 if player else None
        with writable(share.out):
            self._shard = Shard(share.out, share.shard, share.schema, share.origin)
        self._recorder = Recorder(
            order, vectors, agent, opponent, self._shard, first=share.first, recorded=alone, progress=self._progress,
            limit_bytes=share.limit_bytes, expert=expert,
        )  # fmt: skip

    @staticmethod
    def _spare(choice: EnvChoice) -> Vector | None:
        """A vector to rehearse with, of games that are made in no time."""
        return make_vector(choice, 1) if parse(choice.name)[0] is not None else None

    def run(self, stopped: Callable[[], bool]) -> list[str]:
        """Record until all is recorded or somebody says stop; return what was left out, and why."""
        recorder = self._recorder

        def look() -> bool:
            self._tally[:] = recorder.games, self._shard.bytes, recorder.dropped
            self._seconds[:] = recorder.seconds
            return stopped()

        try:
            recorder.run(look)
        except BaseException:
            with contextlib.suppress(OSError):
                self._shard.close()
            raise
        finally:
            recorder.close()
        look()
        self._save()
        return recorder.told()

    def _save(self) -> None:
        """Wait until all is on disk, and let the watcher see meanwhile that somebody is still alive."""
        failed: list[Exception] = []

        def close() -> None:
            try:
                self._shard.close()
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=close)
        thread.start()
        while thread.is_alive():
            self._progress[0] += 1
            thread.join(0.5)
        if failed:
            raise failed[0]


def work(share: RecordShare, slab: Slab, requests: Requests, answer: Answer) -> None:
    """Record a share when told to."""
    # A signal to the whole group is the parent's to answer: it says stop, and ends us if it dies.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    scribe, stop = RecordWorker(share, slab), slab["stop"]
    answer({"answer": "ready"})
    requests.get()
    answer({"answer": "done", "faults": scribe.run(lambda: bool(stop[0]))})
    requests.get()


if __name__ == "__main__":
    serve(work)
