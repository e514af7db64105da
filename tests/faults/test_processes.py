"""Runs that are stopped or killed: what they save, what they leave, and that they can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.runs.checkpoint import steps_of
from slipstream.runs.layout import RunDir

Start = Callable[..., tuple[subprocess.Popen[str], str]]
Living = Callable[[str], list[psutil.Process]]
Until = Callable[[Callable[[], Any], float], bool]
LONG = [
    "--preset",
    "smoke",
    "--set",
    "every.evaluate=0",
    "--set",
    "plan.collector=actors",
    "--set",
    "plan.workers=2",
    "--steps",
    "100000000",
    "--json",
]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Start, living: Living, until: Until) -> Start:
    """Start a long training in its own process and wait for its first checkpoint."""
    monkeypatch.chdir(tmp_path)

    def run() -> tuple[subprocess.Popen[str], str]:
        process, mark = launch("train", "gymnasium:CartPole-v1", "--run", "r", *LONG)
        ready = until(lambda: steps_of(RunDir(Path("r"))) or process.poll() is not None, 60)
        assert ready and process.poll() is None, process.communicate()[1]
        assert len(living(mark)) == 3, "a learner and two workers"
        return process, mark

    return run


def resume_run() -> str:
    """Resume for a few steps in this process; return stderr."""
    steps = steps_of(RunDir(Path("r")))[-1] + 100
    result = CliRunner().invoke(main, ["resume", "r", "--steps", str(steps), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps"] >= steps
    return result.stderr


@pytest.mark.parametrize(("number", "code", "word"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")])
def test_a_signal_saves_and_ends(number: signal.Signals, code: int, word: str, start: Start, living: Living) -> None:
    """The run saves and ends after its iteration with that exit code; before, a second start is an error."""
    process, mark = start()
    refused = CliRunner().invoke(main, ["resume", "r"])
    assert refused.exit_code == 5
    assert refused.stderr.startswith(f"error: r is in use by pid {process.pid} on ")
    assert f"stop it with `kill {process.pid}` (it saves first)" in refused.stderr
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == code
    facts = json.loads(stdout.splitlines()[-1])
    assert facts["stopped"] == word
    assert stderr.endswith(f"stopped by {word} after saving\n")
    assert "Traceback" not in stderr
    assert steps_of(RunDir(Path("r")))[-1] == facts["steps"]
    assert living(mark) == []
    resume_run()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs Linux")
def test_a_killed_run_leaves_nothing_over_and_can_be_resumed(start: Start, living: Living, until: Until) -> None:
    """After SIGKILL workers end within two seconds, /dev/shm is unchanged, and the stale lock is replaced."""
    before = set(os.listdir("/dev/shm"))
    process, mark = start()
    process.kill()
    process.communicate()
    assert until(lambda: not living(mark), 2.0), "workers end with their parent"
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "slip" in name]
    assert "lock of r, left by pid " in resume_run()


def test_a_killed_worker_is_reported(start: Start, living: Living) -> None:
    """A killed worker ends the run with a report of its env, and the last complete iteration is saved."""
    process, mark = start()
    worker = next(p for p in living(mark) if p.pid != process.pid)
    worker.kill()
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "was killed by signal 9. Env " in stderr
    assert "slipstream resume r" in stderr
    assert living(mark) == []
    resume_run()
