"""Replay files: what was written is read back bit for bit, from any step, and nothing else is believed."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.contracts import Array
from slipstream.errors import DemoError, MachineError
from slipstream.runs.replays import EVERY, MAGIC, Event, Replay, ReplayFacts, write

LENGTH = 2 * EVERY + 37


def facts(**more: Any) -> ReplayFacts:
    """The facts of a made-up game."""
    told = {"env": "soccer", "seed": 7, "players": ("a", "b@3"), "teams": (0, 1), "outcome": 1, "length": LENGTH}
    return ReplayFacts.model_validate(told | more)


@pytest.fixture
def arrays() -> dict[str, Array]:
    """Columns of several types: still ones, lively ones, rare changes, and floats that are hard to keep."""
    random = np.random.default_rng(5)
    state = np.zeros((LENGTH, 4), np.float32)
    state[:, 0] = np.cumsum(random.normal(0, 1, LENGTH))
    state[:, 1] = 3.25
    state[300:, 2] = -0.0
    state[4, 3], state[500, 3], state[501, 3] = np.nan, np.inf, 1e-45
    clock = np.stack([np.arange(LENGTH)[::-1] * -4, np.full(LENGTH, 2**62)], axis=1)
    return {
        "state": state, "clock": clock, "tracks": np.full((LENGTH, 5, 2), 0.1, np.float32),
        "action": random.integers(0, 18, (LENGTH, 2, 1)).astype(np.int32), "flag": np.zeros((LENGTH, 1), np.uint8),
        "value": random.normal(0, 1, LENGTH),
    }  # fmt: skip


@pytest.fixture
def path(tmp_path: Path, arrays: dict[str, Array]) -> Path:
    """A replay on disk."""
    place = tmp_path / "game.replay"
    write(place, facts(events=(Event(3, "goal", 1),)), arrays, {"state": ("ball.x", "still", "late", "odd")})
    return place


def same(one: Array, other: Array) -> bool:
    """Whether two arrays are alike, bit for bit."""
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def test_everything_comes_back(path: Path, arrays: dict[str, Array]) -> None:
    """Facts, events, names and every bit of every array."""
    replay = Replay.open(path)
    assert replay.facts == facts(events=(Event(3, "goal", 1),))
    assert replay.facts.events[0].kind == "goal"
    assert replay.names == tuple(arrays)
    assert replay.labels("state") == ("ball.x", "still", "late", "odd") and replay.labels("clock") == ()
    for name, array in arrays.items():
        assert same(replay.read(name), array), name


@pytest.mark.parametrize(("first", "last"), [(0, 1), (255, 258), (300, 300), (511, 549), (540, 900)])
def test_any_stretch(path: Path, arrays: dict[str, Array], first: int, last: int) -> None:
    """A stretch of steps is the same as that part of the whole, across blocks and at the ends."""
    replay = Replay.open(path)
    for name, array in arrays.items():
        assert same(replay.read(name, first, last), array[first:last]), name


def test_jumping_reads_one_block(path: Path, arrays: dict[str, Array]) -> None:
    """A step in the last block is read though an earlier block is damaged; that one is refused when it is asked for."""
    replay = Replay.open(path)
    data = bytearray(path.read_bytes())
    data[replay._start + replay._index.blocks[1].at + 5] ^= 1
    path.write_bytes(bytes(data))
    replay = Replay.open(path)
    assert {name: row.tobytes() for name, row in replay.at(LENGTH - 1).items()} == {
        name: array[-1].tobytes() for name, array in arrays.items()
    }
    with pytest.raises(DemoError, match=r"game.replay is damaged: block 1 does not match its checksum"):
        replay.at(3)


def test_the_bytes_are_as_documented(tmp_path: Path) -> None:
    """A reader written from the description alone finds the numbers: 1, 1, 2 and then 2 as changes 1, 3."""
    values = np.array([[1], [1], [2], [2]], np.uint16)
    write(tmp_path / "x.replay", facts(length=4), {"n": values}, {})
    data = (tmp_path / "x.replay").read_bytes()
    assert data[:8] == MAGIC
    version, size, crc = struct.unpack("<III", data[8:20])
    assert (version, crc) == (1, zlib.crc32(data[20 : 20 + size]))
    header = json.loads(zlib.decompress(data[20 : 20 + size]))
    block = header["index"]["blocks"][1]
    body = zlib.decompress(data[20 + size + block["at"] : 20 + size + block["at"] + block["size"]])
    assert body == bytes([0b0101, 1, 3, 0, 0])


def test_still_columns_cost_nothing(tmp_path: Path) -> None:
    """A game of a thousand steps in which nothing moves is no larger than one of ten."""
    sizes = []
    for length in (10, 1000):
        write(tmp_path / "x.replay", facts(length=length), {"a": np.ones((length, 50), np.float32)}, {})
        sizes.append((tmp_path / "x.replay").stat().st_size)
    assert sizes[1] < sizes[0] + 100


def test_foreign_files(tmp_path: Path, path: Path) -> None:
    """What is no replay, is not there, or is of another version, is said to be."""
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DemoError, match=r"notes.txt is not a replay.\nhint: replays end in .replay"):
        Replay.open(tmp_path / "notes.txt")
    with pytest.raises(DemoError, match=r"gone.replay cannot be read: No such file"):
        Replay.open(tmp_path / "gone.replay")
    path.write_bytes(MAGIC + struct.pack("<III", 9, 0, 0))
    with pytest.raises(DemoError, match=r"replay of version 9; this slipstream reads version 1.\nhint: update"):
        Replay.open(path)


@pytest.mark.parametrize(("keep", "words"), [(15, "is not a replay"), (60, "its header"), (-1, "ends too early")])
def test_cut_off(path: Path, keep: int, words: str) -> None:
    """A file that lost its end is refused when it is opened."""
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DemoError, match=words):
        Replay.open(path)


def forge(path: Path, change: Any) -> None:
    """Write the header of a replay again, changed, with a checksum that fits."""
    data = path.read_bytes()
    _, size, _ = struct.unpack("<III", data[8:20])
    header = json.loads(zlib.decompress(data[20 : 20 + size]))
    change(header)
    packed = zlib.compress(json.dumps(header).encode())
    path.write_bytes(MAGIC + struct.pack("<III", 1, len(packed), zlib.crc32(packed)) + packed + data[20 + size :])


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("index"),
        lambda header: header["facts"].update(length=10**9),
        lambda header: header["facts"].update(seed="x"),
        lambda header: header["index"]["arrays"][0].update(dtype="|O"),
        lambda header: header["index"]["arrays"][0].update(moving=[99]),
    ],
)
def test_headers_that_lie(path: Path, change: Any) -> None:
    """A header that does not fit itself is refused, whatever its checksum says."""
    forge(path, change)
    with pytest.raises(DemoError, match=r"The header of .*game.replay is invalid"):
        Replay.open(path)


def test_blocks_that_unpack_to_too_much(path: Path) -> None:
    """A block is never unpacked beyond what its arrays can hold."""
    bomb, at = zlib.compress(bytes(10**6)), Replay.open(path)._index.blocks[2].at

    def change(header: dict[str, Any]) -> None:
        header["index"]["blocks"][2] = {"at": at, "size": len(bomb), "crc": zlib.crc32(bomb)}

    forge(path, change)
    replay = Replay.open(path)
    data = bytearray(path.read_bytes())
    data[replay._start + at : replay._start + at + len(bomb)] = bomb
    path.write_bytes(bytes(data))
    with pytest.raises(DemoError, match=r"block 2 cannot be decompressed"):
        replay.at(300)


def test_a_folder_that_cannot_be_written(tmp_path: Path, arrays: dict[str, Array]) -> None:
    """A failed write is said with the file's name, and leaves nothing."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=r"x.replay could not be written"):
        write(tmp_path / "file" / "x.replay", facts(), arrays, {})
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
