"""Checkpoints: safetensors + JSON + sha256 manifest, written atomically."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.errors import CheckpointError, MachineError
from slipstream.runs import checkpoint as module
from slipstream.runs.checkpoint import (
    Checkpoint,
    Saver,
    check_space,
    find,
    load,
    load_latest,
    mark_best,
    read_best,
    save,
    steps_of,
)
from slipstream.runs.layout import RunDir

WHOLE = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES = [*WHOLE, "float16", "float32", "float64", "complex64", "complex128", ">f4", "<U5", "S3"]
posix = pytest.mark.skipif(os.name != "posix", reason="needs fork or rlimits")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a new run directory."""
    return RunDir.create(tmp_path / "run")


def made(steps: int, size: int = 100) -> Checkpoint:
    """Return a checkpoint whose content depends on its step count."""
    arrays: dict[str, np.ndarray] = {
        "w": np.full(size, steps, np.float32),
        "counter": np.array([2**64 - 1 - steps], np.uint64),
    }
    return Checkpoint(steps, {"policy": arrays, "learner": {"m": np.arange(3.0)}}, {"seed": 2**100 + steps, "x": 0.1})


def same(a: Checkpoint, b: Checkpoint) -> bool:
    """Return whether two checkpoints have the same arrays and state."""
    keys = {(g, n) for g in a.groups for n in a.groups[g]} == {(g, n) for g in b.groups for n in b.groups[g]}
    arrays = all(np.array_equal(a.groups[g][n], b.groups[g][n]) for g in a.groups for n in a.groups[g])
    return keys and arrays and (a.steps, a.state) == (b.steps, b.state)


def names(run: RunDir) -> list[str]:
    """Return the checkpoints on disk."""
    return sorted(p.name for p in run.checkpoints.iterdir())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (0, 4)])
def test_every_dtype_is_restored(run: RunDir, dtype: str, shape: tuple[int, ...]) -> None:
    """Arrays of any fixed-size dtype and shape are restored equal and writable."""
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    back = load(save(run, Checkpoint(1, {"policy": {"a": array, "t": array.T}}, {}))).groups["policy"]
    for there, here in ((back["a"], array), (back["t"], array.T)):
        assert there.dtype == here.dtype and there.shape == here.shape and there.tobytes() == here.tobytes()
        assert there.flags.writeable


def test_nan_bits_and_layout_are_kept(run: RunDir) -> None:
    """NaN payloads, negative zero and strided views are kept bit for bit."""
    odd = np.array([0x7FC00001, 0x80000000, 0xFF800000, 1], np.uint32).view(np.float32)
    grid = np.arange(24.0).reshape(4, 6)
    back = load(save(run, Checkpoint(1, {"g": {"odd": odd, "view": grid[::2, 1::2]}}, {}))).groups["g"]
    assert back["odd"].tobytes() == odd.tobytes() and np.array_equal(back["view"], grid[::2, 1::2])


def test_object_arrays_are_an_error(run: RunDir) -> None:
    """Saving an array of Python objects is an error, since loading it would need pickle."""
    with pytest.raises(CheckpointError, match="Array `a` of group `g` has dtype object"):
        save(run, Checkpoint(1, {"g": {"a": np.array([{}])}}, {}))
    assert names(run) == [] if run.checkpoints.exists() else True


def test_state_is_exact(run: RunDir) -> None:
    """Floats and integers of any size are restored exactly, infinity and NumPy scalars included."""
    state = {"f": 0.1 + 0.2, "big": 2**127 - 1, "inf": float("-inf"), "np": np.int64(5), "none": None}
    back = load(save(run, Checkpoint(7, {}, state))).state
    assert back == {**state, "np": 5}


def test_only_requested_groups_are_read(run: RunDir) -> None:
    """The policy can be loaded alone even if another group is damaged."""
    path = save(run, made(5))
    (path / "learner.safetensors").write_bytes(b"gone")
    assert list(load(path, ["policy"]).groups) == ["policy"]
    with pytest.raises(CheckpointError, match="has no group critic; it has policy, learner"):
        load(path, ["critic"])


