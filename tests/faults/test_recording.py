"""Recordings that are killed, stopped or broken: whole episodes stay, and more can be added."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.demos.reader import Demos
from slipstream.errors import DemoError

MODULE = """
import gymnasium
from slipstream.testing import BrokenEnv
gymnasium.register("Broken-v0", BrokenEnv)
"""
Start = Callable[..., tuple[subprocess.Popen[str], str]]
Living = Callable[[str], list[psutil.Process]]
Until = Callable[[Callable[[], Any], float], bool]


def recorded() -> int:
    """Whole episodes in the folder `d`."""
    try:
        return len(Demos.open("d"))
    except DemoError:
        return 0


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Start, until: Until) -> Start:
    """Start a long recording in a process of its own and wait until it has written some episodes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_module.py").write_text(MODULE)

    def run(*words: str, env: str = "soccer", wait: int = 20, **more: Any) -> tuple[subprocess.Popen[str], str]:
        long = ["--episodes", "1000000", "--set", "plan.envs=8", "--import", "broken_module"]
        process, mark = launch("record", "random", "--env", env, "--out", "d", "--json", *long, *words, **more)
        if wait:
            ready = until(lambda: recorded() >= wait or process.poll() is not None, 60)
            assert ready and process.poll() is None, process.communicate()[1]
        return process, mark

    return run


def check_whole_and_append() -> int:
    """Check that every episode is whole and that a second recording is appended; return the number of episodes."""
    demos = Demos.open("d")
    for shard in demos.shards:
        assert all(shard.intact(place) for place in range(len(shard.records)))
    words = ["random", "--env", demos.schema.env, "--out", "d", "--episodes", "4", "--workers", "1", "--json"]
    more = CliRunner().invoke(main, ["record", *words, "--import", "broken_module"])
    assert more.exit_code == 0, more.output
    assert len(Demos.open("d")) == len(demos) + json.loads(more.stdout)["episodes"]
    return len(demos)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_recording_leaves_whole_episodes(workers: str, start: Start, living: Living, until: Until) -> None:
    """After SIGKILL no process is left, every episode is whole, and the next recording is appended."""
    process, mark = start("--workers", workers, "--set", "env.match_seconds=2")
    assert len(living(mark)) == (1 if workers == "1" else 3)
    process.kill()
    process.communicate()
    assert until(lambda: not living(mark), 2.0), "workers end with their parent"
    assert check_whole_and_append() >= 20


def test_a_partial_episode_is_ignored(start: Start) -> None:
    """Readers ignore data after the last whole episode."""
    process, _ = start("--workers", "1", "--set", "env.match_seconds=2")
    process.kill()
    process.communicate()
    before = Demos.open("d")
    (shard,) = before.shards
    for name in ("obs.bin", "action.bin", "episodes.bin"):
        with open(shard.path / name, "ab") as file:
            file.write(b"half an episode")
    assert Demos.open("d").checksum == before.checksum
    check_whole_and_append()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")])
def test_a_signal_stops_a_recording_cleanly(
    number: signal.Signals, code: int, word: str, workers: str, start: Start, living: Living
) -> None:
    """The facts of the saved episodes are printed, the exit code is that of the signal, and no process is left."""
    process, mark = start("--workers", workers, "--set", "env.match_seconds=2", start_new_session=True)
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == code, stderr
    facts = json.loads(stdout)
    assert (facts["stopped"], facts["episodes"]) == (word, recorded())
    assert stderr.endswith(f"stopped by {word} after saving\n")
    assert "Traceback" not in stderr
    assert living(mark) == []
    assert check_whole_and_append() >= 20


def test_a_killed_worker_is_reported(start: Start, living: Living) -> None:
    """A worker that dies ends the recording; the episodes of the others stay, and the error counts them."""
    process, mark = start("--workers", "2", env="gymnasium:CartPole-v1")
    next(p for p in living(mark) if p.pid != process.pid).kill()
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 3
    assert re.search(r"^error: Worker [01] was killed by signal 9\. Env [0-7] \(seed \d+, step \d+\) was", stderr, re.M)
    assert "hint: run with --workers 1" in stderr
    assert stderr.endswith(f"; {recorded():,} whole episodes were saved in d\n")
    assert living(mark) == []
    check_whole_and_append()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_env_that_raises(workers: str, start: Start, living: Living) -> None:
    """The error has the index, seed, step and traceback of the env; earlier episodes are whole."""
    words = ["--workers", workers, "--set", "env.options.fault=raise", "--set", "env.options.at=45"]
    process, mark = start(*words, env="gymnasium:Broken-v0", wait=0)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (3, "")
    assert re.search(r"^error: Env [04] \(seed \d+, step 45\) raised:\nTraceback", stderr, re.MULTILINE)
    assert "ValueError: broken on purpose\nhint: " in stderr
    assert stderr.endswith(f"{recorded():,} whole episodes were saved in d\n")
    assert recorded() >= 16, "each env of the failed worker had played four games"
    assert living(mark) == []


def test_an_env_that_never_returns(start: Start, living: Living) -> None:
    """An env that hangs is reported after the deadline, and its worker is ended."""
    words = ["--workers", "2", "--set", "env.options.fault=hang", "--set", "env.options.at=45"]
    process, mark = start(*words, "--set", "plan.deadline_s=6", env="gymnasium:Broken-v0", wait=0)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 3, stderr
    assert re.search(
        r"^error: Env [04] \(seed \d+, step 45\) did not return from `step` or `reset` within 6 s\.$", stderr, re.M
    )
    assert living(mark) == []


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk(workers: str, start: Start, living: Living) -> None:
    """A write that fails ends the recording with exit code 6; earlier episodes stay."""
    limit = 300_000

    def few_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    words = ["--workers", workers, "--set", "env.match_seconds=2"]
    process, mark = start(*words, wait=0, preexec_fn=few_bytes)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 6, stderr
    assert "error: An episode could not be written: File too large." in stderr
    assert stderr.endswith(f"{recorded():,} whole episodes were saved in d\n")
    assert living(mark) == []
    assert check_whole_and_append() > 10
