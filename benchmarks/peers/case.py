"""Shared by all peer scripts: the cases of equal work, the options, the clock and the line of JSON.

The virtual environment of each peer imports this module, so it uses only the standard library and gymnasium. Scripts
that would shadow the library they import have `_ppo` in their name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, SupportsFloat

import gymnasium

BORN = time.perf_counter()


@dataclass(frozen=True)
class Case:
    """A case of equal work for PPO; everything else is the same in every library."""

    env: str
    envs: int
    rollout: int
    minibatch: int
    epochs: int
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.0
    value: float = 0.5
    gradient_norm: float = 0.5
    falling: bool = False
    """Learning rate and clip range decay linearly to 0."""
    normalise: bool = False
    """Observations and rewards are normalised with running statistics."""
    log_std: float = 0.0
    """Starting log standard deviation of continuous actions."""
    orthogonal: bool = True
    """Orthogonal initialisation."""
    memory: int = 0
    """Units of a shared LSTM; 0: none."""
    module: str = ""
    """A module of this folder that registers the environment."""
    frames: bool = False
    """An Atari game: 84 x 84 grey, 4 stacked frames, frame skip 4; policy and value share a Nature CNN."""
    slow: bool = False
    """Whether a step is slow enough for environments in other processes."""

    @property
    def batch(self) -> int:
        """Samples per iteration."""
        return self.envs * self.rollout

    @property
    def minibatches(self) -> int:
        """Optimiser steps per epoch."""
        return self.batch // self.minibatch

    def shape(self) -> dict[str, Any]:
        """The fields of the case in a row."""
        keys = ("envs", "batch", "minibatch", "epochs", "activation")
        return {"hidden": list(self.hidden), **{key: getattr(self, key) for key in keys}}


@dataclass(frozen=True)
class Replay:
    """A case of equal work for SAC: one env, one gradient step per step; the defaults are Stable-Baselines3's."""

    env: str
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    batch: int = 256
    buffer: int = 1_000_000
    warmup: int = 100
    """Steps of random actions before the first gradient step."""
    envs: int = 1

    def shape(self) -> dict[str, Any]:
        """The fields of the case in a row."""
        keys = ("envs", "batch", "buffer", "warmup", "activation")
        return {"hidden": list(self.hidden), **{key: getattr(self, key) for key in keys}}


CASES = {
    "cartpole": Case("CartPole-v1", envs=64, rollout=64, minibatch=1024, epochs=1),
    "halfcheetah": Case("HalfCheetah-v5", envs=8, rollout=256, minibatch=64, epochs=10),
    "minigrid": Case("FlatGrid-v0", envs=16, rollout=128, minibatch=256, epochs=4, module="grids", slow=True),
    "pong": Case(
        "PongNoFrameskip-v4",
        envs=8,
        rollout=128,
        minibatch=256,
        epochs=4,
        hidden=(),
        activation="relu",
        learning_rate=2.5e-4,
        clip=0.1,
        entropy=0.01,
        frames=True,
    ),
}


# for libraries that pin a gymnasium without the case's version: the same model and the same step
OLDER = {"HalfCheetah-v5": "HalfCheetah-v4"}


def make_named(name: str) -> gymnasium.Env[Any, Any]:
    """Create one environment of a case in any process; its module is imported first."""
    for case in CASES.values():
        if case.env == name and case.module:
            importlib.import_module(case.module)
        if case.env == name and case.frames:
            return make_atari(name)
    return gymnasium.make(name)


def make_atari(name: str) -> gymnasium.Env[Any, Any]:
    """A plain ALE game with all frames in colour, without Gymnasium's registry."""
    from ale_py.env import AtariEnv

    game = name.removesuffix("NoFrameskip-v4").lower()
    return AtariEnv(game, obs_type="rgb", frameskip=1, repeat_action_probability=0.0, full_action_space=False)


class Enough(Exception):
    """Raised after an iteration to stop a library's training loop."""