def test_every_flipped_bit_is_detected(run: RunDir) -> None:
    """A flipped bit or a truncated file is reported with both hashes, and the hint has the newest valid checkpoint."""
    save(run, made(1000))
    path = save(run, made(2000))
    rng = np.random.default_rng(0)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for offset in rng.integers(0, len(whole), 25):
            flipped = bytearray(whole)
            flipped[offset] ^= 1 << int(rng.integers(8))
            file.write_bytes(bytes(flipped))
            with pytest.raises(CheckpointError) as caught:
                load(path)
            assert file.name in caught.value.message or file.name == "manifest.json"
            assert caught.value.hint.endswith(f"`run:{run.path}@1000`") or "format version" in caught.value.message
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CheckpointError, match="damaged"):
            load(path)
        file.write_bytes(whole)
    assert same(load(path), made(2000))
    (path / "policy.safetensors").write_bytes(b"\0" * (path / "policy.safetensors").stat().st_size)
    with pytest.raises(CheckpointError, match=r"policy\.safetensors is damaged: expected sha256 [0-9a-f]{64}, found"):
        load(path)


def test_latest_falls_back(run: RunDir) -> None:
    """A damaged newest checkpoint is skipped for the newest valid one, with a notice."""
    for steps in (1000, 2000, 3000):
        save(run, made(steps))
    (run.checkpoints / f"{3000:012d}" / "state.json").write_bytes(b"{}")
    back, notices = load_latest(run)
    assert same(back, made(2000))
    assert len(notices) == 1 and notices[0].startswith("Checkpoint 3000 was skipped:") and "state.json" in notices[0]
    for steps in (1000, 2000):
        (run.checkpoints / f"{steps:012d}" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"No checkpoint of .* is valid.*1000 was skipped"):
        load_latest(run)


def test_find(run: RunDir) -> None:
    """Latest, best and step counts are found; an error lists what is available."""
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        find(run)
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        load_latest(run)
    save(run, made(1000))
    save(run, made(3_000_000_000))
    assert find(run).name == "003000000000" and find(run, "1000").name == "000000001000"
    with pytest.raises(CheckpointError, match="none has been evaluated yet"):
        find(run, "best")
    mark_best(run, 1000, 0.5, {"opponent": "scripted:rule"})
    assert find(run, "best") == find(run, "1000")
    assert read_best(run) == {"steps": 1000, "score": 0.5, "opponent": "scripted:rule"}
    with pytest.raises(CheckpointError, match=f"no checkpoint at 7 steps.\nhint: available: `run:{run.path}@1000`, "):
        find(run, "7")
    with pytest.raises(CheckpointError, match="use latest, best or a step count"):
        find(run, "../x")


