"""Train an agent, or resume a training run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.config import Resolved
from slipstream.envs.registry import EnvChoice
from slipstream.training import runner
from slipstream.training.runner import TrainingResult


def train(choice: EnvChoice, resolved: Resolved, run: Path | None = None) -> TrainingResult:
    """Start a new run."""
    return runner.begin(choice, resolved, run)


def resume(
    run: Path,
    steps: int | None = None,
    modules: tuple[str, ...] = (),
    factory: Callable[[], Any] | None = None,
    terms: dict[str, Any] | None = None,
) -> TrainingResult:
    """Resume a run from its newest valid checkpoint; `steps` is the new total."""
    return runner.resume(run, steps, modules, factory, terms)
