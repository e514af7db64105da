"""The Gymnasium adapter: what it reads off an env, and what it refuses."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from slipstream.core.contracts import ActionSpec, EnvSpec, ObsField, ObsSpec
from slipstream.core.errors import EnvError
from slipstream.envs.adapters import gymnasium as adapter
from slipstream.testing import BrokenEnv, ToyEnv, check_env


class Spaces(gymnasium.Env[Any, Any]):
    """An env of given spaces."""

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        self.observation_space = observation_space or spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)


def test_the_spec_is_read_off_the_spaces() -> None:
    """Observations, actions and the name are all there is to a Gymnasium env: one agent, nothing exact."""
    env = Spaces(spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 255, (9, 9), np.uint8)}))
    spec = adapter.spec_of(env, "mine")
    fields = (ObsField("a", "vector", (3,)), ObsField("b", "image", (9, 9, 1)))
    assert spec == EnvSpec("mine", ObsSpec(fields), ActionSpec("discrete", (2,)))


def test_masks_are_noticed() -> None:
    """An env with `action_masks` is masked, through wrappers too."""
    assert adapter.spec_of(ToyEnv("masked"), "x").action.masked
    assert adapter.spec_of(TimeLimit(ToyEnv("masked"), 5), "x").action.masked
    assert not adapter.spec_of(ToyEnv(), "x").action.masked


def test_an_action_mask_among_the_observations_is_an_observation() -> None:
    """A key called `action_mask` is nothing special: only a method `action_masks` masks."""
    seen = spaces.Dict({"action_mask": spaces.MultiBinary(2), "obs": spaces.Box(-1, 1, (2,), np.float32)})
    spec = adapter.spec_of(Spaces(seen), "x")
    assert not spec.action.masked and [field.name for field in spec.obs.fields] == ["action_mask", "obs"]


def test_an_env_that_is_not_registered() -> None:
    """The nearest id is offered, and the flag for one's own module."""
    with pytest.raises(EnvError) as caught:
        adapter.make("CartPole-v11", {})
    assert str(caught.value).startswith("Gymnasium has no environment `CartPole-v11`. Did you mean `CartPole-v")
    assert "add --import MODULE" in caught.value.hint


def test_an_env_that_cannot_be_made() -> None:
    """What the maker says is passed on: a wrong option, a missing package."""
    with pytest.raises(EnvError) as caught:
        adapter.make("CartPole-v1", {"no_such_option": 1})
    assert str(caught.value).startswith("The environment `CartPole-v1` could not be made: ")
    assert "no_such_option" in str(caught.value)
    assert caught.value.hint == "install what it needs, or check env.options"


def test_checking_wrappers_are_taken_off_and_the_limit_is_kept() -> None:
    """Gymnasium's outer wrappers go, a second limit or another wrapper stays."""
    bare = ToyEnv()
    env, limit = adapter.strip(OrderEnforcing(TimeLimit(bare, 7)))
    assert env is bare and limit == 7
    env, limit = adapter.strip(TimeLimit(TimeLimit(bare, 5), 9))
    assert isinstance(env, TimeLimit) and limit == 9
    made, limit = adapter.strip(gymnasium.make("CartPole-v1"))
    assert type(made).__name__ == "CartPoleEnv" and limit == 500


def test_check_env_lists_all_problems_at_once() -> None:
    """A good env has none; a broken one has each named."""
    assert check_env(ToyEnv()) == []
    assert check_env(ToyEnv("masked")) == []
    assert check_env(ToyEnv("binary")) == []
    assert check_env(BrokenEnv("nan_reward", at=3)) == ["The reward at step 2 is not finite: nan."]
    said = check_env(BrokenEnv("nan_obs", at=3))
    assert said[0].startswith("The observation at step 2 is not in observation_space")
    assert said[1] == "The observation at step 2 is not finite."
    assert check_env(ToyEnv(length=500))[0] == "No episode ended within 200 random steps: is there a time limit?"
    assert check_env(Spaces(spaces.Text(3)))[0].startswith("The observations of `Spaces` are a Text")