def resealed(path: Path, change: dict[str, Any]) -> None:
    """Rewrite a manifest as an attacker would, with a valid hash."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    manifest |= change
    seal = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps({**manifest, "sha256": seal}))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "a\\b", "..", "C:x", ""])
def test_paths_in_a_manifest_are_rejected(run: RunDir, name: str) -> None:
    """A manifest cannot name a file outside its folder."""
    path = save(run, made(1))
    resealed(path, {"files": {name: {"sha256": "0" * 64, "bytes": 1}}})
    with pytest.raises(CheckpointError, match="outside its folder: refused"):
        load(path)


@posix
def test_links_and_devices_are_rejected(run: RunDir) -> None:
    """A link or a pipe in a checkpoint is an error; it is neither followed nor waited for."""
    path = save(run, made(1))
    target = path / "policy.safetensors"
    target.rename(run.path / "elsewhere")
    target.symlink_to(run.path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a link"):
        load(path)
    target.unlink()
    os.mkfifo(target)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load(path)


def test_nothing_is_unpickled(run: RunDir) -> None:
    """A pickle in place of any file is an error and is not executed."""

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(run.path / "owned"),)

    path = save(run, made(1))
    data = pickle.dumps(Bomb())
    for name in ("policy.safetensors", "state.json", "manifest.json"):
        save(run, made(1))
        (path / name).write_bytes(data)
        if name != "manifest.json":
            files = json.loads((path / "manifest.json").read_text())["files"]
            files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            resealed(path, {"files": files})
        with pytest.raises(CheckpointError):
            load(path)
    assert not (run.path / "owned").exists()


def test_another_format_version_is_an_error(run: RunDir) -> None:
    """A checkpoint of another format version is not read."""
    path = save(run, made(1))
    resealed(path, {"version": 99})
    with pytest.raises(CheckpointError, match="has format version 99; this slipstream reads version 1"):
        load(path)


def test_saving_again_replaces(run: RunDir) -> None:
    """A second save at the same step count replaces the first."""
    save(run, made(10))
    other = Checkpoint(10, {"policy": {"w": np.zeros(2)}}, {"again": True})
    assert same(load(save(run, other)), other) and names(run) == [f"{10:012d}"]


def test_leftovers_are_deleted(run: RunDir) -> None:
    """Files of a dead writer are deleted at the next save, those of a live one are not; a half swap is undone."""
    path = save(run, made(10))
    for name in (f".writing-{20:012d}-{2**22 + 1}", f".pruned-{5:012d}-{2**22 + 1}", f".writing-{30:012d}-1"):
        (run.checkpoints / name).mkdir()
    path.rename(run.checkpoints / f".replaced-{path.name}-{2**22 + 1}")
    assert load_latest(run)[0].steps == 10
    save(run, made(40))
    assert names(run) == [f".writing-{30:012d}-1", f"{10:012d}", f"{40:012d}"]


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from slipstream.runs.checkpoint import Checkpoint, _remove, load_latest, save, steps_of
from slipstream.runs.layout import RunDir
run = RunDir(Path(sys.argv[1]))
random.seed(1)
def made(steps):
    groups = {"policy": {"w": np.full(300_000, steps, np.int64)}, "envs": {"s": np.arange(9)}}
    return Checkpoint(steps, groups, {"n": steps})
began = time.perf_counter()
save(run, made(1))
took = time.perf_counter() - began
last, partial = 1, 0
for round in range(int(sys.argv[2])):
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        steps = last
        os.write(tell, b"x")
        while True:
            steps += int.from_bytes(os.urandom(1), 'little') % 2  # sometimes replaces the newest one
            save(run, made(steps))
            for old in steps_of(run)[:-2]:
                _remove(run.checkpoints / f"{old:012d}")
    os.read(ready, 1)
    os.close(ready), os.close(tell)
    time.sleep(random.uniform(0.0, 3 * took))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    partial += any(p.name.startswith(".") for p in run.checkpoints.iterdir())
    back, notices = load_latest(run)
    assert notices == [], notices
    assert back.steps >= last, (back.steps, last)
    assert back.state == {"n": back.steps} and (back.groups["policy"]["w"] == back.steps).all()
    last = back.steps
save(run, made(last + 1))
assert not [p for p in run.checkpoints.iterdir() if p.name.startswith(".")]
print(partial, last)
"""


@posix
@pytest.mark.slow
def test_kill_while_writing(run: RunDir) -> None:
    """Whenever a writer is killed, the newest complete checkpoint loads, and leftovers are deleted."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(run.path), "60"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    partial, last = map(int, done.stdout.split())
    assert partial >= 5 and last > 5


FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from slipstream.errors import MachineError
from slipstream.runs.checkpoint import Checkpoint, Saver, load_latest
from slipstream.runs.layout import RunDir
from slipstream.runs.metrics import Metrics, read
run = RunDir(Path(sys.argv[1]))
def made(steps):
    return Checkpoint(steps, {"policy": {"w": np.full(100_000, steps, np.float32)}}, {"n": steps})
saver, metrics = Saver(run, keep=2), Metrics(run)
saver.submit(made(1)); saver.wait(raise_errors=True)
metrics.append({"steps": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
saver.submit(made(2), best={"score": 1.0})
try:
    saver.wait(raise_errors=True)
except MachineError as error:
    print(error.message)
for steps in range(2, 9):
    metrics.append({"steps": steps, "x": 0.5})
whole = run.metrics.read_bytes()
assert whole.endswith(b"\\n"), whole
print(len(saver.drain_problems()), len(metrics.drain_problems()), load_latest(run)[0].steps)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
saver.submit(made(3)); saver.close(); metrics.append({"steps": 9}); metrics.close()
print([row["steps"] for row in read(run)], sorted(p.name[-2:] for p in run.checkpoints.iterdir()))
assert not saver.problems
"""


