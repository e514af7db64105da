"""Write demos: complete episodes or none, for any input and after any failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, Array
from slipstream.demos.format import EPISODE, Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare, recording_name
from slipstream.errors import DemoError, MachineError

Draw = Callable[..., dict[str, Array]]


def same(found: dict[str, Array], written: dict[str, Array]) -> bool:
    """Whether an episode is read as it was handed over."""
    return found.keys() == written.keys() and all(np.array_equal(found[k], written[k]) for k in written)


def test_every_column_comes_back(tmp_path: Path, everything: Schema, values: Draw) -> None:
    """All columns, observations with one more row than steps, and all fields of the record are read back."""
    prepare(tmp_path / "demos", everything)
    shard = Shard(tmp_path / "demos", "a", everything, {"agent": "me"})
    written = [values(everything, steps, steps) for steps in (1, 9, 4)]
    for number, episode in enumerate(written):
        shard.add(episode, game=number, env=3, seed=-5, agent=1, team=1, outcome=-1, ended=2)
    shard.close()
    demos = Demos.open(tmp_path / "demos")
    assert all(same(demos.episode(n), episode) for n, episode in enumerate(written))
    assert demos.episode(1)["obs"].shape == (10, everything.obs.width)
    for name, told in {
        "game": [0, 1, 2],
        "env": 3,
        "seed": -5,
        "agent": 1,
        "team": 1,
        "outcome": -1,
        "ended": 2,
    }.items():
        assert (demos.episodes[name] == told).all()
    assert demos.episodes["return"].tolist() == [float(e["reward"].sum(dtype=np.float64)) for e in written]
    assert all(demos.shards[0].intact(place) for place in range(3))
    assert demos.shards[0].origin == {"agent": "me"}
    assert (shard.episodes, shard.steps) == (3, 14)
    files = sum(f.stat().st_size for f in shard.path.glob("*.bin") if f.name != "episodes.bin")
    assert shard.bytes == files


def test_what_is_handed_over_is_converted(tmp_path: Path, plain: Schema, values: Draw) -> None:
    """Doubles, strided views and other byte orders are converted to the dtype of the column."""
    prepare(tmp_path / "demos", plain)
    shard = Shard(tmp_path / "demos", "a", plain, {})
    wide = values(steps=20)
    handed = {
        "obs": np.asfortranarray(wide["obs"].astype(np.float64))[::2],
        "action": wide["action"].astype(">i8")[::2],
        "reward": wide["reward"].astype(np.float64)[::2],
    }
    shard.add(handed)
    shard.close()
    found = Demos.open(tmp_path / "demos").episode(0)
    for name in handed:
        assert np.array_equal(found[name], wide[name][::2])


def test_a_wrong_episode_leaves_nothing_behind(tmp_path: Path, plain: Schema, values: Draw) -> None:
    """One that is refused does not shift those that follow, even if some of its columns were fine."""
    prepare(tmp_path / "demos", plain)
    shard = Shard(tmp_path / "demos", "a", plain, {})
    shard.add(values(seed=1))
    with pytest.raises(DemoError, match=r"`reward` of an episode should be \(10,\) but is \(10, 1\)"):
        shard.add(values(seed=2) | {"reward": np.zeros((10, 1), np.float32)})
    with pytest.raises(DemoError, match=r"`obs` of an episode should be \(11, 3\) but is \(10, 3\)"):
        shard.add(values(seed=2) | {"obs": np.zeros((10, 3), np.float32)})
    with pytest.raises(DemoError, match="without steps"):
        shard.add({name: array[:0] for name, array in values(seed=2).items()})
    shard.add(values(seed=3))
    shard.close()
    demos = Demos.open(tmp_path / "demos")
    assert len(demos) == 2
    assert same(demos.episode(1), values(seed=3))
    assert demos.shards[0].intact(1)


def test_a_full_disk(tmp_path: Path, plain: Schema, values: Draw) -> None:
    """A full disk raises an error, earlier episodes are kept, and the shard can continue once there is space."""
    prepare(tmp_path / "demos", plain)
    shard = Shard(tmp_path / "demos", "a", plain, {})
    shard.add(values(seed=1))
    reward = shard._files["reward"]
    full = os.open("/dev/full", os.O_WRONLY)
    shard._files["reward"] = full
    with pytest.raises(MachineError, match="No space left on device") as raised:
        shard.add(values(seed=2, steps=100))
    assert "free some disk space" in raised.value.hint
    os.close(full)
    shard._files["reward"] = reward
    shard.add(values(seed=3))
    shard.close()
    demos = Demos.open(tmp_path / "demos")
    assert [same(demos.episode(n), values(seed=s)) for n, s in enumerate((1, 3))] == [True, True]
    assert all(demos.shards[0].intact(place) for place in range(2))


def test_a_shard_without_episodes_goes_away(tmp_path: Path, plain: Schema) -> None:
    """A recording that ends before its first episode leaves no empty shard."""
    prepare(tmp_path / "demos", plain)
    shard = Shard(tmp_path / "demos", "a", plain, {})
    assert shard.path.is_dir()
    shard.close()
    assert not shard.path.exists()


def test_a_shard_has_one_writer(write: Callable[..., Path], plain: Schema) -> None:
    """An existing shard is never written to."""
    folder = write()
    with pytest.raises(FileExistsError):
        Shard(folder, "a", plain, {})


def test_folders_that_cannot_be_used(tmp_path: Path, plain: Schema, everything: Schema) -> None:
    """A folder with other things or with other data is left alone, and the first difference is named."""
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "note.txt").touch()
    with pytest.raises(DemoError, match="is not empty and holds no demos") as raised:
        prepare(tmp_path / "things", plain)
    assert "--out" in raised.value.hint
    prepare(tmp_path / "demos", plain)
    prepare(tmp_path / "demos", plain)
    with pytest.raises(DemoError, match='holds demos with another `env`: "toy", not "mixed"'):
        prepare(tmp_path / "demos", everything)
    with pytest.raises(DemoError, match=r'another `action`: \{"kind": "discrete", "sizes": \[4\].*\.\.\., not'):
        prepare(tmp_path / "demos", replace(plain, action=ActionSpec("discrete", (5,))))
    assert json.loads((tmp_path / "demos" / "demos.json").read_text()) == plain.describe()


def test_names_sort_by_time() -> None:
    """Recordings have names of their own that sort by time."""
    first, second = recording_name(), recording_name()
    assert first != second
    assert first[:15] <= second[:15]


WRITES = """
import sys
import numpy as np
from pathlib import Path
from slipstream.demos.reader import read_schema
from slipstream.demos.writer import Shard
schema = read_schema(Path(sys.argv[1]))
shard = Shard(Path(sys.argv[1]), "b", schema, {})
for number in range(1_000_000):
    steps = 500
    reward = np.full(steps, number, np.float32)
    shard.add({"obs": np.full((steps + 1, 3), number), "action": np.full((steps, 1), number % 4), "reward": reward})
    if number == 20:
        print("written", flush=True)
