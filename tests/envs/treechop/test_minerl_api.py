"""Treechop with MineRL's API: its spaces, its four things, and the same games as the vector plays."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.envs.treechop.minerl_api import MineRLTreechop
from slipstream.errors import EnvError
from slipstream.minecraft.action_maps import BUTTONS
from treechop_games import begun, press


def test_the_spaces_are_minerltreechops() -> None:
    """`pov` of 64 x 64 x 3 bytes; eight buttons and a camera of two angles up to 180 degrees."""
    env = MineRLTreechop()
    assert list(env.observation_space.spaces) == ["pov"]
    pov, camera = env.observation_space["pov"], env.action_space["camera"]
    assert pov.shape == (64, 64, 3) and pov.dtype == np.uint8
    assert set(env.action_space.spaces) == {*BUTTONS, "camera"}
    assert camera.shape == (2,) and camera.low.tolist() == [-180, -180] and camera.dtype == np.float32
    assert env.reset() in env.observation_space


def test_a_step_gives_what_the_vector_gives() -> None:
    """From the same seed and by the same buttons, frames and rewards are equal to the bit."""
    env = MineRLTreechop(seed=3, seconds=2.0)
    game, rows = begun(seed=3, match_seconds=2.0)
    assert np.array_equal(env.reset()["pov"].reshape(-1), rows.obs[0])
    for step in range(40):
        action = {"forward": 1, "camera": np.array([0.0, 3.0], np.float32)}
        obs, reward, done, info = env.step(action)
        paid = press(game, rows, "forward", camera=(0.0, 3.0))
        shown = rows.final_obs if done else rows.obs
        assert np.array_equal(obs["pov"].reshape(-1), shown[0]) and reward == paid == rows.reward[0]
        assert done == (step == 39) and info == ({"TimeLimit.truncated": True} if done else {})


def test_seeds_name_games_and_scalars_are_shown() -> None:
    """The same seed starts the same game; scalars have MineRL's names."""
    env = MineRLTreechop(scalars=True)
    env.seed(7)
    first = env.reset()
    assert not np.array_equal(env.reset()["pov"], first["pov"])
    env.seed(7)
    again = env.reset()
    assert np.array_equal(again["pov"], first["pov"]) and again in env.observation_space
    assert first["inventory"]["log"] == 0 and -180 <= first["compass"]["angle"] <= 180


@pytest.mark.parametrize("task", ["hills", "rough"])
def test_tasks_and_the_size_are_those_of_the_vector(task: str) -> None:
    """A larger image of another task has its space, and equals the vector's to the bit."""
    env = MineRLTreechop(task, seed=3, size=128)
    _, rows = begun(1, task, seed=3, options={"size": 128})
    first = env.reset()
    assert first in env.observation_space and first["pov"].shape == (128, 128, 3)
    assert np.array_equal(first["pov"].reshape(-1), rows.obs[0])
    assert env.step({"attack": 1})[0] in env.observation_space


def test_a_step_before_a_reset_is_an_error() -> None:
    """Stepping before reset raises an error with a hint."""
    with pytest.raises(EnvError, match="before reset"):
        MineRLTreechop().step({})
