"""The worker's side of a `WorkerPool`: receive the job from stdin, run it, and exit with the parent."""

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
from collections.abc import Callable
from typing import Any

import cloudpickle

from slipstream import errors
from slipstream.errors import EnvFault, SlipstreamError
from slipstream.system.slab import Slab

Requests = queue.SimpleQueue[dict[str, Any]]
"""The messages of the parent, in order."""
Answer = Callable[[dict[str, Any]], None]
"""Sends a message to the parent.

`answer` is the word that `WorkerPool.gather` waits for ("ready" after the start). `faults` (strings) and `results`
(anything JSON holds) are optional; the pool collects them.
"""


def serve(work: Callable[[Any, Slab, Requests, Answer], None]) -> None:
    """Run `work(job, slab, requests, answer)`; an exception that it raises is sent to the parent."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what an environment prints goes to stderr, since stdout carries the answers
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup = json.loads(sys.stdin.buffer.readline())
    requests: Requests = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")

    try:
        # The pickle comes from our own parent over a private pipe, never from a file.
        work(cloudpickle.loads(base64.b64decode(setup["job"])), Slab.attach(setup["slab"]), requests, answer)
    except Exception as error:
        answer({"error": _describe(error)})
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(3)


def _read_requests(requests: Requests) -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)  # end of file: the parent closed the pipe or died


def _die_with_parent() -> None:
    """On Linux, have the kernel kill this process with its parent, even while an environment hangs."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _describe(error: Exception) -> dict[str, Any]:
    if isinstance(error, EnvFault):
        return {"env": error.env, "seed": error.seed, "step": error.step, "report": error.report}
    if isinstance(error, SlipstreamError):
        ours = (k for k in type(error).__mro__ if vars(errors).get(k.__name__) is k)
        simple = (k.__name__ for k in ours if "__init__" not in vars(k))  # made of a message and a hint
        return {"report": error.message, "hint": error.hint, "kind": next(simple, "SlipstreamError")}
    return {"report": f"A worker raised:\n{traceback.format_exc()}"}
