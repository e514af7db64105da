"""The user's own agents: a function, a class or an object that chooses actions from the env's own observations.

    def drive(obs): ...                  a function of one observation; `mask` is passed if it takes it
    class Pilot: act(obs), reset(seed)   one instance per row, reset at the start of every episode; `reset` is optional
    Pilot(gain=2)                        an object: copied for every row if it has `reset`, else shared by all rows
    batched = True                       `act` takes a batch of observations and returns a batch of actions
    state = np.array(...)                all that the object remembers: saved in checkpoints, so a resumed run is exact

`seed` is drawn from the row's own RNG stream, so games do not depend on how envs are split over processes. The first
column of a row's recurrent state counts the steps of its episode: callers clear the state when an episode starts.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import inspect
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from types import FrameType
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.agents.simple import BatchAgent
from slipstream.contracts import Array, EnvSpec
from slipstream.envs.adapters.action_spaces import action_space
from slipstream.envs.adapters.observation_spaces import leaves, obs_decoder, obs_spec, observation_space
from slipstream.errors import AgentFault, ConfigError
from slipstream.system.rng import uniform

DEADLINE_S = 30.0
"""Seconds after which an agent that has not answered has failed."""
PREFIX = "python:"
"""The prefix of agents that were given as Python objects."""


class _Late(Exception):
    """The deadline has passed."""


def agent_name(given: Any) -> str:
    """The name of an agent that was given as a Python object."""
    name = getattr(given, "__name__", None) or type(given).__name__
    return re.sub(r"\W", "", name) or "agent"


def register_agents(value: Any, agents: dict[str, Any]) -> Any:
    """Replace agents that are Python objects by their specs, in a single value or a list, and add them to `agents`.

    A trained agent that was loaded from a run is replaced by the spec of its checkpoint.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return [register_agents(one, agents) for one in value]
    if isinstance(value, BatchAgent) and not isinstance(value, OwnAgent):
        return value.name
    name = next((name for name, known in agents.items() if known is value), "")
    if not name:
        base = name = agent_name(value)
        number = 2
        while name in agents:
            name, number = f"{base}{number}", number + 1
        agents[name] = value
    return PREFIX + name


