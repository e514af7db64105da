"""A worker process of the actors collector: fills rollouts in the slab when it is asked to."""

from __future__ import annotations

from typing import Any

from slipstream.agents.specs import load_agent
from slipstream.collect.actor import Actor
from slipstream.collect.rollout import view_rollout
from slipstream.contracts import Array
from slipstream.play.assignments import OpponentRoster
from slipstream.system.slab import Slab
from slipstream.system.worker_main import Answer, Requests, serve
from slipstream.vector.make import make_vector


def work(job: Any, slab: Slab, requests: Requests, answer: Answer) -> None:
    """Make the environments, then fill rollouts until the parent is gone."""
    progress = slab["progress"][job.worker]
    vector = make_vector(job.choice, job.envs, seed=job.seed, first=job.first, progress=progress)
    roster = OpponentRoster(lambda name: load_agent(name, vector.spec, job.choice, job.sampled))
    actor = Actor(
        vector, job.design, seed=job.seed, roster=roster, memory=job.memory, first=job.first, progress=progress
    )
    own = slice(job.first, job.first + job.envs)
    low, high = job.first * vector.spec.agents, (job.first + job.envs) * vector.spec.agents
    rollouts = [view_rollout(slab, f"{b}/").part(low, high) for b in range(job.buffers)]
    starts = [Start(slab, f"start{slot}/", (job.first, job.first + job.envs), (low, high)) for slot in range(2)]
    answer({"said": "ready"})
    while True:
        request = requests.get()
        roster.add(request["players"])
        wanted = slab["seats"][request["version"] % 2][own]
        if "start" in request:
            start = starts[request["start"] % 2]
            if request["restore"]:
                actor.restore(start.read(), wanted)
            else:
                actor.reset(wanted)
                start.write(actor.snapshot())
        else:
            k = request["go"]
            actor.acting.load(slab["params_and_stats"][request["version"] % 2])
            actor.fill(rollouts[k % job.buffers], wanted)
            starts[(k + 1) % 2].write(actor.snapshot())
            slab["seconds"][job.worker] = actor.seconds
            told = {"rollout": k, "matches": [(t, match.to_json()) for t, match in actor.drain()], "failed": roster.faults}
            answer({"said": f"done {k}", "faults": actor.guard.drain(), "told": [told]})


class Start:
    """This worker's share of where a rollout starts from."""

    def __init__(self, slab: Slab, prefix: str, envs: tuple[int, int], rows: tuple[int, int]) -> None:
        self._views: dict[str, Array] = {}
        for name in slab.fields:
            if name.startswith(prefix):
                key = name[len(prefix) :]
                self._views[key] = slab[name][slice(*(rows if key.startswith("row/") else envs))]

    def write(self, state: dict[str, Array]) -> None:
        """Keep a snapshot."""
        for name, view in self._views.items():
            view[:] = state[name]

    def read(self) -> dict[str, Array]:
        """Give the snapshot back."""
        return {name: view.copy() for name, view in self._views.items()}


if __name__ == "__main__":
    serve(work)
