"""The replay buffer: stored transitions, overwriting and sampling, against results computed by hand."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from slipstream.algorithms.replay_buffer import (
    TERMINATED,
    TRUNCATED,
    ReplayBuffer,
    ReplaySampler,
    check_budget,
    load_demos,
    random_index,
    sample_transitions,
    step_bytes,
)
from slipstream.collect.rollout import Rollout, empty_rollout
from slipstream.contracts import ActionSpec, Array, EnvSpec, vector_obs
from slipstream.errors import CheckpointError, ConfigError, DemoError
from slipstream.policies.design import Design
from slipstream.runs.checkpoint import Checkpoint, save
from slipstream.runs.layout import RunDir
from slipstream.settings import PolicySettings

BOX = ActionSpec("continuous", (), (-2.0,), (2.0,))
CHOICE = ActionSpec("discrete", (3,))
MASKED = ActionSpec("discrete", (3,), masked=True)


def make_design(action: ActionSpec = BOX, obs: int = 1) -> Design:
    """A design without a value function."""
    return Design(vector_obs(obs), action, PolicySettings(hidden=(8,)), value=False)


def make_rollout(steps: int, rows: int = 1, spec: ActionSpec = BOX, first: int = 0, **columns: Any) -> Rollout:
    """Row r at step t observes first + t + r / 10 and gets reward first + t; `columns` override arrays."""
    rollout = empty_rollout(EnvSpec("test", vector_obs(1), spec), make_design(spec), steps, rows)
    rollout.obs[..., 0] = first + np.arange(steps + 1)[:, None] + np.arange(rows) / 10
    rollout.reward[:] = first + np.arange(steps)[:, None]
    rollout.final_obs[..., 0] = rollout.obs[1:, :, 0] + 0.5
    rollout.active[:], rollout.mask[:] = 1, 1
    for name, value in columns.items():
        getattr(rollout, name)[...] = np.asarray(value).reshape(-1, 1) if np.ndim(value) == 1 else value
    return rollout


def n_step_sample(replay: ReplayBuffer, place: int, n_step: int, gamma: float = 0.5) -> tuple[float, float, float]:
    """The n-step reward, discount and next observation of the transition at an index."""
    sampler = ReplaySampler(replay, None, 1, 0, 1, seed=0)
    for _ in range(10_000):
        sample_transitions(replay.data, replay.size, n_step, gamma, sampler.streams, 0, 1, sampler.batch)
        if sampler.batch.indices[0, 0] == place:
            return float(sampler.batch.reward[0]), float(sampler.batch.discount[0]), float(sampler.batch.next_obs[0, 0])
    raise AssertionError(place)


def stored_obs(replay: ReplayBuffer) -> list[float]:
    """The observations in the buffer, oldest first."""
    places = [n % replay.capacity for n in range(replay.total - replay.size, replay.total)]
    return [round(float(x), 3) for x in replay.data.obs[places, 0]]


def test_transitions_are_stored() -> None:
    """Observation, squashed action, reward and next observation, at an end the final observation, are stored."""
    replay = ReplayBuffer(1, BOX, 10, 2)
    rollout = make_rollout(3, 2, terminated=[0, 1, 0], action=np.full((3, 2, 1), 0.7))
    assert replay.add(rollout) == 6
    data = replay.data
    assert np.allclose(data.obs[:6, 0], [0, 0.1, 1, 1.1, 2, 2.1])
    assert np.allclose(data.next_obs[:6, 0], [1, 1.1, 2.5, 2.6, 3, 3.1])
    assert np.allclose(data.action[:6], np.tanh(0.7), atol=1e-6)
    assert data.reward[:6].tolist() == [0, 0, 1, 1, 2, 2]
    assert data.ended[:6].tolist() == [0, 0, TERMINATED, TERMINATED, 0, 0]
    assert data.link[:6].tolist() == [2, 3, -1, -1, -1, -1]


def test_discrete_actions_and_masks_are_stored() -> None:
    """Discrete actions are stored unchanged; the next mask after an episode's end is all ones."""
    replay = ReplayBuffer(1, MASKED, 10, 1)
    rollout = make_rollout(3, spec=MASKED, truncated=[0, 1, 0])
    rollout.action[:, 0, 0] = [2, 0, 1]
    rollout.mask[:, 0] = [[0, 1, 1], [1, 0, 0], [0, 1, 0], [1, 1, 0]]
    replay.add(rollout)
    assert replay.data.action[:3, 0].tolist() == [2, 0, 1]
    assert replay.data.mask[:3].tolist() == [[0, 1, 1], [1, 0, 0], [0, 1, 0]]
    assert replay.data.next_mask[:3].tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]


