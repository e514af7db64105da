"""Any Gymnasium environment seen as rows: how it is made, what it is, what can be taken off it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from slipstream.core.contracts import EnvSpec, choose_target
from slipstream.core.errors import EnvError, did_you_mean
from slipstream.envs.adapters.actions import action_spec
from slipstream.envs.adapters.observations import obs_spec

Env = gymnasium.Env[Any, Any]


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
