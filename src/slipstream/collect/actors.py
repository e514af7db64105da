"""The actors collector: W processes, each with environments and a policy copy, hand over whole rollouts in a slab.

Rollout k is made with weights k - lag, in buffer k mod (lag + 1). There is no message per step: one line asks a worker
for a rollout, one line says that it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.collect.rollout import Rollout, copy_rollout, empty_rollout, rollout_fields, view_rollout
from slipstream.contracts import Array, EnvSpec
from slipstream.envs.registry import EnvChoice
from slipstream.play.assignments import FinishedGame
from slipstream.policies.design import Design
from slipstream.system.rng import env_seeds
from slipstream.system.slab import Field, Slab
from slipstream.system.worker_pool import WorkerPool


@dataclass(frozen=True)
class ActorJob:
    """What one worker process is told when it starts."""

    worker: int
    choice: EnvChoice
    design: Design
    seed: int
    first: int
    envs: int
    buffers: int
    sampled: bool
    """Whether frozen players draw their actions."""
    memory: int
    """The most that one of them remembers."""


class ActorsCollector:
    """Worker processes and the slab they share with the learner."""

    def __init__(
        self, choice: EnvChoice, spec: EnvSpec, design: Design, state_fields: dict[str, Field], *, envs: int,
        workers: int, steps: int, lag: int, seed: int, sampled: bool = False, memory: int = 0,
        deadline_s: float = 60.0, zero_copy: bool = True,
    ) -> None:  # fmt: skip
        self.lag, self.workers = lag, workers
        self.failed: dict[int, str] = {}
        """Frozen players that failed, and how."""
        self._players: list[str] = []
        """Those that workers have not heard of."""
        self._seed = seed
        self._state_fields = state_fields
        self._asked = 0
        """The first rollout that nobody has been asked for."""
        buffers = lag + 1
        fields = {
            "params_and_stats": Field((2, design.params_and_stats_size), "float32"),
            "progress": Field((workers, 2), "int64"),
        }
        fields |= {"seconds": Field((workers, 2), "float64"), "seats": Field((2, envs, 3), "int64")}
        for b in range(buffers):
            fields |= {f"{b}/{name}": field for name, field in rollout_fields(spec, design, steps, envs).items()}
        for slot in range(2):
            fields |= {f"start{slot}/{name}": field for name, field in state_fields.items()}
        self._slab = Slab(fields)
        self._rollouts = [view_rollout(self._slab, f"{b}/") for b in range(buffers)]
        self._own = None if zero_copy else empty_rollout(spec, design, steps, envs)
        """What the learner gets instead of the slab's own memory, if anything."""
        self._envs = [(w * envs // workers, (w + 1) * envs // workers) for w in range(workers)]
        jobs = [
            ActorJob(w, choice, design, seed, low, high - low, buffers, sampled, memory)
            for w, (low, high) in enumerate(self._envs)
        ]
        self._crew = WorkerPool(
            "slipstream.collect.actor_worker", jobs, self._slab, deadline_s=deadline_s, where=self._where
        )

    def publish(self, version: int, params_and_stats: Array, seats: Array, players: Sequence[str] = ()) -> None:
        """Give the weights and normaliser of a version and the seats of games begun with them; let more players in."""
        self._slab["params_and_stats"][version % 2] = params_and_stats
        self._slab["seats"][version % 2] = seats
        self._players += players

    def start(self, version: int, state: dict[str, Array] | None) -> None:
        """Begin with rollout number `version`, from a snapshot if there is one."""
        if state is not None:
            for name in self._state_fields:
                self._slab[f"start{version % 2}/{name}"][:] = state[name]
        self._tell({"start": version, "version": max(version - self.lag, 0), "restore": state is not None})
        for rollout in range(version, version + self.lag + 1):
            self._ask(rollout)

    def ahead(self, version: int) -> None:
        """Let the workers begin with the rollout that the weights of `version` are for, unless they have."""
        if self._asked == version + self.lag:
            self._ask(version + self.lag)

    def collect(self, version: int) -> Rollout:
        """Wait for rollout number `version`; at lag 1 the next one is already being made."""
        self.ahead(version)
        self._crew.gather(f"done {version}")
        made = self._rollouts[version % (self.lag + 1)]
        return made if self._own is None else copy_rollout(made, self._own)

    def snapshot(self, version: int) -> dict[str, Array]:
        """What rollout number `version`, the next one to be trained on, started from."""
        return {name: self._slab[f"start{version % 2}/{name}"].copy() for name in self._state_fields}

    def matches(self, version: int) -> list[FinishedGame]:
        """The games that ended in rollout number `version`, whoever played them, in the order of time."""
        told, self._crew.told = self._crew.told, []
        self._crew.told = [one for one in told if one["rollout"] > version]
        found: list[Any] = []
        for one in told:
            self.failed |= {int(player): fault for player, fault in one["failed"].items()}
            found += one["matches"] if one["rollout"] == version else []
        return [FinishedGame.from_json(match) for _, match in sorted(found)]

    def drain_faults(self) -> list[str]:
        """What was kept out of the batch since the last call."""
        faults, self._crew.faults = self._crew.faults, []
        return faults

    def seconds(self) -> tuple[float, float]:
        """Time spent in environments and in inference so far, added up over workers and divided by them."""
        total = self._slab["seconds"].sum(axis=0) / self.workers
        return float(total[0]), float(total[1])

    def close(self) -> None:
        """End the workers and let go of the memory."""
        self._crew.close()
        self._rollouts = []
        self._slab.close()

    def _ask(self, rollout: int) -> None:
        self._tell({"go": rollout, "version": max(rollout - self.lag, 0)})
        self._asked = rollout + 1

    def _tell(self, message: dict[str, Any]) -> None:
        players, self._players = self._players, []
        self._crew.tell(message | {"players": players})

    def _where(self, worker: int) -> str:
        steps, env = (int(n) for n in self._slab["progress"][worker])
        index = self._envs[worker][0] + env
        return f"Env {index} (seed {env_seeds(self._seed, index, 1)[0]}, step {steps})"
