"""Timing of environments alone: step, reset, and where that time goes."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import psutil
from gymnasium import Wrapper
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from slipstream.contracts import Vector, empty_rows
from slipstream.envs.adapters import gymnasium as adapter
from slipstream.envs.adapters.action_spaces import action_decoder
from slipstream.envs.registry import EnvChoice
from slipstream.perf.machine_limits import item_us
from slipstream.perf.measurements import EnvFindings, Limits, Times
from slipstream.perf.tracing import counting_lines, counting_syncs, kept_bytes
from slipstream.vector.make import make_one, make_vector, steps_in_batches
from slipstream.vector.processes import ProcessVector
from slipstream.vector.random_rollout import RandomRollout, draw_actions

MIN_STEPS = 20
"""Minimum number of measured steps."""
WORTH_STARTING_S = 3.0
"""Processes are measured only if there is this much time."""
SPARE_ENVS = 4
"""Envs that are created to measure the memory of one."""
LIGHT_S = 2e-3
"""A shorter step of all environments is measured more closely."""
EXCHANGE_S = 200e-6
"""Time of sending a step to processes and back with few cores."""


def best_workers(probe: Vector, envs: int, most: int, make: Callable[[int], Vector] | None = None) -> int:
    """The number of processes that steps `envs` environments fastest, estimated from the step of a few.

    For fast environments the call itself takes much of the time, so one environment says little about many. `make`
    creates some more of them to separate the call from the step.
    """
    if most < 2 or envs < 2 or os.name != "posix" or probe.spec.own_threads:
        return 1
    one = _call_s(probe)
    seconds = one * envs / probe.envs
    if seconds < LIGHT_S and make is not None and probe.envs + SPARE_ENVS <= envs:
        with contextlib.closing(make(SPARE_ENVS)) as several:
            each = max(_call_s(several) - one, 0.0) / (SPARE_ENVS - probe.envs)
        seconds = one + (envs - probe.envs) * each
    return min(range(1, min(most, envs) + 1), key=lambda workers: seconds / workers + EXCHANGE_S * (workers > 1))


def _call_s(vector: Vector) -> float:
    """Seconds of a step of all environments of a vector."""
    rollout = RandomRollout(vector)
    return rollout.rows / rollout.best_rate()


def measure_env(choice: EnvChoice, envs: int, limits: Limits, seconds: float) -> EnvFindings:
    """Measure an environment for about `seconds`; `envs` is the number per process in training."""
    native = steps_in_batches(choice)
    with contextlib.closing(make_vector(choice, envs if native else 1)) as vector:
        rollout = RandomRollout(vector)
        found = _native(rollout, seconds / 2) if native else _alone(choice, seconds / 3)
        found |= _trace(rollout, found["step"], found["rate"], limits, seconds / 6)
    workers, rate = min(limits.cores, envs), 0.0
    if workers > 1 and seconds >= WORTH_STARTING_S:
        with contextlib.closing(ProcessVector(partial(make_vector, choice), vector.spec, envs, workers)) as together:
            rate = RandomRollout(together).rate(seconds / 6)
    return EnvFindings(native=native, workers=workers, workers_rate=rate, **found)


def _native(rollout: RandomRollout, seconds: float) -> dict[str, Any]:
    """A native game: whole batches; a step is the mean per row."""
    rollout.step()
    taken: list[float] = []
    began = perf_counter()
    while len(taken) < MIN_STEPS or perf_counter() - began < seconds:
        start = perf_counter()
        rollout.step()
        taken.append((perf_counter() - start) / rollout.rows)
    return {"step": Times.of(taken), "rate": len(taken) / sum(taken)}


def _alone(choice: EnvChoice, seconds: float) -> dict[str, Any]:
    """One Python environment in a bare loop, with and without Gymnasium's checks."""
    env, limit = adapter.strip_wrappers(make_one(choice))
    checkers = sum(isinstance(one, OrderEnforcing | PassiveEnvChecker) for one in _wrappers(env))
    steps, resets = _play(env, limit, seconds)
    env.close()
    whole = make_one(choice)
    checked, _ = _play(whole, 0, seconds / 2)
    before = psutil.Process().memory_info().rss
    others = [make_one(choice) for _ in range(SPARE_ENVS)]
    for other in others:
        other.reset(seed=0)
    taken = psutil.Process().memory_info().rss - before
    for other in [*others, whole]:
        other.close()
    times = Times.of(steps)
    total = sum(steps) + sum(resets[1:])
    return {
        "step": times,
        "rate": len(steps) / total / (choice.env.action_repeat or 1),
        "reset": Times.of(resets),
        "reset_share": sum(resets[1:]) / total,
        "wrapper_share": max(0.0, 1.0 - times.p50_us / max(Times.of(checked).p50_us, 1e-9)),
        "checkers": checkers,
        "env_mib": max(0.0, taken / SPARE_ENVS / 2**20),
    }


def _wrappers(env: Any) -> list[Any]:
    """An environment and all environments inside its wrappers."""
    found = [env]
    while isinstance(found[-1], Wrapper):
        found.append(found[-1].env)
    return found


def _play(env: adapter.Env, limit: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of each step and of each reset of one environment."""
    spec = adapter.env_spec(env, "env")
    decode, mask, random = action_decoder(env.action_space), adapter.action_mask_method(env), np.random.default_rng(0)
    steps: list[float] = []
    begin = partial(env.reset, options={"task": spec.target[0]}) if spec.tasks else env.reset
    resets = [_time(begin)[0]]
    began, age = perf_counter(), 0
    while len(steps) < MIN_STEPS or perf_counter() - began < seconds:
        allowed = np.asarray(mask(), np.uint8).reshape(1, -1) if mask is not None else np.ones((1, 0), np.uint8)
        action = decode(draw_actions(spec, allowed, random))[0]
        taken, (_, _, terminated, truncated, _) = _time(env.step, action)
        steps.append(taken)
        age += 1
        if terminated or truncated or age == limit:
            resets.append(_time(begin)[0])
            age = 0
    return steps, resets


def _time(work: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    start = perf_counter()
    result = work(*args)
    return perf_counter() - start, result


def _trace(rollout: RandomRollout, step: Times, rate: float, limits: Limits, seconds: float) -> dict[str, Any]:
    """Trace a step: lines of Python, numbers read from tensors, memory that is not freed."""
    each_s = rollout.rows / rate
    times = int(np.clip(seconds / each_s, MIN_STEPS, 1000))
    with counting_syncs() as syncs:
        rollout.steps(times)
    traced = max(2, min(times, int(seconds / (20 * each_s))))
    with counting_lines() as lines:
        rollout.steps(traced)
    hottest, ran = lines.hottest()
    steps = traced * rollout.rows
    synced = sum(syncs.values()) / (times * rollout.rows)
    cost = item_us("cpu") if synced else 0.0
    gc.collect()

    def play(count: int) -> None:
        rollout.steps(count)
        rollout.vector.reset(empty_rows(rollout.vector.spec, rollout.vector.envs))

    kept, kept_at = kept_bytes(play, max(MIN_STEPS, times // 4))
    return {
        "lines": lines.total / steps,
        "python_share": min(1.0, lines.total / steps * limits.line_us / max(step.p50_us, 1e-9)),
        "hottest": hottest,
        "hottest_times": ran / steps,
        "syncs": synced,
        "sync_share": min(1.0, synced * cost / max(step.p50_us, 1e-9)),
        "leak_bytes": kept / rollout.rows,
        "leak_at": kept_at,
    }
