"""Flat tables and trajectories: NPZ as people save them, HDF5 as D4RL has it, objects in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.contracts import Array
from slipstream.demos.exporters.npz import export_npz
from slipstream.demos.format import TERMINATED, TRUNCATED
from slipstream.demos.importers.flat_tables import BLOCK, TransitionTable
from slipstream.demos.reader import Demos
from slipstream.errors import ConfigError, DemoError
from slipstream.stages.import_export import import_demos, import_trajectories

LENGTHS = (5, 3, 7)
ROWS = sum(LENGTHS)
STOPS = np.cumsum(LENGTHS)


def flat(seed: int = 0, **more: Any) -> dict[str, Array]:
    """A table of three episodes: terminated, cut off by time, and one that just stops."""
    random = np.random.default_rng(seed)
    found = {
        "observations": random.normal(size=(ROWS, 4)).astype(np.float32),
        "actions": random.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "rewards": random.normal(size=ROWS).astype(np.float32),
        "terminals": np.arange(ROWS) == STOPS[0] - 1,
        "timeouts": np.arange(ROWS) == STOPS[1] - 1,
    }
    return {name: value for name, value in (found | more).items() if value is not None}


def save_npz(path: Path, arrays: dict[str, Array]) -> Path:
    """As NPZ."""
    np.savez_compressed(path / "demos.npz", **arrays)
    return path / "demos.npz"


def save_hdf5(path: Path, arrays: dict[str, Array]) -> Path:
    """As D4RL has it, with what else is in such files."""
    h5py = pytest.importorskip("h5py", reason='needs h5py (pip install "slipstream[hdf5]")')
    with h5py.File(path / "demos.hdf5", "w") as file:
        for name, value in arrays.items():
            file.create_dataset(name, data=value, compression="gzip")
        file["infos/qpos"] = np.zeros((ROWS, 3))
        file["metadata/algorithm"] = "SAC"
    return path / "demos.hdf5"


SAVES = pytest.mark.parametrize("save", [save_npz, save_hdf5])
Save = Callable[[Path, dict[str, Array]], Path]


def brought(file: Path, out: Path, **options: Any) -> Demos:
    """Import a file and open what came out."""
    import_demos("auto", str(file), out, **options)
    return Demos.open(out)


@SAVES
def test_a_table_is_cut_at_its_flags(tmp_path: Path, save: Save) -> None:
    """The last observation is known only where an episode was terminated; others lose their last step."""
    told = flat()
    demos = brought(save(tmp_path, told), tmp_path / "out")
    assert demos.episodes["steps"].tolist() == [5, 2, 6]
    assert demos.episodes["ended"].tolist() == [TERMINATED, TRUNCATED, 0]
    for number, (start, steps) in enumerate(((0, 5), (5, 2), (8, 6))):
        values = demos.episode(number)
        rows = [*range(start, start + steps), start + (4 if number == 0 else steps)]
        np.testing.assert_array_equal(values["obs"], told["observations"][rows])
        np.testing.assert_array_equal(values["action"], told["actions"][start : start + steps])
        np.testing.assert_array_equal(values["reward"], told["rewards"][start : start + steps])


@SAVES
def test_next_observations_are_used(tmp_path: Path, save: Save) -> None:
    """With next observations every step is kept, and the last observation is the true one."""
    told = flat(next_observations=np.random.default_rng(9).normal(size=(ROWS, 4)).astype(np.float32))
    demos = brought(save(tmp_path, told), tmp_path / "out")
    assert demos.episodes["steps"].tolist() == list(LENGTHS)
    for number, stop in enumerate(STOPS):
        np.testing.assert_array_equal(demos.episode(number)["obs"][-1], told["next_observations"][stop - 1])


@pytest.mark.parametrize(
    ("ends", "steps", "ended"),
    [
        ({"dones": np.isin(np.arange(ROWS), STOPS - 1)}, [5, 3, 7], [1, 1, 1]),
        ({"episode_starts": np.isin(np.arange(ROWS), [0, *STOPS[:-1]])}, [4, 2, 6], [0, 0, 0]),
        ({"episode_ids": np.repeat([7, 2, 7], LENGTHS)}, [4, 2, 6], [0, 0, 0]),
        ({"truncated": np.isin(np.arange(ROWS), STOPS - 1)}, [4, 2, 6], [2, 2, 2]),
    ],
)
def test_the_ways_to_tell_episodes_apart(
    tmp_path: Path, ends: dict[str, Array], steps: list[int], ended: list[int]
) -> None:
    """Done flags, starts and numbers of episodes all cut a table."""
    file = save_npz(tmp_path, flat(terminals=None, timeouts=None, **ends))
    demos = brought(file, tmp_path / "out")
    assert demos.episodes["steps"].tolist() == steps and demos.episodes["ended"].tolist() == ended


def test_an_expert_file_of_stable_baselines(tmp_path: Path) -> None:
    """actions [N, 1], obs, rewards, episode_returns and episode_starts make episodes of choices."""
    random = np.random.default_rng(0)
    file = save_npz(
        tmp_path,
        {
            "actions": random.integers(0, 4, (ROWS, 1)),
            "obs": random.normal(size=(ROWS, 4)),
            "rewards": np.ones(ROWS),
            "episode_returns": np.array(LENGTHS, float),
            "episode_starts": np.isin(np.arange(ROWS), [0, *STOPS[:-1]]),
        },
    )
    demos = brought(file, tmp_path / "out")
    assert demos.schema.action.kind == "discrete" and demos.schema.action.sizes == (4,)
    assert len(demos) == 3


def imitation(seed: int = 0) -> dict[str, Array]:
    """Trajectories as `imitation` used to save them."""
    random = np.random.default_rng(seed)
    return {
        "obs": random.normal(size=(ROWS + 3, 4)),
        "acts": random.integers(0, 3, ROWS),
        "rews": random.normal(size=ROWS),
        "infos": np.array([{}] * ROWS, object),
        "terminal": np.array([True, False, True]),
        "indices": STOPS[:-1],
    }


def test_trajectories_of_imitation(tmp_path: Path) -> None:
    """Episodes have T + 1 observations each; pickled infos are never read."""
    told = imitation()
    demos = brought(save_npz(tmp_path, told), tmp_path / "out")
    assert demos.episodes["steps"].tolist() == list(LENGTHS)
    assert demos.episodes["ended"].tolist() == [TERMINATED, 0, TERMINATED]
    seen = np.split(told["obs"], STOPS[:-1] + np.arange(1, 3))
    for number, acts in enumerate(np.split(told["acts"], STOPS[:-1])):
        np.testing.assert_array_equal(demos.episode(number)["obs"], seen[number].astype(np.float32))
        np.testing.assert_array_equal(demos.episode(number)["action"][:, 0], acts)


def test_pickled_observations_are_refused(tmp_path: Path) -> None:
    """A pickled array that is needed raises an error with its name and a hint."""
    file = save_npz(tmp_path, imitation() | {"obs": np.array([[1.0]] * (ROWS + 3) + [None], object)})
    with pytest.raises(DemoError, match=r"`obs` in .* holds pickled Python objects") as caught:
        import_demos("npz", str(file), tmp_path / "out")
    assert caught.value.hint == (
        "save it again with plain numbers or text: np.savez(..., obs=np.array(values.tolist()))"
    )


def test_choices_and_bounds_are_those_of_the_data_or_given(tmp_path: Path) -> None:
    """Sizes and bounds of actions are inferred from the data unless they are given."""
    parts = np.stack([np.arange(ROWS) % 3, np.arange(ROWS) % 5], axis=1)
    file = save_npz(tmp_path, flat(actions=parts))
    assert brought(file, tmp_path / "a").schema.action.sizes == (3, 5)
    assert brought(file, tmp_path / "b", sizes=(4, 6)).schema.action.sizes == (4, 6)
    with pytest.raises(ConfigError, match="Actions have 2 parts, but --sizes has 3"):
        import_demos("npz", str(file), tmp_path / "c", sizes=(1, 2, 3))
    told = flat()
    told["actions"][:, 1] = 0.25
    file = save_npz(tmp_path, told)
    spec = brought(file, tmp_path / "d").schema.action
    np.testing.assert_allclose(spec.low, [told["actions"][:, 0].min(), -0.75])
    np.testing.assert_allclose(spec.high, [told["actions"][:, 0].max(), 1.25])
    assert brought(file, tmp_path / "e", low=(-1,), high=(1,)).schema.action.low == (-1.0, -1.0)
    file = save_npz(tmp_path, flat(actions=parts == 0))
    assert brought(file, tmp_path / "f").schema.action.binary == (True, True)
    file = save_npz(tmp_path, flat(actions=parts - 1))
    with pytest.raises(DemoError, match="action -1 is negative"):
        import_demos("npz", str(file), tmp_path / "g")


def test_an_environment_tells_what_the_data_cannot(tmp_path: Path) -> None:
    """With env=gymnasium:NAME demos have exactly what that environment shows and takes."""
    file = save_npz(
        tmp_path, flat(observations=np.arange(ROWS) % 16, actions=np.zeros(ROWS, np.int64), terminals=np.ones(ROWS))
    )
    demos = brought(file, tmp_path / "out", env="gymnasium:FrozenLake-v1")
    assert demos.schema.env == "gymnasium:FrozenLake-v1"
    assert demos.schema.action.sizes == (4,) and demos.schema.obs.width == 16
    assert demos.episode(3)["obs"].argmax(axis=1).tolist() == [3, 3]
    bad = save_npz(tmp_path, flat(observations=np.arange(ROWS) + 16, actions=np.zeros(ROWS, np.int64)))
    with pytest.raises(DemoError, match="An observation does not fit its space: the observation 16 is not one of 16"):
        import_demos("npz", str(bad), tmp_path / "bad", env="gymnasium:FrozenLake-v1")


@SAVES
def test_groups_of_observations_and_images(tmp_path: Path, save: Save) -> None:
    """Observations may be several arrays: images stay bytes, channels first or last; numbers stay numbers."""
    random = np.random.default_rng(0)
    eye = random.integers(0, 256, (ROWS, 3, 12, 10)).astype(np.uint8)
    told = flat(observations=None) | {"observations/eye": eye, "observations/speed": random.normal(size=ROWS)}
    demos = brought(save(tmp_path, told), tmp_path / "out")
    found = demos.schema.obs.split(np.array(demos.episode(2)["obs"]))
    np.testing.assert_array_equal(found["eye"], eye[8:15].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(found["speed"][:, 0], told["observations/speed"][8:15].astype(np.float32))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ({"observations": None}, "has no observations: none of its arrays is named obs, observations"),
        ({"actions": None}, "has no actions: none of its arrays is named acts, actions"),
        ({"terminals": None, "timeouts": None}, "does not mark where episodes end"),
        ({"observations": np.zeros((ROWS + 1, 4))}, "`obs` of .* has 16 rows, not 15"),
        ({"rewards": np.zeros(4)}, "has 4 rewards for 15 steps"),
        ({"terminals": np.zeros(9)}, "`terminals` of .* has 9 rows, not 15"),
        ({"observations": np.array(["x"] * ROWS)}, "The observations are <U1, not numbers"),
        ({"actions": np.array(["x"] * ROWS)}, "There are no actions, or they are not numbers"),
        ({"actions": np.full(ROWS, np.nan)}, "There are NaN or infinite values among the actions"),
        ({"indices": np.array([9, 4])}, "`obs` of .* has 15 rows, not 18"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, spoil: dict[str, Any], why: str) -> None:
    """Missing or mismatched arrays raise an error before anything is written."""
    file = save_npz(tmp_path, flat(**spoil))
    with pytest.raises(DemoError, match=why):
        import_demos("npz", str(file), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_hdf5_file(tmp_path: Path) -> None:
    """A file that is not HDF5 raises an error that names the file."""
    (tmp_path / "x.hdf5").write_bytes(b"nothing")
    with pytest.raises(DemoError, match=r"x\.hdf5 cannot be read"):
        import_demos("auto", str(tmp_path / "x.hdf5"), tmp_path / "out")


def test_a_single_step_without_an_end_is_no_episode(tmp_path: Path) -> None:
    """An episode of which no whole step is known is left out and named."""
    starts = np.isin(np.arange(ROWS), [0, 5, 6])
    file = save_npz(tmp_path, flat(terminals=None, timeouts=None, episode_starts=starts))
    facts = import_demos("npz", str(file), tmp_path / "out", allow=0.5)
    assert facts["episodes"] == 2
    (skipped,) = facts["skipped"]
    assert skipped["episode"] == "episode 1" and "has no complete step" in skipped["why"]


def test_no_more_is_read_than_an_episode_needs(tmp_path: Path) -> None:
    """A table is read in slices: whole columns only of flags, and of actions in blocks."""
    asked: list[int] = []

    class Watched:
        def __init__(self, array: Array) -> None:
            self.array, self.shape, self.dtype = array, array.shape, array.dtype

        def __getitem__(self, rows: slice) -> Array:
            asked.append(len(self.array[rows]))
            return self.array[rows]

    rows = 3 * BLOCK
    ends = np.arange(rows) % 100 == 99
    members = {"obs": Watched(np.zeros((rows, 2))), "acts": Watched(np.zeros(rows)), "dones": ends}
    table = TransitionTable(members, Path("memory"))
    for span in table.spans[:5]:
        table.observations(span)
    assert len(table.spans) == rows // 100 + 1 and max(asked) == 100


@dataclass
class Trajectory:
    """What `imitation` has in memory."""

    obs: Any
    acts: Any
    terminal: bool
    rews: Any = None


def test_trajectories_in_memory(tmp_path: Path) -> None:
    """A list of objects with obs, acts, rews and terminal becomes demos; without rewards they are zero."""
    random = np.random.default_rng(0)
    given = [
        Trajectory(random.normal(size=(n + 1, 4)), random.integers(0, 2, n), n % 2 == 1, random.normal(size=n))
        for n in LENGTHS
    ]
    facts = import_trajectories(given, tmp_path / "out", env="gymnasium:CartPole-v1")
    demos = Demos.open(tmp_path / "out")
    assert facts["steps"] == ROWS and demos.schema.env == "gymnasium:CartPole-v1"
    for number, one in enumerate(given):
        np.testing.assert_array_equal(demos.episode(number)["obs"], one.obs.astype(np.float32))
        np.testing.assert_array_equal(demos.episode(number)["reward"], one.rews.astype(np.float32))
    assert demos.episodes["ended"].tolist() == [TERMINATED] * 3
    mixed = [Trajectory({"a": np.zeros((3, 2)), "b": np.ones(3)}, np.zeros((2, 1)), False)]
    import_trajectories(mixed, tmp_path / "mixed")
    found = Demos.open(tmp_path / "mixed")
    assert [(f.name, f.shape) for f in found.schema.obs.fields] == [("a", (2,)), ("b", (1,))]
    assert not found.episode(0)["reward"].any()
    with pytest.raises(DemoError, match="There are 3 observations, not 2"):
        import_trajectories([Trajectory(np.zeros((3, 2)), np.zeros(1), False)], tmp_path / "bad")
    with pytest.raises(DemoError, match="There are no trajectories"):
        import_trajectories([], tmp_path / "bad")


@pytest.mark.parametrize("kind", ["plain", "everything"])
def test_what_is_exported_is_imported_again(tmp_path: Path, kind: str) -> None:
    """Demos exported as NPZ and imported again are equal bit for bit, for any observations."""
    random = np.random.default_rng(0)
    told = flat(actions=random.integers(0, 5, ROWS)) if kind == "plain" else flat(observations=None)
    if kind != "plain":
        eye = random.integers(0, 256, (ROWS, 12, 10, 3)).astype(np.uint8)
        told |= {"observations/eye": eye, "observations/speed": random.normal(size=(ROWS, 2))}
    demos = brought(save_npz(tmp_path, told), tmp_path / "one", env="e")
    facts = export_npz(demos, tmp_path / "again.npz")
    assert facts["episodes"] == 3 and facts["left_out"] == []
    again = brought(tmp_path / "again.npz", tmp_path / "two", env="e")
    assert again.checksum == demos.checksum
    np.testing.assert_array_equal(again.episodes["ended"], demos.episodes["ended"])
    with pytest.raises(DemoError, match=r"again\.npz already exists"):
        export_npz(demos, tmp_path / "again")


class Mixed(gymnasium.Env[Any, Any]):
    """Takes actions of discrete, binary and continuous parts."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Dict(
        {"gear": spaces.Discrete(3), "horn": spaces.MultiBinary(2), "steer": spaces.Box(-2.0, 2.0, (2,), np.float32)}
    )


def test_mixed_actions_are_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported demos with actions of several kinds are equal bit for bit after an import with their environment."""
    monkeypatch.setitem(gymnasium.registry, "Mixed-v0", gymnasium.envs.registration.EnvSpec("Mixed-v0", Mixed))
    random = np.random.default_rng(0)
    choices = random.integers(0, (3, 2, 2), (ROWS, 3))
    told = flat(actions=np.hstack([choices, random.uniform(-2, 2, (ROWS, 2))]).astype(np.float32))
    demos = brought(save_npz(tmp_path, told), tmp_path / "one", env="gymnasium:Mixed-v0")
    assert demos.schema.action.kind == "mixed" and demos.schema.action.sizes == (3, 2, 2)
    export_npz(demos, tmp_path / "again.npz")
    again = brought(tmp_path / "again.npz", tmp_path / "two", env="gymnasium:Mixed-v0")
    assert again.checksum == demos.checksum and again.schema == demos.schema
