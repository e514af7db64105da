"""Vectors under other trainers: the APIs of Gymnasium and Stable-Baselines3, compared with their own vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import slipstream as ss
from slipstream.errors import ConfigError, EnvError, EnvFault
from slipstream.testing import BrokenEnv, ToyEnv

STEPS = 60


class Everything(gymnasium.Env[Any, Any]):
    """One of each space with random values; episodes end randomly."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            frame=spaces.Box(0, 255, (3, 9, 8), np.uint8),
            words=spaces.MultiDiscrete([3, 4], start=[1, 0]),
            inner=spaces.Tuple((spaces.Discrete(5, start=-2), spaces.MultiBinary(3))),
            speed=spaces.Box(-1, 1, (2, 2), np.float64),
        )
        self.action_space = spaces.Dict(
            key=spaces.Discrete(3, start=1), more=spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])))
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The reward is a sum that differs for every action."""
        switches, (first, second) = action["more"]
        paid = int(action["key"]) * 100 + int(switches.sum()) * 10 + int(first) * 3 + int(second)
        over, cut = self.np_random.random(2) < 0.1
        return self._see(), float(paid), bool(over), bool(cut and not over), {}

    def _see(self) -> Any:
        draw = self.np_random.integers
        return {
            "frame": draw(0, 256, (3, 9, 8)).astype(np.uint8),
            "words": draw([1, 0], [4, 4]).astype(np.int64),
            "inner": (np.int64(draw(-2, 3)), draw(0, 2, 3).astype(np.int8)),
            "speed": self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32).astype(np.float64),
        }


MAKERS: dict[str, Callable[[], Any]] = {
    "CartPole": lambda: gymnasium.make("CartPole-v1", max_episode_steps=15),
    "Pendulum": lambda: gymnasium.make("Pendulum-v1", max_episode_steps=15),
    "everything": Everything,
    "binary": lambda: ToyEnv("binary", truncates=True),
}


def assert_same(ours: Any, theirs: Any) -> None:
    """Compare observations of any structure; ours are float32."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        one, other = np.asarray(ours), np.asarray(theirs)
        assert one.shape == other.shape and one.dtype == other.dtype
        assert np.array_equal(one, other) if other.dtype.kind != "f" else np.allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("workers", "how"), [(1, "serial"), (2, "processes"), (2, "threads")])
@pytest.mark.parametrize("name", MAKERS)
def test_it_is_what_gymnasium_would_give(name: str, workers: int, how: str) -> None:
    """Step for step the same as Gymnasium's own vector: spaces, observations, rewards, ends and last observations."""
    make = MAKERS[name]
    theirs = SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    ours = ss.make_vector(make, envs=3, workers=workers, vector=how)
    try:
        assert isinstance(ours, gymnasium.vector.VectorEnv) and ours.num_envs == 3
        assert ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.action_space == theirs.action_space and ours.observation_space == theirs.observation_space
        assert_same(ours.reset(seed=5)[0], theirs.reset(seed=5)[0])
        theirs.action_space.seed(1)
        ended = 0
        for _ in range(STEPS):
            actions = theirs.action_space.sample()
            obs, reward, terminated, truncated, infos = ours.step(actions)
            expected = theirs.step(actions)
            assert_same(obs, expected[0])
            assert np.allclose(reward, expected[1], rtol=1e-6) and reward.dtype == np.float64
            assert np.array_equal(terminated, expected[2]) and np.array_equal(truncated, expected[3])
            assert ("final_obs" in infos) == (terminated | truncated).any()
            for place in np.flatnonzero(terminated | truncated):
                ended += 1
                assert infos["_final_obs"][place]
                last = list(iterate(ours.observation_space, infos["final_obs"]))[place]
                assert_same(last, expected[4]["final_obs"][place])
        assert ended > 3
    finally:
        ours.close()
        theirs.close()


def test_what_is_given_stays() -> None:
    """Arrays that were returned are not written again."""
    env = ss.make_vector("gymnasium:CartPole-v1", envs=2)
    first = env.reset(seed=1)[0]
    kept = first.copy()
    env.step(np.array([0, 1]))
    assert np.array_equal(first, kept)
    env.close()