def test_n_step_returns_by_hand() -> None:
    """N-step returns stop at terminations, truncations and the newest transition."""
    replay = ReplayBuffer(1, BOX, 100, 1)
    replay.add(make_rollout(8, terminated=[0, 0, 0, 1, 0, 0, 0, 0], truncated=[0, 0, 0, 0, 0, 1, 0, 0]))
    assert n_step_sample(replay, 1, 1) == (1.0, 0.5, 2.0)
    assert n_step_sample(replay, 0, 3) == (0 + 0.5 * 1 + 0.25 * 2, 0.125, 3.0)
    assert n_step_sample(replay, 1, 3) == (1 + 0.5 * 2 + 0.25 * 3, 0.0, 4.5)
    assert n_step_sample(replay, 2, 3) == (2 + 0.5 * 3, 0.0, 4.5)
    assert n_step_sample(replay, 4, 3) == (4 + 0.5 * 5, 0.25, 6.5)
    assert n_step_sample(replay, 5, 3) == (5.0, 0.5, 6.5)
    assert n_step_sample(replay, 6, 5) == (6 + 0.5 * 7, 0.25, 8.0)
    assert n_step_sample(replay, 7, 5) == (7.0, 0.5, 8.0)


def test_episodes_continue_across_rollouts_and_wrap_around() -> None:
    """N-step returns are the same for one or many steps per rollout, wrapped around or not."""
    small, large = ReplayBuffer(1, BOX, 7, 2), ReplayBuffer(1, BOX, 7, 2)
    for t in range(9):
        small.add(make_rollout(1, 2, first=t))
    large.add(make_rollout(9, 2))
    assert all(np.array_equal(a, b) for a, b in zip(small.data, large.data, strict=True))
    assert stored_obs(small) == [5.1, 6.0, 6.1, 7.0, 7.1, 8.0, 8.1]
    first = (small.total - 6) % 7
    assert n_step_sample(small, first, 3) == (6 + 0.5 * 7 + 0.25 * 8, 0.125, 9.0)
    assert n_step_sample(small, (first + 2) % 7, 3) == (7 + 0.5 * 8, 0.25, 9.0)
    assert n_step_sample(small, (first + 1) % 7, 2) == (6 + 0.5 * 7, 0.25, pytest.approx(8.1))


def test_inactive_steps_extend_the_last_transition() -> None:
    """Inactive steps add their reward, next observation and end of episode to the last transition."""
    replay = ReplayBuffer(1, BOX, 20, 1)
    assert replay.add(make_rollout(4, active=[1, 0, 0, 1, 1])) == 2
    assert stored_obs(replay) == [0, 3]
    assert n_step_sample(replay, 0, 1) == (0 + 1 + 2, 0.5, 3.0)
    assert n_step_sample(replay, 0, 2) == (3 + 0.5 * 3, 0.25, 4.0)
    replay.add(make_rollout(2, first=4, active=[0, 0, 0], terminated=[0, 1]))
    assert n_step_sample(replay, 1, 1) == (3 + 4 + 5, 0.0, 5.0)
    replay.add(make_rollout(2, first=6, active=[0, 1, 1]))
    assert n_step_sample(replay, 1, 2) == (12.0, 0.0, 5.0)
    assert stored_obs(replay) == [0, 3, 7]


def test_an_inactive_truncation_ends_the_episode() -> None:
    """An inactive truncated step ends the episode without changing the last transition's next observation."""
    replay = ReplayBuffer(1, BOX, 20, 1)
    rollout = make_rollout(3, active=[1, 0, 1, 1], truncated=[0, 1, 0], reward=[1, 0, 5])
    rollout.final_obs[:] = np.nan
    replay.add(rollout)
    assert n_step_sample(replay, 0, 3) == (1.0, 0.5, 1.0)
    assert np.isfinite(replay.data.next_obs).all()


