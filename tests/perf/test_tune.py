"""Tuning finds plans that are significantly faster, refuses plans that do not fit, and saves nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream import api
from slipstream.api import configure
from slipstream.errors import MachineError
from slipstream.perf import tune as module
from slipstream.perf.tune import Attempt, Tuned, tune
from slipstream.system import machine
from slipstream.testing import ToyEnv
from slipstream.training.build import choose_env

STILL = {"plan.collector": "local", "plan.threads": 1, "plan.learner": "fused"}
"""Settings that leave the number of envs to be tried."""


class SlowEnv(ToyEnv):
    """A ToyEnv that sleeps in every step: two processes are twice as fast, and the number of envs has no effect.

    The cost model predicts this on any machine, so that it does not skip other numbers of envs.
    """

    def step(self, action: Any) -> Any:
        """Sleep, then step."""
        time.sleep(0.002)
        return super().step(action)


def search(env: type[ToyEnv] = ToyEnv, seconds: float = 3.0, exact: bool = False, **flags: Any) -> Tuned:
    """Tune a toy of four envs and 16 steps."""
    resolved = configure("", preset="smoke", flags=flags)
    choice = choose_env(f"python:{env.__name__}", resolved.settings, factory=env)
    return tune(choice, resolved, seconds=seconds, exact=exact)


def verdicts(found: Tuned) -> dict[str, Attempt]:
    """The attempts by their text."""
    return {attempt.said: attempt for attempt in found.attempts}


@pytest.fixture
def hopeful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try everything, regardless of the cost model's prediction."""
    monkeypatch.setattr(module, "UNLIKELY", 0.0)


@pytest.mark.usefixtures("quiet_machine")
def test_two_workers_for_a_slow_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """If envs take all the time, workers are found, predicted, measured and verified."""
    monkeypatch.setattr(machine, "cores", lambda: 2)
    found = search(SlowEnv, seconds=30.0, exact=True, **{"plan.groups": 1})
    assert found.settings == {"plan.collector": "actors", "plan.workers": 2}
    assert found.gain.low > 1.0 and 1.2 < found.gain.mean < 2.5
    assert found.gain.rounds == 5
    assert found.rate == pytest.approx(found.gain.mean * found.default_rate, rel=0.3)
    assert found.predicted is not None and 1.5 < found.predicted < 2.2
    kept = [attempt for attempt in found.attempts if attempt.verdict == "kept"]
    assert kept[0].ratio is not None and kept[0].ratio.faster and kept[0].predicted is not None
    assert {key for attempt in found.attempts for key in attempt.changes} == {"plan.collector", "plan.workers"}
    assert found.model["env_us"] > 2000 and found.batch == 64
    assert found.path == "", "an env without a name"


@pytest.mark.usefixtures("hopeful", "quiet_machine")
def test_what_is_not_faster_is_not_kept() -> None:
    """Half the envs with twice the steps is no gain if every env sleeps."""
    found = search(SlowEnv, seconds=20.0, **STILL)
    assert found.settings == {} and found.gain.mean == 1.0
    (attempt,) = [one for said, one in verdicts(found).items() if said.startswith("plan.envs")]
    assert attempt.said == "plan.envs 4 -> 2, ppo.rollout 16 -> 32"
    assert attempt.verdict in ("no difference", "slower") and attempt.ratio is not None


@pytest.mark.usefixtures("hopeful", "quiet_machine")
def test_plans_that_need_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than four fifths of the memory is too much."""
    monkeypatch.setattr(machine, "memory_bytes", lambda: 2**20)
    (attempt,) = search(SlowEnv, seconds=20.0, **STILL).attempts
    assert attempt.verdict == "refused"
    assert "MiB of memory, more than 1" in attempt.why


@pytest.mark.usefixtures("quiet_machine")
def test_no_time_is_said() -> None:
    """A change without time for a trial is listed, with the flag for more time."""
    (attempt,) = search(seconds=0.01, **STILL).attempts
    assert (attempt.verdict, attempt.why) == ("not tried", "no time left; --minutes 1 has more")


@pytest.mark.usefixtures("hopeful", "quiet_machine")
def test_a_change_that_fails_is_refused() -> None:
    """A plan whose environments cannot be created is refused, and tuning continues."""
    made = []

    class Scarce(SlowEnv):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            if len(made) > 5 + 5 + 2:  # the default plan, and the model's two trials
                raise ValueError("no more of them")

    (attempt,) = search(Scarce, seconds=20.0, **STILL).attempts
    assert attempt.verdict == "refused" and "no more of them" in attempt.why


def test_a_plan_is_kept_for_envs_with_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is cached for a named environment, even if nothing is faster."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    short = {"minutes": 0.0001, "preset": "smoke"} | STILL
    facts = api.tune("soccer", **short, exact=True)
    assert Path(facts["path"]).is_file() and facts["settings"] == {} and facts["tried"] == []
    facts = api.tune("soccer", **short)
    assert facts["path"] == "" and facts["tried"][0]["verdict"] == "not tried", "too short to say anything"
    assert api.tune(ToyEnv, **short, exact=True)["path"] == "", "no name"


def test_the_benchmark_runs(tmp_path: Path) -> None:
    """`benchmarks/tune.py --quick` measures a grid, tunes, compares, and writes a result."""
    script = Path(__file__).parents[2] / "benchmarks" / "tune.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--out", str(tmp_path / "tune.json")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "tune.json").read_text())
    summary = result["summary"]
    assert summary["points"] == 4 and summary["ratio"]["rounds"] >= 1 and summary["batch"] == 128
    assert [row["work"] for row in result["rows"]] == ["default", *["grid"] * 4, "tune", "final"]


@pytest.mark.usefixtures("hopeful")
def test_a_gpu_that_failed_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that failed ends the search, because every other plan would fail too."""

    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore of it")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(MachineError, match=r"GPU failed while plans were tried.*access was encountered\."):
        search(SlowEnv, seconds=20.0, **STILL)
