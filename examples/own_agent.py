"""Follow a controller of your own, then overtake it: record it, clone it, train from the clone, and compare."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import slipstream as ss

SETTINGS: dict[str, Any] = {"steps": 200_000, "ppo__gamma": 0.97, "ppo__epochs": 10, "ppo__learning_rate": 1e-3}


class Docking(gymnasium.Env[Any, Any]):
    """Bring a ship to rest at a dock: thrust is limited, and every metre and every metre per second costs."""

    observation_space = spaces.Box(-20.0, 20.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start at a random distance and speed."""
        super().reset(seed=seed)
        self._metres, self._speed, self._step = *self.np_random.uniform((-5, -1), (5, 1)), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step of 0.2 seconds."""
        self._speed = float(np.clip(self._speed + 0.2 * action[0], -20, 20))
        self._metres = float(np.clip(self._metres + 0.2 * self._speed, -20, 20))
        self._step += 1
        return self._seen(), -0.1 * (abs(self._metres) + 0.1 * abs(self._speed)), False, self._step == 60, {}

    def _seen(self) -> Any:
        return np.array([self._metres, self._speed], np.float32)


class Pilot:
    """Steers towards the dock, and brakes; the gains were guessed, and the hand is not quite steady."""

    def reset(self, seed: int) -> None:
        """Begin an episode with its own source of randomness."""
        self._rng = np.random.default_rng(seed)

    def act(self, obs: Any) -> Any:
        """A proportional-derivative controller."""
        metres, speed = obs
        return [-0.3 * metres - 0.7 * speed + self._rng.normal(0.0, 0.05)]


def main(folder: Path) -> None:
    """Record, clone, train and compare."""
    ss.record(Pilot, Docking, 64, folder / "demos", workers=2)
    clone = ss.clone(folder / "demos", run=folder / "clone", clone__epochs=10, on_notice=lambda line: None)
    run = ss.train(Docking, run=folder / "run", start=f"run:{clone.path}", **SETTINGS)
    for name, agent in (("clone", clone.agent()), ("trained", run.agent())):
        facts = ss.evaluate(agent, Docking, beside=Pilot, games=100)
        gain, low, high = (facts["beside"][f"return_gain{end}"] for end in ("", "_low", "_high"))
        print(f"{name}: return {facts['mean_return']:.2f}, {gain:+.2f} [{low:+.2f}, {high:+.2f}] beside the pilot")


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        main(Path(name))
