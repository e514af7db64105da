"""The Gymnasium adapter: what it reads off an env, and what it refuses."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from slipstream.core.contracts import ActionSpec
from slipstream.core.errors import EnvError
from slipstream.envs.adapters import gymnasium as adapter
from slipstream.testing import BrokenEnv, ToyEnv, check_env


class Spaces(gymnasium.Env[Any, Any]):
    """An env of given spaces."""

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        self.observation_space = observation_space or spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3, start=4), ActionSpec("discrete", (3,))),
        (spaces.MultiDiscrete([3, 2]), ActionSpec("multi_discrete", (3, 2))),
        (spaces.MultiBinary(2), ActionSpec("multi_discrete", (2, 2))),
        (
            spaces.Box(np.array([-1, 0]), np.array([1, 5]), dtype=np.float64),
            ActionSpec("continuous", (), (-1, 0), (1, 5)),
        ),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), ActionSpec("continuous", (), (-np.inf,), (np.inf,))),
    ],
)
def test_actions_are_read_off_the_space(space: Any, action: ActionSpec) -> None:
    """Each space that a policy can act in becomes its action spec."""
    assert adapter.spec_of(Spaces(action_space=space), "x").action == action


def test_masks_are_noticed() -> None:
    """An env with `action_masks` is masked, through wrappers too."""
    assert adapter.spec_of(ToyEnv("masked"), "x").action.masked
    assert adapter.spec_of(TimeLimit(ToyEnv("masked"), 5), "x").action.masked
    assert not adapter.spec_of(ToyEnv(), "x").action.masked


def test_observations_that_no_policy_can_read_are_refused() -> None:
    """The space is named, and the wrapper that helps."""
    with pytest.raises(EnvError) as caught:
        adapter.spec_of(Spaces(spaces.Dict({"a": spaces.Discrete(2)})), "mine")
    assert str(caught.value) == (
        "The observations of `mine` are a Dict, which no policy here can read yet.\n"
        "hint: wrap the env with gymnasium.wrappers.FlattenObservation"
    )
    assert caught.value.code == 3


@pytest.mark.parametrize("space", [spaces.Tuple([spaces.Discrete(2)]), spaces.Box(0, 5, (2,), np.int32)])
def test_actions_that_no_policy_can_choose_are_refused(space: Any) -> None:
    """The space is named, and those that work."""
    with pytest.raises(EnvError) as caught:
        adapter.spec_of(Spaces(action_space=space), "mine")
    assert str(caught.value) == (
        f"The actions of `mine` are a {type(space).__name__}, which no policy here can choose.\n"
        "hint: use Discrete, MultiDiscrete, MultiBinary or a Box of floats"
    )


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
    assert check_env(BrokenEnv("nan_reward", at=3)) == ["The reward at step 2 is not finite: nan."]
    said = check_env(BrokenEnv("nan_obs", at=3))
    assert said[0].startswith("The observation at step 2 is not in observation_space")
    assert said[1] == "The observation at step 2 is not finite."
    assert check_env(ToyEnv(length=500))[0] == "No episode ended within 200 random steps: is there a time limit?"
    assert "are a Dict" in check_env(Spaces(spaces.Dict({"a": spaces.Discrete(2)})))[0]


@pytest.mark.parametrize("actions", ["discrete", "multi_discrete", "continuous", "masked"])
def test_the_toy_env_pays_its_known_optimum(actions: str) -> None:
    """The best player earns the length of the episode, and playing at random earns much less."""
    env = ToyEnv(actions)
    obs, _ = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        cue = int(obs.argmax())
        best = {"multi_discrete": np.array([cue, cue % 2]), "continuous": obs}.get(actions, cue)
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
