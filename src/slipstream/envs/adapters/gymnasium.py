"""Any Gymnasium environment seen as rows: its spaces, its wrappers, its observations as float vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from slipstream.core.contracts import ActionSpec, Array, EnvSpec
from slipstream.core.errors import EnvError, did_you_mean

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


def spec_of(env: Env, name: str) -> EnvSpec:
    """Read the facts off the spaces; a space that no policy here can use is an error."""
    return EnvSpec(name, _obs_size(env.observation_space, name), _action_spec(env, name), terms=())


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


def obs_encoder(space: spaces.Space[Any]) -> Callable[[Any, Array], None] | None:
    """A function that writes an observation into a row; None where plain assignment does."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)

        def one_hot(obs: Any, out: Array) -> None:
            out[:] = 0.0
            out[int(obs) - start] = 1.0

        return one_hot
    if isinstance(space, spaces.Box | spaces.MultiBinary) and len(space.shape) == 1:
        return None

    def flat(obs: Any, out: Array) -> None:
        out[:] = np.asarray(obs).reshape(-1)

    return flat


def action_decoder(space: spaces.Space[Any]) -> Callable[[Array], list[Any]]:
    """A function that turns actions [rows, parts] into what each env's `step` takes."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        if start:
            return lambda action: [a + start for a in action[:, 0].tolist()]
        return lambda action: action[:, 0].tolist()
    if isinstance(space, spaces.MultiDiscrete):
        first = np.asarray(space.start).reshape(-1)
        return lambda action: list(_shaped(action + first, space))
    return lambda action: list(_shaped(action, space))


def mask_of(env: Env) -> Callable[[], Any] | None:
    """The env's `action_masks` method, where it has one."""
    try:
        method = env.get_wrapper_attr("action_masks")
    except AttributeError:
        return None
    return method if callable(method) else None


def _shaped(action: Array, space: spaces.Space[Any]) -> Array:
    return action.astype(space.dtype).reshape(-1, *(space.shape or ()))


def _obs_size(space: spaces.Space[Any], name: str) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return int(np.prod(space.shape))
    raise EnvError(
        f"The observations of `{name}` are a {type(space).__name__}, which no policy here can read yet.",
        "wrap the env with gymnasium.wrappers.FlattenObservation",
    )


def _action_spec(env: Env, name: str) -> ActionSpec:
    space = env.action_space
    masked = mask_of(env) is not None
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", (int(space.n),), masked=masked)
    if isinstance(space, spaces.MultiDiscrete):
        return ActionSpec("multi_discrete", tuple(int(n) for n in np.asarray(space.nvec).reshape(-1)), masked=masked)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("multi_discrete", (2,) * int(np.prod(space.shape)), masked=masked)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        return ActionSpec("continuous", (), tuple(map(float, low)), tuple(map(float, high)))
    raise EnvError(
        f"The actions of `{name}` are a {type(space).__name__}, which no policy here can choose.",
        "use Discrete, MultiDiscrete, MultiBinary or a Box of floats",
    )