class OwnAgent(BatchAgent):
    """Acts with the user's function or object; see the top of this file."""

    def __init__(self, name: str, spec: EnvSpec, given: Any) -> None:
        self.name, self.obs, self.action = name, spec.obs, spec.action
        seen, chosen = _spaces(spec)
        self._decode, self._encode = obs_decoder(seen), _ActionEncoder(chosen, spec)
        self._shared, self._make = _prototype(name, given)
        self._batched = bool(getattr(self._shared, "batched", False))
        self._reset = getattr(self._shared, "reset", None)
        if self._batched and self._reset is not None:
            raise ConfigError(
                f"`{name}` is batched and has `reset`, but the rows of a batch belong to different games.",
                "leave out `batched`, or make it a function of the observations alone",
            )
        act = _act_method(self._shared, name)
        self._with_mask = "mask" in inspect.signature(act).parameters
        self._state_shape = np.shape(self._shared.state) if hasattr(self._shared, "state") else None
        self._instances: dict[int, Any] = {}
        """The object of each row, where every row has its own."""
        self._states: Array = np.zeros((0, self._state_size), np.float32)
        self._row, self._step = 0, 0

    @property
    def _state_size(self) -> int:
        """The step counter and, if the object has one, its state."""
        return 1 + (int(np.prod(self._state_shape)) if self._state_shape is not None else 0)

    def act_into(self, obs: Array, mask: Array, streams: Array, out: Array) -> None:
        """Write actions [rows, parts] for a batch."""
        self.act_rows(np.arange(len(obs)), obs, mask, streams, out, self.memory(len(obs)))

    def act_rows(self, rows: Array, obs: Array, mask: Array, streams: Array, out: Array, states: Array) -> None:
        """Act for some rows, one after another or, if the agent is batched, in one call."""
        if not len(rows):
            return
        seen = self._decode(np.ascontiguousarray(obs[rows]))
        with self._watched(rows, obs, states):
            if self._batched:
                actions = self._act_batch(rows, seen, mask, states)
            else:
                actions = [
                    self._act(row, _take(seen, place), mask[row], streams, states)
                    for place, row in enumerate(rows.tolist())
                ]
            out[rows] = self._encode(actions)
        states[rows, 0] += 1

    def memory(self, rows: int) -> Array:
        """The recurrent states [rows, size]; another number of rows resets them."""
        if len(self._states) != rows:
            self._states = np.zeros((rows, self._state_size), np.float32)
        return self._states

    def begin(self, rows: Array | None = None) -> None:
        """Clear the recurrent states of some rows, or of all, at the start of an episode."""
        self._states[slice(None) if rows is None else rows] = 0

    def _act_batch(self, rows: Array, seen: Any, mask: Array, states: Array) -> list[Any]:
        """The user's actions for a batch."""
        self._row, self._step = int(rows[0]), int(states[rows[0], 0])
        actions = _act_method(self._shared, self.name)(seen, **({"mask": mask[rows]} if self._with_mask else {}))
        found = _batch_size(actions)
        if found != len(rows):
            raise _WrongAction(f"returned {found} actions for a batch of {len(rows)} observations", 0)
        return [_take(actions, place) for place in range(len(rows))]

    def _act(self, row: int, seen: Any, mask: Array, streams: Array, states: Array) -> Any:
        """The user's action for one row."""
        self._row, self._step = row, int(states[row, 0])
        one, fresh = self._shared, self._step == 0
        if self._make is not None:
            fresh = fresh or row not in self._instances  # a resumed run has none yet
            if row not in self._instances:
                self._instances[row] = self._make()
            one = self._instances[row]
        if fresh and self._reset is not None:
            _reset(one, int(uniform(streams, row) * 2**24))
        elif self._state_shape is not None and not fresh:
            one.state = states[row, 1:].reshape(self._state_shape).copy()
        action = _act_method(one, self.name)(seen, **({"mask": mask} if self._with_mask else {}))
        if self._state_shape is not None:
            states[row, 1:] = np.asarray(one.state, np.float32).reshape(-1)
        return action

    @contextlib.contextmanager
    def _watched(self, rows: Array, obs: Array, states: Array) -> Iterator[None]:
        """Turn an exception or a missed deadline into an `AgentFault` that names the row and its observation."""
        try:
            with time_limit(DEADLINE_S):
                yield
        except _Late:
            raise self._fault(f"did not answer within {DEADLINE_S:g} s", obs) from None
        except _WrongAction as error:
            self._row = int(rows[error.place])
            self._step = int(states[self._row, 0])
            raise self._fault(str(error), obs) from None
        except Exception as error:
            raise self._fault(f"raised {type(error).__name__}: {error}", obs, _user_frames(error)) from error

    def _fault(self, what: str, obs: Array, report: str = "") -> AgentFault:
        seen = _take(self._decode(np.ascontiguousarray(obs[self._row][None])), 0)
        return AgentFault(self.name, what, self._row, self._step, _short(seen), report)


def _spaces(spec: EnvSpec) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """The env's own observation and action spaces, or those of its rows if it has none."""
    own = spec.spaces
    if own is not None and obs_spec(own[0], spec.name) == spec.obs:
        return own[0], own[1]
    return observation_space(spec.obs), action_space(spec.action)


def _prototype(name: str, given: Any) -> tuple[Any, Callable[[], Any] | None]:
    """An object to act with, and how to make one for each row; None if one serves all rows."""
    make: Callable[[], Any] | None = None
    if inspect.isclass(given) or (inspect.isfunction(given) and not inspect.signature(given).parameters):
        made, make = _made(name, given), given
    else:
        made, make = given, (lambda: copy.deepcopy(given)) if hasattr(given, "reset") else None
    shared = hasattr(made, "state") or getattr(made, "batched", False)
    return made, None if shared else make