def test_a_discontinuous_episode_is_truncated() -> None:
    """An episode is truncated if the next observation differs, as after a resume that resets envs."""
    replay = ReplayBuffer(1, BOX, 20, 1)
    replay.add(make_rollout(2))
    replay.add(make_rollout(2, first=50))
    assert replay.data.ended[:4].tolist() == [0, TRUNCATED, 0, 0]
    assert n_step_sample(replay, 1, 3) == (1.0, 0.5, 2.0)


def test_overwritten_transitions_are_not_linked() -> None:
    """A row whose last transition was overwritten is neither linked nor extended."""
    replay = ReplayBuffer(1, BOX, 3, 2)
    active = np.ones((7, 2), np.uint8)
    active[1:5, 1] = 0
    rollout = make_rollout(6, 2)
    rollout.active[:] = active
    replay.add(rollout)
    assert stored_obs(replay) == [4.0, 5.0, 5.1] and replay.total == 8
    assert n_step_sample(replay, 6 % 3, 2) == (5.0, 0.5, 6.0)
    assert replay.data.reward[[5 % 3, 6 % 3, 7 % 3]].tolist() == [4, 5, 5]


def test_sampling_is_uniform() -> None:
    """Each of 40 indices, and each integer below 7, is drawn equally often."""
    replay = ReplayBuffer(1, BOX, 40, 1)
    replay.add(make_rollout(60))
    sampler = ReplaySampler(replay, None, 100, 0, 1, seed=1)
    counts = np.zeros(40)
    for _ in range(400):
        sampler.sample(1, 1, 0.9)
        counts += np.bincount(sampler.batch.indices[0], minlength=40)
    assert np.abs(counts / 1000 - 1).max() < 0.15
    drawn = np.bincount([random_index(sampler.streams, 0, 7) for _ in range(14_000)])
    assert len(drawn) == 7 and np.abs(drawn / 2000 - 1).max() < 0.1


def test_noise_is_standard_normal_and_independent() -> None:
    """Noise has mean 0, std 1, kurtosis 3, and no correlation between actions or draws."""
    replay = ReplayBuffer(1, BOX, 4, 1)
    replay.add(make_rollout(4))
    sampler = ReplaySampler(replay, None, 2000, 0, 1, seed=1)
    draws = []
    for _ in range(20):
        sampler.sample(1, 1, 0.9)
        draws.append(sampler.batch.noise[:, :, 0].copy())
    noise = np.array(draws).astype(np.float64)  # [draws, 2, batch]
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02 and abs((noise**4).mean() - 3) < 0.15
    assert abs((noise[:, 0] * noise[:, 1]).mean()) < 0.02
    assert abs((noise[1:] * noise[:-1]).mean()) < 0.02


def test_sampling_depends_on_seed_and_streams() -> None:
    """The same seed gives the same batches, another seed others, and restored streams continue."""
    replay = ReplayBuffer(1, BOX, 50, 1)
    replay.add(make_rollout(50))
    samplers = [ReplaySampler(replay, None, 16, 0, 2, seed=seed) for seed in (1, 1, 2)]
    for sampler in samplers:
        sampler.sample(5, 1, 0.9)
    one, same, other = (sampler.batch.indices[0].tolist() for sampler in samplers)
    assert one == same != other
    samplers[2].streams[:] = samplers[0].streams
    for sampler in samplers:
        sampler.sample(5, 1, 0.9)
    assert samplers[0].batch.indices[0].tolist() == samplers[2].batch.indices[0].tolist() != one


@pytest.mark.parametrize("steps", [3, 11])
def test_a_restored_buffer_is_the_same_bits(steps: int) -> None:
    """A restored buffer, partly filled or wrapped, holds the same bits and continues equally."""
    one, other = ReplayBuffer(1, MASKED, 8, 1), ReplayBuffer(1, MASKED, 8, 1)
    one.add(make_rollout(steps, spec=MASKED))
    arrays = one.snapshot()
    assert len(arrays["replay/obs"]) == min(8, steps)
    other.restore(arrays)
    for replay in (one, other):
        replay.add(make_rollout(2, spec=MASKED, first=steps))
    assert one.total == other.total == steps + 2
    assert all(np.array_equal(a, b) for a, b in zip(one.data, other.data, strict=True))
    again = one.snapshot()
    assert all(np.array_equal(again[name], array) for name, array in other.snapshot().items())
    assert not np.array_equal(arrays["replay/cursor"], again["replay/cursor"])


