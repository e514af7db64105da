"""Environments by themselves: how long a step and a reset take, and what that time is spent on."""

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

from slipstream.collect.vectors import make_one, make_vector
from slipstream.core.contracts import Array, EnvSpec, Rows, Vector, empty_rows
from slipstream.envs.adapters import gymnasium as adapter
from slipstream.envs.adapters.actions import action_decoder
from slipstream.envs.registry import EnvChoice, parse
from slipstream.perf.findings import EnvFindings, Limits, Times
from slipstream.perf.limits import item_us
from slipstream.perf.tracing import counting_lines, counting_syncs, kept_bytes
from slipstream.vector.processes import Processes

LOOKED = 20
"""Steps, at least, that are looked into."""
WORTH_STARTING_S = 3.0
"""Processes are started where there is this much time to look at them."""
SPARE_ENVS = 4
"""Envs that are made to see what memory one takes."""
GLANCE_S = 0.02
"""How long a step is looked at before processes are chosen."""
EXCHANGE_S = 60e-6
"""What handing a step over to processes and back takes, about."""


def draw_actions(spec: EnvSpec, mask: Array, random: np.random.Generator) -> Array:
    """Random actions [rows, parts] that the mask allows."""
    rows, action = len(mask), spec.action
    if action.kind == "continuous":
        low, high = (np.array(side, np.float64) for side in (action.low, action.high))
        low, high = np.where(np.isfinite(low), low, -1.0), np.where(np.isfinite(high), high, 1.0)
        return random.uniform(low, high, (rows, action.parts)).astype(np.float32)
    drawn, start = np.zeros((rows, action.parts), np.int32), 0
    for part, size in enumerate(action.sizes):
        chances = random.random((rows, size))
        if action.masked:
            chances *= mask[:, start : start + size]
        drawn[:, part], start = chances.argmax(axis=1), start + size
    return drawn


class Walk:
    """A vector that is stepped with random actions."""

    def __init__(self, vector: Vector, seed: int = 0) -> None:
        self.vector, self.rows = vector, vector.envs * vector.spec.agents
        self._random = np.random.default_rng(seed)
        self._out: Rows = empty_rows(vector.spec, vector.envs)
        vector.reset(self._out)
        self._drawn = [self._draw() for _ in range(16)]

    def _draw(self) -> Array:
        return draw_actions(self.vector.spec, self._out.mask, self._random)

    def step(self) -> None:
        """Step once; actions are drawn anew only where masks forbid some."""
        masked = self.vector.spec.action.masked
        action = self._draw() if masked else self._drawn[self._random.integers(len(self._drawn))]
        self.vector.step(action, self._out)

    def steps(self, times: int) -> None:
        """Step so many times."""
        for _ in range(times):
            self.step()

    def rate(self, seconds: float) -> float:
        """Steps of rows per second."""
        self.step()
        began, count = perf_counter(), 0
        while not count or perf_counter() - began < seconds:
            self.step()
            count += 1
        return count * self.rows / (perf_counter() - began)


def best_workers(choice: EnvChoice, envs: int, most: int) -> int:
    """How many processes step so many environments fastest, by what a step of one takes."""
    if most < 2 or envs < 2 or os.name != "posix":
        return 1
    native = parse(choice.name)[0] is not None
    vector = make_vector(choice, envs if native else 1)
    try:
        if vector.spec.own_threads:
            return 1
        seconds = envs * vector.spec.agents / Walk(vector).rate(GLANCE_S)
    finally:
        vector.close()
    return min(range(1, min(most, envs) + 1), key=lambda workers: seconds / workers + EXCHANGE_S * (workers > 1))


def measure_env(choice: EnvChoice, envs: int, limits: Limits, seconds: float) -> EnvFindings:
    """Measure an environment for about so long; `envs` is how many a process steps in training."""
    native = parse(choice.name)[0] is not None
    with contextlib.closing(make_vector(choice, envs if native else 1)) as vector:
        walk = Walk(vector)
        found = _native(walk, seconds / 2) if native else _alone(choice, seconds / 3)
        found |= _look_into(walk, found["step"], found["rate"], limits, seconds / 6)
    workers, rate = min(limits.cores, envs), 0.0
    if workers > 1 and seconds >= WORTH_STARTING_S:
        with contextlib.closing(Processes(partial(make_vector, choice), vector.spec, envs, workers)) as together:
            rate = Walk(together).rate(seconds / 6)
    return EnvFindings(native=native, workers=workers, workers_rate=rate, **found)


def _native(walk: Walk, seconds: float) -> dict[str, Any]:
    """A native game: whole batches, of which one row is the mean."""
    walk.step()
    taken: list[float] = []
    began = perf_counter()
    while len(taken) < LOOKED or perf_counter() - began < seconds:
        start = perf_counter()
        walk.step()
        taken.append((perf_counter() - start) / walk.rows)
    return {"step": Times.of(taken), "rate": len(taken) / sum(taken)}


def _alone(choice: EnvChoice, seconds: float) -> dict[str, Any]:
    """One Python environment in a bare loop, without Gymnasium's checks and with them."""
    env, limit = adapter.strip(make_one(choice))
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
    """An environment and all that it is wrapped around."""
    found = [env]
    while isinstance(found[-1], Wrapper):
        found.append(found[-1].env)
    return found


def _play(env: adapter.Env, limit: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of each step and of each reset of one environment."""
    spec = adapter.spec_of(env, "env")
    decode, mask, random = action_decoder(env.action_space), adapter.mask_of(env), np.random.default_rng(0)
    steps: list[float] = []
    begin = partial(env.reset, options={"task": spec.target[0]}) if spec.tasks else env.reset
    resets = [_time(begin)[0]]
    began, age = perf_counter(), 0
    while len(steps) < LOOKED or perf_counter() - began < seconds:
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


def _look_into(walk: Walk, step: Times, rate: float, limits: Limits, seconds: float) -> dict[str, Any]:
    """What a step does: lines of Python, numbers out of tensors, memory that it keeps."""
    each_s = walk.rows / rate
    times = int(np.clip(seconds / each_s, LOOKED, 1000))
    with counting_syncs() as syncs:
        walk.steps(times)
    looked = max(2, min(times, int(seconds / (20 * each_s))))
    with counting_lines() as lines:
        walk.steps(looked)
    hottest, ran = lines.hottest()
    steps = looked * walk.rows
    synced = sum(syncs.values()) / (times * walk.rows)
    price = item_us("cpu") if synced else 0.0
    gc.collect()

    def play(count: int) -> None:
        walk.steps(count)
        walk.vector.reset(empty_rows(walk.vector.spec, walk.vector.envs))

    kept, kept_at = kept_bytes(play, max(LOOKED, times // 4))
    return {
        "lines": lines.total / steps,
        "python_share": min(1.0, lines.total / steps * limits.line_us / max(step.p50_us, 1e-9)),
        "hottest": hottest,
        "hottest_times": ran / steps,
        "syncs": synced,
        "sync_share": min(1.0, synced * price / max(step.p50_us, 1e-9)),
        "leak_bytes": kept / walk.rows,
        "leak_at": kept_at,
    }