def _made(name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        raise ConfigError(
            f"The agent `{name}` could not be made: {type(error).__name__}: {error}",
            "name a class whose constructor needs no arguments, an object, or a function act(obs)",
        ) from error


def _act_method(one: Any, name: str) -> Callable[..., Any]:
    act = getattr(one, "act", one)
    if not callable(act):
        raise ConfigError(
            f"`{name}` is a {type(one).__name__}, which is not an agent.",
            "an agent is a function act(obs), or an object with a method `act(obs)`",
        )
    return act  # type: ignore[no-any-return]


def _reset(one: Any, seed: int) -> None:
    """Call `reset` at the start of an episode, with the seed if it takes one."""
    parameters = inspect.signature(one.reset).parameters.values()
    takes_seed = any(p.name == "seed" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    one.reset(**({"seed": seed} if takes_seed else {}))


def _take(seen: Any, place: int) -> Any:
    """One observation of a batch."""
    if isinstance(seen, Mapping):
        return {key: _take(value, place) for key, value in seen.items()}
    if isinstance(seen, tuple):
        return tuple(_take(value, place) for value in seen)
    return seen[place]


def _batch_size(actions: Any) -> int | str:
    """The number of actions in a batch."""
    while isinstance(actions, Mapping | tuple) and actions:
        actions = next(iter(actions.values())) if isinstance(actions, Mapping) else actions[0]
    return len(actions) if hasattr(actions, "__len__") else "single"


def _short(seen: Any) -> str:
    """An observation in at most a few lines."""
    with np.printoptions(precision=4, threshold=40, edgeitems=4):
        text = repr(seen)
    return text if len(text) <= 600 else f"{text[:600]} ..."


def _user_frames(error: BaseException) -> str:
    """The traceback from the user's code on."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    return "".join(traceback.format_list(frames)).rstrip()


class _WrongAction(Exception):
    """Action number `place` of a list is not one of the env's action space."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


class _ActionEncoder:
    """Turns a list of the env's own actions into actions [rows, parts]; a wrong one raises `_WrongAction`."""

    def __init__(self, space: spaces.Space[Any], spec: EnvSpec) -> None:
        self._space, self._leaves, self._action = space, leaves(space), spec.action
        self._start = np.concatenate(
            [np.broadcast_to(getattr(one.space, "start", 0), one.space.shape or ()).reshape(-1) for one in self._leaves]
        ).astype(np.float64)
        continuous = [[isinstance(one.space, spaces.Box)] * prod(one.space.shape or ()) for one in self._leaves]
        self._order = np.argsort([column for leaf in continuous for column in leaf], kind="stable")
        """The columns in the order of an action's parts: discrete ones first."""
        self._low, self._high = np.array(spec.action.low), np.array(spec.action.high)
        self._sizes = np.array(spec.action.sizes)

    def __call__(self, actions: Sequence[Any]) -> Array:
        """Encode all actions; continuous ones are clipped to their bounds."""
        try:
            columns = [np.array([leaf.find(one) for one in actions], np.float64) for leaf in self._leaves]
            found = np.concatenate([column.reshape(len(actions), -1) for column in columns], axis=1)
        except (TypeError, ValueError, KeyError, IndexError):
            if len(actions) > 1:
                found = np.concatenate([self._alone(one, place) for place, one in enumerate(actions)])
            else:
                raise self._wrong(actions[0], 0) from None
        if found.shape[1] != len(self._start):
            raise self._wrong(actions[0], 0)
        found = (found - self._start)[:, self._order]
        options, numbers = np.split(found, [self._action.discrete_parts], axis=1)
        valid = np.isfinite(found)
        valid[:, : options.shape[1]] = (options == np.floor(options)) & (options >= 0) & (options < self._sizes)
        if not valid.all():
            place = int(np.argmin(valid.all(axis=1)))
            raise self._wrong(actions[place], place)
        numbers[:] = numbers.clip(self._low, self._high)
        return found.astype(self._action.dtype)

    def _alone(self, action: Any, place: int) -> Array:
        try:
            return self([action])
        except _WrongAction as error:
            raise _WrongAction(str(error), place) from None

    def _wrong(self, action: Any, place: int) -> _WrongAction:
        return _WrongAction(f"returned {_short(action)}, which is not an action of {self._space}", place)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `_Late` in this thread after `seconds`.

    A signal interrupts the main thread even in a blocking call. Other threads are interrupted at their next bytecode.
    """
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):

        def ring(number: int, frame: FrameType | None) -> None:
            raise _Late

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return
    ident = ctypes.c_ulong(threading.get_ident())
    timer = threading.Timer(seconds, ctypes.pythonapi.PyThreadState_SetAsyncExc, (ident, ctypes.py_object(_Late)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def name_agents(agents: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Any]:
    """Agents given as a list or by name, by name."""
    if agents is None:
        return {}
    if isinstance(agents, Mapping):
        return dict(agents)
    found: dict[str, Any] = {}
    for one in agents if isinstance(agents, list | tuple) else [agents]:
        register_agents(one, found)
    return found
