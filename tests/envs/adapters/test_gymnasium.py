"""The Gymnasium adapter: the spec of an env, and unsupported envs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

import slipstream as ss
from slipstream.contracts import ActionSpec, EnvSpec, ObsField, ObsSpec, empty_rows
from slipstream.envs.adapters import gymnasium as adapter
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, EnvError
from slipstream.settings import EnvSettings
from slipstream.testing import ToyEnv
from slipstream.vector.make import make_one, make_vector


class Spaces(gymnasium.Env[Any, Any]):
    """An env of given spaces."""

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        self.observation_space = observation_space or spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)


def test_the_spec_is_read_off_the_spaces() -> None:
    """The spec of a Gymnasium env has its observations, actions and name, one agent, and is not exact."""
    env = Spaces(spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(0, 255, (9, 9), np.uint8)}))
    spec = adapter.env_spec(env, "mine")
    fields = (ObsField("a", "vector", (3,)), ObsField("b", "image", (9, 9, 1)))
    assert spec == EnvSpec("mine", ObsSpec(fields), ActionSpec("discrete", (2,)))


def test_masks_are_noticed() -> None:
    """An env with `action_masks` is masked, also behind wrappers."""
    assert adapter.env_spec(ToyEnv("masked"), "x").action.masked
    assert adapter.env_spec(TimeLimit(ToyEnv("masked"), 5), "x").action.masked
    assert not adapter.env_spec(ToyEnv(), "x").action.masked


def test_an_action_mask_among_the_observations_is_an_observation() -> None:
    """An observation key `action_mask` has no effect; only a method `action_masks` masks."""
    seen = spaces.Dict({"action_mask": spaces.MultiBinary(2), "obs": spaces.Box(-1, 1, (2,), np.float32)})
    spec = adapter.env_spec(Spaces(seen), "x")
    assert not spec.action.masked and [field.name for field in spec.obs.fields] == ["action_mask", "obs"]


def test_an_env_that_is_not_registered() -> None:
    """An unknown id gets a suggestion and the flag for importing a module."""
    with pytest.raises(EnvError) as caught:
        adapter.make("CartPole-v11", {})
    assert str(caught.value).startswith("Gymnasium has no environment `CartPole-v11`. Did you mean `CartPole-v")
    assert "add --import MODULE" in caught.value.hint


def test_an_env_that_cannot_be_made() -> None:
    """The original error is passed on: a wrong option, a missing package."""
    with pytest.raises(EnvError) as caught:
        adapter.make("CartPole-v1", {"no_such_option": 1})
    assert str(caught.value).startswith("The environment `CartPole-v1` could not be made: ")
    assert "no_such_option" in str(caught.value)
    assert "env.options" in caught.value.hint


def test_checking_wrappers_are_taken_off_and_the_limit_is_kept() -> None:
    """Gymnasium's outer wrappers are removed; a second time limit or another wrapper stays."""
    bare = ToyEnv()
    env, limit = adapter.strip_wrappers(OrderEnforcing(TimeLimit(bare, 7)))
    assert env is bare and limit == 7
    env, limit = adapter.strip_wrappers(TimeLimit(TimeLimit(bare, 5), 9))
    assert isinstance(env, TimeLimit) and limit == 9
    made, limit = adapter.strip_wrappers(gymnasium.make("CartPole-v1"))
    assert type(made).__name__ == "CartPoleEnv" and limit == 500


@pytest.mark.parametrize("actions", ["discrete", "multi_discrete", "binary", "continuous", "masked"])
def test_the_toy_env_pays_its_known_optimum(actions: str) -> None:
    """The optimal player gets the episode length as return, and a random player much less."""
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
    assert "`gymnasium:antigravity:Any-v0`" in caught.value.message
    assert caught.value.hint == "write gymnasium:Any-v0 --import antigravity"
    assert "antigravity" not in sys.modules


