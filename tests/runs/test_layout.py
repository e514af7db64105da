"""The run directory: its files, its lock and its default name."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from slipstream.errors import CheckpointError, MachineError
from slipstream.runs import layout
from slipstream.runs.layout import RunDir, default_path, lock, write_json, write_text

HOLD = """
import sys, time
from pathlib import Path
from slipstream.runs.layout import RunDir, lock
with lock(RunDir(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""
RACE = """
import sys, time
from pathlib import Path
from slipstream.errors import CheckpointError
from slipstream.runs.layout import RunDir, lock
run = RunDir(Path(sys.argv[1]))
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
try:
    with lock(run):
        print("won", flush=True)
        sys.stdin.read()
except CheckpointError:
    print("refused", flush=True)
"""


def python(script: str, *args: object) -> subprocess.Popen[str]:
    """Start a Python process with pipes."""
    command = [sys.executable, "-c", script, *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_create_then_open(tmp_path: Path) -> None:
    """A new run directory is created with its parents, and can be opened once it has files."""
    run = RunDir.create(tmp_path / "a" / "b")
    write_text(run.config, "env: soccer\n")
    assert RunDir.open(tmp_path / "a" / "b") == run
    assert run.metrics.name == "metrics.jsonl" and run.discarded.name == "metrics.discarded.jsonl"


def test_create_in_an_existing_run_is_an_error(tmp_path: Path) -> None:
    """Creating a run in a directory that has one is an error with `resume` as the hint."""
    run = RunDir.create(tmp_path / "r")
    run.checkpoints.mkdir()
    with pytest.raises(CheckpointError) as caught:
        RunDir.create(run.path)
    assert str(caught.value) == (
        f"{run.path} already holds a run.\n"
        f"hint: resume it with `slipstream resume {run.path}`, or choose another `--run DIR`"
    )
    assert caught.value.code == 5


def test_create_under_a_file(tmp_path: Path) -> None:
    """A path that cannot be created is a MachineError with the system's reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=r"Could not create the run directory|Not a directory"):
        RunDir.create(tmp_path / "file" / "run")


def test_open_without_a_run_is_an_error(tmp_path: Path) -> None:
    """The error has the path and the most similar run beside it."""
    RunDir.create(tmp_path / "soccer-1").checkpoints.mkdir()
    with pytest.raises(CheckpointError, match=r"No run at .*soccer-2: no such folder\. Did you mean `soccer-1`\?"):
        RunDir.open(tmp_path / "soccer-2")
    with pytest.raises(CheckpointError, match="neither settings nor checkpoints"):
        RunDir.open(tmp_path)


def test_default_path_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs started in the same second get different names with portable characters."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(layout.time, "strftime", lambda _: "20260102-030405")
    first = default_path("gymnasium:CartPole-v1")
    assert first == Path("runs/gymnasium-cartpole-v1-20260102-030405")
    first.mkdir(parents=True)
    second = default_path("gymnasium:CartPole-v1")
    assert second.name == first.name + "-2"
    second.mkdir()
    assert default_path("gymnasium:CartPole-v1").name == first.name + "-3"


def test_a_second_process_is_an_error(tmp_path: Path) -> None:
    """While a process uses a run, a second one fails with its pid and host; after kill -9 the lock is replaced."""
    run = RunDir.create(tmp_path / "r")
    holder = python(HOLD, run.path)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError) as caught, lock(run):
            pass
        assert f"is in use by pid {holder.pid} on {socket.gethostname()}." in caught.value.message
        assert caught.value.code == 5 and f"kill {holder.pid}" in caught.value.hint
        holder.kill()
        time.sleep(0.2)  # not waited for: a zombie is dead too
        with lock(run) as notices:
            assert len(notices) == 1 and f"left by pid {holder.pid}" in notices[0]
        with lock(run) as notices:
            assert notices == []
    finally:
        holder.kill()
        holder.communicate()


def check_locks_once(run: RunDir, message: str) -> None:
    """A second lock fails while the first is held, and the lock file is removed afterwards."""
    with lock(run), pytest.raises(CheckpointError, match=message), lock(run):
        pass
    assert not run.lock_file.exists()


def test_the_same_process_cannot_lock_twice(tmp_path: Path) -> None:
    """A process cannot lock a run twice, and the lock file is removed afterwards."""
    run = RunDir.create(tmp_path / "r")
    check_locks_once(run, "in use")


def test_a_reused_pid_is_stale(tmp_path: Path) -> None:
    """A lock whose pid now belongs to another process is stale."""
    run = RunDir.create(tmp_path / "r")
    write_json(run.lock_file, {"pid": os.getpid(), "host": socket.gethostname(), "birth": "long ago"})
    with lock(run) as notices:
        assert "no longer running" in notices[0]


def test_a_lock_of_another_host_is_kept(tmp_path: Path) -> None:
    """A lock of another machine is never replaced; the hint has the file to delete."""
    run = RunDir.create(tmp_path / "r")
    write_json(run.lock_file, {"pid": 1, "host": "elsewhere", "birth": "x"})
    with pytest.raises(CheckpointError, match=r"pid 1 on elsewhere.*\nhint: .*delete .*lock"), lock(run):
        pass


def test_an_incomplete_lock_is_replaced(tmp_path: Path) -> None:
    """A lock file that its writer did not complete is not a lock."""
    run = RunDir.create(tmp_path / "r")
    run.lock_file.write_text('{"pid": 12')
    with lock(run) as notices:
        assert "an unknown process" in notices[0]
        assert json.loads(run.lock_file.read_text())["pid"] == os.getpid()


def test_no_file_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without locks, only the creator of the file owns the run."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", unsupported)
    run = RunDir.create(tmp_path / "r")
    check_locks_once(run, "is locked")


@pytest.mark.slow
def test_one_winner(tmp_path: Path) -> None:
    """Of several processes that find the same stale lock at the same time, exactly one replaces it."""
    run = RunDir.create(tmp_path / "r")
    write_json(run.lock_file, {"pid": 2**22 + 7, "host": socket.gethostname(), "birth": "x"})
    go = time.time() + 1.2
    racers = [python(RACE, run.path, go) for _ in range(5)]
    said = sorted(racer.stdout.readline().strip() for racer in racers if racer.stdout is not None)
    for racer in racers:
        racer.communicate()  # closes its input, which ends the winner
    assert said == ["refused"] * 4 + ["won"]


def test_write_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old file and no temporary one."""
    path = tmp_path / "a.json"
    write_json(path, {"x": np.float32(1.5), "nan": float("nan"), "n": np.int64(3), "a": np.arange(2)})
    assert json.loads(path.read_text()) == {"x": 1.5, "nan": None, "n": 3, "a": [0, 1]}

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(layout.os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, {"x": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"] and json.loads(path.read_text())["x"] == 1.5


def test_modules_of_a_foreign_run_are_names_only(tmp_path: Path) -> None:
    """The command that resumes a run holds nothing but module names, and quotes the path."""
    run = RunDir(tmp_path / "a b")
    run.path.mkdir()
    listed = ["fine.one", "x; touch /tmp/sprung", "a b", 3, "--trust", ""]
    run.provenance.write_text(json.dumps({"modules": listed}))
    assert run.modules == ["fine.one"]
    assert run.resume_command == f"slipstream resume '{run.path}' --import fine.one"
    run.provenance.write_text(json.dumps({"modules": "fine"}))
    assert run.modules == []
