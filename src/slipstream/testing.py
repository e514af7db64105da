"""Test doubles that ship: an env with a known optimum, one that breaks on demand, and a checker of yours."""

from __future__ import annotations

import os
import time
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

Fault = Literal["none", "raise", "nan_reward", "nan_obs", "hang", "die", "raise_reset"]


class ToyEnv(gymnasium.Env[Any, Any]):
    """Match the cue: the observation names the action that pays 1; all others pay 0.

    The optimum is a return of `length` per episode. `actions` is "discrete", "multi_discrete" (two parts, each pays
    half), "continuous" (pays 1 - |action - cue|) or "masked" (only the cue and its neighbour are allowed, and the
    neighbour pays -1). `truncates` ends episodes by truncation instead of termination.
    """

    def __init__(self, actions: str = "discrete", length: int = 10, options: int = 4, truncates: bool = False) -> None:
        self._kind, self._length, self._options, self._truncates = actions, length, options, truncates
        self._cue: float = 0
        self._left = length
        self.observation_space = spaces.Box(-1.0, 1.0, (1 if actions == "continuous" else options,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(options)
        if actions == "multi_discrete":
            self.action_space = spaces.MultiDiscrete([options, 2])
        if actions == "continuous":
            self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        if actions == "masked":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the first cue."""
        super().reset(seed=seed)
        self._left = self._length
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pay for the match and draw the next cue."""
        if self._kind == "continuous":
            reward = 1.0 - abs(float(action[0]) - float(self._cue))
        elif self._kind == "multi_discrete":
            reward = 0.5 * (action[0] == self._cue) + 0.5 * (action[1] == self._cue % 2)
        else:
            reward = float(action == self._cue) - (self._kind == "masked" and action != self._cue)
        self._left -= 1
        over = self._left == 0
        return self._next(), float(reward), over and not self._truncates, over and self._truncates, {}

    def _next(self) -> Any:
        if self._kind == "continuous":
            self._cue = float(self.np_random.uniform(-0.8, 0.8))
            return np.array([self._cue], np.float32)
        self._cue = cue = int(self.np_random.integers(self._options))
        return np.eye(self._options, dtype=np.float32)[cue]

    def _mask(self) -> Any:
        mask = np.zeros(self._options, np.uint8)
        cue = int(self._cue)
        mask[[cue, (cue + 1) % self._options]] = 1
        return mask


class BrokenEnv(ToyEnv):
    """A ToyEnv that fails at its n-th step: raises, gives NaN, never returns, or takes its process down."""

    def __init__(self, fault: Fault = "none", at: int = 20, length: int = 10) -> None:
        super().__init__(length=length)
        self._fault, self._at, self._steps = fault, at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, or raise."""
        if self._fault == "raise_reset" and self._steps >= self._at:
            raise ValueError("broken on purpose in reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and break when the time has come."""
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


def check_env(env: gymnasium.Env[Any, Any], steps: int = 200, seed: int = 0) -> list[str]:
    """Play random steps and list everything that would hurt training; an empty list is good news."""
    from slipstream.core.errors import SlipstreamError
    from slipstream.envs.adapters.gymnasium import mask_of, spec_of

    problems: list[str] = []
    try:
        spec_of(env, type(env).__name__)
    except SlipstreamError as error:
        return [str(error)]
    first, _ = env.reset(seed=seed)
    again, _ = env.reset(seed=seed)
    if not np.array_equal(np.asarray(first), np.asarray(again)):
        problems.append("reset(seed=...) gives different observations for the same seed: runs cannot be repeated.")
    env.action_space.seed(seed)
    mask, ended, seen = mask_of(env), 0, [np.asarray(again)]
    for step in range(steps):
        allowed = None if mask is None else np.asarray(mask(), np.int8)
        action = env.action_space.sample(allowed)
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append(np.asarray(obs))
        if not env.observation_space.contains(obs):
            problems.append(f"The observation at step {step} is not in observation_space ({env.observation_space}).")
        if not np.isfinite(np.asarray(obs, np.float64)).all():
            problems.append(f"The observation at step {step} is not finite.")
        if not np.isfinite(float(reward)):
            problems.append(f"The reward at step {step} is not finite: {reward}.")
        if terminated or truncated:
            ended += 1
            env.reset()
        if len(problems) > 10:
            break
    if not ended:
        problems.append(f"No episode ended within {steps} random steps: is there a time limit?")
    if max(float(np.abs(o).max()) for o in seen if o.size) > 1e3:
        problems.append("Observations pass 1,000 in size: scale them, or keep ppo.normalise_obs on.")
    return list(dict.fromkeys(problems))
