"""A worker's share of a recording: its envs, agents and shard. Run as a module, this is a worker process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.own import OwnAgent
from slipstream.agents.specs import load_agent
from slipstream.contracts import Agent, Array, EnvSpec, Vector, empty_rows
from slipstream.demos.format import Schema
from slipstream.demos.writer import Shard
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import AgentFault, MachineError
from slipstream.play.recorder import Recorder, RecordJob, make_vectors
from slipstream.system.rng import make_streams
from slipstream.system.slab import Field, Slab
from slipstream.system.worker_main import Answer, Requests, serve
from slipstream.vector.make import make_vector

GAMES, BYTES, DROPPED = 0, 1, 2
"""Columns of the `tally` array."""


@dataclass(frozen=True)
class RecordShare:
    """The part of a recording that one process plays."""

    worker: int
    job: RecordJob
    first: int
    envs: int
    out: Path
    shard: str
    schema: Schema
    origin: Mapping[str, Any]
    limit_bytes: int
    """Memory limit of the running episodes."""


def slab_fields(shares: int) -> dict[str, Field]:
    """The arrays that record workers share with their parent."""
    return {
        "progress": Field((shares, 3), "int64"),
        "tally": Field((shares, 3), "int64"),
        "seconds": Field((shares, 3), "float64"),
        "stop": Field((1,), "int64"),
    }


@contextlib.contextmanager
def writable(out: Path) -> Iterator[None]:
    """Turn an OSError about a folder for demos into an error with a hint."""
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{out} cannot hold demos: {error.strerror or error}.", "choose another folder with --out DIR"
        ) from error


def check_recording(spec: EnvSpec, agents: Iterable[Agent], vector: Vector | None = None) -> None:
    """Let agents act once, and step a spare vector, so that everything is compiled and loaded before the start.

    Without a vector there is no real observation, so the user's own agents are not called.
    """
    rows = empty_rows(spec, 1)
    if vector is not None:
        vector.reset(rows)
    action = np.zeros((spec.agents, spec.action.parts), spec.action.dtype)
    for agent in agents:
        if vector is None and isinstance(agent, OwnAgent):
            continue
        try:
            agent.act_into(rows.obs, rows.mask, make_streams(0, "rehearse", 0, spec.agents), action)
        except AgentFault as fault:
            fault.locate(0, spec.agents)
            raise
    if vector is not None:
        vector.step(action, rows)


class RecordWorker:
    """Makes the envs and agents of a share and records it; `shared` is a slab, or arrays with the same names."""

    def __init__(
        self, share: RecordShare, shared: Slab | Mapping[str, Array], player: Callable[[Vector], Agent] | None = None
    ) -> None:
        job, choice = share.job, share.job.choice
        self._progress, self._tally, self._seconds = (shared[n][share.worker] for n in ("progress", "tally", "seconds"))
        vectors = make_vectors(job, share.first, share.envs, self._progress)
        spec = vectors[0].spec
        opponent = load_agent(job.opponent, spec, choice, job.sampled) if job.opponent else None
        agent = player(vectors[0]) if player else load_agent(job.agent, spec, choice, job.sampled)
        expert = load_agent(job.expert, spec, choice) if job.expert else None
        agents = [each for each in (None if player else agent, opponent, expert) if each]
        check_recording(spec, agents, self._spare(choice))
        first_row = np.arange(share.envs * spec.agents) == 0 if player else None
        with writable(share.out):
            self._shard = Shard(share.out, share.shard, share.schema, share.origin)
        self._recorder = Recorder(
            job,
            vectors,
            agent,
            opponent,
            self._shard,
            first=share.first,
            recorded=first_row,
            progress=self._progress,
            limit_bytes=share.limit_bytes,
            expert=expert,
        )

    @staticmethod
    def _spare(choice: EnvChoice) -> Vector | None:
        """A spare vector to step once; None for envs that are slow to make."""
        return make_vector(choice, 1) if parse(choice.name)[0] is not None else None

    def run(self, stopped: Callable[[], bool]) -> list[str]:
        """Record until the share is done or `stopped` returns True; return messages about dropped episodes."""
        recorder = self._recorder

        def report() -> bool:
            self._tally[:] = recorder.games, self._shard.bytes, recorder.dropped
            self._seconds[:] = recorder.seconds
            return stopped()

        try:
            recorder.run(report)
        except BaseException:
            with contextlib.suppress(OSError):
                self._shard.close()
            raise
        finally:
            recorder.close()
        report()
        self._save()
        return recorder.fault_messages()

    def _save(self) -> None:
        """Close the shard in a thread, and count `progress` up meanwhile so that the parent sees a live worker."""
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
    """Record a share on the parent's request."""
    # The parent handles a signal to the process group: it sets `stop`, and workers end when it dies.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker, stop = RecordWorker(share, slab), slab["stop"]
    answer({"answer": "ready"})
    requests.get()
    answer({"answer": "done", "faults": worker.run(lambda: bool(stop[0]))})
    requests.get()


if __name__ == "__main__":
    serve(work)
