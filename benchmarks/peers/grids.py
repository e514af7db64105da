"""A slow environment in plain Python: MiniGrid's empty room with vector observations. Importing this registers it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from minigrid.envs import EmptyEnv

NAME = "FlatGrid-v0"
SIZE = 8


class FlatGrid(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The 7 x 7 cells in view, three numbers each, as 147 floats; the constant mission is left out."""

    def __init__(self, **options: Any) -> None:
        """Create the room."""
        super().__init__(EmptyEnv(size=SIZE, **options))
        image = self.env.observation_space["image"]  # type: ignore[index]
        self.observation_space = spaces.Box(0.0, 255.0, (int(np.prod(image.shape)),), np.float32)

    def observation(self, observation: Any) -> Any:
        """The observation as a vector."""
        return observation["image"].reshape(-1).astype(np.float32)


def make(**options: Any) -> FlatGrid:
    """A room. A function, because older versions of Gymnasium do not accept a wrapper class."""
    return FlatGrid(**options)


gymnasium.register(NAME, entry_point=make)
