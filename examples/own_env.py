"""Train on an environment of your own, from Python: no registration, no settings file."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import slipstream as ss
from slipstream.testing import check_env


class Thermostat(gymnasium.Env[Any, Any]):
    """Keep a room at its target; heating lags, and each degree away costs."""

    def __init__(self, length: int = 40) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3)  # cool, nothing, heat
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin too cold or too warm."""
        super().reset(seed=seed)
        self._away, self._heat, self._step = float(self.np_random.uniform(-2, 2)), 0.0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The time limit truncates: the room would have gone on."""
        self._heat = 0.7 * self._heat + 0.15 * (int(action) - 1)
        self._away = float(np.clip(self._away + self._heat, -10, 10))
        self._step += 1
        return self._seen(), -abs(self._away), False, self._step == self._length, {}

    def _seen(self) -> Any:
        return np.array([self._away, self._heat], np.float32)


problems = check_env(Thermostat())
assert not problems, problems

with TemporaryDirectory() as folder:
    run = ss.train(lambda: Thermostat(), steps=50_000, run=Path(folder) / "run", plan__envs=16, ppo__minibatch=512)
    trained = ss.evaluate(f"run:{run.path}", lambda: Thermostat(), games=50)
    random = ss.evaluate("random", lambda: Thermostat(), games=50)
    print(f"mean return: trained {trained['mean_return']:.1f}, random {random['mean_return']:.1f}")
    print("too cold:", ["cool", "nothing", "heat"][int(run.agent().act([-2.0, 0.0]))])