def test_gymnasiums_own_wrappers_take_it() -> None:
    """Returns and lengths of episodes, as Gymnasium's wrapper counts them."""
    env = RecordEpisodeStatistics(ss.make_vector(lambda: ToyEnv(length=4), envs=2))
    env.reset(seed=0)
    for _ in range(3):
        env.step(np.array([0, 1]))
    infos = env.step(np.array([0, 1]))[4]
    assert infos["episode"]["l"].tolist() == [4, 4]
    env.close()


def test_games_have_a_place_for_every_agent() -> None:
    """Soccer 1v1 has two sub-environments per game; the outcome is reported at the end."""
    env = ss.make_vector("soccer", envs=2, workers=1, env__match_seconds=0.5)
    assert env.num_envs == 4 and env.single_action_space == spaces.Discrete(18)
    obs, _ = env.reset(seed=3)
    assert obs.shape == (4, *env.single_observation_space.shape)
    for _ in range(60):
        infos = env.step(env.action_space.sample())[4]
        if "outcome" in infos:
            break
    assert infos["_outcome"].any() and set(infos["outcome"].tolist()) <= {-1, 0, 1}
    env.close()


def test_masks_are_in_the_infos() -> None:
    """Action masks are in the infos of every step and of the reset."""
    env = ss.make_vector(lambda: ToyEnv("masked"), envs=2)
    _, infos = env.reset(seed=0)
    for _ in range(5):
        mask = infos["action_mask"]
        assert mask.shape == (2, 4) and (mask.sum(axis=1) == 2).all()
        infos = env.step(mask.argmax(axis=1))[4]
    env.close()


def test_partial_resets_and_tasks() -> None:
    """A mask resets some environments, seeds may be a list, tasks are names; other options are refused."""
    env = ss.make_vector("soccer", envs=2, workers=1)
    env.reset(seed=[1, None, 2, None])
    for _ in range(5):
        before = env.step(env.action_space.sample())[0]
    after, _ = env.reset(options={"reset_mask": np.array([False, False, True, True])})
    assert np.array_equal(after[:2], before[:2]) and not np.array_equal(after[2:], before[2:])
    for options, message in (({"task": "4v4"}, "no task `4v4`"), ({"speed": 3}, "unknown options speed")):
        with pytest.raises(ConfigError, match=message):
            env.reset(options=options)
    with pytest.raises(ConfigError, match="2 seeds for 4 environments"):
        env.reset(seed=[1, 2])
    env.close()
    with pytest.raises(ConfigError, match="`api` cannot be 'jax'"):
        ss.make_vector("soccer", api="jax")


@pytest.fixture
def no_children() -> Iterator[None]:
    """No process is left behind."""
    before = {child.pid for child in psutil.Process().children()}
    yield
    left = [child for child in psutil.Process().children() if child.pid not in before]
    assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.usefixtures("no_children")
@pytest.mark.parametrize(("fault", "said"), [("die", "ended with exit code 7"), ("hang", "did not return")])
def test_it_survives_a_dying_worker(fault: Any, said: str) -> None:
    """A worker that dies or hangs is restarted: its episodes are truncated, the others continue."""
    env = ss.make_vector(lambda: BrokenEnv(fault, at=5, length=8), envs=4, workers=2, deadline_s=1.0)
    try:
        obs, _ = env.reset(seed=0)
        for _ in range(4):
            obs, *_ = env.step(np.zeros(4, int))
        with pytest.warns(RuntimeWarning, match=said) as caught:
            new, reward, terminated, truncated, infos = env.step(np.zeros(4, int))
        assert len(caught) == 2  # both workers step a broken env
        assert truncated.all() and not terminated.any() and not reward.any()
        assert np.array_equal(infos["final_obs"], obs)
        assert (new.sum(axis=1) == 1).all()
        after = env.step(np.zeros(4, int))
        assert not (after[2] | after[3]).any()
    finally:
        env.close()


@pytest.mark.usefixtures("no_children")
def test_it_does_not_go_on_for_ever() -> None:
    """A worker that dies repeatedly is an error, and an env that raises is one immediately."""
    env = ss.make_vector(lambda: BrokenEnv("die", at=2), envs=2, workers=2)
    env.reset(seed=0)
    with pytest.warns(RuntimeWarning), pytest.raises(EnvError, match="ended with exit code 7"):
        _step_on(env)
    env.close()
    env = ss.make_vector(lambda: BrokenEnv("raise", at=2), envs=2, workers=2)
    env.reset(seed=0)
    with pytest.raises(EnvFault, match="broken on purpose"):
        _step_on(env)
    env.close()