def test_restoring_another_size_raises() -> None:
    """A checkpoint of another `sac.buffer_size` raises."""
    one = ReplayBuffer(1, BOX, 1000, 1)
    one.add(make_rollout(3))
    with pytest.raises(CheckpointError) as caught:
        ReplayBuffer(1, BOX, 2000, 1).restore(one.snapshot())
    assert "`sac.buffer_size` is 2,000" in caught.value.message
    assert "sac.buffer_size=1000" in str(caught.value)


def test_a_buffer_above_its_memory_limit_raises() -> None:
    """The error holds the sizes and the values that would fit."""
    humanoid = ActionSpec("continuous", (), (-1.0,) * 17, (1.0,) * 17)
    assert step_bytes(376, humanoid) == 2 * 376 * 4 + 17 * 4 + 4 + 1 + 4 == 3085
    assert step_bytes(1, MASKED) == 2 * 4 + 4 + 2 * 3 + 9
    check_budget(376, humanoid, 100_000, 300)
    with pytest.raises(ConfigError) as caught:
        check_budget(376, humanoid, 1_000_000, 1024)
    for part in ("`sac.buffer_size` = 1,000,000", "3,085 bytes", "2,942.1 MiB", "`sac.buffer_mib` allows 1,024 MiB"):
        assert part in caught.value.message
    for part in ("sac.buffer_size=348052", "sac.buffer_mib=2943"):
        assert part in str(caught.value)
    check_budget(376, humanoid, 348_052, 1024)
    with pytest.raises(ConfigError):
        check_budget(376, humanoid, 348_053, 1024)
    check_budget(376, humanoid, 1_000_000, 2943)


@pytest.mark.parametrize("action", [BOX, MASKED])
def test_step_bytes_match_the_arrays(action: ActionSpec) -> None:
    """Bytes per step times steps equal the bytes of the arrays."""
    replay = ReplayBuffer(5, action, 100, 1)
    assert sum(array.nbytes for array in replay.data) == 100 * step_bytes(5, action)


def test_adding_a_step_takes_microseconds() -> None:
    """Adding a step of one env takes less than 50 us (about 5 on an idle machine)."""
    replay, rollout = ReplayBuffer(1, BOX, 1000, 1), make_rollout(1)
    replay.add(rollout)
    best = min(_seconds(lambda: replay.add(rollout)) for _ in range(200))
    assert best < 50e-6


