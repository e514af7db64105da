"""The user's own agents: a function, a class or an object that chooses actions from the env's own observations.

    def drive(obs): ...                  a function of one observation; `mask` is passed if it takes it
    class Pilot: act(obs), reset(seed)   one instance per row, reset at the start of every episode; `reset` is optional
    Pilot(gain=2)                        an object: copied for every row if it has `reset`, else shared by all rows
    batched = True                       `act` takes a batch of observations and returns a batch of actions
    state = np.array(...)                all that the object remembers: saved in checkpoints, so a resumed run is exact

`seed` is drawn from the row's own RNG stream, so games do not depend on how envs are split over processes.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from slipstream.agents import guarded
from slipstream.agents.guarded import Deadline, GuardedAgent, Late, WrongAction, short_text, take
from slipstream.agents.simple import BatchAgent
from slipstream.agents.trained import TrainedAgent
from slipstream.contracts import Array, EnvSpec
from slipstream.envs.adapters.action_spaces import action_space
from slipstream.envs.adapters.observation_spaces import leaves, obs_decoder, obs_spec, observation_space
from slipstream.errors import ConfigError, user_frames
from slipstream.policies.design import ActInputs
from slipstream.system.rng import uniform

PREFIX = "python:"
"""The prefix of agents that were given as Python objects."""


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
    if isinstance(value, TrainedAgent) and value.sampled:
        raise ConfigError(
            f"{value.name} was loaded with sampled=True, which does not apply here.",
            f'pass "{value.name}", and sampled=True to the function that plays',
        )
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


class OwnAgent(GuardedAgent):
    """Acts with the user's function or object; see the top of this file."""

    def __init__(self, name: str, spec: EnvSpec, given: Any) -> None:
        seen, chosen = _spaces(spec)
        self._encode = _ActionEncoder(chosen, spec)
        self._shared, self._make = _prototype(name, given)
        self._batched = bool(getattr(self._shared, "batched", False))
        self._reset = getattr(self._shared, "reset", None)
        self._initial = np.array(self._shared.state) if hasattr(self._shared, "state") else None
        """The state with which an episode begins."""
        self.hides_memory = self._make is not None
        """Whether its objects may remember what no checkpoint holds."""
        for part, why in (("reset", self._reset), ("state", self._initial)):
            if self._batched and why is not None:
                raise ConfigError(
                    f"`{name}` is batched and has `{part}`, but the rows of a batch belong to different games.",
                    "leave out `batched`, or make it a function of the observations alone",
                )
        act = _act_method(self._shared, name)
        self._with_mask = "mask" in _parameters(act)
        self._instances: dict[int, Any] = {}
        """The object of each row, where every row has its own."""
        super().__init__(name, spec, obs_decoder(seen), 0 if self._initial is None else self._initial.size)

    def choose(self, inputs: ActInputs, out: Array, restart: Callable[[], None]) -> None:
        """Act for some rows, one after another or, if the agent is batched, in one call."""
        rows, obs, mask, states, streams = inputs
        seen = self._decode(np.ascontiguousarray(obs[rows]))
        if self._batched:
            actions = self._act_batch(rows, seen, mask)
        else:
            actions = []
            for place, row in enumerate(rows.tolist()):
                restart()
                actions.append(self._act(row, take(seen, place), mask[row].copy(), streams, states))
        out[rows] = self._encode(actions)

    def _act_batch(self, rows: Array, seen: Any, mask: Array) -> list[Any]:
        """The user's actions for a batch."""
        actions = _act_method(self._shared, self.name)(seen, **({"mask": mask[rows]} if self._with_mask else {}))
        found = next((size for size in _batch_sizes(actions) if size != len(rows)), len(rows))
        if found != len(rows):
            raise WrongAction(f"returned {found} actions for a batch of {len(rows)} observations", 0)
        return [take(actions, place) for place in range(len(rows))]

    def _act(self, row: int, seen: Any, mask: Array, streams: Array, states: Array) -> Any:
        """The user's action for one row."""
        self._row = row
        one, fresh = self._shared, states[row, 0] == 0
        if self._make is not None:
            fresh = fresh or row not in self._instances  # a resumed run has none yet
            if row not in self._instances:
                self._instances[row] = self._make()
            one = self._instances[row]
        if self._initial is not None:
            kept = states[row, 1:].astype(self._initial.dtype).reshape(self._initial.shape)
            one.state = self._initial.copy() if fresh else kept
        if fresh and self._reset is not None:
            _reset(one, int(uniform(streams, row) * 2**24))
        action = _act_method(one, self.name)(seen, **({"mask": mask} if self._with_mask else {}))
        if self._initial is not None:
            states[row, 1:] = self._stored(one.state)
        return action

    def _stored(self, state: Any) -> Array:
        """A state as checkpoints hold it; float32 must hold whole numbers exactly."""
        found = np.asarray(state)
        stored = found.astype(np.float32).reshape(-1)
        if found.dtype.kind in "iu" and not np.array_equal(stored, found.reshape(-1)):
            raise ValueError(f"`state` holds {short_text(found)}, and checkpoints hold whole numbers up to 2**24")
        return stored