def arguments(
    variants: tuple[str, ...], threads: int | Mapping[str, int], cases: Mapping[str, Case | Replay] = CASES
) -> argparse.ArgumentParser:
    """The options of all peer scripts; the first variant is the default.

    `threads` is the peer's better torch thread count, one for all cases or one by case. On a busy machine with 2 cores
    1 beat 2 several times over for sb3 and skrl and was level for sbx; the others were not tried with 2. Check again on
    a quiet machine with `peers.py --threads 2`.
    """
    parser = argparse.ArgumentParser(description="Train on equal work and print one JSON object.")
    parser.add_argument("--case", choices=sorted(cases), default=next(iter(cases)))
    parser.add_argument("--epochs", type=int, help="epochs per iteration (default: the case's own)")
    parser.add_argument("--vec", choices=variants, default=variants[0], help="how the environments are stepped")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0, help="training time after the first iteration")
    parser.add_argument("--threads", type=int, help=f"torch threads (default: the better one, {threads})")
    parser.set_defaults(threads_by_case=threads, cases=cases)
    return parser


@dataclass
class TimedTraining:
    """One timed training run of a peer."""

    peer: str
    package: str
    case_name: str
    case: Case | Replay
    variant: str
    seed: int
    seconds: float
    threads: int
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    steps: int = 0
    _out: int = field(default_factory=lambda: claim_stdout())
    _first: tuple[int, float] | None = None
    _last: float = 0.0

    def iteration(self, steps: int) -> None:
        """Report the end of an iteration after `steps` steps in total; raise `Enough` when time is up."""
        now = time.perf_counter()
        if self._first is None:
            self._first = (steps, now)
        self.steps, self._last = steps, now
        if now - self._first[1] >= self.seconds:
            raise Enough

    @property
    def env(self) -> str:
        """The case's environment, or its older version if this gymnasium has no newer one."""
        return OLDER.get(self.case.env, self.case.env) if self.case.env not in gymnasium.registry else self.case.env

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """One environment that reports its finished episodes here (same process only)."""
        return EpisodeReturns(make_named(self.env), self.returns.append)

    def report(self, **more: Any) -> None:
        """Print the JSON object of the run to the real stdout."""
        first_steps, first = self._first or (0, self._last)
        seconds = self._last - first
        row = {
            "peer": self.peer,
            "version": version(self.package),
            "case": self.case_name,
            "env": self.env,
            "variant": self.variant,
            "seed": self.seed,
            "threads": self.threads,
            **self.case.shape(),
            "steps": self.steps - first_steps,
            "seconds": round(seconds, 4),
            "steps_per_second": round((self.steps - first_steps) / seconds, 1) if seconds > 0 else None,
            "start_seconds": round(first - BORN, 3),
            "mean_return": round(sum(self.returns) / len(self.returns), 2) if self.returns else None,
            "versions": {name: version(name) for name in ("torch", "gymnasium", "numpy")},
        }
        os.write(self._out, (json.dumps(row | more) + "\n").encode())


class EpisodeReturns(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes the return of each finished episode to `finished`."""

    def __init__(self, env: gymnasium.Env[Any, Any], finished: Callable[[float], None]) -> None:
        """Wrap `env`."""
        super().__init__(env)
        self._finished = finished
        self._total = 0.0

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and report the return when the episode ends."""
        result = self.env.step(action)
        self._total += float(result[1])
        if result[2] or result[3]:
            self._finished(self._total)
            self._total = 0.0
        return result


def begin(peer: str, package: str, options: argparse.Namespace) -> TimedTraining:
    """Start a timed run; the thread count is set before torch is imported."""
    case = options.cases[options.case]
    if options.epochs is not None:
        case = replace(case, epochs=options.epochs)
    if getattr(case, "module", ""):
        importlib.import_module(case.module)
    best = options.threads_by_case
    threads = options.threads or (best if isinstance(best, int) else best[options.case])
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    return TimedTraining(peer, package, options.case, case, options.vec, options.seed, options.seconds, threads)


def claim_stdout() -> int:
    """Keep stdout for the JSON line: output of libraries goes to stderr."""
    out = os.dup(1)
    sys.stdout.flush()
    os.dup2(2, 1)
    return out
