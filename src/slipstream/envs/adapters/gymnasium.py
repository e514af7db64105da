"""Gymnasium environments: make them, wrap them, and read their spec from their spaces."""

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
"""The wrappers allowed in `env.wrappers`."""


def refuse_module(prefix: str, name: str) -> None:
    """Raise for an id that names a module, such as `my_module:MyEnv-v0`.

    Gym and Gymnasium import the module before a colon in an id. The files of a run contain the id, and files must not
    be able to import modules. Use the flag --import instead.
    """
    if ":" in name:
        module, _, rest = name.partition(":")
        raise EnvError(
            f"`{prefix}:{name}` names a module to import, which is only allowed with --import.",
            f"write {prefix}:{rest} --import {module}",
        )


def make(name: str, options: Mapping[str, Any]) -> Env:
    """Make a registered environment by id."""
    refuse_module("gymnasium", name)
    try:
        return gymnasium.make(name, **options)
    except gymnasium.error.UnregisteredEnv as error:
        known = [key.rpartition("/")[2] for key in gymnasium.registry]
        raise EnvError(
            f"Gymnasium has no environment `{name}`.{did_you_mean(name, known)}",
            "if your own module registers it, add --import MODULE; if it is in another interpreter, add --python PATH; "
            "`slipstream envs` lists the known ones",
        ) from error
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise EnvError(
            f"The environment `{name}` could not be made: {error}",
            "install its dependencies, or check env.options",
        ) from error


def wrap(env: Env, wrappers: Sequence[str | Mapping[str, Mapping[str, Any]]]) -> Env:
    """Apply Gymnasium's wrappers to an environment by name; only `WRAPPERS` are allowed, nothing is imported."""
    for entry in wrappers:
        named = {entry: {}} if isinstance(entry, str) else entry
        for name, arguments in named.items():
            if name not in WRAPPERS:
                raise ConfigError(
                    f"`env.wrappers`: Gymnasium has no wrapper `{name}`.{did_you_mean(name, WRAPPERS)}",
                    "apply your own wrappers where you register the env",
                )
            try:
                env = getattr(gymnasium.wrappers, name)(env, **arguments)
            except Exception as error:
                raise ConfigError(
                    f"`env.wrappers`: {name} cannot be applied: {error}",
                    f"give its arguments as {{{name}: {{argument: value}}}}; see gymnasium.farama.org",
                ) from error
    return env


def as_gymnasium_env(env: Any) -> Env:
    """The environment itself, or a wrapper with Gymnasium's API around an environment with the old Gym API."""
    return env if isinstance(env, gymnasium.Env) else LegacyEnv(env)


class LegacyEnv(gymnasium.Env[Any, Any]):
    """An environment with the old Gym API: `reset` returns an observation, `step` returns four values.

    `done` means terminated, unless the info has `TimeLimit.truncated`. A seed is passed to `reset` if it accepts one,
    else to the method `seed`. Spaces of other packages are converted by their attributes.
    """

    def __init__(self, env: Any) -> None:
        self.inner = env
        self.observation_space, self.action_space = (
            _convert_space(env.observation_space),
            _convert_space(env.action_space),
        )
        parameters = inspect.signature(env.reset).parameters
        any_keyword = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        self._reset_keywords = {key for key in ("seed", "options") if any_keyword or key in parameters}

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # during unpickling, before `inner` is set
            raise AttributeError(name)
        return getattr(self.inner, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        if seed is not None and "seed" not in self._reset_keywords and hasattr(self.inner, "seed"):
            self.inner.seed(seed)
        given = {key: value for key, value in (("seed", seed), ("options", options)) if key in self._reset_keywords}
        result = self.inner.reset(**given)
        has_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result if has_info else (result, {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once."""
        result = self.inner.step(action)
        if len(result) == 5:
            return result  # type: ignore[no-any-return]
        obs, reward, done, info = result
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return obs, float(reward), bool(done) and not truncated, truncated, info

    def close(self) -> None:
        """Close the environment if it has a `close` method."""
        if hasattr(self.inner, "close"):
            self.inner.close()


def _convert_space(space: Any) -> spaces.Space[Any]:
    """Convert a space of another package to a Gymnasium space, by its attributes."""
    if isinstance(space, spaces.Space):
        return space
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return spaces.Dict({key: _convert_space(part) for key, part in parts.items()})
    if parts is not None:
        return spaces.Tuple([_convert_space(part) for part in parts])
    if hasattr(space, "nvec"):
        return spaces.MultiDiscrete(space.nvec)
    if hasattr(space, "low") and hasattr(space, "high"):
        shape = tuple(space.shape)
        low, high = (np.broadcast_to(side, shape).astype(space.dtype) for side in (space.low, space.high))
        return spaces.Box(low, high, shape, space.dtype)
    if hasattr(space, "n"):
        return spaces.MultiBinary(space.n) if getattr(space, "shape", ()) else spaces.Discrete(int(space.n))
    raise EnvError(
        f"Spaces of the class {type(space).__name__} are not supported.",
        "use a space of gymnasium.spaces",
    )


def env_spec(env: Env, name: str, target: Sequence[str] = ()) -> EnvSpec:
    """The spec of an environment, read from its spaces; raises EnvError for an unsupported space."""
    action = action_spec(env.action_space, name, masked=action_mask_method(env) is not None)
    tasks, own = env_tasks(env, name)
    target = choose_target(name, tasks, own, target)
    spaces = env.observation_space, env.action_space
    return EnvSpec(name, obs_spec(env.observation_space, name), action, tasks=tasks, target=target, spaces=spaces)


def env_tasks(env: Env, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tasks that an env declares, and its default target tasks.

    An env has tasks if its attribute `tasks` is a list or tuple of names. The task of an episode is passed as
    `reset(options={"task": name})`. The optional attribute `target` names the tasks that are played and evaluated by
    default; without it, these are all tasks.
    """
    tasks = _attribute(env, "tasks")
    if not _are_names(tasks) or not tasks:
        return (), ()
    target = _attribute(env, "target")
    target = tasks if target is None else (target,) if isinstance(target, str) else target
    if not _are_names(target) or not target or any(task not in tasks for task in target):
        raise EnvError(
            f"`target` of `{name}` is {target!r}, but its tasks are {', '.join(tasks)}.",
            "set `target` to one or more of the names in `tasks`",
        )
    return tuple(tasks), tuple(target)


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _attribute(env: Env, name: str) -> Any:
    """An attribute of the env or of a wrapped env; None if it does not exist."""
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def strip_wrappers(env: Env) -> tuple[Env, int]:
    """Remove Gymnasium's outer checking wrappers; returns the inner env and the time limit (0: none).

    The checks were made when the env was first probed; the stepping loop applies the time limit.
    """
    limit = 0
    while isinstance(env, OrderEnforcing | PassiveEnvChecker | TimeLimit):
        if isinstance(env, TimeLimit):
            if limit:
                break
            limit = int(env._max_episode_steps)
        env = env.env
    return env, limit


def action_mask_method(env: Env) -> Callable[[], Any] | None:
    """The env's `action_masks` method, if any: a mask of the options of all parts, two for a binary part."""
    method = _attribute(env, "action_masks")
    return method if callable(method) else None
