"""A stand-in for gym 0.19: the registry, a time limit, and the old API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

_registry: dict = {}


class UnregisteredEnv(Exception):
    """No environment has this id."""


class Box:
    """Numbers within bounds."""

    def __init__(self, low: Any, high: Any, shape: tuple = (), dtype: Any = np.float32) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)


class Discrete:
    """One of n options."""

    def __init__(self, n: int) -> None:
        self.n, self.shape, self.dtype = n, (), np.dtype(np.int64)


class Dict:
    """Several spaces by name."""

    def __init__(self, spaces: dict) -> None:
        self.spaces = spaces


spaces = SimpleNamespace(Box=Box, Discrete=Discrete, Dict=Dict)


class TimeLimit:
    """A wrapper as gym 0.19 has it: its `reset` accepts any keyword and passes it on."""

    def __init__(self, env: Any, steps: int) -> None:
        self.env, self._limit, self._steps = env, steps, 0
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The environment without wrappers."""
        return self.env

    def reset(self, **keywords: Any) -> Any:
        """Start an episode."""
        self._steps = 0
        return self.env.reset(**keywords)

    def step(self, action: Any) -> tuple:
        """Step once, and truncate at the limit."""
        obs, reward, done, info = self.env.step(action)
        self._steps += 1
        if self._steps >= self._limit:
            info["TimeLimit.truncated"] = not done
            done = True
        return obs, reward, done, info


def register(id: str, entry_point: Any, max_episode_steps: int, **options: Any) -> None:
    """Add an environment."""
    _registry[id] = entry_point, max_episode_steps, options


def make(id: str, **options: Any) -> TimeLimit:
    """Make an environment."""
    if id not in _registry:
        raise UnregisteredEnv(f"No registered env with id: {id}")
    entry_point, steps, own = _registry[id]
    return TimeLimit(entry_point(**dict(own, **options)), steps)
