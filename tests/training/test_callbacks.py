"""on_iteration: what the function sees, what its handle does, and what a resumed run continues with."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.algorithms.schedules import Schedules
from slipstream.api import Run, resume, train
from slipstream.errors import ConfigError
from slipstream.runs.checkpoint import find, load, steps_of
from slipstream.runs.layout import RunDir
from slipstream.settings import Settings
from slipstream.training.callbacks import TrainingHandle
from tiny_run import TINY_RUN

TINY: dict[str, Any] = TINY_RUN | {"every__checkpoint": 64, "keep": 50}


def run_tiny(path: Path, on_iteration: Callable[..., Any], **settings: Any) -> Run:
    """Train the small game `recall` in iterations of 64 steps."""
    return train("recall", run=path, on_iteration=on_iteration, **TINY | {"steps": 256} | settings)


def test_the_function_sees_steps_and_metrics(tmp_path: Path) -> None:
    """It is called after every iteration with the metrics that metrics.jsonl gets."""
    seen: list[tuple[int, dict[str, Any]]] = []
    run = run_tiny(tmp_path / "run", lambda steps, metrics, handle: seen.append((steps, metrics)))
    assert [steps for steps, _ in seen] == [64, 128, 192, 256]
    logged = [(row.pop("steps"), row) for row in run.metrics()]
    assert [(steps, set(row)) for steps, row in seen] == [(steps, set(row)) for steps, row in logged]
    assert seen[-1][1]["ppo/kl"] == logged[-1][1]["ppo/kl"]


def test_stop_and_save(tmp_path: Path) -> None:
    """`save` saves this iteration, `stop` ends the run after it, and the result says why."""

    def steer(steps: int, metrics: dict[str, Any], handle: TrainingHandle) -> None:
        if steps == 64:
            handle.save()
        if steps == 192:
            handle.stop("good enough")

    run = run_tiny(tmp_path / "run", steer, every__checkpoint=0)
    assert (run.facts["steps"], run.facts["stopped"]) == (192, "good enough")
    assert steps_of(RunDir(run.path)) == [64, 192]
    run = run_tiny(tmp_path / "rare", steer, every__log=10_000)
    assert [row["steps"] for row in run.metrics()] == [192], "the iteration that ended the run is logged"


def test_set_acts_from_the_next_iteration_and_can_be_taken_back(tmp_path: Path) -> None:
    """A value replaces the schedule from the next update on; None returns to the schedule."""

    def steer(steps: int, metrics: dict[str, Any], handle: TrainingHandle) -> None:
        if steps == 64:
            handle.set("ppo.learning_rate", 5e-4)
        if steps == 192:
            handle.set("ppo.learning_rate", None)

    scheduled = {"ppo.learning_rate": "linear to 0 over 256"}
    run = run_tiny(tmp_path / "run", steer, ppo__learning_rate=1e-3, schedules=scheduled)
    assert [row["ppo/learning_rate"] for row in run.metrics()] == pytest.approx([1e-3, 5e-4, 5e-4, 2.5e-4])


def test_a_resumed_run_continues_with_what_was_set(tmp_path: Path) -> None:
    """The checkpoint of the iteration in which a value was set holds it: the resumed run is equal bit for bit."""

    def steer(steps: int, metrics: dict[str, Any], handle: TrainingHandle) -> None:
        if steps == 128:
            handle.set("ppo.clip", 0.05)
            handle.set("ppo.epochs", 3)

    whole = run_tiny(tmp_path / "whole", steer)
    run_tiny(tmp_path / "cut", steer, steps=128)
    cut = resume(tmp_path / "cut", steps=256)
    states = [load(find(RunDir(run.path), "256")) for run in (whole, cut)]
    assert states[1].state["fixed"] == {"ppo.clip": 0.05, "ppo.epochs": 3}
    for name, array in states[0].groups["policy"].items():
        np.testing.assert_array_equal(array, states[1].groups["policy"][name])


def test_an_exception_saves_and_shows_the_line(tmp_path: Path) -> None:
    """An exception ends the run with this iteration logged and saved; the traceback ends in the user's line."""

    def broken(steps: int, metrics: dict[str, Any], handle: TrainingHandle) -> None:
        if steps == 128:
            metrics["no such metric"]

    with pytest.raises(KeyError, match="no such metric") as caught:
        run_tiny(tmp_path / "run", broken, every__checkpoint=0)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == 'metrics["no such metric"]'
    assert "slipstream.resume" in caught.value.__notes__[0]
    assert resume(tmp_path / "run", steps=192).facts["steps"] == 192
    assert [row["steps"] for row in Run(tmp_path / "run", {}).metrics()] == [64, 128, 192]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_sys_exit_saves_too(error: type[BaseException], tmp_path: Path) -> None:
    """sys.exit and Ctrl-C inside the function end the run like an exception: logged, saved, and raised."""

    def leave(steps: int, metrics: dict[str, Any], handle: TrainingHandle) -> None:
        if error is SystemExit:
            sys.exit(4)
        raise error

    with pytest.raises(error) as caught:
        run_tiny(tmp_path / "run", leave, every__checkpoint=0)
    assert getattr(caught.value, "code", 4) == 4
    assert steps_of(RunDir(tmp_path / "run")) == [64]
    assert [row["steps"] for row in Run(tmp_path / "run", {}).metrics()] == [64]
    with pytest.raises(ConfigError, match="`on_iteration`"):
        resume(tmp_path / "run", on_iteration=lambda: None)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("print", "`on_iteration` = 'print' is not a function"),
        (lambda steps, metrics: None, r"\(steps, metrics\) cannot be called with \(steps, metrics, handle\)"),
        (lambda steps, metrics, handle, more: None, "missing a required argument: 'more'"),
    ],
)
def test_a_function_that_cannot_be_called_is_an_error_before_training(
    function: Any, message: str, tmp_path: Path
) -> None:
    """What is not callable with three arguments is a ConfigError, and no run begins."""
    with pytest.raises(ConfigError, match=message):
        run_tiny(tmp_path / "run", function)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ppo.learnig_rate", 1e-4, "`ppo.learnig_rate` cannot change .* Did you mean `ppo.learning_rate`?"),
        ("ppo.minibatch", 32, "`ppo.minibatch` cannot change during training"),
        ("sac.tau", 0.1, "`sac.tau` cannot change during training, because `algorithm` is ppo"),
        ("ppo.clip", -1.0, "`ppo.clip` cannot be -1: input should be greater"),
        ("ppo.epochs", 2.5, "`ppo.epochs` cannot be 2.5"),
        ("ppo.gamma", float("nan"), "`ppo.gamma` cannot be nan"),
        ("ppo.clip", "0.1", "`ppo.clip` cannot be '0.1': it is a number"),
        ("ppo.vtrace_rho", 1.0, "`ppo.vtrace_rho` is 0, and this run was built without"),
    ],
)
def test_set_checks_like_a_setting(key: str, value: Any, message: str) -> None:
    """Unknown keys, keys without schedules and invalid values are errors that name them."""
    with pytest.raises(ConfigError, match=message):
        Schedules(Settings()).set(key, value)


def test_potentials_keep_the_discount() -> None:
    """With `rewards.potential`, gamma cannot be set, as it cannot have a schedule."""
    settings = Settings.model_validate({"rewards": {"potential": True}})
    with pytest.raises(ConfigError, match=r"`ppo.gamma` cannot change: `rewards.potential`"):
        Schedules(settings).set("ppo.gamma", 0.9)


def test_a_clone_has_no_iterations(tmp_path: Path) -> None:
    """Resuming a clone with `on_iteration` is an error instead of a function that is never called."""
    (tmp_path / "config.yaml").write_text("{}\n")
    (tmp_path / "provenance.json").write_text('{"env": "recall", "stage": "clone"}')
    with pytest.raises(ConfigError, match="is a run of `clone`"):
        resume(tmp_path, on_iteration=lambda *_: None)
