"""Gymnasium envs as rows: autoreset, time limits, action repeat, masks, and every space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from slipstream.contracts import Array, Rows, Vector, empty_rows
from slipstream.envs.registry import EnvChoice
from slipstream.errors import ConfigError, EnvError, EnvFault
from slipstream.settings import EnvSettings
from slipstream.testing import BrokenEnv, ToyEnv
from slipstream.vector.make import make_vector


class Recorder(gymnasium.Env[Any, Any]):
    """Records its actions, observes its clock, and terminates after `length` steps."""

    def __init__(
        self, action_space: Any = None, observation_space: Any = None, length: int = 3, obs: Any = None
    ) -> None:
        self.action_space = action_space or spaces.Discrete(2)
        self.observation_space = observation_space or spaces.Box(0, 99, (1,), np.float32)
        self.told: list[Any] = []
        self.seeds: list[int | None] = []
        self._length, self._obs, self._t = length, obs, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the clock."""
        self.seeds.append(seed)
        self._t = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward the clock."""
        self._t += 1
        self.told.append(action)
        return self._see(), float(self._t), self._t == self._length, False, {}

    def _see(self) -> Any:
        return np.array([self._t], np.float32) if self._obs is None else self._obs


def start(factory: Callable[[], Any], envs: int = 1, seed: int = 0, repeat: int = 1) -> tuple[Vector, Rows]:
    """Return a vector after its reset."""
    choice = EnvChoice("python:Env", EnvSettings(action_repeat=repeat), factory=factory)
    vector = make_vector(choice, envs, seed=seed)
    rows = empty_rows(vector.spec, envs)
    vector.reset(rows)
    return vector, rows


def step(vector: Vector, rows: Rows, action: Any = 0) -> Rows:
    """Step every env with the same action."""
    spec = vector.spec.action
    vector.step(np.full((vector.envs, spec.parts), action, spec.dtype), rows)
    return rows


def inner(vector: Any, index: int = 0) -> Any:
    """Return the env itself."""
    return vector._envs[index].unwrapped


def test_autoreset_is_same_step() -> None:
    """`obs` is the first observation of the next episode, `final_obs` the last of the old, and rows stay active."""
    vector, rows = start(lambda: Recorder(length=3), 2)
    seen = []
    for _ in range(4):
        step(vector, rows)
        seen.append((rows.obs[0, 0], rows.reward[0], rows.terminated[0], rows.truncated[0]))
        if rows.terminated[0]:
            assert rows.final_obs[0, 0] == 3
        assert rows.active.all()
    assert seen == [(1, 1, 0, 0), (2, 2, 0, 0), (0, 3, 1, 0), (1, 1, 0, 0)]


def test_only_the_first_episode_is_seeded() -> None:
    """Each env is seeded once; later episodes continue with its RNG."""
    vector, rows = start(lambda: Recorder(length=1), 2, seed=5)
    for _ in range(3):
        step(vector, rows)
    seeds = [inner(vector, i).seeds for i in range(2)]
    assert seeds[0][1:] == [None] * 3
    assert seeds[0][0] != seeds[1][0] and seeds[0][0] is not None


def test_a_time_limit_truncates() -> None:
    """The limit of a TimeLimit wrapper truncates episodes, even though the wrapper is removed."""
    vector, rows = start(lambda: TimeLimit(Recorder(length=100), 4))
    ends = [(int(step(vector, rows).truncated[0]), int(rows.terminated[0])) for _ in range(8)]
    assert ends == [(0, 0)] * 3 + [(1, 0)] + [(0, 0)] * 3 + [(1, 0)]
    assert rows.final_obs[0, 0] == 4


def test_termination_at_the_limit_is_termination() -> None:
    """An episode that terminates in its last allowed step is not truncated."""
    vector, rows = start(lambda: TimeLimit(Recorder(length=4), 4))
    for _ in range(4):
        step(vector, rows)
    assert (rows.terminated[0], rows.truncated[0]) == (1, 0)


def test_action_repeat_sums_rewards() -> None:
    """With a repeat of 3 one step is three env steps or fewer at an episode's end, and the rewards are summed."""
    vector, rows = start(lambda: Recorder(length=5), repeat=3)
    step(vector, rows)
    assert (rows.reward[0], rows.obs[0, 0], rows.terminated[0]) == (1 + 2 + 3, 3, 0)
    step(vector, rows)
    assert (rows.reward[0], rows.terminated[0], rows.final_obs[0, 0]) == (4 + 5, 1, 5)
    assert len(inner(vector).told) == 5


