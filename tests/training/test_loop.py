"""The training loop: intervals in steps, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ppo_cases import start_parts
from slipstream.api import Run, configure
from slipstream.runs.checkpoint import Checkpoint, Saver, steps_of
from slipstream.runs.layout import RunDir
from slipstream.runs.metrics import Metrics
from slipstream.runs.signals import StopRequest
from slipstream.testing import ToyEnv
from slipstream.training.loop import due, iterate
from slipstream.training.run_state import Position


@pytest.mark.parametrize(
    ("every", "before", "now", "passed"),
    [
        (0, 0, 10**9, False),
        (100, 0, 99, False),
        (100, 0, 100, True),
        (100, 99, 100, True),
        (100, 100, 199, False),
        (100, 100, 200, True),
        (100, 150, 450, True),
        (1, 5, 6, True),
        (64, 64, 128, True),
        (100, 0, 64, False),
    ],
)
def test_due_when_a_multiple_is_passed(every: int, before: int, now: int, passed: bool) -> None:
    """An interval is due in each iteration that passes one of its multiples; 0 never is."""
    assert due(every, before, now) is passed


def test_intervals_count_steps(quick: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """With 64 steps per iteration, logging every 128 steps gives a row every second iteration."""
    requested, submit = [], Saver.submit

    def record(saver: Saver, checkpoint: Checkpoint, *rest: Any, **more: Any) -> None:
        requested.append(checkpoint.steps)
        submit(saver, checkpoint, *rest, **more)

    monkeypatch.setattr(Saver, "submit", record)
    run = quick(lambda: ToyEnv(), steps=640, every__log=128, every__checkpoint=256, every__gradients=320, keep=10)
    rows = run.metrics()
    assert [row["steps"] for row in rows] == [128, 256, 384, 512, 640]
    assert [row["iteration"] for row in rows] == [2, 4, 6, 8, 10]
    assert requested == [256, 512, 640]
    saved = steps_of(RunDir.open(Path(run.path)))
    assert set(saved) <= set(requested), "a save may be skipped for a newer one"
    assert saved[-1] == 640
    assert [row["steps"] for row in rows if "gradient/trunk.head.weight/norm" in row] == [640]
    assert all(row["lag"] == 0 for row in rows)


def test_intervals_can_be_off(quick: Callable[..., Run]) -> None:
    """With every interval at 0 nothing is logged, and only the end is saved."""
    run = quick(lambda: ToyEnv(), steps=320, every__log=0, every__checkpoint=0, every__gradients=0)
    assert run.metrics() == []
    assert steps_of(RunDir.open(Path(run.path))) == [320]


def test_a_run_ends_after_a_whole_iteration(quick: Callable[..., Run]) -> None:
    """A run ends with the first iteration that reaches its steps."""
    assert quick(lambda: ToyEnv(), steps=100).facts["steps"] == 128


def test_minutes_end_a_run(quick: Callable[..., Run]) -> None:
    """With minutes instead of steps the run ends by time."""
    run = quick(lambda: ToyEnv(), steps=None, minutes=0.01)
    assert run.facts["steps"] > 0
    assert run.facts["seconds"] > 0.5
    assert run.facts["seconds"] - run.facts["start_seconds"] < 5


def test_the_time_split_adds_up(quick: Callable[..., Run]) -> None:
    """The fractions of env, inference, learning and other sum to 1."""
    row = quick(lambda: ToyEnv(), steps=640).metrics()[-1]
    assert sum(row[f"time/{name}"] for name in ("env", "inference", "learn", "other")) == pytest.approx(1, abs=0.02)
    assert row["time/steps_per_second"] > 0


def test_a_score_that_led_to_a_rollback_is_not_the_best(tmp_path: Path) -> None:
    """The weights of a rejected evaluation are gone, so its score does not mark a checkpoint as the best."""
    flags: dict[str, Any] = {"plan.envs": 4, "ppo.rollout": 16, "ppo.minibatch": 32, "plan.collector": "local"}
    flags |= {"every.evaluate": 1, "every.system": 0, "evaluation.rollback_after": 1, "steps": 192}
    parts, settings, position = start_parts("recall", **flags), configure("recall", flags=flags).settings, Position()
    place = RunDir.create(tmp_path / "run")
    saver, metrics, scores = Saver(place, settings.keep), Metrics(place), iter([0.5, 0.1, 0.6, 0.2])

    def evaluate(steps: int) -> tuple[float, dict[str, Any]]:
        score = next(scores)
        return score, {"evaluate/score_low": score}

    loop = iterate(parts, settings, position, metrics, saver, StopRequest(), evaluate, lambda steps: nullcontext())
    assert [position.best_score for _ in loop] == [None, 0.6, 0.6]
    saver.close()
    metrics.close()
    parts.close()
