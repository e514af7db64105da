"""The actors collector: worker processes, each with one actor, write whole rollouts into shared memory.

Rollout k is made with weights k - lag, in buffer k mod (lag + 1). There is no message per step: one line requests a
rollout from a worker, and one line reports that it is done. This module is also the worker's program (`work`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.agents.specs import load_agent
from slipstream.collect.actor import Actor
from slipstream.collect.rollout import Rollout, copy_rollout, empty_rollout, rollout_fields, view_rollout
from slipstream.contracts import Array, EnvSpec
from slipstream.envs.registry import EnvChoice
from slipstream.play.assignments import FinishedGame, Players
from slipstream.policies.design import Design
from slipstream.system.rng import env_seeds
from slipstream.system.slab import Field, Slab
from slipstream.system.worker_main import Answer, Requests, serve
from slipstream.system.worker_pool import WorkerPool
from slipstream.vector.make import make_vector


@dataclass(frozen=True)
class ActorJob:
    """What one worker process receives when it starts."""

    worker: int
    choice: EnvChoice
    design: Design
    seed: int
    first: int
    """Global index of its first env."""
    envs: int
    buffers: int
    """Rollout buffers in the slab."""
    sampled: bool
    """Whether opponents sample their actions instead of taking the most likely ones."""
    memory: int
    """Size of the largest opponent's recurrent state."""


