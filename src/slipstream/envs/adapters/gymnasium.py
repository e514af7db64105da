"""Any Gymnasium environment seen as rows: how it is made, what it is, what can be taken off it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from slipstream.contracts import EnvSpec, choose_target
from slipstream.envs.adapters.action_spaces import action_spec
from slipstream.envs.adapters.observation_spaces import obs_spec
from slipstream.errors import ConfigError, EnvError, did_you_mean

Env = gymnasium.Env[Any, Any]
WRAPPERS = tuple(name for name in gymnasium.wrappers.__all__ if name[0].isupper())
"""What `env.wrappers` may name."""


def make(name: str, options: Mapping[str, Any]) -> Env:
    """Make a registered environment by id.

    Gymnasium itself would import what stands before a colon in an id. A run's files name its env, so that would let
    files import modules: only the flag may.
    """
    if ":" in name:
        module, _, rest = name.partition(":")
        raise EnvError(
            f"`gymnasium:{name}` names a module to import, which only a flag may do.",
            f"write gymnasium:{rest} --import {module}",
        )
    try:
        return gymnasium.make(name, **options)
    except gymnasium.error.UnregisteredEnv as error:
        known = [key.rpartition("/")[2] for key in gymnasium.registry]
        raise EnvError(
            f"Gymnasium has no environment `{name}`.{did_you_mean(name, known)}",
            "if your own module registers it, add --import MODULE; `slipstream envs` lists what there is",
        ) from error
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise EnvError(
            f"The environment `{name}` could not be made: {error}",
            "install what it needs, or check env.options",
        ) from error


def wrap(env: Env, wrappers: Sequence[str | Mapping[str, Mapping[str, Any]]]) -> Env:
    """Put wrappers of Gymnasium's around an environment, by name: nothing that a file names is imported."""
    for wanted in wrappers:
        asked = {wanted: {}} if isinstance(wanted, str) else wanted
        for name, arguments in asked.items():
            if name not in WRAPPERS:
                raise ConfigError(
                    f"`env.wrappers`: Gymnasium has no wrapper `{name}`.{did_you_mean(name, WRAPPERS)}",
                    "wrap it where you register the env if it is one of your own",
                )
            try:
                env = getattr(gymnasium.wrappers, name)(env, **arguments)
            except Exception as error:
                raise ConfigError(
                    f"`env.wrappers`: {name} cannot be put around it: {error}",
                    f"give its arguments as {{{name}: {{argument: value}}}}; gymnasium.farama.org tells them",
                ) from error
    return env


def make_env(env: Any) -> Env:
    """An environment as it is, or, where it is none of Gymnasium's, one that has its API."""
    return env if isinstance(env, gymnasium.Env) else Adopted(env)


class Adopted(gymnasium.Env[Any, Any]):
    """An environment of the time before Gymnasium: its `reset` gives an observation alone, its `step` four things.

    What has `done` is terminated unless its info says `TimeLimit.truncated`. A seed goes to `reset` if that takes one,
    else to the method `seed`. Spaces of other packages are told by what they have.
    """

    def __init__(self, env: Any) -> None:
        self.inner = env
        self.observation_space, self.action_space = _adopt(env.observation_space), _adopt(env.action_space)
        taken = inspect.signature(env.reset).parameters
        anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
        self._takes = {key for key in ("seed", "options") if anything or key in taken}

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # asked for before it is there: there is nothing to look into
            raise AttributeError(name)
        return getattr(self.inner, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        if seed is not None and "seed" not in self._takes and hasattr(self.inner, "seed"):
            self.inner.seed(seed)
        given = {key: value for key, value in (("seed", seed), ("options", options)) if key in self._takes}
        told = self.inner.reset(**given)
        with_info = isinstance(told, tuple) and len(told) == 2 and isinstance(told[1], dict)
        return told if with_info else (told, {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once."""
        told = self.inner.step(action)
        if len(told) == 5:
            return told  # type: ignore[no-any-return]
        obs, reward, done, info = told
        cut = bool(done and info.get("TimeLimit.truncated", False))
        return obs, float(reward), bool(done) and not cut, cut, info

    def close(self) -> None:
        """Close it, if it can be."""
        if hasattr(self.inner, "close"):
            self.inner.close()


def _adopt(space: Any) -> spaces.Space[Any]:
    """A space of Gymnasium's with what another package's has."""
    if isinstance(space, spaces.Space):
        return space
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return spaces.Dict({key: _adopt(part) for key, part in parts.items()})
    if parts is not None:
        return spaces.Tuple([_adopt(part) for part in parts])
    if hasattr(space, "nvec"):
        return spaces.MultiDiscrete(space.nvec)
    if hasattr(space, "low") and hasattr(space, "high"):
        shape = tuple(space.shape)
        low, high = (np.broadcast_to(side, shape).astype(space.dtype) for side in (space.low, space.high))
        return spaces.Box(low, high, shape, space.dtype)
    if hasattr(space, "n"):
        return spaces.MultiBinary(space.n) if getattr(space, "shape", ()) else spaces.Discrete(int(space.n))
    raise EnvError(
        f"There is no knowing what a space of the class {type(space).__name__} holds.",
        "use a space of gymnasium.spaces",
    )


def spec_of(env: Env, name: str, target: Sequence[str] = ()) -> EnvSpec:
    """Read the facts off the spaces; a space that no policy here can use is an error."""
    action = action_spec(env.action_space, name, masked=mask_of(env) is not None)
    tasks, own = tasks_of(env, name)
    target = choose_target(name, tasks, own, target)
    return EnvSpec(name, obs_spec(env.observation_space, name), action, tasks=tasks, target=target)


def tasks_of(env: Env, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tasks that an env declares, and those of them that it is measured on.

    An env has tasks if its attribute `tasks` is a list or tuple of names. Which one an episode has it is told by
    `reset(options={"task": name})`. Its attribute `target`, if it has one, names those that it is played and measured
    on unless told otherwise; without it that is all of them.
    """
    tasks = _attribute(env, "tasks")
    if not _are_names(tasks) or not tasks:
        return (), ()
    target = _attribute(env, "target")
    target = tasks if target is None else (target,) if isinstance(target, str) else target
    if not _are_names(target) or not target or any(task not in tasks for task in target):
        raise EnvError(
            f"`target` of `{name}` is {target!r}, but its tasks are {', '.join(tasks)}.",
            "let `target` be some of the names in `tasks`",
        )
    return tuple(tasks), tuple(target)


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _attribute(env: Env, name: str) -> Any:
    """An attribute of the env, under whatever wrappers; None where it has none."""
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def strip(env: Env) -> tuple[Env, int]:
    """Take Gymnasium's outer checking wrappers off; return the rest and the time limit (0: none).

    The checks were made when the env was first looked at; the time limit is kept by the stepping loop.
    """
    limit = 0
    while isinstance(env, OrderEnforcing | PassiveEnvChecker | TimeLimit):
        if isinstance(env, TimeLimit):
            if limit:
                break
            limit = int(env._max_episode_steps)
        env = env.env
    return env, limit


def mask_of(env: Env) -> Callable[[], Any] | None:
    """The env's `action_masks` method, where it has one: the options of all parts side by side, two for a switch."""
    method = _attribute(env, "action_masks")
    return method if callable(method) else None