def test_a_time_limit_counts_env_steps_under_repeat() -> None:
    """A limit of 4 env steps with a repeat of 3 ends the second step after one env step."""
    vector, rows = start(lambda: TimeLimit(Recorder(length=100), 4), repeat=3)
    step(vector, rows)
    step(vector, rows)
    assert (rows.truncated[0], rows.reward[0], rows.final_obs[0, 0]) == (1, 4, 4)
    step(vector, rows)
    assert (rows.truncated[0], rows.reward[0]) == (0, 6)


def test_masks_belong_to_the_next_action() -> None:
    """A mask belongs to the observation of the same row, also after an autoreset."""
    vector, rows = start(lambda: ToyEnv("masked", length=2), 3)
    for _ in range(5):
        cue = rows.obs.argmax(axis=1)
        assert rows.mask[np.arange(3), cue].all()
        assert rows.mask[np.arange(3), (cue + 1) % 4].all()
        assert (rows.mask.sum(axis=1) == 2).all()
        vector.step(cue[:, None].astype(np.int32), rows)
        assert (rows.reward == 1).all()


@pytest.mark.parametrize(
    ("space", "action", "told"),
    [
        (spaces.Discrete(3), [[2]], 2),
        (spaces.Discrete(3, start=-1), [[2]], 1),
        (spaces.MultiDiscrete([3, 2]), [[2, 1]], [2, 1]),
        (spaces.MultiDiscrete([3, 2], start=[5, -4]), [[2, 1]], [7, -3]),
        (spaces.MultiDiscrete([[3, 2], [4, 5]]), [[0, 1, 2, 3]], [[0, 1], [2, 3]]),
        (spaces.MultiBinary(3), [[1, 0, 1]], [1, 0, 1]),
        (spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))), [[2, 1]], [2, 1]),
        (spaces.Box(-1, 1, (2,), np.float32), [[0.25, -0.5]], [0.25, -0.5]),
        (spaces.Box(-1, 1, (2, 1), np.float64), [[0.25, -0.5]], [[0.25], [-0.5]]),
    ],
)
def test_actions_belong_to_the_action_space(space: Any, action: Any, told: Any) -> None:
    """An env receives elements of its action space, with offsets, shapes and dtypes."""
    vector, rows = start(lambda: Recorder(space))
    vector.step(np.array(action, vector.spec.action.dtype), rows)
    (heard,) = inner(vector).told
    assert np.array_equal(heard, told)
    assert space.contains(heard) or (isinstance(space, spaces.Discrete) and space.contains(int(heard)))


