"""Reading demos: by episode, by step and by sequence, of sets larger than memory."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.contracts import ActionSpec, Array, vector_obs
from slipstream.demos.format import EPISODE, Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare, seal
from slipstream.errors import DemoError, MachineError

Write = Callable[..., Path]


def whole(demos: Demos, name: str) -> Array:
    """A column of all episodes, concatenated one by one."""
    return np.concatenate([demos.episode(n)[name][: demos.episodes["steps"][n]] for n in range(len(demos))])


def test_by_step_is_by_episode(opened: Demos) -> None:
    """Any steps in any order are those of the episodes, in every column and over several shards."""
    random = np.random.default_rng(0)
    steps = random.permutation(opened.steps).repeat(2)
    for name in ("obs", "action", "reward", "mask", "terms/touch", "raw/keys", "raw/camera"):
        assert np.array_equal(opened.take(name, steps), whole(opened, name)[steps])
    starts = np.concatenate([np.repeat(opened.episode(n)["start/state"], s, 0) for n, s in _lengths(opened)])
    assert np.array_equal(opened.take("start/state", steps), starts[steps])
    following = np.concatenate([opened.episode(n)["obs"][1:] for n in range(len(opened))])
    assert np.array_equal(opened.take("obs", steps, ahead=1), following[steps])
    out = np.zeros((opened.steps, 2), np.int32)
    assert opened.take("action", np.arange(opened.steps), out=out) is out
    assert np.array_equal(out, whole(opened, "action"))
    assert opened.take("obs", np.zeros(0, np.int64)).shape == (0, 80)


def _lengths(demos: Demos) -> list[tuple[int, int]]:
    return list(enumerate(demos.episodes["steps"].tolist()))


def test_whole_columns(opened: Demos) -> None:
    """Loaded columns are the episodes behind one another; those per episode have one value each."""
    loaded = opened.load(["obs", "reward", "start/clock"])
    assert np.array_equal(loaded["obs"], whole(opened, "obs"))
    assert np.array_equal(loaded["reward"], whole(opened, "reward"))
    assert loaded["start/clock"].tolist() == [int(opened.episode(n)["start/clock"][0]) for n in range(len(opened))]


@pytest.mark.parametrize("length", [1, 3, 7, 100])
def test_sequences_stay_within_episodes(opened: Demos, length: int) -> None:
    """Sequences lie side by side within their episodes; tails are left out, and short episodes altogether."""
    starts = opened.sequences(length)
    assert len(starts) == sum(steps // length for _, steps in _lengths(opened))
    firsts, _ = opened.locate(starts)
    lasts, _ = opened.locate(starts + length - 1)
    assert np.array_equal(firsts, lasts)
    taken = opened.take_sequences("obs", starts, length)
    assert taken.shape == (len(starts), length, 80)
    for sequence, start in zip(taken, starts, strict=True):
        assert np.array_equal(sequence, whole(opened, "obs")[start : start + length])


def test_steps_that_are_not_there(opened: Demos) -> None:
    """The step that does not exist is named, with how many there are."""
    for wrong in (-1, opened.steps):
        with pytest.raises(DemoError, match=f"There is no step {wrong}: these demos have {opened.steps}"):
            opened.take("obs", np.array([0, wrong]))


def test_some_episodes(opened: Demos) -> None:
    """Chosen episodes are read in the order given and keep their names."""
    picked = opened.pick([5, 2, 17])
    assert len(picked) == 3
    assert [picked.label(n) for n in range(3)] == [opened.label(n) for n in (5, 2, 17)]
    assert np.array_equal(picked.take("obs", np.array([0])), opened.episode(5)["obs"][:1])
    assert np.array_equal(whole(picked, "reward"), picked.load(["reward"])["reward"])
    assert len(opened.pick([])) == 0
    assert opened.pick([]).sequences(2).shape == (0,)


def test_games(opened: Demos) -> None:
    """The agents of one game share its number, and games of the same number in other shards are others."""
    assert opened.games.tolist() == [n // 2 for n in range(18)]
    assert opened.pick([4, 0, 5]).games.tolist() == [1, 0, 1]


def test_recordings_are_added(write: Write) -> None:
    """A second recording is a new shard; an open reader does not change."""
    before = Demos.open(write(shard="a", games=2))
    after = Demos.open(write(shard="b", games=3, seed=1))
    assert (len(before), len(after)) == (2, 5)
    assert np.array_equal(after.episode(1)["obs"], before.episode(1)["obs"])
    assert after.checksum != before.checksum


def test_the_checksum_is_of_the_values(write: Write) -> None:
    """The checksum depends on the values and their order, not on who recorded them."""
    first = Demos.open(write("one", origin={"agent": "a"}))
    assert Demos.open(write("two", origin={"agent": "b"})).checksum == first.checksum
    assert Demos.open(write("three", seed=1)).checksum != first.checksum
    assert first.pick([1, 0, 2, 3]).checksum != first.checksum
    moved = Demos(first.path, first.schema, first.shards, first.chosen, {})
    moved.episodes["game"] += 1
    assert moved.checksum == first.checksum


def test_quarantine(write: Write) -> None:
    """Quarantined episodes are left out unless requested; an unreadable quarantine is an error."""
    folder = write(games=4)
    (folder / "quarantine.json").write_text(json.dumps({"version": 1, "episodes": {"a/1": "spoilt", "b/0": "gone"}}))
    demos = Demos.open(folder)
    assert [demos.label(n) for n in range(len(demos))] == ["a/0", "a/2", "a/3"]
    assert demos.left_out["a/1"] == "spoilt"
    assert len(Demos.open(folder, quarantined=True)) == 4
    for text in ("{", "[]", '{"episodes": 3}', "{}"):
        (folder / "quarantine.json").write_text(text)
        with pytest.raises(DemoError, match=r"quarantine\.json cannot be read") as raised:
            Demos.open(folder)
        assert "slipstream demos check" in raised.value.hint


def test_other_kinds_are_not_joined(write: Write, everything: Schema) -> None:
    """Two folders with the same schema are read as one; with different schemas this is an error."""
    one, two = Demos.open(write("one", games=2)), Demos.open(write("two", games=3, seed=1))
    joined = one.join(two)
    assert len(joined) == 5
    assert np.array_equal(joined.episode(2)["obs"], two.episode(0)["obs"])
    assert len(np.unique(joined.games)) == 5
    with pytest.raises(DemoError, match="different schemas"):
        one.join(Demos.open(write("three", schema=everything)))


def test_a_shard_of_unknown_origin(write: Write) -> None:
    """An origin that is missing or damaged is no reason not to read the data."""
    folder = write()
    for text in ("", "[1]", "{"):
        (folder / "shards" / "a" / "shard.json").write_text(text)
        assert Demos.open(folder).shards[0].origin == {}


def test_a_flipped_bit_is_seen(opened: Demos) -> None:
    """An episode one bit of which has changed is not intact; the others are."""
    file = opened.shards[1].path / "raw.keys.bin"
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    again = Demos.open(opened.path)
    assert [again.shards[1].intact(place) for place in range(6)] == [False] + [True] * 5


def test_columns_without_width(tmp_path: Path) -> None:
    """Observations of no numbers take no space and are read all the same."""
    schema = Schema("blind", vector_obs(0), ActionSpec("discrete", (2,)))
    prepare(tmp_path / "demos", schema)
    shard = Shard(tmp_path / "demos", "a", schema, {})
    shard.add({"obs": np.zeros((4, 0)), "action": np.ones((3, 1)), "reward": np.ones(3)})
    shard.close()
    demos = Demos.open(tmp_path / "demos")
    assert demos.episode(0)["obs"].shape == (4, 0)
    assert demos.take("obs", np.array([2])).shape == (1, 0)
    assert demos.shards[0].intact(0)


def _kib(name: str) -> int:
    """A figure of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_larger_than_memory(tmp_path: Path, plain: Schema) -> None:
    """Of a column of 64 GB only the requested values are read, by step, by sequence and by episode."""
    schema = replace(plain, obs=vector_obs(1000))
    prepare(tmp_path / "demos", schema)
    shard = Shard(tmp_path / "demos", "a", schema, {})
    steps, far = 50, 16_000_000
    values = {
        "obs": np.arange((steps + 1) * 1000).reshape(steps + 1, 1000),
        "action": np.ones((steps, 1)),
        "reward": np.arange(steps),
    }
    shard.add(values)
    between = np.zeros(1, EPISODE)
    between["first"], between["steps"] = steps, far - steps
    between["seal"] = seal(between)
    shard.close()
    with open(shard.path / "episodes.bin", "ab") as index:
        index.write(between.tobytes())
    last = np.zeros(1, EPISODE)
    last["first"], last["steps"] = far, steps
    last["seal"] = seal(last)
    with open(shard.path / "episodes.bin", "ab") as index:
        index.write(last.tobytes())
    for column in schema.columns:
        with open(shard.path / column.file, "r+b") as file:
            file.seek(column.start(far, 2) * column.bytes)
            file.write(np.ascontiguousarray(values[column.name], column.dtype).tobytes())
    assert (shard.path / "obs.bin").stat().st_size > 64e9
    before = _kib("RssAnon"), _kib("VmRSS")
    demos = Demos.open(tmp_path / "demos")
    assert demos.steps == far + steps
    assert np.array_equal(demos.episode(2)["obs"], values["obs"])
    assert np.array_equal(demos.take("obs", np.array([far + 3, 2])), values["obs"][[3, 2]])
    assert np.array_equal(demos.take_sequences("reward", np.array([far + 10]), 20)[0], np.arange(10, 30))
    random = np.random.default_rng(0).integers(steps, far, 1000)
    assert not demos.take("obs", random).any()
    assert _kib("RssAnon") - before[0] < 50_000
    assert _kib("VmRSS") - before[1] < 100_000


def test_too_many_files(write: Write, plain: Schema) -> None:
    """Too many open files raise an error with a hint."""
    for number in range(8):
        folder = write(shard=f"s{number}", games=1)
    demos = Demos.open(folder)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 3, limits[1]))
    try:
        with pytest.raises(MachineError, match="too many open files") as raised:
            for number in range(8):
                demos.episode(number)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "slipstream demos merge" in raised.value.hint
