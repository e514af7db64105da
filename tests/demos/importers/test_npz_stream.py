"""NPZ files as streams: only requested rows are read, no pickles, atomic writes."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from slipstream.demos.importers.npz_stream import NpzFile, write_npz
from slipstream.errors import DemoError

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "floats": RANDOM.normal(size=(50, 3)),
    "bytes": RANDOM.integers(0, 256, (50, 4, 5, 3)).astype(np.uint8),
    "words": np.array(["none", "planks", "stone_pickaxe"] * 10),
    "turned": np.asfortranarray(RANDOM.normal(size=(20, 6)).astype(np.float32)),
    "bits": RANDOM.random(7) < 0.5,
    "one": np.array(3.5),
    "empty": np.zeros((0, 4), np.int64),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows_are_those_of_numpy(tmp_path: Path, save: object) -> None:
    """Any rows of any array, in any order, are what numpy reads."""
    file = tmp_path / "a.npz"
    save(file, **ARRAYS)  # type: ignore[operator]
    with NpzFile(file) as archive:
        assert archive.names == list(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(archive.read(name), array)
            if array.ndim:
                assert archive[name].shape == array.shape and archive[name].dtype == array.dtype
                for start, stop in ((0, 5), (10, 20), (3, 4), (40, 60), (7, 7)):
                    np.testing.assert_array_equal(archive[name][start:stop], array[start:stop])


def test_objects_are_refused_by_name(tmp_path: Path) -> None:
    """Pickled members are never loaded; the others of the same file can be read."""
    file = tmp_path / "a.npz"
    np.savez(file, obs=np.zeros(3), infos=np.array([{"x": 1}, None], object))
    with NpzFile(file) as archive:
        assert archive.is_pickled("infos") and not archive.is_pickled("obs")
        with pytest.raises(DemoError, match=r"`infos` in .*a\.npz holds pickled Python objects, which are not loaded"):
            archive.read("infos")
        assert archive.read("obs").tolist() == [0, 0, 0]


def test_missing_and_damaged_members_are_named(tmp_path: Path) -> None:
    """A missing array, a file that is not a zip, and a truncated file raise errors that name the file."""
    file = tmp_path / "a.npz"
    np.savez(file, obs=np.arange(1000.0))
    with NpzFile(file) as archive, pytest.raises(DemoError, match=r"a\.npz has no `acts`") as caught:
        archive.read("acts")
    assert caught.value.hint == "it has: obs"
    data = bytearray(file.read_bytes())
    data[500:520] = bytes(20)
    file.write_bytes(data)
    with NpzFile(file) as archive, pytest.raises(DemoError, match=r"a\.npz cannot be read: Bad CRC-32"):
        archive.read("obs")
    file.write_bytes(b"nothing")
    with pytest.raises(DemoError, match=r"a\.npz cannot be read: File is not a zip file"):
        NpzFile(file)
    with pytest.raises(DemoError, match=r"b\.npz cannot be read: .*No such file"):
        NpzFile(tmp_path / "b.npz")


def test_what_is_written_in_blocks_is_read_by_numpy(tmp_path: Path) -> None:
    """Members are written block by block, and numpy reads them as one array."""
    file = tmp_path / "a.npz"
    members = [(name, a.dtype, a.shape, iter(np.array_split(a, 3))) for name, a in ARRAYS.items() if a.ndim]
    write_npz(file, members)
    with np.load(file) as found:
        for name, _, _, _ in members:
            np.testing.assert_array_equal(found[name], ARRAYS[name])


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """Where writing fails, nothing is left."""

    def failing() -> object:
        yield np.zeros(3)
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        write_npz(tmp_path / "a.npz", [("x", np.float64, (6,), failing())])  # type: ignore[list-item]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_threads_open_archives_at_once(tmp_path: Path) -> None:
    """Headers are read whole although the collector hands over to another thread in the middle of one."""
    names = [f"m{k}" for k in range(50)]
    np.savez(tmp_path / "a.npz", **dict.fromkeys(names, np.arange(3)))

    def read(_: int) -> list[int]:
        with NpzFile(tmp_path / "a.npz") as archive:
            return [len(archive[name]) for name in names]

    def hand_over(phase: str, info: dict[str, int]) -> None:
        time.sleep(1e-4)

    threshold = gc.get_threshold()
    gc.callbacks.append(hand_over)
    gc.set_threshold(100)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert all(rows == [3] * 50 for rows in pool.map(read, range(200)))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(hand_over)
