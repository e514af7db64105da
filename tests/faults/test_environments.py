"""Faulty environments in real training processes: they are reported, the run ends cleanly and can be resumed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from slipstream.cli import main

MODULE = """
import gymnasium
from slipstream.testing import BrokenEnv

class Unmade(BrokenEnv):
    def __init__(self):
        raise RuntimeError("no such track")

gymnasium.register("Broken-v0", BrokenEnv)
gymnasium.register("Unmade-v0", Unmade)
"""
QUICK = ["--preset", "smoke", "--set", "every.evaluate=0", "--import", "broken_module"]
ACTORS = ["--set", "plan.collector=actors", "--set", "plan.workers=2"]
Launch = Callable[..., tuple[subprocess.Popen[str], str]]
Living = Callable[[str], list[psutil.Process]]
Train = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Launch, living: Living) -> Train:
    """Run a training in its own process, and check that it leaves no process over."""
    (tmp_path / "broken_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, env: str = "Broken-v0") -> subprocess.CompletedProcess[str]:
        process, mark = launch("train", f"gymnasium:{env}", "--run", "r", *QUICK, *words)
        stdout, stderr = process.communicate(timeout=100)
        assert living(mark) == [], "no worker outlives the run"
        assert not (tmp_path / "r" / "lock").exists(), "the lock is released"
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run


def broken(fault: str, at: int = 40) -> list[str]:
    """Return the options of an env that fails at a step."""
    return ["--set", f"env.options.fault={fault}", "--set", f"env.options.at={at}"]


def check_env_error(done: subprocess.CompletedProcess[str], message: str) -> None:
    """The command ended with the exit code of environment errors, and a line starts with the message."""
    assert done.returncode == 3, done.stderr
    assert re.search(rf"^error: {message}", done.stderr, re.MULTILINE)


def resume_run(steps: int) -> None:
    """Resume the run in this process for one more iteration."""
    result = CliRunner().invoke(main, ["resume", "r", "--steps", str(steps), "--import", "broken_module"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("collector", ["local", "actors"])
def test_an_env_that_raises(collector: str, train: Train) -> None:
    """Index, seed, step and the env's traceback are shown, the exit code is 3, and the run can be resumed."""
    done = train(*broken("raise"), *ACTORS, "--set", f"plan.collector={collector}")
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    text = done.stderr
    assert re.search(r"^error: Env [02] \(seed \d+, step 40\) raised:\nTraceback", text, re.MULTILINE)
    assert 'raise ValueError("broken on purpose")' in text
    assert "ValueError: broken on purpose\nhint: " in text
    assert text.endswith("slipstream resume r --import broken_module\n")
    resume_run(192)


def test_an_env_that_takes_its_process_down(train: Train) -> None:
    """The error has the worker's exit code and the env that it stepped last."""
    done = train(*broken("die"), *ACTORS)
    check_env_error(
        done, r"Worker [01] ended with exit code 7\. Env [02] \(seed \d+, step 40\) was the last it stepped\.$"
    )
    assert "hint: run with --set plan.collector=local" in done.stderr
    resume_run(192)


def test_an_env_that_never_returns(train: Train) -> None:
    """An env that hangs is reported after its deadline, and its worker is killed."""
    done = train(*broken("hang"), *ACTORS, "--set", "plan.deadline_s=6")
    check_env_error(done, r"Env [02] \(seed \d+, step 40\) did not return from `step` or `reset` within 6 s\.$")
    assert "raise plan.deadline_s" in done.stderr
    resume_run(192)


def test_an_env_that_raises_in_reset(train: Train) -> None:
    """An exception in a reset during training is reported like one in a step."""
    done = train(*broken("raise_reset", 20), *ACTORS)
    check_env_error(done, r"Env [02] \(seed \d+, step 20\) raised:\nTraceback")
    assert "ValueError: broken on purpose in reset" in done.stderr


def test_an_env_that_cannot_be_made(train: Train, tmp_path: Path) -> None:
    """A constructor that fails is shown with its own traceback before anything is started or written."""
    done = train(*ACTORS, env="Unmade-v0")
    check_env_error(done, r"Env 0 \(seed \d+, step 0\) raised:\nTraceback")
    assert done.stderr.endswith("RuntimeError: no such track\nhint: fix the environment; nothing else failed\n")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(("fault", "what"), [("nan_reward", "The reward"), ("nan_obs", "The observation")])
def test_numbers_that_are_not_finite(fault: str, what: str, train: Train) -> None:
    """NaN is masked and reported with env and step, and training ends with finite weights."""
    done = train(*broken(fault), *ACTORS, "--steps", "512")
    assert done.returncode == 0, done.stderr
    for env in range(4):
        assert re.search(
            rf"{what} was not finite in env {env}.* at step 40: masked, and the env was reset", done.stderr
        )
    from slipstream.runs.checkpoint import find, load
    from slipstream.runs.layout import RunDir

    arrays = load(find(RunDir(Path("r")))).groups["policy"]
    assert all(bool(abs(array).sum() < 1e6) for array in arrays.values())


def test_a_fault_before_the_first_checkpoint(train: Train) -> None:
    """There is nothing to resume yet, so the hint does not suggest it."""
    done = train(*broken("raise", 3), *ACTORS)
    assert done.returncode == 3
    assert done.stderr.endswith("hint: fix the environment; nothing else failed\n")
