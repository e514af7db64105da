"""From the name of an environment to a vector of them."""

from __future__ import annotations

import traceback
from dataclasses import replace
from functools import partial
from typing import Any

from gymnasium import Space

from slipstream.core.contracts import Array, EnvSpec, Vector
from slipstream.core.errors import EnvFault, SlipstreamError
from slipstream.core.slab import Field
from slipstream.core.streams import env_seeds
from slipstream.envs.adapters import gymnasium as adapter
from slipstream.envs.adapters import minerl
from slipstream.envs.adapters.actions import action_decoder, action_space_of
from slipstream.envs.adapters.observations import obs_encoder, space_of
from slipstream.envs.registry import LIVE, EnvChoice, import_modules, parse
from slipstream.vector.processes import Processes
from slipstream.vector.serial import Bridge, Serial
from slipstream.vector.threads import Threads


def make_vector(
    choice: EnvChoice, envs: int, *, seed: int = 0, first: int = 0, progress: Array | None = None
) -> Vector:
    """Make environments [first, first + envs) of a run, to be stepped by this process."""
    import_modules(choice.modules)
    game, variant = parse(choice.name)
    if game is not None:
        return game.make(choice, variant, envs, first, seed)
    seeds = env_seeds(seed, first, envs)
    try:
        spec, bridge = _bridge(choice, variant)
    except SlipstreamError:
        raise
    except Exception as error:
        raise EnvFault(first, seeds[0], 0, traceback.format_exc()) from error
    repeat = choice.env.action_repeat or 1
    spec = replace(spec, action_repeat=repeat)
    return Serial(spec, bridge, seeds, first=first, repeat=repeat, progress=progress)


def spread_vector(
    choice: EnvChoice, envs: int, how: str, workers: int, *, seed: int = 0, deadline_s: float = 60.0,
    mends: bool = False,
) -> Vector:  # fmt: skip
    """Make all environments of a run, stepped `serial`, in `threads` or in `processes`, to the same effect.

    With `mends`, a process that dies or stands still is started anew.
    """
    if how == "serial":
        return make_vector(choice, envs, seed=seed)
    probe = make_vector(choice, 1, seed=seed)
    spec, kept = probe.spec, probe.snapshot()
    probe.close()
    if how == "threads" and spec.own_threads:
        return make_vector(choice, envs, seed=seed)
    make, workers = partial(make_vector, choice, seed=seed), min(workers, envs)
    if how == "threads":
        return Threads(make, spec, envs, workers, deadline_s)
    state = {name: Field((envs, *array.shape[1:]), array.dtype.name) for name, array in kept.items()}
    return Processes(make, spec, envs, workers, deadline_s, state, mends)


def spaces_of(choice: EnvChoice, spec: EnvSpec) -> tuple[Space[Any], Space[Any]]:
    """The spaces of observations and actions: an env's own, or what a game's rows are."""
    if parse(choice.name)[0] is not None:
        return space_of(spec.obs), action_space_of(spec.action)
    env = make_one(choice)
    try:
        return env.observation_space, env.action_space
    finally:
        env.close()


def make_one(choice: EnvChoice) -> adapter.Env:
    """One Gymnasium environment with all its wrappers."""
    return adapter.wrap(_make_plain(choice, parse(choice.name)[1]), choice.env.wrappers)


def _make_plain(choice: EnvChoice, variant: str) -> adapter.Env:
    if choice.factory:
        return adapter.adopt(choice.factory())
    live = choice.name.partition(":")[0] in LIVE
    return minerl.make(variant, choice.env.options) if live else adapter.make(variant, choice.env.options)


def _bridge(choice: EnvChoice, variant: str) -> tuple[EnvSpec, Bridge]:
    """Look at one environment with all its checks, then make the rest without them."""

    def make_bare() -> adapter.Env:
        return adapter.wrap(adapter.strip(_make_plain(choice, variant))[0], choice.env.wrappers)

    plain = _make_plain(choice, variant)
    limit, probe = adapter.strip(plain)[1], adapter.wrap(plain, choice.env.wrappers)
    try:
        spec = adapter.spec_of(probe, choice.name, choice.env.target)
        bridge = Bridge(
            make=make_bare,
            time_limit=limit,
            encode_obs=obs_encoder(probe.observation_space),
            decode_actions=action_decoder(probe.action_space),
            mask_of=adapter.mask_of,
        )
    finally:
        probe.close()
    return spec, bridge