def _step_on(env: Any) -> None:
    for _ in range(20):
        env.step(np.zeros(env.num_envs, int))


def test_workers_are_chosen_by_what_a_step_takes() -> None:
    """Two quick environments are not worth two processes; slow ones are."""
    from slipstream.api import configure
    from slipstream.perf.env_timing import best_workers
    from slipstream.testing import SlowEnv
    from slipstream.training.build import choose_env
    from slipstream.vector.make import make_vector

    def probe(make: Callable[[], Any], envs: int = 1) -> Any:
        return make_vector(choose_env("python:Env", configure("python:Env").settings, factory=make), envs)

    assert best_workers(probe(ToyEnv), 2, 2) == 1
    asked: list[int] = []

    def more(envs: int) -> Any:
        asked.append(envs)
        return probe(ToyEnv, envs)

    assert best_workers(probe(ToyEnv), 24, 2, more) == 1, "most of what one takes is the call, which several tell"
    assert asked == [4]
    assert best_workers(probe(lambda: SlowEnv("sleep", 2)), 4, 2) == 2
    assert best_workers(probe(lambda: SlowEnv("sleep", 2)), 1, 2) == 1


def test_an_environment_is_made_no_more_often_than_it_is_needed() -> None:
    """The env is made once for probing and timing, and then once for each stepped copy."""
    made: list[int] = []

    def make() -> ToyEnv:
        made.append(1)
        return ToyEnv()

    ss.make_vector(make, envs=3, workers=1).close()
    assert len(made) == 4


sb3 = pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 (the extra `dev` has it)")


def test_sb3_gets_what_its_own_vector_gives() -> None:
    """Step for step as DummyVecEnv with Monitor: observations, dones, last observations, time limits, episodes."""
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    make = MAKERS["CartPole"]
    theirs, ours = DummyVecEnv([lambda: Monitor(make())] * 3), ss.make_vector(make, envs=3, api="sb3")
    for env in (theirs, ours):
        env.seed(4)
    assert np.array_equal(ours.reset(), theirs.reset())
    random = np.random.default_rng(0)
    ended = {True: 0, False: 0}
    for _ in range(200):
        actions = random.integers(0, 2, 3)
        got, expected = ours.step(actions), theirs.step(actions)
        for one, other in zip(got[:3], expected[:3], strict=True):
            assert np.array_equal(one, other) and one.dtype == other.dtype
        for told, wanted in zip(got[3], expected[3], strict=True):
            assert ("terminal_observation" in told) == ("terminal_observation" in wanted)
            if told:
                assert np.array_equal(told["terminal_observation"], wanted["terminal_observation"])
                assert told["TimeLimit.truncated"] == wanted["TimeLimit.truncated"]
                assert told["episode"]["r"] == wanted["episode"]["r"] and told["episode"]["l"] == wanted["episode"]["l"]
                ended[told["TimeLimit.truncated"]] += 1
    assert min(ended.values()) > 0
    ours.close()
    theirs.close()


@pytest.mark.usefixtures("no_children")
def test_an_unchanged_sb3_ppo_trains_on_it() -> None:
    """PPO of Stable-Baselines3 learns, and its own evaluation plays, on environments in our processes."""
    from stable_baselines3.common.evaluation import evaluate_policy

    env = ss.make_vector(lambda: ToyEnv(length=10), envs=8, workers=2, api="sb3")
    model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=128, learning_rate=3e-3, seed=0, device="cpu")
    model.learn(12_000)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=10)
    env.close()
    assert mean > 8.0  # of 10; random play gets 2.5


def test_sb3_masks() -> None:
    """sb3-contrib calls `action_masks` of the environments; other methods and attributes are refused."""
    env = ss.make_vector(lambda: ToyEnv("masked"), envs=2, api="sb3")
    env.reset()
    assert env.has_attr("action_masks") and not env.has_attr("gravity")
    assert np.stack(env.env_method("action_masks")).sum() == 4
    with pytest.raises(AttributeError, match="cannot be set"):
        env.set_attr("gravity", 1)
    with pytest.raises(AttributeError, match="`dance`"):
        env.env_method("dance")
    env.close()