class Old:
    """An environment with the old Gym API and its own space classes."""

    class Box(NamedTuple):
        """A box space, as in crafter without gym."""

        low: Any
        high: Any
        shape: tuple[int, ...]
        dtype: Any

    class Choice(NamedTuple):
        """One of n."""

        n: int

    def __init__(self) -> None:
        self.observation_space, self.action_space = self.Box(0, 255, (9, 9, 3), np.uint8), self.Choice(3)
        self.seeded: list[int] = []
        self._steps = 0

    def seed(self, seed: int) -> None:
        """Seed the old way."""
        self.seeded.append(seed)

    def reset(self) -> Any:
        """Return only an observation."""
        self._steps = 0
        return np.full((9, 9, 3), 7, np.uint8)

    def step(self, action: int) -> Any:
        """Return four values; every other episode is truncated."""
        self._steps += 1
        return np.full((9, 9, 3), self._steps, np.uint8), action, self._steps == 3, {"TimeLimit.truncated": action == 2}

    def action_masks(self) -> Any:
        """Allow every action."""
        return np.ones(3)


def test_old_gym_environments_are_converted() -> None:
    """Four values become five, a seed is passed on, and spaces are converted by their attributes."""
    env = adapter.as_gymnasium_env(Old())
    assert env.observation_space == spaces.Box(0, 255, (9, 9, 3), np.uint8) and env.action_space == spaces.Discrete(3)
    obs, info = env.reset(seed=4)
    assert obs.shape == (9, 9, 3) and info == {} and env.seeded == [4]
    assert env.step(1)[1:4] == (1.0, False, False)
    assert env.step(1)[1:4] == (1.0, False, False)
    assert env.step(1)[1:4] == (1.0, True, False)
    env.reset()
    assert [env.step(2)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    assert adapter.action_mask_method(env) is not None
    env.close()
    fields = {"a": Old.Choice(2), "b": SimpleNamespace(spaces=[SimpleNamespace(nvec=[2, 3]), Old.Choice(4)])}
    adopted = adapter._convert_space(SimpleNamespace(spaces=fields))
    inner = spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Discrete(4)])
    assert adopted == spaces.Dict({"a": spaces.Discrete(2), "b": inner})
    with pytest.raises(EnvError, match="Spaces of the class object are not supported"):
        adapter._convert_space(object())


@pytest.mark.slow
def test_an_old_gym_environment_trains(tmp_path: Path) -> None:
    """An old Gym env can be trained on, in worker processes too."""
    for collector in ("local", "actors"):
        run = ss.train(
            Old,
            steps=256,
            run=tmp_path / collector,
            preset="smoke",
            plan__collector=collector,
            plan__envs=4,
            plan__workers=2,
            ppo__rollout=16,
        )
        assert run.facts["steps"] >= 256


def test_wrappers_are_applied_by_name() -> None:
    """The first wrapper is innermost, arguments are passed, and the time limit stays outermost."""
    given = ("FlattenObservation", {"ClipReward": {"min_reward": 0.0, "max_reward": 0.5}})
    choice = EnvChoice("gymnasium:CartPole-v1", env=EnvSettings(wrappers=given, options={"max_episode_steps": 20}))
    env = make_one(choice)
    assert type(env).__name__ == "ClipReward" and type(env.env).__name__ == "FlattenObservation"
    env.close()
    vector = make_vector(choice, 2)
    rows = empty_rows(vector.spec, 2)
    vector.reset(rows)
    vector.step(np.zeros((2, 1), np.int32), rows)
    assert rows.reward.tolist() == [0.5, 0.5]
    for step in range(2, 21):
        vector.step((3 * rows.obs[:, 2:3] + rows.obs[:, 3:] > 0).astype(np.int32), rows)
        assert not rows.terminated.any() and rows.truncated.all() == (step == 20)
    vector.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("FlattenObservations", "no wrapper `FlattenObservations`. Did you mean `FlattenObservation`"),
        ("os.system", "no wrapper `os.system`"),
        ({"ClipReward": {"lowest": 1}}, "ClipReward cannot be applied: .*lowest"),
        ("FrameStackObservation", "FrameStackObservation cannot be applied: .*stack_size"),
    ],
)
def test_wrappers_that_cannot_be(given: Any, message: str) -> None:
    """A name that is not a Gymnasium wrapper and wrong arguments are errors, and nothing is imported."""
    with pytest.raises(ConfigError, match=message):
        adapter.wrap(ToyEnv(), [given])
