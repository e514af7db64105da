"""Record demonstrations: games really played by an agent, as whole episodes in a demos folder."""

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
from slipstream.play.games import GameSummary, nobody_to_play
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

Tell = Callable[[int, int], None]
GUESSED_STEPS = 100
"""Steps of an episode, as long as nobody knows: only to see early that a disk is too full."""
SPARE_BYTES = 64 * 2**20
POLL_S = 0.1


def record(
    choice: EnvChoice, agent: str, games: int, out: Path, *, opponent: str | None = None, seed: int | None = None,
    sampled: bool = False, workers: int | None = None, envs: int | None = None, deadline_s: float = 60.0,
    on_progress: Tell | None = None, player: Callable[[Vector], Agent] | None = None, wishes: StopRequest | None = None,
    expert: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Play `games` games and append every agent's episode to the demos in `out`; return the facts.

    Which games these are depends on `games`, `seed` and `envs` alone, not on the number of workers. A seed that is not
    given is the lowest that the folder has not seen. `player` makes an agent that plays the first row of one env here.
    With an `expert` the agent plays, and what is written is what the expert would have done.
    """
    _check_numbers(games, workers, seed)
    began = time.perf_counter()
    numba_compile.announce()
    spec, schema, opponent = _rehearse(choice, None if player else agent, opponent, sampled, expert)
    with writable(out):
        prepare(out, schema)
    _check_space(out, schema, games * spec.agents)
    seed = _unused_seed(out) if seed is None else seed
    order = RecordJob(choice, agent, opponent, games, 1 if player else spread(games, spec, envs), seed, sampled, expert)
    count = 1 if player else min(workers or machine.cores(), order.envs)
    name = recording_name()
    shares = _shares(order, count, out, name, schema)
    wishes = wishes or StopRequest()
    with handle_signals(wishes), _blamed(out, shares):
        if count == 1:
            scribes: _Here | _Crewed = _Here(shares[0], player, wishes)
        else:
            scribes = _Crewed(shares, deadline_s, wishes)
        ready = time.perf_counter()
        faults = scribes.run(on_progress or (lambda done, total: None))
    seconds = time.perf_counter() - ready
    summed = _summed(shares, spec.competitive and opponent is not None)
    split = scribes.seconds.sum(axis=0) / (count * seconds)
    split = np.append(split, max(0.0, 1.0 - float(split.sum())))
    return {
        "out": str(out),
        "recording": name,
        "env": choice.name,
        "agent": agent,
        "opponent": opponent,
        "expert": expert,
        "seed": order.seed,
        "sampled": sampled,
        "workers": count,
        **summed,
        "seconds": seconds,
        "start_seconds": ready - began,
        "steps_per_second": summed["steps"] / seconds,
        "mib": float(scribes.tally[:, BYTES].sum()) / 2**20,
        "dropped": int(scribes.tally[:, DROPPED].sum()),
        "faults": faults,
        "time": dict(zip(("env", "agent", "write", "waiting"), split.tolist(), strict=True)),
        "stopped": wishes.stop,
    }


def _check_numbers(games: int, workers: int | None, seed: int | None) -> None:
    if games < 1:
        raise ConfigError(f"{games} episodes cannot be recorded.", "give --episodes a positive number")
    if workers is not None and workers < 1:
        raise ConfigError(f"{workers} workers cannot record.", "give --workers a positive number, or leave it out")
    if seed is not None and not 0 <= seed < 2**63:
        raise ConfigError(f"{seed} cannot be a seed.", "give --seed a number from 0 on, or leave it out")


def _rehearse(
    choice: EnvChoice, agent: str | None, opponent: str | None, sampled: bool, expert: str | None = None
) -> tuple[EnvSpec, Schema, str | None]:
    """Make one env and play a step of it; without an agent (a person plays) say who plays the other rows.

    This compiles what workers need, once, and finds a broken env or agent before anything is started or written.
    """
    with contextlib.closing(make_vector(choice, 1)) as vector:
        spec = vector.spec
        if agent is None and opponent is None and spec.agents > 1:
            game, _ = parse(choice.name)
            opponent = (game.reference if game is not None else "") or "random"
        if opponent is not None and not (spec.competitive if agent is not None else spec.agents > 1):
            raise nobody_to_play(spec)
        players = [load_agent(text, spec, choice, sampled) for text in (agent, opponent, expert) if text is not None]
        schema = Schema.of(choice.name, spec, vector.snapshot() if spec.exact else None)
        check_recording(spec, players, vector)
    return spec, schema, opponent


def _check_space(out: Path, schema: Schema, episodes: int) -> None:
    """See that a recording of episodes of a usual length would fit."""
    need = SPARE_BYTES + episodes * sum(column.bytes * column.count(GUESSED_STEPS) for column in schema.columns)
    free = machine.disk_free_bytes(out)
    if free < need:
        raise MachineError(
            f"The disk of {out} has {free / 2**20:,.0f} MiB free; {episodes:,} episodes need about "
            f"{need / 2**20:,.0f} MiB.",
            "free some space, record fewer, or choose another disk with --out DIR",
        )


def _unused_seed(out: Path) -> int:
    """The lowest seed that no recording in a folder has used: the same games twice teach nothing."""
    used = {shard.origin.get("seed") for shard in Demos.open(out, quarantined=True).shards}
    return next(seed for seed in range(len(used) + 1) if seed not in used)


def _shares(order: RecordJob, count: int, out: Path, name: str, schema: Schema) -> list[RecordShare]:
    """One share of the envs for each worker."""
    choice = order.choice
    made = {name: value for name, value in provenance.collect(sys.argv).items() if name != "hostname"}
    origin = made | {
        "recording": name, "agent": order.agent, "opponent": order.opponent, "expert": order.expert,
        "env": choice.name, "seed": order.seed, "sampled": order.sampled, "episodes": order.games,
        "envs": order.envs, "workers": count,
        "settings": {
            "env": choice.env.model_dump(), "rewards": choice.rewards.model_dump(), "gamma": choice.gamma
        },
    }  # fmt: skip
    limit = machine.memory_bytes() // 2 // count
    edges = [worker * order.envs // count for worker in range(count + 1)]
    return [
        RecordShare(
            worker, order, low, high - low, out, f"{name}-{worker:03d}", schema, origin | {"worker": worker}, limit
        )
        for worker, (low, high) in enumerate(pairwise(edges))
    ]


class _Here:
    """One share, recorded by this process."""

    def __init__(self, share: RecordShare, player: Callable[[Vector], Agent] | None, wishes: StopRequest) -> None:
        arrays = {name: np.zeros(field.shape, field.dtype) for name, field in slab_fields(1).items()}
        self.tally, self.seconds = arrays["tally"], arrays["seconds"]
        self._games, self._wishes = share.order.games, wishes
        self._scribe = RecordWorker(share, arrays, player)

    def run(self, tell: Tell) -> list[str]:
        """Record it all; return what was left out."""
        told = 0.0

        def stopped() -> bool:
            nonlocal told
            if time.monotonic() - told > POLL_S:
                told = time.monotonic()
                tell(int(self.tally[0, GAMES]), self._games)
            return bool(self._wishes.stop)

        return self._scribe.run(stopped)


class _Crewed:
    """Shares recorded by worker processes, one each."""

    def __init__(self, shares: list[RecordShare], deadline_s: float, wishes: StopRequest) -> None:
        self._shares, self._wishes = shares, wishes
        self._slab = Slab(slab_fields(len(shares)))
        self.tally: Array = self._slab["tally"]
        self.seconds: Array = self._slab["seconds"]
        try:
            self._crew = WorkerPool(
                "slipstream.play.record_worker", shares, self._slab, deadline_s=deadline_s, where=self._where
            )
        except BaseException:
            self._slab.close()
            raise

    def run(self, tell: Tell) -> list[str]:
        """Let them record it all; return what was left out."""
        try:
            with self._watched(tell):
                self._crew.send({"go": 1})
                self._crew.gather("done")
            return self._crew.faults
        finally:
            self._crew.close()
            self._slab.close()

    @contextlib.contextmanager
    def _watched(self, tell: Tell) -> Iterator[None]:
        """Show how far the workers are, and pass on a wish to stop, while this thread waits for them."""
        over, stop, games = threading.Event(), self._slab["stop"], self._shares[0].order.games

        def look() -> None:
            while not over.wait(POLL_S):
                stop[0] = bool(self._wishes.stop)
                tell(int(self.tally[:, GAMES].sum()), games)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _where(self, worker: int) -> str:
        steps, env, low = (int(n) for n in self._slab["progress"][worker])
        index = self._shares[worker].first + low + env
        return f"Env {index} (seed {env_seeds(self._shares[0].order.seed, index, 1)[0]}, step {steps})"


@contextlib.contextmanager
def _blamed(out: Path, shares: list[RecordShare]) -> Iterator[None]:
    """Add to an error what this recording has saved, and how to look closer."""
    try:
        yield
    except SlipstreamError as error:
        saved = len(_records(shares))
        hint = error.hint.replace("--set plan.collector=local", "--workers 1")
        error.hint = "; ".join(filter(None, [hint, f"{saved:,} whole episodes were saved in {out}" * (saved > 0)]))
        raise


def _records(shares: list[RecordShare]) -> Array:
    """The records of the whole episodes that some shares have written."""
    found = [np.zeros(0, EPISODE)]
    for share in shares:
        folder = share.out / "shards" / share.shard
        if folder.is_dir():
            found.append(ShardView(folder, share.schema).records)
    return np.concatenate(found)


def _summed(shares: list[RecordShare], sided: bool) -> dict[str, Any]:
    """What the episodes on disk amount to: each game counts once, with the mean of its recorded agents."""
    records = _records(shares)
    result = GameSummary(competitive=sided)
    _, first, place = np.unique(records["game"], return_index=True, return_inverse=True)
    agents = np.bincount(place)
    result.returns = (np.bincount(place, records["return"]) / agents).tolist()
    result.lengths = (np.bincount(place, records["steps"]) / agents).tolist()
    result.outcomes = records["outcome"][first].tolist()
    blank = dict.fromkeys(GameSummary(sided, [0], [0.0], [0]).summary()) | {"games": 0}
    summary = result.summary() if len(records) else blank
    kept = {name: value for name, value in summary.items() if not name.startswith("score") and "behaviour" not in name}
    return {"episodes": len(records), "steps": int(records["steps"].sum())} | kept