class ActorsCollector:
    """The worker processes and the slab that they share with the learner."""

    def __init__(
        self,
        choice: EnvChoice,
        spec: EnvSpec,
        design: Design,
        state_fields: dict[str, Field],
        *,
        envs: int,
        workers: int,
        steps: int,
        lag: int,
        seed: int,
        sampled: bool = False,
        memory: int = 0,
        deadline_s: float = 60.0,
        zero_copy: bool = True,
    ) -> None:
        self.lag, self.workers = lag, workers
        self.failed: dict[int, str] = {}
        """Opponents that failed, by player number, with the reason."""
        self._new_players: list[str] = []
        """Opponents that the workers have not received yet."""
        self._seed = seed
        self._state_fields = state_fields
        self._next_request = 0
        """The first rollout that has not been requested from the workers."""
        buffers = lag + 1
        fields = {
            "params_and_stats": Field((2, design.params_and_stats_size), "float32"),
            "progress": Field((workers, 2), "int64"),
            "seconds": Field((workers, 2), "float64"),
            "assignments": Field((2, envs, 3), "int64"),
        }
        for b in range(buffers):
            fields |= {f"{b}/{name}": field for name, field in rollout_fields(spec, design, steps, envs).items()}
        for slot in range(2):
            fields |= {f"start{slot}/{name}": field for name, field in state_fields.items()}
        self._slab = Slab(fields)
        self._rollouts = [view_rollout(self._slab, f"{b}/") for b in range(buffers)]
        self._copy = None if zero_copy else empty_rollout(spec, design, steps, envs)
        """Without zero-copy, the learner gets this copy of a rollout instead of the slab's memory."""
        self._envs = [(w * envs // workers, (w + 1) * envs // workers) for w in range(workers)]
        jobs = [
            ActorJob(w, choice, design, seed, low, high - low, buffers, sampled, memory)
            for w, (low, high) in enumerate(self._envs)
        ]
        self._pool = WorkerPool("slipstream.collect.actors", jobs, self._slab, deadline_s=deadline_s, where=self._where)

    def publish(self, version: int, params_and_stats: Array, assignments: Array, players: Sequence[str] = ()) -> None:
        """Set the weights of a version and the assignments of games that begin with it; add new opponents."""
        self._slab["params_and_stats"][version % 2] = params_and_stats
        self._slab["assignments"][version % 2] = assignments
        self._new_players += players

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Start with rollout number `version`, from a snapshot if there is one."""
        if state is not None:
            for name in self._state_fields:
                self._slab[f"start{version % 2}/{name}"][:] = state[name]
        self._send({"start": version, "version": max(version - self.lag, 0), "restore": state is not None})
        for rollout in range(version, version + self.lag + 1):
            self._request(rollout)

    def prefetch(self, version: int) -> None:
        """Request the rollout that the weights of `version` are for, unless it was requested already."""
        if self._next_request == version + self.lag:
            self._request(version + self.lag)

    def collect(self, version: int) -> Rollout:
        """Wait for rollout number `version`; at lag 1 the workers already make the next one."""
        self.prefetch(version)
        self._pool.gather(f"done {version}")
        rollout = self._rollouts[version % (self.lag + 1)]
        rollout = rollout if self._copy is None else copy_rollout(rollout, self._copy)
        rollout.fault = next(iter(self._pool.faults), "")
        return rollout

    def snapshot(self, version: int) -> dict[str, Array]:
        """Return the state from which rollout number `version`, the next one to be trained on, started."""
        return {name: self._slab[f"start{version % 2}/{name}"].copy() for name in self._state_fields}

    def finished_games(self, version: int) -> list[FinishedGame]:
        """Return the games that ended in rollout number `version` in all workers, ordered by time."""
        results = self._pool.results
        self._pool.results = [result for result in results if result["rollout"] > version]
        games: list[Any] = []
        for result in results:
            self.failed |= {int(player): fault for player, fault in result["failed"].items()}
            games += result["games"] if result["rollout"] == version else []
        return [FinishedGame.from_json(game) for _, game in sorted(games)]

    def drain_faults(self) -> list[str]:
        """Return reports of what was kept out of the batch since the last call."""
        faults, self._pool.faults = self._pool.faults, []
        return faults

    def seconds(self) -> tuple[float, float]:
        """Return the seconds spent in environments and in inference so far, the mean over workers."""
        total = self._slab["seconds"].sum(axis=0) / self.workers
        return float(total[0]), float(total[1])

    def close(self) -> None:
        """End the workers and free the shared memory."""
        self._pool.close()
        self._rollouts = []
        self._slab.close()

    def _request(self, rollout: int) -> None:
        self._send({"rollout": rollout, "version": max(rollout - self.lag, 0)})
        self._next_request = rollout + 1

    def _send(self, message: dict[str, Any]) -> None:
        players, self._new_players = self._new_players, []
        self._pool.send(message | {"players": players})

    def _where(self, worker: int) -> str:
        steps, env = (int(n) for n in self._slab["progress"][worker])
        index = self._envs[worker][0] + env
        return f"Env {index} (seed {env_seeds(self._seed, index, 1)[0]}, step {steps})"


def work(job: ActorJob, slab: Slab, requests: Requests, answer: Answer) -> None:
    """The worker's program: make the environments, then fill rollouts on request until the parent is gone."""
    progress = slab["progress"][job.worker]
    vector = make_vector(job.choice, job.envs, seed=job.seed, first=job.first, progress=progress)
    roster = Players(lambda name: load_agent(name, vector.spec, job.choice, job.sampled))
    actor = Actor(
        vector, job.design, seed=job.seed, roster=roster, memory=job.memory, first=job.first, progress=progress
    )
    own_envs = slice(job.first, job.first + job.envs)
    low, high = job.first * vector.spec.agents, (job.first + job.envs) * vector.spec.agents
    rollouts = [view_rollout(slab, f"{b}/").part(low, high) for b in range(job.buffers)]
    starts = [StartState(slab, f"start{slot}/", own_envs, slice(low, high)) for slot in range(2)]
    answer({"answer": "ready"})
    while True:
        request = requests.get()
        roster.add(request["players"])
        assignments = slab["assignments"][request["version"] % 2][own_envs]
        if "start" in request:
            start = starts[request["start"] % 2]
            if request["restore"]:
                actor.restore(start.read(), assignments)
            else:
                actor.reset(assignments)
                start.write(actor.snapshot())
        else:
            rollout = request["rollout"]
            actor.policy.load(slab["params_and_stats"][request["version"] % 2])
            actor.fill(rollouts[rollout % job.buffers], assignments)
            starts[(rollout + 1) % 2].write(actor.snapshot())
            slab["seconds"][job.worker] = actor.seconds
            games = [(t, game.to_json()) for t, game in actor.drain_finished()]
            result = {"rollout": rollout, "games": games, "failed": roster.faults}
            answer({"answer": f"done {rollout}", "faults": actor.guard.drain(), "results": [result]})


class StartState:
    """One worker's share of the state from which a rollout starts."""

    def __init__(self, slab: Slab, prefix: str, envs: slice, rows: slice) -> None:
        names = [name.removeprefix(prefix) for name in slab.fields if name.startswith(prefix)]
        self._views = {name: slab[prefix + name][rows if name.startswith("row/") else envs] for name in names}

    def write(self, state: dict[str, Array]) -> None:
        """Store a snapshot."""
        for name, view in self._views.items():
            view[:] = state[name]

    def read(self) -> dict[str, Array]:
        """Return a copy of the stored snapshot."""
        return {name: view.copy() for name, view in self._views.items()}


if __name__ == "__main__":
    serve(work)
