"""A task that needs memory and action masks: a cue, a wait, and then the answer. Importing this module registers it.

Step 0 shows one of two cues, `BLANKS` steps show nothing, and the next step shows the go signal: the action of the cue
gives reward 1, the other one -1, and the episode ends. `action_masks` allows only waiting before the go signal, and
everything else at it. A forbidden action is an error.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NAME = "DelayedCue-v0"
BLANKS = 8
WAIT = 2


class DelayedCue(gymnasium.Env[Any, Any]):
    """Observations are [cue 0, cue 1, go], actions are [answer 0, answer 1, wait]."""

    def __init__(self) -> None:
        """Create the spaces."""
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._cue = 0
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the next cue and show it."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(2))
        self._step = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait, or answer and end."""
        if not self.action_masks()[action]:
            raise ValueError(f"Action {action} is forbidden at step {self._step}.")
        if self._go:
            return self._look(), 1.0 if action == self._cue else -1.0, True, False, {}
        self._step += 1
        return self._look(), 0.0, False, False, {}

    def action_masks(self) -> Any:
        """The actions that are allowed now, one bool each."""
        return np.array([self._go, self._go, not self._go])

    @property
    def _go(self) -> bool:
        return self._step > BLANKS

    def _look(self) -> Any:
        first = self._step == 0
        return np.array([first and self._cue == 0, first and self._cue == 1, self._go], np.float32)


class Forgiving(gymnasium.Wrapper[Any, Any, Any, Any]):
    """For learners without masks: observations include the mask; a forbidden action becomes the first allowed one."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Wrap `env`, which has `action_masks`."""
        super().__init__(env)
        self._mask = env.get_wrapper_attr("action_masks")
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        assert isinstance(env.action_space, spaces.Discrete)
        options = int(env.action_space.n)
        low, high = (np.concatenate([side, np.full(options, fill)]) for side, fill in ((space.low, 0), (space.high, 1)))
        self.observation_space = spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        """Reset; the observation includes the mask."""
        obs, info = self.env.reset(**how)
        return self._show(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with an allowed action; the observation includes the next mask."""
        mask = self._mask()
        obs, *rest = self.env.step(action if mask[action] else int(np.argmax(mask)))
        return self._show(obs), *rest

    def _show(self, obs: Any) -> Any:
        return np.concatenate([obs, self._mask()]).astype(np.float32)


gymnasium.register(NAME, entry_point=DelayedCue, max_episode_steps=BLANKS + 2)
