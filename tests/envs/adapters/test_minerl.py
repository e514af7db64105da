"""The live adapter, with a real game that has MineRL's API: treechop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from slipstream.api import Run
from slipstream.contracts import empty_rows
from slipstream.envs.adapters.minerl import MineRLEnv
from slipstream.envs.registry import EnvChoice
from slipstream.envs.treechop.minerl_api import MineRLTreechop
from slipstream.envs.treechop.minerl_spaces import Treechop
from slipstream.errors import ConfigError, EnvError
from slipstream.minecraft.frames import FrameAdapter
from slipstream.settings import EnvSettings
from slipstream.vector.make import make_vector


def test_rows_of_a_live_game_are_those_of_the_built_in_one() -> None:
    """Through the old API, the adapter and a serial vector: the same observations, rewards and ends as natively."""
    live = make_vector(
        EnvChoice("python:live", factory=lambda: MineRLEnv(MineRLTreechop(seconds=1.0, scalars=True))), 1
    )
    native = Treechop(1, match_seconds=1.0, options={"scalars": True})
    assert live.spec.obs == native.spec.obs and live.spec.action == native.spec.action
    ours, theirs = empty_rows(native.spec, 1), empty_rows(live.spec, 1)
    live.reset_envs([0], theirs, [5])
    native.reset(ours)
    native.reset_envs([0], ours, [5])
    assert np.array_equal(ours.obs, theirs.obs)
    for step in range(20):
        action = np.array([[(1, 11, 12, 9, 6)[step % 5]]], np.int32)
        live.step(action, theirs)
        native.step(action, ours)
        assert ours.reward[0] == theirs.reward[0] and ours.truncated[0] == theirs.truncated[0] == (step == 19)
        if step < 19:
            assert np.array_equal(ours.obs, theirs.obs)
    assert np.array_equal(ours.final_obs, theirs.final_obs)
    live.close()


def test_frames_are_shrunk_grey_and_stacked_as_imported_ones() -> None:
    """A stack holds the frames of the episode after the frame adapter."""
    adapter = FrameAdapter((32, 32), grey=True, stack=3)
    env, plain = MineRLEnv(MineRLTreechop(seed=2), adapter=adapter), MineRLTreechop(seed=2)
    frames, seen = [plain.reset()["pov"]], [env.reset()[0]["pov"]]
    for _ in range(4):
        frames.append(plain.step({"camera": np.array([0.0, 15.0])})[0]["pov"])
        seen.append(env.step(env.map.names.index("look right"))[0]["pov"])  # type: ignore[attr-defined]
    expected = adapter.obs_spec((64, 64, 3)).split(adapter.encode(np.stack(frames)))["pov"]
    assert np.array_equal(np.stack(seen), expected)


class Workshop:
    """A game with MineRL's API, with strings in observations and actions, and five values from `step`."""

    class Words(spaces.Discrete):
        """An enumeration as MineRL's spaces have it."""

        def __init__(self, *values: str) -> None:
            super().__init__(len(values))
            self.values = values

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        hand = spaces.Dict({"type": self.Words("none", "air", "iron_axe")})
        pov = spaces.Box(0, 255, (8, 8, 3), np.uint8)
        self.observation_space = spaces.Dict({"pov": pov, "equipped_items": spaces.Dict({"mainhand": hand})})
        buttons = {name: spaces.Discrete(2) for name in ("attack", "forward", "use")}
        camera = spaces.Box(-180, 180, (2,), np.float32)
        self.action_space = spaces.Dict(buttons | {"camera": camera, "craft": self.Words("none", "planks")})

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a game."""
        return self._see("air"), {}

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Record the action."""
        self.taken.append(action)
        return self._see("iron_axe"), 1.0, False, True, {}

    def _see(self, word: str) -> dict[str, Any]:
        return {"pov": np.zeros((8, 8, 3), np.uint8), "equipped_items": {"mainhand": {"type": word}}}


def test_strings_are_one_hot_and_missing_buttons_are_null() -> None:
    """Buttons that the game does not have are not passed on; its strings are parts of the full map only."""
    game = Workshop()
    env = MineRLEnv(game)
    assert env.reset()[0]["equipped_items/mainhand/type"].tolist() == [0, 1, 0]
    obs, reward, terminated, truncated, _ = env.step(9)  # attack + forward
    assert obs["equipped_items/mainhand/type"].tolist() == [0, 0, 1] and (reward, terminated, truncated) == (1, 0, 1)
    (done,) = game.taken
    assert set(done) == {"attack", "forward", "use", "camera", "craft"} and done["craft"] == "none"
    assert done["attack"] == done["forward"] == 1 and done["use"] == 0 and done["camera"].tolist() == [0, 0]
    full = MineRLEnv(game, actions="full")
    action = np.zeros(full.map.spec.parts, np.int64)
    action[-3:] = 1, 5, 5  # craft planks, the camera at rest
    full.reset()
    full.step(action)
    assert game.taken[-1]["craft"] == "planks" and game.taken[-1]["use"] == 0


def test_an_env_without_the_api_is_refused() -> None:
    """An env without MineRL's API is an error that lists its keys and the required ones."""
    env = type("Other", (), {"observation_space": spaces.Discrete(2), "action_space": spaces.Discrete(2)})()
    with pytest.raises(EnvError, match="does not have MineRL's API"):
        MineRLEnv(env)


@pytest.mark.parametrize("name", ["minerl:MineRLTreechop-v0", "minecraft:MineRLTreechop-v0"])
def test_without_the_package_one_clear_message(name: str) -> None:
    """Without the package, the error states why it cannot be installed and the alternatives."""
    with pytest.raises(EnvError) as caught:
        make_vector(EnvChoice(name), 1)
    assert "pip cannot install minerl" in caught.value.message
    assert "treechop" in caught.value.hint and "slipstream demos import minerl" in caught.value.hint


def test_unknown_options_are_named() -> None:
    """Unknown options are errors."""
    choice = EnvChoice("minerl:MineRLTreechop-v0", EnvSettings(options={"stak": 2}))
    with pytest.raises(ConfigError, match=r"Did you mean `env\.options\.stack`"):
        make_vector(choice, 1)


def test_a_live_game_with_numbers_and_memory_is_trained(quick: Callable[..., Run]) -> None:
    """PPO learns on pixels and scalars with an LSTM, from a game that has only MineRL's API."""
    policy = {"policy__hidden": (16,), "policy__features": 16}
    memory = {"policy__memory": "lstm", "policy__memory_size": 16, "policy__sequence": 8}
    samples = {"plan__envs": 2, "ppo__rollout": 32, "ppo__minibatch": 64, "ppo__epochs": 1}
    evaluation = {"evaluation__final_games": 1, "evaluation__envs": 1}
    run = quick(
        lambda: MineRLEnv(MineRLTreechop(seconds=2.0, scalars=True)),
        steps=256,
        **policy,
        **memory,
        **samples,
        **evaluation,
    )
    assert run.facts["steps"] >= 256