@posix
def test_disk_full(run: RunDir) -> None:
    """A full disk causes a notice only: old checkpoints stay, and everything is written once there is space."""
    done = subprocess.run([sys.executable, "-c", FULL, str(run.path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told, counts, after = done.stdout.splitlines()
    assert told == "Checkpoint 2 was not saved: File too large."
    assert counts == "1 1 1"
    assert after == "[1, 2, 3, 4, 5, 6, 7, 8, 9] ['02', '03', 'on']"


def test_saver_keeps_newest_and_best(run: RunDir) -> None:
    """Only the newest `keep` and the best remain."""
    saver = Saver(run, keep=2)
    for steps in range(1, 7):
        saver.submit(made(steps), best={"score": 0.7, "games": 400} if steps == 2 else None, must=True)
    saver.close()
    assert steps_of(run) == [2, 5, 6] and saver.saved_steps == 6
    assert read_best(run) == {"steps": 2, "score": 0.7, "games": 400}


@pytest.mark.parametrize(
    ("damaged", "written", "keep", "left"), [(3000, 2000, 1, [2000]), (2000, 3000, 2, [1000, 2000, 3000])]
)
def test_a_damaged_checkpoint_does_not_count_as_kept(
    run: RunDir, damaged: int, written: int, keep: int, left: list[int]
) -> None:
    """After a fallback the next save stays and the damaged one is deleted; an older damaged one does not count."""
    save(run, made(1000))
    (save(run, made(damaged)) / "state.json").write_bytes(b"")
    saver = Saver(run, keep=keep)
    saver.submit(made(written))
    saver.close()
    assert steps_of(run) == left


def test_saver_drops_only_outdated_periodic_saves(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is written, a newer periodic save replaces a pending one; best and must stay."""
    begun, go, written = threading.Event(), threading.Event(), []

    def slow(run: RunDir, checkpoint: Checkpoint) -> Path:
        begun.set()
        go.wait(5)
        written.append(checkpoint.steps)
        return save(run, checkpoint)

    monkeypatch.setattr(module, "save", slow)
    saver = Saver(run, keep=9)
    saver.submit(made(1))
    begun.wait(5)
    saver.submit(made(2))
    saver.submit(made(3), must=True)
    saver.submit(made(4), best={"score": 0.1})
    saver.submit(made(5))
    saver.submit(made(6), best={"score": 0.2})
    saver.submit(made(7))
    go.set()
    saver.close()
    assert written == [1, 3, 6, 7]


def test_saver_retries_what_failed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only disk never raises in the loop; the next submit tries again, and `wait` can raise at the end."""

    def refuse(run: RunDir, checkpoint: Checkpoint) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    saver = Saver(run, keep=3)
    with monkeypatch.context() as patch:
        patch.setattr(module, "save", refuse)
        saver.submit(made(1), must=True)
        saver.wait()
        assert saver.drain_problems() == ["Checkpoint 1 was not saved: Read-only file system."]
        with pytest.raises(MachineError, match="Read-only file system"):
            saver.wait(raise_errors=True)
        assert saver.drain_problems() and not saver.problems
    saver.submit(made(2))
    saver.close()
    assert steps_of(run) == [1, 2] and not saver.problems


def test_saver_is_not_blocked_by_an_invalid_checkpoint(run: RunDir) -> None:
    """A checkpoint that cannot be written is reported once, and later ones are saved."""
    saver = Saver(run, keep=3)
    saver.submit(Checkpoint(1, {"g": {"a": np.array([{}])}}, {}), must=True)
    with pytest.raises(CheckpointError, match="dtype object"):
        saver.wait(raise_errors=True)
    saver.submit(made(2))
    saver.wait(raise_errors=True)
    saver.close()
    assert steps_of(run) == [2] and len(saver.problems) == 1


def test_a_deleted_run_folder_is_made_again(run: RunDir) -> None:
    """A file in place of the checkpoints folder, or a deleted folder, does not stop the saver."""
    run.checkpoints.write_text("a file, not a folder")
    saver = Saver(run, keep=2)
    saver.submit(made(1))
    saver.wait()
    assert len(saver.drain_problems()) == 1
    run.checkpoints.unlink()
    saver.submit(made(2))
    saver.close()
    assert steps_of(run) == [2]


def test_check_space(tmp_path: Path) -> None:
    """Too little disk space is an error in MiB."""
    check_space(tmp_path / "not" / "yet", 1)
    with pytest.raises(MachineError, match=r"MiB free; 1,099,511,627,776 MiB are needed"):
        check_space(tmp_path / "not" / "yet", 2**60)