class Nested(gymnasium.Env[Any, Any]):
    """A dict of many things, of which some may be wrong; actions are a masked tuple."""

    def __init__(self, mask: Any = (1, 1, 0, 1, 1, 0), **wrong: Any) -> None:
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (8, 8), np.uint8),
                "place": spaces.Tuple((spaces.Discrete(2000), spaces.Box(-np.inf, np.inf, (2,), np.float64))),
            }
        )
        self.action_space = spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2)))
        self.heard: list[Any] = []
        self._mask, self._wrong = mask, wrong

    def action_masks(self) -> Any:
        """The first switch is always on and the second off."""
        return np.array(self._mask)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """End at once."""
        self.heard.append(action)
        return self._see(), 0.0, True, False, {}

    def _see(self) -> Any:
        image = np.full((8, 8), self.np_random.integers(256), np.uint8)
        return {"image": image, "place": (1999, np.array([1.0, 2.0]))} | self._wrong


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
def test_check_env_looks_into_dicts_and_tuples() -> None:
    """Each part of an observation is judged by itself and named; large choices and pixels are not large numbers."""
    assert check_env(Nested()) == []
    assert check_env(Nested(place=(3, np.array([1.0, np.nan]))), steps=1) == [
        "The observation `place/1` at reset is not in observation_space (Box(-inf, inf, (2,), float64)).",
        "The observation `place/1` at reset is not finite.",
        "reset(seed=...) gives different observations `place/1` for the same seed: runs cannot be repeated.",
        "The observation `place/1` at step 0 is not in observation_space (Box(-inf, inf, (2,), float64)).",
        "The observation `place/1` at step 0 is not finite.",
    ]
    assert check_env(Nested(place=(3, np.array([0.0, 1e4])))) == [
        "Observations `place/1` pass 1,000 in size: scale them, or keep ppo.normalise_obs on."
    ]
    assert check_env(Nested(place=()), steps=1)[0] == "The observation `place/0` at reset is missing."
    assert check_env(Nested(image="black"), steps=1)[0] == (
        "The observation `image` at reset is not in observation_space (Box(0, 255, (8, 8), uint8))."
    )


def test_check_env_plays_by_the_mask() -> None:
    """Only what a mask allows is played, and a mask that is too short or allows nothing is named."""
    env = Nested()
    assert check_env(env) == []
    assert {(choice, *switches.tolist()) for choice, switches in env.heard} == {(0, 1, 0), (1, 1, 0)}
    assert check_env(Nested((1, 1, 1, 1)), steps=1) == ["The action mask at step 0 has 4 columns, not 6."]
    assert check_env(Nested((1, 1, 0, 0, 1, 1)), steps=1) == ["The action mask at step 0 allows nothing in part 1."]


@pytest.mark.parametrize("actions", ["discrete", "multi_discrete", "binary", "continuous", "masked"])
def test_the_toy_env_pays_its_known_optimum(actions: str) -> None:
    """The best player earns the length of the episode, and playing at random earns much less."""
    env = ToyEnv(actions)
    obs, _ = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        cue = int(obs.argmax())
        best = {"multi_discrete": np.array([cue, cue % 2]), "binary": obs, "continuous": obs}.get(actions, cue)
        obs, reward, over, _, _ = env.step(best)
        total += reward
    assert total == pytest.approx(10)


def test_an_id_never_imports_a_module() -> None:
    """`module:Id` would make Gymnasium import the module; it is refused before that, with the flag to use instead."""
    with pytest.raises(EnvError) as caught:
        adapter.make("antigravity:Any-v0", {})
    assert str(caught.value) == (
        "`gymnasium:antigravity:Any-v0` names a module to import, which only a flag may do.\n"
        "hint: write gymnasium:Any-v0 --import antigravity"
    )
    assert "antigravity" not in sys.modules
