"""Test doubles that ship: envs with a known optimum, that break or that are slow on demand, and a checker of yours."""

from __future__ import annotations

import os
import time
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from slipstream.core.errors import SlipstreamError
from slipstream.envs.adapters.actions import action_decoder
from slipstream.envs.adapters.gymnasium import mask_of, spec_of
from slipstream.envs.adapters.observations import Leaf, leaves

Fault = Literal["none", "raise", "nan_reward", "nan_obs", "hang", "die", "raise_reset"]

Slowness = Literal["loop", "reset", "items", "leak", "sleep"]


class ToyEnv(gymnasium.Env[Any, Any]):
    """Match the cue: the observation names the action that pays 1; all others pay 0.

    The optimum is a return of `length` per episode. `actions` is "discrete", "multi_discrete" (two parts, each pays
    half), "binary" (one switch for each number of the observation; each that is as it says pays its share),
    "continuous" (pays 1 - |action - cue|) or "masked" (only the cue and its neighbour are allowed, and the neighbour
    pays -1). `truncates` ends episodes by truncation instead of termination.
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
        elif self._kind == "binary":
            reward = float(np.mean(action == self._cue))
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


class SlowEnv(ToyEnv):
    """A ToyEnv with one bottleneck, so that tools can be tried on it.

    `fault` is "loop" (a Python loop of `size` turns in every step), "reset" (a sleep of `size` ms in every reset),
    "items" (`size` numbers taken one by one out of a tensor in every step), "leak" (`size` bytes that every step keeps
    for ever) or "sleep" (`size` ms in every step).
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
        """Reset, after a sleep if that is the fault."""
        if self._fault == "reset":
            time.sleep(self._size / 1e3)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and waste time or memory."""
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


def check_env(env: gymnasium.Env[Any, Any], steps: int = 200, seed: int = 0) -> list[str]:
    """Play random steps and list everything that would hurt training; an empty list is good news."""
    try:
        check = _Check(env, seed)
    except SlipstreamError as error:
        return [str(error)]
    check.play(steps)
    return list(dict.fromkeys(check.problems))


class _Check:
    """Random play that keeps a list of what was wrong, each part of an observation looked at by itself."""

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int) -> None:
        self.problems: list[str] = []
        self._env, self._seed = env, seed
        self._spec = spec_of(env, type(env).__name__)
        self._parts = leaves(env.observation_space)
        self._largest = dict.fromkeys((part.name for part in self._parts), 0.0)
        self._mask, self._decode = mask_of(env), action_decoder(env.action_space)
        self._random = np.random.default_rng(seed)

    def play(self, steps: int) -> None:
        """Reset twice, then step; stop early where problems pile up."""
        first, _ = self._env.reset(seed=self._seed)
        again, _ = self._env.reset(seed=self._seed)
        self._compare(first, again)
        self._env.action_space.seed(self._seed)
        ended = 0
        for step in range(steps):
            obs, reward, terminated, truncated, _ = self._env.step(self._choose(step))
            for part in self._parts:
                self._look(part, obs, f"The observation{_called(part)} at step {step}")
            if not np.isfinite(float(reward)):
                self.problems.append(f"The reward at step {step} is not finite: {reward}.")
            if terminated or truncated:
                ended += 1
                self._env.reset()
            if len(self.problems) > 10:
                break
        if not ended:
            self.problems.append(f"No episode ended within {steps} random steps: is there a time limit?")
        for part in self._parts:
            if self._largest[part.name] > 1e3:
                what = f"Observations{_called(part)} pass 1,000 in size"
                self.problems.append(f"{what}: scale them, or keep ppo.normalise_obs on.")

    def _compare(self, first: Any, again: Any) -> None:
        for part in self._parts:
            self._look(part, again, f"The observation{_called(part)} at reset")
            try:
                same = np.array_equal(np.asarray(part.find(first)), np.asarray(part.find(again)))
            except LookupError:
                continue
            if not same:
                self.problems.append(
                    f"reset(seed=...) gives different observations{_called(part)} for the same seed: "
                    "runs cannot be repeated."
                )

    def _look(self, part: Leaf, obs: Any, what: str) -> None:
        try:
            value = part.find(obs)
        except (LookupError, TypeError):
            self.problems.append(f"{what} is missing.")
            return
        if not part.space.contains(value):
            self.problems.append(f"{what} is not in observation_space ({part.space}).")
        try:
            numbers = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            return
        if not np.isfinite(numbers).all():
            self.problems.append(f"{what} is not finite.")
        elif (
            numbers.size and self._spec.obs.places[part.name][0].kind == "vector" and isinstance(part.space, spaces.Box)
        ):
            self._largest[part.name] = max(self._largest[part.name], float(np.abs(numbers).max()))

    def _choose(self, step: int) -> Any:
        """A random action, one that the mask allows where there is one."""
        if not self._spec.action.masked or self._mask is None:
            return self._env.action_space.sample()
        mask, sizes = np.asarray(self._mask()).reshape(-1), self._spec.action.sizes
        if mask.size != sum(sizes):
            self.problems.append(f"The action mask at step {step} has {mask.size} columns, not {sum(sizes)}.")
            return self._env.action_space.sample()
        action = np.zeros((1, len(sizes)), np.int32)
        for number, options in enumerate(np.split(mask, np.cumsum(sizes)[:-1])):
            if options.any():
                action[0, number] = self._random.choice(np.flatnonzero(options))
            else:
                self.problems.append(f"The action mask at step {step} allows nothing in part {number}.")
        return self._decode(action)[0]


def _called(part: Leaf) -> str:
    return f" `{part.name}`" if part.path else ""
