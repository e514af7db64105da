"""Make a vector of environments from the name of an environment."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import replace
from functools import partial
from typing import Any

from gymnasium import Space

from slipstream.contracts import Array, EnvSpec, Vector
from slipstream.envs.adapters import bridge, minerl, rlgym, vector_env
from slipstream.envs.adapters import gymnasium as adapter
from slipstream.envs.adapters.action_spaces import action_decoder, action_space
from slipstream.envs.adapters.observation_spaces import list_encoder, obs_encoder, observation_space
from slipstream.envs.python_terms import check_rewards, has_terms, make_python_terms
from slipstream.envs.registry import MINERL_PREFIXES, EnvChoice, import_modules, parse, register_games
from slipstream.errors import ConfigError, EnvError, EnvFault, SlipstreamError
from slipstream.policies.network_registry import register_networks
from slipstream.system.rng import env_seeds
from slipstream.system.slab import Field
from slipstream.vector.processes import ProcessVector
from slipstream.vector.random_rollout import RandomRollout
from slipstream.vector.serial import EnvAdapter, SerialVector
from slipstream.vector.threads import ThreadVector

LATE_RESETS = "it resets in the step after an episode's end, and recurrent policies need same-step resets"


def make_vector(
    choice: EnvChoice, envs: int, *, seed: int = 0, first: int = 0, progress: Array | None = None
) -> Vector:
    """Make the environments [first, first + envs) of a run in this process.

    `progress` is a shared array in which the vector reports the env that it steps.
    """
    import_modules(choice.modules)
    register_games(choice.games)
    register_networks(choice.networks)
    vector = _make_envs(choice, envs, seed, first, progress)
    try:
        check_rewards(choice, vector.spec)
    except ConfigError:
        vector.close()
        raise
    return vector


def _make_envs(choice: EnvChoice, envs: int, seed: int, first: int, progress: Array | None) -> Vector:
    game, variant = parse(choice.name)
    if choice.python and (game is not None or choice.factory is not None):
        raise ConfigError(
            f"`{choice.name}` runs in this interpreter.", "leave --python out; it is for gymnasium:ID and minerl:ID"
        )
    if game is not None and choice.factory is None:
        return game.make(choice, variant, envs, first, seed)
    seeds = env_seeds(seed, first, envs)
    if choice.native:
        return _native(choice, variant, seeds, first)
    try:
        if game is not None:
            return game.make(choice, variant, envs, first, seed)
        made = choice.factory() if choice.factory else _make_named(choice, variant)
        if choice.factory is not None and rlgym.is_rlgym(made):
            return rlgym.RLGymRows(choice.name, made, choice.factory, envs, first=first, seed=seed, choice=choice)
        spec, env_adapter = _make_adapter(choice, variant, adapter.as_gymnasium_env(made))
    except SlipstreamError:
        raise
    except Exception as error:
        missing_package = rlgym.missing_package_error(error) if isinstance(error, ModuleNotFoundError) else None
        raise missing_package or EnvFault(first, seeds[0], 0, traceback.format_exc()) from error
    repeat = choice.env.action_repeat or 1
    spec, terms = make_python_terms(choice, replace(spec, action_repeat=repeat), envs)
    return SerialVector(spec, env_adapter, seeds, first=first, repeat=repeat, progress=progress, terms=terms)


def _native(choice: EnvChoice, variant: str, seeds: list[int], first: int) -> vector_env.Native:
    """Make the environments with the vector env that is registered for the env."""
    one = make_one(choice)
    try:
        spec = adapter.env_spec(one, choice.name, choice.env.target)
        return vector_env.make_vector_env(variant, choice.env.options, spec, one, seeds, first)
    finally:
        one.close()


def steps_in_batches(choice: EnvChoice) -> bool:
    """Return whether one call steps many environments."""
    return choice.native or parse(choice.name)[0] is not None


def choose_native(choice: EnvChoice, spec: EnvSpec, envs: int, late: bool = True) -> tuple[str, float]:
    """Return why an environment cannot be stepped by its own vector env, and how many times faster that would be.

    Both are measured with `envs` environments. `late` allows vector envs that reset in the step after an episode's end.
    """
    game, variant = parse(choice.name)
    reasons = {
        "a native game already steps in batches": game is not None,
        "an env given as a Python function has no vector env": choice.factory is not None,
        "the real Minecraft has no vector env": choice.name.partition(":")[0] in MINERL_PREFIXES,
        "it runs in another interpreter": bool(choice.python),
        "env.wrappers apply to single envs": bool(choice.env.wrappers),
        "env.action_repeat applies to single envs": (choice.env.action_repeat or 1) > 1,
        "its actions are masked": spec.action.masked,
        "it has tasks": bool(spec.tasks),
        "reward terms are computed for single envs": has_terms(choice),
    }
    why = next((reason for reason, applies in reasons.items() if applies), "") or vector_env.why_not_native(variant)
    if why:
        return why, 0.0
    rates = []
    for candidate in (replace(choice, native=True), choice):
        try:
            vector = make_vector(candidate, envs)
        except EnvError as error:
            return error.message.splitlines()[0].rstrip("."), 0.0
        with contextlib.closing(vector):
            if vector.spec.late_resets and not late:
                return LATE_RESETS, 0.0
            rates.append(RandomRollout(vector).best_rate())
    return "", rates[0] / rates[1]


def spread_vector(
    choice: EnvChoice,
    envs: int,
    kind: str,
    workers: int,
    *,
    seed: int = 0,
    deadline_s: float = 60.0,
    respawn: bool = False,
    probe: Vector | None = None,
) -> Vector:
    """Make all environments of a run; `kind` is `serial`, `threads` or `processes`, with the same results.

    With `respawn`, a process that dies or hangs is replaced. `probe` is a vector of the same environments from which
    the spec is read; it is closed.
    """
    if kind == "serial":
        return make_vector(choice, envs, seed=seed)
    with contextlib.closing(probe or make_vector(choice, 1, seed=seed)) as sample:
        spec, snapshot = sample.spec, sample.snapshot()
    if kind == "threads" and spec.own_threads:
        return make_vector(choice, envs, seed=seed)
    make, workers = partial(make_vector, choice, seed=seed), min(workers, envs)
    if kind == "threads":
        return ThreadVector(make, spec, envs, workers, deadline_s)
    state = {name: Field((envs, *array.shape[1:]), array.dtype.name) for name, array in snapshot.items()}
    return ProcessVector(make, spec, envs, workers, deadline_s, state, respawn)


def spaces_of(vector: Vector) -> tuple[Space[Any], Space[Any]]:
    """Return the observation and action spaces: the env's own, or those of a native game's rows."""
    own: tuple[Space[Any], Space[Any]] | None = getattr(vector, "spaces", None)
    return own or (observation_space(vector.spec.obs), action_space(vector.spec.action))


def make_one(choice: EnvChoice) -> adapter.Env:
    """Make one Gymnasium environment with all its wrappers."""
    return adapter.wrap(_make_plain(choice, parse(choice.name)[1]), choice.env.wrappers)


def _make_plain(choice: EnvChoice, variant: str) -> adapter.Env:
    return adapter.as_gymnasium_env(choice.factory()) if choice.factory else _make_named(choice, variant)


def _make_named(choice: EnvChoice, variant: str) -> adapter.Env:
    """Make an environment by name: here, or in the interpreter of `--python`."""
    options = choice.env.options
    if choice.name.partition(":")[0] in MINERL_PREFIXES:
        return minerl.make(variant, options, choice.python, choice.modules, choice.deadline_s)
    if choice.python:
        adapter.refuse_module("gymnasium", variant)
        more: dict[str, Any] = {"modules": choice.modules, "deadline_s": choice.deadline_s}
        return bridge.BridgeEnv(choice.python, variant, options, **more)
    return adapter.make(variant, options)


def _make_adapter(choice: EnvChoice, variant: str, plain: adapter.Env) -> tuple[EnvSpec, EnvAdapter]:
    """Read the spec of an environment and strip Gymnasium's checking wrappers; it becomes the first of the vector."""
    bare, limit = adapter.strip_wrappers(plain)
    first = [adapter.wrap(bare, choice.env.wrappers)]

    def make_bare() -> adapter.Env:
        if first:
            return first.pop()
        return adapter.wrap(adapter.strip_wrappers(_make_plain(choice, variant))[0], choice.env.wrappers)

    env = first[0]
    try:
        spec = adapter.env_spec(env, choice.name, choice.env.target)
        env_adapter = EnvAdapter(
            make=make_bare,
            time_limit=limit,
            encode_obs=obs_encoder(env.observation_space),
            encode_all=list_encoder(env.observation_space),
            decode_actions=action_decoder(env.action_space),
            mask_of=adapter.action_mask_method,
            spaces=(env.observation_space, env.action_space),
        )
    except BaseException:
        env.close()
        raise
    return spec, env_adapter
