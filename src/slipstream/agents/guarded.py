"""The base class of agents whose code or model is not ours: what they do wrong becomes an `AgentFault`.

A fault names the agent, env, step and observation. The first column of a row's recurrent state counts the steps of its
episode: callers clear the state when an episode starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import numpy as np

from slipstream.agents.simple import BatchAgent
from slipstream.contracts import Array, EnvSpec
from slipstream.errors import AgentFault, SlipstreamError, user_frames
from slipstream.policies.design import ActInputs

DEADLINE_S = 30.0
"""Seconds after which an agent that has not answered has failed."""
AGAIN_S = 1.0
"""Seconds after which an agent that caught the interruption is interrupted again."""


class Late(BaseException):
    """The deadline has passed. Not an `Exception`, so that an agent which catches those is interrupted too."""


class WrongAction(Exception):
    """The action for position `place` of a batch is not one of the env's action space."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


class GuardedAgent(BatchAgent):
    """An agent that may raise, hang or return something that is not an action."""

    def __init__(self, name: str, spec: EnvSpec, decode: Callable[[Array], Any], state_size: int = 0) -> None:
        """`decode` turns rows into a batch of observations; `state_size` is that of the agent's own state."""
        self.name, self.obs, self.action = name, spec.obs, spec.action
        self._decode = decode
        self._first_option = np.cumsum([0, *spec.action.sizes[:-1]])
        """The column of a mask at which each discrete part begins."""
        self._states: Array = np.zeros((0, 1 + state_size), np.float32)
        self._row = 0

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write actions [rows, parts] for a batch."""
        self.act_rows(np.arange(len(obs)), obs, mask, streams, out, self.memory(len(obs)))

    def act_rows(self, rows: Array, obs: Array, mask: Array, streams: Array, out: Array, states: Array) -> None:
        """Act for some rows of a batch, all arrays indexed by row; `states` [all rows, size] are recurrent states."""
        if not len(rows):
            return
        self._row = int(rows[0])
        deadline = Deadline(DEADLINE_S, lambda: self._late(obs, states))
        try:
            with deadline:
                self.choose(ActInputs(rows, obs, mask, states, streams), out, deadline.restart)
            if mask.shape[1]:
                self._check_mask(rows, mask, out)
        except Late:
            raise self._late(obs, states) from None
        except WrongAction as error:
            self._row = int(rows[error.place])
            raise self._fault(str(error), obs, states) from None
        except SlipstreamError as error:
            raise self._fault(f"failed: {error.message}", obs, states) from error
        except (Exception, SystemExit) as error:
            what = f"raised {type(error).__name__}: {error}"
            raise self._fault(what, obs, states, user_frames(error)) from error
        states[rows, 0] += 1

    def _check_mask(self, rows: Array, mask: Array, out: Array) -> None:
        """Raise for an option that the mask forbids; a part for which nothing is allowed may have any."""
        given = mask[rows]
        options = out[rows, : len(self._first_option)].astype(np.int64)
        allowed = np.take_along_axis(given, options + self._first_option, axis=1) > 0
        allowed |= np.add.reduceat(given, self._first_option, axis=1) == 0
        if not allowed.all():
            place, part = (int(one) for one in np.argwhere(~allowed)[0])
            where = f" for part {part} of its action" if len(self._first_option) > 1 else ""
            raise WrongAction(f"returned {options[place, part]}{where}, which the action mask forbids", place)

    def choose(self, inputs: ActInputs, out: Array, restart: Callable[[], None]) -> None:
        """Write the actions of `inputs.rows` to `out` [all rows, parts]; `restart` begins the deadline again."""
        raise NotImplementedError

    def memory(self, rows: int) -> Array:
        """The recurrent states [rows, size]; another number of rows resets them."""
        if len(self._states) != rows:
            self._states = np.zeros((rows, self._states.shape[1]), np.float32)
        return self._states

    def begin(self, rows: Array | None = None) -> None:
        """Clear the recurrent states of some rows, or of all, at the start of an episode."""
        self._states[slice(None) if rows is None else rows] = 0

    def _late(self, obs: Array, states: Array) -> AgentFault:
        return self._fault(f"did not answer within {DEADLINE_S:g} s", obs, states)

    def _fault(self, what: str, obs: Array, states: Array, report: str = "") -> AgentFault:
        row = self._row
        seen = take(self._decode(np.ascontiguousarray(obs[row][None])), 0)
        return AgentFault(self.name, what, row, int(states[row, 0]), short_text(seen), report)


_stuck: dict[int, AgentFault] = {}
"""Faults of agents that could not be interrupted, by the number of the thread in which they still run."""


def stuck_fault(thread: int | None) -> AgentFault | None:
    """The fault of an agent that blocks a thread for good; no exception can reach it there."""
    return _stuck.get(thread or 0)


def take(seen: Any, place: int) -> Any:
    """One observation of a batch."""
    if isinstance(seen, Mapping):
        return {key: take(value, place) for key, value in seen.items()}
    if isinstance(seen, tuple):
        return tuple(take(value, place) for value in seen)
    return seen[place]


def short_text(seen: Any, limit: int = 600) -> str:
    """An observation or an action in at most a few lines; every field of a dict is shown."""
    if isinstance(seen, Mapping) and seen:
        fields = (f"{key!r}: {short_text(value, limit // len(seen))}" for key, value in seen.items())
        return "{" + ", ".join(fields) + "}"
    with np.printoptions(precision=4, threshold=40, edgeitems=4):
        text = repr(seen)
    return text if len(text) <= limit else f"{text[:limit]} ..."


class Deadline:
    """A context in which `Late` is raised in this thread `seconds` after the start or the last `restart`.

    A signal interrupts the main thread even in a blocking call. Other threads are interrupted at their next bytecode;
    for a thread that stays blocked, `stuck_fault` then has the fault that `make_fault` makes.
    """

    def __init__(self, seconds: float, make_fault: Callable[[], AgentFault] | None = None) -> None:
        self._seconds, self._make_fault = seconds, make_fault
        self._with_signal = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
        self._stack = contextlib.ExitStack()
        self._until = 0.0

    def __enter__(self) -> None:
        self._stack.enter_context(self._signalled() if self._with_signal else self._watched())

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def restart(self) -> None:
        """Begin the time again."""
        if self._with_signal:
            signal.setitimer(signal.ITIMER_REAL, self._seconds, AGAIN_S)
        else:
            self._until = time.monotonic() + self._seconds

    @contextlib.contextmanager
    def _signalled(self) -> Iterator[None]:
        def interrupt(number: int, frame: FrameType | None) -> None:
            raise Late

        before = signal.signal(signal.SIGALRM, interrupt)
        self.restart()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        over, ident = threading.Event(), threading.get_ident()

        def watch() -> None:
            tries = 0
            while not over.wait(max(0.0, self._until - time.monotonic())):
                if time.monotonic() >= self._until:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Late))
                    self._until, tries = time.monotonic() + AGAIN_S, tries + 1
                    if tries > 1 and self._make_fault is not None:
                        _stuck[ident] = self._make_fault()

        self.restart()
        threading.Thread(target=watch, name="deadline of an agent", daemon=True).start()
        try:
            yield
        finally:
            over.set()
            _stuck.pop(ident, None)
