"""Training with an environment in another interpreter: all verbs, clean output, no process left."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result

from slipstream.cli import main

pytestmark = pytest.mark.slow
TINY = [
    *("--preset", "smoke", "--steps", "128", "--set", "plan.envs=2", "--set", "policy.features=8"),
    *("--set", "every.evaluate=0", "--set", "evaluation.final_games=1", "--set", "evaluation.envs=1"),
]
ACTORS = ["--set", "plan.collector=actors", "--set", "plan.workers=2"]
Launch = Callable[..., tuple[subprocess.Popen[str], str]]
Living = Callable[[str], list[psutil.Process]]
Until = Callable[[Callable[[], Any], float], bool]


def call(*words: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def command(process: psutil.Process) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)


def test_every_verb_plays_through_the_bridge(other_python: str, launch: Launch, living: Living) -> None:
    """Workers train, the run is resumed, evaluated and watched; stdout holds the result, the run no interpreter."""
    env, there = "minerl:MineRLTreechop-v0", ["--python", other_python]
    process, mark = launch("train", env, "--run", "r", *TINY, *ACTORS, *there, "--json")
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["steps"] >= 128 and "[Client thread/INFO]" in stderr
    assert living(mark) == []
    assert other_python not in Path("r/config.yaml").read_text()
    refused = call("resume", "r", "--steps", "192")
    assert refused.exit_code == 3 and "add --python PATH" in refused.stderr
    resumed = call("resume", "r", "--steps", "192", *there, "--json")
    assert resumed.exit_code == 0, resumed.output
    played = call("evaluate", "run:r", "--env", env, "--games", "2", *there, "--json")
    assert json.loads(played.stdout.splitlines()[-1])["mean_length"] == 20
    watched = call("watch", "run:r", "--env", env, *there, "--json")
    assert watched.exit_code == 0, watched.output


def test_a_fault_in_a_worker_ends_the_run(other_python: str, launch: Launch, living: Living) -> None:
    """The traceback of the other interpreter is shown with env, seed and step, and the command that resumes."""
    process, mark = launch("train", "minerl:Raise-v0", "--run", "r", *TINY, *ACTORS, "--python", other_python)
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 3
    assert re.search(r"error: Env [01] \(seed \d+, step 10\) raised:\nTraceback[\s\S]*ValueError: the server", stderr)
    assert living(mark) == []


def test_a_hanging_game_ends_a_run_without_workers(other_python: str) -> None:
    """The deadline of the run applies to games in its own process, in training and evaluation."""
    hang = ["--python", other_python, "--set", "plan.deadline_s=1"]
    trained = call("train", "minerl:Hang-v0", "--run", "r", *TINY, "--set", "plan.collector=local", *hang)
    played = call("evaluate", "random", "--env", "minerl:Hang-v0", "--games", "1", *hang)
    for result in (trained, played):
        assert result.exit_code == 3, result.output
        assert re.search(r"step 10\): The interpreter \S+ did not return from `step` within 1 s", result.stderr)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_run(
    other_python: str, launch: Launch, living: Living, until: Until, number: signal.Signals
) -> None:
    """The game hangs and has started two more processes, one in its own session: all end with the trainer."""
    deadline = ["--set", "plan.deadline_s=3"] if number == signal.SIGTERM else []
    process, mark = launch("train", "minerl:Java-v0", "--run", "r", *TINY, *ACTORS, *deadline, "--python", other_python)
    assert until(lambda: sum("time.sleep(600)" in command(one) for one in living(mark)) == 4, 60), "two per env"
    process.send_signal(number)
    assert until(lambda: not living(mark), 15)
