"""The worker's end of a crew: takes its job from stdin, serves it, and goes when the parent goes."""

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

from slipstream.errors import EnvFault, SlipstreamError
from slipstream.system.slab import Slab

Requests = queue.SimpleQueue[dict[str, Any]]
Answer = Callable[[dict[str, Any]], None]


def serve(work: Callable[[Any, Slab, Requests, Answer], None]) -> None:
    """Run `work(job, slab, requests, answer)`; what it raises is told to the parent."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what an environment prints must not be taken for an answer
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parcel = json.loads(sys.stdin.buffer.readline())
    requests: Requests = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")

    try:
        # The parcel comes from our own parent over a private pipe, never from a file.
        work(cloudpickle.loads(base64.b64decode(parcel["job"])), Slab.attach(parcel["slab"]), requests, answer)
    except Exception as error:
        answer({"error": _describe(error)})
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(3)


def _listen(requests: Requests) -> None:
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
    if isinstance(error, EnvFault):
        return {"env": error.env, "seed": error.seed, "step": error.step, "report": error.report}
    if isinstance(error, SlipstreamError):
        return {"report": error.message, "hint": error.hint, "code": error.code}
    return {"report": f"A worker raised:\n{traceback.format_exc()}"}