"""


def test_a_killed_writer(tmp_path: Path, plain: Schema) -> None:
    """Whenever a writer is killed, there are whole episodes and nothing else."""
    folder = tmp_path / "demos"
    prepare(folder, plain)
    child = subprocess.Popen([sys.executable, "-c", WRITES, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "written\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    demos = Demos.open(folder)
    assert len(demos) > 20
    for number in range(len(demos)):
        assert (demos.episode(number)["obs"] == number).all()
        assert demos.shards[0].intact(number)


@pytest.mark.parametrize(
    ("harm", "left"),
    [
        (lambda shard: _append(shard / "episodes.bin", b"\x07" * 30), 8),
        (lambda shard: _append(shard / "episodes.bin", bytes(EPISODE.itemsize)), 8),
        (lambda shard: _append(shard / "obs.bin", b"\x07" * 1000), 8),
        (lambda shard: os.truncate(shard / "episodes.bin", 8 * EPISODE.itemsize - 1), 7),
        (lambda shard: os.truncate(shard / "obs.bin", (shard / "obs.bin").stat().st_size - 1), 7),
        (lambda shard: os.truncate(shard / "raw.camera.bin", (shard / "raw.camera.bin").stat().st_size // 2), 4),
        (lambda shard: os.truncate(shard / "start.clock.bin", 17), 2),
        (lambda shard: (shard / "reward.bin").unlink(), 0),
        (lambda shard: (shard / "episodes.bin").unlink(), 0),
    ],
    ids=[
        "garbage behind the records",
        "zeros behind the records",
        "half an episode",
        "torn record",
        "missing last byte",
        "half a column",
        "a tenth of the starts",
        "no rewards",
        "no index",
    ],
)
def test_torn_files(write: Callable[..., Path], everything: Schema, harm: Callable[[Path], Any], left: int) -> None:
    """Where the end of any file is torn or missing, the episodes before are there, whole."""
    folder = write(schema=everything)
    harm(folder / "shards" / "a")
    demos = Demos.open(folder)
    assert len(demos) == left
    assert all(demos.shards[0].intact(place) for place in range(left))


def _append(file: Path, data: bytes) -> None:
    with open(file, "ab") as opened:
        opened.write(data)