def _spaces(spec: EnvSpec) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """The env's own observation and action spaces, or those of its rows if it has none."""
    own = spec.spaces
    if own is not None and obs_spec(own[0], spec.name) == spec.obs:
        return own[0], own[1]
    return observation_space(spec.obs), action_space(spec.action)


def _prototype(name: str, given: Any) -> tuple[Any, Callable[[], Any] | None]:
    """An object to act with, and how to make one for each row; None if one serves all rows."""
    make: Callable[[], Any] | None = None
    if inspect.isclass(given) or (inspect.isfunction(given) and not _parameters(given)):
        made, make = _made(name, given), given
    else:
        made, make = given, (lambda: copy.deepcopy(given)) if hasattr(given, "reset") else None
    shared = hasattr(made, "state") or getattr(made, "batched", False)
    return made, None if shared else make


def _made(name: str, make: Callable[[], Any]) -> Any:
    hint = "name a class whose constructor needs no arguments, an object, or a function act(obs)"
    try:
        with Deadline(guarded.DEADLINE_S):
            return make()
    except Late:
        raise ConfigError(f"The agent `{name}` was not made within {guarded.DEADLINE_S:g} s.", hint) from None
    except (Exception, SystemExit) as error:
        frames = user_frames(error)
        raise ConfigError(
            f"The agent `{name}` could not be made: {type(error).__name__}: {error}"
            + (f"\n{frames}" if frames else ""),
            hint,
        ) from error


def _act_method(one: Any, name: str) -> Callable[..., Any]:
    act = getattr(one, "act", one)
    if not callable(act):
        raise ConfigError(
            f"`{name}` is a {type(one).__name__}, which is not an agent.",
            "an agent is a function act(obs), or an object with a method `act(obs)`",
        )
    return act  # type: ignore[no-any-return]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; none if Python does not know them, as for some of C."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def _reset(one: Any, seed: int) -> None:
    """Call `reset` at the start of an episode, with the seed if it takes one."""
    parameters = _parameters(one.reset).values()
    takes_seed = any(p.name == "seed" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    one.reset(**({"seed": seed} if takes_seed else {}))


def _batch_sizes(actions: Any) -> list[int | str]:
    """The number of actions in each array of a batch."""
    if isinstance(actions, Mapping | tuple) and actions:
        parts = actions.values() if isinstance(actions, Mapping) else actions
        return [size for part in parts for size in _batch_sizes(part)]
    return [len(actions) if hasattr(actions, "__len__") else "single"]


class _ActionEncoder:
    """Turns a list of the env's own actions into actions [rows, parts]; a wrong one raises `WrongAction`."""

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
        except WrongAction as error:
            raise WrongAction(str(error), place) from None

    def _wrong(self, action: Any, place: int) -> WrongAction:
        return WrongAction(f"returned {short_text(action)}, which is not an action of {self._space}", place)


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
