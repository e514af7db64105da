"""A worker process of the actors collector: reads lines on stdin, fills rollouts in the slab, answers on stdout."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any

import cloudpickle


def main() -> None:
    """Take the job from the first line, then serve until the parent is gone."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what an environment prints must not be taken for an answer
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parcel = json.loads(sys.stdin.buffer.readline())
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")

    try:
        # The parcel comes from our own parent over a private pipe, never from a file.
        _serve(cloudpickle.loads(base64.b64decode(parcel["job"])), parcel["slab"], requests, answer)
    except Exception as error:
        answer({"error": _describe(error)})
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(3)


def _serve(job: Any, slab_description: Any, requests: queue.Queue[dict[str, Any]], answer: Any) -> None:
    from slipstream.agents.specs import load_agent
    from slipstream.collect.actor import Actor
    from slipstream.collect.rollout import view_rollout
    from slipstream.collect.vectors import make_vector
    from slipstream.core.slab import Slab

    slab = Slab.attach(slab_description)
    progress = slab["progress"][job.worker]
    vector = make_vector(job.choice, job.envs, seed=job.seed, first=job.first, progress=progress)
    opponent = load_agent(job.opponent, vector.spec, job.choice) if job.opponent else None
    actor = Actor(vector, job.shape, seed=job.seed, first=job.first, opponent=opponent, progress=progress)
    low, high = job.first * vector.spec.agents, (job.first + job.envs) * vector.spec.agents
    rollouts = [view_rollout(slab, f"{b}/").part(low, high) for b in range(job.buffers)]
    starts = [_Start(slab, f"start{slot}/", (job.first, job.first + job.envs), (low, high)) for slot in range(2)]
    answer({"said": "ready"})
    while True:
        request = requests.get()
        if "start" in request:
            slot = starts[request["start"] % 2]
            if request["restore"]:
                actor.restore(slot.read())
            else:
                actor.reset()
                slot.write(actor.snapshot())
        else:
            k = request["go"]
            actor.acting.load(slab["pack"][request["version"] % 2])
            actor.fill(rollouts[k % job.buffers])
            starts[(k + 1) % 2].write(actor.snapshot())
            slab["seconds"][job.worker] = actor.seconds
            faults, actor.faults = [str(fault) for fault in actor.faults], []
            answer({"said": f"done {k}", "faults": faults})


class _Start:
    """This worker's share of where a rollout starts from."""

    def __init__(self, slab: Any, prefix: str, envs: tuple[int, int], rows: tuple[int, int]) -> None:
        self._views = {}
        for name in slab.fields:
            if name.startswith(prefix):
                key = name[len(prefix) :]
                self._views[key] = slab[name][slice(*(envs if key.startswith("env/") else rows))]

    def write(self, state: dict[str, Any]) -> None:
        for name, view in self._views.items():
            view[:] = state[name]

    def read(self) -> dict[str, Any]:
        return {name: view.copy() for name, view in self._views.items()}


def _listen(requests: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)  # the parent closed the pipe or died: nobody wants the rest


def _die_with_parent() -> None:
    """On Linux, ask to be killed with the parent even while an environment hangs; elsewhere the pipe must do."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _describe(error: Exception) -> dict[str, Any]:
    from slipstream.core.errors import SlipstreamError
    from slipstream.vector.serial import EnvFault

    if isinstance(error, EnvFault):
        return {"env": error.env, "seed": error.seed, "step": error.step, "report": error.report}
    if isinstance(error, SlipstreamError):
        return {"report": error.message, "hint": error.hint, "code": error.code}
    return {"report": traceback.format_exc()}


if __name__ == "__main__":
    main()