def _seconds(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def write_demos(path: Path, **changes: Any) -> str:
    """Write a file of four steps in two episodes; a column of None is omitted."""
    columns: dict[str, Any] = {
        "obs": np.array([[0.0], [1.0], [5.0], [6.0]], np.float32),
        "next_obs": np.array([[1.0], [2.0], [6.0], [7.0]], np.float32),
        "action": np.array([[-2.0], [0.0], [1.0], [2.0]], np.float32),
        "reward": np.array([1.0, 2.0, 3.0, 4.0], np.float32),
        "terminated": np.array([0, 1, 0, 0], np.uint8),
    }
    kept = {name: value for name, value in (columns | changes).items() if value is not None}
    safetensors.numpy.save_file(kept, path)
    return str(path)


def test_demos_of_a_file(tmp_path: Path) -> None:
    """Actions are scaled to [-1, 1], and episodes are found by their observations."""
    demos = load_demos(write_demos(tmp_path / "demos.safetensors"), make_design())
    assert demos.size == 4
    assert demos.data.action[:, 0].tolist() == [-1.0, 0.0, 0.5, 1.0]
    assert demos.data.ended.tolist() == [0, TERMINATED, 0, 0]
    assert demos.data.link.tolist() == [1, -1, 3, -1]
    assert n_step_sample(demos, 0, 2) == (1 + 0.5 * 2, 0.0, 2.0)
    assert n_step_sample(demos, 2, 2) == (3 + 0.5 * 4, 0.25, 7.0)


def test_discrete_demos_may_be_flat_and_truncated(tmp_path: Path) -> None:
    """Discrete actions of shape [steps] and a `truncated` column are accepted."""
    path = write_demos(
        tmp_path / "d.safetensors", action=np.array([0, 2, 1, 1]), truncated=np.array([1, 0, 0, 0], bool)
    )
    demos = load_demos(path, make_design(CHOICE))
    assert demos.data.action[:, 0].tolist() == [0, 2, 1, 1]
    assert demos.data.ended.tolist() == [TRUNCATED, TERMINATED, 0, 0]


def test_demos_of_a_run_are_its_replay_buffer(tmp_path: Path) -> None:
    """The demos of a run equal the replay buffer of its newest checkpoint bit for bit."""
    replay = ReplayBuffer(1, BOX, 8, 1)
    replay.add(make_rollout(11))
    run = RunDir(tmp_path / "run")
    save(run, Checkpoint(5, {"learner": {}}, {}))
    save(run, Checkpoint(11, {"learner": replay.snapshot() | {"weight/x": np.zeros(3)}}, {}))
    for name in (str(run.path), f"run:{run.path}"):
        demos = load_demos(name, make_design())
        assert demos.size == 8
        assert all(np.array_equal(a, b) for a, b in zip(demos.data, replay.data, strict=True))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"reward": None}, "lack `reward`; they hold action, next_obs, obs, terminated"),
    ({"obs": np.zeros((4, 2), np.float32)}, "`obs` of the demos PATH should be (4, 1) but is (4, 2)"),
    ({"action": np.zeros((4, 3), np.float32)}, "`action` of the demos PATH should be (4, 1) but is (4, 3)"),
    ({"reward": np.array([1, np.nan, 0, 0], np.float32)}, "`reward` of the demos PATH"),
    ({"action": np.array([[0], [3.0], [-2.5], [1]], np.float32)}, "2 of 4 actions of the demos PATH"),
    (
        {
            "obs": np.zeros((0, 1), np.float32),
            "next_obs": np.zeros((0, 1), np.float32),
            "reward": np.zeros(0, np.float32),
            "terminated": np.zeros(0, np.uint8),
            "action": np.zeros((0, 1), np.float32),
        },
        "The demos PATH hold no transitions",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_invalid_demos_raise(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Invalid demos raise a DemoError (exit code 4) that names the file, the column and the values."""
    path = write_demos(tmp_path / "demos.safetensors", **changes)
    with pytest.raises(DemoError) as caught:
        load_demos(path, make_design())
    assert message.replace("PATH", path) in caught.value.message
    assert caught.value.hint
    assert caught.value.code == 4


def test_demos_of_masked_actions_need_masks(tmp_path: Path) -> None:
    """Demos of masked actions without masks raise."""
    path = write_demos(tmp_path / "demos.safetensors", action=np.array([0, 2, 1, 1]))
    with pytest.raises(DemoError, match="lack `mask`"):
        load_demos(path, make_design(MASKED))
    ones: Array = np.ones((4, 3), np.uint8)
    path = write_demos(tmp_path / "masked.safetensors", action=np.array([0, 2, 1, 1]), mask=ones, next_mask=ones)
    assert load_demos(path, make_design(MASKED)).data.mask.all()


def test_files_and_runs_without_demos_raise(tmp_path: Path) -> None:
    """An invalid file, a run without a buffer and a run without checkpoints raise."""
    (tmp_path / "text.safetensors").write_text("not really")
    with pytest.raises(DemoError, match=r"cannot be read: .*\nhint: .*sac.demos"):
        load_demos(str(tmp_path / "text.safetensors"), make_design())
    with pytest.raises(DemoError, match="cannot be read"):
        load_demos(str(tmp_path / "nowhere.safetensors"), make_design())
    run = RunDir(tmp_path / "run")
    save(run, Checkpoint(5, {"learner": {"weight/x": np.zeros(3)}}, {}))
    with pytest.raises(DemoError) as caught:
        load_demos(str(run.path), make_design())
    assert f"The run {run.path} has no replay buffer" in caught.value.message
    assert "algorithm=sac" in str(caught.value)
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        load_demos(str(tmp_path / "other"), make_design())
