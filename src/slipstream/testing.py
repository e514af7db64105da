"""Environments for tests (with a known optimum, failing or slow on demand), and a checker for your own."""

from __future__ import annotations

import os
import time
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from slipstream.envs import native
from slipstream.envs.adapters.env_checker import inspect_env
from slipstream.stages.check_game import check_game

Fault = Literal["none", "raise", "nan_reward", "nan_obs", "hang", "die", "raise_reset"]

Slowness = Literal["loop", "reset", "items", "leak", "sleep"]


class ToyEnv(gymnasium.Env[Any, Any]):
    """Match the cue: the observation encodes the action with reward 1; all other actions have reward 0.

    The optimal return is `length`. `actions` is "discrete", "multi_discrete" (two parts with half of the reward each),
    "binary" (one bit per observation; the reward is the share of matching bits), "continuous" (reward
    1 - |action - cue|), "masked" (only the cue and its neighbour are valid, and the neighbour has reward -1) or "mixed"
    (a Dict of an option and a number, with half of the reward each).
    `truncates` ends episodes by truncation instead of termination.
    """

    def __init__(self, actions: str = "discrete", length: int = 10, options: int = 4, truncates: bool = False) -> None:
        self._kind, self._length, self._options, self._truncates = actions, length, options, truncates
        self._cue: Any = 0
        self._left = length
        self.observation_space = spaces.Box(-1.0, 1.0, (1 if actions == "continuous" else options,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(options)
        if actions == "multi_discrete":
            self.action_space = spaces.MultiDiscrete([options, 2])
        if actions == "binary":
            self.action_space = spaces.MultiBinary(options)
        if actions == "continuous":
            self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        if actions == "mixed":
            number, option = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(options)
            self.action_space = spaces.Dict({"number": number, "option": option})
        if actions == "masked":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the first cue."""
        super().reset(seed=seed)
        self._left = self._length
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the reward of the action and draw the next cue."""
        if self._kind == "continuous":
            reward = 1.0 - abs(float(action[0]) - float(self._cue))
        elif self._kind == "multi_discrete":
            reward = 0.5 * (action[0] == self._cue) + 0.5 * (action[1] == self._cue % 2)
        elif self._kind == "binary":
            reward = float(np.mean(action == self._cue))
        elif self._kind == "mixed":
            distance = abs(float(action["number"][0]) - self._number)
            reward = 0.5 * (action["option"] == self._cue) + 0.5 * (1.0 - distance)
        else:
            reward = float(action == self._cue) - (self._kind == "masked" and action != self._cue)
        self._left -= 1
        over = self._left == 0
        return self._next(), float(reward), over and not self._truncates, over and self._truncates, {}

    def _next(self) -> Any:
        if self._kind == "continuous":
            self._cue = float(self.np_random.uniform(-0.8, 0.8))
            return np.array([self._cue], np.float32)
        if self._kind == "binary":
            self._cue = self.np_random.integers(2, size=self._options)
            return self._cue.astype(np.float32)
        self._cue = cue = int(self.np_random.integers(self._options))
        return np.eye(self._options, dtype=np.float32)[cue]

    @property
    def _number(self) -> float:
        """The best number of a mixed action: the cues are spread evenly over [-0.8, 0.8]."""
        return 1.6 * float(self._cue) / (self._options - 1) - 0.8

    def _mask(self) -> Any:
        mask = np.zeros(self._options, np.uint8)
        cue = int(self._cue)
        mask[[cue, (cue + 1) % self._options]] = 1
        return mask


class BrokenEnv(ToyEnv):
    """A ToyEnv that fails at its n-th step: raises, returns NaN, hangs, or kills its process."""

    def __init__(self, fault: Fault = "none", at: int = 20, length: int = 10) -> None:
        super().__init__(length=length)
        self._fault, self._at, self._steps = fault, at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, or raise."""
        if self._fault == "raise_reset" and self._steps >= self._at:
            raise ValueError("broken on purpose in reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and fail at the given step."""
        self._steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self._steps == self._at:
            if self._fault == "raise":
                raise ValueError("broken on purpose")
            if self._fault == "die":
                os._exit(7)
            if self._fault == "hang":
                time.sleep(3600)
            if self._fault == "nan_reward":
                reward = float("nan")
            if self._fault == "nan_obs":
                obs = np.full_like(obs, np.nan)
        return obs, reward, terminated, truncated, info


class SlowEnv(ToyEnv):
    """A ToyEnv with one bottleneck, for tests of the diagnosis.

    `fault` is "loop" (a Python loop of `size` iterations in every step), "reset" (a sleep of `size` ms in every reset),
    "items" (`size` calls of `Tensor.item` in every step), "leak" (`size` bytes leaked in every step) or "sleep" (a
    sleep of `size` ms in every step).
    """

    def __init__(self, fault: Slowness, size: int = 500, length: int = 10) -> None:
        super().__init__(length=length)
        self._fault, self._size = fault, size
        self._track = [0.5 * number for number in range(size)] if fault == "loop" else []
        self._kept: list[bytes] = []
        self._tensor: Any = None
        if fault == "items":
            import torch

            self._tensor = torch.zeros(size)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, with a sleep for the fault "reset"."""
        if self._fault == "reset":
            time.sleep(self._size / 1e3)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, with the bottleneck."""
        nearest = 1e9
        for point in self._track:
            distance = (point - 100.0) * (point - 100.0)
            if distance < nearest:
                nearest = distance
        if self._fault == "items":
            nearest = sum(self._tensor[number].item() for number in range(self._size))
        if self._fault == "leak":
            self._kept.append(bytes(self._size))
        if self._fault == "sleep":
            time.sleep(self._size / 1e3)
        return super().step(action)


def check_env(env: gymnasium.Env[Any, Any] | native.Game, steps: int | None = None, seed: int = 0) -> list[str]:
    """Take random steps and list all problems that would affect training, with hints; empty if there are none.

    A native game is played as plain Python, compiled, and on a GPU if there is one, which must be equal. `steps` is
    200 by default, 10,000 for native games.
    """
    if isinstance(env, native.Game):
        return [str(problem) for problem in check_game(env, steps, seed).problems]
    return [str(problem) for problem in inspect_env(env, steps or 200, seed).problems]
