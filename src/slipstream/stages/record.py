"""Record demonstrations: an agent plays games, and its episodes are appended to a demos folder."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.contracts import Agent, Array, EnvSpec, Vector
from slipstream.demos.format import EPISODE, Schema
from slipstream.demos.reader import Demos, ShardView
from slipstream.demos.writer import prepare, recording_name
from slipstream.envs.registry import EnvChoice, parse
from slipstream.errors import ConfigError, MachineError, SlipstreamError
from slipstream.play.games import GameSummary, one_sided_error
from slipstream.play.record_worker import (
    BYTES,
    DROPPED,
    GAMES,
    RecordShare,
    RecordWorker,
    check_recording,
    slab_fields,
    writable,
)
from slipstream.play.recorder import RecordJob, spread
from slipstream.runs import provenance
from slipstream.runs.signals import StopRequest, handle_signals
from slipstream.system import machine, numba_compile
from slipstream.system.rng import env_seeds
from slipstream.system.slab import Slab
from slipstream.system.worker_pool import WorkerPool
from slipstream.vector.make import make_vector

Progress = Callable[[int, int], None]
GUESSED_STEPS = 100
"""Assumed steps of an episode, to notice early that a disk is too full."""
SPARE_BYTES = 64 * 2**20
POLL_S = 0.1


def record(
    choice: EnvChoice,
    agent: str,
    games: int,
    out: Path,
    *,
    opponent: str | None = None,
    seed: int | None = None,
    sampled: bool = False,
    workers: int | None = None,
    envs: int | None = None,
    deadline_s: float = 60.0,
    on_progress: Progress | None = None,
    player: Callable[[Vector], Agent] | None = None,
    stop_request: StopRequest | None = None,
    expert: str | None = None,
) -> dict[str, Any]:
    """Play `games` games and append every agent's episode to the demos in `out`; return the facts.

    The games depend on `games`, `seed` and `envs` only, not on the number of workers. The default seed is the lowest
    that no recording in the folder has used. `player` makes an agent that plays the first row of one env in this
    process. With an `expert` the agent plays, and the expert's actions are written.
    """
    _check_numbers(games, workers, seed)
    began = time.perf_counter()
    numba_compile.announce()
    spec, schema, opponent = _check_agents(choice, None if player else agent, opponent, sampled, expert)
    with writable(out):
        prepare(out, schema)
    _check_space(out, schema, games * spec.agents)
    seed = _unused_seed(out) if seed is None else seed
    job = RecordJob(choice, agent, opponent, games, 1 if player else spread(games, spec, envs), seed, sampled, expert)
    count = 1 if player else min(workers or machine.cores(), job.envs)
    name = recording_name()
    shares = _shares(job, count, out, name, schema)
    stop_request = stop_request or StopRequest()
    with handle_signals(stop_request), _saved_episodes_hint(out, shares):
        if count == 1:
            recording: _LocalRecording | _WorkerRecording = _LocalRecording(shares[0], player, stop_request)
        else:
            recording = _WorkerRecording(shares, deadline_s, stop_request)
        ready = time.perf_counter()
        faults = recording.run(on_progress or (lambda done, total: None))
    seconds = time.perf_counter() - ready
    summary = _summary(shares, spec.competitive and opponent is not None)
    split = recording.seconds.sum(axis=0) / (count * seconds)
    split = np.append(split, max(0.0, 1.0 - float(split.sum())))
    return {
        "out": str(out),
        "recording": name,
        "env": choice.name,
        "agent": agent,
        "opponent": opponent,
        "expert": expert,
        "seed": job.seed,
        "sampled": sampled,
        "workers": count,
        **summary,
        "seconds": seconds,
        "start_seconds": ready - began,
        "steps_per_second": summary["steps"] / seconds,
        "mib": float(recording.tally[:, BYTES].sum()) / 2**20,
        "dropped": int(recording.tally[:, DROPPED].sum()),
        "faults": faults,
        "time": dict(zip(("env", "agent", "write", "waiting"), split.tolist(), strict=True)),
        "stopped": stop_request.stop,
    }


def _check_numbers(games: int, workers: int | None, seed: int | None) -> None:
    if games < 1:
        raise ConfigError(f"{games} episodes cannot be recorded.", "give --episodes a positive number")
    if workers is not None and workers < 1:
        raise ConfigError(f"{workers} workers cannot record.", "give --workers a positive number, or leave it out")
    if seed is not None and not 0 <= seed < 2**63:
        raise ConfigError(f"{seed} cannot be a seed.", "give --seed a number from 0 on, or leave it out")


def _check_agents(
    choice: EnvChoice, agent: str | None, opponent: str | None, sampled: bool, expert: str | None = None
) -> tuple[EnvSpec, Schema, str | None]:
    """Make one env and play a step of it; for a human player, choose the agent of the other rows.

    This compiles what workers need, once, and finds a broken env or agent before anything is started or written.
    """
    with contextlib.closing(make_vector(choice, 1)) as vector:
        spec = vector.spec
        if agent is None and opponent is None and spec.agents > 1:
            game, _ = parse(choice.name)
            opponent = (game.reference if game is not None else "") or "random"
        if opponent is not None and not (spec.competitive if agent is not None else spec.agents > 1):
            raise one_sided_error(spec)
        players = [load_agent(text, spec, choice, sampled) for text in (agent, opponent, expert) if text is not None]
        schema = Schema.of(choice.name, spec, vector.snapshot() if spec.exact else None)
        check_recording(spec, players, vector)
    return spec, schema, opponent


def _check_space(out: Path, schema: Schema, episodes: int) -> None:
    """Raise an error if episodes of `GUESSED_STEPS` steps would not fit on the disk."""
    need = SPARE_BYTES + episodes * sum(column.bytes * column.count(GUESSED_STEPS) for column in schema.columns)
    free = machine.disk_free_bytes(out)
    if free < need:
        raise MachineError(
            f"The disk of {out} has {free / 2**20:,.0f} MiB free; {episodes:,} episodes need about "
            f"{need / 2**20:,.0f} MiB.",
            "free some space, record fewer, or choose another disk with --out DIR",
        )


def _unused_seed(out: Path) -> int:
    """The lowest seed that no recording in a folder has used, so that no game is recorded twice."""
    used = {shard.origin.get("seed") for shard in Demos.open(out, quarantined=True).shards}
    return next(seed for seed in range(len(used) + 1) if seed not in used)


def _shares(job: RecordJob, count: int, out: Path, name: str, schema: Schema) -> list[RecordShare]:
    """One share of the envs for each worker."""
    choice = job.choice
    origin = {name: value for name, value in provenance.collect(sys.argv).items() if name != "hostname"}
    origin |= {
        "recording": name,
        "agent": job.agent,
        "opponent": job.opponent,
        "expert": job.expert,
        "env": choice.name,
        "modules": list(choice.modules),
        "seed": job.seed,
        "sampled": job.sampled,
        "episodes": job.games,
        "envs": job.envs,
        "workers": count,
        "settings": {"env": choice.env.model_dump(), "rewards": choice.rewards.model_dump(), "gamma": choice.gamma},
    }
    limit = machine.memory_bytes() // 2 // count
    edges = [worker * job.envs // count for worker in range(count + 1)]
    return [
        RecordShare(
            worker, job, low, high - low, out, f"{name}-{worker:03d}", schema, origin | {"worker": worker}, limit
        )
        for worker, (low, high) in enumerate(pairwise(edges))
    ]


class _LocalRecording:
    """A recording in this process."""

    def __init__(self, share: RecordShare, player: Callable[[Vector], Agent] | None, stop_request: StopRequest) -> None:
        arrays = {name: np.zeros(field.shape, field.dtype) for name, field in slab_fields(1).items()}
        self.tally, self.seconds = arrays["tally"], arrays["seconds"]
        self._games, self._stop_request = share.job.games, stop_request
        self._worker = RecordWorker(share, arrays, player)

    def run(self, on_progress: Progress) -> list[str]:
        """Record everything; return messages about dropped episodes."""
        reported = 0.0

        def stopped() -> bool:
            nonlocal reported
            if time.monotonic() - reported > POLL_S:
                reported = time.monotonic()
                on_progress(int(self.tally[0, GAMES]), self._games)
            return bool(self._stop_request.stop)

        return self._worker.run(stopped)


class _WorkerRecording:
    """A recording in worker processes, one for each share."""

    def __init__(self, shares: list[RecordShare], deadline_s: float, stop_request: StopRequest) -> None:
        self._shares, self._stop_request = shares, stop_request
        self._slab = Slab(slab_fields(len(shares)))
        self.tally: Array = self._slab["tally"]
        self.seconds: Array = self._slab["seconds"]
        try:
            self._workers = WorkerPool(
                "slipstream.play.record_worker", shares, self._slab, deadline_s=deadline_s, where=self._where
            )
        except BaseException:
            self._slab.close()
            raise

    def run(self, on_progress: Progress) -> list[str]:
        """Record everything; return messages about dropped episodes."""
        try:
            with self._monitored(on_progress):
                self._workers.send({"go": 1})
                self._workers.gather("done")
            return self._workers.faults
        finally:
            self._workers.close()
            self._slab.close()

    @contextlib.contextmanager
    def _monitored(self, on_progress: Progress) -> Iterator[None]:
        """Report progress and forward a stop request from a thread while this one waits for the workers."""
        over, stop, games = threading.Event(), self._slab["stop"], self._shares[0].job.games

        def poll() -> None:
            while not over.wait(POLL_S):
                stop[0] = bool(self._stop_request.stop)
                on_progress(int(self.tally[:, GAMES].sum()), games)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _where(self, worker: int) -> str:
        steps, env, low = (int(n) for n in self._slab["progress"][worker])
        index = self._shares[worker].first + low + env
        return f"Env {index} (seed {env_seeds(self._shares[0].job.seed, index, 1)[0]}, step {steps})"


@contextlib.contextmanager
def _saved_episodes_hint(out: Path, shares: list[RecordShare]) -> Iterator[None]:
    """Add to an error how many episodes were saved, and how to record in one process."""
    try:
        yield
    except SlipstreamError as error:
        saved = len(_records(shares))
        hint = error.hint.replace("--set plan.collector=local", "--workers 1")
        error.hint = "; ".join(filter(None, [hint, f"{saved:,} whole episodes were saved in {out}" * (saved > 0)]))
        raise


def _records(shares: list[RecordShare]) -> Array:
    """The records of all whole episodes that the shares have written."""
    found = [np.zeros(0, EPISODE)]
    for share in shares:
        folder = share.out / "shards" / share.shard
        if folder.is_dir():
            found.append(ShardView(folder, share.schema).records)
    return np.concatenate(found)


def _summary(shares: list[RecordShare], competitive: bool) -> dict[str, Any]:
    """The summary of the episodes on disk: each game counts once, with the mean of its recorded agents."""
    records = _records(shares)
    result = GameSummary(competitive=competitive)
    _, first, place = np.unique(records["game"], return_index=True, return_inverse=True)
    agents = np.bincount(place)
    result.returns = (np.bincount(place, records["return"]) / agents).tolist()
    result.lengths = (np.bincount(place, records["steps"]) / agents).tolist()
    result.outcomes = records["outcome"][first].tolist()
    blank = dict.fromkeys(GameSummary(competitive, [0], [0.0], [0]).summary()) | {"games": 0}
    summary = result.summary() if len(records) else blank
    kept = {name: value for name, value in summary.items() if not name.startswith("score") and "behaviour" not in name}
    return {"episodes": len(records), "steps": int(records["steps"].sum())} | kept