@pytest.mark.parametrize(
    ("space", "obs", "row"),
    [
        (spaces.Discrete(4), 2, [0, 0, 1, 0]),
        (spaces.Discrete(3, start=5), np.int64(5), [1, 0, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.Box(-9, 9, (2, 2), np.float64), np.array([[1.5, 2.0], [3.0, 4.0]]), [1.5, 2, 3, 4]),
        (spaces.Box(0, 255, (3,), np.uint8), np.array([1, 2, 255], np.uint8), [1, 2, 255]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.Tuple((spaces.Discrete(2), spaces.Box(-9, 9, (1,)))), (1, np.array([2.5])), [0, 1, 2.5]),
    ],
)
def test_every_observation_space_becomes_a_row(space: Any, obs: Any, row: list[float]) -> None:
    """Discrete values become one-hot and arrays are flattened, all as float32."""
    vector, rows = start(lambda: Recorder(observation_space=space, obs=obs))
    assert rows.obs.tolist() == [row]
    step(vector, rows)
    assert rows.obs.tolist() == [row]


class Camera(gymnasium.Env[Any, Any]):
    """Observes its clock as an image, a number and a token; one switch is masked by the clock's parity."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (3, 8, 10), np.uint8),
        clock=spaces.Box(0, 9, (1,), np.float64),
        tokens=spaces.Box(0, 255, (2, 3), np.uint8),
    )
    action_space = spaces.MultiBinary(2)

    def __init__(self, length: int = 3) -> None:
        self._length, self._t = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the clock."""
        self._t = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward the first switch."""
        self._t += 1
        return self._see(), float(action[0]), self._t == self._length, False, {}

    def action_masks(self) -> Any:
        """Return a mask that allows the first switch always and the second by the clock's parity."""
        return [1, 1, self._t % 2 == 0, self._t % 2 == 1]

    def _see(self) -> Any:
        image = np.arange(240, dtype=np.uint8).reshape(3, 8, 10) + np.uint8(self._t)
        tokens = np.array([[self._t, 1, 2], [255, 0, 0]], np.uint8)
        return {"image": image, "clock": np.array([self._t / 2]), "tokens": tokens}


def test_images_stay_bytes() -> None:
    """Rows of images, numbers and tokens are uint8, and every field of `obs` and `final_obs` can be split again."""
    vector, rows = start(Camera, 2)
    spec = vector.spec.obs
    assert rows.obs.dtype == rows.final_obs.dtype == np.uint8 and rows.obs.shape == (2, 256), "4 + 240 + 6 bytes"
    first = np.arange(240, dtype=np.uint8).reshape(3, 8, 10).transpose(1, 2, 0)
    for t in (1, 2, 0, 1):
        step(vector, rows, 1)
        assert rows.reward.tolist() == [1, 1] and rows.terminated.tolist() == [t == 0] * 2
        assert rows.mask.tolist() == [[1, 1, t % 2 == 0, t % 2 == 1]] * 2
        for seen, clock in ((rows.obs, t), *([(rows.final_obs, 3)] if t == 0 else [])):
            fields = spec.split(seen)
            assert fields["clock"].tolist() == [[clock / 2]] * 2
            assert fields["tokens"].tolist() == [[[clock, 1, 2], [255, 0, 0]]] * 2
            assert np.array_equal(fields["image"], np.stack([first + np.uint8(clock)] * 2))


def test_an_observation_outside_its_space_is_an_env_fault() -> None:
    """An invalid discrete observation is reported with env and step."""
    with pytest.raises(EnvFault, match="the observation 7 is not one of 4 from 0"):
        start(lambda: Recorder(observation_space=spaces.Discrete(4), obs=7))


def test_an_env_that_raises_is_reported() -> None:
    """The error has the env's index, seed, step and traceback."""
    vector, rows = start(lambda: BrokenEnv("raise", at=13, length=10), 2, seed=4)
    with pytest.raises(EnvFault) as caught:
        for _ in range(20):
            step(vector, rows)
    assert (caught.value.env, caught.value.step) == (0, 13)
    assert "ValueError: broken on purpose" in caught.value.report
    assert f"seed {caught.value.seed}, step 13" in str(caught.value)


def test_reset_envs_resets_only_these() -> None:
    """`reset_envs` resets only the given envs."""
    vector, rows = start(lambda: Recorder(length=9), 3)
    step(vector, rows)
    vector.reset_envs([1], rows)
    assert rows.obs[:, 0].tolist() == [1, 0, 1]


def test_episodes_can_be_seeded() -> None:
    """The same seed gives the same episode in another env, and `seeds` returns it."""
    vector, rows = start(lambda: ToyEnv(length=3), 3, seed=4)
    first = vector.seeds()
    assert (first >= 0).all() and len(set(first.tolist())) == 3, "the first episodes are seeded"
    for _ in range(3):
        step(vector, rows)
    assert vector.seeds().tolist() == [-1, -1, -1]
    vector.reset_envs([2, 0], rows, seeds=[11, 11])
    assert vector.seeds().tolist() == [11, -1, 11]
    seen = []
    for _ in range(2):
        seen.append(rows.obs.copy())
        step(vector, rows)
    assert all(np.array_equal(obs[0], obs[2]) for obs in seen)
    vector.reset_envs([1], rows, seeds=[-1])
    assert vector.seeds().tolist() == [11, -1, 11], "below 0 is none"


class Levels(Recorder):
    """An env with tasks."""

    tasks = ("easy", "hard", "odd")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Record the task."""
        self.played = [*getattr(self, "played", []), (options or {}).get("task")]
        return super().reset(seed=seed)


def levels(envs: list[Levels], **attributes: Any) -> Callable[[], Any]:
    """Makes such envs in a wrapper and keeps them; the first is the probe."""

    def make() -> Any:
        envs.append(Levels(length=2))
        vars(envs[-1]).update(attributes)
        return TimeLimit(envs[-1], 50)

    return make


def test_reset_passes_the_task() -> None:
    """Each episode has the task that was assigned last; without one, the target tasks in turn."""
    envs: list[Levels] = []
    vector, rows = start(levels(envs, target=("easy", "hard")), 3)
    assert vector.spec.tasks == ("easy", "hard", "odd") and vector.spec.target == ("easy", "hard")
    vector.assign(np.array([-1, 2, 2]))
    step(vector, rows)
    step(vector, rows)
    vector.assign(np.array([1, -1, 2]))
    vector.reset_envs([2, 1], rows)
    assert [env.played for env in envs] == [["easy", "easy"], ["hard", "odd", "hard"], ["easy", "odd", "odd"]]


def test_targets_of_an_env() -> None:
    """By default all tasks are targets; `env.target` selects some; an unknown task is an error."""
    assert start(levels([]))[0].spec.target == ("easy", "hard", "odd")
    assert start(levels([], target="odd"))[0].spec.target == ("odd",)
    assert start(lambda: Recorder())[0].spec.tasks == ()
    assert start(levels([], tasks=np.arange(3)))[0].spec.tasks == (), "something else of that name"
    with pytest.raises(EnvError) as caught:
        start(levels([], target=("easy", "hrad")))
    assert caught.value.message == "`target` of `python:Env` is ('easy', 'hrad'), but its tasks are easy, hard, odd."
    chosen = EnvChoice("python:Env", EnvSettings(target=("odd",)), factory=levels([]))
    assert make_vector(chosen, 1).spec.target == ("odd",)
    for name, factory, message in (
        ("python:Env", levels([]), "`env.target`: `python:Env` has no task `esay`. Did you mean `easy`?"),
        ("recall", None, "`env.target`: `recall` has no task `esay`."),
    ):
        with pytest.raises(ConfigError) as wrong:
            make_vector(EnvChoice(name, EnvSettings(target=("esay",)), factory=factory), 1)
        assert wrong.value.message == message


def test_an_unknown_task_is_an_error() -> None:
    """An index beyond the tasks is an error, and an env without tasks accepts -1 only."""
    vector, _ = start(levels([]), 2)
    with pytest.raises(ConfigError) as caught:
        vector.assign(np.array([0, 3]))
    assert caught.value.message == "`python:Env` has no task number 3. Its tasks are easy, hard, odd."
    plain, _ = start(Recorder)
    plain.assign(np.array([-1]))
    with pytest.raises(ConfigError, match=r"has no task number 0"):
        plain.assign(np.array([0]))


def test_close_twice() -> None:
    """A vector can be closed twice."""
    vector, _ = start(Recorder)
    vector.close()
    vector.close()


def test_rows_have_the_dtypes_of_the_contract() -> None:
    """Rows have the dtypes of `Rows`, whatever the env returns."""
    _, rows = start(lambda: Recorder(observation_space=spaces.Box(-9, 9, (2,), np.float64), obs=np.zeros(2)))
    kinds: dict[str, Array] = {"obs": rows.obs, "reward": rows.reward, "terminated": rows.terminated}
    assert {name: array.dtype.name for name, array in kinds.items()} == {
        "obs": "float32",
        "reward": "float32",
        "terminated": "uint8",
    }
